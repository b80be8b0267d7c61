"""Assays in a training run: what an experiment asks of its model between steps, written into the run as readings.

Each row of ASSAYS turns one assay into quantities at sites. Training goes on bit for bit as without it: an assay leaves model and
optimizer as they came, and torch's random numbers with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import assays
from ..errors import Table
from ..runs import Writer
from . import tasks
from .batches import evaluate
from .experiment import Experiment

Readings = dict[str, dict[str, float]]  # quantity: site: value
POSITION_SEQUENCES = 64  # that a position probe is fitted to and judged on
SNAPSHOT_SEQUENCES = 5  # that the tokens of a snapshot come from


@dataclass(frozen=True)
class Subject:
    """What an assay may use: the model and its optimizer between two steps, the next training batch, the held-out loss."""

    experiment: Experiment
    task: tasks.Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int  # that are done
    writer: Writer

    def training_loss(self, model: nn.Module) -> Tensor:
        """Of the batch that the next step will see, in the model's mode."""
        size = self.experiment.batch_size or self.task.batch_size
        batch = self.task.batch(self.experiment.seed, self.step + 1, size)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.experiment.precision == "bfloat16"):
            return self.task.loss(model, batch)

    def held_out_loss(self, model: nn.Module) -> float:
        """In the model's mode: an assay may have switched parts of it to training."""
        found = evaluate(model, self.task, self.experiment, keep_mode=True)["loss"]
        assert found is not None
        return found

    def held_out_batch(self, size: int) -> Any:
        return self.task.held_out(size, size)[0]


def _covariate_shift(subject: Subject) -> Readings:
    found = assays.covariate_shift(subject.model, subject.training_loss, optimizer=subject.optimizer)
    return {
        "covariate_shift": {s.layer: s.distance for s in found},
        "covariate_shift_relative": {s.layer: s.relative for s in found},
        "covariate_cosine": {s.layer: s.cosine for s in found},
    }


def _smoothness(subject: Subject) -> Readings:
    found = assays.smoothness(subject.model, subject.training_loss, optimizer=subject.optimizer)
    values = {"loss_range": found.loss_range, "gradient_change": found.gradient_change, "beta_smoothness": found.beta}
    return {name: {"model": value} for name, value in values.items()}


def _block_drop(subject: Subject) -> Readings:
    return _increases("block_drop", assays.block_drop(subject.model, subject.held_out_loss))


def _parallel_blocks(subject: Subject) -> Readings:
    return _increases("parallel_blocks", assays.parallel_blocks(subject.model, subject.held_out_loss))


def _increases(name: str, found: list[assays.BlockEffect]) -> Readings:
    return {name: {effect.block: effect.increase for effect in found if effect.increase is not None}}


def _statistics_gap(subject: Subject) -> Readings:
    found = assays.statistics_gap(subject.model, subject.held_out_loss)
    return {"running_statistics_loss": {"model": found.running}, "batch_statistics_loss": {"model": found.batch}}


def _token_similarity(subject: Subject) -> Readings:
    batch = subject.held_out_batch(SNAPSHOT_SEQUENCES)
    arguments: Mapping[str, Any] = batch.arguments if isinstance(batch, tasks.Batch) else {}
    found = assays.token_similarity(
        subject.model, lambda model: subject.task.score(model, batch), ids=_of_kind(arguments, torch.int64),
        mask=_of_kind(arguments, torch.bool),
    )  # fmt: skip
    for snapshot in found:
        subject.writer.event(subject.step, "token similarity", **snapshot.to_dict())
    return {
        "neighbours_kept_plain": {s.site: s.overlap("before", "plain") for s in found},
        "neighbours_kept": {s.site: s.overlap("before", "after") for s in found},
    }


def _of_kind(arguments: Mapping[str, Any], dtype: torch.dtype) -> Tensor | None:
    return next((t for t in arguments.values() if isinstance(t, Tensor) and t.dtype is dtype), None)


def _position(subject: Subject) -> Readings:
    batch = subject.held_out_batch(POSITION_SEQUENCES)
    states = assays.norm_states(subject.model, lambda model: subject.task.score(model, batch))
    arguments: Mapping[str, Any] = batch.arguments if isinstance(batch, tasks.Batch) else {}
    found: Readings = {"position_before": {}, "position_after": {}}
    for name, s in states.items():
        mask = _of_kind(arguments, torch.bool)
        for quantity, t in (("position_before", s.x), ("position_after", s.y)):
            if t.dim() == 3 and t.shape[1] > 1 and len(t) >= 8:
                fits = mask is not None and mask.shape == t.shape[:2]
                found[quantity][name] = assays.position_probe(t, mask=mask if fits else None).accuracy
    return found


ASSAYS: Table[Callable[[Subject], Readings]] = Table("assay", {
    "covariate_shift": _covariate_shift,
    "smoothness": _smoothness,
    "block_drop": _block_drop,
    "parallel_blocks": _parallel_blocks,
    "statistics_gap": _statistics_gap,
    "token_similarity": _token_similarity,
    "position": _position,
})  # fmt: skip


def ask(subject: Subject, suspended: Callable[[], contextlib.AbstractContextManager[None]] | None) -> None:
    """Every assay of the experiment that is due after this step. One that has nothing to ask this model leaves an event."""
    experiment = subject.experiment
    if experiment.assays_at == "end" and subject.step != experiment.steps:
        return
    with contextlib.nullcontext() if suspended is None else suspended():
        for name in experiment.assays:
            try:
                found = ASSAYS[name](subject)
            except assays.NothingToAsk as error:
                subject.writer.event(subject.step, "assay skipped", assay=name, reason=str(error))
                continue
            subject.writer.write(subject.step, {q: sites for q, sites in found.items() if sites})
