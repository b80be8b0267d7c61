"""Which steps are due to be recorded; whether they are is up to the :class:`~normlab.watch.budget.Budget`."""

from __future__ import annotations

import math


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
