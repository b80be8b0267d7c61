"""Intervals of all differences between k arms that share seeds, right together: one procedure decides everything.

Arms are compared seed by seed. With three seeds the spread of a single pair's differences is a poor estimate (two degrees of freedom), and
the spread pooled over all pairs is wrong where arms differ in theirs. So each pair's variance s**2 is drawn towards the pooled one,

    v = (prior * pooled + (n - 1) * s**2) / (prior + n - 1)

as far as the pairs agree: ``prior``, in degrees of freedom, follows from how much log s**2 varies over pairs beyond what chance explains
(Smyth 2004). The half width of an interval is the larger of

    q * sqrt(v / (2 n))                  q: studentized range of k means, min(prior + n - 1, (k - 1)(n - 1)) degrees of freedom
    t * sqrt((own_a + own_b) / n)        the two arms' own variances, Student's t with n - 1

so an arm that is noisier than the others is not decided on their word. An arm's own variance is what all of its pairs together say
(Grubbs 1948): s**2 of a pair estimates the sum of two. The pair's own s**2 in its place lets a noisy arm, which has k - 1 pairs, be decided by
the one whose s happens to be small. p is the larger of the two tails: an interval leaves out zero just where p is below 1 - level, and no
statement made from one can contradict another.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from .student import t_quantile, t_tail
from .studentized_range import range_quantile, range_tail

LEVEL = 0.95
FEWEST = 3  # pairs: an interval from two rests on a single distance
MOST_SEEDS = 1000  # plans look no further; this answer means "that many or more"
USUAL = 1.2816  # normal deviations on both sides of 80 %
Quantile = Callable[[float, int, float], float]  # of the studentized range: level, arms, degrees of freedom
ROUNDS = 1000  # of fitting the arms' variances; ten are usual


class Difference(NamedTuple):
    """A mean difference with its interval and two-sided p value; from fewer than FEWEST pairs only the mean is known."""

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float | None


class Seeds(NamedTuple):
    """How many would decide, if mean and spread held as seen; and the same at both ends of their 80 % interval."""

    about: int
    low: int
    high: int


def digamma(x: float) -> float:
    """The derivative of log gamma, for x > 0: upwards by recurrence, then Stirling's series."""
    shift = 0.0
    while x < 10:
        shift -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shift + math.log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """The derivative of :func:`digamma`, for x > 0."""
    shift = 0.0
    while x < 10:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    return shift + 1 / x + 0.5 * square + series / x


def trigamma_inverse(y: float) -> float:
    """The x > 0 with trigamma(x) = y, by bisection of its logarithm."""
    low, high = -40.0, 40.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(math.exp(middle)) > y else (low, middle)
    return math.exp((low + high) / 2)


def prior_freedom(variances: Sequence[float], freedoms: Sequence[int]) -> float:
    """How many degrees of freedom the pooled variance is worth beside each of these: infinite where they differ no more than chance.

    >>> prior_freedom([1.0, 1.1, 0.9, 1.0], [2, 2, 2, 2])
    inf
    """
    logs = [
        (math.log(v) - digamma(f / 2) + math.log(f / 2), f) for v, f in zip(variances, freedoms, strict=True) if v > 0
    ]
    if len(logs) < 2:
        return 0.0
    by_chance = statistics.fmean(trigamma(f / 2) for _, f in logs)
    beyond = statistics.variance(value for value, _ in logs) - by_chance
    return 2 * trigamma_inverse(beyond) if beyond > 0 else math.inf


