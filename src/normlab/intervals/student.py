"""Student's t and the interval of a mean over few seeds.

Pure Python, so that reading results needs nothing but this package. All follows from the two-sided tail P(|T| > t), a
regularized incomplete beta function, computed directly: as 1 minus the distribution function, small p values would drown
in rounding. Spread over three seeds is a poor estimate, and t with two degrees of freedom says so; a normal quantile would not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache


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
