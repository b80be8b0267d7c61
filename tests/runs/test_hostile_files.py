"""Files as input: whatever is in one, a verb ends with its result or one line, and nothing in a file acts by itself."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import damage
import pytest

from normlab import RunUnreadable, cli, runs
from normlab.cli.options import values_of as _values
from normlab.cli.show import table, visible
from normlab.lab import Experiment, Message, Pool, Sweep, Trial, checked, plan, run, train
from normlab.lab.rates import Bracket, LearningRateRange
from normlab.lab.sweep import finished
from normlab.runs import TRIALS
from normlab.runs.files import LINE

TINY = Experiment(steps=4, batch_size=2, held_out=3, evaluations=1, watch="none", options={"length": 9},
                  model={"dim": 8, "num_layers": 1, "num_heads": 2, "ffn_dim": 8})  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage.make_folder(tmp_path_factory.mktemp("damage") / "original")


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    writer = runs.Writer(tmp_path / "a")
    for step in (1, 2, 3):
        writer.write(step, {"loss": {"model": 3.0 / step}})
    writer.close()
    return tmp_path / "a"


# ---- at random -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["sweep", "failed", "cut", "claims", "bench"])
def test_every_call_of_the_hunt_reads_what_is_not_damaged(original, tmp_path, victim):
    """Else a name that the hunt gets wrong would be a refusal, and a refusal is no finding."""
    root = tmp_path / "root"
    shutil.copytree(original, root)
    for words in damage.verbs(root, root / victim, random.Random(0)):
        with damage.quick():
            code, _, said = damage.in_process([*words, str(root)] if words[0] == damage.GET else words)
        assert code == 0, (words, code, said)


def test_damaged_folders_give_a_result_or_a_line(original, tmp_path):
    made, findings = damage.hunt(original, tmp_path, seed=20261116, calls=300, children=2)
    assert made == 302 and not findings, "\n\n".join(findings[:3])


@pytest.mark.nightly
def test_many_more_damaged_folders(original, tmp_path, capsys):
    began = time.perf_counter()
    made, findings = damage.hunt(original, tmp_path, seed=int(time.time()), calls=5200, children=40)
    with capsys.disabled():
        print(f"\n{made} calls in {time.perf_counter() - began:.0f} s, {len(findings)} findings")
    assert made >= 5000 and not findings, "\n\n".join(findings[:3])


def test_the_hunt_finds_what_it_looks_for():
    """Each kind of finding, from a verb that does it."""
    assert "Traceback" in damage.fault([], "Traceback ...", "", "")
    assert damage.fault([], 1, "", "") == "exit code 1 without a word"
    assert "invalid JSON" in damage.fault(["--json"], 0, "[Infinity]", "")
    assert "obey" in damage.fault([], 0, "\x1b[2J", "") and damage.fault(["--json"], 0, "[1]\n", "") is None
    damage.SECONDS, before = 0.2, damage.SECONDS
    try:
        cli.VERBS["doctor"], verb = lambda args: time.sleep(5), cli.VERBS["doctor"]
        assert damage.in_process(["doctor"])[0] == "hangs"
        cli.VERBS["doctor"] = lambda args: {}[1]
        assert "KeyError" in damage.in_process(["doctor"])[0]
    finally:
        damage.SECONDS, cli.VERBS["doctor"] = before, verb


# ---- one by one ------------------------------------------------------------------------------------------------------

LINES = {
    "12": "a line must be an object",
    '{"values":{}}': "step is missing",
    '{"step":-1}': "step must be a whole number",
    '{"step":1e3}': "step must be a whole number",
    '{"step":4,"values":[]}': "values must be an object",
    '{"step":4,"values":{"loss":3}}': r"values\['loss'\] must be an object",
    '{"step":4,"values":{"loss":{"model":"x"}}}': r"values\['loss'\]\['model'\] must be a finite number",
    '{"step":4,"values":{"loss":{"model":true}}}': "must be a finite number",
    '{"step":4,"event":"nonfinite","frames":3}': "frames must be a list",
    '{"step":4,"event":7}': "event must be text",
    "[" * 100_000: "nested too deeply",
    "9" * 5000: "is not a reading",
}


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_line_is_named_with_its_fault(healthy, line, capsys):
    with open(healthy / runs.READINGS, "a") as file:
        file.write(line + '\n{"step":5}\n')
    with pytest.raises(RunUnreadable, match=rf"readings\.jsonl, line 4 .*{LINES[line]}"):
        list(runs.Run(healthy).readings())
    for verb in (["runs", "show"], ["diagnose"], ["report"]):
        assert cli.main([*verb, str(healthy)]) == 1
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1 and "line 4" in said.err


STRUCTURES = {
    "stacks": "here", "stacks[0]": ["here"], "stacks[0].blocks[0]": [{"blocks": ["here"], "placement": "pre", "final_norms": []}],
    "stacks[0].final_norms": [{"blocks": [], "placement": "pre", "final_norms": "here"}], "stacks[0].placement": [{"blocks": [], "placement": 1, "final_norms": []}],
    "stacks[0].blocks[0].branches": [{"blocks": [{"name": "a", "branches": 7}], "placement": "pre", "final_norms": []}],
    "stacks[0].blocks[0].name": [{"blocks": [{"name": []}], "placement": "pre", "final_norms": []}],
    "stacks[0].blocks[0].branches[0].stream[0]": [
        {"blocks": [{"name": "a", "branches": [{"stream": [[]]}]}], "placement": "pre", "final_norms": []}
    ],
}  # fmt: skip


@pytest.mark.parametrize("place", STRUCTURES)
def test_a_structure_of_another_form_is_named(healthy, place, capsys):
    """What the watch read off the graph: the diagnosis and the page count on its types."""
    facts = json.loads((healthy / "run.json").read_text())
    facts["structure"] = {"placement": "pre", "norms": [], "stacks": STRUCTURES[place]}
    (healthy / "run.json").write_text(json.dumps(facts))
    for verb in (["diagnose"], ["report", "--json"], ["runs", "show"]):
        code, _, err = damage.in_process([*verb, str(healthy)])
        assert code == 1 and f"structure.{place} must be" in err, (verb, code, err)


@pytest.mark.parametrize("levels", [40, 65, 900])
def test_nesting_is_bounded_long_before_python_gives_up(healthy, levels, capsys):
    """json reads 900 levels; what walks over them later, and writes them again, would not."""
    info = json.loads((healthy / runs.INFO).read_text())
    nested = "[" * levels + "]" * levels
    (healthy / runs.INFO).write_text(json.dumps({**info, "config": "here"}).replace('"here"', nested))
    for verb in (["runs", "show"], ["diagnose"], ["report"]):
        code, out, err = damage.in_process([*verb, str(healthy)])
        if levels < 64:
            assert code == 0, err
        else:
            assert (code, out) == (1, "") and len(err.splitlines()) == 1 and "nested deeper than 64 levels" in err, err


def test_numbers_without_a_square_are_infinite(healthy):
    with open(healthy / runs.READINGS, "a") as file:
        file.write('{"step":4,"values":{"loss":{"model":1e300,"b":-1e999,"c":1' + "0" * 400 + "}}}\n")
    found = {site: value for _, _, site, value in runs.Run(healthy).readings()}
    assert found == {"model": float("inf"), "b": float("-inf"), "c": float("inf")}


@pytest.mark.parametrize("name", [runs.INFO, runs.READINGS])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "endless", "sparse"])
def test_no_kind_of_file_keeps_a_reader(healthy, name, kind, capsys):
    path = healthy / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"")
        os.truncate(path, LINE + 1 if kind == "endless" else 2**40)
    code, out, err = damage.in_process(["diagnose", str(healthy)])
    assert (code, out) == (1, "") and name in err and len(err.splitlines()) == 1, err


def test_the_end_of_a_file_without_lines_is_not_looked_for_for_ever(healthy):
    """A terabyte of nothing, which takes no room on the disk: the server looked for the last line's end, and so did a run that goes on."""
    path = healthy / runs.READINGS
    with open(path, "ab") as file:
        file.truncate(2**40)
    for look in (lambda: runs.end_of(healthy), lambda: runs.Writer(healthy, again=True, after=3)):
        with pytest.raises(RunUnreadable, match=f"its last line is longer than {LINE} bytes"):
            look()
    os.truncate(path, LINE - 100)  # as long as a line may be: torn, and cut off
    assert runs.end_of(healthy).byte == len(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))


