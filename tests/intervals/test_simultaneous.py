"""All differences at once: against scipy where they must agree, and planted truths found at the promised rates."""

from __future__ import annotations

import itertools
import math
import statistics

import many_sweeps
import numpy as np
import pytest
from scipy import optimize, special, stats

from normlab.intervals import MOST_SEEDS, Differences, decided, equivalent, range_quantile, t_quantile
from normlab.intervals.simultaneous import (
    _near_quantile,
    arm_variances,
    digamma,
    prior_freedom,
    trigamma,
    trigamma_inverse,
)


def table(values) -> dict[str, dict[int, float]]:
    return {f"arm{i}": dict(enumerate(map(float, row))) for i, row in enumerate(values)}


def drawn(seed: int, k: int, n: int, spread=1.0, effect=0.0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(k, n)) * np.reshape(spread, (-1, 1)) + np.reshape(effect, (-1, 1)) + draw.normal(size=n)


@pytest.mark.parametrize("x", [0.3, 1.0, 2.5, 9.99, 10.0, 137.0])
def test_gamma_derivatives_are_scipys(x):
    assert digamma(x) == pytest.approx(float(special.digamma(x)), rel=1e-11, abs=1e-12)
    assert trigamma(x) == pytest.approx(float(special.polygamma(1, x)), rel=1e-11)
    assert trigamma_inverse(trigamma(x)) == pytest.approx(x, rel=1e-8)


def test_the_pooled_variance_is_that_of_two_way_analysis():
    x = drawn(3, 5, 7)
    residual = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    found = Differences(table(x))
    assert found.pooled == pytest.approx(2 * (residual**2).sum() / (4 * 6))
    assert found.residual_freedom == 4 * 6


def test_two_arms_are_a_paired_t_test():
    x = drawn(5, 2, 6)
    found = Differences(table(x)).between("arm0", "arm1")
    want = stats.ttest_rel(x[0], x[1])
    low, high = want.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-7)
    assert found.p == pytest.approx(want.pvalue, abs=1e-9)


def design(k: int) -> np.ndarray:
    """(pairs, arms): which arms a pair is made of."""
    return np.array([[arm in pair for arm in range(k)] for pair in itertools.combinations(range(k), 2)], float)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("k", [2, 3, 5, 9])
