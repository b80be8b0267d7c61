"""The pool with real processes: same bits as in one process, workers that stay, and workers that die in every way."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from normlab.lab import Experiment, Pool, Sweep, train
from normlab.lab import pool as pool_module
from normlab.lab.pool import WorkerFailed
from normlab.lab.sweep import Trial
from normlab.lab.work import Work
from normlab.runs import Result, Run

MODEL = {"dim": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 31}
TINY = Experiment(steps=9, batch_size=3, held_out=5, evaluations=2, watch="none", model=MODEL)

# A model and data of the user's, which misbehave as told by the name of the norm. Batches carry their number.
MINE = """
import os, pathlib, sys, time
import torch
from torch import nn

def make_model(norm="good"):
    print("a line on standard output", flush=True)
    os.write(1, b"and one below Python\\n")
    if norm == "reads":
        assert sys.stdin.read() == ""
    if norm == "leaves":
        os._exit(3)
    if norm == "exits":
        raise SystemExit("enough")
    if norm == "raises":
        raise ArithmeticError("no such model")
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Dropout(0.1), nn.Linear(13, 3))
    model.norm = norm
    return model

def make_data(seed):
    g = torch.Generator().manual_seed(seed % 1000)
    for number in range(1, 12):
        x = torch.randn(5, 7, generator=g)
        yield {"x": x, "y": x[:, :3].argmax(1), "number": number}

def make_loss(model, batch):
    deaths = pathlib.Path(f"{model.norm}-deaths")
    died = len(deaths.read_text()) if deaths.exists() else 0
    if model.norm.startswith("dies") and model.training and batch["number"] == 6 and died < int(model.norm[4:]):
        deaths.write_text("x" * (died + 1))
        os.kill(os.getpid(), 9)
    if model.norm == "slow" and model.training:
        time.sleep(0.05)
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An experiment with a model of the user's; the working folder also holds what must not pass for Python's own modules."""
    (tmp_path / "mine.py").write_text(MINE)
    for name in ("random", "typing", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the module you look for')\n")
    monkeypatch.chdir(tmp_path)
    return Experiment(task="own", make_model="mine:make_model", make_data="mine:make_data", make_loss="mine:make_loss",
                      steps=11, evaluations=2, watch="none")  # fmt: skip


class Heard:
    """What the pool told, and results by trial."""

    def __init__(self, react=lambda *_: None):
        self.kinds: list[tuple[str, str]] = []
        self.results: dict[str, Result] = {}
        self.lost: list[str] = []
        self.react = react

    def __call__(self, kind, trial, message):
        self.kinds.append((kind, trial.name))
        if kind == "ended":
            self.results[trial.name] = message.result
        if kind == "lost":
            self.lost.append(message.reason)
        self.react(kind, trial, message)


def pid_of(folder: Path, trial: Trial) -> int:
    return int((folder / "trials" / trial.name / "lock").read_text())


def gone(pid: int) -> bool:
    """Ended; one that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def curve(folder: Path) -> list[tuple[int, float]]:
    return [(step, value) for step, probe, _, value in Run(folder).readings() if probe == "loss"]


def trials_of(base: Experiment, **axes) -> list[Trial]:
    return Sweep(base=base, axes=axes).trials()


EXACT = ("outcome", "steps", "loss", "loss_half_width", "train_loss", "first_loss", "curve", "parameters")


def test_results_are_those_of_one_process_bit_for_bit_and_workers_stay(tmp_path):
    trials = trials_of(TINY, norm=["layer", "rms", "batch"], lr=[1e-3, 1e-2], seed=[0, 1])
    heard = Heard()
    Pool(2).run(tmp_path, trials, heard)
    told = [kind for kind, _ in heard.kinds if kind != "step"]  # steps are told of as time passes
    assert heard.results.keys() == {t.name for t in trials} and len(told) == 2 * len(trials)
    pids = {pid_of(tmp_path, t) for t in trials}
    assert len(pids) == 2 and os.getpid() not in pids and all(gone(p) for p in pids)
    for trial in trials[:3]:
        alone = train(trial.experiment, tmp_path / "alone" / trial.name)
        assert [getattr(heard.results[trial.name], k) for k in EXACT] == [getattr(alone, k) for k in EXACT]
        assert curve(tmp_path / "trials" / trial.name) == curve(tmp_path / "alone" / trial.name)
        assert len(curve(tmp_path / "alone" / trial.name)) == TINY.steps


def test_workers_are_told_what_was_measured_of_their_cell(tmp_path):
    """layer was measured, rms was not. The share of the machine's rate follows from the step's arithmetic and the time it took."""
    trials = trials_of(TINY, norm=["layer", "rms"])
    work = Work(step_seconds=1.0, evaluation_seconds=1.0, flops_per_step=3e9, matmul_rate=7e9)
    heard = Heard()
    Pool(1, work={trials[0].cell: work}).run(tmp_path, trials, heard)
    measured, other = (heard.results[t.name] for t in trials)
    assert measured.matmul_share == pytest.approx(TINY.steps * 3e9 / 7e9 / measured.training_seconds, rel=1e-2)
    assert other.matmul_share is None


