"""Rules about the course of the loss and the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from .depth import stream_growth, token_collapse, vanishing_gradient
from .finding import FEW, Finding
from .record import Record
from .setup import eps_swallows, large_initialization, stale_gradient, stuck_weights
from .windows import below, course, late, mid, pairs, shown, span_of

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
    why = record.say("loss-divergence.why", start=loss.start, low=loss.low, first=low, last=until, end=loss.end)
    for name in ("grad_norm", "update_ratio"):
        series = record.across_sites(name)
        before = [v for s, v in pairs(series) if s <= until]
        if before and len(series) >= FEW:
            why += record.say("went", name=name, before=median(before), after=median(series.values[-5:]))
    yield record.found("loss-divergence", "critical", None, (low, loss.steps[1]), why, lower=_rate(record, 1 / 5))


def _rate(record: Record, factor: float) -> str:
    """The recorded rate times this, or a question mark."""
    return "?" if record.rate is None else shown(float(f"{record.rate * factor:.1g}"))


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
    size = max(v for _, v in large)
    why = record.say("learning-rate-high.why", size=size, count=len(large), limit=HIGH_UPDATE, last=large[-1][0],
                     middle=loss.middle, late=loss.late)  # fmt: skip
    if record.rate is not None:
        why += record.say("learning-rate-high.peak", rate=record.rate)
    yield record.found(
        "learning-rate-high", "critical" if stalled else "warning", None, (large[0][0], loss.late_steps[1]), why,
        case="stalled" if stalled else "grown", times=f"{size / 0.01:.0f}", lower=_rate(record, 0.01 / size),
    )  # fmt: skip


LOW_UPDATE = 1e-5
LONG = 50  # losses before a flat one means anything


def learning_rate_low(record: Record) -> Iterator[Finding]:
    """Steps too small to matter, all through the run, and a loss that does not move. Not where 16-bit weights round the
    steps away (:func:`stuck_weights`): a higher rate is then one cure of two.

    The largest update_ratio (median over blocks) below LOW_UPDATE, at least LONG losses, and the medians of the first
    and last third closer than one noise. Measured at width 32 with AdamW: 7e-7 at a learning rate of 1e-7, 7e-6 at 1e-6
    (both flat within 0.3 noises over 200 steps), 7e-5 at 1e-5 (falls by more than 4 noises and is not reported).
    """
    updates, losses = record.across_sites("update_ratio"), record.of_model("loss")
    loss = course(losses)
    if len(updates) < FEW or len(losses) < LONG or loss is None or max(updates.values) >= LOW_UPDATE:
        return
    first, largest = median(losses.values[: len(losses) // 3]), max(updates.values)
    if abs(first - loss.late) >= loss.noise or any(stuck_weights(record)):
        return
    why = record.say(
        "learning-rate-low.why", size=largest, count=len(losses), first=first, late=loss.late, noise=loss.noise
    )
    times = 1e-3 / max(largest, 1e-12)
    yield record.found("learning-rate-low", "warning", None, (losses.steps[0], losses.steps[-1]), why,
                       times=shown(times), higher=_rate(record, times))  # fmt: skip


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
    why = record.say("loss-spike.why", top=top, usual=top - rise, noise=shape.noise)
    first, place, case = step, None, ""
    jumps = list(_jumps(record, loss.steps[i - BEFORE], step))
    if jumps:
        first, _, quantity, site, before, after = min(jumps)
        place = None if site == "model" else site
        why += record.say(
            "loss-spike.before" if step > first else "loss-spike.same", quantity=quantity, before=before, after=after,
            first=first, steps=step - first, where=record.say("at", site=site) if place else "",
        )  # fmt: skip
        case = "logit" if quantity == "max_logit" else ""
    else:
        why += record.say("loss-spike.alone")
    back = next((s for s, v in pairs(loss)[peak:] if v < top - 0.75 * rise), None)
    why += record.say("loss-spike.up") if back is None else record.say("loss-spike.back", step=back)
    yield record.found("loss-spike", "warning", place, (first, step), why, step=step, logit=case == "logit")


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


CONSTANT, WIDENING = 0.085, 1.2  # logits; last third over the second
NOTHING = 0.03  # logits: below, growth is growth of noise
LEVEL = 0.003  # of the loss: slower than that it will not get anywhere
EXPLAINED = (stuck_weights, stale_gradient, eps_swallows, large_initialization, vanishing_gradient, token_collapse)


def constant_answer(record: Record) -> Iterator[Finding]:
    """A model that trains as it should and gives every input the same answer: the targets do not depend on the input, or what it
    would have to learn is far beyond what it has seen.

    output_spread below CONSTANT in the last third and, above NOTHING, not WIDENING against the second, and a loss that has stalled (last
    third within half a noise, or LEVEL, of the second), where neither the rate nor the depth explains it: the largest update_ratio
    lies between 1e-5 and 0.5. Measured: 0.0015 to 0.07 with targets that say nothing, level or falling; healthy models on the
    plateau where they know frequencies alone 0.1 to 0.3 and growing by half or more, past it 0.3 and more.
    """
    window, loss = late(record.of_model("output_spread")), course(record.of_model("loss"))
    updates = record.across_sites("update_ratio")
    if window is None or loss is None or len(updates) < FEW or not below(window, CONSTANT):
        return
    spread = record.of_model("output_spread").values
    if mid(window) > NOTHING and mid(window) > WIDENING * median(
        spread[len(spread) // 3 : len(spread) - len(spread) // 3]
    ):
        return  # it has begun to tell inputs apart
    if (
        loss.middle - loss.late > max(0.5 * loss.noise, LEVEL * abs(loss.late))
        or not 1e-5 <= max(updates.values) <= 0.5
    ):
        return
    if any(any(rule(record)) for rule in EXPLAINED):
        return
    why = record.say("constant-answer.why", size=mid(window), start=record.of_model("output_spread").values[0],
                     middle=loss.middle, late=loss.late)  # fmt: skip
    yield record.found("constant-answer", "warning", None, span_of(window), why, update=max(updates.values))
