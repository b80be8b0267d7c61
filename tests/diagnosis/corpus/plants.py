"""The faults: what is done to a healthy training, which rules name it, and which of its consequences are true as well.

``names``: at least one of these rules must fire (recall). A finding counts as right (precision) if its rule is in ``names`` or
``also``; where the plant has a place, findings of ``names`` must point there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import normlab

from .trial import Trial


@dataclass(frozen=True)
class Kind:
    names: tuple[str, ...]
    also: tuple[str, ...] = ()
    plant: Callable[[Trial], None] | None = None  # None: the subject itself is built sick


# What a rate that is far too high, or weights that were blown up, do to everything else.
WRECK = ("learning-rate-high", "loss-divergence", "nonfinite", "stream-growth", "attention-logit-growth", "token-collapse",
         "loss-spike", "dead-upper-blocks", "exploding-gradient", "vanishing-gradient", "constant-answer", "gain-explosion")  # fmt: skip


def _norm_gains(trial: Trial) -> list[tuple[str, nn.Parameter]]:
    return [(s.name, s.weight) for s in normlab.find_norms(trial.model) if s.weight is not None]


def high_rate(trial: Trial) -> None:
    trial.lr = 0.3


def low_rate(trial: Trial) -> None:
    trial.lr = 3e-8


def gain_blow_up(trial: Trial) -> None:
    name, gain = _norm_gains(trial)[len(_norm_gains(trial)) // 2]
    at = trial.steps // 2 + 3

    def before(step: int) -> None:
        if step == at:
            gain.mul_(100)

    trial.before, trial.expected_site, trial.expected_step = before, name, at


def decayed_gains(trial: Trial) -> None:
    """A weight decay that takes the gains with it."""
    gains = {id(w) for _, w in _norm_gains(trial)}

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if id(p) not in gains], "weight_decay": 0.0},
            {"params": [p for p in parameters if id(p) in gains], "weight_decay": 30.0},
        ]
        return torch.optim.AdamW(groups, lr)

    trial.optimizer, trial.steps = optimizer, 150


def _queries_and_keys(model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """(weight, how many of its leading rows are queries and keys)."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            found.append((module.in_proj_weight, 2 * module.embed_dim))
        elif isinstance(module, nn.Linear):
            last = name.rpartition(".")[2]
            if last in ("q_proj", "k_proj", "query", "key"):
                found.append((module.weight, module.out_features))
            elif last in ("qkv", "query_key_value", "c_attn"):
                found.append((module.weight, 2 * module.in_features))
    return found


def sharp_attention(trial: Trial) -> None:
    """Queries and keys that someone keeps scaling up: logits grow from step to step."""
    weights = _queries_and_keys(trial.model)
    assert weights, "no queries and keys found"

    def before(step: int) -> None:
        if step <= 40:
            for weight, rows in weights:
                weight[:rows] *= 1.08

    trial.before = before


def _matrix_of_block(trial: Trial, index: int) -> tuple[str, nn.Parameter]:
    block = normlab.find_blocks(trial.model)[index]
    return block.name, [p for p in block.module.parameters() if p.dim() == 2][-1]


def broken_write(trial: Trial) -> None:
    """A write into the second block's last matrix that makes its output overflow."""
    name, weight = _matrix_of_block(trial, 1)
    at = 2 * trial.steps // 3 + 3

    def before(step: int) -> None:
        if step == at:
            weight.mul_(1e30)
        if step == at + 1:
            weight.fill_(float("nan"))

    trial.before, trial.expected_site, trial.expected_step = before, name, at


def runaway(trial: Trial) -> None:
    """The third block's last matrix doubles on each step from some step on, until values are not finite."""
    name, weight = _matrix_of_block(trial, 2)
    at = trial.steps // 2

    def before(step: int) -> None:
        if step >= at:
            weight.mul_(1e4)

    trial.before, trial.expected_site, trial.expected_step = before, name, at


def bad_batch(trial: Trial) -> None:
    """One batch of noise with wrong targets, and an optimizer that follows it."""
    draw, usual, at = torch.Generator().manual_seed(5), trial.batch, 3 * trial.steps // 4

    def batch(step: int) -> Any:
        given, targets = usual(step)
        if step in (at, at + 1):
            targets = torch.randint(128, 256, targets.shape, generator=draw)
        return given, targets

    trial.batch, trial.expected_step = batch, at


def sixteen_bits(trial: Trial) -> None:
    """Weights in bfloat16 at a rate whose steps they round away."""
    trial.model.to(torch.bfloat16)
    trial.lr = 1e-5


def shuffled(trial: Trial) -> None:
    """Targets drawn from those of the batch, whatever the input."""
    usual = trial.batch

    def batch(step: int) -> Any:
        given, targets = usual(step)
        order = torch.randperm(targets.numel(), generator=torch.Generator().manual_seed(step))
        return given, targets.flatten()[order].view_as(targets)

    trial.batch, trial.steps = batch, 200


def random_targets(trial: Trial) -> None:
    usual = trial.batch

    def batch(step: int) -> Any:
        given, targets = usual(step)
        drawn = torch.randint(0, 256, targets.shape, generator=torch.Generator().manual_seed(step))
        return given, torch.where(targets < 0, targets, drawn)

    trial.batch, trial.steps = batch, 200


