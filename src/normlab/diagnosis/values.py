"""Rules about values: non-finite ones, leaks of the future, gains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

from ..runs import decode
from .finding import Finding
from .record import Record, worst_of
from .windows import above, below, late, mid, pairs, shown, span_of

RUN_UP = 4.0  # largest values of healthy models change by less than 1.5 over the 16 steps of a trace


def nonfinite(record: Record) -> Iterator[Finding]:
    """A loss or a block's output that is not finite. No threshold.

    The trace holds each block's largest value over the steps before. The origin is what left its own usual size first: the
    earliest step at which a block's largest value is RUN_UP times that of the trace's first step, and of the blocks that
    did so at that step the first in order of execution. Once a broken gradient has been applied every block is broken,
    so the first block that is not finite says little.
    """
    if math.isinf(record.broken):
        return
    step, site = int(record.broken), record.broken_site
    first, why, case = step, record.say("nonfinite.why"), "sudden"
    events = [e for e in record.events if e["event"] == "nonfinite"]
    frames = [f for f in (events[0].get("frames") or () if events else ()) if f["step"] <= step]
    origin = _origin(frames)
    if origin is not None and origin[0] < step:
        first, site, before, after = origin
        case = "grown"
        why += record.say("nonfinite.grown", site=site, before=before, after=after, first=first)
    elif len(frames) > 1 and frames[0]["largest"]:
        first, site = int(frames[0]["step"]), site if origin is None else origin[1]
        sizes = {b: decode(v) for f in frames[:-1] for b, v in f["largest"].items()}
        block = max(sizes, key=sizes.__getitem__, default=site)
        why += record.say("nonfinite.sudden", size=sizes.get(block, math.nan), site=block, first=first)
    where = record.say("nonfinite.inside", site=site) if site else record.say("nonfinite.outside")
    yield record.found("nonfinite", "critical", site, (first, step), why, case=case, step=step, where=where)


def _origin(frames: list[Mapping[str, Any]]) -> tuple[int, str, float, float] | None:
    """(step, block, its usual largest value, that value) of the first block that left its usual size; None: none did so."""
    usual: dict[str, float] = {}
    for frame in frames:
        for block, spelled in frame["largest"].items():
            value = decode(spelled)
            if block in usual and not value <= RUN_UP * usual[block]:  # NaN counts
                return int(frame["step"]), block, usual[block], value
            if math.isfinite(value):
                usual.setdefault(block, max(value, 1e-30))
    return None


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
    cut = record.say("leak.cut", cut=first["cut"]) if "cut" in first else ""
    change = record.say("leak.change", size=decode(first["change"])) if "change" in first else ""
    mode = record.say("leak.mode", mode=first["mode"]) if "mode" in first else ""
    site = first.get("site", first.get("first_module"))
    why = record.say("leak.why", cut=cut, count=count, change=change, mode=mode, cuts=len(found))
    yield record.found("leak", "critical", site, (step, step), why, kind=record.norms.get(site or "", ""))


EXPLAINS = 0.5  # of a drop: what weight decay must account for to be blamed


def _decayed(record: Record, start: float, size: float, steps: int) -> bool:
    """Can weight decay have brought a gain down so far in so many steps? Yes where the run does not know its optimizer or its rate.

    A step takes rate * decay of a gain, which falls by the exponential of their sum. Adam without W puts the decay into the gradient
    and divides by its length: a step takes at most the rate itself.
    """
    if not record.optimizer:
        return True
    if not record.optimizer.get("decays_vectors"):
        return False
    rates = record.of_model("lr").values
    if not rates or math.isnan(record.decay):
        return True
    moved = fmean(rates) * steps
    if record.optimizer.get("class") in ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad"):
        return moved >= EXPLAINS * (start - size)
    return moved * record.decay >= EXPLAINS * math.log(start / max(size, 1e-9))


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
        why = record.say("gain-explosion.jumped", before=before, after=after)
        why += record.say("gain-explosion.more", count=len(jumps) - 1) if len(jumps) > 1 else ""
        yield record.found(
            "gain-explosion", "critical", site, (at, step), why, case="jumped", at=at, step=step, before=before
        )
    elif worst is not None:
        size, site, window, more = worst
        why = record.say("gain-explosion.grew", size=size, start=record.sites("gain_max")[site].values[0])
        yield record.found("gain-explosion", "warning", site, span_of(window), why + record.others(more), case="grew")


UNBORN = 50  # steps after which a gain that began at zero should have moved


def dead_gain(record: Record) -> Iterator[Finding]:
    """gain_rms below GAIN_SMALL in the last third: what the norm lets through is as good as nothing.

    A gain that began there is another matter: it was meant to (zero initialization), and is reported only where it has not
    moved at all (gain_drift is relative to a start of zero, so its values themselves are compared) over UNBORN steps or
    more in which the loss was given to it, that is, where its gradient is zero.
    Measured: 0.88 and more in healthy runs, 0.31 at a learning rate of 1e-1.
    """
    windows, series = record.late("gain_rms"), record.sites("gain_rms")
    small = [(-mid(w), site, w) for site, w in windows.items() if below(w, GAIN_SMALL)]
    died = worst_of(row for row in small if series[row[1]].values[0] >= GAIN_SMALL)
    if died is not None:
        size, site, window, more = died
        why = record.say("dead-gain.died", size=-size, start=series[site].values[0]) + record.others(more)
        yield record.found("dead-gain", "warning", site, span_of(window), why, case="died", decay=record.decay,
                           decayed=_decayed(record, series[site].values[0], -size, window.steps[0]))  # fmt: skip
        return
    gradients = record.late("gain_grad")
    unborn = worst_of(
        row for row in small
        if series[row[1]].values[0] < GAIN_SMALL and max(series[row[1]].values) <= min(series[row[1]].values) + 1e-12
        if row[1] in gradients and max(gradients[row[1]].values) == 0 and row[2].steps[-1] >= UNBORN
    )  # fmt: skip
    if unborn is not None:
        size, site, window, more = unborn
        why = record.say("dead-gain.unborn", size=shown(-size), last=window.steps[-1]) + record.others(more)
        yield record.found("dead-gain", "warning", site, span_of(window), why, case="unborn")
