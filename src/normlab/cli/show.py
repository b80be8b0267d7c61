"""What all verbs share on the terminal: text that does nothing, tables, and a parser that suggests what was meant.

Names and messages come out of files. What a terminal or rich would obey in them is shown instead: an escape sequence as \\x1b,
markup as it stands.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from typing import Any, NoReturn


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
    """A line on standard error, as long as there is one."""
    try:
        print(visible(text), file=sys.stderr, flush=True)
    except OSError as error:
        raise OutputFailed(str(error)) from error


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


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    drawn = Table(title=Text(visible(title)), title_justify="left", show_header=any(columns))
    for column in columns:
        drawn.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(visible(value)) for value in row))
    try:
        console.print(drawn)
    except OSError as error:
        raise OutputFailed(str(error)) from error
