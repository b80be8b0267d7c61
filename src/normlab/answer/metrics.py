"""What a cell can be judged by besides its held-out loss: one number per trial, with its direction and its words.

Rates are chosen by the loss alone; a metric says what is ranked and tested at those rates. The target of the metrics "to target" is
reached by every trial that is compared, unless another is asked for: the largest of their final losses. Otherwise the seeds that
never get there would be left out, and the rest would be the lucky ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..errors import Table
from ..intervals import mean_interval
from ..runs import Estimate, TrialResult
from .numbers import steps_to


class Metric(NamedTuple):
    """How one is read off a trial and off a page."""

    of: Callable[[TrialResult, float | None], float | None]  # trial, target loss
    lower: bool  # is lower better?
    title: tuple[str, str]  # English, Chinese
    unit: tuple[str, str] | None = None  # None: that of the loss
    scale: float = 1.0  # from the number to the unit


def _gap(trial: TrialResult, _: float | None) -> float | None:
    return None if trial.loss is None or trial.train_loss is None else trial.loss - trial.train_loss


def _steps(trial: TrialResult, target: float | None) -> float | None:
    return None if target is None else steps_to(trial.curve, target)


def _per_step(total: Callable[[TrialResult], float | None]) -> Callable[[TrialResult, float | None], float | None]:
    def found(trial: TrialResult, target: float | None) -> float | None:
        steps, whole = _steps(trial, target), total(trial)
        return None if steps is None or whole is None or not trial.steps else steps * whole / trial.steps

    return found


METRICS: Table[Metric] = Table("metric", {
    "loss": Metric(lambda t, _: t.loss, True, ("held-out loss", "留出损失")),
    "accuracy": Metric(lambda t, _: t.accuracy, False, ("held-out accuracy", "留出准确率"), ("", "")),
    "gap": Metric(_gap, True, ("held-out minus training loss", "留出损失减训练损失")),
    "steps_to_target": Metric(_steps, True, ("steps to target", "到目标的步数"), ("steps", "步")),
    "seconds_to_target": Metric(_per_step(lambda t: t.training_seconds), True, ("training time to target", "到目标的训练时间"), ("s", "秒")),
    "tokens_to_target": Metric(_per_step(lambda t: t.tokens), True, ("tokens to target", "到目标的词元数"), ("tokens", "词元")),
    "tokens_per_second": Metric(lambda t, _: t.tokens_per_second, False, ("tokens/s", "词元/秒"), ("tokens/s", "词元/秒")),
    "peak_memory": Metric(lambda t, _: t.peak_memory, True, ("peak memory", "峰值内存"), ("MiB", "MiB"), 2**-20),
})  # fmt: skip


def common_target(trials: Iterable[TrialResult]) -> float | None:
    """One that all of these reach."""
    return max((t.loss for t in trials if t.loss is not None), default=None)


def values_of(metric: Metric, trials: Mapping[int, TrialResult], target: float | None) -> dict[int, float]:
    """{seed: its number}, of those that have one."""
    found = {seed: metric.of(trial, target) for seed, trial in trials.items()}
    return {seed: value * metric.scale for seed, value in found.items() if value is not None}


def estimates(trials: Mapping[int, TrialResult], target: float | None) -> dict[str, Estimate]:
    """Every metric of a cell's trials that they have: mean and 95 % interval over seeds."""
    found = {}
    for name, metric in METRICS.items():
        if values := list(values_of(metric, trials, target).values()):
            mean, low, high = mean_interval(values)
            found[name] = Estimate(mean=mean, low=low, high=high, n=len(values))
    return found
