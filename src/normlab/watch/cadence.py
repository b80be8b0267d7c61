"""Which steps are recorded: the cadence proposes, the time spent so far disposes."""

from __future__ import annotations

import math
import time


class Cadence:
    """Which steps are due: "every 10 steps", "every 5 seconds" or "log" (1, 2, 5, 10, 20, 50, ...)."""

    def __init__(self, every: int | str) -> None:
        self.text = every
        self.steps: int | None = None
        self.seconds: float | None = None
        if isinstance(every, int) and every >= 1:
            self.steps = every
        elif isinstance(every, str) and every.endswith("s") and _is_number(every[:-1]) and float(every[:-1]) > 0:
            self.seconds = float(every[:-1])
        elif every != "log":
            raise ValueError(f'every must be a number of steps, seconds as "5s", or "log", got {every!r}')

    def due(self, step: int, since_last: float) -> bool:
        if self.steps is not None:
            return step % self.steps == 0 or step == 1
        if self.seconds is not None:
            return step == 1 or since_last >= self.seconds
        return step in (lead * 10 ** int(math.log10(step)) for lead in (1, 2, 5))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Budget:
    """The time that measuring has taken, and whether another recorded step is within ``max_overhead`` of the whole."""

    def __init__(self, max_overhead: float | None) -> None:
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise ValueError(
                f"max_overhead is a share of the time and must lie in (0, 1], or be None, got {max_overhead!r}"
            )
        self.max_overhead = max_overhead
        self.spent = 0.0  # seconds
        self.started = time.perf_counter()
        self._price = 0.0  # seconds, of a recorded step, recent average
        self._spent_before = 0.0
        self._depth, self._since = 0, 0.0

    def __enter__(self) -> None:
        """``with budget:`` around all that measures; what lies inside of another such block is counted once."""
        if self._depth == 0:
            self._since = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.spent += time.perf_counter() - self._since

    def step_ended(self, recorded: int | None) -> None:
        """``recorded``: how many steps have been, this one included; None: it was idle."""
        if recorded is not None:
            price = self.spent - self._spent_before
            self._price = price if recorded <= 2 else 0.7 * self._price + 0.3 * price
        self._spent_before = self.spent

    def affords(self, steps: int) -> bool:
        """May the next step be recorded, after this many?"""
        if self.max_overhead is None:
            return True
        elapsed = time.perf_counter() - self.started
        return self.spent + self._price <= self.max_overhead * (elapsed + elapsed / steps)

    def pause(self, seconds: float) -> None:
        self.started += seconds

    def overhead(self) -> float:
        return self.spent / max(time.perf_counter() - self.started, 1e-9)
