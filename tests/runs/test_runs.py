"""The run format: what was written is read, whatever happened in between."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from normlab import RunUnreadable, cli, runs

VALUES = {"loss": {"model": 2.5}, "gain_rms": {"a.norm": 1.0, "b.norm": 0.25}}


def written(folder, steps=3, **close):
    writer = runs.Writer(folder, {"config": {"dim": 8}})
    for step in range(1, steps + 1):
        writer.write(step, {q: {s: v * step for s, v in sites.items()} for q, sites in VALUES.items()})
    writer.close(**close)
    return folder


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = runs.Run(written(tmp_path / "a"))
    assert run.info["schema"] == runs.SCHEMA and run.info["status"] == "finished" and run.info["config"] == {"dim": 8}
    assert list(run.readings())[:3] == [
        (1, "loss", "model", 2.5),
        (1, "gain_rms", "a.norm", 1.0),
        (1, "gain_rms", "b.norm", 0.25),
    ]
    table = run.table()
    assert table["gain_rms"]["b.norm"].steps == [1, 2, 3]
    assert table["gain_rms"]["b.norm"].values == [0.25, 0.5, 0.75]
    assert run.series("loss")["model"].last() == 7.5
    assert set(run.table("loss")) == {"loss"}
    assert run.series("absent") == {}


def test_numbers_that_json_lacks_survive(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    writer.write(1, {"q": {"x": math.nan, "y": math.inf, "z": -math.inf}})
    writer.close()
    for line in (tmp_path / "a" / runs.READINGS).read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    values = {site: value for _, _, site, value in runs.Run(tmp_path / "a").readings()}
    assert math.isnan(values["x"]) and values["y"] == math.inf and values["z"] == -math.inf


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_last_line_is_ignored_and_cut_before_appending(tmp_path, cut):
    path = written(tmp_path / "a") / runs.READINGS
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [step for step, *_ in runs.Run(tmp_path / "a").readings()] == [1, 1, 1, 2, 2, 2] + (
        [3, 3, 3] if cut == 1 else []
    )
    writer = runs.Writer(tmp_path / "a", again=True)
    writer.write(9, {"loss": {"model": 1.0}})
    writer.close()
    assert list(runs.Run(tmp_path / "a").readings())[-1] == (9, "loss", "model", 1.0)


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = written(tmp_path / "a") / runs.READINGS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{nonsense\n" + lines[2])
    with pytest.raises(RunUnreadable, match="line 2"):
        list(runs.Run(tmp_path / "a").readings())


def test_an_unknown_schema_is_refused_politely(tmp_path):
    path = written(tmp_path / "a") / runs.INFO
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": "normlab.run/7"}))
    with pytest.raises(RunUnreadable, match=r"normlab\.run/7.*newer normlab"):
        runs.Run(tmp_path / "a")


def test_folders_without_a_run_are_refused(tmp_path):
    with pytest.raises(RunUnreadable, match="holds no run"):
        runs.Run(tmp_path)
    (tmp_path / runs.INFO).write_text("{")
    with pytest.raises(RunUnreadable, match="not valid JSON"):
        runs.Run(tmp_path)
    with pytest.raises(RunUnreadable, match="not a folder"):
        runs.find(tmp_path / "absent")


def test_an_existing_run_is_not_overwritten(tmp_path):
    written(tmp_path / "a")
    with pytest.raises(FileExistsError, match="already holds a run"):
        runs.Writer(tmp_path / "a")
    assert len(list(runs.Run(tmp_path / "a").readings())) == 9


def test_a_closed_run_takes_no_more(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    writer.close("failed", cause="why")
    writer.close()
    assert runs.Run(tmp_path / "a").info["status"] == "failed" and runs.Run(tmp_path / "a").info["cause"] == "why"
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, VALUES)


KILLED = """
import sys
from normlab.runs import Writer
writer = Writer(sys.argv[1])
step = 0
while True:
    step += 1
    writer.write(step, {"q": {f"site{i}": float(step) for i in range(50)}})
    print(step, flush=True)