def test_a_link_that_leads_to_itself_is_said(healthy, capsys):
    path = healthy / runs.READINGS
    path.unlink()
    path.symlink_to(path.name)
    code, _, err = damage.in_process(["runs", "show", str(healthy)])
    assert code == 1 and "cannot be read" in err


@pytest.mark.parametrize("name", ["run.json", "summary.json", "sweep.json"])
def test_a_report_names_the_link_that_leads_to_itself(tmp_path, name):
    """It said that no such file was there."""
    (tmp_path / name).symlink_to(name)
    code, _, err = damage.in_process(["report", str(tmp_path)])
    assert code == 1 and f"{tmp_path / name} cannot be read" in err and len(err.splitlines()) == 1, err


@pytest.mark.parametrize(
    "words", [["compare", "--resume"], ["compare", "--dry-run", "--resume"], ["answer"], ["report"]]
)
def test_a_sweep_whose_every_cell_is_refused_is_refused(original, tmp_path, words):
    """There was nothing to take the widest name of, and nothing to do was called done."""
    root = tmp_path / "sweep"
    shutil.copytree(original / "sweep", root)
    (root / "summary.json").unlink()
    facts = json.loads((root / "sweep.json").read_text())
    facts["refused"] = [
        {"axes": {"norm": norm, "placement": "pre"}, "reason": f"{norm} cannot be"} for norm in ("layer", "rms")
    ]
    (root / "sweep.json").write_text(json.dumps(facts))
    with damage.quick():
        code, out, err = damage.in_process([*words, str(root)])
    assert code == (2 if words[0] == "compare" else 1) and out == "" and len(err.splitlines()) == 1, (code, err)
    assert "every cell is refused" in err and "layer cannot be" in err and "rms cannot be" in err