def arm_variances(pairs: Mapping[tuple[str, str], tuple[float, int]]) -> dict[str, float]:
    """{arm: its variance} whose sums come nearest to {pair: (variance of its differences, degrees of freedom)}, none below zero.

    Weighted least squares, one arm after the other until nothing moves: right for partial sweeps too.

    >>> found = arm_variances({("a", "b"): (5.0, 2), ("a", "c"): (5.0, 2), ("b", "c"): (2.0, 2)})
    >>> {arm: round(variance, 6) for arm, variance in found.items()}
    {'a': 4.0, 'b': 1.0, 'c': 1.0}
    """
    of: dict[str, list[tuple[str, float, int]]] = {}
    for (a, b), (variance, freedom) in pairs.items():
        of.setdefault(a, []).append((b, variance, freedom))
        of.setdefault(b, []).append((a, variance, freedom))
    found = {arm: sum(v * f for _, v, f in those) / (2 * sum(f for _, _, f in those)) for arm, those in of.items()}
    for _ in range(ROUNDS):
        moved = 0.0
        for arm, those in of.items():
            fitted = max(0.0, sum((v - found[b]) * f for b, v, f in those) / sum(f for _, _, f in those))
            moved, found[arm] = max(moved, abs(fitted - found[arm])), fitted
        if moved <= 1e-12 * max(found.values()):
            break
    return found


