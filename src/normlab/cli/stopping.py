"""SIGTERM, and where it can be heeded between two steps Ctrl-C, as ways to stop in good order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

SIGTERM_CODE = 128 + 15


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


@contextlib.contextmanager
def ended_by_sigterm(ask: Callable[[int], bool] | None = None) -> Iterator[None]:
    """SIGTERM raises here. With ``ask`` SIGTERM and Ctrl-C raise unless it says that the signal will be heeded soon; a second one
    always raises."""
    asked = False

    def end(number: int, _: object) -> None:
        nonlocal asked
        if asked or ask is None or not ask(number):
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        asked = True

    before = {}
    try:
        for number in (signal.SIGTERM,) if ask is None else (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, end)
    except ValueError:  # not in the main thread: signals are another's
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
