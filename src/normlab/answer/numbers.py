"""Trials to numbers: each cell of the grid, its best rate, its difference from the baseline."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..intervals import holm, mean_interval, paired_difference, seeds_needed
from ..runs import OUTCOMES, Axes, Cell, Difference, Rate, TrialResult

BROKEN = ("collapsed", "diverged")  # untrained is not: its loss still falls
ALPHA = 0.05
FEWEST = 3  # seeds: the interval of two has one degree of freedom and rests on a single distance
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
    name: str, axes: Axes, trials: Sequence[TrialResult], grid_rates: Sequence[float]
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
        rates = [replace(r, stable=r in whole and not r.failed and _keeps(trained[r.lr], at_best)) for r in rates]
        upward = (r for r in rates if r.lr >= best.lr)
        largest = max((r.lr for r in itertools.takewhile(lambda r: r.stable, upward)), default=None)
    ended = [t.outcome for t in trials if t.outcome != "failed"]
    speeds = [v for t in trials if t.outcome == "trained" and (v := t.tokens_per_second) is not None]
    cell = Cell(
        name=name, axes=axes, rates=tuple(rates),
        largest_stable_lr=largest, stable_up_to_edge=largest == grid_rates[-1],
        divergence_rate=sum(o in BROKEN for o in ended) / len(ended) if ended else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        peak_memory=max((t.peak_memory for t in trials if t.peak_memory is not None), default=None),
    )  # fmt: skip
    if best is None:
        return cell, {}
    edges = {grid_rates[0]: "low", grid_rates[-1]: "high"} if len(grid_rates) > 1 else {}
    cell = replace(
        cell, best_lr=best.lr, best_at_edge=edges.get(best.lr), mean=best.mean, low=best.low, high=best.high, n=best.n
    )
    return cell, trained[best.lr]


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


def compared(
    reference: str | None, names: Sequence[str], at_best: AtBest, family: int | None
) -> dict[str, Difference | None]:
    """{cell: its difference to the reference, paired by seed, or None without a common seed}."""
    if reference is None or reference not in names:
        return {}
    base, pairs = at_best[reference], {}
    for name in names:
        if name != reference:
            shared = sorted(at_best[name].keys() & base.keys())
            pairs[name] = [(loss_of(at_best[name][seed]), loss_of(base[seed])) for seed in shared]
    return dict(zip(pairs, decide(list(pairs.values()), family), strict=True))


def decide(comparisons: Sequence[Sequence[tuple[float, float]]], family: int | None = None) -> list[Difference | None]:
    """Each comparison's pairs -> difference, corrected for all of them, and the seeds that would decide it."""
    seen = [paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None for pairs in comparisons]
    ps = [1.0 if d is None or d.p is None else d.p for d in seen]
    size, corrected = family or len(ps), holm(ps, family)
    decisions: list[Difference | None] = [None] * len(seen)
    needed = FEWEST
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        d = seen[index]
        if d is None:
            continue
        clear = d.low is not None and d.high is not None and not d.low <= 0 <= d.high
        decided = clear and d.n >= FEWEST and corrected[index] < ALPHA
        # Holm's own level at this place; and a step-down decides no comparison before the clearer ones.
        want = seeds_needed([a - b for a, b in comparisons[index]], 1 - ALPHA / (size - place))
        needed = max(needed, want or 0)
        decisions[index] = Difference(
            **d._asdict(), p_holm=None if d.p is None else corrected[index], decided=decided,
            seeds_needed=None if decided or want is None else max(needed, d.n + 1),
        )  # fmt: skip
    return decisions
