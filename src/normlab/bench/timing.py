"""Timing two sides of a comparison in one run, and what came out of it.

A ratio is the median over rounds of (their time / our time), the two measured right after each other, so that drift of
a shared machine hits both. Times are the fastest round and only for orientation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Side = Callable[[], Any]


@dataclass(kw_only=True)
class Row:
    """One comparison: ``sides`` maps a name to its fastest time in seconds, ``ratios`` a rival to median(rival / ours)."""

    family: str
    case: str
    shape: tuple[int, ...]
    dtype: str
    sides: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    share_of_limit: dict[str, float] = field(default_factory=dict)
    share_of_step: dict[str, float] = field(default_factory=dict)  # of a training step, in normalization


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One line of the table of goals: what was measured, what was to be reached."""

    what: str
    what_zh: str
    measured: float
    target: float
    unit: str = "x"
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.target if self.at_most else self.measured >= self.target


def interleave(
    sides: dict[str, Side], seconds: float = 1.0, most_rounds: int = 25, equal_calls: bool = False
) -> dict[str, list[float]]:
    """Times of each side per round: each side in turn, a few calls at a time.

    ``equal_calls``: as many for every side, so that none finds its data warmer in the cache by being called more often.
    """
    for side in sides.values():  # warm up: allocator, thread pool, caches, compiler
        side()
        side()
    calls = {}
    for name, side in sides.items():
        start = time.perf_counter()
        side()
        calls[name] = max(1, min(400, int(2e-3 / max(time.perf_counter() - start, 1e-7))))
    if equal_calls:
        calls = dict.fromkeys(calls, max(calls.values()))
    times: dict[str, list[float]] = {name: [] for name in sides}
    started = time.perf_counter()
    while len(times[next(iter(sides))]) < most_rounds:
        for name, side in sides.items():
            side()  # not timed: no side pays for the state that the previous one left
            start = time.perf_counter()
            for _ in range(calls[name]):
                side()
            times[name].append((time.perf_counter() - start) / calls[name])
        if time.perf_counter() - started > seconds and len(times[name]) >= 5:
            break
    return times


def compare(row: Row, sides: dict[str, Side], seconds: float, ours: str = "ours") -> Row:
    times = interleave(sides, seconds)
    row.sides = {name: min(t) for name, t in times.items()}
    row.ratios = {
        name: statistics.median(a / b for a, b in zip(t, times[ours], strict=True))
        for name, t in times.items()
        if name != ours
    }
    return row


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
