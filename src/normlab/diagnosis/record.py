"""A run as the rules read it, and what they find."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

from ..runs import Run, Series, decode
from .advice import ADVICE

SEVERITIES = ("critical", "warning", "note")

NOT_PROBED = ("loss", "held_out_loss", "held_out_half_width", "accuracy")  # written by a trainer, at steps of its own
FEW = 12  # readings of a quantity below which no window is drawn: a third of them is four
AGREE = 0.75  # share of a window's readings that must be beyond a threshold
OVER_TOKENS = ("batch", "power")  # kinds whose statistics come from the batch and its running average


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where and when, and what to do about it."""

    rule: str
    severity: str  # one of SEVERITIES
    site: str | None  # None: the model as a whole
    steps: tuple[int, int]  # first and last step of the evidence
    verdict: str
    why: str
    try_: tuple[str, ...]
    claim: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "severity": self.severity, "site": self.site, "steps": list(self.steps),
                "verdict": self.verdict, "why": self.why, "try": list(self.try_), "claim": self.claim}  # fmt: skip

    def __str__(self) -> str:
        first, last = self.steps
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        lines = [f"{self.severity}: {self.rule}", f"  {self.verdict}", f"  why       {self.why}"]
        lines += [f"  {'try' if n == 0 else '':<9} {text}" for n, text in enumerate(self.try_)]
        evidence = ", ".join(part for part in (self.site or "the whole model", when, self.claim) if part)
        return "\n".join([*lines, f"  evidence  {evidence}"])


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found, the gravest first; true if there is anything."""

    findings: tuple[Finding, ...]
    name: str
    last_step: int
    recorded: int  # steps with readings other than the loss
    quantities: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.name, "last_step": self.last_step, "recorded_steps": self.recorded,
                "quantities": list(self.quantities), "findings": [f.to_dict() for f in self.findings]}  # fmt: skip

    def __str__(self) -> str:
        looked = (
            f"{self.name}: {self.last_step} steps, {self.recorded} of them recorded, {len(self.quantities)} quantities"
        )
        few = f" Most rules need {FEW} recorded steps." if self.recorded < FEW else ""
        if not self.findings:
            return f"{looked}. No finding.{few}"
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        total = ", ".join(f"{n} {s}{'s' if n > 1 and s != 'critical' else ''}" for s, n in counts if n)
        return "\n\n".join([f"{looked}. {total}.{few}", *map(str, self.findings)])


class Record:
    """A run as rules see it: finite readings up to the first non-finite value, events, and the model's sites."""

    def __init__(self, run: Run) -> None:
        self.info = run.info
        self.events = run.events()
        table = run.table()
        self.quantities = tuple(sorted(table))
        self.last_step = max((s.steps[-1] for sites in table.values() for s in sites.values()), default=0)
        self.last_step = max([self.last_step, *(int(e["step"]) for e in self.events)])
        self.recorded = len(
            {step for q, sites in table.items() if q not in NOT_PROBED for s in sites.values() for step in s.steps}
        )
        self.broken = _first_break(table, self.events)
        self.broken_site = self._broken_site(table)
        self._table = {q: {site: _until(s, self.broken) for site, s in sites.items()} for q, sites in table.items()}
        found: Mapping[str, Any] = self.info.get("sites") or {}
        self.norms: dict[str, str] = dict(found.get("norms") or {})
        self.blocks: list[str] = list(found.get("blocks") or [])

    def _broken_site(self, table: Mapping[str, Mapping[str, Series]]) -> str | None:
        """The first block, in order of execution, whose output was not finite at that step."""
        if math.isinf(self.broken):
            return None
        for event in self.events:
            if event["event"] == "nonfinite":
                return _first_bad_frame(event)[1]
        sizes = {name: dict(pairs(series)) for name, series in table.get("stream_rms", {}).items()}
        bad = [n for n, at in sizes.items() if not math.isfinite(at.get(int(self.broken), 0.0))]
        return bad[0] if bad else None

    def sites(self, quantity: str) -> dict[str, Series]:
        return {site: s for site, s in self._table.get(quantity, {}).items() if len(s)}

    def late(self, quantity: str) -> dict[str, Series]:
        """The last third of each site that has enough readings."""
        return {site: w for site, s in self.sites(quantity).items() if (w := late(s)) is not None}

    def of_model(self, quantity: str) -> Series:
        return self._table.get(quantity, {}).get("model", Series([], []))

    @cached_property
    def stacks(self) -> list[list[str]]:
        """Blocks of one list each, lowest first."""
        stacks: dict[str, list[str]] = {}
        for name in self.blocks:
            stacks.setdefault(name.rpartition(".")[0], []).append(name)
        return list(stacks.values())

    def by_depth(self, quantity: str, stack: Sequence[str]) -> list[Series]:
        """One series per block of the stack, or nothing if a block has none."""
        sites = self.sites(quantity)
        return [sites[b] for b in stack] if all(b in sites for b in stack) else []

    def across_sites(self, quantity: str) -> Series:
        """The median over sites at each step."""
        steps: dict[int, list[float]] = {}
        for series in self.sites(quantity).values():
            for step, value in pairs(series):
                steps.setdefault(step, []).append(value)
        ordered = sorted(steps)
        return Series(ordered, [median(steps[s]) for s in ordered])


