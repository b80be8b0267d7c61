"""A run as the rules read it: its readings, and what it knows of its model and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any

from ..runs import Run, Series, decode
from .advice import SOURCES, advised
from .finding import Finding
from .windows import late, pairs, shown
from .words import LANGUAGES, say

NOT_PROBED = ("loss", "held_out_loss", "held_out_half_width", "accuracy")  # written by a trainer, at steps of its own
OVER_TOKENS = ("batch", "power")  # kinds whose statistics come from the batch and its running average
IN_ORDER = ("length", "eps_share", "anisotropy", "batch_mean_distance")  # of norms, noted as they are called


class Record:
    """Finite readings up to the first non-finite value, events, the model's sites, and facts for the advice."""

    def __init__(self, run: Run, language: str = "en") -> None:
        if language not in LANGUAGES:
            raise ValueError(f"a diagnosis speaks {' or '.join(LANGUAGES)}, not {language!r}")
        self.language = language
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

    # ---- what the run knows

    @cached_property
    def placement(self) -> str | None:
        """As recorded: by a trial of the lab, by the user's config, or as the watch read it off the graph."""
        for holder in ("experiment", "config", "structure"):
            held = self.info.get(holder)
            found = held.get("placement") if isinstance(held, Mapping) else None
            if isinstance(found, str) and found != "unknown":
                return found
        return None

    def has_final_norm(self, stack: Sequence[str]) -> bool | None:
        """Does a norm follow the last of these blocks? As the watch read it off the graph; None: it did not."""
        structure = self.info.get("structure")
        for found in structure.get("stacks", ()) if isinstance(structure, Mapping) else ():
            if found["placement"] != "unknown" and stack[-1] in [block["name"] for block in found["blocks"]]:
                return bool(found["final_norms"])
        return None

    def features_last(self, norm: str) -> bool:
        """Are a token's features the last axis of what this norm gets? As the watch found it; yes where it did not say."""
        structure = self.info.get("structure")
        norms = structure.get("norms") if isinstance(structure, Mapping) else None
        return next((n.get("channel_dim", -1) == -1 for n in norms or () if n["name"] == norm), True)

    @cached_property
    def calls(self) -> list[str]:
        """Norms in the order in which they were called; empty where no probe looked at norms."""
        return next((list(self._table[q]) for q in IN_ORDER if len(self._table.get(q, {})) > 1), [])

    @cached_property
    def rate(self) -> float | None:
        """The largest learning rate recorded."""
        values = self.of_model("lr").values
        return max(values) if values else None

    @cached_property
    def optimizer(self) -> Mapping[str, Any]:
        found = self.info.get("optimizer")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def decay(self) -> float:
        """The largest weight decay; NaN: unknown."""
        found = self.optimizer.get("weight_decay")
        return float(found) if isinstance(found, (int, float)) else math.nan

    @cached_property
    def weights(self) -> Mapping[str, Any]:
        found = self.info.get("weights")
        return found if isinstance(found, Mapping) else {}

    # ---- words

    def say(self, key: str, **facts: object) -> str:
        return say(self.language, key, **{k: shown(v) if isinstance(v, float) else v for k, v in facts.items()})

    def others(self, count: int) -> str:
        return self.say("others", count=count) if count else ""

    def found(
        self,
        rule: str,
        severity: str,
        site: str | None,
        steps: tuple[int, int],
        why: str,
        *,
        case: str = "",
        **facts: object,
    ) -> Finding:
        """With the rule's verdict (of that case) and its advice, both filled with the facts."""
        given: dict[str, Any] = {"site": site or say(self.language, "whole-model"), "rate": self.rate or math.nan,
                 "optimizer": self.optimizer.get("class", "optimizer"), "placement": self.placement or "?", **facts}  # fmt: skip
        verdict = self.say(f"{rule}{'/' + case if case else ''}", **given)
        tries = tuple(self.say(key, **{**given, **more}) for key, more in advised(self, rule, case, given))
        return Finding(rule, severity, site, steps, verdict, why, tries, SOURCES[rule], self.language)


def _until(series: Series, end: float) -> Series:
    """Finite readings before ``end``."""
    if (not series.steps or series.steps[-1] < end) and all(map(math.isfinite, series.values)):
        return series  # nearly always, and there may be millions
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


def worst_of(found: Iterable[tuple[float, str, Series]]) -> tuple[float, str, Series, int] | None:
    """(size, site, window, number of others) of the largest."""
    ordered = sorted(found, key=lambda item: -item[0])
    if not ordered:
        return None
    size, site, window = ordered[0]
    return size, site, window, len(ordered) - 1
