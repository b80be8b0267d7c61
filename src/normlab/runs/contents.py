"""What run.json and a line of readings.jsonl may hold."""

from __future__ import annotations

import json
import math
from typing import Any

from .files import LARGEST, bounded, clean
from .records import Result
from .shapes import (
    Kind,
    Shape,
    anything,
    each,
    figure,
    flag,
    if_object,
    list_of,
    maybe,
    number,
    one_of,
    record,
    spelled,
    step,
    table_of,
    text,
    whole,
    wrong,
)

STATUSES = ("running", "finished", "failed", "interrupted")


def _result(value: dict[str, Any], where: str) -> dict[str, Any]:
    found = Result.from_dict(value, where).to_dict()
    return {name: found.get(name, held) for name, held in value.items()}


LEAK = record({}, {"step": step, "change": spelled, **each("site first_module", maybe(text))})
_NAMES = list_of(text)
# Of a model's structure what somebody reads; see surgery.Structure.
_BLOCK = record({"name": text}, {"branches": list_of(record({}, {"stream": _NAMES}))})
STRUCTURE = record({}, {
    "placement": maybe(text), "norms": list_of(record({"name": text}, {"kind": maybe(text)})),
    "stacks": list_of(record({"blocks": list_of(_BLOCK), "placement": text, "final_norms": _NAMES})),
})  # fmt: skip
RUN = record({"status": one_of(*STATUSES)}, {
    **each("created ended", maybe(text)), **each("seconds overhead", figure),
    "sites": maybe(record({}, {"norms": maybe(table_of(text)), "blocks": maybe(list_of(text))})),
    "coverage": maybe(record({}, each("norms fired", maybe(number)))),
    "leaks": lambda value, where: list_of(if_object(LEAK))(value, where) if type(value) is list else if_object(LEAK)(value, where),
    "optimizer": if_object(record({}, {"class": maybe(text), **each("lr weight_decay", figure), "decays_vectors": maybe(flag)})),
    "weights": if_object(table_of(whole)), "structure": if_object(STRUCTURE),
    "experiment": if_object(record({}, {"lr": figure})), "result": if_object(_result),
    "task": if_object(record({}, {"name": maybe(text), "unit": maybe(text), "blind": figure})),
})  # fmt: skip
RUN_FILE = Kind("run", "run.json", "normlab.run/1", RUN, 64 * 2**20)
_CLOUD = record(
    {"coordinates": list_of(list_of(number)), "neighbours": list_of(list_of(whole))},
    each("explained mean_cosine", figure),
)
EVENTS: dict[str, Shape] = {  # those that somebody reads; others may hold anything
    "nonfinite": record({}, {
        "site": maybe(text),
        "frames": maybe(list_of(record({"step": step, "loss": spelled, "largest": table_of(spelled)}))),
    }),
    "leak": LEAK,
    "token similarity": record(
        {"site": text, "places": list_of(whole), **each("before plain after", _CLOUD)}, {"tokens": maybe(list_of(whole))}
    ),
}  # fmt: skip


def reading(line: bytes) -> dict[str, Any]:
    """One line of readings.jsonl. Values are numbers or spelled; one beyond LARGEST is infinite. ValueError says what is wrong."""
    try:
        found = json.loads(line.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if type(found) is not dict:
        raise wrong("a line", "an object", found)
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
        raise wrong("values", "an object", values)
    for probe, sites in values.items():
        if type(sites) is not dict:
            raise wrong(f"values[{probe!r}]", "an object", sites)
        for site, value in sites.items():
            # There are millions of them: the usual case is settled here.
            if type(value) is not float or not -LARGEST <= value <= LARGEST:
                sites[site] = _odd(value, f"values[{probe!r}][{site!r}]")
    return values


def _odd(value: Any, where: str) -> float | str:
    if type(value) is int:
        return value if -(2**64) < value < 2**64 else math.inf if value > 0 else -math.inf
    return bounded(value) if type(value) is float else spelled(value, where)
