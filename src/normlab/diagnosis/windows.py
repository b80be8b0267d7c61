"""Series of readings: their late part, what agrees in it, and the course of a loss in numbers that bear noise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ..runs import Series
from .finding import FEW

AGREE = 0.75  # share of a window's readings that must be beyond a threshold


def pairs(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values, strict=True))


def late(series: Series) -> Series | None:
    """The last third, or None if that would be less than four readings."""
    if len(series) < FEW:
        return None
    start = len(series) - len(series) // 3
    return Series(series.steps[start:], series.values[start:])


def above(window: Series | None, threshold: float) -> bool:
    """Do AGREE of the readings lie above?"""
    return window is not None and sum(v > threshold for v in window.values) >= AGREE * len(window)


def below(window: Series | None, threshold: float) -> bool:
    return window is not None and sum(v < threshold for v in window.values) >= AGREE * len(window)


def ratio(upper: Series, lower: Series) -> Series:
    """At the steps both have."""
    at = dict(pairs(lower))
    kept = [(s, v / at[s]) for s, v in pairs(upper) if at.get(s, 0.0) > 0]
    return Series([s for s, _ in kept], [v for _, v in kept])


def span_of(series: Series) -> tuple[int, int]:
    return series.steps[0], series.steps[-1]


def mid(series: Series) -> float:
    return median(series.values)


def shown(value: float) -> str:
    return f"{value:.3g}"


@dataclass(frozen=True)
class Course:
    """The loss in numbers that bear noise: medians, and how far one step lies from the next."""

    start: float  # median of the first 5
    low: float  # lowest median of a window
    low_steps: tuple[int, int]
    middle: float  # median of the second third
    late: float  # median of the last third
    end: float  # median of the last window
    noise: float  # median step to step change in the last two thirds
    calm: float  # the same, of the calmest third: a loss that diverges is noisy at the end
    steps: tuple[int, int]  # of the last window
    late_steps: tuple[int, int]


MIN_LOSSES = 30  # below, start, middle and end are not three things


def course(loss: Series) -> Course | None:
    n = len(loss)
    if n < MIN_LOSSES:
        return None
    width = max(5, n // 12)
    starts = [*range(0, n - width, max(1, width // 4)), n - width]
    medians = {i: median(loss.values[i : i + width]) for i in starts}
    at = min(medians, key=medians.__getitem__)
    third = n // 3
    changes = [abs(b - a) for a, b in pairwise(loss.values)]
    thirds = [median(changes[i : i + third]) for i in (0, third, n - third - 1)]
    return Course(
        start=median(loss.values[:5]), low=medians[at], low_steps=(loss.steps[at], loss.steps[at + width - 1]),
        middle=median(loss.values[third : n - third]), late=median(loss.values[n - third :]), end=medians[n - width],
        noise=median(changes[third:]), calm=min(thirds), steps=(loss.steps[n - width], loss.steps[-1]),
        late_steps=(loss.steps[n - third], loss.steps[-1]),
    )  # fmt: skip