def test_what_the_users_code_prints_reads_or_raises_stays_apart(tmp_path, mine, capfd):
    """Prints do not break the protocol, standard input is empty and not the orders, a factory that raises fails its trial alone."""
    trials = trials_of(mine, norm=["good", "reads", "raises"], seed=[0, 1])
    heard = Heard()
    Pool(1).run(tmp_path, trials, heard)
    outcomes = {name: r.outcome for name, r in heard.results.items()}
    assert {n: o for n, o in outcomes.items() if "raises" not in n} == {
        f"{norm}-lr0.001-seed{seed}": outcomes["good-lr0.001-seed0"] for norm in ("good", "reads") for seed in (0, 1)
    }
    assert outcomes["good-lr0.001-seed0"] != "failed" and not heard.lost
    assert len({pid_of(tmp_path, t) for t in trials}) == 1  # raising cost no worker
    for seed in (0, 1):
        name = f"raises-lr0.001-seed{seed}"
        assert heard.results[name] == Result(outcome="failed", error="ArithmeticError: no such model")
        info = Run(tmp_path / "trials" / name).info
        assert info["status"] == "failed" and "mine.py" in info["traceback"]
    shown = capfd.readouterr()
    assert "standard output" not in shown.out and shown.err.count("and one below Python") == len(trials)


def test_a_factory_that_ends_its_process_fails_its_trial_and_no_other(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(pool_module, "RETRIES", 1)
    trials = trials_of(mine, norm=["leaves", "exits", "good"])
    heard = Heard()
    Pool(2).run(tmp_path, trials, heard)
    leaves, exits, good = (heard.results[t.name] for t in trials)
    assert leaves.outcome == "failed" and "ended 2 times, last with exit code 3" in leaves.error
    assert exits.outcome == "failed" and good.outcome != "failed"
    for trial in trials[:2]:
        info = Run(tmp_path / "trials" / trial.name).info
        assert info["status"] == "failed" and info["result"]["error"] == heard.results[trial.name].error


def test_a_killed_worker_costs_nothing_that_was_saved_and_three_fail_the_trial(tmp_path, mine):
    trials = trials_of(mine, norm=["dies1", "dies9", "good"])
    heard = Heard()
    Pool(2, checkpoint_seconds=0).run(tmp_path, trials, heard)
    once, always, good = (heard.results[t.name] for t in trials)
    disturbed, _, undisturbed = (tmp_path / "trials" / t.name for t in trials)
    for name in EXACT:
        assert getattr(once, name) == getattr(good, name)  # both have the same weights, data and dropout
    assert curve(disturbed) == curve(undisturbed) and [s for s, _ in curve(undisturbed)] == list(range(1, 12))
    assert [e["note"] for e in Run(disturbed).events() if e["event"] == "resumed"] == ["from step 5"]
    assert always.outcome == "failed" and "ended 3 times" in always.error and "SIGKILL" in always.error
    assert Run(tmp_path / "trials" / trials[1].name).info["status"] == "failed"
    assert len(heard.lost) == 1 + 2 and all("last checkpoint" in reason for reason in heard.lost)


def test_workers_killed_when_idle_or_between_two_trials(tmp_path, mine):
    trials = trials_of(mine, norm=["good", "slow"], seed=[0, 1])
    killed = []

    def react(kind, trial, _):
        if kind == "ended" and trial.name.startswith("good"):  # with a trial waiting, and at the end without
            killed.append(pid_of(tmp_path, trial))
            os.kill(killed[-1], signal.SIGKILL)

    heard = Heard(react)
    Pool(2).run(tmp_path, [trials[0], trials[1], trials[2], trials[3]], heard)
    assert len(set(killed)) == 2 and heard.results.keys() == {t.name for t in trials}
    assert all(r.outcome != "failed" for r in heard.results.values())


def test_an_exception_of_the_caller_saves_what_runs_and_ends_the_workers(tmp_path, mine):
    (trial,) = trials_of(mine.changed(steps=400), norm=["slow"])

    def react(kind, *_):
        if kind == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pool(2, checkpoint_seconds=1e6).run(tmp_path, [trial], Heard(react))
    folder = tmp_path / "trials" / trial.name
    assert gone(pid_of(tmp_path, trial)) and Run(folder).info["status"] == "interrupted"
    saved = [step for step, _ in curve(folder)]
    assert saved == list(range(1, len(saved) + 1)) and (folder / "checkpoint.safetensors").exists()

    def stop_later(kind, _, message):
        if kind == "step" and message.step > saved[-1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pool(1, checkpoint_seconds=1e6).run(tmp_path, [trial], Heard(stop_later))
    assert [e["note"] for e in Run(folder).events()] == [f"from step {saved[-1]}"]
    steps = [step for step, _ in curve(folder)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > len(saved)


def test_workers_that_cannot_start_end_the_sweep_and_blame_no_trial(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(pool_module, "START", "raise SystemExit(7)")
    heard = Heard()
    with pytest.raises(
        WorkerFailed, match="3 workers in a row ended before they took a trial, the last with exit code 7"
    ):
        Pool(1).run(tmp_path, trials_of(mine, seed=list(range(9))), heard)
    assert not heard.results and not list(tmp_path.glob("trials/*"))


def test_an_orphaned_worker_of_a_killed_sweep_is_waited_for(tmp_path, mine):
    """The trial's folder is still held by another process: the worker waits and then goes on, and nothing is lost or doubled."""
    (trial,) = trials_of(mine, norm=["good"])
    folder = tmp_path / "trials" / trial.name
    holder = os.fork()
    if holder == 0:
        from normlab.lab.folders import sole_writer

        with sole_writer(folder):
            time.sleep(6)
        os._exit(0)
    heard = Heard()
    try:
        while not (folder / "lock").exists():
            time.sleep(0.01)
        Pool(1).run(tmp_path, [trial], heard)
    finally:
        os.waitpid(holder, 0)
    assert heard.results[trial.name].outcome != "failed" and len(curve(folder)) == 11
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
