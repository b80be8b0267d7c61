"""The command line: help with examples, suggestions, exit codes, one clear line for every mistake, JSON alone where asked for."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normlab import cli
from normlab.lab import Experiment, Sweep, plan

TINY = [w for s in ("dim=16", "num_layers=1", "num_heads=2", "ffn_dim=31", "batch_size=3", "held_out=5", "watch=none", "evaluations=2",
                    "options={\"length\":11}") for w in ("--set", s)]  # fmt: skip
COMPARE = [
    "compare",
    "--norm",
    "layer,rms",
    "--placement",
    "pre",
    "--lr",
    "1e-2",
    "--seeds",
    "1",
    "--steps",
    "8",
    "--no-report",
    "--workers",
    "1",
    *TINY,
]


def parsers(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], argparse.ArgumentParser]:
    """Every verb and verb of a verb."""
    found = {path: parser} if path else {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found.update(parsers(inner, (*path, name)))
    return found


VERBS = parsers(cli.build_parser())


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(list(arguments))
    except SystemExit as stopped:
        code = stopped.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def real(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "normlab", *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, **more)  # fmt: skip


# ---- help, suggestions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example_that_parses(capsys, verb):
    code, out, _ = run(capsys, *verb, "--help")
    assert code == 0
    examples = re.findall(r"normlab " + verb[0] + r"[^\n]*", out[out.index("example") :])
    assert examples or verb == ("runs",)
    for example in examples:
        words = re.split(r"  +|; | >> ", " ".join(example.split(" ")[1:]))[0].split()
        cli.build_parser().parse_args(words)


def test_the_list_of_examples_names_every_verb():
    listed = {line.split()[1] for line in cli.EXAMPLES.splitlines()[1:] if line.strip()}
    assert listed == {verb[0] for verb in VERBS}


def test_every_verb_that_prints_data_can_print_json():
    no_data = {("runs",), ("runs", "export"), ("completion",), ("explore",), ("serve",)}
    with_json = {verb for verb, parser in VERBS.items() if "--json" in parser._option_string_actions}
    assert with_json == set(VERBS) - no_data


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["compare", "--plcement", "pre"], "--placement"),
        (["compare", "--sedes=3"], "--seeds"),
        (["train", "--stesp", "3"], "--steps"),
        (["runs", "show", "a", "--jsn"], "--json"),
        (["compar"], "'compare'"),
        (["diagnos", "a"], "'diagnose'"),
        (["runs", "shwo", "a"], "'show'"),
        (["compare", "--engine", "rya"], "'ray'"),
        (["completion", "bsh"], "'bash'"),
    ],
)
def test_what_is_misspelt_is_suggested_in_one_line(capsys, words, near):
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and f"did you mean {near}?" in err and len(err.splitlines()) == 1


def test_no_verb_is_an_error_and_version_is_not(capsys):
    assert run(capsys)[0] == 2
    code, out, _ = run(capsys, "--version")
    assert code == 0 and out.startswith("normlab ")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_verbs_and_options(capsys, tmp_path, shell):
    pytest.importorskip("shtab")
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0 and "compare" in out and "--placement" in out
    if shutil.which(shell):
        (tmp_path / "script").write_text(out)
        assert subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True).stderr == ""


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "--lr abc": "--lr needs numbers",
    "--lr 1e-3,": "--lr needs numbers",
    "--lr nan": "lr must be",
    "--lr 0": "lr must be",
    "--lr 1e-3,1e-3": "names a value twice",
    "--seeds 0": "--seeds must be at least 1",
    "--seeds three": "as 3 or as 3+2, got 'three'",
    "--workers 0": "--workers must be at least 1",
    "--vary x": "--vary needs NAME=VALUE",
    "--vary nmu_layers=1,2": "Did you mean 'num_layers'",
    "--vary num_layers=1,two": "num_layers must be a number",
    "--vary norm=layer": "--norm",
    "--vary task=text,docs": "cannot be compared",
    "--set foo=1": "unknown setting 'foo'",
    "--set dim": "--set needs NAME=VALUE",
    "--set dim=wide": "dim must be a number",
    "--set dim=17": "does not divide dim=17",
    "--set seed=3": "--seeds",
    "--set dim=8 --set dim=16": "names dim twice",
    "--set dim=8 --vary dim=8,16": "either --set or --vary",
    "--set schedule=cosin": "Did you mean 'cosine'",
    "--norm lyaer": "Did you mean 'layer'",
    "--norm layer,lyaer": "Did you mean 'layer'",
    "--norm layer,": "unknown norm ''",
    "--norm instance": "no cell of this sweep can be built",
    "--placement foo": "unknown placement 'foo'. Known: ",
    "--placement pots": "Did you mean 'post'",
    "--task foo": "unknown task 'foo'",
    "--task dosc": "Did you mean 'docs'",
    "--text missing.txt": "missing.txt",
    "--text short.txt": "too few",
    "--text note.txt --task docs": "files belong to",
    "--model mine:make": "both --model and --data",
    "--data mine:make": "both --model and --data",
    "--model nowhere:make --data nowhere:data": "cannot load nowhere:make",
    "--model mine --data mine:data": "MODULE:NAME",
    "--model mine:make --data mine:missing": "cannot load mine:missing",
    "--model mine:make --data mine:data --placement pre": "no argument 'placement'",
    "--resume empty": "holds no sweep",
    "--resume nowhere": "holds no sweep",
    "--resume held --norm layer": "to add to it write --norm +layer",
    "--resume held --text short.txt --set dim=3": "leave --text, --set out",
    "--baseline foo": "none of the cells",
    "--address auto": "--engine ray",
    "--steps 0": "steps must be",
    "--steps -5": "steps must be",
    "--checkpoint-seconds -1": "--checkpoint-seconds must be at least 0",
    "--checkpoint-seconds nan": "--checkpoint-seconds must be at least 0",
    "--engine slurm": "invalid choice: 'slurm'",
    "--out held": "holds another sweep",
    "--out full": "not empty and holds no sweep",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_gives_exit_code_2_and_one_clear_line_and_changes_nothing(capsys, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("too short to learn from")
    Path("mine.py").write_text("def make(norm): ...\ndef data(seed): ...\n")
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("x")
    plan(Sweep(base=Experiment(steps=9), axes={"norm": ["layer"]}), "held", 1, estimate=False)
    before = sorted(str(p) for p in tmp_path.rglob("*") if "__pycache__" not in str(p))
    code, out, err = run(capsys, "compare", *options.split(" "))
    assert (code, out) == (2, ""), err
    assert err.startswith("normlab compare: ") and MISTAKES[options] in err and len(err.splitlines()) == 1
    assert sorted(str(p) for p in tmp_path.rglob("*") if "__pycache__" not in str(p)) == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", "missing.toml"], 1),
        (["train", "--lr", "-1"], 2),
        (["train", "--norm", "lyaer"], 2),
        (["train", "--set", "foo=1"], 2),
        (["train", "broken.toml"], 2),
        (["report", "nowhere"], 1),
        (["diagnose", "nowhere"], 1),
        (["runs", "show", "nowhere"], 1),
        (["runs", "list", "nowhere"], 1),
        (["runs", "export", "nowhere", "a.xls"], 2),
        (["lr-range", "--model", "a:b"], 2),
        (["bench", "--threads", "0"], 2),
        (["numerics", "--write", "nowhere"], 2),
        (["train", "--show", "--norm", "lyaer"], 2),
        (["train", "--show", "--placement", "pree"], 2),
        (["train", "--show", "--task", "txt"], 2),
        (["train", "--show", "--set", "num_heads=7"], 2),
        (["train", "--show", "--text", "nowhere.txt"], 1),
    ],
)
def test_mistakes_of_the_other_verbs(capsys, tmp_path, monkeypatch, words, code):
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("norm = ")
    found, out, err = run(capsys, *words)
    assert found == code and out == "" and err.startswith(f"normlab {words[0]}") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diagnose", "a.txt"], "a.txt is not a folder"),
        (["diagnose", "a.txt/b"], "a.txt/b is not a folder"),
        (["explore", "-o", "b"], "b: is a folder; name a file in it"),
        (["serve", "b", "--host", "no.such.host.invalid"], "--host no.such.host.invalid: "),
        (["serve", "b", "--host", "192.0.2.1"], "--host 192.0.2.1: "),
        (["serve", "b", "--host", "a..b"], "--host a..b: "),
    ],
)
def test_a_mistake_is_named_as_what_it_is(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").touch()
    Path("b").mkdir()
    code, out, err = run(capsys, *words)
    assert code in (1, 2) and out == "" and err.startswith(f"normlab {words[0]}: {said}") and len(err.splitlines()) == 1
    assert "--port" not in err
    assert not any(Path("b").iterdir())


@pytest.mark.parametrize("variable", ["NORMLAB_KERNEL", "NORMLAB_ISA", "NORMLAB_HUGE_PAGES"])
def test_a_setting_that_means_nothing_is_one_line(variable):
    """In a process of its own: they are read once, when the kernels are loaded."""
    done = subprocess.run([sys.executable, "-m", "normlab", "list"], env={**os.environ, variable: "foo"}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"normlab: {variable}: ") and done.stderr.count("\n") == 1 and "foo" in done.stderr


# ---- compare ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_happen_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, *COMPARE, "--norm", "layer,rms,instance", "--seeds", "3", "--dry-run")
    assert code == 0 and "2 cells x 1 rates x 3 seeds = 6 trials of 8 steps" in out
    assert "refused: instance/pre" in out and "estimated time" in out
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_lines_are_plain_and_with_json_standard_output_is_json(tmp_path):
    shown = real(*COMPARE, "--out", "a", cwd=tmp_path)
    assert shown.returncode == 0 and "\x1b" not in shown.stdout
    ended = [line for line in shown.stdout.splitlines() if re.match(r"[12]/2 (layer|rms)-pre-lr0.01-seed0: ", line)]
    assert len(ended) == 2 and "folder: a" in shown.stdout and "layer/pre" in shown.stdout

    again = real("compare", "--resume", "a", "--no-report", "--json", cwd=tmp_path)
    summary = json.loads(again.stdout)
    assert again.returncode == 0 and summary["schema"] == "normlab.summary/1"
    assert {t["name"] for t in summary["trials"]} == {"layer-pre-lr0.01-seed0", "rms-pre-lr0.01-seed0"}
    assert summary == json.loads((tmp_path / "a/summary.json").read_text())
    assert "2 are finished and stay as they are" in again.stderr


def test_under_a_terminal_bars_are_drawn_and_put_away(tmp_path):
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "normlab", *COMPARE, "--steps", "200", "--out", "a"], stdin=child, stdout=child,
                               stderr=child, cwd=tmp_path, env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"})  # fmt: skip
    os.close(child)
    seen = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:  # what Linux gives for the end of a terminal
            break
        if not data:
            break
        seen += data
    os.close(parent)
    text = seen.decode()
    assert process.wait() == 0, text[-2000:]
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert re.search(r"trials.*━.*2/2", text) and "layer-pre-lr0.01-seed0" in text
    assert "Traceback" not in text and "rms/pre" in text[text.rindex("\x1b[?25h") :]


def test_the_same_command_again_resumes_and_a_baseline_is_taken(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [*COMPARE, "--out", "a", "--baseline", "rms/pre", "--json"]
    first, again = (run(capsys, *command) for _ in range(2))
    assert first[0] == again[0] == 0 and json.loads(first[1])["baseline"] == "rms/pre"
    assert json.loads(first[1]) == json.loads(again[1]) and "2 are finished" in again[2]


def test_a_reader_that_has_left_ends_the_command_quietly():
    command = f"{sys.executable} -m normlab list | true; exit ${{PIPESTATUS[0]}}"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout, shown.stderr) == (1, "", "")


def test_varied_widths_take_the_inner_width_with_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [w for s in ("num_layers=1", "num_heads=2", "batch_size=2", "held_out=2", "watch=none", "evaluations=1")
             for w in ("--set", s)]  # fmt: skip
    assert run(capsys, "compare", "--norm", "layer", "--placement", "pre", "--lr", "0.01", "--seeds", "1", "--steps", "1",
               "--vary", "dim=8,12", *sizes, "--workers", "1", "--out", "a", "--json")[0] == 0  # fmt: skip
    models = [json.loads(path.read_text())["model"] for path in Path("a").rglob("run.json")]
    assert sorted((m["dim"], m["ffn_dim"]) for m in models) == [(8, 32), (12, 48)]


def test_the_pace_of_a_training_is_said_every_two_seconds(capsys, monkeypatch):
    from normlab.cli import train as verb

    clock = iter([10.0, 10.5, 12.5, 13.0, 20.5])
    monkeypatch.setattr(verb.time, "monotonic", lambda: next(clock))
    said = verb.Pace(Experiment(steps=40, lr=1e-2, warmup=0.0, schedule="constant"))
    for step in (1, 2, 6, 7, 40):
        said.step(step, 2.5)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "step 6/40, loss 2.5000, rate 0.01, 2 steps/s, 17 s left"  # 5 steps in 2.5 s
    assert last == "step 40/40, loss 2.5000, rate 0.01, 4.25 steps/s"


def test_a_misspelt_name_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text('norm = "rmss"\n')
    for words, near in (
        (["--norm", "rmss"], "rms"),
        (["e.toml"], "rms"),
        (["--placement", "pree"], "pre"),
        (["--task", "dat"], "dates"),
    ):
        code, _, err = run(capsys, "train", *words, "--out", "a")
        assert code == 2 and near in err and err.count("\n") == 1 and not (tmp_path / "a").exists()


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_takes_a_file_and_options_and_shows_what_it_would_do(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, toml, _ = run(capsys, "train", "--norm", "rms", "--steps", "6", *TINY, "--show")
    assert code == 0 and list(tmp_path.iterdir()) == []
    Path("experiment.toml").write_text(toml)
    assert Experiment.read("experiment.toml").norm == "rms"
    code, out, err = run(capsys, "train", "experiment.toml", "--lr", "0.02", "--out", "a", "--json")
    result = json.loads(out)
    assert code == 0 and result["steps"] == 6 and "step 6/6" in err
    info = json.loads(Path("a/run.json").read_text())
    assert info["experiment"]["lr"] == 0.02 and info["experiment"]["norm"] == "rms" and info["status"] == "finished"
    code, out, err = run(capsys, "train", "experiment.toml", "--lr", "0.03", "--out", "a")
    assert code == 2 and "lr differ" in err  # another experiment in the same folder
