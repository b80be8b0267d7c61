"""How far a sweep is: lines, or bars where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .show import say, visible
from .words import words_in

if TYPE_CHECKING:
    from ..lab.sweep import Message, Plan, Trial
    from ..runs import Result


class Lines:
    """Progress as plain lines: one per trial that ended. Also what every form of progress shares: the count and the time left."""

    def __init__(self, planned: Plan, tell: Callable[[str], None], language: str = "en") -> None:
        self.planned, self.tell, self.language, self.words = planned, tell, language, words_in(language)
        self.total, self.ended = len(planned.missing) + planned.later, 0
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
        from ..lab.told import duration

        left = self.left()
        if left is None or self.ended == self.total:
            return ""
        return self.words("left", time=duration(left, self.language))

    def why(self, message: Message) -> str | None:
        """Something happened to a trial that goes on."""
        return (message.reason_zh if self.language == "zh" else None) or message.reason

    def hear(self, kind: str, trial: Trial, message: Message) -> None:
        if message.step is not None:
            self.shares[trial.name] = message.step / trial.experiment.steps
        elif kind in ("ended", "lost"):
            self.shares.pop(trial.name, None)
        if message.result is not None:
            self.ended += 1
            if message.left is not None:  # fewer than planned, where rates turned out hopeless
                self.total = self.ended + message.left
            if message.result.seconds is not None:
                self.seconds.append(message.result.seconds)

    def __call__(self, kind: str, trial: Trial, message: Message) -> None:
        self.hear(kind, trial, message)
        if message.result is not None:
            note = self.note()
            how = ending(message.result, self.language)
            line = self.words("ended", ended=self.ended, total=self.total, name=trial.name, how=how)
            self.tell(line + (self.words("with", note=note) if note else ""))
        elif (why := self.why(message)) is not None:
            self.tell(self.words("told", name=trial.name, what=why))


class Bars(Lines):
    """The same as bars that move: one for the sweep, one for each running trial."""

    def __enter__(self) -> Bars:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.progress = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                                 TextColumn("{task.fields[note]}", markup=False))  # fmt: skip
        self.progress.start()
        self.whole = self.progress.add_task(self.words("trials"), total=self.total, note=self.note())
        self.running: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self.running.values():  # stopped: what stays on the screen is how far the sweep came
            self.progress.remove_task(bar)
        self.progress.stop()

    def __call__(self, kind: str, trial: Trial, message: Message) -> None:
        self.hear(kind, trial, message)
        if kind == "started":
            self.running[trial.name] = self.progress.add_task(trial.name, total=trial.experiment.steps, note="")
        elif kind == "step":
            self.progress.update(
                self.running[trial.name], completed=message.step, note=self.words("loss", loss=message.loss)
            )
        elif kind in ("ended", "lost", "quiet"):
            if kind != "quiet":
                self.progress.remove_task(self.running.pop(trial.name))
            if message.result is None or message.result.outcome != "trained":
                what = self.why(message) if message.result is None else ending(message.result, self.language)
                text = self.words("told", name=trial.name, what=what)
                self.progress.console.print(visible(text), highlight=False, markup=False)
        self.progress.update(self.whole, total=self.total, completed=self.ended, note=self.note())


def progress_of(planned: Plan, tell: Callable[[str], None], language: str = "en") -> Lines:
    return (Bars if sys.stdout.isatty() and tell is say else Lines)(planned, tell, language)


def ending(result: Result, language: str = "en") -> str:
    words = words_in(language)
    if result.outcome == "failed":
        return words("failed", error=result.error)
    if result.outcome == "trained":
        return words("trained", loss=result.loss, seconds=result.seconds)
    cause = (result.cause_zh if language == "zh" else None) or result.cause
    return words("told", name=words(str(result.outcome)), what=cause)
