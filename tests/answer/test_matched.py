"""The gap at one training loss, from curves whose answer is known."""

from __future__ import annotations

import math

import pytest

from normlab.answer import loss_points, matched_gaps
from normlab.runs import Run, Writer


def write(folder, train, held_out, every=10):
    """Training losses of all steps, held-out losses every ten."""
    writer = Writer(folder)
    for step, loss in enumerate(train, start=1):
        writer.write(step, {"loss": {"model": loss}})
        if step % every == 0:
            writer.write(step, {"held_out_loss": {"model": held_out[step // every - 1]}})
    writer.close()
    return Run(folder)


def test_points_average_the_training_loss_since_the_last_evaluation(tmp_path):
    run = write(tmp_path / "a", [float(s) for s in range(40, 0, -1)], [40.0, 30.0, math.nan, 12.0])
    points = loss_points(run)
    assert [(p.step, p.train, p.held_out) for p in points] == [(10, 35.5, 40.0), (20, 25.5, 30.0), (40, 5.5, 12.0)]


def test_runs_are_compared_where_they_fit_their_data_equally(tmp_path):
    """The fast run ends with the larger gap and has the smaller one at equal training loss."""
    levels = {"fast": [4.0, 2.0, 1.0, 0.5], "slow": [5.0, 4.0, 3.0, 2.0]}
    gaps = {"fast": lambda t: 0.1 + (4 - t) * 0.2, "slow": lambda t: 0.4 + (4 - t) * 0.2}
    runs = {
        name: write(tmp_path / name, [v for v in values for _ in range(10)], [v + gaps[name](v) for v in values])
        for name, values in levels.items()
    }
    ends = {name: gaps[name](values[-1]) for name, values in levels.items()}
    assert ends["fast"] > ends["slow"] - 0.01
    fast, slow = matched_gaps(runs)
    assert fast.train == slow.train == 2.0  # the lowest that both reached
    assert fast.gap == pytest.approx(0.5) and slow.gap == pytest.approx(0.8)
    assert fast.step == 20 and slow.step == 40
    fast, slow = matched_gaps(runs, train=3.5)
    assert fast.gap == pytest.approx(gaps["fast"](3.5)) and slow.gap == pytest.approx(gaps["slow"](3.5))
    assert fast.step == pytest.approx(12.5) and slow.step == pytest.approx(25)


def test_a_loss_that_was_not_reached_has_no_gap(tmp_path):
    run = write(tmp_path / "a", [3.0] * 10 + [2.0] * 10, [3.1, 2.2])
    (low,), (high,) = matched_gaps({"a": run}, train=1.0), matched_gaps({"a": run}, train=9.0)
    assert low.gap is None is high.gap and low.held_out is None and low.step is None


def test_a_curve_that_comes_back_counts_the_first_time(tmp_path):
    run = write(tmp_path / "a", [v for v in (4.0, 2.0, 4.0, 2.0) for _ in range(10)], [4.0, 3.0, 9.0, 9.0])
    (found,) = matched_gaps({"a": run}, train=3.0)
    assert found.step == 15 and found.held_out == pytest.approx(3.5)


def test_runs_without_the_curves_are_refused(tmp_path):
    writer = Writer(tmp_path / "a")
    writer.write(1, {"loss": {"model": 1.0}})
    writer.close()
    with pytest.raises(ValueError, match="held-out and training"):
        matched_gaps({"a": Run(tmp_path / "a")})
    with pytest.raises(ValueError, match="no runs"):
        matched_gaps({})
