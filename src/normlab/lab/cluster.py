"""Trials on a Ray cluster: the same trials with the same numbers, one Ray task each.

Nodes need normlab and no file of the caller's: a trial trains in a temporary folder of its node, its run comes back as bytes, and
this process alone writes to the sweep. The user's text goes with the trial, and the user's code: the module or package of each
MODULE:NAME that is not installed, and what else was imported from the folder it lies in. Ray would send the whole working folder,
which may hold gigabytes of runs. A run holds the names the user gave, never those of a node.

A lost worker or node costs the trials it was running; they start again. Ray's own retries are off: they are silent. "Started"
means handed to Ray, which may keep a trial waiting; there are no messages about steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .. import __version__
from ..errors import need
from ..runs import INFO, Result, Writer, replacing, trial_folder
from .checkpoint import FILE as CHECKPOINT
from .experiment import Experiment
from .folders import LOCK, sole_writer
from .parts import named
from .pool import RETRIES, StorageFailed, WorkerFailed, warm_up
from .sweep import Message, Notify, Trial
from .train import attempt, failed
from .work import Work

GRACE = 5.0  # seconds a cancelled trial has for removing its temporary folder; then it is killed, and the folder stays
INSTALLED = {"site-packages", "dist-packages"}  # what lies there must be installed on the nodes too
Sent = tuple[dict[str, bytes], list[str]]  # files by their names on the node; which of these are experiment.files
# On a node; the same for all trials of a worker, since data is cached by its path. It exists while one of them runs.
SCRATCH = Path(tempfile.gettempdir()).resolve() / f"normlab-{os.urandom(8).hex()}"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``address``: "auto", host:port, or None for a Ray on this machine that lives as long as the sweep."""

    address: str | None = None
    workers: int | None = None  # trials at a time; None: what there are CPUs for
    work: Mapping[str, Work] = field(default_factory=dict)  # by cell; local clusters only

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    def run(self, folder: Path, trials: Sequence[Trial] | deque[Trial], notify: Notify) -> None:
        """Until every trial, those added to a deque meanwhile among them, has ended, or an exception (Ctrl-C among them) ends the sweep; what is finished stays."""
        ray, threads = _ray(self.address), max((t.experiment.threads for t in trials), default=1)
        connected = ray.is_initialized()  # by the caller, who also ends it
        try:
            if not connected:
                how: dict[str, Any] = {"address": self.address}
                if self.address is None:  # "local": with None, Ray would join a cluster that happens to run here
                    cpus = self.workers * threads if self.workers else max(threads, os.cpu_count() or 1)
                    how = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
                ray.init(**how, logging_level=logging.ERROR, log_to_driver=False)
            largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
            if 0 < largest < threads:  # would wait for ever; without any CPU it is a cluster that grows on demand
                raise ValueError(f"a trial asks for threads={threads}, the largest node has {largest:g} CPUs")
            self._run(ray, connected, folder, trials, notify)
        finally:
            if not connected:
                ray.shutdown()

    def _run(self, ray: Any, stays: bool, folder: Path, trials: Sequence[Trial] | deque[Trial], notify: Notify) -> None:
        waiting, losses = trials if isinstance(trials, deque) else deque(trials), Counter[str]()
        running: dict[Any, Trial] = {}
        stored: dict[tuple[Any, ...], Any] = {}  # in Ray's object store, once for all trials that need the same
        # a machine's rate is known where it was measured
        known: Mapping[str, Work] = self.work if self.address is None else {}
        try:
            while waiting or running:
                # Twice what can run: no CPU waits for this process, and a cluster that grows on demand sees the demand.
                cpus = ray.cluster_resources().get("CPU", 0)
                while waiting and len(running) < (self.workers or max(1, 2 * cpus // waiting[0].experiment.threads)):
                    trial = waiting.popleft()
                    e = trial.experiment
                    asked = (e.files, e.make_model, e.make_data, e.make_loss)
                    if asked not in stored:
                        stored[asked] = ray.put(_files_for(e))
                    remote = ray.remote(_trial).options(num_cpus=e.threads, max_retries=0, name=trial.name)
                    sent = remote.remote(e.to_dict(), stored[asked], known.get(trial.cell), __version__, stays)
                    running[sent] = trial
                    notify("started", trial, Message())
                for task in ray.wait(list(running), timeout=1.0)[0]:
                    trial = running.pop(task)
                    if not self._end(ray, task, trial, trial_folder(folder, trial.name), losses, notify):
                        waiting.appendleft(trial)
        except BaseException:
            # Who has gone by itself must not be killed on top of it: in Ray 2.60 that may abort this process.
            left = list(running)
            for task in left:
                ray.cancel(task)
            with contextlib.suppress(KeyboardInterrupt):
                _, left = ray.wait(left, num_returns=len(left), timeout=GRACE) if left else ([], [])
            for task in left:
                ray.cancel(task, force=True)
            raise

    def _end(self, ray: Any, task: Any, trial: Trial, at: Path, losses: Counter[str], notify: Notify) -> bool:
        """False: the trial was lost and is to be run again."""
        try:
            contents = ray.get(task)
        except ray.exceptions.RayError as error:
            raised = isinstance(error, ray.exceptions.RayTaskError)  # otherwise its worker or node is gone
            if raised and not isinstance(error, StorageFailed):
                raise WorkerFailed(f"a node of the Ray cluster cannot run trials: {error}") from error
            reason = str(error.cause) if raised else f"its worker or node is gone ({type(error).__name__})"
            losses[trial.name] += 1
            if losses[trial.name] <= RETRIES:
                notify("lost", trial, Message(reason=f"{reason}; it starts again", reason_zh=f"{reason}；从头再跑"))
                return False
            if raised:
                raise StorageFailed(reason) from error
            result = failed(f"lost {losses[trial.name]} times; the last time {reason}")
            info = {"experiment": trial.experiment.to_dict(), "seed": trial.experiment.seed}
            with _emptied(at):
                Writer(at, info).close("failed", result=result.to_dict())
        else:
            with _emptied(at):
                _unpack({name: data for name, data in contents.items() if name != INFO}, at)
                with replacing(at / INFO) as file:
                    file.write(contents[INFO])
            result = Result.from_dict(json.loads(contents[INFO])["result"])
        notify("ended", trial, Message(result=result))
        return True


def _ray(address: str | None) -> Any:
    if address is None:  # as everywhere but on Linux, Ray then listens on the loopback interface alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray starts: nothing is reported to its makers
    return need("the engine ray", "ray", "ray")


@contextlib.contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """Hold a trial's folder, without what an earlier attempt left in it. Its run.json goes first; the new one comes last."""
    try:
        with sole_writer(folder, wait=60.0):  # a local worker of a killed sweep may still be at its last step here
            (folder / INFO).unlink(missing_ok=True)
            for old in folder.iterdir():
                if old.name != LOCK:
                    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            yield
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error}") from error


def _pack(path: Path, name: str = "") -> dict[str, bytes]:
    """A file, or all files of a folder, by the names they get where they go."""
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    names = {(PurePosixPath(name) / f.relative_to(path).as_posix()).as_posix(): f for f in files}
    return {name: f.read_bytes() for name, f in names.items() if "__pycache__" not in name}


def _unpack(contents: Mapping[str, bytes], folder: Path) -> None:
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _files_for(experiment: Experiment) -> Sent:
    """What goes with a trial."""
    contents, names = _code(experiment), []
    for asked in experiment.files:
        if not Path(asked).exists():
            raise FileNotFoundError(f"no such file or folder: {asked}")
        packed = _pack(Path(asked))
        # Named by what it holds: a worker reads it once for all its trials, and never takes one text for another.
        digest = hashlib.sha256(b"\0".join([asked.encode(), *map(str.encode, packed), *packed.values()])).hexdigest()
        names.append(f"files/{digest[:16]}/text{Path(asked).suffix}")
        contents |= _pack(Path(asked), names[-1])
    return contents, names


def _code(experiment: Experiment) -> dict[str, bytes]:
    homes = set()
    for factory in filter(None, (experiment.make_model, experiment.make_data, experiment.make_loss)):
        named(factory)  # what cannot be loaded here is an error here
        home = _source(sys.modules[factory.partition(":")[0].partition(".")[0]]).parent
        homes |= set() if INSTALLED & set(home.parts) or factory.startswith("normlab.") else {home}
    loaded = {_source(module) for name, module in list(sys.modules.items()) if "." not in name}
    sources = sorted(source for source in loaded if source.parent in homes)
    return {name: data for s in sources for name, data in _pack(s, f"code/{s.name}").items()}


def _source(module: Any) -> Path:
    """The file of a module, the folder of a package; what is built in is nowhere."""
    held = getattr(module, "__dict__", {})  # asking the module itself would make a lazy one load
    return Path(next(iter(held.get("__path__") or ()), held.get("__file__") or os.devnull)).resolve()


# ---- on the node -----------------------------------------------------------------------------------------------------


def _trial(asked: dict[str, Any], sent: Sent, work: Work | None, version: str, stays: bool) -> dict[str, bytes]:
    """Train one experiment on this node; returns its run directory as {name: bytes}."""
    if version != __version__:
        raise RuntimeError(f"{socket.gethostname()} has normlab {__version__}, the caller has {version}")
    os.environ["OMP_NUM_THREADS"] = str(asked["threads"])  # for processes that the user's code starts
    try:
        return _train(asked, sent, work)
    except OSError as error:
        raise StorageFailed(f"the temporary folder of {socket.gethostname()} cannot be written: {error}") from error
    except KeyboardInterrupt:  # cancelled, maybe in the middle of an import
        if stays:  # the worker, since the caller's connection does: no other trial may have it
            sys.exit(0)
        raise
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)


