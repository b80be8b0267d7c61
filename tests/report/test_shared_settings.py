"""Settings common to all trials: each of them has them; axes and what differs between runs are left out."""

from __future__ import annotations

from planted import answer, sweep_of, trials_of

from normlab import report, runs
from normlab.report.shared_settings import common_settings


def made(folder, **grid_more):
    grid = sweep_of(**grid_more)
    grid["base"] |= {"norm": "layer", "placement": "pre", "lr": 1e-3, "seed": 0, "batch_size": None, "clip": 1.0, "model": {"dim": 32},
                     "options": {"length": 17}}  # fmt: skip
    trials = trials_of(grid, noise=0.01)
    for i, t in enumerate(trials):
        norm = t["axes"]["norm"]
        experiment = {**grid["base"], **t["axes"], "lr": t["lr"], "seed": t["seed"]}
        model = {"dim": 32, "num_layers": 4, "ffn_dim": 128, "causal_statistics": "position" if norm == "batch" else None,
                 "norm": norm, "placement": t["axes"]["placement"], "dropout": 0.1 if norm == "batch" else 0.0}  # fmt: skip
        t["parameters"] = 1000 + 24 * (norm == "batch")
        result = {k: v for k, v in t.items() if k not in ("name", "cell", "axes", "lr", "seed")}
        info = {"experiment": experiment, "model": model, "batch_size": 16, "result": None}
        if i != 1:  # one run is missing
            runs.Writer(runs.trial_folder(folder, t["name"]), info).close("finished", result=result)
    runs.write_grid(folder, runs.Grid.from_dict(grid))
    runs.write_summary(folder, answer(grid, trials))
    return runs.read_grid(folder), runs.read_summary(folder).trials


def test_only_what_all_trials_have_is_common_with_sizes_first(tmp_path):
    grid, trials = made(tmp_path, norms=("layer", "batch"))
    found = common_settings(tmp_path, grid, trials)
    assert list(found)[:5] == ["task", "steps", "dim", "num_layers", "batch_size"]
    assert found["batch_size"] == 16 and found["num_layers"] == 4 and found["dim"] == 32 and found["length"] == 17
    assert found["clip"] == 1.0 and found["ffn_dim"] == 128
    assert not {"norm", "placement", "lr", "seed", "dropout", "causal_statistics"} & set(found)
    ran = report.view(tmp_path)["ran"]
    assert ran["settings"] == found and ran["parameters"] == "1,000 – 1,024"


def test_steps_that_differ_are_not_common(tmp_path):
    grid, trials = made(tmp_path, norms=("layer",), equal="samples", steps={"layer/pre": 30, "layer/post": 480})
    assert "steps" not in common_settings(tmp_path, grid, trials)
    view = report.view(tmp_path)
    assert view["ran"]["steps"] == "30 – 480" and view["ran"]["equal"] == "samples"


def test_an_axis_with_one_value_is_no_setting_either_and_what_is_no_axis_is(tmp_path):
    grid, trials = made(tmp_path, norms=("rms",))
    assert "norm" not in common_settings(tmp_path, grid, trials)  # the table of cells names it
    bare = runs.Grid.from_dict({"base": {"task": "text", "norm": "rms", "lr": 1e-3}, "axes": {"seed": [0]}})
    assert common_settings(tmp_path, bare, ())["norm"] == "rms"
