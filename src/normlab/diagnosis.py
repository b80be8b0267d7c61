"""What a run's readings say is wrong: rules over what was recorded, each with its threshold and where that comes from.

A rule is a pure function from a :class:`Record` to findings; RULES lists them, causes before consequences. It looks at
windows (the late third of the run), asks for several readings that agree, and stays silent where there are too few:
the start of a training is wild in every healthy model. Readings after the first non-finite value are left out. Each
rule reports its worst site once and counts the others.

"Measured" in a docstring means: decoders, encoders and image models of this package on text and noisy patterns, 16 to
32 wide, 2 to 24 layers, every placement, AdamW and SGD, 40 to 1000 steps, 1 to 5 seeds each. Healthy means that the
loss fell as it does under "pre". Thresholds lie between the healthy and the sick values found there. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from .runs import Run, Series, decode

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


# ---- what rules look at ----------------------------------------------------------------------------------------------


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
        sizes = {name: dict(_pairs(series)) for name, series in table.get("stream_rms", {}).items()}
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
            for step, value in _pairs(series):
                steps.setdefault(step, []).append(value)
        ordered = sorted(steps)
        return Series(ordered, [median(steps[s]) for s in ordered])


def _pairs(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values, strict=True))


def _until(series: Series, end: float) -> Series:
    """Finite readings before ``end``."""
    kept = [(s, v) for s, v in _pairs(series) if s < end and math.isfinite(v)]
    return Series([s for s, _ in kept], [v for _, v in kept])


def _first_break(table: Mapping[str, Mapping[str, Series]], events: Iterable[Mapping[str, Any]]) -> float:
    """The step of the first non-finite loss or block output, or infinity.

    Not of a gradient: its norm overflows, and a GradScaler skips such steps, in runs that go on.
    """
    steps = [_first_bad_frame(e)[0] for e in events if e["event"] == "nonfinite"]
    for quantity, bad in (("loss", lambda v: not math.isfinite(v)), ("stream_rms", math.isnan)):
        for series in table.get(quantity, {}).values():
            steps += [s for s, v in _pairs(series) if bad(v)][:1]
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
    at = dict(_pairs(lower))
    kept = [(s, v / at[s]) for s, v in _pairs(upper) if at.get(s, 0.0) > 0]
    return Series([s for s, _ in kept], [v for _, v in kept])


def _span(series: Series) -> tuple[int, int]:
    return series.steps[0], series.steps[-1]


def _mid(series: Series) -> float:
    return median(series.values)


def _n(value: float) -> str:
    return f"{value:.3g}"


def _worst(found: Iterable[tuple[float, str, Series]]) -> tuple[float, str, Series, str] | None:
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


# ---- what to try -----------------------------------------------------------------------------------------------------

# rule: (what to try, what is behind it)
ADVICE: dict[str, tuple[tuple[str, ...], str]] = {
    "nonfinite": (
        ("in 16 bits: bfloat16, or a GradScaler, given to watch(scaler=) as well",), "the run itself",
    ),
    "leak": (
        ('a norm that looks at one token: norm="layer" or "rms"',
         'causal_statistics="position" or "running" for norm="batch"'),
        "normlab.leaks",
    ),
    "loss-divergence": (
        ("a learning rate 3 to 10 times lower, or warm-up, or gradient clipping",
         'placement "pre", "peri" or "deepnorm" in place of "post" or "none"', 'qk_norm="head" if max_logit grew'),
        "arXiv 2309.14322",
    ),
    "learning-rate-high": (
        ("warm-up over the first hundreds of steps", 'a placement that bears larger steps: "pre", "peri", "sub-ln"'),
        "arXiv 2002.04745, 2309.14322",
    ),
    "learning-rate-low": (("a look at the schedule: has it left its warm-up?",), "probes.quantities.UpdateRatio"),
    "loss-spike": (
        ("gradient clipping, or a lower beta2 (0.95) for Adam", 'qk_norm="head" if max_logit jumped first',
         "a look at the batch of that step"),
        "arXiv 2304.13013",
    ),
    "exploding-gradient": (
        ('a placement with norms: "pre" for a start, "deepnorm" for depth',
         "gradient clipping hides it and does not cure it"),
        "arXiv 2002.04745",
    ),
    "vanishing-gradient": (
        ('placement "pre", or "deepnorm" to keep the norm behind the sum',
         'placement "b2t" or "admin": other post-norms for depth',
         "warm-up: post-norm needs it from about 8 layers on, and from 12 it may not be enough"),
        "arXiv 2002.04745, 2203.00555",
    ),
    "token-collapse": (
        ('placement "pre" or "deepnorm", which keep the input in the stream', "a lower learning rate, or warm-up"),
        "arXiv 2103.03404, 2206.03126",
    ),
    "stream-growth": (
        ('placement "peri" or "layernorm-scaling", which slow the growth; "deepnorm", which has none',
         "a lower learning rate; weight decay"),
        "arXiv 2002.04745, 2502.02732",
    ),
    "missing-final-norm": (
        ("final_norm=True, which this placement has by default", 'placement "post" or "deepnorm", which end in a norm'),
        "arXiv 2002.04745",
    ),
    "dead-upper-blocks": (
        ('placement "mix-ln", "deepnorm" or "layernorm-scaling"', "fewer layers: these cost and do not pay"),
        "arXiv 2403.17887, 2502.05795",
    ),
    "padding-contamination": (
        ('norm="batch" of normlab, which takes the mask; placements pass it on',
         'norm="layer" or "rms", which never see another token'),
        "arXiv 2003.07845",
    ),
    "unstable-batch-statistics": (
        ("more tokens per batch, or sync=True over processes", 'norm="power", or renorm=(r, d) of BatchNorm',
         'norm="layer" or "rms"'),
        "arXiv 2003.07845, 2210.05153",
    ),
    "train-inference-gap": (
        ("more tokens per batch; momentum=None for the mean of all batches",
         'norm="power", which trains with its running statistics', "freeze() for the last part of the training"),
        "arXiv 2210.05153",
    ),
    "gain-explosion": (
        ("a look at what writes to this weight", "the learning rate and the weight decay of the gains",
         'norm="scale", which has one gain'),
        "arXiv 2209.13325",
    ),
    "dead-gain": (
        ("no weight decay on gains", 'gain="offset", whose decay goes to 1',
         "fewer layers, if the block is not needed"),
        "arXiv 1911.07013",
    ),
    "attention-logit-growth": (
        ('qk_norm="head"', 'placement "hybrid-norm", which normalizes queries, keys and values',
         "a lower learning rate"),
        "arXiv 2303.06296, 2302.05442",
    ),
}  # fmt: skip


def _finding(
    rule: str, severity: str, site: str | None, steps: tuple[int, int], verdict: str, why: str, *tries: str
) -> Finding:
    """With the rule's advice, after any that comes from the numbers."""
    advice, claim = ADVICE[rule]
    return Finding(rule, severity, site, steps, verdict, why, (*tries, *advice), claim)


