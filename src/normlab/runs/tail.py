"""A run while it is written: what has come since a place in its readings.

A place is the file (by its number) and a byte in it. A run that goes on from a checkpoint is written into a new file, and one that
is shorter than the place was cut: then everything has to be read again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contents import reading
from .files import LINE, opened
from .run import READINGS, end_of_lines, not_a_reading

MOST = 2**20  # bytes of one turn; what is left comes with the next


@dataclass(frozen=True)
class Place:
    """Between two lines of readings.jsonl."""

    file: int = 0  # its number on the disk; 0: there is none yet
    byte: int = 0

    def __str__(self) -> str:
        return f"{self.file}-{self.byte}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """From what str() gave; None for anything else."""
        found = re.fullmatch(r"([0-9]{1,20})-([0-9]{1,18})", text)
        return None if found is None else cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Grown:
    """Whole lines, as ``Run.lines`` gives them, and where they end. ``anew``: the place was not in this file; nothing is given."""

    lines: list[dict[str, Any]]
    end: Place
    anew: bool = False


def end_of(folder: Path) -> Place:
    """Behind the last whole line that is there now."""
    path = folder / READINGS
    try:
        with opened(path) as (file, size):
            return Place(os.fstat(file.fileno()).st_ino, end_of_lines(path, file, size))
    except FileNotFoundError:
        return Place()


def grown(folder: Path, since: Place, most: int = MOST) -> Grown:
    """What has been written behind ``since``. The beginning of a line stays for later; a wrong line is an error with its byte."""
    path = folder / READINGS
    try:
        with opened(path) as (file, size):
            number = os.fstat(file.fileno()).st_ino
            if since.file not in (0, number) or since.byte > size:
                return Grown([], Place(number, 0), anew=True)
            file.seek(since.byte)
            data = file.read(min(size - since.byte, most))
            if b"\n" not in data and len(data) == most:  # one long line
                data += file.read(min(size - since.byte, LINE) - most)
    except FileNotFoundError:
        return Grown([], Place(), anew=since != Place())
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) >= LINE:
        raise not_a_reading(path, f"the line at byte {since.byte}", ValueError(f"longer than {LINE} bytes"))
    found, at = [], since.byte
    for line in whole.split(b"\n")[:-1]:
        try:
            found.append(reading(line))
        except ValueError as error:
            raise not_a_reading(path, f"the line at byte {at}", error) from error
        at += len(line) + 1
    return Grown(found, Place(number, at))