def test_a_pipe_is_not_written_to(healthy):
    os.mkfifo(healthy / "run.json.partial")  # in the place of the second file
    writer = runs.Writer(healthy, again=True)
    writer.close()
    assert runs.Run(healthy).info["status"] == "finished"
    (healthy / runs.READINGS).unlink()
    os.mkfifo(healthy / runs.READINGS)
    with pytest.raises(RunUnreadable, match="a pipe"):
        runs.Writer(healthy, again=True)


def test_a_link_in_the_place_of_a_second_file_is_not_followed(healthy, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (healthy / "run.json.partial").symlink_to(tmp_path / "mine")
    runs.Writer(healthy, again=True).close()
    assert (tmp_path / "mine").read_text() == "mine"


def test_one_bad_run_does_not_hide_the_others(healthy, tmp_path, capsys):
    for name, text in (("b", "{"), ("c", '{"schema":"normlab.run/1"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / runs.INFO).write_text(text)
    assert cli.main(["runs", "list", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert [r["folder"] for r in json.loads(said.out)] == [str(healthy)]
    assert len(said.err.splitlines()) == 2 and "not valid JSON" in said.err and "status is missing" in said.err


def test_an_export_that_breaks_off_leaves_no_half_file(healthy, tmp_path):
    with open(healthy / runs.READINGS, "a") as file:
        file.write("[]\n{}\n")
    for name in ("a.csv", "a.parquet"):
        assert cli.main(["runs", "export", str(healthy), str(tmp_path / name)]) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_a_grid_without_an_end_is_refused(tmp_path, capsys):
    facts = Sweep(base=TINY, axes={"norm": ["layer"]}).to_dict()
    facts["axes"] = {name: list(range(1000)) for name in ("dim", "num_layers", "ffn_dim", "seed")}
    (tmp_path / "sweep.json").write_text(json.dumps(facts))
    code, out, err = damage.in_process(["compare", "--resume", str(tmp_path)])
    assert (code, out) == (2, "") and "1000000000000 trials" in err


@pytest.mark.parametrize("axis", ["lr", "norm"])
def test_an_axis_that_repeats_its_values_is_refused(original, tmp_path, capsys, axis):
    """Thousands of times the same rate, of which there are trials: `answer` computed its intervals each time, for half a minute."""
    root = tmp_path / "sweep"
    shutil.copytree(original / "sweep", root)
    facts = json.loads((root / "sweep.json").read_text())
    facts["axes"][axis] *= 3000
    (root / "sweep.json").write_text(json.dumps(facts))
    for verb in (["answer"], ["report"], ["compare", "--resume"]):
        code, _, err = damage.in_process([*verb, str(root)])
        assert code in (1, 2) and f"axis '{axis}' names a value twice" in err and len(err) < 1000, (verb, code, err)


def test_strict_json_of_a_search_without_a_stable_rate():
    found = LearningRateRange(
        (Bracket(0, None, None, 3, 1e-5, float("inf")), Bracket(1, None, None, 3)), None, None, None
    )
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["brackets"][0]["best_loss"] is None


# ---- code ------------------------------------------------------------------------------------------------------------

OWN = {"task": "own", "make_model": "os:system", "make_data": "os:system"}


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A sweep and an experiment that name a module which leaves a trace when it is loaded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text(
        "open('sprung', 'w').close()\n" + MINE.replace("make", "roam").replace("slow", "make")
    )
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    base = TINY.changed(task="own", make_model="trap:make", make_data="trap:data", options={}, model={})
    plan(Sweep(base=base, axes={"seed": [0]}), "sweep", 1)
    Path("experiment.toml").write_text(base.to_toml())
    return tmp_path


def test_code_that_a_file_names_is_not_run_by_itself(hostile, capsys):
    for words in (["compare", "--resume", "sweep"], ["compare", "--resume", "sweep", "--model", "trap:make"],
                  ["compare", "--resume", "sweep", "--model", "trap:make", "--data", "os:system"],
                  ["train", "experiment.toml", "--out", "a"]):  # fmt: skip
        assert cli.main(words) == 2, words
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1 and "trap:data" in err
        assert not (hostile / "sprung").exists()
    assert cli.main(["train", "experiment.toml", "--show"]) == 0 and not (hostile / "sprung").exists()


@pytest.mark.parametrize("words", [["--trust"], ["--model", "trap:make", "--data", "trap:data"]])
def test_code_runs_when_the_command_line_says_so(hostile, words, capsys):
    assert cli.main(["train", "experiment.toml", "--out", "a", *words]) == 0
    assert (hostile / "sprung").exists()


def test_code_named_in_an_axis_counts(tmp_path, capsys):
    base = TINY.changed(**OWN, options={})
    sweep = Sweep(base=base, axes={"make_model": ["os:system", "os:remove"], "seed": [0]})
    assert sweep.code() == {"make_model": {"os:system", "os:remove"}, "make_data": {"os:system"}}


def test_names_never_leave_the_folder(tmp_path):
    model = {**TINY.model, "../../x": 1}
    sweep = Sweep(
        base=TINY.changed(**OWN, options={}, model=model), axes={"../../x": ["/etc", "..", "a" * 400], "norm": ["../y"]}
    )
    names = [trial.name for trial in sweep.trials()]
    assert len(set(names)) == 3
    for name in names:
        assert (tmp_path / name).resolve().parent == tmp_path and len(name.encode()) <= 200
        (tmp_path / name).mkdir()


@pytest.mark.parametrize("field", ["folder", "name"])
@pytest.mark.parametrize("elsewhere", ["../../x", "/etc/passwd"])
def test_a_summary_cannot_point_elsewhere(original, tmp_path, capsys, field, elsewhere):
    summary = json.loads((original / "sweep" / "summary.json").read_text())
    summary["trials"][0] |= {"folder": None, field: elsewhere}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert cli.main(["report", str(tmp_path)]) == 1
    assert f"trials[0].{field} must be a folder below this one" in capsys.readouterr().err


# ---- text ------------------------------------------------------------------------------------------------------------


def test_text_does_nothing(capsys):
    table("[b]title[/x]", ["[v2]"], [["[/x]", "\x1b[31mred\x07"]])
    out = capsys.readouterr().out
    assert "[b]title[/x]" in out and "[v2]" in out and "[/x]" in out and r"\x1b[31mred\x07" in out and "\x1b" not in out
    assert visible("\ud800\u202e中") == r"\ud800\u202e中"


def test_markup_and_escapes_of_a_run_are_shown(tmp_path, capsys):
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": {}, "blocks": ["[/x]"]}})
    writer.write(1, {"[/x]": {"a": 1.0}, "\x1b]0;t\x07": {"b": 1.0}})
    writer.event(1, "nonfinite", site="[/x]\x1b[2J")
    writer.close()
    for verb in (["runs", "show"], ["runs", "list"], ["diagnose"]):
        assert cli.main([*verb, str(tmp_path / ("" if verb[1:] == ["list"] else "a"))]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and ("[/x]" in out or verb[1:] == ["list"])


# ---- resuming --------------------------------------------------------------------------------------------------------


class Inline:
    """Trains here, and remembers what."""

    def __init__(self):
        self.ran = []

    def run(self, folder, trials, notify):
        for trial in trials:
            self.ran.append(trial.name)
            train(trial.experiment, folder / TRIALS / trial.name)


@pytest.mark.parametrize("kind", ["result", "experiment", "line", "pipe", "folder"])
def test_one_damaged_trial_is_run_again_and_no_other(tmp_path, kind):
    sweep = checked(Sweep(base=TINY, axes={"norm": ["layer", "rms"], "seed": [0]}))
    run(plan(sweep, tmp_path, 1, estimate=False), Inline(), lambda *_: None)
    name = sweep.trials()[0].name
    place = tmp_path / TRIALS / name
    info = json.loads((place / runs.INFO).read_text())
    if kind == "result":
        info["result"]["loss"] = [1]
    elif kind == "experiment":
        info["experiment"] = "[/x]"
    else:
        info.update(status="interrupted", result=None)
    (place / runs.INFO).write_text(json.dumps(info))
    if kind == "line":
        (place / runs.READINGS).write_text('{"step":1}\n7\n{"step":3}\n')
    elif kind in ("pipe", "folder"):
        (place / runs.READINGS).unlink()
        os.mkfifo(place / runs.READINGS) if kind == "pipe" else (place / runs.READINGS).mkdir()
    engine = Inline()
    run(plan(sweep, tmp_path, 1, estimate=False), engine, lambda *_: None)
    assert engine.ran == [name] and len(finished(tmp_path, sweep.trials())[0]) == 2


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_report_takes_nothing_from_the_answer(tmp_path, monkeypatch, capsys):
    sweep = checked(Sweep(base=TINY, axes={"norm": ["layer", "rms"], "seed": [0]}))
    run(plan(sweep, tmp_path, 1, estimate=False), Inline(), lambda *_: None)

    def full(*_):
        raise OSError(28, "No space left on device")

    for place in ("normlab.report.write", "normlab.runs.write_summary"):
        monkeypatch.setattr(place, full)
        assert cli.main(["compare", "--resume", str(tmp_path)]) == 1
        said = capsys.readouterr()
        assert "rms" in said.out.split("folder:")[1] and "No space left" in said.err and "--resume" in said.err
        assert len(finished(tmp_path, sweep.trials())[0]) == 2


MINE = """
import os, time, torch
def make(norm="layer"):
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return torch.nn.Linear(3, 2)
def slow(norm="layer"):
    if norm == "rms":
        time.sleep(600)
    return torch.nn.Linear(3, 2)
def data(seed):
    while True:
        yield torch.ones(4, 3), torch.zeros(4, dtype=torch.long)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "roaming.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return TINY.changed(task="own", make_model="roaming:make", make_data="roaming:data", options={}, model={})


def test_a_factory_that_changes_the_working_folder_moves_no_run(mine, tmp_path, monkeypatch):
    train(mine, "a")
    monkeypatch.chdir(tmp_path)
    assert runs.Run("a").info["status"] == "finished" and not (tmp_path / "elsewhere" / "a").exists()
    sweep = Sweep(base=mine, axes={"norm": ["layer", "rms"], "seed": [0]})
    run(plan(sweep, "sweep", 1), Pool(1), lambda *_: None)
    assert len(finished(Path("sweep"), sweep.trials())[0]) == 2 and not (tmp_path / "elsewhere" / "elsewhere").exists()


def test_a_trial_that_hangs_is_said_and_ended(mine, tmp_path, monkeypatch):
    monkeypatch.setattr("normlab.lab.pool.QUIET", 0.5)
    sweep = Sweep(base=mine.changed(make_model="roaming:slow"), axes={"norm": ["rms", "layer"], "seed": [0]})
    heard: list[tuple[str, str, str]] = []

    def notify(kind: str, trial: Trial, message: Message) -> None:
        heard.append((kind, trial.name, str(message.reason)))

    run(plan(sweep, tmp_path / "sweep", 1), Pool(1, trial_timeout=3.0), notify)
    slow, quick = (trial.name for trial in sweep.trials())
    assert any(kind == "quiet" and name == slow and "may hang" in text for kind, name, text in heard)
    info = runs.Run(tmp_path / "sweep" / TRIALS / slow).info
    assert info["status"] == "failed" and "3 s of --trial-timeout" in info["result"]["error"]
    assert runs.Run(tmp_path / "sweep" / TRIALS / quick).info["status"] == "finished"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_what_was_saved(tmp_path, number, code):
    out = tmp_path / "a"
    words = [sys.executable, "-m", "normlab", "train", "--steps", "100000", "--out", str(out)]
    for setting in ("dim=16", "num_layers=1", "num_heads=2", "batch_size=2", "evaluations=1"):
        words += ["--set", setting]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not (out / runs.READINGS).exists() or (out / runs.READINGS).stat().st_size < 2000:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code and "saved at step" in err and "Traceback" not in err
    saved = int(re.search(r"saved at step (\d+)", err)[1])
    assert (out / "checkpoint.safetensors").is_file() and runs.Run(out).info["status"] == "interrupted"
    assert max(step for step, *_ in runs.Run(out).readings()) == saved


@pytest.mark.parametrize("where", ["| head -1", "> /dev/full", ">&-", "2>&- >&-"])
def test_output_that_cannot_be_written_ends_quietly(where):
    command = f"{sys.executable} -m normlab list {where}; echo ${{PIPESTATUS[0]}} >&2"
    if "2>&-" in where:
        command = f"{sys.executable} -m normlab list {where}; exit $?"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in shown.stderr and "Exception ignored" not in shown.stderr
    if where == "> /dev/full":
        assert "standard output cannot be written" in shown.stderr and shown.stderr.strip().endswith("1")
    elif "2>&-" in where:
        assert shown.returncode == 0


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", [1, 2]),
        ('{"gain":"none","bias":false}', [{"gain": "none", "bias": False}]),
        ('{"a":[1,2]},{"a":[3,4]}', [{"a": [1, 2]}, {"a": [3, 4]}]),
        ('"a,b",c', ["a,b", "c"]),
        ("head,null", ["head", None]),
        (r'"a\",b",2', ['a",b', 2]),
        ("[a,b", ["[a", "b"]),
    ],
)
def test_values_of_an_axis_are_parsed_whole(text, values):
    assert _values(text) == values


def test_an_axis_of_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("normlab.lab.sweep.measure", lambda *_, **__: {})
    words = [
        "--norm",
        "rms",
        "--placement",
        "pre",
        "--seeds",
        "1",
        "--lr",
        "1e-2",
        "--set",
        "dim=8",
        "--set",
        "num_heads=2",
    ]
    code = cli.main(
        [
            "compare",
            "--vary",
            'norm_options={"gain":"none","eps":1e-5},{"gain":"direct","eps":1e-5}',
            *words,
            "--dry-run",
            "--out",
            str(tmp_path / "a"),
        ]
    )
    assert code == 0 and "2 cells" in capsys.readouterr().out


def test_what_the_documentation_names_can_be_reached():
    """In a process of its own: any import of the submodule would make it so."""
    shown = subprocess.run(
        [sys.executable, "-c", "import normlab; print(normlab.runs.Writer.__name__)"], capture_output=True, text=True
    )
    assert shown.stdout.strip() == "Writer", shown.stderr
