"""Which trials a cell is to have: a pure function of those that have ended.

Every rate gets the first seed. One that it shows to be hopeless gets no other; the rest get the other first seeds. The rate that is best
on them is the cell's, and gets the further seeds: there the comparison is made. So what runs next does not depend on who asks, on the
order in which trials ended, or on how often a sweep was killed; and all cells are compared on the same seeds.

Hopeless: diverged, collapsed or untrained, which keeps a rate from being the best whatever other seeds do; or with less than half of the gain
over a blind predictor that the best rate had with the same seed, which is more than any seed takes away (spreads over seeds are a few
hundredths of the gain). A rate that breaks at a further seed gives way to the next best; that one then gets the further seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..runs import OUTCOMES, Result

BROKEN = ("collapsed", "diverged")  # untrained is not: its loss still falls
NO_BEST = (
    "untrained",
    *BROKEN,
)  # one such seed, and its rate is never the best: the others' mean would be a mean of survivors
LEAST_KEPT = 0.5  # of the best rate's gain over a blind predictor

R = TypeVar("R", bound=Result)
Key = tuple[float, int]  # rate, seed


def counted(trial: R) -> R:
    """As a result counts: one without a known outcome, or trained without a loss, has failed."""
    if trial.outcome in ("diverged", "failed"):
        return replace(trial, loss=None)
    if trial.outcome in OUTCOMES and trial.loss is not None:
        return trial
    error = trial.error or f"outcome {trial.outcome!r} with loss {trial.loss!r}"
    return replace(trial, outcome="failed", loss=None, error=error)


def lost(loss: float, best: float, start: float | None) -> bool:
    """Is less than LEAST_KEPT left of what the best gained over the start?"""
    return start is not None and start > best and start - loss < LEAST_KEPT * (start - best)


def hopeless(opening: Mapping[float, Result], blind: float | None = None) -> set[float]:
    """The rates that their trials with the first seed, {rate: its}, show to be so. A program that failed shows nothing."""
    able = [(t.loss, t) for t in opening.values() if t.outcome == "trained" and t.loss is not None]
    best, of_best = min(able, key=lambda pair: pair[0], default=(None, None))
    found = {lr for lr, t in opening.items() if t.outcome in NO_BEST}
    if best is None or of_best is None:
        return found
    start = next((v for v in (of_best.blind, blind, of_best.first_loss) if v is not None), None)
    return found | {lr for lr, t in opening.items() if t.loss is not None and lost(t.loss, best, start)}


def best_rate(rates: Mapping[float, Mapping[int, Result]], first: Iterable[int]) -> float | None:
    """Of {rate: {seed: its trial}}: the lowest mean over the first seeds, among rates none of whose seeds broke or stayed untrained.

    Nor is it one with fewer trained first seeds than another.
    """
    first = set(first)
    losses = {}
    for lr, trials in rates.items():
        if not any(t.outcome in NO_BEST for t in trials.values()):
            trained = [
                t.loss for s, t in trials.items() if s in first and t.outcome == "trained" and t.loss is not None
            ]
            losses[lr] = trained
    most = max(map(len, losses.values()), default=0)
    able = [lr for lr, those in losses.items() if len(those) == most > 0]
    return min(able, key=lambda lr: statistics.fmean(losses[lr]), default=None)


@dataclass(frozen=True)
class Allotment:
    """``due``: what a cell is to have as far as is known, ended or not, in the order of its running. ``later``: how many more at most."""

    due: Sequence[Key]
    later: int = 0


def allotted(
    rates: Sequence[float], seeds: Sequence[int], first: int | None, ended: Mapping[Key, Result], blind: float | None = None
) -> Allotment:  # fmt: skip
    """``first``: how many of the seeds every rate gets; None: all of them, at every rate, whatever they show."""
    if first is None:
        return Allotment([(lr, seed) for seed in seeds for lr in rates])
    head, further = seeds[:first], seeds[first:]
    due = [(lr, head[0]) for lr in rates]
    if any(key not in ended for key in due):
        return Allotment(due, sum((lr, s) not in ended for lr in rates for s in head[1:]) + len(further))
    without = hopeless({lr: ended[lr, head[0]] for lr in rates}, blind)
    kept = [lr for lr in rates if lr not in without]
    due += [(lr, seed) for seed in head[1:] for lr in kept]
    if any(key not in ended for key in due):
        return Allotment(due, len(further) if kept else 0)
    known = {lr: {s: ended[lr, s] for s in head} for lr in kept}
    while further and (best := best_rate(known, head)) is not None:
        due += [(best, seed) for seed in further]
        if not any((best, s) in ended and ended[best, s].outcome in NO_BEST for s in further):
            break
        del known[best]
    return Allotment(due)
