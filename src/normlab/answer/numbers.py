"""Trials to numbers: each cell of the grid, its rates, how its trials ended.

A trial *broke* if it diverged, collapsed, or ended at a rate above the cell's best with less than half of the gain over a blind predictor
that the best rate reached. A rate broke if one of its trials did. Below the best rate, a small gain is slow, not broken. A rate that got
no more seeds, because its first was hopeless (see :mod:`.stages`), counts with each seed it was spared as with that one.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..intervals import mean_interval
from ..runs import OUTCOMES, Axes, Cell, Rate, TrialResult
from .stages import BROKEN, NO_BEST, best_rate, hopeless, lost

MOST_LOST = 0.05  # of the best rate's gain, as in normlab.rates

AtRate = Mapping[int, TrialResult]  # seed: its trial, which trained
AtBest = Mapping[str, AtRate]  # cell: its trials at the best rate


def loss_of(trial: TrialResult) -> float:
    """Of one that trained."""
    assert trial.loss is not None
    return trial.loss


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def cell_of(
    name: str, axes: Axes, trials: Sequence[TrialResult], grid_rates: Sequence[float], seeds: Sequence[int],
    first: int | None = None, blind: float | None = None,
) -> tuple[Cell, dict[int, TrialResult]]:  # fmt: skip
    """(the cell, its trained trials at the best rate by seed). ``first``: of the seeds, on which the rate is chosen; None: all."""
    rates: list[Rate] = []
    trained: dict[float, dict[int, TrialResult]] = {}
    head, opening = seeds[:first], {t.lr: t for t in trials if t.lr is not None and t.seed == seeds[0]}
    spared = hopeless(opening, blind) if first is not None and opening.keys() >= set(grid_rates) else set()
    for lr in grid_rates:
        here = [t for t in trials if t.lr == lr]
        counts = {o: sum(t.outcome == o for t in here) for o in OUTCOMES}
        losses = [t.loss for t in here if t.loss is not None]
        mean, low, high = mean_interval(losses) if losses else (None, None, None)
        trained[lr] = {t.seed: t for t in here if t.outcome == "trained" and t.seed is not None}
        skipped = len(set(head) - {t.seed for t in here}) if lr in spared else 0
        rates.append(Rate(lr=lr, mean=mean, low=low, high=high, n=len(losses), skipped=skipped, **counts))  # type: ignore[arg-type]
    hopeful = [lr for lr in grid_rates if lr not in spared]
    chosen = best_rate({lr: {t.seed: t for t in trials if t.lr == lr and t.seed is not None} for lr in hopeful}, head)
    best, largest = next((r for r in rates if r.lr == chosen), None), None
    if best is not None:
        at_best = trained[best.lr]
        for i, rate in enumerate(rates):
            given_away = sum(_lost(t, best, at_best, blind) for t in trials if t.lr == rate.lr > best.lr)
            whole = rate.trained and not rate.skipped and not rate.count("failed", *NO_BEST)
            stable = bool(whole) and not given_away and _keeps(trained[rate.lr], at_best)
            rates[i] = replace(rate, lost=given_away, stable=stable)
        upward = (r for r in rates if r.lr >= best.lr)
        largest = max((r.lr for r in itertools.takewhile(lambda r: r.stable, upward)), default=None)
    ended = sum(t.outcome != "failed" for t in trials) + sum(r.skipped for r in rates)
    broke = sum(b + r.skipped for r in rates if (b := r.count(*BROKEN, "lost")))
    speeds = [v for t in trials if t.outcome == "trained" and (v := t.tokens_per_second) is not None]
    cell = Cell(
        name=name, axes=axes, rates=tuple(rates), choices=tuple(dict.fromkeys(c for t in trials for c in t.choices)),
        largest_stable_lr=largest, stable_up_to_edge=largest == grid_rates[-1],
        divergence_rate=broke / ended if ended else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        peak_memory=max((t.peak_memory for t in trials if t.peak_memory is not None), default=None),
    )  # fmt: skip
    if best is None:
        return cell, {}
    edges = {grid_rates[0]: "low", grid_rates[-1]: "high"} if len(grid_rates) > 1 else {}
    cell = replace(
        cell, best_lr=best.lr, best_at_edge=edges.get(best.lr), mean=best.mean, low=best.low, high=best.high, n=best.n,
        cross_fitted=_cross_fitted(_comparable([r for r in rates if r.lr in hopeful], trained, head)),
    )  # fmt: skip
    return cell, trained[best.lr]


def _comparable(rates: Sequence[Rate], trained: Mapping[float, AtRate], head: Sequence[int]) -> list[AtRate]:
    """What the best rate was chosen among: the first seeds of whole rates that trained with the most of them."""
    first = [{s: t for s, t in trained[r.lr].items() if s in head} for r in rates if not r.count(*NO_BEST)]
    return [those for those in first if len(those) == max(map(len, first))]


def _cross_fitted(rates: Sequence[AtRate]) -> float | None:
    """The mean over seeds of the loss at the rate that is best on the others: what choosing on the reported runs flatters is not in it."""
    seeds = set.intersection(*(set(rate) for rate in rates))
    if len(seeds) < 2:
        return None

    def chosen(seed: int) -> AtRate:
        return min(rates, key=lambda rate: statistics.fmean(loss_of(rate[s]) for s in seeds if s != seed))

    return statistics.fmean(loss_of(chosen(seed)[seed]) for seed in seeds)


def _lost(trial: TrialResult, best: Rate, at_best: AtRate, blind: float | None) -> bool:
    """Did this trial, at a higher rate than the best, end with less than half of its gain?"""
    start = blind if blind is not None else _mean(t.first_loss for t in at_best.values())
    if trial.outcome not in ("trained", "untrained") or trial.loss is None or best.mean is None:
        return False
    return lost(trial.loss, best.mean, start)


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