def not_cleared(trial: Trial) -> None:
    trial.clears = False


def large_eps(trial: Trial) -> None:
    """An eps a hundred times the variance that reaches the first norm."""
    sites = normlab.find_norms(trial.model)
    seen: list[Tensor] = []
    handle = sites[0].module.register_forward_hook(lambda m, args, out: seen.append(args[0].detach().var(-1).mean()))
    with torch.no_grad():
        trial.model(**trial.batch(1)[0])
    handle.remove()
    value = 100 * float(seen[0]) if seen else 100.0
    for site in sites:
        for name in ("eps", "variance_epsilon"):
            if hasattr(site.module, name):  # None in an RMSNorm: the smallest that float32 can tell from 1
                setattr(site.module, name, value)


def large_init(trial: Trial) -> None:
    with torch.no_grad():
        for block in normlab.find_blocks(trial.model):
            for p in block.module.parameters():
                if p.dim() == 2:
                    p.copy_(torch.randn_like(p))


def large_head(trial: Trial) -> None:
    """Embedding and head drawn with a deviation of 3."""
    with torch.no_grad():
        for p in trial.model.parameters():
            if p.dim() == 2 and VOCABULARY in p.shape:
                p.copy_(3 * torch.randn_like(p))


VOCABULARY = 256


def loud_first_block(trial: Trial) -> None:
    """The first block writes a hundred times too much into the stream; what follows can hardly turn it."""
    _, weight = _matrix_of_block(trial, 0)
    with torch.no_grad():
        weight.mul_(300)


def slow_statistics(trial: Trial) -> None:
    """Running statistics that all but stand still."""
    for module in trial.model.modules():
        if isinstance(getattr(module, "momentum", None), float):
            module.momentum = 1e-4


def without_final_norm(trial: Trial) -> None:
    """The norm behind the blocks replaced by the identity."""
    blocks = tuple(b.name + "." for b in normlab.find_blocks(trial.model))
    last = [s for s in normlab.find_norms(trial.model) if not s.name.startswith(blocks)][-1]
    parent, _, child = last.name.rpartition(".")
    setattr(trial.model.get_submodule(parent), child, nn.Identity())


def without_norms(trial: Trial) -> None:
    for site in normlab.find_norms(trial.model):
        parent, _, child = site.name.rpartition(".")
        setattr(trial.model.get_submodule(parent), child, nn.Identity())


KINDS: dict[str, Kind] = {
    "rate too high": Kind(("learning-rate-high", "loss-divergence"), WRECK, high_rate),
    "rate too low": Kind(("learning-rate-low",), (), low_rate),
    "deep post-norm": Kind(("vanishing-gradient",), ("token-collapse", "constant-answer", "learning-rate-high")),
    "no norms, deep": Kind(("exploding-gradient", "nonfinite", "loss-divergence", "stream-growth"), WRECK),
    "no final norm": Kind(("missing-final-norm",)),
    "BatchNorm ignores the mask": Kind(("padding-contamination",), ("train-inference-gap", "unstable-batch-statistics")),
    "BatchNorm over padding, no mask given": Kind(("padding-contamination",), ("train-inference-gap", "unstable-batch-statistics")),
    "BatchNorm over few cells": Kind(("unstable-batch-statistics", "train-inference-gap"), ("loss-spike",)),
    "running statistics stand still": Kind(("train-inference-gap",), ("unstable-batch-statistics", "padding-contamination"), slow_statistics),
    "gain blown up": Kind(("gain-explosion",), WRECK, gain_blow_up),
    "gains decayed": Kind(("dead-gain",), ("constant-answer", "token-collapse", "eps-swallows", "vanishing-gradient"), decayed_gains),
    "attention logits grow": Kind(("attention-logit-growth",), ("loss-divergence", "large-initialization", "token-collapse", "exploding-gradient"), sharp_attention),
    "not finite at once": Kind(("nonfinite",), WRECK, broken_write),
    "not finite after growth": Kind(("nonfinite",), WRECK, runaway),
    "bad batch": Kind(("loss-spike",), (), bad_batch),
    "16-bit weights": Kind(("stuck-weights",), ("learning-rate-low",), sixteen_bits),
    "no causal mask": Kind(("leak",)),
    "norm over positions": Kind(("leak",), ("unstable-batch-statistics", "train-inference-gap")),
    "shuffled targets": Kind(("constant-answer",), (), shuffled),
    "random targets": Kind(("constant-answer",), (), random_targets),
    "gradients not cleared": Kind(("stale-gradient",), WRECK, not_cleared),
    "eps too large": Kind(("eps-swallows",), ("token-collapse", "constant-answer", "missing-final-norm"), large_eps),
    "blocks start too large": Kind(("large-initialization",), WRECK, large_init),
    "head starts too large": Kind(("large-initialization",), WRECK, large_head),
    "first block too loud": Kind(("dead-upper-blocks", "stream-growth", "large-initialization"), ("exploding-gradient", "vanishing-gradient", "loss-divergence"), loud_first_block),
}  # fmt: skip