# ---- rules: what must not happen -------------------------------------------------------------------------------------

RUN_UP = 4.0  # largest values of healthy models change by less than 1.5 over the 16 steps of a trace


def nonfinite(record: Record) -> Iterator[Finding]:
    """A loss or a block's output that is not finite. No threshold.

    The site is the first block, in order of execution, whose output was not finite; gradients do not count. The trace
    of largest values before it tells growth (by RUN_UP or more) from a sudden event: a broken batch, a bad write.
    """
    if math.isinf(record.broken):
        return
    step, site = int(record.broken), record.broken_site
    first, told = step, ""
    tries = ["a look at this step's batch, and at whatever writes to the weights"]
    events = [e for e in record.events if e["event"] == "nonfinite"]
    frames = [f for f in (events[0].get("frames") or () if events else ()) if f["step"] < step]
    if frames and frames[0]["largest"]:
        first = int(frames[0]["step"])
        start, end = ({b: decode(v) for b, v in f["largest"].items()} for f in (frames[0], frames[-1]))
        block = max(start, key=lambda b: end.get(b, 0.0) / (start[b] + 1e-30))
        before, after = start[block], end.get(block, 0.0)
        span = f"from step {first} to {frames[-1]['step']}"
        if after > RUN_UP * before:
            told = f" The largest value in {block} had grown from {_n(before)} to {_n(after)} {span}."
            tries = ["a lower learning rate, longer warm-up or gradient clipping",
                     'placement "peri" or "sandwich", whose branches are bounded']  # fmt: skip
        else:
            told = f" Nothing had grown before it: {_n(before)} to {_n(after)} at most ({block}), {span}."
    where = f"in {site}" if site else "outside the blocks: in the embedding, the head or the loss"
    yield _finding(
        "nonfinite", "critical", site, (first, step),
        f"A value that is not finite appeared at step {step}, first {where}.",
        f"Nothing after it can be used.{told}", *tries,
    )  # fmt: skip


def leak(record: Record) -> Iterator[Finding]:
    """An event "leak", or entries in info["leaks"]: later tokens moved earlier outputs. No threshold here, as
    normlab.leaks has one. Fields used if present: moved, cut, change, mode, and site or first_module.
    """
    held = record.info.get("leaks") or ()
    held = held if isinstance(held, (list, tuple)) else (held,)
    found = [e for e in record.events if e["event"] == "leak"] + [x for x in held if isinstance(x, Mapping)]
    found = [x for x in found if x.get("moved", True)]
    if not found:
        return
    first = found[0]
    step, moved = int(first.get("step", 0)), first.get("moved", "some")
    count = len(moved) if isinstance(moved, (list, tuple)) else moved
    cut = f" after position {first['cut']}" if "cut" in first else ""
    change = f", by up to {_n(decode(first['change']))} of the largest output" if "change" in first else ""
    mode = f" in {first['mode']} mode" if "mode" in first else ""
    yield _finding(
        "leak", "critical", first.get("site", first.get("first_module")), (step, step),
        "Earlier outputs depend on later tokens: the loss of this causal model is too good to be true.",
        f"Changing tokens{cut} moved {count} earlier outputs{change}{mode}. Cuts that leak: {len(found)}.",
    )  # fmt: skip