def pairs(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values, strict=True))


def _until(series: Series, end: float) -> Series:
    """Finite readings before ``end``."""
    kept = [(s, v) for s, v in pairs(series) if s < end and math.isfinite(v)]
    return Series([s for s, _ in kept], [v for _, v in kept])


def _first_break(table: Mapping[str, Mapping[str, Series]], events: Iterable[Mapping[str, Any]]) -> float:
    """The step of the first non-finite loss or block output, or infinity.

    Not of a gradient: its norm overflows, and a GradScaler skips such steps, in runs that go on.
    """
    steps = [_first_bad_frame(e)[0] for e in events if e["event"] == "nonfinite"]
    for quantity, bad in (("loss", lambda v: not math.isfinite(v)), ("stream_rms", math.isnan)):
        for series in table.get(quantity, {}).values():
            steps += [s for s, v in pairs(series) if bad(v)][:1]
    return min(steps, default=math.inf)


def _first_bad_frame(event: Mapping[str, Any]) -> tuple[int, str | None]:
    """(step, site) of the first frame with a non-finite value: on idle steps of a GPU the event itself comes later."""
    for frame in event.get("frames") or ():
        bad = [name for name, value in frame["largest"].items() if not math.isfinite(decode(value))]
        if bad or not math.isfinite(decode(frame["loss"])):
            return int(frame["step"]), bad[0] if bad else None
    return int(event["step"]), event.get("site")


def late(series: Series) -> Series | None:
    """The last third, or None if that would be less than four readings."""
    if len(series) < FEW:
        return None
    start = len(series) - len(series) // 3
    return Series(series.steps[start:], series.values[start:])


def above(window: Series | None, threshold: float) -> bool:
    """Do AGREE of the readings lie above?"""
    return window is not None and sum(v > threshold for v in window.values) >= AGREE * len(window)


def below(window: Series | None, threshold: float) -> bool:
    return window is not None and sum(v < threshold for v in window.values) >= AGREE * len(window)


def ratio(upper: Series, lower: Series) -> Series:
    """At the steps both have."""
    at = dict(pairs(lower))
    kept = [(s, v / at[s]) for s, v in pairs(upper) if at.get(s, 0.0) > 0]
    return Series([s for s, _ in kept], [v for _, v in kept])


def span_of(series: Series) -> tuple[int, int]:
    return series.steps[0], series.steps[-1]


def mid(series: Series) -> float:
    return median(series.values)


def shown(value: float) -> str:
    return f"{value:.3g}"


def worst_of(found: Iterable[tuple[float, str, Series]]) -> tuple[float, str, Series, str] | None:
    """(size, site, window, words for the others) of the largest."""
    ordered = sorted(found, key=lambda item: -item[0])
    if not ordered:
        return None
    size, site, window = ordered[0]
    return size, site, window, f" Other sites like it: {len(ordered) - 1}." if len(ordered) > 1 else ""


@dataclass(frozen=True)
class Course:
    """The loss in numbers that bear noise: medians, and how far one step lies from the next."""

    start: float  # median of the first 5
    low: float  # lowest median of a window
    low_steps: tuple[int, int]
    middle: float  # median of the second third
    late: float  # median of the last third
    end: float  # median of the last window
    noise: float  # median step to step change in the last two thirds
    calm: float  # the same, of the calmest third: a loss that diverges is noisy at the end
    steps: tuple[int, int]  # of the last window
    late_steps: tuple[int, int]


MIN_LOSSES = 30  # below, start, middle and end are not three things


def course(loss: Series) -> Course | None:
    n = len(loss)
    if n < MIN_LOSSES:
        return None
    width = max(5, n // 12)
    starts = [*range(0, n - width, max(1, width // 4)), n - width]
    medians = {i: median(loss.values[i : i + width]) for i in starts}
    at = min(medians, key=medians.__getitem__)
    third = n // 3
    changes = [abs(b - a) for a, b in pairwise(loss.values)]
    thirds = [median(changes[i : i + third]) for i in (0, third, n - third - 1)]
    return Course(
        start=median(loss.values[:5]), low=medians[at], low_steps=(loss.steps[at], loss.steps[at + width - 1]),
        middle=median(loss.values[third : n - third]), late=median(loss.values[n - third :]), end=medians[n - width],
        noise=median(changes[third:]), calm=min(thirds), steps=(loss.steps[n - width], loss.steps[-1]),
        late_steps=(loss.steps[n - third], loss.steps[-1]),
    )  # fmt: skip


def finding(
    rule: str, severity: str, site: str | None, steps: tuple[int, int], verdict: str, why: str, *tries: str
) -> Finding:
    """With the rule's advice, after any that comes from the numbers."""
    advice, claim = ADVICE[rule]
    return Finding(rule, severity, site, steps, verdict, why, (*tries, *advice), claim)
