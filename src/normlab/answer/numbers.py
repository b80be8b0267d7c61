"""Trials to numbers: each cell of the grid, its best rate, its difference from the baseline."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import runs
from ..intervals import holm, mean_interval, paired_difference, seeds_needed

SCHEMA, SWEEP_SCHEMA = runs.SUMMARY.schema, runs.SWEEP.schema
OUTCOMES = ("trained", "untrained", "collapsed", "diverged", "failed")
BROKEN = ("collapsed", "diverged")  # untrained is not: its loss still falls
FIELDS = ("name", "cell", "axes", "lr", "seed", "outcome", "steps", "loss", "loss_half_width", "accuracy", "train_loss",
          "first_loss", "curve", "diverged_at", "cause", "error", "seconds", "overhead_seconds", "tokens_per_second",
          "matmul_share", "peak_memory", "parameters", "folder")  # fmt: skip
ALPHA = 0.05
FEWEST = 3  # seeds: the interval of two has one degree of freedom and rests on a single distance
MOST_LOST = 0.05  # of the best rate's gain, as in normlab.rates

Data = dict[str, Any]
AtBest = Mapping[str, Mapping[int, Data]]  # cell: seed: its trial at the best rate


@dataclass(frozen=True, kw_only=True)
class Answer:
    """summary.json as an object; cells by rank."""

    task: str | None
    unit: str | None
    blind: float | None
    steps: int | None
    created: str | None
    machine: Any
    complete: bool
    baseline: str | None
    target_loss: float | None
    trials: list[Data]
    cells: list[Data]
    refused: list[Data]
    verdict: dict[str, list[str]]

    def to_dict(self) -> Data:
        return {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def __str__(self) -> str:
        return "\n".join(self.verdict["en"])


def cell_name(axes: Mapping[str, Any]) -> str:
    """The values of all axes but lr and seed, joined."""
    return "/".join(plain(v) for v in axes.values()) or "all"


def plain(value: Any) -> str:
    """A value as part of a cell's or a folder's name."""
    short = isinstance(value, float) and float(f"{value:g}") == value
    text = f"{value:g}" if short else value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "._+-" else "_" for c in text)


def same(axes: Mapping[str, Any]) -> str:
    """A text that two cells share if they are one."""
    return json.dumps(axes, sort_keys=True)


@dataclass(frozen=True)
class Grid:
    """What the sweep set out to do."""

    cells: dict[str, Data]  # name: axes; without the refused
    rates: list[float]  # ascending
    seeds: list[int]
    refused: list[Data]

    @classmethod
    def of(cls, sweep: Mapping[str, Any]) -> Grid:
        axes, base = sweep["axes"], sweep.get("base") or {}
        for name in ("lr", "seed"):
            if not axes.get(name) and base.get(name) is None:
                raise ValueError(f"a sweep needs {name}, as an axis or in its base")
        outer = [name for name in axes if name not in ("lr", "seed")]
        every = [dict(zip(outer, v, strict=True)) for v in itertools.product(*(axes[name] for name in outer))]
        refused = [{"cell": cell_name(r["axes"]), "axes": dict(r["axes"]), "reason": r["reason"]}
                   for r in sweep.get("refused") or ()]  # fmt: skip
        shut = {same(r["axes"]) for r in refused}
        inner = {name: axes.get(name) or [base[name]] for name in ("lr", "seed")}
        return cls(
            {cell_name(c): c for c in every if same(c) not in shut}, sorted(inner["lr"]), list(inner["seed"]), refused
        )


def clean(value: Any) -> Any:
    """Without numbers that JSON lacks, also as runs spell them."""
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    spelled = isinstance(value, str) and value in ("nan", "inf", "-inf")
    return None if spelled or (isinstance(value, float) and not math.isfinite(value)) else value


def entry(trial: Mapping[str, Any]) -> Data:
    """A trial with every field. One without a known outcome, or trained without a loss, cannot be counted as a result."""
    names = {k: trial[k] for k in ("name", "cell", "axes") if k in trial}  # a value may be called "nan"
    entry = {**dict.fromkeys(FIELDS), **clean(dict(trial)), **names}
    if entry["outcome"] in ("diverged", "failed"):
        entry["loss"] = None
    elif entry["outcome"] not in OUTCOMES or entry["loss"] is None:
        entry["error"] = entry["error"] or f"outcome {entry['outcome']!r} with loss {entry['loss']!r}"
        entry.update(outcome="failed", loss=None)
    entry["curve"] = [point for point in entry["curve"] or [] if None not in point]
    return entry


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def cell_of(name: str, axes: Data, trials: Sequence[Data], grid_rates: Sequence[float]) -> tuple[Data, dict[int, Data]]:
    """(the cell, its trained trials at the best rate by seed)."""
    rates, trained = [], {}
    for lr in grid_rates:
        here = [t for t in trials if t["lr"] == lr]
        counts = {o: sum(t["outcome"] == o for t in here) for o in OUTCOMES}
        losses = [t["loss"] for t in here if t["loss"] is not None]
        mean, low, high = mean_interval(losses) if losses else (None, None, None)
        trained[lr] = {t["seed"]: t for t in here if t["outcome"] == "trained"}
        rates.append({"lr": lr, "mean": mean, "low": low, "high": high, "n": len(losses), **counts, "stable": False})
    whole = [r for r in rates if r["trained"] and not any(r[o] for o in ("untrained", *BROKEN))]
    most = max((r["trained"] for r in whole), default=0)
    best = min((r for r in whole if r["trained"] == most), key=lambda r: r["mean"], default=None)
    largest = None
    if best is not None:
        for rate in whole:
            rate["stable"] = not rate["failed"] and _keeps(trained[rate["lr"]], trained[best["lr"]])
        upward = rates[rates.index(best) :]
        largest = max((r["lr"] for r in itertools.takewhile(lambda r: r["stable"], upward)), default=None)
    ended = [t["outcome"] for t in trials if t["outcome"] != "failed"]
    speeds = [v for t in trials if t["outcome"] == "trained" and (v := t["tokens_per_second"]) is not None]
    of_best = best or {"lr": None, "mean": None, "low": None, "high": None, "n": 0}
    edges = {grid_rates[0]: "low", grid_rates[-1]: "high"} if len(grid_rates) > 1 else {}
    cell = {
        "cell": name, "axes": axes, "rank": 0, "rates": rates, "best_lr": of_best["lr"], "best_at_edge": edges.get(of_best["lr"]),
        **{key: of_best[key] for key in ("mean", "low", "high", "n")},
        "largest_stable_lr": largest, "stable_up_to_edge": largest == grid_rates[-1],
        "divergence_rate": sum(o in BROKEN for o in ended) / len(ended) if ended else None, "steps_to_target": None,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "peak_memory": max((t["peak_memory"] for t in trials if t["peak_memory"] is not None), default=None),
        "difference": None, "tied_with_best": False,
    }  # fmt: skip
    return cell, trained[best["lr"]] if best else {}


def _keeps(these: Mapping[int, Data], best: Mapping[int, Data]) -> bool:
    """Do these trials of a rate give away at most MOST_LOST of what the same seeds gained at the best one?"""
    seeds = these.keys() & best.keys()
    if not seeds:
        return False
    mean, lowest = (statistics.fmean(side[s]["loss"] for s in seeds) for side in (these, best))
    start = _mean(best[s]["first_loss"] for s in seeds)
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
) -> dict[str, Data | None]:
    """{cell: its difference to the reference, paired by seed, or None without a common seed}."""
    if reference is None or reference not in names:
        return {}
    base, pairs = at_best[reference], {}
    for name in names:
        if name != reference:
            shared = sorted(at_best[name].keys() & base.keys())
            pairs[name] = [(at_best[name][seed]["loss"], base[seed]["loss"]) for seed in shared]
    return dict(zip(pairs, decide(list(pairs.values()), family), strict=True))


def decide(comparisons: Sequence[Sequence[tuple[float, float]]], family: int | None = None) -> list[Data | None]:
    """Each comparison's pairs -> difference, corrected for all of them, and the seeds that would decide it."""
    seen = [paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None for pairs in comparisons]
    ps = [1.0 if d is None or d.p is None else d.p for d in seen]
    size, corrected = family or len(ps), holm(ps, family)
    decisions: list[Data | None] = [None] * len(seen)
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
        decisions[index] = {**d._asdict(), "p_holm": None if d.p is None else corrected[index], "decided": decided,
                            "seeds_needed": None if decided or want is None else max(needed, d.n + 1)}  # fmt: skip
    return decisions
