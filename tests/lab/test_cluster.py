"""A real Ray cluster of two nodes on this machine: the local engine's bits, and what is left when parts of it are killed."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from normlab import answer
from normlab.lab import Experiment, Pool, StorageFailed, Sweep, plan, run
from normlab.lab.cluster import Cluster
from normlab.lab.growth import extended, more_seeds
from normlab.lab.pool import RETRIES
from normlab.runs import TRIALS, Result, Run

ray = pytest.importorskip("ray")

TINY = {"dim": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 32}

FACTORIES = """
import os, signal, sys, time
from pathlib import Path
import torch
import cluster_test_neighbour
from cluster_test_neighbour import WIDTH

def make_model(norm, meeting):
    meeting = Path(meeting)
    (meeting / f"place-{os.getpid()}").write_text(str(Path(__file__).parent))
    if norm == "raising":
        raise LookupError(f"{__file__} and {cluster_test_neighbour.__file__}")
    if norm == "endless":
        (meeting / "here").touch()
        while True:
            time.sleep(0.02)
    if norm == "dying":
        with open(meeting / "deaths", "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    if (meeting / "victim").exists() and (meeting / "victim").read_text() == str(os.getppid()):
        (meeting / "here").touch()
        time.sleep(60)
    return torch.nn.Linear(WIDTH, 3)

def make_data(seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        x = torch.randn(7, WIDTH, generator=generator)
        yield x, x[:, :3].argmax(1)
"""


@pytest.fixture(scope="module")
def nodes():
    """Two nodes with one CPU each, on the loopback interface, with a temporary folder of their own. Not in this test's cwd."""
    from ray.cluster_utils import Cluster as TwoNodes

    scratch = Path(tempfile.mkdtemp(prefix="r"))  # short: a socket's path has at most 107 characters
    (scratch / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written to the home folder
        patch.setenv("RAY_TMPDIR", str(scratch))
        patch.setenv("TMPDIR", str(scratch / "tmp"))
        patch.setattr(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)  # binds 127.0.0.1 alone
        each = {"num_cpus": 1, "object_store_memory": 10**8}
        config = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        cluster = TwoNodes(initialize_head=True, head_node_args={
            **each, "include_dashboard": False, "_system_config": config})  # fmt: skip
        cluster.add_node(**each)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """The caller's working folder, which no node stands in: text and code."""
    desk = tmp_path_factory.mktemp("desk")
    words = random.Random(11)
    (desk / "corpus").mkdir()
    (desk / "corpus" / "book.txt").write_text("".join(words.choices("abcdefgh \n", k=5003)))
    rows = [{"text": "".join(words.choices("aeiou ", k=101))} for _ in range(31)]
    (desk / "more.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (desk / "cluster_test_factories.py").write_text(FACTORIES)
    (desk / "cluster_test_neighbour.py").write_text("WIDTH = 5\n")
    return desk


@pytest.fixture(autouse=True)
def _at_the_desk(desk, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def text_sweep() -> Sweep:
    base = Experiment(
        steps=6, files=("corpus/book.txt", "more.jsonl"), model=TINY, held_out=13, evaluations=2, batch_size=5
    )
    return Sweep(base=base, axes={"norm": ["layer", "rms"], "placement": ["pre"], "lr": [1e-3], "seed": [0, 1]})


def own_sweep(meeting: Path, norms: list[str], seeds: int) -> Sweep:
    base = Experiment(task="own", make_model="cluster_test_factories:make_model", make_data="cluster_test_factories:make_data",
                      steps=7, model={"meeting": str(meeting)}, watch="none", held_out=2)  # fmt: skip
    return Sweep(base=base, axes={"norm": norms, "lr": [1e-2], "seed": list(range(seeds))})


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)


class Told(list):
    """What an engine said."""

    def __call__(self, kind, trial, message):
        self.append((kind, trial.name, message))

    def names(self, kind: str) -> list[str]:
        return sorted(name for told, name, _ in self if told == kind)

    def results(self) -> dict[str, Result]:
        return {name: message.result for kind, name, message in self if kind == "ended"}


def ran(sweep: Sweep, folder: Path, engine) -> Told:
    told = Told()
    run(plan(sweep, folder, 2, estimate=False), engine, told)
    return told


def assert_same_trials(folder: Path, other: Path, sweep: Sweep) -> None:
    """Everything but times and memory."""
    names = sorted(t.name for t in sweep.trials())
    assert sorted(p.name for p in (folder / TRIALS).iterdir()) == names
    for name in names:
        a, b = Run(folder / TRIALS / name), Run(other / TRIALS / name)
        for key in ("experiment", "task", "choices", "parameters", "seed", "versions", "status"):
            assert a.info[key] == b.info[key]
        for key in ("outcome", "steps", "loss", "loss_half_width", "accuracy", "train_loss", "first_loss", "curve"):
            assert a.info["result"][key] == b.info["result"][key]
        readings = [[r for r in side.readings() if r[1] != "overhead"] for side in (a, b)]
        assert readings[0] == readings[1]
        assert [s for s, probe, _, _ in readings[0] if probe == "loss"] == list(range(1, sweep.base.steps + 1))


@pytest.fixture(scope="module")
def locally(desk, tmp_path_factory):
    """The text sweep by the local engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        folder = tmp_path_factory.mktemp("local") / "sweep"
        ran(text_sweep(), folder, Pool(2))
    return folder


@pytest.fixture(scope="module")
def on_nodes(nodes, desk, tmp_path_factory):
    """(folder, what was told) of the text sweep on the cluster, over a connection of the engine's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        folder = tmp_path_factory.mktemp("nodes") / "sweep"
        told = ran(text_sweep(), folder, Cluster(address=nodes.address))
    assert not ray.is_initialized(), "the engine ends the connection it made"
    return folder, told


@pytest.fixture(scope="module")
def connection(nodes, on_nodes):
    """The caller's own connection: workers stay between sweeps, which saves the tests the import of torch."""
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield nodes.address
    assert ray.is_initialized(), "the engine leaves the caller's connection alone"


def left_on_nodes() -> list[str]:
    return [p.name for p in Path(os.environ["TMPDIR"]).glob("normlab-*")]


# ---- the same numbers ------------------------------------------------------------------------------------------------


def test_the_same_bits_as_the_local_engine(locally, on_nodes):
    folder, told = on_nodes
    sweep = text_sweep()
    assert_same_trials(folder, locally, sweep)
    names = sorted(t.name for t in sweep.trials())
    assert told.names("started") == told.names("ended") == names
    assert told.names("lost") == []
    for name, result in told.results().items():
        assert result.to_dict() == Run(folder / TRIALS / name).info["result"]


@pytest.mark.nightly
def test_further_seeds_go_to_the_best_rates_as_they_do_locally(connection, tmp_path):
    """Seeds 3+2, then two more: what becomes due while a cluster works is what a pool would run, to the bit."""
    (tmp_path / "meeting").mkdir()
    own = own_sweep(tmp_path / "meeting", ["calm", "plain"], 5)
    steps = own.base.changed(steps=200)  # so many that every seed counts as trained
    small = replace(own, base=steps, axes={**own.axes, "lr": [1e-2, 1.2e-2]}, first_seeds=3)
    engines = {"nodes": Cluster(address=connection), "local": Pool(2)}
    for name, engine in engines.items():
        told = ran(small, tmp_path / name, engine)
        assert len(told.names("ended")) == len(set(told.names("ended"))) == 2 * (2 * 3 + 2)
        larger = extended(tmp_path / name, {"seed": more_seeds(small, 7)})
        assert larger.looks == (5,) and len(ran(larger, tmp_path / name, engine).names("ended")) == 2 * 2
    found = {name: {p.name: Run(p).info["result"] for p in (tmp_path / name / TRIALS).iterdir()} for name in engines}
    assert found["nodes"].keys() == found["local"].keys() and len(found["nodes"]) == 20
    for name, result in found["nodes"].items():
        assert (result["outcome"], result["loss"], result["curve"]) == tuple(
            found["local"][name][k] for k in ("outcome", "loss", "curve")
        )
    answers = [answer.read(tmp_path / name) for name in engines]
    assert all(a.complete for a in answers) and len({a.verdict.en[0] for a in answers}) == 1
    assert {c.n for c in answers[0].cells} == {7}


def test_text_goes_along_and_keeps_its_names(on_nodes):
    """Relative names, and no node stands in that folder."""
    folder, _ = on_nodes
    for trial in text_sweep().trials():
        text = (folder / TRIALS / trial.name / "run.json").read_text()
        info = json.loads(text)
        assert info["experiment"] == trial.experiment.to_dict()
        assert list(info["task"]["sources"]) == ["corpus/book.txt", "more.jsonl"]
        assert os.environ["TMPDIR"] not in text
        assert {p.name for p in (folder / TRIALS / trial.name).iterdir()} == {"run.json", "readings.jsonl", "lock"}
    assert left_on_nodes() == []


def test_text_that_is_missing_is_an_error_here(connection, tmp_path):
    sweep = Sweep(base=Experiment(files=("no/such.txt",)), axes={"seed": [0]})
    with pytest.raises(FileNotFoundError, match=r"no/such\.txt"):
        ran(sweep, tmp_path / "sweep", Cluster(address=connection))


def test_resuming_runs_what_is_missing(locally, on_nodes, connection, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(on_nodes[0], folder)
    gone, broken, *kept = (t.name for t in text_sweep().trials())
    shutil.rmtree(folder / TRIALS / gone)
    info = json.loads((folder / TRIALS / broken / "run.json").read_text())
    (folder / TRIALS / broken / "run.json").write_text(json.dumps({**info, "status": "failed"}))
    (folder / TRIALS / broken / "checkpoint.safetensors").write_bytes(b"of an earlier attempt")
    before = {name: (folder / TRIALS / name / "run.json").stat().st_mtime_ns for name in kept}
    told = ran(text_sweep(), folder, Cluster(address=connection))
    assert told.names("started") == told.names("ended") == sorted([gone, broken])
    assert before == {name: (folder / TRIALS / name / "run.json").stat().st_mtime_ns for name in kept}
    assert not (folder / TRIALS / broken / "checkpoint.safetensors").exists()
    assert_same_trials(folder, locally, text_sweep())


# ---- what breaks -----------------------------------------------------------------------------------------------------


def test_code_that_raises_or_kills_its_worker_costs_its_own_trials(connection, tmp_path):
    folder, sweep = tmp_path / "sweep", own_sweep(tmp_path, ["layer", "raising", "dying"], seeds=1)
    told = ran(sweep, folder, Cluster(address=connection))
    good, raising, dying = (t.name for t in sweep.trials())
    results = told.results()
    assert sorted(results) == sorted([good, raising, dying])
    assert results[good].outcome in ("trained", "untrained", "collapsed") and results[good].steps == 7
    # The code came along with what it imports: names without a folder are what a run holds for paths on a node.
    error = "LookupError: cluster_test_factories.py and cluster_test_neighbour.py"
    assert results[raising] == Result(outcome="failed", error=error)
    info = Run(folder / TRIALS / raising).info
    assert info["status"] == "failed" and "LookupError" in info["traceback"]
    assert results[dying].outcome == "failed" and f"{RETRIES + 1} times" in results[dying].error
    assert (tmp_path / "deaths").read_text() == "x" * (RETRIES + 1)
    assert told.names("lost") == [dying] * RETRIES
    assert Run(folder / TRIALS / dying).info["result"] == results[dying].to_dict()
    places = [Path(p.read_text()) for p in tmp_path.glob("place-*")]
    assert len(places) >= RETRIES + 1
    for place in places:
        assert Path(os.environ["TMPDIR"]) in place.parents and folder not in place.parents


def test_a_disk_that_fails_stops_the_sweep(connection, tmp_path):
    sweep = own_sweep(tmp_path, ["layer"], seeds=2)
    (tmp_path / "sweep" / TRIALS).mkdir(parents=True)
    blocked = tmp_path / "sweep" / TRIALS / sweep.trials()[0].name
    blocked.write_text("a file where a folder should be")
    with pytest.raises(StorageFailed, match="cannot be written"):
        Cluster(address=connection).run(tmp_path / "sweep", sweep.trials(), Told())
    assert blocked.is_file()


def test_ctrl_c_stops_and_keeps_what_is_finished(connection, tmp_path):
    sweep = own_sweep(tmp_path, ["layer", "endless"], seeds=5)
    told = Told()

    def notify(kind, trial, message):
        told(kind, trial, message)
        if kind == "ended":
            wait_for((tmp_path / "here").exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan(sweep, tmp_path / "sweep", 2, estimate=False), Cluster(address=connection), notify)
    (finished,) = told.names("ended")
    assert [p.name for p in (tmp_path / "sweep" / TRIALS).iterdir()] == [finished]
    assert Run(tmp_path / "sweep" / TRIALS / finished).info["status"] == "finished"
    assert len(told.names("started")) == 4  # two CPUs, as many in reserve
    assert (tmp_path / "here").exists()
    wait_for(lambda: ray.available_resources().get("CPU") == 2)
    assert ray.available_resources().get("CPU") == 2, "nothing runs on"


def test_too_many_threads_for_any_node_are_refused(connection, tmp_path):
    sweep = Sweep(base=Experiment(threads=3), axes={"seed": [0]})
    with pytest.raises(ValueError, match=r"threads=3.*1 CPUs"):
        ran(sweep, tmp_path / "sweep", Cluster(address=connection))


def test_without_ray_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'normlab\[ray\]'"):
        Cluster(address=None).run(tmp_path, [], Told())


def test_workers_must_be_some():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Cluster(address=None, workers=0)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_compare_on_a_ray_of_its_own(nodes, tmp_path):
    """No address: it starts Ray, although a cluster runs here, and ends it."""
    command = [sys.executable, "-m", "normlab", "compare", "--engine", "ray", "--workers", "2", "--norm", "layer,rms", "--placement", "pre",
               "--lr", "1e-3", "--seeds", "1", "--steps", "6", "--out", str(tmp_path / "sweep"), "--no-report", "--json",
               "--set", "held_out=13", "--set", "batch_size=5", *(w for k, v in TINY.items() for w in ("--set", f"{k}={v}"))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {t["name"] for t in summary["trials"]} == {"layer-pre-lr0.001-seed0", "rms-pre-lr0.001-seed0"}
    assert all(t["matmul_share"] > 0 for t in summary["trials"])
    assert not [line for line in done.stderr.splitlines() if "ray" in line.lower().replace(str(tmp_path), "")]


# ---- last, since it takes a node away --------------------------------------------------------------------------------


def test_a_killed_node_costs_only_what_it_was_running(nodes, connection, tmp_path):
    sweep = own_sweep(tmp_path, ["layer"], seeds=6)
    ran(sweep, tmp_path / "undisturbed", Pool(2))
    (node,) = nodes.worker_nodes
    raylet = node.all_processes["raylet"][0].process
    (tmp_path / "victim").write_text(str(raylet.pid))

    def kill_when_it_works():
        wait_for((tmp_path / "here").exists)
        os.kill(raylet.pid, signal.SIGKILL)
        raylet.wait()

    killer = threading.Thread(target=kill_when_it_works)
    killer.start()
    try:
        told = ran(sweep, tmp_path / "sweep", Cluster(address=connection))
    finally:
        killer.join()
    names = sorted(t.name for t in sweep.trials())
    assert (tmp_path / "here").exists() and len(told.names("lost")) >= 1
    assert told.names("ended") == names
    assert told.names("started") == sorted(names + told.names("lost"))
    assert_same_trials(tmp_path / "sweep", tmp_path / "undisturbed", sweep)
