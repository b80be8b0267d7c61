"""A batch cut into micro-batches and over processes, and held-out batches to one loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..intervals import mean_interval
from . import tasks
from .experiment import Experiment

EVALUATION_BATCH = 64  # examples; the mean over them does not depend on it


def shares(
    task: tasks.Task, experiment: Experiment, step: int, size: int, rank: int, processes: int
) -> Iterator[tuple[Any, float, int]]:
    """This process's micro-batches of a step: (batch, weight of its mean loss, tokens).

    Weights make the sum of the micro-batches' mean losses the mean over the whole step's targets, however padding fell.
    """
    parts = experiment.accumulate
    if isinstance(task, tasks.OwnTask):  # a batch of the user's cannot be cut: each is one micro-batch
        for part in range(parts):
            index = ((step - 1) * parts + part) * processes + rank + 1
            yield task.batch(experiment.seed, index, size), 1 / parts, 0
        return
    whole = task.batch(experiment.seed, step, size)
    if parts * processes == 1:
        yield whole, 1.0, tokens_of(whole)
        return
    total = int((whole.targets != tasks.UNASKED).sum())
    pieces = _cut(whole, parts * processes)
    for piece in pieces[rank::processes]:
        count = int((piece.targets != tasks.UNASKED).sum())
        yield piece, processes * count / total, tokens_of(piece)


def _cut(batch: tasks.Batch, parts: int) -> list[tasks.Batch]:
    columns = [(name, tensor.chunk(parts)) for name, tensor in batch.arguments.items()]
    return [tasks.Batch({n: c[i] for n, c in columns}, t) for i, t in enumerate(batch.targets.chunk(parts))]


def tokens_of(batch: tasks.Batch) -> int:
    """Real tokens that enter the model; of images, the images."""
    ids = [t for t in batch.arguments.values() if not t.is_floating_point() and t.dtype != torch.bool]
    padding = sum(int((~t).sum()) for t in batch.arguments.values() if t.dtype == torch.bool)
    return sum(t.numel() for t in ids) - padding if ids else len(batch.targets)


@torch.no_grad()
def evaluate(
    model: nn.Module, task: tasks.Task, experiment: Experiment, *, keep_mode: bool = False
) -> dict[str, float | None]:
    """Held-out loss over all targets, half its 95 % interval over examples, and the share of targets predicted right.

    In evaluation mode, unless ``keep_mode`` leaves the modes to the caller."""
    training = model.training
    if not keep_mode:
        model.eval()
    try:
        with torch.random.fork_rng(devices=[]):  # training goes on with the same numbers, whatever the model draws here
            batches = task.held_out(EVALUATION_BATCH, experiment.held_out or None)
            scores = [task.score(model, batch) for batch in batches]
    finally:
        if not keep_mode:
            model.train(training)
    losses = torch.cat([s.losses for s in scores]).double()
    counts = torch.cat([s.counts for s in scores]).double()
    total = float(counts.sum())
    mean = float((losses * counts).sum() / total)
    # Examples differ in length: the interval is that of a ratio of means.
    residuals = ((losses - mean) * counts / (total / len(losses))).tolist()
    _, low, high = mean_interval(residuals) if math.isfinite(mean) else (0.0, None, None)
    right = [s.correct for s in scores if s.correct is not None]
    correct = float(torch.cat(right).sum()) / total if right else None
    return {"loss": mean, "half_width": None if low is None or high is None else (high - low) / 2, "accuracy": correct}
