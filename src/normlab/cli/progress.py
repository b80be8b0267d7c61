"""How far a sweep is: lines, or bars where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .show import say, visible

if TYPE_CHECKING:
    from ..lab.sweep import Plan, Trial


class Lines:
    """Progress as plain lines: one per trial that ended. Also what every form of progress shares: the count and the time left."""

    def __init__(self, planned: Plan, tell: Callable[[str], None]) -> None:
        self.planned, self.tell = planned, tell
        self.total, self.ended = len(planned.missing), 0
        self.seconds: list[float] = []  # of the trials that ended with a result
        self.shares: dict[str, float] = {}  # how far the running ones are

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def left(self) -> float | None:
        """Seconds, from what trials took themselves: the start of the workers, which comes once, must not count for each."""
        todo = self.total - self.ended - sum(self.shares.values())
        if not self.seconds:
            return None if self.planned.seconds is None else self.planned.seconds * todo / self.total
        return sum(self.seconds) / len(self.seconds) * todo / min(self.planned.workers, max(1, self.total - self.ended))

    def note(self) -> str:
        from ..lab.sweep import duration

        left = self.left()
        return "" if left is None or self.ended == self.total else f"{duration(left)} left"

    def hear(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        if kind == "step":
            self.shares[trial.name] = detail["step"] / trial.experiment.steps
        elif kind in ("ended", "lost"):
            self.shares.pop(trial.name, None)
        if kind == "ended":
            self.ended += 1
            if (seconds := detail["result"].get("seconds")) is not None:
                self.seconds.append(seconds)

    def __call__(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        self.hear(kind, trial, detail)
        if kind == "ended":
            note = self.note()
            self.tell(
                f"{self.ended}/{self.total} {trial.name}: {ending(detail['result'])}" + (f"; {note}" if note else "")
            )
        elif kind in ("lost", "quiet"):
            self.tell(f"{trial.name}: {detail['reason']}")


class Bars(Lines):
    """The same as bars that move: one for the sweep, one for each running trial."""

    def __enter__(self) -> Bars:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.progress = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                                 TextColumn("{task.fields[note]}", markup=False))  # fmt: skip
        self.progress.start()
        self.whole = self.progress.add_task("trials", total=self.total, note=self.note())
        self.running: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self.running.values():  # stopped: what stays on the screen is how far the sweep came
            self.progress.remove_task(bar)
        self.progress.stop()

    def __call__(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        self.hear(kind, trial, detail)
        if kind == "started":
            self.running[trial.name] = self.progress.add_task(trial.name, total=trial.experiment.steps, note="")
        elif kind == "step":
            self.progress.update(self.running[trial.name], completed=detail["step"], note=f"loss {detail['loss']:.3f}")
        elif kind in ("ended", "lost", "quiet"):
            if kind != "quiet":
                self.progress.remove_task(self.running.pop(trial.name))
            if kind != "ended" or detail["result"]["outcome"] != "trained":
                text = f"{trial.name}: {ending(detail['result']) if kind == 'ended' else detail['reason']}"
                self.progress.console.print(visible(text), highlight=False, markup=False)
        self.progress.update(self.whole, completed=self.ended, note=self.note())


def progress_of(planned: Plan, tell: Callable[[str], None]) -> Lines:
    return (Bars if sys.stdout.isatty() and tell is say else Lines)(planned, tell)


def ending(result: Mapping[str, Any]) -> str:
    if result["outcome"] == "failed":
        return f"FAILED: {result['error']}"
    if result["outcome"] == "trained":
        return f"loss {result['loss']:.4f} ({result['seconds']:.1f} s)"
    return f"{result['outcome']}: {result['cause']}"
