"""The procedure of normlab.intervals once more, in numpy over thousands of simulated sweeps at once; complete grids only.

A test holds both implementations together; the planted truths then run on this one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special, stats

from normlab.intervals import range_quantile

NODES = np.geomspace(1.0, 4000.0, 90)


@lru_cache(maxsize=64)
def _quantiles(level: float, k: int) -> np.ndarray:
    return np.array([range_quantile(level, k, float(freedom)) for freedom in NODES])


@lru_cache(maxsize=1)
def _trigamma() -> tuple[np.ndarray, np.ndarray]:
    x = np.geomspace(1e-4, 1e7, 6000)
    return np.log(special.polygamma(1, x))[::-1], np.log(x)[::-1]


def prior(spreads: np.ndarray, freedom: int) -> np.ndarray:
    """Of (sweeps, pairs): how many degrees of freedom the pooled variance is worth in each sweep."""
    if spreads.shape[1] < 2:
        return np.zeros(len(spreads))
    beyond = np.log(spreads).var(axis=1, ddof=1) - special.polygamma(1, freedom / 2)
    known, x = _trigamma()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(beyond > 0, 2 * np.exp(np.interp(np.log(beyond), known, x)), np.inf)


def pairs_of(k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(k, 1)


def arm_variances(spread: np.ndarray, k: int) -> np.ndarray:
    """Of the pairs' variances (sweeps, pairs): the arms' (sweeps, arms). Closed form; where that falls below zero, arm after arm."""
    if k == 2:
        return np.repeat(spread / 2, 2, axis=1)
    a, b = pairs_of(k)
    of_pair = np.zeros((len(spread), k, k))
    of_pair[:, a, b] = of_pair[:, b, a] = spread
    sums = of_pair.sum(axis=2)
    found = (sums - sums.sum(axis=1, keepdims=True) / (2 * (k - 1))) / (k - 2)
    below = (found < 0).any(axis=1)
    sums, fitted = sums[below], np.maximum(found[below], 0)
    for _ in range(15):
        for arm in range(k):
            others = fitted.sum(axis=1) - fitted[:, arm]
            fitted[:, arm] = np.maximum((sums[:, arm] - others) / (k - 1), 0)
    found[below] = fitted
    return found


def intervals(x: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Of values (sweeps, arms, seeds): (means, half widths), each (sweeps, pairs)."""
    _, k, n = x.shape
    a, b = pairs_of(k)
    d = x[:, a] - x[:, b]
    mean, spread = d.mean(axis=2), d.var(axis=2, ddof=1)
    pooled, residual = spread.mean(axis=1, keepdims=True), float((k - 1) * (n - 1))
    shrink = prior(spread, n - 1)[:, None]
    with np.errstate(invalid="ignore"):
        v = np.where(np.isinf(shrink), pooled, (shrink * pooled + (n - 1) * spread) / (shrink + n - 1))
    freedom = np.clip(shrink + n - 1, 1.0, residual)
    q = np.exp(np.interp(np.log(freedom), np.log(NODES), np.log(_quantiles(level, k))))
    arms = arm_variances(spread, k)
    own = stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt((arms[:, a] + arms[:, b]) / n)
    return mean, np.maximum(q * np.sqrt(v / (2 * n)), own)


SPREADS = {
    "equal": lambda k: np.ones(k),
    "mild": lambda k: np.linspace(1, 2, k),
    "strong": lambda k: np.geomspace(1, 6, k),
    "one noisy": lambda k: np.array([4.0, *[1.0] * (k - 1)]),
}


def drawn(key, sweeps: int, k: int, n: int, spread, effect=0.0) -> np.ndarray:
    """(sweeps, arms, seeds); what a seed does to all arms alike is as large as the noise."""
    draw = np.random.default_rng(key)
    noise = draw.normal(size=(sweeps, k, n)) * np.reshape(spread, (-1, 1)) + np.reshape(effect, (-1, 1))
    return noise + draw.normal(size=(sweeps, 1, n))


def rates(key, sweeps: int, k: int, n: int, spread, effect: float = 0.0, level: float = 0.95) -> dict[str, float]:
    """Shares of sweeps: with a false decision; with all intervals right; with the last arm, ``effect`` behind, rightly told from every other.

    ``told_best``: shares of sweeps in which it is told from the arm with the lowest mean, so that it is not called tied.
    """
    effects = np.array([*[0.0] * (k - 1), effect])
    x = drawn(key, sweeps, k, n, spread, effects)
    mean, half = intervals(x, level)
    a, b = pairs_of(k)
    true = effects[a] - effects[b]
    decided = np.abs(mean) > half
    null, last = true == 0, b == k - 1
    best = x[:, :-1].mean(axis=2).argmin(axis=1) if k > 1 else None
    place = {int(i): p for p, i in zip(np.flatnonzero(last), a[last], strict=True)}
    of_best = np.array([place[int(i)] for i in best])
    return {
        "false": float((decided & null).any(axis=1).mean()),
        "right": float((np.abs(mean - true) <= half).all(axis=1).mean()),
        "told": float((decided & (mean < 0))[:, last].all(axis=1).mean()),
        "told_best": float(decided[np.arange(sweeps), of_best].mean()),
    }


def sampling_error(rate: float, sweeps: int) -> float:
    """Three standard deviations of a share observed in so many sweeps."""
    return 3 * math.sqrt(rate * (1 - rate) / sweeps)


def at_chosen_rates(key, sweeps: int, curves, n: int, first: int, spread) -> tuple[np.ndarray, np.ndarray]:
    """Sweeps in which each arm's rate is chosen on its first seeds: (values at it with all seeds, their true means).

    ``curves`` (arms, rates): true means, in units of the arm's noise. Each trial has noise of its own, and each seed an effect on all.
    """
    scale = np.reshape(spread, (-1, 1))
    curves = np.asarray(curves, float) * scale
    k, rates = curves.shape
    draw = np.random.default_rng(key)
    x = draw.normal(size=(sweeps, k, rates, n)) * scale[..., None] + curves[..., None]
    x += draw.normal(size=(sweeps, 1, 1, n))
    chosen = x[..., :first].mean(axis=3).argmin(axis=2)
    values = np.take_along_axis(x, chosen[..., None, None], axis=2)[:, :, 0]
    return values, np.take_along_axis(np.broadcast_to(curves, (sweeps, k, rates)), chosen[..., None], axis=2)[..., 0]


def false_after_choosing(key, sweeps: int, curves, n: int, first: int, spread) -> float:
    """Share of sweeps with a decision that is not true of the arms at the rates chosen: they are equal there, or the other is better."""
    values, true = at_chosen_rates(key, sweeps, curves, n, first, spread)
    mean, half = intervals(values)
    a, b = pairs_of(values.shape[1])
    wrong = (np.abs(mean) > half) & (np.sign(mean) != np.sign(true[:, a] - true[:, b]))
    return float(wrong.any(axis=1).mean())


def false_at_any_look(key, sweeps: int, k: int, looks, spread, shares) -> float:
    """Share of sweeps in which any of the looks, at so many seeds with such a share of 5 %, decides something where nothing is true."""
    x = drawn(key, sweeps, k, max(looks), spread)
    ever = np.zeros(sweeps, bool)
    for n, share in zip(looks, shares, strict=True):
        mean, half = intervals(x[..., :n], 1 - 0.05 * share)
        ever |= (np.abs(mean) > half).any(axis=1)
    return float(ever.mean())
