"""Cells given alike: as many steps each as make samples, tokens or seconds those of the base."""

from __future__ import annotations

import json

import pytest
from planted import answer as planted_answer
from planted import check, sweep_of, trials_of

from normlab import answer, lab, runs
from normlab.lab import Experiment, Sweep, checked
from normlab.lab import sweep as sweeps
from normlab.lab.equal import equalized
from normlab.lab.growth import extended, more_seeds
from normlab.lab.tasks import find_task
from normlab.lab.work import Work

BASE = Experiment(
    steps=30, model={"dim": 16, "num_layers": 1, "num_heads": 2}, held_out=20, evaluations=2, watch="none"
)


def steps_of(sweep):
    return {t.cell: t.experiment.steps for t in sweep.trials()}


def test_steps_are_equal_unless_asked_otherwise():
    sweep = Sweep(base=BASE, axes={"batch_size": [4, 16], "lr": [1e-3], "seed": [0]})
    assert equalized(sweep, "steps") is sweep and steps_of(sweep) == {"4": 30, "16": 30}
    assert "steps" not in sweep.to_dict() and "equal" not in sweep.to_dict()  # as older versions wrote it


def test_equal_samples_count_from_the_batch_size_of_the_base():
    axes = {"batch_size": [4, 16, 48, 7, 10000], "lr": [1e-3, 1e-2], "seed": [0, 1]}
    sweep = equalized(Sweep(base=BASE, axes=axes), "samples")
    assert find_task("text").batch_size == 16
    assert steps_of(sweep) == {"4": 120, "16": 30, "48": 10, "7": 69, "10000": 1}  # 480 samples; 480 / 7 = 68.6
    own = equalized(Sweep(base=BASE.changed(batch_size=8), axes={"accumulate": [1, 2], "seed": [0]}), "samples")
    assert set(steps_of(own).values()) == {30}


def test_equal_tokens_follow_length_and_padding():
    long = equalized(Sweep(base=BASE, axes={"length": [16, 64], "seed": [0]}), "tokens")
    assert steps_of(long) == {"16": 120, "64": 30}
    # Lines cut shorter lose tokens, but not in proportion: most are shorter than 64 already.
    masked = equalized(Sweep(base=BASE.changed(task="masked"), axes={"length": [16, 64], "seed": [0]}), "tokens")
    per_line = {n: sum(int(find_task("masked", options={"length": n}).batch(0, s, 32).arguments["mask"].sum()) for s in range(1, 9))
                for n in (16, 64)}  # fmt: skip
    assert steps_of(masked)["64"] == 30 and steps_of(masked)["16"] == round(30 * per_line[64] / per_line[16]) < 110


def test_equal_seconds_follow_what_was_timed(monkeypatch):
    seconds = {16: 0.010, 4: 0.004, 64: 0.035}
    timed = []

    def measure(trials, seconds=3.0):
        timed.append(seconds)
        return {
            t.cell: Work(step_seconds=by[t.experiment.batch_size or 16], evaluation_seconds=0.0, flops_per_step=0.0)
            for t in trials
        }

    by = seconds
    monkeypatch.setattr("normlab.lab.equal.measure", measure)
    sweep = equalized(Sweep(base=BASE, axes={"batch_size": [4, 64], "seed": [0]}), "seconds")
    assert steps_of(sweep) == {"4": 75, "64": 9} and timed == [float("inf")]  # every cell, however long


def test_what_was_planned_stays_and_only_new_cells_are_reckoned(tmp_path, monkeypatch):
    sweep = equalized(checked(Sweep(base=BASE, axes={"batch_size": [4, 16], "seed": [0]})), "samples")
    lab.plan(sweep, tmp_path / "a", 1, estimate=False)
    again = Sweep.read(tmp_path / "a")
    assert again.equal == "samples" and steps_of(again) == steps_of(sweep) == {"4": 120, "16": 30}
    lab.plan(again, tmp_path / "a", 1, estimate=False)
    wider = Sweep(
        base=again.base, axes={**again.axes, "batch_size": [4, 16, 8]}, equal=again.equal, steps={"4": 121, "16": 30}
    )
    assert steps_of(equalized(wider, "samples")) == {"4": 121, "16": 30, "8": 60}
    with pytest.raises(ValueError, match="holds another sweep"):
        lab.plan(Sweep(base=BASE, axes=sweep.axes), tmp_path / "a", 1, estimate=False)


