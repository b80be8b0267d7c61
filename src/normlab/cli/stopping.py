"""SIGTERM as a way to stop in good order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

SIGTERM_CODE = 128 + 15


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


@contextlib.contextmanager
def ended_by_sigterm(ask: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """SIGTERM raises here, unless ``ask`` says that it will be heeded soon; a second one always raises."""
    asked = False

    def end(*_: object) -> None:
        nonlocal asked
        if asked or not ask():
            raise Terminated
        asked = True

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: signals are another's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
