"""Student's t and what a comparison over few seeds needs of it: intervals, paired differences, Holm, seeds still missing.

Pure Python, so that reading results needs nothing but this package. All follows from the two-sided tail P(|T| > t), a
regularized incomplete beta function, computed directly: as 1 minus the distribution function, small p values would drown
in rounding. Spread over three seeds is a poor estimate, and t with two degrees of freedom says so; a normal quantile would not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MOST_SEEDS = 1000  # seeds_needed looks no further; this answer means "that many or more"


class Difference(NamedTuple):
    """A mean difference with its interval and two-sided p value; from a single pair only the mean is known."""

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float | None


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function by Lentz's method; fast for x < (a + 1) / (a + b + 2)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, 10_000):
        even = a + 2 * m
        for term in (m * (b - m) * x / ((even - 1) * even), -(a + m) * (a + b + m) * x / (even * (even + 1))):
            d = 1.0 / ((1.0 + term * d) or tiny)
            c = (1.0 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def t_tail(t: float, freedom: float) -> float:
    """P(|T| > |t|) of Student's t: the two-sided p value."""
    if not freedom > 0 or math.isnan(t):
        raise ValueError(f"Student's t needs freedom > 0 and a number t; got freedom {freedom}, t {t}")
    a, b, square = freedom / 2, 0.5, min(abs(t), 1e100) ** 2 / freedom
    if square == 0:
        return 1.0
    log_x = -math.log1p(square)
    log_front = a * log_x + b * (math.log(square) + log_x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    if 1 / (1 + square) < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(a, b, 1 / (1 + square)) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, square / (1 + square)) / b


def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t)."""
    tail = t_tail(t, freedom) / 2
    return tail if t < 0 else 1.0 - tail


@lru_cache(maxsize=4096)
def t_quantile(p: float, freedom: float) -> float:
    """The t with P(T <= t) = p, by bisection of the tail down to neighbouring floats."""
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, got {p}")
    tail = 2 * min(p, 1 - p)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if t_tail(middle, freedom) > tail else (low, middle)
    return 0.0 if p == 0.5 else math.copysign((low + high) / 2, p - 0.5)


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float | None, float | None]:
    """(mean, low, high): the t interval of the mean; of a single value (value, None, None)."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval needs at least one value and finite ones, got {list(values)}")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, None, None
    half = t_quantile((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """a minus b, value by value. Differences that are all equal leave no doubt: p is 0, or 1 if they are zero."""
    if len(a) != len(b):
        raise ValueError(f"pairs need as many values on both sides, got {len(a)} and {len(b)}")
    differences, n = [x - y for x, y in zip(a, b, strict=True)], len(a)
    mean, low, high = mean_interval(differences, level)
    if n == 1:
        return Difference(mean, None, None, n, None)
    error = statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, low, high, n, t_tail(mean / error, n - 1) if error else float(mean == 0))


def holm(ps: Sequence[float], family: int | None = None) -> list[float]:
    """p values corrected for their number by Holm's step-down method, in the order given.

    ``family`` (at least as many) counts comparisons that were open to be made, where these were picked by their results.
    """
    if (size := len(ps) if family is None else family) < len(ps):
        raise ValueError(f"a family of {size} comparisons cannot hold {len(ps)} p values")
    corrected, running = [1.0] * len(ps), 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (size - place) * ps[index]))
        corrected[index] = running
    return corrected


def seeds_needed(differences: Sequence[float], level: float = 0.95) -> int | None:
    """The smallest n whose t interval would exclude zero if the mean and standard deviation seen here held.

    None if the mean is zero or there is no spread to see (one difference). MOST_SEEDS stands for that many or more. Chance
    decides whether the seen values hold: with this n about every second repetition would exclude zero.
    """
    if len(differences) < 2 or (mean := statistics.fmean(differences)) == 0:
        return None
    spread = statistics.stdev(differences)
    low, high = 2, MOST_SEEDS
    while low < high:  # the tail falls with n
        n = (low + high) // 2
        excluded = spread == 0 or t_tail(mean / spread * math.sqrt(n), n - 1) < 1 - level
        low, high = (low, n) if excluded else (n + 1, high)
    return low
