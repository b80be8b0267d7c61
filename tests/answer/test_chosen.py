"""What was chosen for a cell stands wherever its result does: table, verdict, page, JSON; and nowhere else."""

from __future__ import annotations

import pytest
from planted import answer, check, sweep_of, trials_of

from normlab import report, runs
from normlab.answer import choices
from normlab.cli.answers import show_answer
from normlab.lab import Experiment
from normlab.lab.parts import model_config, task_of

FORM = {"kind": "causal-position", "norm": "batch", "values": 16, "text": "causal_statistics='position': ..."}


def planted(values=(16,)):
    grid = sweep_of(norms=("layer", "batch"))
    trials = trials_of(grid, noise=0.01)
    for i, t in enumerate(trials):
        t["choices"] = [{**FORM, "values": values[i % len(values)]}] if t["cell"].startswith("batch") else []
    return check(answer(grid, trials))


def test_the_verdict_and_the_json_say_it_of_those_cells_alone():
    found = planted()
    said = [s for s in found.verdict.en if "usual form" in s]
    assert len(said) == 1 and said[0].startswith("In batch/p") and "over at most 16 values" in said[0]
    assert "in evaluation, running statistics over all positions together" in said[0]
    assert any("最多 16 个值" in s for s in found.verdict.zh)
    held = {c["cell"]: c["choices"] for c in found.to_dict()["cells"]}
    assert held["batch/pre"] == held["batch/post"] == [FORM] and held["layer/pre"] == held["layer/post"] == []
    assert runs.Summary.from_dict(found.to_dict()) == found


def test_cells_that_differ_in_the_size_of_a_batch_alone_have_one_sentence():
    ((cells, words),) = choices(planted(values=(4, 64)))
    assert set(cells) == {"batch/pre", "batch/post"} and "at most 4/64 values" in words[0] and "4/64" in words[1]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_marks_the_cells(capsys, lang):
    show_answer(planted(), lang)
    out = capsys.readouterr().out
    assert "batch/pre*" in out and "layer/pre*" not in out and ("* something was chosen" in out or "* 为该组合" in out)
    grid = sweep_of()
    show_answer(answer(grid, trials_of(grid, noise=0.01)), lang)
    assert "*" not in capsys.readouterr().out


def test_the_page_marks_and_explains_them(tmp_path):
    grid = sweep_of(norms=("layer", "batch"))
    runs.write_grid(tmp_path, runs.Grid.from_dict(grid))
    runs.write_summary(tmp_path, planted())
    view = report.view(tmp_path)
    assert [c["cell"] for c in view["cells"] if c["chosen"]] == [
        c for c in (x["cell"] for x in view["cells"]) if "batch" in c
    ]
    told = {lang: " ".join(one[lang] for one in view["choices"]) for lang in ("en", "zh")}
    assert "over at most 16 values" in told["en"] and "最多 16 个值" in told["zh"]


@pytest.mark.parametrize(
    ("norm", "task", "kind", "values"),
    [("batch", "text", "causal-position", 16), ("power", "text", "causal-running", None), ("group", "text", "causal-token", None),
     ("batch", "dates", "causal-position", 32), ("batch", "masked", None, None), ("batch", "docs", None, None),
     ("layer", "text", None, None)],
)  # fmt: skip
def test_what_is_chosen_for_a_model(norm, task, kind, values):
    experiment = Experiment(norm=norm, task=task)
    _, chosen = model_config(experiment, task_of(experiment))
    assert [(c.kind, c.norm, c.values) for c in chosen] == ([] if kind is None else [(kind, norm, values)])
    if values:
        _, halved = model_config(experiment.changed(accumulate=2, batch_size=24), task_of(experiment), processes=2)
        assert [c.values for c in halved if c.kind == kind] == [6]  # of a micro-batch of one process
    asked = experiment.changed(causal_statistics="running") if norm == "batch" and kind else None
    assert asked is None or model_config(asked, task_of(asked))[1] == []  # a choice of the user's own is none for him
