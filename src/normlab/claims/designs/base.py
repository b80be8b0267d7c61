"""What an experiment behind claims is: sweeps of the lab and how their trials are read, or a measurement without training.

Each has sizes by budget; a budget without a size is one that it does not run at. A larger budget takes the largest size up to it. Trials
that diverged, or ended worse than a predictor that never sees its input, count as that predictor: it is always there to be used, and one
seed's explosion says no more than that training failed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...lab import Experiment, Sweep
from ...runs import BUDGETS, Evidence, Run, TrialResult, trial_folder
from ..claim import Words

Axes = dict[str, Sequence[Any]]  # of a sweep


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large: shared by all arms of a design."""

    seeds: int
    steps: int = 0
    layers: int = 8
    depths: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "layers": self.layers,
            "depths": self.depths,
            "rates": self.rates,
        }


@dataclass(frozen=True)
class Trials:
    """A sweep that has run."""

    folder: Path
    blind: float | None
    trials: Sequence[TrialResult]

    def loss(self, trial: TrialResult) -> float:
        """As it counts: see above."""
        if self.blind is None:
            if trial.loss is None:
                raise ValueError(f"{trial.name} has no loss, and its task no blind predictor")
            return trial.loss
        return self.blind if trial.loss is None else min(trial.loss, self.blind)

    def readings(self, trial: TrialResult, probe: str) -> dict[str, list[tuple[int, float]]]:
        """{site: (step, value)} of a watched trial."""
        run = Run(trial_folder(self.folder, str(trial.name)))
        return {site: list(zip(s.steps, s.values, strict=True)) for site, s in run.series(probe).items()}


Found = Mapping[str, Trials]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """An experiment of the lab."""

    name: str
    about: Words
    sizes: Mapping[str, Size]
    sweeps: Callable[[Size, Sequence[int]], Mapping[str, Sweep]]  # (size, seeds)
    read: Callable[[Found], Evidence]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An experiment without training."""

    name: str
    about: Words
    sizes: Mapping[str, Size]
    measure: Callable[[Size, Sequence[int]], Evidence]
    needs: tuple[str, ...] = field(default=())  # modules of the extra "digits"


Design = Trained | Measured


def size_at(design: Design, budget: str) -> Size | None:
    """The largest size up to this budget; None: it runs at larger budgets only."""
    known = [b for b in BUDGETS[: BUDGETS.index(budget) + 1] if b in design.sizes]
    return design.sizes[known[-1]] if known else None


def first_budget(design: Design) -> str:
    return next(b for b in BUDGETS if b in design.sizes)


# ---- shared settings -------------------------------------------------------------------------------------------------


def text_experiment(size: Size, **changes: Any) -> Experiment:
    """Next byte of prose with windows of 32, width 48: small enough for dozens of runs, no clipping that would hide what breaks."""
    base = Experiment(
        task="text", options={"length": 32}, batch_size=16, steps=size.steps, lr=3e-3, warmup=0.0, schedule="constant",
        weight_decay=0.0, clip=0.0, evaluations=2, held_out=256, watch="none",
        model={"dim": 48, "num_layers": size.layers, "num_heads": 4, "activation": "relu"},
    )  # fmt: skip
    return base.changed(**changes)


# ---- reading arms ----------------------------------------------------------------------------------------------------


def arms_of(found: Trials, arm: Callable[[TrialResult], str]) -> dict[str, dict[int, float]]:
    """{arm: {seed: loss}} of a sweep with one rate."""
    values: dict[str, dict[int, float]] = {}
    for trial in found.trials:
        assert trial.seed is not None
        values.setdefault(arm(trial), {})[trial.seed] = found.loss(trial)
    return values


def at_best_rate(
    trials: Iterable[TrialResult], value: Callable[[TrialResult], float], arm: Callable[[TrialResult], str], best: Callable[[Iterable[float]], float] = min,
    judged_by: Callable[[TrialResult], float] | None = None,
) -> dict[str, dict[int, float]]:  # fmt: skip
    """{arm: {seed: value}}, each seed at the rate that the other seeds choose: choosing on the reported runs would flatter.

    ``judged_by`` chooses the rate where that is not the value itself.
    """
    by_arm: dict[str, dict[float, dict[int, TrialResult]]] = {}
    for t in trials:
        assert t.lr is not None and t.seed is not None
        by_arm.setdefault(arm(t), {}).setdefault(t.lr, {})[t.seed] = t
    return {name: _cross_fitted(rates, value, judged_by or value, best) for name, rates in by_arm.items()}


def _cross_fitted(
    rates: Mapping[float, Mapping[int, TrialResult]], value: Callable[[TrialResult], float], judged_by: Callable[[TrialResult], float], best: Callable[[Iterable[float]], float]
) -> dict[int, float]:  # fmt: skip
    seeds = set.intersection(*(set(trials) for trials in rates.values()))
    chosen: dict[int, float] = {}
    for seed in sorted(seeds):
        others = seeds - {seed} or {seed}
        means = {lr: statistics.fmean(judged_by(trials[s]) for s in others) for lr, trials in rates.items()}
        wanted = best(means.values())
        chosen[seed] = value(rates[next(lr for lr, mean in means.items() if mean == wanted)][seed])
    return chosen


def late(points: Sequence[tuple[int, float]], share: int) -> list[float]:
    """Values of the last part of a run, one in ``share`` of what was recorded, at least one."""
    return [v for _, v in points[-max(1, len(points) // share) :]]
