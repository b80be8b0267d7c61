"""Rules about the course of the loss and the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from .depth import stream_growth
from .record import FEW, Finding, Record, course, finding, pairs, shown

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
    told = f"The loss started at {shown(loss.start)}, was {shown(loss.low)} at steps {low} to {until}, ends at {shown(loss.end)}."
    for name in ("grad_norm", "update_ratio"):
        series = record.across_sites(name)
        before = [v for s, v in pairs(series) if s <= until]
        if before and len(series) >= FEW:
            told += f" {name} went from {shown(median(before))} to {shown(median(series.values[-5:]))}."
    yield finding(
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
    large = [(s, v) for s, v in pairs(updates) if v > HIGH_UPDATE]
    if loss is None or len(updates) < FEW or not large:
        return
    stalled = loss.middle - loss.late <= 0.5 * loss.noise
    if not stalled and not any(stream_growth(record)):
        return
    rate, size = record.of_model("lr"), max(v for _, v in large)
    peak = f" The learning rate peaked at {shown(max(rate.values))}." if len(rate) else ""
    yield finding(
        "learning-rate-high", "critical" if stalled else "warning", None, (large[0][0], loss.late_steps[1]),
        "The learning rate is beyond the stable range: single steps rewrote the weights, and "
        + ("the loss has stalled." if stalled else "the stream has grown."),
        f"One step changed a block by up to {shown(size)} of its length, {len(large)} recorded steps by more than "
        f"{HIGH_UPDATE:g}, the last of them step {large[-1][0]}; 0.001 to 0.01 is usual. The loss was "
        f"{shown(loss.middle)} in the second third and {shown(loss.late)} in the last.{peak}",
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
    yield finding(
        "learning-rate-low", "warning", None, (losses.steps[0], losses.steps[-1]),
        "The learning rate is far below the useful range: the model hardly moves.",
        f"A step changes a block by at most {shown(largest)} of its length; about 0.001 is usual. Over {len(losses)} "
        f"steps the loss went from {shown(first)} to {shown(loss.late)}, less than its noise of {shown(loss.noise)}.",
        f"a learning rate about {shown(1e-3 / max(largest, 1e-12))} times higher",
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
        told = f" First to jump was {quantity}{where}: from {shown(before)} to {shown(after)} at step {first}, {lead}."
    back = next((s for s, v in pairs(loss)[peak:] if v < top - 0.75 * rise), None)
    yield finding(
        "loss-spike", "warning", place, (first, step), f"The loss jumped at step {step}.",
        f"It was {shown(top)} after a median of {shown(top - rise)}; {shown(shape.noise)} is its usual change per step.{told} "
        + ("It has not come back." if back is None else f"It was back by step {back}."),
    )  # fmt: skip


def _jumps(record: Record, since: int, step: int) -> Iterator[tuple[int, float, str, str, float, float]]:
    """(step, -factor, quantity, site, before, after) of each precursor's first jump from ``since`` to ``step``."""
    for quantity in PRECURSORS:
        for site, series in record.sites(quantity).items():
            earlier = [v for s, v in pairs(series) if s < since]
            if len(earlier) < 4:
                earlier = [v for s, v in pairs(series) if s < step][:4]
            usual = median(earlier) if earlier else 0.0
            jump = next(((s, v) for s, v in pairs(series) if since <= s <= step and v > JUMP * usual), None)
            if usual > 0 and jump is not None:
                yield jump[0], -jump[1] / usual, quantity, site, usual, jump[1]