@dataclass(frozen=True)
class Differences:
    """All differences between arms: ``values`` is {arm: {seed: value}}.

    >>> found = Differences({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.6, 1: 2.5, 2: 3.55}})
    >>> round(found.between("b", "a").mean, 3), decided(found.between("b", "a"))
    (0.55, True)
    """

    values: Mapping[str, Mapping[int, float]]
    level: float = LEVEL

    def __post_init__(self) -> None:
        for arm, by_seed in self.values.items():
            if not all(map(math.isfinite, by_seed.values())):
                raise ValueError(f"differences need finite values, {arm!r} has {list(by_seed.values())}")

    def paired(self, a: str, b: str) -> list[float]:
        """a minus b, for the seeds of both."""
        return [self.values[a][s] - self.values[b][s] for s in sorted(self.values[a].keys() & self.values[b].keys())]

    @cached_property
    def _spreads(self) -> dict[tuple[str, str], tuple[float, int]]:
        """(variance, degrees of freedom) of every pair with at least two common seeds."""
        every = ((pair, self.paired(*pair)) for pair in itertools.combinations(self.values, 2))
        return {pair: (statistics.variance(d), len(d) - 1) for pair, d in every if len(d) > 1}

    @cached_property
    def own(self) -> dict[str, float]:
        """Each arm's variance, apart from what a seed does to all arms alike."""
        return arm_variances(self._spreads)

    @cached_property
    def pooled(self) -> float:
        """The mean variance of a difference. In a complete grid it is twice the residual mean square of arms x seeds."""
        total = sum(f for _, f in self._spreads.values())
        return sum(v * f for v, f in self._spreads.values()) / total if total else 0.0

    @cached_property
    def prior(self) -> float:
        return prior_freedom([v for v, _ in self._spreads.values()], [f for _, f in self._spreads.values()])

    @cached_property
    def residual_freedom(self) -> int:
        """What arms x seeds leave for the residual: (k - 1)(n - 1) in a complete grid."""
        seeds = {seed for by_seed in self.values.values() for seed in by_seed}
        arms = [by_seed for by_seed in self.values.values() if by_seed]
        return max(1, sum(map(len, arms)) - len(arms) - len(seeds) + 1)

    def _shrunk(self, spread: float, n: int) -> tuple[float, float]:
        """(variance of a difference, its degrees of freedom) for a pair with this variance of its own."""
        if math.isinf(self.prior):
            return self.pooled, float(self.residual_freedom)
        variance = (self.prior * self.pooled + (n - 1) * spread) / (self.prior + n - 1)
        return variance, max(1.0, min(self.prior + n - 1, float(self.residual_freedom)))

    def _half_width(
        self, variance: float, freedom: float, own: float, n: int, quantile: Quantile = range_quantile
    ) -> float:
        """With n seeds, for a pair whose differences have this variance (and its degrees of freedom) and whose arms have ``own`` together."""
        together = quantile(self.level, len(self.values), freedom) * math.sqrt(variance / (2 * n))
        return max(together, t_quantile((1 + self.level) / 2, n - 1) * math.sqrt(own / n))

    def between(self, a: str, b: str) -> Difference | None:
        """a minus b with its interval and p, both right for all pairs together; None without a common seed, the mean alone from few."""
        differences = self.paired(a, b)
        if not differences:
            return None
        n, mean = len(differences), statistics.fmean(differences)
        if n < FEWEST:
            return Difference(mean, None, None, n, None)
        variance, freedom = self._shrunk(statistics.variance(differences), n)
        own = self.own[a] + self.own[b]
        half = self._half_width(variance, freedom, own, n)
        if half == 0:
            return Difference(mean, mean, mean, n, float(mean == 0))
        p = range_tail(abs(mean) / math.sqrt(variance / (2 * n)), len(self.values), freedom) if variance else 0.0
        if own:
            p = max(p, t_tail(mean / math.sqrt(own / n), n - 1))
        return Difference(mean, mean - half, mean + half, n, p)

    def seeds_needed(self, a: str, b: str) -> Seeds | None:
        """The smallest n whose interval would leave out zero. MOST_SEEDS stands for that many or more.

        The range comes from the difference in units of its spread, g: its own error is about sqrt(1/n + g**2 / (2 freedom)), where a
        difference that may be zero needs any number of seeds.
        """
        differences = self.paired(a, b)
        n = len(differences)
        if n < 2 or (mean := abs(statistics.fmean(differences))) == 0:
            return None
        variance, freedom = self._shrunk(statistics.variance(differences), n)
        own = self.own[a] + self.own[b]
        if variance == 0 and own == 0:
            return Seeds(FEWEST, FEWEST, FEWEST)
        together = _near_quantile(self.level, len(self.values), freedom) * math.sqrt(variance / 2)
        wider, degrees = variance, freedom
        if t_quantile((1 + self.level) / 2, n - 1) * math.sqrt(own) > together:  # the arms' own interval is the wider
            wider, degrees = own, float(n - 1)
        size = mean / math.sqrt(wider)
        error = USUAL * math.sqrt(1 / n + size**2 / (2 * degrees))
        least, most = (self._seeds_for((size + sign * error) * math.sqrt(wider), variance, own) for sign in (1, -1))
        return Seeds(self._seeds_for(mean, variance, own), least, most)

    def _seeds_for(self, mean: float, variance: float, own: float) -> int:
        low, high = FEWEST, MOST_SEEDS
        while low < high:
            n = (low + high) // 2
            low, high = (low, n) if self._half_width_at(variance, own, n) < mean else (n + 1, high)
        return low

    def _half_width_at(self, variance: float, own: float, n: int) -> float:
        """With variances as seen and the degrees of freedom that n seeds would have."""
        residual = (len(self.values) - 1) * (n - 1)
        freedom = max(1.0, min(self.prior + n - 1, float(residual)))
        return self._half_width(variance, freedom, own, n, _near_quantile)


@lru_cache(maxsize=4096)
def _node(level: float, k: int, place: int) -> float:
    return math.log(range_quantile(level, k, 1.1**place))


def _near_quantile(level: float, k: int, freedom: float) -> float:
    """The studentized range's within 0.2 %, between nodes that all pairs and sweeps share: plans need hundreds of them."""
    if freedom > 200:  # nearly a line over 1 / freedom
        known = range_quantile(level, k, math.inf)
        return known + (range_quantile(level, k, 200.0) - known) * 200 / freedom
    part, place = math.modf(math.log(freedom, 1.1))
    return math.exp((1 - part) * _node(level, k, int(place)) + part * _node(level, k, int(place) + 1))


def decided(difference: Difference | None) -> bool:
    """Does the interval leave out zero, with at least FEWEST seeds behind it?"""
    if difference is None or difference.low is None or difference.high is None or difference.n < FEWEST:
        return False
    return difference.low > 0 or difference.high < 0


def equivalent(difference: Difference | None, margin: float) -> bool:
    """Two one-sided tests in one: does the whole interval lie within the margin on both sides of zero?"""
    if difference is None or difference.low is None or difference.high is None or difference.n < FEWEST:
        return False
    return -margin < difference.low and difference.high < margin
