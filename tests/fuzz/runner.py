"""Through the cases, for so many seconds, in a child process that may crash.

This process imports everything and computes nothing (a pool of threads does not survive a fork); each child is forked from it
and goes on behind the case the one before it fell over. The number of the case under way stands in shared memory.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import faults, judge
from .cases import draw

GROWTH = 200  # MB a child may grow by after its first cases: small tensors, thousands of cases
NOT_INSTALLED = 3  # exit code
WARM_UP = 500  # cases until then


@dataclass
class Finding:
    seed: int
    what: str
    case: str
    kind: str = "wrong"  # wrong, crash, hang, memory


@dataclass
class Summary:
    first: int
    cases: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{f.kind}: case {f.seed}: {f.what}\n    {f.case}" for f in self.findings]
        lines.append(
            f"{self.cases} cases from {self.first} on in {self.seconds:.0f} s, {len(self.findings)} findings"
            + (": repeat one with python -m fuzz --case N" if self.findings else "")
        )
        return "\n".join(lines)


def run(
    first: int,
    seconds: float,
    most: int | None = None,
    patience: float = 60.0,
    fault: str | None = None,
    enough: Callable[[Finding], bool] = lambda f: False,
) -> Summary:
    """``most``: cases at most. ``patience``: seconds a single case may take. ``enough``: the last finding wanted."""
    summary = Summary(first)
    _warm_up()
    started = time.monotonic()
    seed, end = first, None if most is None else first + most
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - started < seconds and (end is None or seed < end):
            child = Child(seed, end, started + seconds, Path(folder) / "stack", fault)
            summary.findings += child.watch(patience, enough)
            summary.cases += child.done
            if child.ending == f"exit {NOT_INSTALLED}":
                raise RuntimeError(f"the fault {fault!r} does not fit the code any more")
            if child.ending:
                what = child.ending
                again = Child(child.seed, child.seed + 1, time.monotonic() + patience, Path(folder) / "again", fault)
                again.watch(patience)
                if not again.ending:
                    what += f"; not alone: the damage may have been done by a case since {seed}"
                kind = "hang" if child.hung else "crash"
                summary.findings.append(Finding(child.seed, what, str(draw(child.seed)), kind))
            seed = child.seed + 1
            if any(enough(f) for f in summary.findings):
                break
    summary.seconds = time.monotonic() - started
    return summary


def _warm_up() -> None:
    """What torch and we do once, before children are forked: seconds, otherwise paid by each. One thread, so no pool."""
    warnings.simplefilter("ignore")
    plans = (draw(seed) for seed in range(10**9, 10**9 + 10**6))
    for plan in itertools.islice((p for p in plans if not p.twists and p.threads == 1), 5):
        judge.judge(plan)


def drill(most: int) -> dict[str, str]:
    """Each fault of the table, put in, for so many cases at most: the finding it made, or nothing."""
    found = {}
    for name, fault in faults.FAULTS.items():

        def fits(f: Finding, fault: faults.Fault = fault) -> bool:
            return (
                f.kind == fault.kind and bool(re.search(fault.words, f.what)) and bool(re.search(fault.twist, f.case))
            )

        summary = run(0, 600, most, patience=5, fault=name, enough=fits)
        found[name] = next((f"case {f.seed}: {f.what}" for f in summary.findings if fits(f)), "")
    return found


class Child:
    """A forked process that judges cases until the time is up, the last case is done or it dies."""

    def __init__(self, seed: int, end: int | None, until: float, stack: Path, fault: str | None):
        self._shared = mmap.mmap(-1, 16)
        self._shared[:] = struct.pack("qq", seed, 0)
        self._stack = stack
        self._reader, writer = os.pipe()
        self.ending, self.hung = "", False
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            code = 1
            try:
                _work(seed, end, until, self._shared, writer, stack, fault)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # none of the parent's business (exit handlers, buffers) here
        os.close(writer)

    @property
    def seed(self) -> int:
        return struct.unpack("qq", self._shared[:])[0]

    @property
    def done(self) -> int:
        return struct.unpack("qq", self._shared[:])[1]

    def watch(self, patience: float, enough: Callable[[Finding], bool] = lambda f: False) -> list[Finding]:
        """Its findings, once it has ended; ``ending`` says how, if it did not end well."""
        found: list[Finding] = []
        rest, last, since, stopped = b"", self.seed, time.monotonic(), False
        while not stopped:
            ready, _, _ = select.select([self._reader], [], [], 0.5)
            if ready:
                piece = os.read(self._reader, 1 << 16)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                found += [Finding(**json.loads(line)) for line in lines]
                stopped = any(enough(f) for f in found)
            if self.seed != last:
                last, since = self.seed, time.monotonic()
            elif time.monotonic() - since > patience:
                self.hung = stopped = True
        os.close(self._reader)
        if stopped:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if self.hung:
            self.ending = f"did not end within {patience:.0f} s"
        elif stopped:
            pass
        elif os.WIFSIGNALED(status):
            self.ending = f"{signal.Signals(os.WTERMSIG(status)).name}{self._where()}"
        elif os.WEXITSTATUS(status) != 0:
            self.ending = f"exit {os.WEXITSTATUS(status)}{self._where()}"
        return found

    def _where(self) -> str:
        """The innermost lines of the Python stack, if it could still be written."""
        lines = self._stack.read_text().splitlines() if self._stack.exists() else []
        at = [line.strip() for line in lines if line.startswith("  File ") and "/normlab/" in line][:2]
        short = [f"{Path(line.split(chr(34))[1]).name} {line.split(', ', 1)[1]}" for line in at]
        return f" at {' < '.join(short)}" if short else ""


def _resident() -> float:
    """MB"""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / 2**20


def _work(seed: int, end: int | None, until: float, shared: Any, writer: int, stack: Path, fault: str | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    if fault:
        try:
            faults.FAULTS[fault].install()
        except Exception:
            traceback.print_exc()
            os._exit(NOT_INSTALLED)

    # A drill looks for its fault in cases that can show it; the others would only be computed.
    can_show = re.compile(faults.FAULTS[fault].twist if fault else "")

    def report(finding: Finding) -> None:
        os.write(writer, (json.dumps(asdict(finding)) + "\n").encode())

    done, resident = 0, 0.0
    with open(stack, "w") as file:
        faulthandler.enable(file)
        while time.monotonic() < until and (end is None or seed < end):
            shared[:] = struct.pack("qq", seed, done)
            for what in _judged(seed) if can_show.search(str(draw(seed))) else []:
                report(Finding(seed, what, str(draw(seed))))
            done += 1
            if done % 100 == 0:
                gc.collect()
                if done == WARM_UP:
                    resident = _resident()
                elif done > WARM_UP and _resident() - resident > GROWTH:
                    what = f"the process grew from {resident:.0f} to {_resident():.0f} MB within {done - WARM_UP} cases"
                    report(Finding(seed, what, "", "memory"))
                    resident = _resident()
            shared[:] = struct.pack("qq", seed, done)
            seed += 1
        faulthandler.disable()


def _judged(seed: int) -> list[str]:
    try:
        return judge.judge(draw(seed))
    except Exception as error:  # of the fuzz itself: it must not hide behind a green run
        return [f"the fuzz failed: {''.join(traceback.format_exception(error))[-600:]}"]