def test_arms_variances_are_the_nearest_that_are_none_below_zero(k, whole):
    seen_zero = False
    for seed in range(12):
        draw = np.random.default_rng([seed, k])
        x, weights = drawn(seed, k, 4, spread=np.geomspace(0.2, 3, k)), draw.integers(1, 6, k * (k - 1) // 2)
        pairs = list(itertools.combinations(range(k), 2))
        kept = [i for i in range(len(pairs)) if whole or i % 4 != 1]
        spreads = np.array([statistics.variance(x[a] - x[b]) for a, b in pairs])
        rows = np.sqrt(weights)[:, None] * design(k)
        want, _ = optimize.nnls(rows[kept], (np.sqrt(weights) * spreads)[kept])
        found = arm_variances({(f"arm{pairs[i][0]}", f"arm{pairs[i][1]}"): (spreads[i], int(weights[i])) for i in kept})
        for a, b in (pairs[i] for i in kept):  # single arms follow from their sums only where three are compared
            assert found[f"arm{a}"] + found[f"arm{b}"] == pytest.approx(want[a] + want[b], rel=1e-6, abs=1e-9)
        seen_zero = seen_zero or (k > 2 and min(found.values()) == 0)
    assert seen_zero == (k > 2)


def test_where_pairs_agree_it_is_tukeys_in_blocks():
    x = next(x for seed in range(50) if math.isinf(Differences(table(x := drawn(seed, 4, 30))).prior))
    found = Differences(table(x))
    pairs = list(itertools.combinations(range(4), 2))
    own_of, _ = optimize.nnls(design(4), np.array([statistics.variance(x[a] - x[b]) for a, b in pairs]))
    for a, b in pairs:
        d = found.between(f"arm{a}", f"arm{b}")
        tukey = stats.studentized_range.ppf(0.95, 4, 3 * 29) * math.sqrt(found.pooled / 60)
        own = stats.t.ppf(0.975, 29) * math.sqrt((own_of[a] + own_of[b]) / 30)
        assert (d.high - d.low) / 2 == pytest.approx(max(tukey, own), rel=1e-6)


def test_the_prior_is_smyths_estimate():
    draw = np.random.default_rng(2)
    true, freedom, many = 6.0, 4, 40_000
    variances = true / draw.chisquare(true, many) * draw.chisquare(freedom, many) / freedom
    assert prior_freedom(variances.tolist(), [freedom] * many) == pytest.approx(true, rel=0.06)
    same = draw.chisquare(freedom, 200) / freedom
    assert prior_freedom((0.5 * same + 0.5).tolist(), [freedom] * 200) == math.inf
    assert prior_freedom([1.0], [2]) == 0.0


def test_interval_p_and_decision_cannot_contradict_each_other():
    seen = set()
    for seed in range(60):
        found = Differences(table(drawn(seed, 4, 3, spread=[1, 2, 4, 6], effect=[0, 3, 6, 12])))
        for a, b in itertools.combinations(found.values, 2):
            d = found.between(a, b)
            assert (d.p < 0.05) == decided(d) == (d.low > 0 or d.high < 0)
            back = found.between(b, a)
            assert (back.low, back.high, back.p) == pytest.approx((-d.high, -d.low, d.p))
            seen.add(decided(d))
    assert seen == {True, False}


def test_a_missing_seed_leaves_the_others():
    values = table(drawn(8, 4, 5))
    del values["arm1"][2], values["arm3"][0]
    found = Differences(values)
    assert found.between("arm1", "arm3").n == 3
    assert found.between("arm0", "arm2").n == 5
    assert found.residual_freedom == 18 - 4 - 5 + 1


def test_few_or_equal_values():
    one = Differences({"a": {0: 1.0}, "b": {0: 2.0}, "c": {5: 1.0}})
    assert one.between("b", "a") == (1.0, None, None, 1, None)
    assert one.between("a", "c") is None
    assert not decided(one.between("b", "a"))
    two = Differences({"a": {0: 1.0, 1: 1.5}, "b": {0: 9.0, 1: 9.5}})
    assert two.between("a", "b") == (-8.0, None, None, 2, None), "two seeds have no interval, however equal"
    assert not decided(two.between("a", "b"))
    equal = Differences({"a": {0: 1.0, 1: 1.5, 2: 3.0}, "b": {0: 2.0, 1: 2.5, 2: 4.0}})
    assert equal.between("b", "a") == (1.0, 1.0, 1.0, 3, 0.0)
    assert decided(equal.between("b", "a"))
    assert equal.between("b", "b").p == 1.0
    with pytest.raises(ValueError, match="finite values"):
        Differences({"a": {0: math.nan}})


def test_equivalence_needs_the_whole_interval_within_the_margin():
    found = Differences(table(drawn(4, 3, 8, spread=0.01))).between("arm0", "arm1")
    reach = max(abs(found.low), abs(found.high))
    assert equivalent(found, reach * 1.001)
    assert not equivalent(found, reach * 0.999)
    assert not equivalent(None, 1.0)


def test_seeds_needed_would_decide():
    found = Differences(table(drawn(21, 3, 4, effect=[0, 0, 1.5])))
    d, needed = found.between("arm2", "arm0"), found.seeds_needed("arm2", "arm0")
    assert not decided(d) and 4 < needed.about < 60
    variance, _ = found._shrunk(statistics.variance(found.paired("arm2", "arm0")), 4)
    own = found.own["arm2"] + found.own["arm0"]
    wide = [found._half_width_at(variance, own, n) for n in (needed.about - 1, needed.about)]
    assert wide[1] < abs(d.mean) <= wide[0]
    assert needed.low < needed.about < needed.high
    assert Differences({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}}).seeds_needed("a", "b") is None
    assert Differences({"a": {0: 1.0}, "b": {0: 1.5}}).seeds_needed("a", "b") is None
    assert Differences({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.5}}).seeds_needed("a", "b") == (3, 3, 3)
    almost = Differences({"a": {0: 1.0, 1: -0.999, 2: 0.0}, "b": {0: 0.0, 1: 0.0, 2: 0.0}})
    assert almost.seeds_needed("a", "b").about == MOST_SEEDS


@pytest.mark.parametrize("freedom", [1.0, 2.0, 3.7, 17.1, 93.0, 199.9, 200.1, 513.0, 1e5])
@pytest.mark.parametrize("k", [2, 5, 16])
def test_quantiles_for_plans_are_near_the_true_ones(k, freedom):
    assert _near_quantile(0.95, k, freedom) == pytest.approx(range_quantile(0.95, k, freedom), rel=2e-3)


