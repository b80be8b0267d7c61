"""What all verbs share on the terminal: text that does nothing, tables, and a parser that suggests what was meant.

Names and messages come out of files. What a terminal or rich would obey in them is shown instead: an escape sequence as \\x1b,
markup as it stands.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import shutil
import sys
import unicodedata
from typing import IO, Any, NoReturn


class OutputFailed(Exception):
    """Standard output cannot be written: its reader has left (BrokenPipeError), or it is a full disk. The cause is kept."""


def visible(text: object) -> str:
    """Without characters that a terminal obeys or cannot show; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(text))


def say(text: object) -> None:
    """A line on standard output."""
    try:
        print(visible(text), flush=True)
    except OSError as error:
        raise OutputFailed(str(error)) from error


def say_json(data: Any) -> None:
    """Strict: NaN and Infinity, which are no JSON, raise instead."""
    say(json.dumps(data, indent=1, allow_nan=False))


def note(text: object) -> None:
    """A line on standard error, as long as there is one: work does not end because nobody can be told of it."""
    try:
        print(visible(text), file=sys.stderr, flush=True)
    except OSError:
        to_nowhere(sys.stderr)


def to_nowhere(stream: IO[str]) -> None:
    """What it still holds would fail again, at the exit with a code of Python's own."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(verb: str, error: object) -> None:
    """One line, whatever the message holds."""
    note(f"normlab {verb}: " + " ".join(str(error).split()))


class Parser(argparse.ArgumentParser):
    """Names the nearest option or verb when one is unknown. One line and exit code 2; the usage is for --help."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = self._asked(found)
            known = [o for a in parser._actions for o in a.option_strings]
            near = [difflib.get_close_matches(word.split("=")[0], known, n=1) for word in rest if word.startswith("-")]
            hint = "".join(f" (did you mean {n[0]}?)" for n in near if n)
            parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return found

    def _asked(self, found: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the verb, and of the verb's verb: it knows the options that would have been right."""
        verbs = next((a for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)
        chosen = None if verbs is None else getattr(found, verbs.dest, None)
        return self if verbs is None or chosen is None else verbs.choices[chosen]._asked(found)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            near = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def width() -> int | None:
    """Columns of the terminal, or those that COLUMNS asks for; None where output goes elsewhere."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# Where a line may end: after a Chinese character with its punctuation, or between words.
PIECES = re.compile(r"[⺀-鿿＀-｠][，。；：、）]*|[^\s⺀-鿿＀-｠]+[，。；：、）]*|\s+")


def _cells(text: str) -> int:
    """Columns that it takes: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, columns: int, indent: str = "") -> str:
    """Broken between words or Chinese characters, never inside of a word; further lines begin with the indent."""
    lines, line, used = [], "", 0
    for part in PIECES.findall(text):
        size = _cells(part)
        if used + (0 if part.isspace() else size) > columns and line.strip():
            lines.append(line.rstrip())
            line, used = indent, len(indent)
        if not (part.isspace() and line == indent and lines):
            line, used = line + part, used + size
    return "\n".join([*lines, line])


def say_wrapped(text: str, indent: str = "") -> None:
    columns = width()
    say(text if columns is None else wrapped(visible(text), max(columns, 20), indent))


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=width() or 200)
    narrow = console.width < 100  # no room for lines between columns
    look: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)} if narrow else {}
    drawn = Table(title=Text(visible(title)), title_justify="left", show_header=any(columns), **look)
    texts = [[visible(text) for text in (column, *(row[i] for row in rows))] for i, column in enumerate(columns)]
    sizes = [max(map(_cells, column)) for column in texts]
    least = [max((_cells(word) for text in column for word in PIECES.findall(text)), default=1) for column in texts]
    room = console.width - (2 if narrow else 3) * len(columns) - 1
    while sum(sizes) > room and (spare := max(size - word for size, word in zip(sizes, least, strict=True))) > 0:
        sizes[next(i for i, size in enumerate(sizes) if size - least[i] == spare)] -= 1  # rich itself would cut words
    for column, size in zip(columns, sizes, strict=True):
        drawn.add_column(Text(visible(column)), overflow="fold", width=size if sum(sizes) <= room else None)
    for row in rows:
        drawn.add_row(*(Text(visible(value)) for value in row))
    try:
        console.print(drawn)
    except OSError as error:
        raise OutputFailed(str(error)) from error
