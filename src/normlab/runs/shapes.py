"""What each file may hold: field by field, its type. What passes has these types; names that are not listed pass as they are.

A shape is a function (value, where) -> value that raises ValueError with the place and the fault. Only ``schema`` and what a
reader cannot do without must be there.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import RunUnreadable
from .files import LARGEST, bounded, clean, parsed, read_text

STATUSES = ("running", "finished", "failed", "interrupted")
MOST_TRIALS = 100_000  # of a sweep; planning them takes seconds, and two axes of a hostile file could ask for 10^12
MOST_STEPS = 2**53
SPELLED = ("nan", "inf", "-inf")

Shape = Callable[[Any, str], Any]


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60
_SHOWN.maxlevel = 2


def _wrong(where: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{where} must be {wanted}, got {_SHOWN.repr(value)}")


def anything(value: Any, where: str) -> Any:
    return value


def text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise _wrong(where, "text", value)
    return value


def flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise _wrong(where, "true or false", value)
    return value


def number(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise _wrong(where, "a finite number", value)
    return value


def whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise _wrong(where, "a whole number of at least 0", value)
    return value


def step(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_STEPS:
        raise _wrong(where, f"a whole number from 0 to {MOST_STEPS}", value)
    return value


def spelled(value: Any, where: str) -> Any:
    """A number, also as runs spell those that JSON lacks."""
    return value if value in SPELLED and type(value) is str else number(value, where)


def figure(value: Any, where: str) -> float | None:
    """A finite number or None, which stands for every other."""
    return None if value is None or (type(value) is str and value in SPELLED) else number(value, where)


def inside(value: Any, where: str) -> str:
    """A folder below this one."""
    path = PurePosixPath(text(value, where))
    if path.is_absolute() or ".." in path.parts or not value.isprintable():
        raise _wrong(where, "a folder below this one", value)
    return value


def maybe(shape: Shape) -> Shape:
    return lambda value, where: None if value is None else shape(value, where)


def one_of(*words: str) -> Shape:
    def check(value: Any, where: str) -> str:
        if value not in words or type(value) is not str:
            raise _wrong(where, f"one of {', '.join(words)}", value)
        return value

    return check


def list_of(shape: Shape, least: int = 0) -> Shape:
    def check(value: Any, where: str) -> list[Any]:
        if type(value) is not list or len(value) < least:
            raise _wrong(where, "a list" if not least else f"a list of at least {least}", value)
        return [shape(v, f"{where}[{i}]") for i, v in enumerate(value)]

    return check


def table_of(shape: Shape) -> Shape:
    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(where, "an object", value)
        return {k: shape(v, f"{where}.{k}" if k.isidentifier() else f"{where}[{k!r}]") for k, v in value.items()}

    return check


def record(needed: Mapping[str, Shape], others: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these fields and any others."""
    shapes = {**needed, **(others or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(where or "what it holds", "an object", value)
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


# ---- a run -----------------------------------------------------------------------------------------------------------

CURVE = maybe(list_of(lambda value, where: list_of(figure)(_pair(value, where), where)))
RESULT = record({}, {
    "outcome": text, "curve": CURVE, **each("cause error", maybe(text)),
    **each("steps loss loss_half_width accuracy train_loss first_loss diverged_at seconds overhead_seconds tokens_per_second "
           "matmul_share peak_memory parameters training_seconds evaluation_seconds", figure),
})  # fmt: skip
LEAK = record({}, {"step": step, "change": spelled, **each("site first_module", maybe(text))})
RUN = record({"status": one_of(*STATUSES)}, {
    **each("created ended", maybe(text)), **each("seconds overhead", figure),
    "sites": maybe(record({}, {"norms": maybe(table_of(text)), "blocks": maybe(list_of(text))})),
    "coverage": maybe(record({}, each("norms fired", maybe(number)))),
    "leaks": lambda value, where: list_of(if_object(LEAK))(value, where) if type(value) is list else if_object(LEAK)(value, where),
    "optimizer": if_object(record({}, {"class": maybe(text), **each("lr weight_decay", figure), "decays_vectors": maybe(flag)})),
    "weights": if_object(table_of(whole)),
    "experiment": if_object(record({}, {"lr": figure})), "result": if_object(RESULT),
    "task": if_object(record({}, {"name": maybe(text), "unit": maybe(text), "blind": figure})),
})  # fmt: skip
EVENTS: dict[str, Shape] = {  # those that somebody reads; others may hold anything
    "nonfinite": record({}, {
        "site": maybe(text),
        "frames": maybe(list_of(record({"step": step, "loss": spelled, "largest": table_of(spelled)}))),
    }),
    "leak": LEAK,
}  # fmt: skip


def _pair(value: Any, where: str) -> Any:
    if type(value) is not list or len(value) != 2 or type(value[0]) not in (int, float):
        raise _wrong(where, "a step and a number", value)
    return value


def reading(line: bytes) -> dict[str, Any]:
    """One line of readings.jsonl. Values are numbers or spelled; one beyond LARGEST is infinite. ValueError says what is wrong."""
    try:
        found = json.loads(line.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if type(found) is not dict:
        raise _wrong("a line", "an object", found)
    if "step" not in found:
        raise ValueError("step is missing")
    step(found["step"], "step")
    values = found.pop("values", None)
    if len(found) > 1:
        found = clean(found)
        if found.get("time") is not None:
            number(found["time"], "time")
        if "event" in found:
            event = text(found["event"], "event")
            found = EVENTS.get(event, anything)(found, "")
    if values is not None:
        found["values"] = _values(values)
        if b"\\ud" in line or b"\\uD" in line:  # names may have halves of surrogate pairs
            found["values"] = {clean(p): {clean(s): v for s, v in sites.items()} for p, sites in values.items()}
    return found


def _values(values: Any) -> dict[str, dict[str, Any]]:
    if type(values) is not dict:
        raise _wrong("values", "an object", values)
    for probe, sites in values.items():
        if type(sites) is not dict:
            raise _wrong(f"values[{probe!r}]", "an object", sites)
        for site, value in sites.items():
            # There are millions of them: the usual case is settled here.
            if type(value) is not float or not -LARGEST <= value <= LARGEST:
                sites[site] = _odd(value, f"values[{probe!r}][{site!r}]")
    return values


def _odd(value: Any, where: str) -> float | str:
    if type(value) is int:
        return value if -(2**64) < value < 2**64 else math.inf if value > 0 else -math.inf
    return bounded(value) if type(value) is float else spelled(value, where)


# ---- a sweep and its summary -----------------------------------------------------------------------------------------

_REFUSED = maybe(list_of(record({"axes": table_of(anything), "reason": text}, {"cell": text})))
_OF_TASK = {**each("task unit created", maybe(text)), "blind": figure}


def _axes(value: Any, where: str) -> dict[str, list[Any]]:
    found = table_of(list_of(anything, least=1))(value, where)
    for name, shape in (("lr", number), ("seed", whole)):
        if name in found:
            list_of(shape)(found[name], f"{where}.{name}")
    trials = math.prod(map(len, found.values()))
    if trials > MOST_TRIALS:
        raise ValueError(f"{where} ask for {trials} trials, more than {MOST_TRIALS}")
    return found


_SWEEP = record({"axes": _axes}, {
    **_OF_TASK, "base": maybe(record({}, {"task": maybe(text), **each("lr steps", maybe(number)), "seed": maybe(whole)})),
    "baseline": maybe(table_of(anything)), "refused": _REFUSED,
})  # fmt: skip
_COUNTS = each("n trained untrained collapsed diverged failed", maybe(whole))
_DIFFERENCE = record(
    {}, {**each("mean low high p p_holm", figure), **each("n seeds_needed", maybe(whole)), "decided": maybe(flag)}
)
_CELL = record({"cell": text}, {
    "axes": maybe(table_of(anything)), "rank": maybe(whole),
    "rates": maybe(list_of(record({"lr": number}, {**_COUNTS, **each("mean low high", figure)}))),
    **each("best_lr mean low high largest_stable_lr divergence_rate steps_to_target tokens_per_second peak_memory", figure),
    "n": maybe(whole), "best_at_edge": maybe(one_of("low", "high")),
    **each("stable_up_to_edge tied_with_best", maybe(flag)), "difference": maybe(_DIFFERENCE),
})  # fmt: skip
_TRIAL = record({"cell": text}, {
    **each("name outcome cause error", maybe(text)), "folder": maybe(inside), "lr": figure, "seed": maybe(whole), "curve": CURVE,
    **each("steps loss diverged_at", figure),
})  # fmt: skip
_SUMMARY = record({}, {
    **_OF_TASK, **each("steps target_loss", figure), "baseline": maybe(text), "complete": maybe(flag),
    "trials": maybe(list_of(_TRIAL)), "cells": maybe(list_of(_CELL)), "refused": _REFUSED,
    "verdict": maybe(record({}, each("en zh", maybe(list_of(text))))),
})  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A file of one JSON object that names its schema."""

    what: str
    file: str
    schema: str
    shape: Shape
    limit: int  # bytes


RUN_FILE = Kind("run", "run.json", "normlab.run/1", RUN, 64 * 2**20)
SWEEP = Kind("sweep", "sweep.json", "normlab.sweep/1", _SWEEP, 64 * 2**20)
SUMMARY = Kind("summary", "summary.json", "normlab.summary/1", _SUMMARY, 512 * 2**20)


def read(folder: str | Path, kind: Kind) -> dict[str, Any]:
    """What the file holds; one that is missing, broken, misshapen or of another schema is refused in words."""
    path = Path(folder) / kind.file
    try:
        found = parsed(read_text(path, kind.limit))
        came = found.get("schema") if isinstance(found, dict) else None
        if came == kind.schema:
            return kind.shape(found, "")
    except FileNotFoundError:
        raise RunUnreadable(f"{path.parent} holds no {kind.what}: there is no {path.name} in it") from None
    except RunUnreadable:
        raise
    except json.JSONDecodeError as error:
        raise RunUnreadable(f"{path} is not valid JSON: {error}") from error
    except ValueError as error:
        raise RunUnreadable(f"{path}: {error}") from error
    raise RunUnreadable(
        f"{path} has schema {_SHOWN.repr(came)}, this version reads {kind.schema!r}; a newer normlab may have written it"
    )
