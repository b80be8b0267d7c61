"""Every exception normlab raises on its own account, and the words they share.

User mistakes are plain ``ValueError`` / ``TypeError`` with what was asked, what came and what to do; the classes below
exist where a caller may want to catch one case.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class KernelUnavailable(RuntimeError):
    """A kernel was requested by name and cannot serve this call."""


class TransformUnsupported(RuntimeError):
    """A differentiation that this op does not define, such as a second derivative of PowerNorm's running form."""


class BadSetting(ValueError):
    """An environment variable of normlab's holds what it cannot mean."""


class RunUnreadable(ValueError):
    """A folder that should hold a run and does not, or holds one of a schema this version does not know."""


class Unbuildable(ValueError):
    """Settings that are all known and cannot stand together; ``chinese`` says the same, for a page in two languages."""

    def __init__(self, text: str, chinese: str) -> None:
        super().__init__(text)
        self.chinese = chinese

    def __reduce__(self) -> tuple[type[Unbuildable], tuple[str, str]]:
        return type(self), (str(self), self.chinese)


class UnknownName(KeyError, ValueError):
    """A name that is not in a table; the message names the nearest that is."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class Table(dict[str, T]):
    """Names to facts, in order. Asked for an unknown name it suggests the nearest."""

    def __init__(self, kind: str, rows: Mapping[str, T]) -> None:
        super().__init__(rows)
        self.kind = kind

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownName(unknown(self.kind, name, self))


LISTED = 60  # names that a message can hold; of more, the nearest


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not in a table, with the nearest one that is."""
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if len(options) > LISTED:
        others = f" Near it: {', '.join(near[1:])}." if near[1:] else ""
        return f"unknown {kind} {name!r}, of {len(options)}.{hint}{others}"
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(options)}."


def require(what: str, extra: str, *modules: str) -> None:
    """Refuse ``what`` where modules that an extra installs are absent: before the work, not after it. Imports nothing."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        raise ImportError(f"{what} needs {', '.join(absent)}: pip install 'normlab[{extra}]'")


def need(what: str, extra: str, module: str) -> Any:
    """The module, for ``what``; where it cannot be imported, an error that names the extra and keeps the cause."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module.split('.')[0]}: pip install 'normlab[{extra}]'") from error
