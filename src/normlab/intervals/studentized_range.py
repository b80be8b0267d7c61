"""The studentized range: the largest of all differences between k means, in units of their estimated spread.

Q = (largest - smallest of k standard normals) / S, where S**2 is chi-squared over its degrees of freedom. Pure Python, so that
reading results needs nothing but this package. Both integrals are trapezoid sums, which converge faster than any power of the step for
integrands that are smooth and vanish at both ends:

    W(w) = P(range <= w) = k * integral of phi(z) * (Phi(z) - Phi(z - w))**(k - 1) dz
    P(Q <= q) = integral of W(q * s) times the density of S, over log s

The second sum runs over log s, so W is wanted on a grid of log w that does not depend on q: it is computed once for each k.
"""

from __future__ import annotations

import math
from functools import lru_cache

STEP_Z, END_Z = 0.25, 9.0  # standard deviations
STEP_LOG = 0.05  # of log w
SHARP = 200  # degrees of freedom: the density of log s then has a deviation of one step of the grid
LOWEST, HIGHEST = -25.0, 4.0  # of log w: beyond these W is 0 and 1 within rounding for k >= 2


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _nodes() -> tuple[list[float], list[float], list[float]]:
    """(z, the normal density there times the step, the normal distribution function there)."""
    z = [-END_Z + STEP_Z * i for i in range(round(2 * END_Z / STEP_Z) + 1)]
    return z, [math.exp(-v * v / 2) / math.sqrt(2 * math.pi) * STEP_Z for v in z], [_normal_cdf(v) for v in z]


NODES = _nodes()


def _known_spread_tail(w: float, k: int) -> float:
    """1 - W(w)."""
    inside = math.fsum(d * (b - _normal_cdf(z - w)) ** (k - 1) for z, d, b in zip(*NODES, strict=True))
    return max(0.0, 1.0 - k * inside)


@lru_cache(maxsize=128)
def _grid(k: int) -> tuple[float, ...]:
    """1 - W at exp(LOWEST), exp(LOWEST + STEP_LOG), ..."""
    count = round((HIGHEST - LOWEST) / STEP_LOG) + 1
    return tuple(_known_spread_tail(math.exp(LOWEST + STEP_LOG * i), k) for i in range(count))


def range_tail(q: float, k: int, freedom: float) -> float:
    """P(Q > q) for k means and a spread estimated with this many degrees of freedom (infinite: known). Right to about 1e-10."""
    if k < 2 or not freedom > 0 or math.isnan(q):
        raise ValueError(f"the studentized range needs k >= 2, freedom > 0 and a number q; got {k}, {freedom}, {q}")
    if q <= 0:
        return 1.0
    if freedom > 1e7:
        return _known_spread_tail(q, k)
    log_q, half = math.log(q), freedom / 2
    constant = math.log(2) + half * math.log(half) - math.lgamma(half)
    if freedom > SHARP:  # too sharp for the grid: 33 points around 1, from -8 to 8 of its deviations
        step = 0.5 / math.sqrt(2 * freedom)
        parts = []
        for i in range(-16, 17):
            density = math.exp(constant + freedom * step * i - half * math.exp(2 * step * i))
            parts.append(density * _known_spread_tail(q * math.exp(step * i), k))
        return min(1.0, step * math.fsum(parts))
    first = LOWEST - log_q
    terms = [
        math.exp(constant + freedom * first) / freedom / STEP_LOG if first < 0 else 1 / STEP_LOG
    ]  # all s below the grid
    for i, tail in enumerate(_grid(k)):
        u = first + STEP_LOG * i  # log s
        exponent = constant + freedom * u - half * math.exp(2 * u) if u < 5 else -math.inf
        if exponent > -700:
            terms.append(tail * math.exp(exponent))
    return min(1.0, STEP_LOG * math.fsum(terms))


@lru_cache(maxsize=4096)
def range_quantile(p: float, k: int, freedom: float) -> float:
    """The q with P(Q <= q) = p: bisection, with secants of the tail's logarithm over log q where they fall inside."""
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, got {p}")
    wanted = math.log(1 - p)

    def above(x: float) -> float:
        return math.log(max(range_tail(math.exp(x), k, freedom), 1e-300)) - wanted

    low, high = math.log(1e-12), math.log(4.0)
    at_low, at_high = -wanted, above(high)
    while at_high > 0:
        low, at_low, high = high, at_high, high + 1.0
        if high > 21:
            raise ValueError(f"no quantile {p} of the studentized range with freedom {freedom} below 1e9")
        at_high = above(high)
    for turn in range(200):
        if high - low < 1e-11:
            break
        middle = high - at_high * (high - low) / (at_high - at_low)
        if turn % 3 == 2 or not low < middle < high:  # a secant alone may leave one end where it is
            middle = (low + high) / 2
        value = above(middle)
        if abs(value) < 1e-12:
            return math.exp(middle)
        if value > 0:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return math.exp((low + high) / 2)
