"""Trials side by side on this machine: persistent worker processes that speak JSON lines over their pipes.

A worker is an ordinary child process that calls :func:`serve`, so no trial depends on how the caller's script was
started, and nothing is pickled. It imports torch once and trains one trial after another. One that dies (kill -9, out of memory)
costs what its trial had done since its last checkpoint; the trial is given to a new worker, twice at most. SIGTERM asks a worker to save
and stop; one whose parent is gone stops by itself. One that says nothing for a minute is reported, and ended if there is a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..runs import Result, Writer, trial_folder
from .experiment import Experiment
from .sweep import Message, Notify, Trial, finished
from .work import Work

RETRIES = 2
FALSE_STARTS = 3  # workers in a row that end before they take a trial
SAY_EVERY = 0.25  # seconds between a worker's messages about its step
QUIET = 60.0  # seconds without a word from a trial until it is said that it may hang; then after twice, four times that
PATIENCE = 20.0  # seconds a worker has for saving after it was asked to stop

# The working folder comes last: a random.py in it must not pass for Python's own.
START = "import sys; sys.path[:] = [p for p in sys.path if p] + ['']; from normlab.lab.pool import serve; serve()"


class StorageFailed(RuntimeError):
    """The folder cannot be written (disk full, read-only): going on would fail every trial, so the sweep stops."""


class WorkerFailed(RuntimeError):
    """Workers do not start: what ails them is no fault of a trial."""


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    trial: Trial | None = None
    ready: bool = False  # it has started and takes orders
    text: bytes = b""  # the part of a line that has come so far
    began: float = 0.0  # when it could begin with its trial
    heard: float = 0.0  # when it last said something
    patience: float = QUIET

    def clock(self) -> None:
        self.began = self.heard = time.monotonic()
        self.patience = QUIET

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Whole messages that have arrived; None: the worker is gone."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(eq=False)
class Pool:
    """``workers`` processes with the trial's number of threads each."""

    workers: int
    checkpoint_seconds: float = 30.0
    work: Mapping[str, Work] = field(default_factory=dict)  # by cell
    trial_timeout: float | None = None  # seconds; a trial that takes longer is ended and has failed
    false_starts: int = field(default=0, init=False)

    def run(self, folder: Path, trials: Sequence[Trial] | deque[Trial], notify: Notify) -> None:
        """Until every trial, those added to a deque meanwhile among them, has ended, or a storage error or an exception of ``notify`` (Ctrl-C among them) ends the sweep."""
        if any(t.experiment.precision == "bfloat16" for t in trials):
            from .. import machine

            os.environ.update(machine.sixteen_bit()[1])  # workers read it once, before their first product
        waiting, deaths = trials if isinstance(trials, deque) else deque(trials), Counter[str]()
        processes: list[_Worker] = []
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or any(w.trial for w in processes):
                    idle = [w for w in processes if w.trial is None]
                    while waiting and (idle or len(processes) < self.workers):
                        worker = idle.pop() if idle else self._start(processes, selector, waiting[0])
                        worker.trial = waiting.popleft()
                        worker.clock()
                        notify("started", worker.trial, Message())
                        with contextlib.suppress(BrokenPipeError):  # dead already: its end of file is read below
                            worker.send(self._order(worker.trial, folder))
                    events = selector.select(timeout=1.0)
                    heard = {key.data: key.data.read() for key, _ in events}
                    for worker in processes:
                        # Processes that the user's loader forked may outlive a worker and hold its pipe open.
                        if worker not in heard and worker.process.poll() is not None:
                            heard[worker] = None
                    for worker, messages in heard.items():
                        for message in messages or ():
                            self._hear(worker, message, notify)
                        if messages is None:
                            selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
                            processes.remove(worker)
                            self._requeue(worker, folder, waiting, deaths, notify)
                    for worker in [w for w in processes if w.trial is not None and w.ready]:
                        if self._timed_out(worker, folder, notify):
                            selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
                            processes.remove(worker)
                            self._shut_down([worker])
            except BaseException:
                self._stop(processes)
                raise
            self._shut_down(processes)

    def _order(self, trial: Trial, folder: Path) -> dict[str, Any]:
        work = self.work.get(trial.cell)
        return {"experiment": trial.experiment.to_dict(), "folder": str(trial_folder(folder, trial.name).absolute()),
                "checkpoint_seconds": self.checkpoint_seconds, "work": vars(work) if work else None}  # fmt: skip

    def _start(self, processes: list[_Worker], selector: selectors.BaseSelector, trial: Trial) -> _Worker:
        threads = str(trial.experiment.threads)
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then asks the workers to save.
        process = subprocess.Popen(
            [sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}, start_new_session=True,
        )  # fmt: skip
        worker = _Worker(process)
        processes.append(worker)
        selector.register(process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        return worker

    def _hear(self, worker: _Worker, message: dict[str, Any], notify: Notify) -> None:
        worker.heard, worker.patience = time.monotonic(), QUIET
        if message["kind"] == "ready":
            worker.ready, self.false_starts = True, 0
            worker.clock()  # loading torch is no part of a trial
            return
        trial = worker.trial
        assert trial is not None
        if message["kind"] == "storage":
            raise StorageFailed(message["error"])
        if message["kind"] == "ended":
            worker.trial = None
            notify("ended", trial, Message(result=Result.from_dict(message["result"])))
        else:
            notify("step", trial, Message(step=message["step"], loss=message["loss"]))

    def _requeue(
        self, worker: _Worker, folder: Path, waiting: deque[Trial], deaths: Counter[str], notify: Notify
    ) -> None:
        """A worker is gone: its trial goes back to the head of the queue, or ends as failed."""
        self._shut_down([worker])
        code, trial = worker.process.returncode, worker.trial
        if trial is None:
            return
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        if not worker.ready:
            self.false_starts += 1
            if self.false_starts >= FALSE_STARTS:
                raise WorkerFailed(
                    f"{self.false_starts} workers in a row ended before they took a trial, the last with {how}; what they said is above"
                )
            waiting.appendleft(trial)
            notify("lost", trial, Message(reason=f"its worker ended with {how} before it began; another takes it",
                                          reason_zh=f"工作进程还没开始就结束了（{how}）；由另一个接手"))  # fmt: skip
            return
        deaths[trial.name] += 1
        if deaths[trial.name] <= RETRIES:
            notify("lost", trial, Message(reason=f"its worker ended with {how}; it goes on from its last checkpoint",
                                          reason_zh=f"工作进程结束了（{how}）；从最近的检查点继续"))  # fmt: skip
            waiting.appendleft(trial)
            return
        from .train import failed

        self._fail(trial, folder, failed(f"its worker process ended {deaths[trial.name]} times, last with {how}"
                                         + ("; out of memory is the usual cause" if code == -signal.SIGKILL else "")), notify)  # fmt: skip

    @staticmethod
    def _fail(trial: Trial, folder: Path, result: Result, notify: Notify) -> None:
        """In its worker's stead, which is gone."""
        info = {"experiment": trial.experiment.to_dict(), "seed": trial.experiment.seed}
        Writer(trial_folder(folder, trial.name), info, again=True).close("failed", result=result.to_dict())
        notify("ended", trial, Message(result=result))

    def _timed_out(self, worker: _Worker, folder: Path, notify: Notify) -> bool:
        """Say that a trial seems to hang; True: its time was over and it was ended."""
        trial, now = worker.trial, time.monotonic()
        assert trial is not None
        limit = self.trial_timeout
        if limit is not None and now - worker.began > limit:
            _kill(worker.process)
            done, _ = finished(folder, [trial])  # at the very last moment
            if done:
                notify("ended", trial, Message(result=done[trial.name]))
            else:
                from .train import failed

                self._fail(trial, folder, failed(f"it took longer than the {limit:g} s of --trial-timeout"), notify)
            worker.trial = None
            return True
        if now - worker.heard > worker.patience:
            worker.patience *= 2
            silent = f"{now - worker.heard:.0f}"
            hint = ("; --trial-timeout would end it", "；可用 --trial-timeout 让它结束") if limit is None else ("", "")
            notify("quiet", trial, Message(reason=f"no step for {silent} s, it may hang{hint[0]}",
                                           reason_zh=f"{silent} 秒没有新的一步，可能卡住了{hint[1]}"))  # fmt: skip
        return False

    def _stop(self, processes: list[_Worker]) -> None:
        """Ask all to save; who has not gone in time, or when the user presses Ctrl-C again, is ended."""
        for worker in processes:
            worker.process.terminate()
            self._close_orders(worker)
        until = time.monotonic() + PATIENCE
        try:
            for worker in processes:
                worker.process.wait(timeout=max(0.0, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for worker in processes:
                worker.process.kill()
        self._shut_down(processes)

    @staticmethod
    def _shut_down(processes: list[_Worker]) -> None:
        """An end of file tells an idle worker to go."""
        for worker in processes:
            Pool._close_orders(worker)
        for worker in processes:
            worker.process.wait()
            assert worker.process.stdout is not None
            worker.process.stdout.close()

    @staticmethod
    def _close_orders(worker: _Worker) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With the processes that the user's code started in it."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session, see _start
    else:
        process.kill()
    process.wait()


# ---- the worker's side -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Take orders from standard input until it ends."""
    orders, out = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What a model or a loader prints must not mix with the messages, and what it reads must not be the orders.
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    parent = os.getppid()
    asked_to_stop = False

    def ask(*_: Any) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, ask)
    from .train import Stopped

    def say(kind: str, **detail: Any) -> None:
        try:
            out.write(json.dumps({"kind": kind, **detail}) + "\n")
        except BrokenPipeError:  # the parent is gone
            raise Stopped from None

    with contextlib.suppress(Stopped):
        _obey(orders, say, lambda: asked_to_stop or os.getppid() != parent)


def _obey(orders: IO[str], say: Callable[..., None], told_to_stop: Callable[[], bool]) -> None:
    from .train import Stopped, attempt

    home = os.getcwd()
    warm_up()
    say("ready")
    while not told_to_stop() and (line := orders.readline()):
        order = json.loads(line)
        last = time.monotonic()

        def on_step(step: int, loss: float) -> None:
            nonlocal last
            if told_to_stop():
                raise Stopped
            if time.monotonic() - last >= SAY_EVERY:
                last = time.monotonic()
                say("step", step=step, loss=loss)

        try:
            # A worker of an earlier, killed sweep may still be at its last step in this folder.
            result = attempt(Experiment.from_dict(order["experiment"]), Path(order["folder"]), on_step=on_step, wait=60.0,
                             checkpoint_seconds=order["checkpoint_seconds"],
                             work=Work(**order["work"]) if order["work"] else None)  # fmt: skip
        except OSError as error:
            say("storage", error=f"{order['folder']} cannot be written: {error}")
            return
        with contextlib.suppress(OSError):
            os.chdir(home)  # a factory may have left it: the next trial starts where this one did
        say("ended", result=result.to_dict())


def warm_up() -> None:
    """One step of next to nothing: what torch loads at its first step is not to count as the first trial's time and memory."""
    import torch

    from ..machine import keep_freed_memory

    keep_freed_memory()
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    torch.nn.functional.cross_entropy(layer(torch.ones(2, 2)), torch.zeros(2, dtype=torch.long)).backward()
    optimizer.step()
