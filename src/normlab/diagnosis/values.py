"""Rules about values: non-finite ones, leaks of the future, gains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from ..runs import decode
from .record import Finding, Record, above, below, finding, late, mid, pairs, shown, span_of, worst_of

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
            told = f" The largest value in {block} had grown from {shown(before)} to {shown(after)} {span}."
            tries = ["a lower learning rate, longer warm-up or gradient clipping",
                     'placement "peri" or "sandwich", whose branches are bounded']  # fmt: skip
        else:
            told = f" Nothing had grown before it: {shown(before)} to {shown(after)} at most ({block}), {span}."
    where = f"in {site}" if site else "outside the blocks: in the embedding, the head or the loss"
    yield finding(
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
    change = f", by up to {shown(decode(first['change']))} of the largest output" if "change" in first else ""
    mode = f" in {first['mode']} mode" if "mode" in first else ""
    yield finding(
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
        readings = pairs(series)
        for (at, before), (step, after) in pairwise(readings):
            if before > 1e-3 and after > GAIN_JUMP * max(before, 1.0):
                jumps.append((step, at, site, before, after))
                break
        window = late(series)
        if window is not None and above(window, max(GAIN_LARGE, 5 * series.values[0])):
            large.append((mid(window), site, window))
    worst = worst_of(large)
    if jumps:
        step, at, site, before, after = min(jumps)
        more = f" Norms that jump with it or later: {len(jumps) - 1}." if len(jumps) > 1 else ""
        yield finding(
            "gain-explosion", "critical", site, (at, step), f"The gain of a norm jumped between steps {at} and {step}.",
            f"Its largest factor went from {shown(before)} to {shown(after)}.{more}",
        )  # fmt: skip
    elif worst is not None:
        size, site, window, more = worst
        start = record.sites("gain_max")[site].values[0]
        yield finding(
            "gain-explosion", "warning", site, span_of(window), "The gain of a norm has become very large.",
            f"Its largest factor is {shown(size)}; it started at {shown(start)}.{more}",
        )  # fmt: skip


def dead_gain(record: Record) -> Iterator[Finding]:
    """gain_rms below GAIN_SMALL in the last third: what the norm lets through is as good as nothing.

    Measured: 0.88 and more in healthy runs, 0.31 at a learning rate of 1e-1.
    """
    windows = record.late("gain_rms")
    worst = worst_of((-mid(w), site, w) for site, w in windows.items() if below(w, GAIN_SMALL))
    if worst is None:
        return
    size, site, window, more = worst
    yield finding(
        "dead-gain", "warning", site, span_of(window), "The gain of a norm has gone to zero: nothing passes through it.",
        f"The rms of its factors is {shown(-size)}; at first it was {shown(record.sites('gain_rms')[site].values[0])}.{more}",
    )  # fmt: skip