"""


def test_a_killed_process_loses_nothing_it_had_written(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = 0
    while told < 200:
        told = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run = runs.Run(tmp_path / "a")
    steps = sorted({step for step, *_ in run.readings()})
    assert run.info["status"] == "running"
    assert steps[:told] == list(range(1, told + 1))


def test_many_readings_are_streamed_and_loaded(tmp_path):
    """The time is measured in the benchmark; here, that nothing is lost and streaming holds one line at a time."""
    writer = runs.Writer(tmp_path / "a")
    for step in range(2000):
        writer.write(step, {f"q{i}": {f"layers.{j}": float(step) for j in range(10)} for i in range(10)})
    writer.close()
    run = runs.Run(tmp_path / "a")
    lines = run.lines()
    assert next(lines)["step"] == 0
    lines.close()
    assert sum(len(s) for sites in run.table().values() for s in sites.values()) == 200_000


def test_export_to_csv_and_parquet(tmp_path):
    run = runs.Run(written(tmp_path / "a"))
    assert runs.export_csv(run, tmp_path / "a.csv") == 9
    rows = list(csv.reader((tmp_path / "a.csv").read_text().splitlines()))
    assert rows[0] == ["step", "probe", "site", "value"]
    assert [(int(s), p, q, float(v)) for s, p, q, v in rows[1:]] == list(run.readings())
    parquet = pytest.importorskip("pyarrow.parquet")
    assert runs.export_parquet(run, tmp_path / "a.parquet", batch=4) == 9
    table = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(zip(*table.values(), strict=True)) == list(run.readings())


def test_the_command_line_lists_shows_and_exports(tmp_path, capsys):
    written(tmp_path / "x" / "a")
    written(tmp_path / "x" / "b", status="failed")
    assert cli.main(["runs", "list", str(tmp_path / "x"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(r["status"], r["last_step"], r["readings"]) for r in listed] == [("finished", 3, 9), ("failed", 3, 9)]
    assert cli.main(["runs", "show", str(tmp_path / "x" / "a")]) == 0
    assert "gain_rms" in capsys.readouterr().out
    assert cli.main(["runs", "export", str(tmp_path / "x" / "a"), str(tmp_path / "a.csv")]) == 0
    assert "9 readings" in capsys.readouterr().out
    assert cli.main(["runs", "export", str(tmp_path / "x" / "a"), str(tmp_path / "a.xls")]) == 2
    assert cli.main(["runs", "show", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_the_clock_of_a_resumed_run_goes_on(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    time.sleep(0.05)
    writer.write(1, VALUES)
    writer.close()
    before = runs.Run(tmp_path / "a").info["seconds"]
    writer = runs.Writer(tmp_path / "a", again=True)
    writer.write(2, VALUES)
    writer.close()
    times = [line["time"] for line in runs.Run(tmp_path / "a").lines()]
    assert times[1] >= before >= times[0]


def test_a_run_goes_on_behind_a_step_and_later_lines_are_taken_back(tmp_path):
    written(tmp_path / "a", steps=5)
    before = (tmp_path / "a" / runs.READINGS).read_bytes().splitlines(keepends=True)
    (tmp_path / "a" / (runs.READINGS + ".partial")).write_text("half of an earlier try")
    writer = runs.Writer(tmp_path / "a", again=True, after=3)
    assert (tmp_path / "a" / runs.READINGS).read_bytes() == b"".join(before[:3])
    writer.event(3, "resumed", note="why")
    assert writer.sync() == (tmp_path / "a" / runs.READINGS).stat().st_size
    writer.write(4, {"loss": {"model": 9.0}})
    writer.close()
    run = runs.Run(tmp_path / "a")
    assert run.series("loss")["model"].values == [2.5, 5.0, 7.5, 9.0] and run.events()[0]["note"] == "why"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [runs.READINGS, runs.INFO]
    runs.Writer(tmp_path / "a", again=True, after=0).close()
    assert list(runs.Run(tmp_path / "a").lines()) == []
    runs.Writer(tmp_path / "b", after=7).close()
    assert list(runs.Run(tmp_path / "b").lines()) == []


def test_going_on_behind_a_step_of_a_broken_run_names_the_line_and_changes_nothing(tmp_path):
    path = written(tmp_path / "a") / runs.READINGS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\0\0\n" + lines[2])
    with pytest.raises(RunUnreadable, match="line 2"):
        runs.Writer(tmp_path / "a", again=True, after=2)
    assert path.read_bytes() == lines[0] + b"\xff\0\0\n" + lines[2]
    runs.Writer(tmp_path / "a", again=True, after=0).close()
    assert path.read_bytes() == b""


FULL = """
import resource, sys
from normlab.runs import Writer
writer = Writer(sys.argv[1])
writer.write(1, {"q": {"a": 1.0}})
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
step = 1
try:
    while True:
        step += 1
        writer.write(step, {"q": {f"site{i}": 0.5 for i in range(20)}})
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write(step, {"q": {"b": 2.0}})
del writer
"""


def test_a_line_that_did_not_fit_leaves_nothing_behind(tmp_path):
    """A real refusal of the operating system, in the middle of a line; then there is room again."""
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "a")], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    steps = [line["step"] for line in runs.Run(tmp_path / "a").lines()]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 5
    assert list(runs.Run(tmp_path / "a").readings())[-1] == (steps[-1], "q", "b", 2.0)


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(KeyError), runs.replacing(tmp_path / "file") as file:
        file.write(b"new")
        raise KeyError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]
    with runs.replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "new")]