GAIN_JUMP, GAIN_LARGE, GAIN_SMALL = 5.0, 50.0, 0.02


def gain_explosion(record: Record) -> Iterator[Finding]:
    """A gain that jumps between two recorded steps, or has become very large.

    gain_max GAIN_JUMP times its previous reading, or above GAIN_LARGE in the last third and 5 times its start. A jump
    is looked for between readings, so it needs no window. Measured: the largest factor of healthy runs is 1.0 to 1.5, 3
    at a learning rate of 1e-1, 15 at 1.
    """
    jumps, large = [], []
    for site, series in record.sites("gain_max").items():
        readings = _pairs(series)
        for (at, before), (step, after) in pairwise(readings):
            if before > 1e-3 and after > GAIN_JUMP * max(before, 1.0):
                jumps.append((step, at, site, before, after))
                break
        window = late(series)
        if window is not None and above(window, max(GAIN_LARGE, 5 * series.values[0])):
            large.append((_mid(window), site, window))
    worst = _worst(large)
    if jumps:
        step, at, site, before, after = min(jumps)
        more = f" Norms that jump with it or later: {len(jumps) - 1}." if len(jumps) > 1 else ""
        yield _finding(
            "gain-explosion", "critical", site, (at, step), f"The gain of a norm jumped between steps {at} and {step}.",
            f"Its largest factor went from {_n(before)} to {_n(after)}.{more}",
        )  # fmt: skip
    elif worst is not None:
        size, site, window, more = worst
        start = record.sites("gain_max")[site].values[0]
        yield _finding(
            "gain-explosion", "warning", site, _span(window), "The gain of a norm has become very large.",
            f"Its largest factor is {_n(size)}; it started at {_n(start)}.{more}",
        )  # fmt: skip


def dead_gain(record: Record) -> Iterator[Finding]:
    """gain_rms below GAIN_SMALL in the last third: what the norm lets through is as good as nothing.

    Measured: 0.88 and more in healthy runs, 0.31 at a learning rate of 1e-1.
    """
    windows = record.late("gain_rms")
    worst = _worst((-_mid(w), site, w) for site, w in windows.items() if below(w, GAIN_SMALL))
    if worst is None:
        return
    size, site, window, more = worst
    yield _finding(
        "dead-gain", "warning", site, _span(window), "The gain of a norm has gone to zero: nothing passes through it.",
        f"The rms of its factors is {_n(-size)}; at first it was {_n(record.sites('gain_rms')[site].values[0])}.{more}",
    )  # fmt: skip


# ---- rules: loss and learning rate -----------------------------------------------------------------------------------

DIVERGED = 0.25  # of the lowest level
START_MARGIN = 0.05  # of the start


def loss_divergence(record: Record) -> Iterator[Finding]:
    """The loss ends clearly above its lowest level, or above its start.

    Above the lowest: by DIVERGED of it, by a tenth of what had been gained and by 6 noises (median change from step to
    step, in the calmest third). Above the start: by START_MARGIN and 3 noises. Measured: healthy runs end at most 0.1
    of their lowest level above it; "none" with 8 layers at 2e-2 ends 1000 times above its start.
    """
    loss = course(record.of_model("loss"))
    if loss is None:
        return
    from_low = loss.end - loss.low > max(DIVERGED * abs(loss.low), 0.1 * (loss.start - loss.low), 6 * loss.calm)
    from_start = loss.end - loss.start > max(START_MARGIN * abs(loss.start), 3 * loss.calm)
    if not (from_low or from_start):
        return
    low, until = loss.low_steps
    told = (
        f"The loss started at {_n(loss.start)}, was {_n(loss.low)} at steps {low} to {until}, ends at {_n(loss.end)}."
    )
    for name in ("grad_norm", "update_ratio"):
        series = record.across_sites(name)
        before = [v for s, v in _pairs(series) if s <= until]
        if before and len(series) >= FEW:
            told += f" {name} went from {_n(median(before))} to {_n(median(series.values[-5:]))}."
    yield _finding(
        "loss-divergence", "critical", None, (low, loss.steps[1]),
        "The loss rose again and stayed up: the learning rate is beyond what this model holds.", told,
    )  # fmt: skip


HIGH_UPDATE = 0.1  # of the parameters' length, in one step


