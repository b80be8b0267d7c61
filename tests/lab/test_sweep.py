"""Sweeps: the grid is complete, balanced and paired; what cannot be built is refused with a reason; folders are never mixed up."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
import torch

from normlab import RunUnreadable
from normlab.lab import Experiment, Message, Plan, Sweep, checked, plan, run
from normlab.lab.batches import shares
from normlab.lab.parts import task_of
from normlab.lab.sweep import check_folder, finished
from normlab.lab.told import duration
from normlab.lab.work import START_SECONDS, Work, estimated
from normlab.runs import Result, Writer

MODEL = {"dim": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 31}
TINY = Experiment(steps=7, batch_size=3, held_out=5, evaluations=2, watch="none", model=MODEL)
AXES = {"norm": ["layer", "rms", "scale"], "placement": ["pre", "post"], "num_layers": [1, 2], "lr": [3e-4, 1e-3, 0.1],
        "seed": [0, 1, 5]}  # fmt: skip


class Recorded:
    """An engine that ends every trial at once, and remembers them."""

    workers = 1

    def __init__(self):
        self.ran = []

    def run(self, folder, trials, notify):
        for trial in trials:
            self.ran.append(trial.name)
            writer = Writer(folder / "trials" / trial.name, {"experiment": trial.experiment.to_dict()}, again=True)
            writer.close("finished", result={"outcome": "trained", "loss": 1.5})
            notify("ended", trial, Message(result=Result(outcome="trained")))


def quiet(*_):
    pass


# ---- the grid --------------------------------------------------------------------------------------------------------


def test_every_combination_once_with_seeds_outermost():
    trials = Sweep(base=TINY, axes=AXES).trials()
    found = [tuple(t.experiment.value(name) for name in AXES) for t in trials]
    assert Counter(found) == Counter(itertools.product(*AXES.values()))
    assert len({t.name for t in trials}) == len(trials) == 3 * 2 * 2 * 3 * 3
    seeds = [t.experiment.seed for t in trials]
    assert [seed for seed, _ in itertools.groupby(seeds)] == AXES["seed"]  # cut short, whole grids are left
    per_cell = Counter(t.cell for t in trials)
    assert set(per_cell.values()) == {9} and len(per_cell) == 12
    assert all(t.cell == "/".join(str(v) for v in t.axes.values()) for t in trials)


def test_only_what_is_varied_differs():
    for trial in Sweep(base=TINY, axes=AXES).trials():
        assert set(TINY.differences(trial.experiment)) <= {"norm", "placement", "model", "lr", "seed"}
        assert {k: v for k, v in trial.experiment.model.items() if k != "num_layers"} == {
            k: v for k, v in MODEL.items() if k != "num_layers"
        }


def test_axes_that_are_left_out_take_the_base_value():
    sweep = Sweep(base=TINY.changed(lr=0.02, seed=4, norm="rms"), axes={"placement": ["pre", "post"]})
    assert [(t.experiment.lr, t.experiment.seed, t.experiment.norm) for t in sweep.trials()] == [(0.02, 4, "rms")] * 2
    assert [t.name for t in sweep.trials()] == ["pre-lr0.02-seed4", "post-lr0.02-seed4"]
    assert Sweep(base=TINY, axes={"lr": [1e-3]}).trials()[0].cell == "all"


def test_cells_see_the_same_batches_at_the_same_seed_and_step():
    sweep = Sweep(
        base=TINY, axes={"norm": ["layer", "batch"], "num_layers": [1, 2], "lr": [1e-3, 1e-2], "seed": [0, 1]}
    )
    seen: dict[tuple[int, int], list[torch.Tensor]] = {}
    for trial in sweep.trials():
        task = task_of(trial.experiment)
        for step in (1, 2, 7):
            ((batch, _, _),) = shares(task, trial.experiment, step, 3, 0, 1)
            seen.setdefault((trial.experiment.seed, step), []).append(batch.arguments["tokens"])
    assert all(len(group) == 8 and all(torch.equal(group[0], other) for other in group) for group in seen.values())
    firsts = [group[0] for group in seen.values()]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(firsts, 2))  # and others at others


def test_close_rates_get_folders_of_their_own():
    rates = [0.00123456781, 0.00123456789, 1e-3]
    names = [t.name for t in Sweep(base=TINY, axes={"lr": rates}).trials()]
    assert len(set(names)) == 3 and names[2] == "lr0.001-seed0"


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"norm": ["layer", "layer"]}, "'norm' names a value twice"),
        ({"lr": [1e-3, 0.001]}, "'lr' names a value twice"),
        ({"num_layers": [2, 2.0]}, "share the folder"),
        ({"lr": [1, 1.0]}, "share the folder"),
        ({"norm": []}, "at least one value"),
        ({"norm": "layer"}, "needs a list"),
        ({"lr": [1e-3, -1.0]}, "lr must be"),
        ({"seed": [0, -1]}, "seed must be"),
        ({"steps": [5, 0]}, "steps must be"),
    ],
)
def test_axes_that_make_no_grid_are_refused(axes, words):
    with pytest.raises(ValueError, match=words):
        Sweep(base=TINY, axes=axes)


# ---- baseline and refusals -------------------------------------------------------------------------------------------


def test_the_baseline_is_the_first_cell_or_the_named_one():
    axes = {"norm": ["rms", "layer"], "placement": ["pre"]}
    assert Sweep(base=TINY, axes=axes).to_dict()["baseline"] == {"norm": "rms", "placement": "pre"}
    named = {"norm": "layer", "placement": "pre"}
    assert Sweep(base=TINY, axes=axes, baseline=named).to_dict()["baseline"] == named
    with pytest.raises(ValueError, match="none of the cells: rms/pre; layer/pre"):
        Sweep(base=TINY, axes=axes, baseline={"norm": "batch", "placement": "pre"})


def test_a_cell_that_cannot_be_built_is_refused_with_its_reason_and_the_rest_runs(tmp_path):
    sweep = checked(Sweep(base=TINY, axes={"norm": ["instance", "layer", "rms"], "placement": ["pre"], "seed": [0, 1]}))
    (refused,) = sweep.refused
    assert refused.axes == {"norm": "instance", "placement": "pre"} and "causal" in refused.reason
    assert sweep.baseline == {"norm": "layer", "placement": "pre"}  # the first that can be built
    engine = Recorded()
    planned = plan(sweep, tmp_path / "s", 1, estimate=False)
    assert "refused: instance/pre" in str(planned)
    run(planned, engine, quiet)
    assert engine.ran == [f"{norm}-pre-lr0.001-seed{seed}" for seed in (0, 1) for norm in ("layer", "rms")]


def test_no_cell_left_is_an_error():
    with pytest.raises(ValueError, match=r"no cell of this sweep can be built: .*causal"):
        checked(Sweep(base=TINY, axes={"norm": ["instance"]}))


@pytest.mark.parametrize(("axis", "wrong", "near"), [("norm", "lyaer", "layer"), ("placement", "pots", "post")])
def test_a_misspelt_name_is_an_error_and_no_refused_cell(axis, wrong, near):
    with pytest.raises(ValueError, match=f"unknown {axis} '{wrong}'. Did you mean '{near}'"):
        checked(Sweep(base=TINY, axes={axis: [near, wrong]}))


# ---- on disk ---------------------------------------------------------------------------------------------------------


def test_sweep_json_gives_the_sweep_back(tmp_path):
    axes = {**AXES, "betas": [(0.9, 0.95), (0.8, 0.9)]}
    sweep = checked(Sweep(base=TINY, axes=axes, baseline=None))
    plan(sweep, tmp_path / "s", 2, estimate=False)
    again = Sweep.read(tmp_path / "s")
    assert again.to_dict() == sweep.to_dict()
    assert [(t.name, t.cell, t.experiment.to_dict()) for t in again.trials()] == [
        (t.name, t.cell, t.experiment.to_dict()) for t in sweep.trials()
    ]
    check_folder(sweep, tmp_path / "s")  # the very same: accepted
    stored = json.loads((tmp_path / "s/sweep.json").read_text())
    assert stored["schema"] == "normlab.sweep/1" and stored["axes"]["lr"] == AXES["lr"] and stored["created"]


@pytest.mark.parametrize(
    "change", [{"axes": {"norm": ["layer"]}}, {"base": TINY.changed(steps=8)}, {"baseline": {"norm": "rms"}}]
)
def test_another_sweep_in_the_folder_is_refused(tmp_path, change):
    given = {"base": TINY, "axes": {"norm": ["layer", "rms"]}, "baseline": None}
    plan(Sweep(**given), tmp_path / "s", 1, estimate=False)
    before = (tmp_path / "s/sweep.json").read_bytes()
    with pytest.raises(ValueError, match="holds another sweep"):
        plan(Sweep(**{**given, **change}), tmp_path / "s", 1, estimate=False)
    assert (tmp_path / "s/sweep.json").read_bytes() == before


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="not empty and holds no sweep"):
        plan(Sweep(base=TINY, axes={"norm": ["layer"]}), tmp_path, 1, estimate=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_planning_without_writing_writes_nothing(tmp_path):
    sweep = Sweep(base=TINY, axes={"norm": ["layer", "rms"], "lr": [1e-3, 1e-2]})
    planned = plan(sweep, tmp_path / "a/b", 2, write=False)
    assert not (tmp_path / "a").exists()
    assert len(planned.missing) == 4 and planned.seconds > 0 and "estimated time" in str(planned)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "normlab.sweep/9"}', '{"schema": "normlab.sweep/1"}',
                                  '{"schema": "normlab.sweep/1", "base": {"stps": 3}, "axes": {}, "baseline": {}, "refused": []}'])  # fmt: skip
def test_an_unreadable_sweep_is_refused_politely(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunUnreadable, match=r"sweep\.json"):
        Sweep.read(tmp_path)


def test_only_what_is_missing_runs_again(tmp_path):
    sweep = Sweep(base=TINY, axes={"norm": ["layer", "rms", "scale"], "seed": [0, 1]})
    names = [t.name for t in sweep.trials()]
    run(plan(sweep, tmp_path, 1, estimate=False), Recorded(), quiet)
    results, missing = finished(tmp_path, sweep.trials())
    assert list(results) == names and not missing

    trials = tmp_path / "trials"
    (trials / names[0] / "run.json").write_text('{"torn')
    (trials / names[1] / "run.json").unlink()
    for name, change in (
        (names[2], {"status": "running"}),
        (names[3], {"status": "failed"}),
        (names[4], {"result": None}),
    ):
        info = json.loads((trials / name / "run.json").read_text())
        (trials / name / "run.json").write_text(json.dumps({**info, **change}))
    engine = Recorded()
    planned = plan(sweep, tmp_path, 1, estimate=False)
    assert "1 are finished and stay" in str(planned)
    run(planned, engine, quiet)
    assert engine.ran == names[:5]
    assert not finished(tmp_path, sweep.trials())[1]
    assert (trials / names[0] / "run.json.unreadable").read_text() == '{"torn'


def test_what_another_process_finished_since_planning_is_not_run_again(tmp_path):
    sweep = Sweep(base=TINY, axes={"norm": ["layer", "rms"]})
    first, late = (plan(sweep, tmp_path, 1, estimate=False) for _ in range(2))
    run(first, Recorded(), quiet)
    engine = Recorded()
    run(late, engine, quiet)
    assert engine.ran == []


def test_the_arithmetic_of_each_cell_is_its_own(tmp_path):
    sweep = Sweep(base=TINY, axes={"num_layers": [1, 3], "seed": [0, 1]})
    planned = plan(sweep, tmp_path, 2)
    assert planned.work.keys() == {"1", "3"}
    assert planned.work["3"].flops_per_step > 1.5 * planned.work["1"].flops_per_step
    assert planned.seconds > 0


def test_the_estimate_counts_steps_evaluations_and_workers():
    """By hand: 7 steps of 2 s and the evaluations of 4 s for cell a; b was not measured and is taken for the mean of a and c."""
    trials = Sweep(base=TINY, axes={"num_layers": [1, 2, 3]}).trials()
    work = {"1": Work(step_seconds=2.0, evaluation_seconds=4.0, flops_per_step=1.0),
            "3": Work(step_seconds=6.0, evaluation_seconds=8.0, flops_per_step=1.0)}  # fmt: skip
    evaluations = min(TINY.evaluations, TINY.steps)
    cells = TINY.steps * (2 + 4 + 6) + evaluations * (4 + 6 + 8)
    for workers in (1, 2, 5):
        assert estimated(trials, work, workers) == pytest.approx(START_SECONDS + 1.2 * cells / min(workers, 3))


def test_planning_leaves_torch_as_it_was(tmp_path):
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    plan(Sweep(base=TINY, axes={"norm": ["layer"]}), tmp_path, 1)
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == threads


def test_words():
    assert [duration(s) for s in (0.4, 59.4, 60, 3599, 3600, 7265)] == [
        "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 1 min"]  # fmt: skip
    planned = Plan(Sweep(base=TINY, axes=AXES), None, {}, Sweep(base=TINY, axes=AXES).trials(), 2, 61.0)
    assert str(planned).splitlines() == [
        "12 cells x 3 rates x 3 seeds = 108 trials of 7 steps, task text, 2 at a time", "estimated time: 1 min 1 s"]  # fmt: skip


def test_a_plan_says_why_it_has_no_estimate(tmp_path, monkeypatch):
    from normlab.lab import sweep as module

    def broken(trials):
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr(module, "measure", broken)
    planned = plan(Sweep(base=Experiment(steps=2), axes={"norm": ["layer"]}), tmp_path / "sweep", 1)
    assert planned.seconds is None and "no estimate of the time: RuntimeError: the machine is on fire" in str(planned)
