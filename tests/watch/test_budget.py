"""How many steps are recorded, under a clock that the test winds; and what a watch says where it was too few."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

import normlab
from normlab.watch import budget as budgets
from normlab.watch.budget import ENOUGH, LEAN, OPENING, WHOLE, Budget
from normlab.watch.cadence import Cadence


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ride(
    steps,
    every=10,
    *,
    limit=0.03,
    whole=1.0,
    lean=0.3,
    once=0.0,
    idle=0.0,
    has_lean=True,
    opening=True,
    warm=1.0,
    slices=None,
):
    """[(step, how, overhead so far)] of a run whose steps take 1; prices are in steps. ``once``: more for the first recording,
    ``warm``: how long the first step takes, ``slices``: steps in which somebody else gets the processor while the watch measures,
    and for how long."""
    clock, slices = Clock(), slices or {}
    budget, cadence, told = Budget(limit, opening=opening, clock=clock), Cadence(every), []
    for step in range(1, steps + 1):
        how = budget.choose(has_lean) if cadence.due(step, 0.0) else None
        clock.now += warm if step == 1 else 1.0
        with budget:
            clock.now += (
                {None: idle, LEAN: lean, WHOLE: whole}[how] + (once if step == 1 else 0.0) + slices.get(step, 0.0)
            )
        budget.step_ended(how)
        told.append((step, how, budget.overhead()))
    return told, budget


def steps_of(told, *ways):
    return [step for step, how, _ in told if how in (ways or (WHOLE, LEAN))]


@pytest.mark.parametrize("steps", [120, 200])
@pytest.mark.parametrize("price", [0.05, 0.4, 1.0, 1.5])
def test_a_short_run_has_the_recordings_a_diagnosis_needs(steps, price):
    told, budget = ride(steps, whole=price, lean=0.3 * price)
    assert len(steps_of(told, WHOLE)) >= ENOUGH
    assert budget.advice() is None and budget.account()["recorded"] == len(steps_of(told))
    if price < 1:
        assert steps_of(told, WHOLE) == [1, *range(10, steps + 1, 10)]


def test_where_whole_ones_are_too_dear_lean_ones_take_their_place():
    told, budget = ride(120, whole=2.5, lean=0.5)
    recorded = steps_of(told)
    assert len(recorded) >= ENOUGH and max(b - a for a, b in itertools.pairwise(recorded)) <= 20
    assert 0 < len(steps_of(told, LEAN)) < ENOUGH
    assert "were lean" in budget.advice() and budget.account()["lean"] == len(steps_of(told, LEAN))


@pytest.mark.parametrize(("every", "once", "least"), [(1, 4.0, 10), (5, 4.0, 10), (10, 8.0, 6)])
def test_lean_recordings_are_not_counted_as_whole_ones(every, once, least):
    """A first recording that was dear brings lean ones; what they leave of the credit goes into whole ones, not into the time after
    ENOUGH of both."""
    told, _ = ride(200, every, whole=1.4, lean=0.5, once=once)
    assert 0 < len(steps_of(told, LEAN)) < ENOUGH and len([s for s in steps_of(told, WHOLE) if s <= 150]) >= least
    assert told[-1][2] <= budgets.OPENING_SHARE


def test_where_even_lean_ones_are_too_dear_the_credit_is_not_overdrawn():
    told, budget = ride(200, whole=9.0, lean=4.0)
    assert 1 < len(steps_of(told)) < ENOUGH
    assert told[-1][2] <= 0.1 and f"{budget.due - budget.recorded} due steps were held back" in budget.advice()


@pytest.mark.parametrize("every", [1, 2, 10, "log"])
@pytest.mark.parametrize("price", [0.05, 0.4, 2.0, 9.0])
@pytest.mark.parametrize(("limit", "idle"), [(0.03, 0.0), (0.03, 0.01), (0.03, 0.025), (0.01, 0.002), (0.2, 0.0)])
def test_the_opening_costs_a_tenth_at_most_and_a_thousand_steps_the_limit(every, price, limit, idle):
    told, budget = ride(1500, every, limit=limit, whole=price, lean=0.3 * price, idle=idle)
    slack = (
        price / OPENING + 0.002
    )  # the first recording is not asked about, the last one may be a little dearer than thought
    assert told[OPENING - 1][2] <= max(budgets.OPENING_SHARE, limit) + slack
    assert budget.account()["opening_overhead"] == pytest.approx(told[OPENING - 1][2], abs=1e-4)
    for step, _, overhead in told[1000:]:
        assert overhead <= limit + price / step + 0.0005, step


def test_a_cheap_recording_is_never_held_back():
    told, budget = ride(1000, whole=0.2)
    assert steps_of(told, WHOLE) == [1, *range(10, 1001, 10)] and budget.account()["held_back"] == 0


def test_a_dense_cadence_spreads_the_credit():
    """Every step is due; the recordings must not all lie in the first dozen."""
    told, _ = ride(120, 1, whole=1.5, lean=0.4)
    recorded = steps_of(told)
    assert len(recorded) >= ENOUGH and recorded[3] < 25 and recorded[-1] > 90
    assert len(steps_of(told, WHOLE)) >= 10


def test_what_happens_once_is_not_the_price_of_the_next():
    """A first recording of 6 steps, then 1 each: the second tells."""
    told, _ = ride(120, whole=1.0, once=5.0, warm=4.0)
    assert len(steps_of(told)) >= ENOUGH and len(steps_of(told, WHOLE)) >= 10


@pytest.mark.parametrize("slices", [(13,), (16, 47), (30, 62)])
def test_a_busy_machine_does_not_make_recordings_look_dear(slices):
    """A scheduler's slice as long as a step, in an idle step or in a recorded one, is spent and no price."""
    told, budget = ride(120, whole=0.9, lean=0.4, idle=0.012, slices=dict.fromkeys(slices, 1.0))
    assert len(steps_of(told, WHOLE)) >= ENOUGH and budget.advice() is None
    assert told[-1][2] == pytest.approx((0.9 * budget.whole + 0.012 * budget.idle_steps + len(slices)) / (120 + 0.9 * budget.whole
                                        + 0.012 * budget.idle_steps + len(slices)))  # fmt: skip