def _train(asked: dict[str, Any], sent: Sent, work: Work | None) -> dict[str, bytes]:
    code, files = str(SCRATCH / "code"), [str(SCRATCH / name) for name in sent[1]]
    SCRATCH.mkdir(mode=0o700)
    _unpack(sent[0], SCRATCH)
    for path in (SCRATCH / "files").rglob("*"):
        os.utime(path, (0, 0))  # data is cached by its times as well
    sys.path[:] = [code, *(p for p in sys.path if p != code)]
    importlib.invalidate_caches()
    for factory in filter(None, (asked["make_model"], asked["make_data"], asked["make_loss"])):
        # From there and now: later this process's own folder, which may hold an older one, would be searched first.
        with contextlib.suppress(Exception):
            importlib.import_module(factory.partition(":")[0])
    warm_up()
    experiment = Experiment.from_dict({**asked, "files": files})
    attempt(experiment, SCRATCH / "run", checkpoint_seconds=math.inf, work=work)  # one would be lost with the node
    run = {name: data for name, data in _pack(SCRATCH / "run").items() if name not in (LOCK, CHECKPOINT)}
    info = run[INFO].decode()
    for here, there in [*zip(files, asked["files"], strict=True), (code + os.sep, "")]:
        info = info.replace(json.dumps(here)[1:-1], json.dumps(there)[1:-1])
    return {**run, INFO: info.encode()}