def learning_rate_high(record: Record) -> Iterator[Finding]:
    """Steps that replace the weights rather than adjust them, and the damage: a loss that no longer falls, or a stream
    that has grown (:func:`stream_growth`).

    update_ratio (median over blocks) above HIGH_UPDATE in a recorded step; stalled means that the loss of the last
    third is not below that of the second by more than half a noise. One step is enough: weights that have been blown up
    make the next ratios small. Measured, largest of the run: 0.001 to 0.02 in healthy ones, 0.066 at a learning rate of
    1e-2 which still learns; 0.2 at 3e-2 and 0.47 to 0.66 at 1e-1, where the loss stalls at 3.2 (at 2e-3: 2.6 and
    falling, by 0.7 to 4 noises from third to third).
    """
    updates, loss = record.across_sites("update_ratio"), course(record.of_model("loss"))
    large = [(s, v) for s, v in _pairs(updates) if v > HIGH_UPDATE]
    if loss is None or len(updates) < FEW or not large:
        return
    stalled = loss.middle - loss.late <= 0.5 * loss.noise
    if not stalled and not any(stream_growth(record)):
        return
    rate, size = record.of_model("lr"), max(v for _, v in large)
    peak = f" The learning rate peaked at {_n(max(rate.values))}." if len(rate) else ""
    yield _finding(
        "learning-rate-high", "critical" if stalled else "warning", None, (large[0][0], loss.late_steps[1]),
        "The learning rate is beyond the stable range: single steps rewrote the weights, and "
        + ("the loss has stalled." if stalled else "the stream has grown."),
        f"One step changed a block by up to {_n(size)} of its length, {len(large)} recorded steps by more than "
        f"{HIGH_UPDATE:g}, the last of them step {large[-1][0]}; 0.001 to 0.01 is usual. The loss was "
        f"{_n(loss.middle)} in the second third and {_n(loss.late)} in the last.{peak}",
        f"a learning rate about {size / 0.01:.0f} times lower",
    )  # fmt: skip


LOW_UPDATE = 1e-5
LONG = 50  # losses before a flat one means anything


