"""Student's t against tables, exact forms and scipy; intervals and corrections against their definitions."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from normlab.intervals import (
    MOST_SEEDS,
    holm,
    mean_interval,
    paired_difference,
    seeds_needed,
    t_cdf,
    t_quantile,
    t_tail,
)

FREEDOMS = (1, 2, 3, 5, 7, 13, 29, 31, 97, 101, 499, 1000)


@pytest.mark.parametrize(
    "p, freedom, t",
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 4, 2.77645), (0.975, 9, 2.26216), (0.995, 3, 5.84091),
     (0.95, 5, 2.01505), (0.9995, 10, 4.58689), (0.975, 30, 2.04227), (0.975, 100, 1.98397), (0.9, 1000, 1.28240)],
)  # fmt: skip
def test_quantiles_of_the_printed_tables(p, freedom, t):
    assert t_quantile(p, freedom) == pytest.approx(t, abs=6e-6 * max(1, t))
    assert t_quantile(1 - p, freedom) == pytest.approx(-t, abs=6e-6 * max(1, t))


@pytest.mark.parametrize("t", [1e-12, 1e-9, 1e-3, 0.31, 1.0, 2.7, 41.0, 1e5, 1e12])
def test_closed_forms_for_one_and_two_degrees_of_freedom(t):
    assert t_tail(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-12)
    assert t_tail(t, 2) == pytest.approx(2 / (2 + t * t) / (1 + t / math.sqrt(2 + t * t)), rel=1e-12)
    assert t_cdf(-t, 2) == pytest.approx(t_tail(t, 2) / 2, rel=1e-15)
    assert t_cdf(t, 2) + t_cdf(-t, 2) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_against_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    for exponent in range(-24, 33):
        t = 10 ** (exponent / 4)  # scipy itself is off by 5e-9 at one degree of freedom and t of 1e-8
        assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-10)
        expected = 2 * stats.t.sf(t, freedom)
        if t > 1e-4 and expected > 1e-280:
            assert t_tail(t, freedom) == pytest.approx(expected, rel=1e-10)
    for p in (1e-12, 1e-6, 0.001, 0.025, 0.2, 0.4999, 0.5, 0.6, 0.975, 0.99999):
        assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantile_undoes_the_distribution(freedom):
    for p in (1e-9, 0.01, 0.3, 0.5, 0.77, 0.999):
        assert t_cdf(t_quantile(p, freedom), freedom) == pytest.approx(p, rel=1e-10)
    assert t_quantile(0.5, freedom) == 0.0


def test_extremes_and_refusals():
    assert t_tail(0, 3) == 1 and t_tail(1e-200, 3) == 1 and 0 <= t_tail(math.inf, 1) < 1e-90
    for call in (lambda: t_tail(1.0, 0), lambda: t_tail(math.nan, 3), lambda: t_quantile(1.0, 3), lambda: mean_interval([]),
                 lambda: mean_interval([1.0, math.nan]), lambda: paired_difference([1.0], [1.0, 2.0]), lambda: paired_difference([], []),
                 lambda: holm([0.1, 0.2], family=1)):  # fmt: skip
        with pytest.raises(ValueError):
            call()


def test_an_interval_by_hand():
    mean, low, high = mean_interval([1.0, 2.0, 6.0])
    half = (
        0.95 / math.sqrt(2 * 0.975 * 0.025) * math.sqrt(7 / 3)
    )  # the quantile of two degrees of freedom in closed form
    assert (mean, low, high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-12)
    assert mean_interval([1.0, 2.0, 6.0], level=0.5)[2] == pytest.approx(3 + 0.816496580927726 * math.sqrt(7 / 3))
    assert mean_interval([2.5]) == (2.5, None, None)
    assert mean_interval([2.5, 2.5]) == (2.5, 2.5, 2.5)


@pytest.mark.parametrize("n", [2, 3, 5, 11])
def test_the_interval_covers_as_often_as_it_says(n):
    draw = random.Random(n)
    repeats = 2000
    hits = 0
    for _ in range(repeats):
        _, low, high = mean_interval([draw.gauss(1.7, 3.1) for _ in range(n)])
        hits += low <= 1.7 <= high
    assert abs(hits / repeats - 0.95) < 4 * math.sqrt(0.95 * 0.05 / repeats)


def test_paired_differences_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    for n in (2, 3, 7, 31):
        a, b = ([draw.gauss(m, 1) for _ in range(n)] for m in (0.3, 0.0))
        found, expected = paired_difference(a, b, 0.9), stats.ttest_rel(a, b)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-10) and found.n == n
        interval = expected.confidence_interval(0.9)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_p_and_interval_agree_about_zero():
    draw = random.Random(5)
    seen = set()
    for _ in range(300):
        found = paired_difference([draw.gauss(1, 1) for _ in range(5)], [0.0] * 5)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
        seen.add(found.p < 0.05)
    assert seen == {True, False}


def test_equal_differences_leave_no_doubt():
    assert paired_difference([2.0, 3.0, 5.0], [1.0, 2.0, 4.0]) == (1.0, 1.0, 1.0, 3, 0.0)
    assert paired_difference([2.0, 3.0], [2.0, 3.0]) == (0.0, 0.0, 0.0, 2, 1.0)
    assert paired_difference([2.0], [1.5]) == (0.5, None, None, 1, None)


def test_holm_by_hand_and_in_the_order_given():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
    assert holm([0.01, 0.03], family=10) == pytest.approx([0.1, 0.27])


def test_a_larger_family_is_never_kinder_than_the_comparisons_left_out():
    draw = random.Random(1)
    for _ in range(100):
        ps = [draw.random() ** 3 for _ in range(9)]
        whole = holm(ps)
        assert all(padded >= of_all - 1e-15 for padded, of_all in zip(holm(ps[:4], family=9), whole[:4], strict=True))


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("mean", [0.4, -1.3, 3.7])
def test_seeds_needed_is_the_first_n_that_excludes_zero(level, mean):
    differences = [mean - 1.1, mean + 0.2, mean + 0.9]
    n, spread = seeds_needed(differences, level), statistics.stdev(differences)

    def excludes(k):
        return abs(mean) > t_quantile((1 + level) / 2, k - 1) * spread / math.sqrt(k)

    assert excludes(n) and (n == 2 or not excludes(n - 1))


def test_seeds_needed_knows_its_limits():
    assert seeds_needed([1.0, -1.0]) is None and seeds_needed([0.3]) is None
    assert seeds_needed([0.3, 0.3]) == 2
    assert seeds_needed([1.0, -0.999]) == MOST_SEEDS
