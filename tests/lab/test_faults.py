"""`normlab compare` as people run it, killed, interrupted, starved of disk and fed with broken files; then resumed.

What is asserted is always the same: nothing finished is lost, nothing is there twice, and the curves are those of a sweep that was
left in peace, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from normlab import answer, cli, report
from normlab.lab import Sweep
from normlab.runs import Run

GRID = ["--norm", "layer,rms", "--placement", "pre", "--lr", "1e-2", "--seeds", "2", "--workers", "2"]
SMALL = [word for setting in ("dim=16", "num_layers=1", "num_heads=2", "ffn_dim=31", "batch_size=3", "held_out=7", "evaluations=3",
                              "options={\"length\":17}") for word in ("--set", setting)]  # fmt: skip
COMPARE = ["compare", *GRID, *SMALL, "--steps", "300", "--no-report"]
DEADLINE = 120.0  # seconds until something that must happen counts as never happening


def start(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own; what it prints goes to <folder>.out and .err."""
    with open(f"{folder}.out", "ab") as out, open(f"{folder}.err", "ab") as err:
        return subprocess.Popen([sys.executable, "-m", "normlab", *arguments], stdout=out, stderr=err,
                                env={**os.environ, "OMP_NUM_THREADS": "1"},
                                # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


def resume(folder: Path, *more: str) -> list[str]:
    return ["compare", "--resume", str(folder), "--no-report", "--workers", "1", *more]


def wait_for(true, what: str) -> None:
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_of(pid: int) -> list[int]:
    """Its child processes that are workers."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = []
    for child in children:
        with contextlib.suppress(OSError):
            if b"normlab.lab.pool" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = {}
    for place in sorted((folder / "trials").iterdir()):
        found[place.name] = [(s, v) for s, probe, _, v in Run(place).readings() if probe == "loss"]
    return found


def losses(folder: Path) -> dict[str, list]:
    return {p.name: Run(p).info["result"]["curve"] for p in (folder / "trials").iterdir()}


def assert_whole(folder: Path, undisturbed: Path) -> None:
    """Every trial once, finished, no reading twice, all numbers those of the undisturbed sweep."""
    assert Sweep.read(folder).axes == Sweep.read(undisturbed).axes
    names = [p.name for p in (undisturbed / "trials").iterdir()]
    assert sorted(names) == sorted(p.name for p in (folder / "trials").iterdir())
    for name in names:
        run = Run(folder / "trials" / name)
        assert run.info["status"] == "finished", name
        twice = [key for key, n in Counter((s, p, site) for s, p, site, _ in run.readings()).items() if n > 1]
        assert not twice, (name, twice[:3])
        assert not list((folder / "trials" / name).glob("checkpoint*")), "a finished trial needs none"
    mine, theirs = curves(folder), curves(undisturbed)
    assert mine == theirs and all([s for s, _ in c] == list(range(1, len(c) + 1)) for c in mine.values())
    assert losses(folder) == losses(undisturbed)
    summary = json.loads((folder / "summary.json").read_text())
    assert Counter(t["name"] for t in summary["trials"]) == Counter(names)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    assert start([*COMPARE, "--out", str(folder)], folder).wait(DEADLINE) == 0
    assert all(len(c) == 300 for c in curves(folder).values()) and len(curves(folder)) == 4
    return folder


# ---- kills -----------------------------------------------------------------------------------------------------------


def training(folder: Path, workers: list[int]) -> bool:
    """Is one of these workers at a trial?"""
    locks = [lock.read_text() for lock in folder.glob("trials/*/lock")]
    return any(str(pid) in locks for pid in workers)


def assert_answers(folder: Path) -> None:
    """At any moment: an answer and a page of what has ended."""
    found, page = answer.read(folder), report.view(folder)
    ended = [p for p in folder.glob("trials/*/run.json") if json.loads(p.read_text())["status"] == "finished"]
    assert len(found.trials) == len(ended) == page["ended"] and page["kind"] == "sweep"
    assert found.planned >= len(ended) and (
        found.complete or len(ended) == 0 or "Partial answer" in found.verdict.en[0]
    )


def storm(
    folder: Path, kills: int, seed: int, undisturbed: Path, command: list[str], growth: tuple[str, ...] = ()
) -> int:
    """Kill a worker, or the parent, at random moments; resume whenever the sweep has ended, after half of the kills with ``growth``; at last
    let it finish. How many trials went on from a checkpoint.
    """
    draw = random.Random(seed)
    process = start([*command, "--out", str(folder), "--checkpoint-seconds", "0"], folder)
    wait_for((folder / "sweep.json").exists, "sweep.json")
    killed: Counter[str] = Counter()
    ever: set[int] = set()
    while sum(killed.values()) < kills:
        if draw.random() < 0.5:  # any time: a worker that starts, that loads, that waits
            time.sleep(draw.uniform(0.05, 0.8))
        else:
            wait_for(lambda p=process: training(folder, workers_of(p.pid)) or p.poll() is not None, "a trial that runs")
            time.sleep(draw.uniform(0.0, 0.2))
        if process.poll() is not None:
            if process.returncode == 0:  # all done on a fast machine: give it something to do again
                for place in draw.sample(sorted((folder / "trials").iterdir()), 2):
                    shutil.rmtree(place)
            grows = growth if sum(killed.values()) >= kills // 2 else ()
            process = start(resume(folder, "--checkpoint-seconds", "0", "--workers", "2", *grows), folder)
            continue
        workers = workers_of(process.pid)
        ever.update(workers)
        never = sum(killed.values()) == kills - 1 and not killed["parent"]  # the last chance to see what orphans do
        if not workers or draw.random() < 0.2 or never:
            process.kill()
            process.wait()
            killed["parent"] += 1
            wait_for(lambda w=workers: not any(map(alive, w)), f"orphaned workers {workers} must go by themselves")
            assert_answers(folder)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
    process.kill()
    process.wait()
    assert killed["parent"] and killed["worker"], killed
    assert start(resume(folder, *growth), folder).wait(5 * DEADLINE) == 0, Path(f"{folder}.err").read_text()[-2000:]
    wait_for(lambda: not any(map(alive, ever)), "workers left behind")
    assert_whole(folder, undisturbed)
    went_on = [
        e["note"] for name in curves(folder) for e in Run(folder / "trials" / name).events() if e["event"] == "resumed"
    ]
    return len([note for note in went_on if note != "from step 0"])


# Begun with one seed for every rate and one more for the best; then it grows by two seeds for the best and by a cell.
STAGED = [*COMPARE, "--norm", "layer", "--lr", "1e-3,1e-2", "--seeds", "1+1"]
GROWTH = ("--seeds", "1+3", "--norm", "+rms")


@pytest.mark.parametrize(("kills", "least"), [(8, 1), pytest.param(20, 4, marks=pytest.mark.nightly)])
def test_kills_in_a_row_change_nothing_of_a_sweep_that_grows(tmp_path, kills, least):
    peaceful = tmp_path / "peaceful"
    assert start([*STAGED, "--out", str(peaceful)], peaceful).wait(DEADLINE) == 0
    assert len(curves(peaceful)) == 2 + 1
    assert start(resume(peaceful, *GROWTH), peaceful).wait(DEADLINE) == 0
    assert len(curves(peaceful)) == 2 * (2 + 3), Path(f"{peaceful}.out").read_text()
    hit = storm(tmp_path / "sweep", kills, 20261116, peaceful, STAGED, GROWTH)
    assert hit >= least, "few kills hit a trial: little was shown"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_many_more_kills_change_nothing(tmp_path, seed):
    command = [
        *COMPARE,
        "--norm",
        "layer,batch,rms",
        "--placement",
        "pre,post",
        "--set",
        "dropout=0.1",
        "--steps",
        "900",
    ]
    peaceful = tmp_path / "peaceful"
    assert start([*command, "--out", str(peaceful)], peaceful).wait(600) == 0
    assert storm(tmp_path / "sweep", 60, seed, peaceful, command) >= 12


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_many_more_kills_change_nothing_of_a_sweep_that_grows(tmp_path, seed):
    command = [
        *COMPARE,
        "--norm",
        "layer,batch",
        "--placement",
        "pre,post",
        "--lr",
        "1e-3,1e-2,3",
        "--seeds",
        "3+2",
        "--steps",
        "500",
    ]
    growth = ("--seeds", "7", "--lr", "+3e-2", "--norm", "+rms")
    peaceful = tmp_path / "peaceful"
    assert start([*command, "--out", str(peaceful)], peaceful).wait(600) == 0
    assert start(resume(peaceful, *growth), peaceful).wait(600) == 0
    assert storm(tmp_path / "sweep", 60, seed, peaceful, command, growth) >= 12


# ---- Ctrl-C, a second sweep, broken files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> dict:
    """A sweep that was interrupted by Ctrl-C while two trials ran; a second sweep had tried to enter its folder."""
    folder = tmp_path_factory.mktemp("interrupted") / "sweep"
    # What is saved is saved by the interruption.
    process = start([*COMPARE, "--out", str(folder), "--checkpoint-seconds", "1000"], folder)

    def begun() -> list[int]:
        assert process.poll() is None, Path(f"{folder}.err").read_text()
        lengths = [len(p.read_text().splitlines()) for p in folder.glob("trials/*/readings.jsonl")]
        return [n for n in lengths if n > 10]

    wait_for(begun, "a trial that trains")
    workers = workers_of(process.pid)
    for pid in (*workers, process.pid):  # nothing ends while the second comes
        os.kill(pid, signal.SIGSTOP)
    second = subprocess.run(
        [sys.executable, "-m", "normlab", *resume(folder)], capture_output=True, text=True, timeout=DEADLINE
    )
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    code = process.wait(DEADLINE)
    return {"folder": folder, "code": code, "pid": process.pid, "workers": workers, "second": second,
            "alive": [w for w in workers if alive(w)]}  # fmt: skip


def test_ctrl_c_saves_says_how_to_go_on_and_leaves_no_worker(interrupted, undisturbed):
    folder = interrupted["folder"]
    said = Path(f"{folder}.err").read_text()
    assert interrupted["code"] == 130 and "Traceback" not in said
    assert f"normlab compare --resume {folder}" in said
    assert len(interrupted["workers"]) == 2 and interrupted["alive"] == []
    statuses = Counter(Run(p).info["status"] for p in (folder / "trials").iterdir())
    assert set(statuses) <= {"interrupted", "finished"} and statuses["interrupted"] >= 1, statuses


def test_a_second_sweep_in_the_folder_is_refused_by_name_of_the_first(interrupted):
    second = interrupted["second"]
    assert second.returncode == 1 and str(interrupted["pid"]) in second.stderr and "Traceback" not in second.stderr


def test_what_was_interrupted_goes_on_to_the_same_end(interrupted, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(interrupted["folder"], folder)
    assert start(resume(folder), folder).wait(DEADLINE) == 0
    assert_whole(folder, undisturbed)
    notes = [e["note"] for p in (folder / "trials").iterdir() for e in Run(p).events()]
    assert notes and all(n.startswith("from step ") and n != "from step 0" for n in notes)


def test_torn_lines_half_a_checkpoint_and_garbage_are_survived(interrupted, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(interrupted["folder"], folder)
    held = sorted(p for p in (folder / "trials").iterdir() if Run(p).info["status"] == "interrupted")
    with open(held[0] / "readings.jsonl", "ab") as file:
        file.write(b'{"step":299,"time":3.2,"values":{"loss":{"mod')
    checkpoint = held[-1] / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])
    (held[-1] / "checkpoint.safetensors.partial").write_bytes(b"\x00" * 99)
    other = next((p for p in sorted((folder / "trials").iterdir()) if p not in held), None)
    if other is None:  # not begun when Ctrl-C came
        begun = {p.name for p in (folder / "trials").iterdir()}
        other = folder / "trials" / next(t.name for t in Sweep.read(folder).trials() if t.name not in begun)
        other.mkdir()
    (other / "run.json").write_bytes(b"\xff\xfe not JSON at all \x00")
    assert start(resume(folder), folder).wait(DEADLINE) == 0, Path(f"{folder}.err").read_text()[-2000:]
    for leftover in folder.glob("trials/*/checkpoint.safetensors.partial"):
        leftover.unlink()
    assert_whole(folder, undisturbed)
    assert any("from the start" in e.get("note", "") for e in Run(held[-1]).events())


# ---- the disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_and_a_read_only_one_lose_nothing(small_disk, undisturbed):
    folder = small_disk / "sweep"
    aside = small_disk.with_name("log")  # what the command prints is not on the disk that fills up
    process = start([*COMPARE, "--out", str(folder), "--checkpoint-seconds", "0"], aside)
    wait_for(lambda: b"1/4 " in Path(f"{aside}.out").read_bytes(), "the first trial")
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(b"\x00" * 4096)
    assert process.wait(DEADLINE) == 1
    said = Path(f"{aside}.err").read_text()
    assert "No space left on device" in said and f"--resume {folder}" in said and "Traceback" not in said
    kept = {p.parent.name: p.read_bytes() for p in folder.glob("trials/*/run.json") if b'"finished"' in p.read_bytes()}
    assert kept

    (small_disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    read_only = subprocess.run([sys.executable, "-m", "normlab", *resume(folder)], capture_output=True, text=True)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert read_only.returncode == 1 and "Read-only file system" in read_only.stderr and str(folder) in read_only.stderr
    assert "Traceback" not in read_only.stderr

    assert start(resume(folder), aside).wait(DEADLINE) == 0
    assert {name: (folder / "trials" / name / "run.json").read_bytes() for name in kept} == kept
    assert_whole(folder, undisturbed)


@pytest.mark.parametrize("place", ["/proc/normlab", "file/sweep"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    assert cli.main([*COMPARE, "--out", place]) == 1
    said = capsys.readouterr().err
    assert f"{place} cannot be written" in said and len(said.splitlines()) == 1
    assert Path("file").read_text() == "mine"


# ---- what the user brings --------------------------------------------------------------------------------------------

MINE = """
import torch
from torch import nn

print("loaded")

def make_model(norm="good"):
    if norm == "raises":
        raise ArithmeticError("no such model")
    model = nn.Linear(7, 3)
    model.norm = norm
    return model

def make_data(seed):
    g = torch.Generator().manual_seed(seed % 1000)
    for _ in range(3):  # a loader that ends long before the steps do
        x = torch.randn(5, 7, generator=g)
        yield x, x[:, :3].argmax(1)

def make_empty(seed):
    return iter(())

def make_loss(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss * float("nan") if model.norm == "breaks" and float(loss.detach()) < 1.4 else loss
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return ["compare", "--model", "mine:make_model", "--loss", "mine:make_loss", "--steps", "30", "--lr", "0.05", "--seeds", "2",
            "--no-report", "--json", "--workers", "1"]  # fmt: skip


def test_a_factory_that_raises_fails_its_trials_alone(mine, capsys):
    assert cli.main([*mine, "--data", "mine:make_data", "--norm", "good,raises,breaks", "--out", "s"]) == 1
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    outcomes = {t["name"]: t["outcome"] for t in summary["trials"]}
    assert {n: o for n, o in outcomes.items() if "good" not in n} == {
        "raises-lr0.05-seed0": "failed", "raises-lr0.05-seed1": "failed", "breaks-lr0.05-seed0": "diverged",
        "breaks-lr0.05-seed1": "diverged"}  # fmt: skip
    assert all(outcomes[f"good-lr0.05-seed{s}"] in ("trained", "untrained", "collapsed") for s in (0, 1))
    for seed in (0, 1):
        name = f"raises-lr0.05-seed{seed}"
        assert f"failed: {name}: ArithmeticError: no such model" in shown.err
        assert "make_model" in Run(f"s/trials/{name}").info["traceback"]
        good = Run(f"s/trials/good-lr0.05-seed{seed}").series("loss")["model"].values
        assert len(good) == 30 and good[-1] < good[0]  # it went on with the next pass over the loader
    assert summary["complete"] is False


def test_a_loss_that_is_no_number_is_a_result_and_no_failure(mine, capsys):
    assert cli.main([*mine, "--data", "mine:make_data", "--norm", "breaks,good", "--out", "s"]) == 0
    summary = json.loads(capsys.readouterr().out)
    broken = [t for t in summary["trials"] if t["cell"] == "breaks"]
    assert [t["outcome"] for t in broken] == ["diverged"] * 2 and all(t["diverged_at"] >= 1 for t in broken)
    assert all("at step" in t["cause"] for t in broken) and summary["complete"] is True


def test_a_loader_without_data_fails_with_words(mine, capsys):
    assert cli.main([*mine, "--data", "mine:make_empty", "--norm", "good", "--seeds", "1", "--out", "s"]) == 1
    assert "yielded no batch" in capsys.readouterr().err


# ---- many trials -----------------------------------------------------------------------------------------------------


def many(count: int) -> list[str]:
    """A grid of this many trials of two steps."""
    rates = ",".join(f"{1e-4 * (1 + i):.6g}" for i in range(10))
    tiny = [w for s in ("dim=8", "num_layers=1", "num_heads=1", "ffn_dim=8", "batch_size=2", "held_out=2", "watch=none",
                        "evaluations=1", "options={\"length\":5}") for w in ("--set", s)]  # fmt: skip
    return ["compare", "--norm", "layer,rms", "--placement", "pre,post", "--lr", rates, "--seeds", str(count // 40), "--steps", "2",
            *tiny, "--no-report", "--workers", "2"]  # fmt: skip


def test_two_thousand_finished_trials_leave_nothing_to_do(tmp_path, capsys):
    from normlab.lab import checked, plan

    folder = tmp_path / "sweep"
    arguments = cli.build_parser().parse_args(many(2000))
    sweep = checked(cli.compare._sweep(arguments))
    plan(sweep, folder, 2, estimate=False)
    trials = sweep.trials()
    assert len(trials) == 2000
    draw = random.Random(7)
    for trial in trials:
        place = folder / "trials" / trial.name
        place.mkdir(parents=True)
        loss = 3 + draw.random()
        result = {
            "outcome": "trained",
            "steps": 2,
            "loss": loss,
            "curve": [[2, loss]],
            "seconds": 0.1,
            "first_loss": 5.0,
        }
        info = {"schema": "normlab.run/1", "status": "finished", "experiment": trial.experiment.to_dict(), "result": result,
                "task": {"name": "text", "unit": "nats per byte", "blind": 4.5}}  # fmt: skip
        (place / "run.json").write_text(json.dumps(info))
    assert cli.main(["compare", "--resume", str(folder), "--no-report", "--json"]) == 0
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    assert len(summary["trials"]) == 2000 and summary["complete"] is True
    assert "2000 are finished and stay as they are" in shown.err and "\n1/" not in shown.err


def resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


@pytest.mark.nightly
def test_memory_stays_flat_over_two_thousand_trials(tmp_path):
    folder = tmp_path / "sweep"
    process = start([*many(2000), "--out", str(folder)], folder)
    marks: dict[int, dict[int, int]] = {}  # trials ended: pid: kilobytes
    while process.poll() is None:
        ended = Path(f"{folder}.out").read_text().count(" left\n")
        pids = [process.pid, *workers_of(process.pid)]
        if ended >= 200 and len(pids) == 3:
            marks[ended] = {pid: resident(pid) for pid in pids}
        time.sleep(0.2)
    assert process.returncode == 0, Path(f"{folder}.err").read_text()[-2000:]
    first, last = marks[min(marks)], marks[max(m for m in marks if m < 1990)]
    assert max(marks) > 1800 and first.keys() == last.keys()  # the same workers all along
    growth = {pid: last[pid] / first[pid] - 1 for pid in first}
    print(f"memory from {min(marks)} to {max(marks)} trials: {first} -> {last} kB, growth {growth}")
    assert max(growth.values()) < 0.15, growth