@pytest.mark.parametrize(
    ("sweep", "how", "words"),
    [
        (Sweep(base=BASE, axes={"steps": [1, 2], "seed": [0]}), "samples", "steps are varied"),
        (Sweep(base=Experiment(task="own", make_model="a:b", make_data="a:c"), axes={"seed": [0]}), "tokens", "batches of your own"),
        (Sweep(base=BASE, axes={"seed": [0]}), "sample", "Did you mean 'samples'"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_equal_is_refused(sweep, how, words):
    with pytest.raises(ValueError, match=words):
        equalized(sweep, how)


def test_a_sweep_at_equal_samples_ends_with_them_and_says_so(tmp_path):
    base = BASE.changed(steps=4)
    sweep = equalized(
        checked(Sweep(base=base, axes={"batch_size": [8, 32], "lr": [1e-2], "seed": [0, 1, 2]})), "samples"
    )
    planned = lab.plan(sweep, tmp_path / "a", 1, estimate=False)
    assert "trials of 2 to 8 steps" in str(planned) and "equal samples, those of 4 steps" in str(planned)
    for trial in planned.missing:
        lab.train(trial.experiment, runs.trial_folder(planned.folder, trial.name))
    found = answer.read(tmp_path / "a")
    assert {t.samples for t in found.trials} == {64.0} and {t.tokens for t in found.trials} == {64.0 * 64}
    assert found.equal == "samples" and {c.name: c.steps for c in found.cells} == {"8": 8, "32": 2}
    assert json.loads((tmp_path / "a" / "sweep.json").read_text())["steps"] == {"8": 8, "32": 2}
    assert sweeps.finished(tmp_path / "a", sweep.trials())[1] == []


def test_the_verdict_says_what_was_equal():
    grid = sweep_of(
        norms=("layer",), placements=("pre", "post"), equal="samples", steps={"layer/pre": 30, "layer/post": 480}
    )
    found = check(planted_answer(grid, trials_of(grid, noise=0.01)))
    assert any("equal samples (30 to 480 steps)" in s for s in found.verdict.en)
    assert any("样本相等（30 到 480 步）" in s for s in found.verdict.zh)
    plain = sweep_of(norms=("layer",))
    assert any("task text, 200 steps" in s for s in planted_answer(plain, trials_of(plain, noise=0.01)).verdict.en)


def ended_at_once(sweep, folder):
    """Every trial that becomes due, with a planted loss and as many samples as its steps see; their names."""
    ran = []
    while missing := lab.plan(sweep, folder, 1, estimate=False).missing:
        for trial in missing:
            e = trial.experiment
            result = {
                "outcome": "trained",
                "loss": 2.0 + e.lr + 0.01 * e.seed,
                "samples": float(e.steps * e.batch_size),
            }
            info = {"experiment": e.to_dict(), "task": {"blind": 3.3}}
            runs.Writer(runs.trial_folder(folder, trial.name), info).close("finished", result=result)
            ran.append(trial.name)
    return ran


def test_a_sweep_that_grows_gives_its_new_cells_and_seeds_equal_samples_too(tmp_path):
    axes = {"batch_size": [8, 32], "lr": [1e-2, 3e-2], "seed": [0, 1]}
    small = equalized(checked(Sweep(base=BASE.changed(steps=4), axes=axes)), "samples")
    assert len(ended_at_once(small, tmp_path)) == 8
    before = {p: p.read_bytes() for p in (tmp_path / "trials").rglob("run.json")}
    grown = extended(tmp_path, {"batch_size": [4], "seed": more_seeds(small, 3)})
    assert grown.equal == "samples" and grown.looks == (2,) and grown.first_seeds == 2
    assert steps_of(grown) == {"8": 8, "32": 2, "4": 16}
    assert set(ended_at_once(grown, tmp_path)) == {
        "batch_size8-lr0.01-seed2", "batch_size32-lr0.01-seed2", *(f"batch_size4-lr{lr}-seed{s}" for lr in (0.01, 0.03) for s in (0, 1)),
        "batch_size4-lr0.01-seed2",
    }  # fmt: skip
    assert {p: p.read_bytes() for p in before} == before
    found = answer.read(tmp_path)
    assert found.complete and {t.samples for t in found.trials} == {64.0} and len(found.trials) == 15
    assert found.equal == "samples" and {c.name: (c.steps, c.n) for c in found.cells} == {
        "8": (8, 3),
        "32": (2, 3),
        "4": (16, 3),
    }
    assert any("equal samples (2 to 16 steps)" in s for s in found.verdict.en)
    assert steps_of(Sweep.read(tmp_path)) == steps_of(grown), "what was reckoned stands in the file"
