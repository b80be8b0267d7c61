"""Reading files that may be anything, and replacing files as a whole.

A name in a folder may stand for a pipe that nobody writes to, a device without an end, or a terabyte; opening or reading it in
the ordinary way would never return. Here only regular files are read, up to a limit and to the length they had when opened.
It may also be a link to somewhere else: inside of :func:`confined` only what really lies below a folder is read, and what is
written in place (:func:`appending`) must be a file of its folder alone, in a folder that lies where its name says (:func:`check_place`).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import IO, Any

from ..errors import RunUnreadable

LINE = 16 * 2**20  # bytes of a line; a recorded step of a thousand norms has less than one million
DEPTH = 64  # levels of nesting: what walks over data must not run out of stack
LARGEST = 1e150  # of a number: its square is finite, so no mean or spread overflows
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONFINED: ContextVar[Path | None] = ContextVar("confined", default=None)


@contextmanager
def confined(root: str | Path) -> Iterator[None]:
    """Inside, reading is refused to what lies elsewhere than below this folder, all links followed. Threads begin unconfined."""
    before = _CONFINED.set(Path(os.path.realpath(root)))
    try:
        yield
    finally:
        _CONFINED.reset(before)


def _leads_out(path: Path, opened_as: os.stat_result) -> bool:
    """Looked at after opening: a link that is changed in between names another file than the one that is open."""
    root = _CONFINED.get()
    if root is None:
        return False
    real = Path(os.path.realpath(path))
    try:
        return not (real.is_relative_to(root) and os.path.samestat(os.stat(real), opened_as))
    except OSError:
        return True


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """(a regular file to read, its length now). FileNotFoundError if there is nothing of that name."""
    try:
        handle = os.open(path, _OPEN)  # without waiting: a pipe would keep us until somebody writes
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        raise RunUnreadable(f"{path.parent} is not a folder") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise RunUnreadable(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise RunUnreadable(f"{path} is not a regular file but {_kind(status.st_mode)}")
    if _leads_out(path, status):
        os.close(handle)
        raise RunUnreadable(f"{path} is a link that leads out of the folder that may be read")
    with open(handle, "rb") as file:
        try:
            yield file, status.st_size
        except OSError as error:
            raise RunUnreadable(f"{path} cannot be read: {error.strerror or error}") from error


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((word for is_kind, word in kinds if is_kind(mode)), "a device")


def read_json(path: Path, limit: int) -> Any:
    """What it holds. FileNotFoundError if there is nothing of that name; whatever else is wrong is refused in words."""
    try:
        return parsed(read_text(path, limit))
    except RunUnreadable:
        raise
    except json.JSONDecodeError as error:
        raise RunUnreadable(f"{path} is not valid JSON: {error}") from error
    except ValueError as error:
        raise RunUnreadable(f"{path}: {error}") from error


def read_text(path: Path, limit: int) -> str:
    with opened(path) as (file, size):
        data = file.read(min(size, limit) + 1)
    if len(data) > limit:
        raise RunUnreadable(f"{path} has {size} bytes, more than the {limit} such a file may have")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RunUnreadable(f"{path} is not UTF-8 text: {error}") from error


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line with its end). What is appended meanwhile is left for the next time."""
    with opened(path) as (file, left):
        number = 0
        while left > 0 and (line := file.readline(min(left, LINE + 1))):
            number += 1
            if len(line) > LINE:
                raise RunUnreadable(f"{path}, line {number} is longer than {LINE} bytes")
            left -= len(line)
            yield number, line


def parsed(text: str) -> Any:
    """JSON, cleaned: see :func:`clean`. ValueError if it is none or nested too deeply."""
    try:
        return clean(json.loads(text))
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH} levels") from None


def clean(value: Any, depth: int = DEPTH) -> Any:
    """None for numbers that JSON lacks, though Python would read them, or that are beyond LARGEST; no halves of a surrogate pair,
    which cannot be written again.
    """
    kind = type(value)
    if kind is str:
        return _SURROGATE.sub("\ufffd", value) if _SURROGATE.search(value) else value
    if kind is float:
        return value if -LARGEST <= value <= LARGEST else None
    if kind is int:
        return value if -(2**64) < value < 2**64 else None
    if kind in (dict, list) and depth == 0:
        raise ValueError(f"nested deeper than {DEPTH} levels")
    if kind is dict:
        return {clean(k): clean(v, depth - 1) for k, v in value.items()}
    if kind is list:
        return [clean(v, depth - 1) for v in value]
    return value


def bounded(value: float) -> float:
    """The number, or the infinity that stands for what lies beyond LARGEST."""
    return value if -LARGEST <= value <= LARGEST or value != value else math.inf if value > 0 else -math.inf


def present(path: Path) -> bool:
    """Is there something of that name, readable or not? A link that leads to itself is; for ``Path.exists`` it is not."""
    return os.path.lexists(path)


# ---- writing ---------------------------------------------------------------------------------------------------------


class LinkedElsewhere(RunUnreadable):
    """In the place of what a run or a sweep writes stands something else, such as a link to a file of somebody else's."""


def check_file(path: Path) -> None:
    """Refuse to write into a file that is there and not a regular one of this name alone. What is replaced needs no such check:
    that takes the place of a link."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        fault = f"is a link to {os.readlink(path)}, and would be written through"
    elif not stat.S_ISREG(status.st_mode):
        fault = f"is not a regular file but {_kind(status.st_mode)}"
    elif status.st_nlink > 1:
        fault = "is a hard link: the same file has another name elsewhere, and would be written there too"
    else:
        return
    raise LinkedElsewhere(f"{path} {fault}; remove it, or put a copy in its place")


def check_place(path: Path, root: Path) -> None:
    """Refuse to write below a folder that lies elsewhere than its name says, seen from ``root``; that one may lie behind links."""
    real = Path(os.path.realpath(path))
    if real != Path(os.path.realpath(root)) / path.relative_to(root):
        raise LinkedElsewhere(f"{path} is, or lies behind, a link to {real}; what is written must lie in {root} itself")


def appending(path: Path) -> FileIO:
    """A file to add to and to cut, without a buffer: a line that a full disk refused must not turn up later."""
    check_file(path)
    no_link = getattr(os, "O_NOFOLLOW", 0)  # one that comes after the check
    return FileIO(path, "a", opener=lambda name, flags: os.open(name, flags | no_link, 0o666))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which then takes the place of ``path``: the whole new one or the old one, never half of it."""
    partial = path.with_name(path.name + ".partial")
    with suppress(FileNotFoundError):
        partial.unlink()  # left by a kill; or a pipe, or a link to elsewhere, which must not be written through
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()  # half a file would only fill a disk that is full
        raise


def replace_file(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