@pytest.mark.parametrize("limit", [0.01, 0.03])
def test_idle_steps_that_were_dearer_than_their_median_count_as_they_were(limit):
    """One in ten takes a tenth of a slice: more than the median tells, and still within the limit over a thousand steps."""
    told, _ = ride(1000, limit=limit, whole=0.3, lean=0.1, idle=0.002, slices={s: 0.03 for s in range(15, 1000, 10)})
    assert len(steps_of(told)) >= ENOUGH and told[-1][2] <= limit + 0.3 / 1000 + 0.0005


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("limit", [0.01, 0.03])
def test_what_hooks_cannot_count_fits_into_the_limit(every, limit):
    """A recording costs about a tenth more than is counted of it (docs/en/watch.md, what it costs): a thousand steps stay within the limit."""
    told, _ = ride(1000, every, limit=limit, whole=0.4, lean=0.1, idle=0.002)
    assert len(steps_of(told)) >= ENOUGH and told[-1][2] > 0.8 * limit  # what may be spent is
    assert 1.1 * told[-1][2] <= limit + 0.4 / 1000


def test_idle_steps_may_become_dearer_once_the_credit_is_spent():
    """By a tenth of what a thousand steps allow: that much is not planned."""
    told, _ = ride(1000, 2, limit=0.01, whole=0.3, lean=0.1, idle=0.002, slices={s: 0.01 for s in range(205, 1000, 10)})
    assert len(steps_of(told)) >= ENOUGH and told[-1][2] <= 0.01


def test_the_trace_of_idle_steps_is_part_of_the_account():
    """At 2.9 % of 3 % nothing is left for recordings, and the advice says what takes it."""
    told, budget = ride(200, idle=0.029)
    assert len(steps_of(told)) < ENOUGH and "trace=False" in budget.advice()
    assert "trace=False" not in ride(200, whole=9.0, lean=4.0)[1].advice()