def learning_rate_low(record: Record) -> Iterator[Finding]:
    """Steps too small to matter, all through the run, and a loss that does not move.

    The largest update_ratio (median over blocks) below LOW_UPDATE, at least LONG losses, and the medians of the first
    and last third closer than one noise. Measured at width 32 with AdamW: 7e-7 at a learning rate of 1e-7, 7e-6 at 1e-6
    (both flat within 0.3 noises over 200 steps), 7e-5 at 1e-5 (falls by more than 4 noises and is not reported).
    """
    updates, losses = record.across_sites("update_ratio"), record.of_model("loss")
    loss = course(losses)
    if len(updates) < FEW or len(losses) < LONG or loss is None or max(updates.values) >= LOW_UPDATE:
        return
    first, largest = median(losses.values[: len(losses) // 3]), max(updates.values)
    if abs(first - loss.late) >= loss.noise:
        return
    yield _finding(
        "learning-rate-low", "warning", None, (losses.steps[0], losses.steps[-1]),
        "The learning rate is far below the useful range: the model hardly moves.",
        f"A step changes a block by at most {_n(largest)} of its length; about 0.001 is usual. Over {len(losses)} "
        f"steps the loss went from {_n(first)} to {_n(loss.late)}, less than its noise of {_n(loss.noise)}.",
        f"a learning rate about {_n(1e-3 / max(largest, 1e-12))} times higher",
    )  # fmt: skip


SPIKE_NOISES, SPIKE_SHARE = 10.0, 0.25
BEFORE = 20  # losses a spike is compared with
PRECURSORS = ("gain_max", "max_logit", "grad_norm", "update_ratio")
JUMP = 3.0


def loss_spike(record: Record) -> Iterator[Finding]:
    """A loss far above the ones before it, after the first fifth of the run, and what jumped first. Not of a loss that
    diverged, which is full of them.

    Above the median of the BEFORE losses by SPIKE_NOISES noises and SPIKE_SHARE of that median. A precursor is a
    reading of PRECURSORS in the same steps that is JUMP times the median of its earlier ones. Measured: healthy losses
    rise above the median of the 20 before by at most 6 noises, 8 with 32 tokens per batch.
    """
    loss, shape = record.of_model("loss"), course(record.of_model("loss"))
    if shape is None or any(loss_divergence(record)):
        return
    spikes: dict[int, float] = {}
    for i in range(max(BEFORE, len(loss) // 5), len(loss)):
        usual = median(loss.values[i - BEFORE : i])
        rise = loss.values[i] - usual
        if rise > max(SPIKE_NOISES * shape.noise, SPIKE_SHARE * abs(usual)):
            spikes[i] = rise
    if not spikes:
        return
    peak = i = max(spikes, key=spikes.__getitem__)
    while i - 1 in spikes:
        i -= 1
    step, top, rise = loss.steps[i], loss.values[peak], spikes[peak]
    told, first, place = " None of the recorded quantities jumped before it.", step, None
    jumps = list(_jumps(record, loss.steps[i - BEFORE], step))
    if jumps:
        first, _, quantity, site, before, after = min(jumps)
        place = None if site == "model" else site
        lead = f"{step - first} steps before" if step > first else "in the same step"
        where = f" at {site}" if place else ""
        told = f" First to jump was {quantity}{where}: from {_n(before)} to {_n(after)} at step {first}, {lead}."
    back = next((s for s, v in _pairs(loss)[peak:] if v < top - 0.75 * rise), None)
    yield _finding(
        "loss-spike", "warning", place, (first, step), f"The loss jumped at step {step}.",
        f"It was {_n(top)} after a median of {_n(top - rise)}; {_n(shape.noise)} is its usual change per step.{told} "
        + ("It has not come back." if back is None else f"It was back by step {back}."),
    )  # fmt: skip


def _jumps(record: Record, since: int, step: int) -> Iterator[tuple[int, float, str, str, float, float]]:
    """(step, -factor, quantity, site, before, after) of each precursor's first jump from ``since`` to ``step``."""
    for quantity in PRECURSORS:
        for site, series in record.sites(quantity).items():
            earlier = [v for s, v in _pairs(series) if s < since]
            if len(earlier) < 4:
                earlier = [v for s, v in _pairs(series) if s < step][:4]
            usual = median(earlier) if earlier else 0.0
            jump = next(((s, v) for s, v in _pairs(series) if since <= s <= step and v > JUMP * usual), None)
            if usual > 0 and jump is not None:
                yield jump[0], -jump[1] / usual, quantity, site, usual, jump[1]


# ---- rules: depth ----------------------------------------------------------------------------------------------------

EXPLODING, VANISHING = 100.0, 0.03


def _gradient_ratio(record: Record) -> Iterator[tuple[list[str], Series, str]]:
    """(stack, lowest block's gradient over the highest's in the last third, words)."""
    for stack in record.stacks:
        for quantity in ("stream_grad", "param_grad"):
            series = record.by_depth(quantity, stack)
            window = late(ratio(series[0], series[-1])) if len(series) > 1 else None
            if window is not None:
                sizes = [_n(median(s.values[-len(window) :])) for s in (series[0], series[-1])]
                yield stack, window, (
                    f"{quantity} is {sizes[0]} in {stack[0]} and {sizes[1]} in {stack[-1]}, a ratio of "
                    f"{_n(_mid(window))} in the last third of the run."
                )  # fmt: skip
                break


def exploding_gradient(record: Record) -> Iterator[Finding]:
    """The lowest block's stream_grad (else param_grad) EXPLODING times the highest block's; sustained, last third.

    Measured, lowest over highest: "pre" 1.1 to 4 (24 layers), other placements 0.14 to 3.3, BatchNorm on images 8 to
    15; "none" with 8 layers 2800.
    """
    for stack, window, told in _gradient_ratio(record):
        if above(window, EXPLODING):
            yield _finding(
                "exploding-gradient", "critical", stack[0], _span(window),
                "The gradient grows on its way down: the lower blocks get far more than the upper ones.",
                f"{told} Above {EXPLODING:g} is out of proportion.",
            )  # fmt: skip


def vanishing_gradient(record: Record) -> Iterator[Finding]:
    """The same ratio below VANISHING.

    Measured: "post" at 3e-3 without warm-up 2.5e-4 with 8 layers, 2e-6 with 12, 1e-6 to 1e-5 with 18 (0.009 while its
    loss still falls); "post" with 4 layers and warm-up 0.44, "residual-dual" 0.14. The healthy ones: see above.
    """
    for stack, window, told in _gradient_ratio(record):
        if below(window, VANISHING):
            yield _finding(
                "vanishing-gradient", "critical", stack[0], _span(window),
                "The gradient dies on its way down: the lower blocks do not learn.",
                f"{told} Below {VANISHING:g} is out of proportion.",
            )  # fmt: skip


COLLAPSED = 0.99


def token_collapse(record: Record) -> Iterator[Finding]:
    """All tokens alike behind the upper norms: what the model says no longer depends on what it reads.

    anisotropy (mean cosine between different tokens) above COLLAPSED at every norm of the highest quarter, sustained in
    the last third, and a loss that has stalled (last third within one noise of the second). Measured: above 0.995 for
    "post" with 8 to 18 layers at 3e-3 and for "pre" at 1; at most 0.97 in healthy decoders, and falling.
    """
    windows = list(record.late("anisotropy").items())
    upper, loss = windows[-max(1, len(windows) // 4) :], course(record.of_model("loss"))
    if not upper or loss is None or not all(above(w, COLLAPSED) for _, w in upper):
        return
    if loss.middle - loss.late > loss.noise:
        return
    site, window = upper[0]
    yield _finding(
        "token-collapse", "warning", site, _span(window),
        "All tokens look the same in the upper part of the model, and the loss has stalled.",
        f"The mean cosine between different tokens is {_n(min(_mid(w) for _, w in upper))} or more in the {len(upper)} "
        f"norms from {site} on. The loss was {_n(loss.middle)} in the second third and {_n(loss.late)} in the last.",
    )  # fmt: skip


BAND = 10.0  # times the pre-norm band
GROWN = 20.0  # times what it was at the start, and times 1


def stream_growth(record: Record) -> Iterator[Finding]:
    """A stream that leaves the band of pre-norm, by depth or over the steps; sustained in the last third.

    By depth: stream_rms of the last block over the first above BAND times sqrt(1 + 3l/2), the upper bound of Xiong et
    al. 2020 (lemma 2) for l blocks at the start. Over the steps: the last block's stream_rms above GROWN and above
    GROWN times its first reading. Measured: healthy 0.2 to 1.6 times the band and 1 to 5 times the start; at a learning
    rate of 1e-1 90 to 530 times the start; one gain 100 times too large: 28 times the band.
    """
    for stack in record.stacks:
        series = record.by_depth("stream_rms", stack)
        window = late(series[-1]) if series else None
        if window is None:
            continue
        start, bound = series[-1].values[0], math.sqrt(1 + 1.5 * len(stack))
        by_depth = len(stack) > 1 and above(late(ratio(series[-1], series[0])), BAND * bound)
        if by_depth or above(window, GROWN * max(start, 1.0)):
            yield _finding(
                "stream-growth", "warning", stack[-1], _span(window),
                "The residual stream has grown far beyond what the norms expect.",
                f"Its rms behind {stack[-1]} is {_n(_mid(window))}; at step {series[-1].steps[0]} it was {_n(start)}. "
                f"Behind {stack[0]} it is {_n(median(series[0].values[-len(window) :]))}. Pre-norm starts within "
                f"{_n(bound)}.",
            )  # fmt: skip


RISING = 1.15  # last block's stream_rms over the first's
UNNORMED = 1.4  # last block's stream_rms over its norms' gain


def missing_final_norm(record: Record) -> Iterator[Finding]:
    """Blocks with norms, a stream that grows from block to block, and no norm defined after the last block.

    stream_rms of the last block RISING times the first's, at the first reading or in the last third, and in the last
    third UNNORMED times the largest gain_rms of its norms (1 without gains). Measured, for placements that have a final
    norm, without it: 1.16 to 1.7 times and 1.65 to 2.8 times (2 to 6 layers); for post-norms, which need none: 1.0 to
    1.17 and 1.0 to 1.15. A stream that starts far smaller than the gains is not told. Order is that of definition, as
    run.json lists the sites: a final norm that a model defines before its blocks is taken to be missing.
    """
    order, gains = list(record.norms), record.late("gain_rms")
    for number, stack in enumerate(record.stacks):
        inside = [n for n in order if n.startswith(stack[-1] + ".")]
        series = record.by_depth("stream_rms", stack)
        if len(stack) < 2 or not inside or not series:
            continue
        following = order[order.index(inside[-1]) + 1 :]
        next_blocks = tuple(b + "." for later in record.stacks[number + 1 :] for b in later)
        if following and not following[0].startswith(next_blocks or ("\0",)):
            continue
        growth = ratio(series[-1], series[0])
        window, late_growth = late(series[-1]), late(growth)
        usual = max((_mid(gains[n]) for n in inside if n in gains), default=1.0)
        if window is None or late_growth is None or not above(window, UNNORMED * usual):
            continue
        if max(growth.values[0], _mid(late_growth)) > RISING:
            yield _finding(
                "missing-final-norm", "warning", stack[-1], _span(window),
                "Norms sit inside the blocks and none follows the last: the head reads a stream that nothing holds.",
                f"The stream's rms behind {stack[-1]} is {_n(_mid(window))}, {_n(_mid(late_growth))} times that behind "
                f"{stack[0]}; at the start it was {_n(growth.values[0])} times. No norm is defined after {inside[-1]}.",
            )  # fmt: skip


DEAD_ANGLE = 0.15  # of the first block's
DEAD_SHARE = 0.5


def dead_upper_blocks(record: Record) -> Iterator[Finding]:
    """An upper half that hardly turns the stream: the median angle there below DEAD_ANGLE of the first block's, and an
    effective depth ((sum of angles)^2 / sum of squares) below DEAD_SHARE of the blocks; sustained in the last third.

    From 4 blocks on. Measured: "pre" 0.26 (24 layers) to 0.5 and 0.77 to 0.95, "sub-ln" 0.2 and 0.7; at a learning rate
    of 1e-1 0.11 to 0.18 and 0.43 to 0.6, at 1 0.02 and 0.48.
    """
    for stack in record.stacks:
        series = record.by_depth("angle", stack)
        if len(stack) < 4 or not series or len({tuple(s.steps) for s in series}) > 1:
            continue
        steps, half = series[0].steps, len(stack) // 2
        rows = list(zip(*(s.values for s in series), strict=True))
        share = late(Series(steps, [median(r[half:]) / (r[0] + 1e-30) for r in rows]))
        depth = late(Series(steps, [sum(r) ** 2 / (sum(a * a for a in r) + 1e-30) for r in rows]))
        if share is None or depth is None or not (below(share, DEAD_ANGLE) and below(depth, DEAD_SHARE * len(stack))):
            continue
        yield _finding(
            "dead-upper-blocks", "warning", stack[half], _span(share),
            f"The upper blocks do almost nothing: about {_mid(depth):.1f} of {len(stack)} blocks turn the stream.",
            f"From {stack[half]} on a block turns a token by {_n(_mid(share))} of the first block's angle; "
            "0.2 and more is usual.",
        )  # fmt: skip


# ---- rules: statistics over tokens -----------------------------------------------------------------------------------

PADDING = 0.05  # share of cells
EXCESS = 3.0
CONTAMINATED = 0.15


def padding_contamination(record: Record) -> Iterator[Finding]:
    """BatchNorm that counts padding, although the model was given a mask.

    batch_mean_distance compares the norm's own running mean with the real cells; its ..._padded twin compares all cells
    with an average of all cells. A norm that honours the mask has running statistics of real cells, and both are small.
    One that ignores it has running statistics of all cells, and lies off the real ones for good. So: kind "batch",
    padding_share above PADDING, batch_mean_distance above CONTAMINATED and EXCESS times its twin, in the last third.
    Measured without the mask, worst site: 0.6 to 0.9 and 13 to 21 times at 60 % padding, 0.24 and 4.6 times at 29 %;
    with it 0.02 to 0.066 and 0.7 to 1.6 times, 0.35 and 1.9 times with 5 real cells.
    PowerNorm has no running mean, so nothing can be told of it; nor of a model whose mask the watcher did not find.
    """
    windows, shares = record.late("batch_mean_distance"), record.late("padding_share")
    real, padded = record.sites("batch_mean_distance"), record.sites("batch_mean_distance_padded")
    worst = _worst(
        (_mid(w), site, w)
        for site, w in windows.items()
        if record.norms.get(site) == "batch" and site in padded and above(shares.get(site), PADDING)
        if above(w, CONTAMINATED) and above(late(ratio(real[site], padded[site])), EXCESS)
    )
    if worst is None:
        return
    size, site, window, more = worst
    usual = median(padded[site].values[-len(window) :])
    yield _finding(
        "padding-contamination", "critical", site, _span(window), "A BatchNorm counts padding in its statistics.",
        f"{_mid(shares[site]):.0%} of the cells are padding. The norm's running mean lies {_n(size)} deviations off "
        f"the mean of the real cells; all cells together lie {_n(usual)} off their average.{more}",
    )  # fmt: skip


UNSTEADY_MEAN, UNSTEADY_VAR = 0.3, 0.25


def unstable_batch_statistics(record: Record) -> Iterator[Finding]:
    """Batch statistics far from their running average, at norms of kind "batch" or "power"; a note at other kinds, of
    what BatchNorm would see there.

    batch_mean_distance above UNSTEADY_MEAN or batch_var_distance above UNSTEADY_VAR, sustained in the last third; not
    where padding explains it. Measured, worst site: "batch" 0.04 to 0.07 and 0.04 to 0.075 with 150 and more cells per
    batch, 0.12 and 0.17 with 32, 0.35 and 0.41 to 0.47 with 5; "power" 0.15 to 0.22 and 0.1 with 200.
    """
    padding = any(padding_contamination(record))
    limits = {"batch_mean_distance": UNSTEADY_MEAN, "batch_var_distance": UNSTEADY_VAR}
    found = [
        (record.norms.get(site) in OVER_TOKENS, _mid(w) / limit, site, w, quantity)
        for quantity, limit in limits.items()
        for site, w in record.late(quantity).items()
        if above(w, limit) and not (padding and record.norms.get(site) == "batch")
    ]
    for concerned, verdict in (
        (True, "The statistics of a batch differ too much from their running average."),
        (False, "BatchNorm would see unsteady statistics here: keep a norm that looks at one token."),
    ):
        rows = [row[1:] for row in found if row[0] is concerned]
        if rows:
            _, site, window, quantity = max(rows, key=lambda row: row[0])
            yield _finding(
                "unstable-batch-statistics", "warning" if concerned else "note", site, _span(window), verdict,
                f"{quantity} is {_n(_mid(window))} at {site}. {len({row[1] for row in rows})} norms are above "
                f"{UNSTEADY_MEAN:g} (means, in deviations) or {UNSTEADY_VAR:g} (deviations, relative); 0.1 is usual.",
            )  # fmt: skip


GAP = 0.25


def train_inference_gap(record: Record) -> Iterator[Finding]:
    """inference_gap above GAP in the last third: evaluation will compute something else than training did.

    The last third, because running statistics start at 0 and 1 and need some 30 steps. Measured, worst site: "batch"
    0.065 to 0.1 with 150 and more cells per batch, 0.23 with 32, 0.46 with 5; "power" 0.2 with 200.
    """
    worst = _worst((_mid(w), site, w) for site, w in record.late("inference_gap").items() if above(w, GAP))
    if worst is None:
        return
    size, site, window, more = worst
    yield _finding(
        "train-inference-gap", "warning", site, _span(window),
        "With its running statistics this norm gives another output than in training: expect evaluation to be worse.",
        f"The outputs differ by {size:.0%} of their size; about 10 % is usual.{more}",
    )  # fmt: skip


# ---- rules: attention ------------------------------------------------------------------------------------------------

LOGIT, LOGIT_GROWTH, LOGIT_FLOOR, ENTROPY = 50.0, 10.0, 25.0, 0.05


def attention_logit_growth(record: Record) -> Iterator[Finding]:
    """Attention that turns into a choice of one token.

    max_logit above LOGIT, or above LOGIT_FLOOR and LOGIT_GROWTH times its first reading, or attention_entropy below
    ENTROPY; sustained in the last third. Measured, worst site: 1.6 to 23 and 0.56 to 0.99 in healthy runs; 230 to 1600
    and 0.04 to 0.12 at a learning rate of 1e-1, 63 and 0.2 at 3e-2; 3000 and 0.006 for "none"; 140 and 0.11 for
    "reordered" without QK-norm, which learns all the same and is reported: its paper uses QK-norm.
    """
    series, logits, entropy = record.sites("max_logit"), record.late("max_logit"), record.late("attention_entropy")
    limits = {site: min(LOGIT, max(LOGIT_FLOOR, LOGIT_GROWTH * abs(series[site].values[0]))) for site in logits}
    worst = _worst((_mid(w), site, w) for site, w in logits.items() if above(w, limits[site]))
    worst = worst or _worst((-_mid(w), site, w) for site, w in entropy.items() if below(w, ENTROPY))
    if worst is None:
        return
    _, site, window, more = worst
    told = []
    if site in logits:
        told.append(f"The largest logit is {_n(_mid(logits[site]))}; at first it was {_n(series[site].values[0])}.")
    if site in entropy:
        told.append(f"The entropy of attention is {_n(_mid(entropy[site]))} of the largest possible.")
    yield _finding(
        "attention-logit-growth", "warning", site, _span(window),
        "Attention logits are large: attention collapses onto single tokens.", " ".join(told) + more,
    )  # fmt: skip


# ---- the table -------------------------------------------------------------------------------------------------------

# Within a severity findings come in this order: causes before consequences.
RULES: dict[str, Callable[[Record], Iterator[Finding]]] = {
    "nonfinite": nonfinite,
    "leak": leak,
    "gain-explosion": gain_explosion,
    "padding-contamination": padding_contamination,
    "loss-divergence": loss_divergence,
    "learning-rate-high": learning_rate_high,
    "exploding-gradient": exploding_gradient,
    "vanishing-gradient": vanishing_gradient,
    "learning-rate-low": learning_rate_low,
    "missing-final-norm": missing_final_norm,
    "unstable-batch-statistics": unstable_batch_statistics,
    "train-inference-gap": train_inference_gap,
    "attention-logit-growth": attention_logit_growth,
    "stream-growth": stream_growth,
    "token-collapse": token_collapse,
    "dead-upper-blocks": dead_upper_blocks,
    "dead-gain": dead_gain,
    "loss-spike": loss_spike,
}


def diagnose(run: Run | str | Path, *, include_notes: bool = False) -> Diagnosis:
    """What is wrong in a run, from its readings alone. ``include_notes`` adds what is worth knowing and not wrong.

    >>> import tempfile
    >>> from normlab.runs import Writer
    >>> folder = tempfile.mkdtemp()
    >>> writer = Writer(folder + "/a")
    >>> for step in range(1, 41):
    ...     writer.write(step, {"loss": {"model": 3.0 if step < 20 else 9.0}})
    >>> writer.close()
    >>> [f.rule for f in diagnose(folder + "/a").findings]
    ['loss-divergence']
    """
    run = run if isinstance(run, Run) else Run(run)
    record = Record(run)
    findings = [f for rule in RULES.values() for f in rule(record) if include_notes or f.severity != "note"]
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))  # stable: RULES' order within a severity
    return Diagnosis(tuple(findings), str(run.folder), record.last_step, record.recorded, record.quantities)