def needed_ranges(k: int, n: int, effect: float, sweeps: int) -> tuple[int, list[tuple[int, int, int]]]:
    """(the number of seeds that truly decides, what sweeps without a decision say)."""
    true = next(
        m for m in range(3, 1000)
        if max(range_quantile(0.95, k, (k - 1) * (m - 1)) / math.sqrt(m), t_quantile(0.975, m - 1) * math.sqrt(2 / m)) < effect
    )  # fmt: skip
    said = []
    for seed in range(sweeps):
        found = Differences(table(drawn([k, n, seed, 5], k, n, effect=[*[0.0] * (k - 1), effect])))
        if not decided(found.between(f"arm{k - 1}", "arm0")):
            said.append(found.seeds_needed(f"arm{k - 1}", "arm0"))
    return true, said


@pytest.mark.parametrize(("k", "n", "effect"), [(5, 3, 2.5), (3, 5, 1.0)])
def test_the_range_of_seeds_needed_holds_the_true_number(k, n, effect):
    """It promises 80 %; 100 sweeps with a true rate of 80 % show less than 68 % once in 500 runs. Measured: 91 and 97 %."""
    true, said = needed_ranges(k, n, effect, 120)
    assert len(said) > 60
    assert sum(low <= true <= high for _, low, high in said) >= 0.68 * len(said)
    assert statistics.median(about for about, _, _ in said) == pytest.approx(true, rel=0.6)


# ---- planted truths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(2, 3), (3, 4), (9, 3), (9, 5), (16, 3)])
@pytest.mark.parametrize("spread", many_sweeps.SPREADS)
def test_many_sweeps_at_once_are_the_same_procedure(k, n, spread):
    x = many_sweeps.drawn([k, n, 7], 4, k, n, many_sweeps.SPREADS[spread](k))
    means, halves = many_sweeps.intervals(x)
    for sweep, mean, half in zip(x, means, halves, strict=True):
        found = Differences(table(sweep))
        for place, (a, b) in enumerate(zip(*many_sweeps.pairs_of(k), strict=True)):
            d = found.between(f"arm{a}", f"arm{b}")
            assert (d.mean, (d.high - d.low) / 2) == pytest.approx((mean[place], half[place]), rel=2e-3)


def allowed(spread: str) -> float:
    """Share of sweeps with a false decision: the goal."""
    return 0.08 if spread == "one noisy" else 0.07


@pytest.mark.parametrize("spread", many_sweeps.SPREADS)
def test_a_clear_effect_is_told_and_chance_is_not(spread):
    """The nightly test's short form."""
    k, n, sweeps = 9, 3, 2000
    found = many_sweeps.rates(
        [1, k, n], sweeps, k, n, many_sweeps.SPREADS[spread](k), 10 * many_sweeps.SPREADS[spread](k).max()
    )
    goal = allowed(spread)
    assert found["false"] <= goal + many_sweeps.sampling_error(goal, sweeps)
    assert found["right"] >= 1 - goal - many_sweeps.sampling_error(goal, sweeps)
    assert found["told_best"] >= 0.97


@pytest.mark.nightly
@pytest.mark.parametrize("spread", many_sweeps.SPREADS)
@pytest.mark.parametrize("n", [3, 4, 5, 7, 10])
@pytest.mark.parametrize("k", [2, 3, 4, 6, 9, 12, 16])
def test_planted_truth(k, n, spread, capsys):
    """10,000 sweeps each: a true rate of 7 % is seen within 0.77 points (three deviations). No, small and large effects."""
    sweeps, spreads, goal = 10_000, many_sweeps.SPREADS[spread](k), allowed(spread)
    none = many_sweeps.rates([k, n, 0], sweeps, k, n, spreads)
    small = many_sweeps.rates([k, n, 1], sweeps, k, n, spreads, 2 * spreads.max())
    large = many_sweeps.rates([k, n, 2], sweeps, k, n, spreads, 10 * spreads.max())
    with capsys.disabled():
        print(f"\n{k} arms, {n} seeds, {spread}: false {none['false']:.4f} {small['false']:.4f} {large['false']:.4f}, all right "
              f"{none['right']:.4f} {small['right']:.4f} {large['right']:.4f}, told {small['told']:.3f} (2 sigma) {large['told']:.3f} (10 sigma), "
              f"not tied with the best {large['told_best']:.4f}")  # fmt: skip
    most = goal + many_sweeps.sampling_error(goal, sweeps)
    assert max(found["false"] for found in (none, small, large)) <= most
    assert min(found["right"] for found in (none, small, large)) >= 1 - most
    assert large["told_best"] >= 0.97
