"""From an experiment to what training needs: task, model, loss, optimizer."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..models import CAUSAL_FORMS, TransformerConfig, build
from ..norms import NORMS
from ..runs import Choice
from . import tasks
from .experiment import Experiment


def named(path: str) -> Any:
    """The object that MODULE:NAME names, modules of the working folder included."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"expected MODULE:NAME, such as my.module:make_model, got {path!r}")
    sys.path.insert(0, "")  # as python -m finds them
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load {path}: {error}") from error
    finally:
        sys.path.remove("")


def task_of(experiment: Experiment) -> tasks.Task:
    if experiment.task == "own":
        assert experiment.make_data is not None
        loss = None if experiment.make_loss is None else named(experiment.make_loss)
        return tasks.OwnTask(make_data=named(experiment.make_data), make_loss=loss)
    return tasks.find_task(experiment.task, files=experiment.files, options=experiment.options)


def model_config(
    experiment: Experiment, task: tasks.Task, processes: int = 1
) -> tuple[TransformerConfig, list[Choice]]:
    """The model's settings, and what was chosen for the user. Combinations that cannot work raise ValueError."""
    settings = {**task.settings, **experiment.model, "norm": experiment.norm, "placement": experiment.placement}
    choices = []
    forms = CAUSAL_FORMS.get(experiment.norm, {})
    if settings["architecture"] in ("decoder", "encoder-decoder") and forms and "causal_statistics" not in settings:
        settings["causal_statistics"] = next(iter(forms))
        choices.append(_causal(experiment, task, settings["causal_statistics"], processes))
    layer = NORMS[experiment.norm].layer if experiment.norm in NORMS else None
    if processes > 1 and layer is not None and "sync" in inspect.signature(layer).parameters:
        settings["norm_options"] = {"sync": True, **settings.get("norm_options", {})}
        words = f"sync=True: {experiment.norm} norm takes its statistics over all {processes} processes"
        choices.append(Choice(kind="sync", norm=experiment.norm, values=processes, text=words))
    return TransformerConfig.from_dict(settings), choices


def _causal(experiment: Experiment, task: tasks.Task, form: str, processes: int) -> Choice:
    words = f"causal_statistics={form!r}: {experiment.norm} norm would otherwise let a causal model read ahead"
    if experiment.norm == "group":  # has no running statistics
        return Choice(kind="causal-token", norm=experiment.norm, text=words)
    size = (experiment.batch_size or task.batch_size) // (experiment.accumulate * processes)
    values = size if form == "position" else None
    return Choice(kind=f"causal-{form}", norm=experiment.norm, values=values, text=words)


def make_model(experiment: Experiment, task: tasks.Task, processes: int = 1) -> tuple[nn.Module, list[Choice]]:
    """A fresh model with the experiment's seed; the user's factory gets the arguments it has names for."""
    if experiment.make_model is None:
        config, choices = model_config(experiment, task, processes)
        torch.manual_seed(experiment.seed)
        return build(config), choices
    make = named(experiment.make_model)
    accepted = inspect.signature(make).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    offered = {"norm": experiment.norm, "placement": experiment.placement, **experiment.model}
    given = {name: value for name, value in offered.items() if any_name or name in accepted}
    lacking = [name for name in experiment.model if name not in given]
    if lacking:
        raise ValueError(
            f"{experiment.make_model} has no argument {', '.join(lacking)}; it takes {', '.join(accepted)}"
        )
    torch.manual_seed(experiment.seed)
    model = make(**given)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{experiment.make_model} must return a torch.nn.Module, got {type(model).__name__}")
    words = f"is not an argument of {experiment.make_model}: the model is as it makes it"
    return model, [Choice(kind="own-model", norm=name, text=f"{name} {words}")
                   for name in ("norm", "placement") if name not in given]  # fmt: skip


def parts_of(
    experiment: Experiment,
) -> tuple[Callable[[], nn.Module], Callable[..., Tensor], Callable[[int], Iterator[Any]]]:
    """(make, loss_of, batches) of its model and data, as :func:`normlab.lr_range` takes them."""
    task = task_of(experiment)
    config, _ = model_config(experiment, task)
    size = experiment.batch_size or task.batch_size
    return lambda: build(config), task.loss, lambda seed: (task.batch(seed, step, size) for step in itertools.count(1))


def make_optimizer(experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": experiment.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if experiment.optimizer == "sgd":
        # Not fused: that one takes a parameter without a momentum of its own yet for one with none at all.
        return torch.optim.SGD(groups, lr=experiment.lr, momentum=experiment.momentum, foreach=True)
    return torch.optim.AdamW(groups, lr=experiment.lr, betas=experiment.betas, fused=True)
