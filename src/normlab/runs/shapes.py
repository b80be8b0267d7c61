"""What a file may hold: field by field, its type. What passes has these types; names that are not listed pass as they are.

A shape is a function (value, where) -> value that raises ValueError with the place and the fault. Only ``schema`` and what a
reader cannot do without must be there.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from ..errors import RunUnreadable
from .files import read_json

MOST_STEPS = 2**53
SPELLED = ("nan", "inf", "-inf")

T = TypeVar("T")
Shape = Callable[[Any, str], Any]


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60
_SHOWN.maxlevel = 2


def wrong(where: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{where} must be {wanted}, got {_SHOWN.repr(value)}")


def anything(value: Any, where: str) -> Any:
    return value


def text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise wrong(where, "text", value)
    return value


def flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise wrong(where, "true or false", value)
    return value


def number(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise wrong(where, "a finite number", value)
    return value


def whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise wrong(where, "a whole number of at least 0", value)
    return value


def step(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_STEPS:
        raise wrong(where, f"a whole number from 0 to {MOST_STEPS}", value)
    return value


def spelled(value: Any, where: str) -> Any:
    """A number, also as runs spell those that JSON lacks."""
    return value if value in SPELLED and type(value) is str else number(value, where)


def figure(value: Any, where: str) -> float | None:
    """A finite number or None, which stands for every other."""
    if (
        value is None
        or (type(value) is str and value in SPELLED)
        or (type(value) is float and not math.isfinite(value))
    ):
        return None
    return number(value, where)


def inside(value: Any, where: str) -> str:
    """A folder below this one."""
    path = PurePosixPath(text(value, where))
    if path.is_absolute() or ".." in path.parts or not value.isprintable():
        raise wrong(where, "a folder below this one", value)
    return value


def maybe(shape: Shape) -> Shape:
    return lambda value, where: None if value is None else shape(value, where)


def one_of(*words: str) -> Shape:
    def check(value: Any, where: str) -> str:
        if value not in words or type(value) is not str:
            raise wrong(where, f"one of {', '.join(words)}", value)
        return value

    return check


def list_of(shape: Shape, least: int = 0) -> Shape:
    def check(value: Any, where: str) -> list[Any]:
        if type(value) is not list or len(value) < least:
            raise wrong(where, "a list" if not least else f"a list of at least {least}", value)
        return [shape(v, f"{where}[{i}]") for i, v in enumerate(value)]

    return check


def table_of(shape: Shape) -> Shape:
    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(where, "an object", value)
        return {k: shape(v, f"{where}.{k}" if k.isidentifier() else f"{where}[{k!r}]") for k, v in value.items()}

    return check


def record(needed: Mapping[str, Shape], others: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these fields and any others."""
    shapes = {**needed, **(others or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(where or "what it holds", "an object", value)
        dot = f"{where}." if where else ""
        if lacking := [name for name in needed if name not in value]:
            raise ValueError(f"{dot}{lacking[0]} is missing")
        return {k: shapes[k](v, dot + k) if k in shapes else v for k, v in value.items()}

    return check


def if_object(shape: Shape) -> Shape:
    """Of a name that the lab uses, but a user's watch may have given to something else."""
    return lambda value, where: shape(value, where) if type(value) is dict else value


def each(names: str, shape: Shape) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), shape)


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A file of one JSON object that names its schema, and what is made of it."""

    what: str
    file: str
    schema: str
    shape: Callable[[Any, str], T]
    limit: int  # bytes


def read(folder: str | Path, kind: Kind[T]) -> T:
    """What the file holds; one that is missing, broken, misshapen or of another schema is refused in words."""
    path = Path(folder) / kind.file
    try:
        found = read_json(path, kind.limit)
        came = found.get("schema") if isinstance(found, dict) else None
        if came == kind.schema:
            return kind.shape(found, "")
    except FileNotFoundError:
        raise RunUnreadable(f"{path.parent} holds no {kind.what}: there is no {path.name} in it") from None
    except RunUnreadable:
        raise
    except ValueError as error:
        raise RunUnreadable(f"{path}: {error}") from error
    raise RunUnreadable(
        f"{path} has schema {_SHOWN.repr(came)}, this version reads {kind.schema!r}; a newer normlab may have written it"
    )
