"""Trials to numbers: each cell of the grid, its rates, how its trials ended.

A trial *broke* if it diverged, collapsed, or ended at a rate above the cell's best with less than half of the gain over a blind predictor
that the best rate reached. A rate broke if one of its trials did. Below the best rate, a small gain is slow, not broken.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..intervals import mean_interval
from ..runs import OUTCOMES, Axes, Cell, Rate, TrialResult

BROKEN = ("collapsed", "diverged")  # untrained is not: its loss still falls
LEAST_KEPT = 0.5  # of the best rate's gain over a blind predictor
MOST_LOST = 0.05  # of the best rate's gain, as in normlab.rates

AtRate = Mapping[int, TrialResult]  # seed: its trial, which trained
AtBest = Mapping[str, AtRate]  # cell: its trials at the best rate


def counted(trial: TrialResult) -> TrialResult:
    """As a result counts: one without a known outcome, or trained without a loss, has failed."""
    if trial.outcome in ("diverged", "failed"):
        return replace(trial, loss=None)
    if trial.outcome in OUTCOMES and trial.loss is not None:
        return trial
    error = trial.error or f"outcome {trial.outcome!r} with loss {trial.loss!r}"
    return replace(trial, outcome="failed", loss=None, error=error)


def loss_of(trial: TrialResult) -> float:
    """Of one that trained."""
    assert trial.loss is not None
    return trial.loss


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def cell_of(
    name: str, axes: Axes, trials: Sequence[TrialResult], grid_rates: Sequence[float], blind: float | None = None
) -> tuple[Cell, dict[int, TrialResult]]:
    """(the cell, its trained trials at the best rate by seed)."""
    rates: list[Rate] = []
    trained: dict[float, dict[int, TrialResult]] = {}
    for lr in grid_rates:
        here = [t for t in trials if t.lr == lr]
        counts = {o: sum(t.outcome == o for t in here) for o in OUTCOMES}
        losses = [t.loss for t in here if t.loss is not None]
        mean, low, high = mean_interval(losses) if losses else (None, None, None)
        trained[lr] = {t.seed: t for t in here if t.outcome == "trained" and t.seed is not None}
        rates.append(Rate(lr=lr, mean=mean, low=low, high=high, n=len(losses), **counts))  # type: ignore[arg-type]
    whole = [r for r in rates if r.trained and not r.count("untrained", *BROKEN)]
    most = max((r.trained for r in whole), default=0)
    best = min((r for r in whole if r.trained == most), key=lambda r: r.mean or 0.0, default=None)
    largest = None
    if best is not None:
        at_best = trained[best.lr]
        for i, rate in enumerate(rates):
            lost = sum(_lost(t, best, at_best, blind) for t in trials if t.lr == rate.lr > best.lr)
            stable = rate in whole and not rate.failed and not lost and _keeps(trained[rate.lr], at_best)
            rates[i] = replace(rate, lost=lost, stable=stable)
        upward = (r for r in rates if r.lr >= best.lr)
        largest = max((r.lr for r in itertools.takewhile(lambda r: r.stable, upward)), default=None)
    ended = sum(t.outcome != "failed" for t in trials)
    speeds = [v for t in trials if t.outcome == "trained" and (v := t.tokens_per_second) is not None]
    cell = Cell(
        name=name, axes=axes, rates=tuple(rates), choices=tuple(dict.fromkeys(c for t in trials for c in t.choices)),
        largest_stable_lr=largest, stable_up_to_edge=largest == grid_rates[-1],
        divergence_rate=sum(r.count(*BROKEN, "lost") for r in rates) / ended if ended else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        peak_memory=max((t.peak_memory for t in trials if t.peak_memory is not None), default=None),
    )  # fmt: skip
    if best is None:
        return cell, {}
    edges = {grid_rates[0]: "low", grid_rates[-1]: "high"} if len(grid_rates) > 1 else {}
    cell = replace(
        cell, best_lr=best.lr, best_at_edge=edges.get(best.lr), mean=best.mean, low=best.low, high=best.high, n=best.n,
        cross_fitted=_cross_fitted([trained[r.lr] for r in whole if r.trained == most]),
    )  # fmt: skip
    return cell, trained[best.lr]


def _cross_fitted(rates: Sequence[AtRate]) -> float | None:
    """The mean over seeds of the loss at the rate that is best on the others: what choosing on the reported runs flatters is not in it."""
    seeds = set.intersection(*(set(rate) for rate in rates))
    if len(seeds) < 2:
        return None

    def chosen(seed: int) -> AtRate:
        return min(rates, key=lambda rate: statistics.fmean(loss_of(rate[s]) for s in seeds if s != seed))

    return statistics.fmean(loss_of(chosen(seed)[seed]) for seed in seeds)


def _lost(trial: TrialResult, best: Rate, at_best: AtRate, blind: float | None) -> bool:
    """Did this trial, at a higher rate than the best, end with less than LEAST_KEPT of its gain?"""
    start = blind if blind is not None else _mean(t.first_loss for t in at_best.values())
    if trial.outcome not in ("trained", "untrained") or trial.loss is None or start is None or best.mean is None:
        return False
    return start > best.mean and start - trial.loss < LEAST_KEPT * (start - best.mean)


def _keeps(these: AtRate, best: AtRate) -> bool:
    """Do these trials of a rate give away at most MOST_LOST of what the same seeds gained at the best one?"""
    seeds = these.keys() & best.keys()
    if not seeds:
        return False
    mean, lowest = (statistics.fmean(loss_of(side[s]) for s in seeds) for side in (these, best))
    start = _mean(best[s].first_loss for s in seeds)
    return start is None or mean <= lowest + MOST_LOST * max(0.0, start - lowest)


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """Over the steps at which every seed was evaluated. (Seed by seed, a baseline's worse half would never reach its mean.)"""
    at: dict[float, list[float]] = {}
    for step, loss in itertools.chain.from_iterable(curves):
        at.setdefault(step, []).append(loss)
    return [(step, statistics.fmean(losses)) for step, losses in sorted(at.items()) if len(losses) == len(curves)]


def steps_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """The step at which the curve reaches the target, on straight lines between evaluations."""
    before: Sequence[float] | None = None
    for step, loss in curve:
        if loss <= target:
            share = 1.0 if before is None else (before[1] - target) / (before[1] - loss)
            return float(step if before is None else before[0] + share * (step - before[0]))
        before = (step, loss)
    return None
