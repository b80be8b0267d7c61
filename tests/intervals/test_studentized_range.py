"""The studentized range against scipy's, against its closed form for two means, and at the ends of what it takes."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy import stats

from normlab.intervals import range_quantile, range_tail, t_quantile


@pytest.mark.parametrize(("k", "freedom"), [*itertools.product((2, 3, 9, 16), (1, 1.5, 3.7, 16, 199, 201, 1000))])
def test_tails_are_scipys(k, freedom):
    for q in (0.5, 2.0, 3.5, 6.0, 15.0, 60.0):
        assert range_tail(q, k, freedom) == pytest.approx(float(stats.studentized_range.sf(q, k, freedom)), abs=1e-7)


@pytest.mark.parametrize(("k", "freedom"), [(3, 4), (9, 2.3), (9, 16), (16, 30)])
def test_quantiles_are_scipys(k, freedom):
    for p in (0.5, 0.9, 0.95, 0.99):
        want = float(stats.studentized_range.ppf(p, k, freedom))
        assert range_quantile(p, k, freedom) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("freedom", [1.0, 2.0, 2.5, 7.0, 150.0, 260.0, 1e5])
def test_of_two_means_it_is_students_t(freedom):
    assert range_quantile(0.95, 2, freedom) == pytest.approx(math.sqrt(2) * t_quantile(0.975, freedom), rel=1e-7)


def test_a_known_spread_is_the_limit():
    limit = range_quantile(0.95, 5, math.inf)
    assert limit == pytest.approx(3.8576559, abs=1e-6)  # as printed in tables: 3.86
    assert range_quantile(0.95, 5, 1e6) == pytest.approx(limit, rel=1e-5)


def test_tails_fall_and_stay_in_bounds():
    tails = [range_tail(q, 7, 3.0) for q in (-1.0, 0.0, 1e-9, 0.1, 1.0, 10.0, 1e3, 1e6)]
    assert tails[:2] == [1.0, 1.0]
    assert tails == sorted(tails, reverse=True)
    assert all(0 <= t <= 1 for t in tails)


@pytest.mark.parametrize(("q", "k", "freedom"), [(1.0, 1, 2.0), (1.0, 3, 0.0), (math.nan, 3, 2.0)])
def test_nonsense_is_refused(q, k, freedom):
    with pytest.raises(ValueError, match="studentized range needs"):
        range_tail(q, k, freedom)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1])
def test_a_quantile_needs_a_probability(p):
    with pytest.raises(ValueError, match="0 < p < 1"):
        range_quantile(p, 3, 2.0)
