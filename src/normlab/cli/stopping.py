"""SIGTERM, and where it can be heeded between two steps Ctrl-C, as ways to stop in good order; at once while something is imported."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGTERM_CODE = 128 + 15
STOPPED = "normlab: stopped"


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


def heed_signals() -> None:
    """From here on, where normlab is the program and not somebody's library. What the caller has ignored stays so."""
    program = sys.modules["__main__"]
    script, _ = os.path.splitext(os.path.basename(getattr(program, "__file__", None) or ""))
    if script == "normlab" or getattr(program, "__package__", None) == "normlab":
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == usual:
                signal.signal(number, heed)


def heed(number: int, frame: FrameType | None) -> None:
    """Raise where ``main`` catches it. An import must not see it: it may lose it, and torch's aborts when its C++ meets it."""
    caught = False
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            caught = False
            break
        caught |= frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == __package__
        frame = frame.f_back
    if caught:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
    with contextlib.suppress(OSError):
        os.write(2, STOPPED.encode() + b"\n")
    os._exit(128 + number)


@contextlib.contextmanager
def ended_by_sigterm(ask: Callable[[int], bool] | None = None) -> Iterator[None]:
    """SIGTERM raises here. With ``ask`` SIGTERM and Ctrl-C raise unless it says that the signal will be heeded soon; a second one
    always raises."""
    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or ask is None or not ask(number):
            if before.get(number) is heed:
                heed(number, frame)  # which raises, or ends it in the middle of an import
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        asked = True

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGTERM,) if ask is None else (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, end)
    except ValueError:  # not in the main thread: signals are another's
        yield
        return
    try:
        yield
    finally:
        for replaced, handler in before.items():
            signal.signal(replaced, handler)
