"""The gap between held-out and training loss where two runs have learned the same from their training data.

At the end of training runs differ in how far they have come, and the one that fits its data better shows the larger gap for
that reason alone. At one training loss the comparison asks what over-fitting is about: with the same fit, who does better on new data?
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from ..runs import Run


@dataclass(frozen=True, kw_only=True)
class Point:
    """One evaluation of a run."""

    step: int
    train: float  # mean training loss of the steps since the evaluation before it
    held_out: float


@dataclass(frozen=True, kw_only=True)
class MatchedGap:
    """One run at a given training loss; None where it never came so low."""

    run: str
    train: float
    held_out: float | None
    gap: float | None  # held_out - train
    step: float | None  # between two evaluations, as a straight line has it


def loss_points(run: Run) -> list[Point]:
    """Training and held-out loss at each evaluation of a run of the lab. Losses that are no number are left out.

    The training loss is that of training itself, dropout and batch statistics included, averaged over the steps since the
    last evaluation: the model of half that many steps ago.
    """
    table = run.table("loss", "held_out_loss")
    if "held_out_loss" not in table or "loss" not in table:
        raise ValueError(f"{run.folder} holds no held-out and training losses: a run of the lab has both")
    losses = table["loss"]["model"]
    found = []
    before = 0
    held_out = table["held_out_loss"]["model"]
    for step, value in zip(held_out.steps, held_out.values, strict=True):
        since = [v for s, v in zip(losses.steps, losses.values, strict=True) if before < s <= step and math.isfinite(v)]
        if since and math.isfinite(value):
            found.append(Point(step=step, train=statistics.fmean(since), held_out=value))
        before = step
    return found


def matched_gaps(runs: Mapping[str, Run], *, train: float | None = None) -> list[MatchedGap]:
    """Every run's held-out loss and gap at the training loss ``train``; None: the lowest that all of them reached.

    Where a run passes that loss between two evaluations, step and held-out loss are taken from a straight line; if it passes it
    more than once, the first time counts. A run that was below it from its first evaluation on, or never came to it, has no gap.
    """
    points = {name: loss_points(run) for name, run in runs.items()}
    empty = [name for name, found in points.items() if not found]
    if empty or not points:
        raise ValueError(f"no evaluation with a training loss in {', '.join(empty) or 'no runs at all'}")
    level = max(min(p.train for p in found) for found in points.values()) if train is None else float(train)
    return [_at(name, found, level) for name, found in points.items()]


def _at(name: str, points: list[Point], level: float) -> MatchedGap:
    for before, after in itertools.pairwise(points):
        if before.train >= level >= after.train and before.train > after.train:
            part = (before.train - level) / (before.train - after.train)
            held_out = before.held_out + part * (after.held_out - before.held_out)
            step = before.step + part * (after.step - before.step)
            return MatchedGap(run=name, train=level, held_out=held_out, gap=held_out - level, step=step)
    if points[0].train == level:
        return MatchedGap(
            run=name, train=level, held_out=points[0].held_out, gap=points[0].held_out - level, step=points[0].step
        )
    return MatchedGap(run=name, train=level, held_out=None, gap=None, step=None)
