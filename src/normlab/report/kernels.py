"""What ``normlab bench --json FILE`` measured, as plain data for its page: how many times as fast as others, and how near to the limit.

A file is input: whatever does not look like a measurement is left out, and a file without any is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import RunUnreadable
from ..runs import read_json
from .shared_settings import flat

BYTES = 16 * 2**20
ROWS = 2000
LENGTH = 200  # of a name

Data = dict[str, Any]


def holds_kernels(path: Path) -> bool:
    """A file, and not a folder of runs: what is in it is looked at when it is read."""
    return path.is_file() and path.suffix == ".json"


def view(path: Path) -> Data:
    try:
        found = read_json(path, BYTES)
    except FileNotFoundError:
        raise RunUnreadable(f"{path} is not there") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise RunUnreadable(f"{path} holds no rows of measurements: it was not written by normlab bench --json")
    figures = _figures(row for row in rows[:ROWS] if isinstance(row, dict))
    if not figures:
        raise RunUnreadable(f"{path}: none of its rows has a ratio or a share of the limit")
    goals = [g for g in _list(found.get("goals"))[:ROWS] if isinstance(g, dict)]
    return {
        "kind": "kernels", "title": path.stem, "quick": found.get("quick") is True, "machine": flat(found.get("machine") or {}),
        "figures": figures, "goals": [goal for g in goals if (goal := _goal(g))],
    }  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name(value: Any) -> str:
    return value[:LENGTH] if isinstance(value, str) else ""


def _numbers(value: Any) -> dict[str, float]:
    """Positive ones: a time ratio or a share is nothing else."""
    found = value.items() if isinstance(value, dict) else ()
    return {_name(k): float(v) for k, v in found if isinstance(v, int | float) and not isinstance(v, bool) and v > 0}


def _figures(rows: Iterable[Data]) -> list[Data]:
    """One figure per family, kind of number and set of rivals; a line in it for every case, shape and dtype."""
    figures: dict[tuple[str, str, tuple[str, ...]], Data] = {}
    for row in rows:
        shape = "×".join(str(n) for n in _list(row.get("shape")) if isinstance(n, int))
        for what in ("ratios", "share_of_limit"):
            marks = _numbers(row.get(what))
            if not marks:
                continue
            family = _name(row.get("family"))
            of = figures.setdefault(
                (family, what, tuple(marks)), {"family": family, "what": what, "rivals": list(marks), "lines": []}
            )
            of["lines"].append(
                {
                    "case": _name(row.get("case")),
                    "shape": shape,
                    "dtype": _name(row.get("dtype")),
                    "values": list(marks.values()),
                }
            )
    return list(figures.values())


def _goal(goal: Data) -> Data | None:
    measured, target = (goal.get(k) for k in ("measured", "target"))
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (measured, target)):
        return None
    what = {"en": _name(goal.get("what")), "zh": _name(goal.get("what_zh") or goal.get("what"))}
    return {"what": what, "measured": measured, "target": target, "unit": _name(goal.get("unit")),
            "at_most": goal.get("at_most") is True, "met": goal.get("met") is True}  # fmt: skip
