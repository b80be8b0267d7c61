"""Student's t against tables, exact forms and scipy; the interval of a mean against its definition and by how often it covers."""

from __future__ import annotations

import math
import random

import pytest

from normlab.intervals import mean_interval, t_cdf, t_quantile, t_tail

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
                 lambda: mean_interval([1.0, math.nan])):  # fmt: skip
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
