"""How many recordings the time allows: an opening credit, so that a short run says something, then ``max_overhead``.

Times are seconds of ``clock``; a "step" as a unit of price is the mean time of a step without what the watch spent in it. What a
recording will cost is the median of the last ones, an idle step the mean of the last without the dearest: on a busy machine a scheduler's
slice falls into one of them now and then. What has been spent is counted as it was.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

ENOUGH = 13  # recordings: the diagnosis draws a window from 12 readings, and what compares with the recording before has one less
OPENING = 200  # steps over which the credit may be spent ...
OPENING_SHARE = 0.10  # ... and its largest share of their time, the trace of idle steps included
LONG = 1000  # steps after which the whole must be within max_overhead
RESERVE = 0.1  # of the limit, never planned: so much more than its hooks count does a recording cost (torch calling them, cold caches)
SOON = 120  # steps within which ENOUGH recordings are aimed at
LEAN_GUESS = 0.4  # price of a lean recording over a whole one, until one has been made
FIRST = 0.5  # what a second recording is expected to cost, over the first
WHOLE, LEAN = "whole", "lean"
LATEST = 5, 50  # recordings that a price is the median of, idle steps that it is the mean of ...
SLICES = 2  # ... without so many of the dearest


class Budget:
    """The time that measuring has taken, and whether the next due step may be recorded, and how: whole, lean or not.

    ``opening``: is there a credit? A run that goes on has had its own.
    """

    def __init__(
        self, max_overhead: float | None, *, opening: bool = True, clock: Callable[[], float] | None = None
    ) -> None:
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise ValueError(
                f"max_overhead is a share of the time and must lie in (0, 1], or be None, got {max_overhead!r}"
            )
        self.max_overhead = max_overhead
        self._share = (1 - RESERVE) * (max_overhead or 0.0)  # what its own count is held to
        self.clock = clock or time.perf_counter
        self.opening = opening
        self.spent = 0.0
        self.started = self.clock()
        self.steps = self.idle_steps = 0
        self.due = self.whole = self.lean = 0  # steps
        self.idle_spent = 0.0  # the trace, on steps that are not recorded
        self.prices: dict[str, float] = {}  # of a recorded step, median of the latest
        self._latest: dict[str | None, deque[float]] = {
            how: deque(maxlen=LATEST[how is None]) for how in (WHOLE, LEAN, None)
        }
        self._spent_before = 0.0
        self._is_due = False  # the step that runs
        self._depth, self._since = 0, 0.0
        self._first = 0.0  # the first step's own time, which holds what happens once
        self._opening_overhead: float | None = None

    def __enter__(self) -> None:
        """``with budget:`` around all that measures; what lies inside of another such block is counted once."""
        if self._depth == 0:
            self._since = self.clock()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.spent += self.clock() - self._since

    @property
    def measuring(self) -> bool:
        return self._depth > 0

    def pause(self, seconds: float) -> None:
        self.started += seconds

    @property
    def recorded(self) -> int:
        return self.whole + self.lean

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def overhead(self) -> float:
        return self.spent / max(self.elapsed, 1e-9)

    def step_ended(self, how: str | None) -> None:
        """``how`` it was recorded; None: it was idle."""
        self.steps += 1
        self.due += self._is_due
        self._is_due = False
        price, self._spent_before = self.spent - self._spent_before, self.spent
        if self.steps == 1:
            self._first = self.elapsed - self.spent
        if self.steps == OPENING:
            self._opening_overhead = self.overhead()
        if how is None:
            self.idle_steps += 1
            self.idle_spent += price
            self._latest[None].append(price)
            return
        made = self.whole if how == WHOLE else self.lean
        if made == 1:
            self._latest[how].clear()  # the first recording has paid for what happens once (lazy imports, memory)
        self._latest[how].append(price)
        self.prices[how] = median(self._latest[how])
        if how == WHOLE:
            self.whole += 1
        else:
            self.lean += 1

    # ---- the next step

    def choose(self, lean: bool) -> str | None:
        """How to record the next step, which is due. ``lean``: is there a cheaper way than the whole set?

        The first is always whole. Until ENOUGH whole ones have been made the credit is spent at a pace that falls off with the
        square root of the steps; lean ones take the place of whole ones where those are too dear for all of them, and are
        no whole ones: what they leave of the credit goes into those that are missing.
        """
        self._is_due = True
        if self.max_overhead is None or not self.recorded:
            return WHOLE
        price = self.prices.get(WHOLE, 0.0) * (FIRST if self.whole == 1 else 1.0)
        if self.whole == 1 and LEAN in self.prices:
            # a lean one has told more than the first, which has paid for what happens once
            price = min(price, self.prices[LEAN] / LEAN_GUESS)
        cheap = self.prices.get(LEAN, LEAN_GUESS * price)
        made = self.spent - self.idle_spent
        credit = self._credit()
        step = self.steps + 1
        pace = math.sqrt(min(1.0, step / (SOON if self.whole < ENOUGH else OPENING)))
        allowed = max(self._earned(), credit * pace)
        missing = ENOUGH - self.recorded  # of either way, this one among them
        if made + price <= allowed and (
            not lean or missing <= 0 or made + price + (missing - 1) * cheap <= max(credit, allowed)
        ):
            return WHOLE
        too_dear = made + missing * price > credit
        if (
            lean
            and self.opening
            and missing > 0
            and too_dear
            and self.recorded <= ENOUGH * pace
            and made + cheap <= max(credit, allowed)
        ):
            return LEAN
        return None

    def _unit(self) -> float:
        """The time of a step without the watch; the first counts only while it is the only one."""
        own = self.elapsed - self.spent
        return own / max(1, self.steps) if self.steps < 2 else max(0.0, own - self._first) / (self.steps - 1)

    def _idle_price(self) -> float:
        """Of a step that is not recorded. Where none has been for long, no more than a recorded one."""
        if self.idle_steps:
            latest = sorted(self._latest[None])
            return fmean(latest[: max(1, len(latest) - SLICES)])  # a median would not see that one in ten is dear
        return min(self.prices.values(), default=0.0) if self.steps > OPENING / 4 else 0.0

    def _earned(self) -> float:
        """What the limit leaves for recordings by the end of the next step."""
        elapsed = self.elapsed
        return self._share * (elapsed + elapsed / max(1, self.steps)) - self.idle_spent

    def _credit(self) -> float:
        """For recordings: within OPENING_SHARE of the opening, and within max_overhead once LONG steps are over."""
        if not self.opening or self.max_overhead is None:
            return 0.0
        unit, idle = self._unit(), self._idle_price()

        def left(steps: int, share: float) -> float:
            """Of so many steps: idle ones as they were, and as they are expected to be."""
            return steps * share * unit - self.idle_spent - max(0, steps - self.steps) * idle

        return max(0.0, min(left(OPENING, OPENING_SHARE), left(LONG, self._share)))

    # ---- the account

    def account(self) -> dict[str, Any]:
        """For run.json: what was due, recorded and held back, what it cost, and what to change if that was too little."""
        unit = self._unit()
        opening = self.overhead() if self._opening_overhead is None else self._opening_overhead
        return {"due": self.due, "recorded": self.recorded, "lean": self.lean, "held_back": self.due - self.recorded,
                "opening_overhead": round(opening, 5),
                "price_in_steps": {how: round(p / unit, 3) for how, p in self.prices.items() if unit > 0},
                "idle_overhead": round(self.idle_spent / max(1, self.idle_steps) / unit, 5) if unit > 0 else None,
                "advice": self.advice()}  # fmt: skip

    def advice(self) -> str | None:
        """What to change, where fewer than ENOUGH were recorded in the whole set though there were steps for it."""
        held = self.due - self.recorded
        if self.whole >= ENOUGH or self.steps < ENOUGH:
            return None
        few = f"a diagnosis needs {ENOUGH} whole recordings"
        if self.due < ENOUGH:
            return f"{few}, and only {self.due} steps were due: set every={max(1, self.steps // (ENOUGH + 1))} or less"
        assert self.max_overhead is not None  # without a limit nothing is held back
        unit = max(self._unit(), 1e-12)
        price, idle = self.prices.get(WHOLE, 0.0) / unit, self._idle_price() / unit
        instead = "" if self.lean == 0 else f", {self.lean} were lean (the probes of the preset lite)"
        text = f"{few}: {held} due steps were held back{instead}; a whole one costs {price:.2g} steps"
        if idle > 0.5 * self.max_overhead:
            text += f", the trace of idle steps {idle:.1%} of the time (trace=False saves that)"
        share = (price * self.due + idle * self.idle_steps) / max(1, self.steps)
        cheaper = "" if self.prices.get(LEAN) is None else ', preset="lite"'
        return f"{text}: max_overhead=None records them all at about {share:.0%}{cheaper}, or train longer"
