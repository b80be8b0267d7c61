"""The axes of a grid: what names a cell, and what varies within one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LR, SEED = "lr", "seed"
WITHIN_CELLS = (LR, SEED)  # all other axes name the cells

Axes = Mapping[str, Any]  # name: value, as JSON holds it


def outer(names: Iterable[str]) -> list[str]:
    """The axes that name cells."""
    return [name for name in names if name not in WITHIN_CELLS]


def check_distinct(name: str, values: Sequence[Any]) -> None:
    """Raises ValueError where a value stands twice: its trials would count twice."""
    if len({json.dumps(value) for value in values}) != len(values):
        shown = json.dumps(list(values))
        raise ValueError(f"axis {name!r} names a value twice: {shown if len(shown) < 200 else shown[:200] + ' ...'}")


def cell_name(axes: Axes) -> str:
    """The values of all axes but lr and seed, joined."""
    return "/".join(plain(v) for v in axes.values()) or "all"


def plain(value: Any) -> str:
    """A value as part of a cell's or a folder's name; a table of options by what stands in it."""
    if isinstance(value, Mapping):
        return "+".join(f"{plain(k)}-{plain(v)}" for k, v in value.items()) or "default"
    short = isinstance(value, float) and float(f"{value:g}") == value
    text = f"{value:g}" if short else value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "._+-" else "_" for c in text)


def same(axes: Axes) -> str:
    """A text that two cells share if they are one."""
    return json.dumps(axes, sort_keys=True)