def test_a_run_that_goes_on_has_no_second_credit():
    assert len(steps_of(ride(120, opening=False)[0])) <= 4
    assert len(steps_of(ride(120, opening=True)[0])) == 13


def test_without_a_limit_all_is_whole_and_a_coarse_cadence_is_told():
    told, budget = ride(60, 10, limit=None, whole=50.0)
    assert steps_of(told, WHOLE) == [1, 10, 20, 30, 40, 50, 60]
    assert "only 7 steps were due: set every=4" in budget.advice()
    assert ride(60, 4, limit=None)[1].advice() is None
    assert ride(4, 2)[1].advice() is None and len(steps_of(ride(4, 2)[0])) == 3  # too short for any cadence


# ---- in a watch ------------------------------------------------------------------------------------------------------


class Slow(normlab.Probe):
    """Takes a time of its own under the test's clock."""

    on = "norm"
    price = "standard"

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def measure(self, frame):
        self.clock.now += self.seconds
        return {"slow": frame.y_rows.mean()}


def watched(folder, monkeypatch, steps, seconds, **options):
    clock = Clock()
    monkeypatch.setattr(budgets.time, "perf_counter", clock)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = normlab.watch(model, optimizer=optimizer, out=folder, probes=[Slow(clock, seconds)], **options)
    with watch:
        for _ in range(steps):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clock.now += 1.0
            watch.step(loss=loss)
    return watch, normlab.Run(folder)


def test_a_watch_with_its_defaults_records_enough_of_120_steps(tmp_path, monkeypatch, capsys):
    _, run = watched(tmp_path / "run", monkeypatch, 120, 1.1)
    assert run.series("slow")["1"].steps == run.series("grad_norm")["model"].steps == [1, *range(10, 121, 10)]
    account = run.info["recording"]
    assert (account["due"], account["recorded"], account["held_back"], account["advice"]) == (13, 13, 0, None)
    said = capsys.readouterr().err
    assert "13 of 120 steps recorded (13 due)" in said and "credit for the opening" in said and "Note" not in said
    assert account["opening_overhead"] == pytest.approx(13 * 1.1 / (120 + 13 * 1.1), abs=1e-3)


def test_lean_recordings_ask_the_lean_probes_alone(tmp_path, monkeypatch, capsys):
    watch, run = watched(tmp_path / "run", monkeypatch, 120, 3.9)
    whole, every = run.series("slow")["1"].steps, run.series("grad_norm")["model"].steps
    assert len(every) >= ENOUGH and set(whole) < set(every) and 2 <= len(whole) < ENOUGH
    assert set(run.series("length")["1"].steps) == set(whole)
    account = run.info["recording"]
    assert account["lean"] == len(every) - len(whole) and account["advice"] in watch.summary()
    said = capsys.readouterr().err
    assert said.count("a diagnosis needs 13") == 1 and "max_overhead=None" in said


def test_a_watch_closed_by_hand_says_what_to_change(tmp_path, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(budgets.time, "perf_counter", clock)
    watch = normlab.watch(nn.LayerNorm(4), out=tmp_path / "run", every=1, max_overhead=1e-6)
    for _ in range(20):
        clock.now += 1
        with watch.budget:
            clock.now += 0.1
        watch.step(loss=1.0)
    watch.close()
    assert "19 due steps were held back" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recording"]["held_back"] == 19


# ---- a folder that is taken ------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_an_error_that_names_the_ways_out(tmp_path):
    model = nn.LayerNorm(4)
    for name in ("run", "run-2"):
        normlab.watch(model, out=tmp_path / name).close("failed")
    with pytest.raises(FileExistsError, match=r"overwrite=True replaces it.*run-3' is free.*after=STEPS"):
        normlab.watch(model, out=tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    watch = normlab.watch(model, out=tmp_path / "run", overwrite=True)
    watch.step(loss=7.0)
    watch.close()
    run = normlab.Run(tmp_path / "run")
    assert run.series("loss")["model"].values == [7.0] and run.info["status"] == "finished"
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
