"""Rules about depth: gradients, the stream, its blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from ..runs import Series
from .record import Finding, Record, above, below, course, finding, late, mid, ratio, shown, span_of

EXPLODING, VANISHING = 100.0, 0.03


def _gradient_ratio(record: Record) -> Iterator[tuple[list[str], Series, str]]:
    """(stack, lowest block's gradient over the highest's in the last third, words)."""
    for stack in record.stacks:
        for quantity in ("stream_grad", "param_grad"):
            series = record.by_depth(quantity, stack)
            window = late(ratio(series[0], series[-1])) if len(series) > 1 else None
            if window is not None:
                sizes = [shown(median(s.values[-len(window) :])) for s in (series[0], series[-1])]
                yield stack, window, (
                    f"{quantity} is {sizes[0]} in {stack[0]} and {sizes[1]} in {stack[-1]}, a ratio of "
                    f"{shown(mid(window))} in the last third of the run."
                )  # fmt: skip
                break


def exploding_gradient(record: Record) -> Iterator[Finding]:
    """The lowest block's stream_grad (else param_grad) EXPLODING times the highest block's; sustained, last third.

    Measured, lowest over highest: "pre" 1.1 to 4 (24 layers), other placements 0.14 to 3.3, BatchNorm on images 8 to
    15; "none" with 8 layers 2800.
    """
    for stack, window, told in _gradient_ratio(record):
        if above(window, EXPLODING):
            yield finding(
                "exploding-gradient", "critical", stack[0], span_of(window),
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
            yield finding(
                "vanishing-gradient", "critical", stack[0], span_of(window),
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
    yield finding(
        "token-collapse", "warning", site, span_of(window),
        "All tokens look the same in the upper part of the model, and the loss has stalled.",
        f"The mean cosine between different tokens is {shown(min(mid(w) for _, w in upper))} or more in the {len(upper)} "
        f"norms from {site} on. The loss was {shown(loss.middle)} in the second third and {shown(loss.late)} in the last.",
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
            yield finding(
                "stream-growth", "warning", stack[-1], span_of(window),
                "The residual stream has grown far beyond what the norms expect.",
                f"Its rms behind {stack[-1]} is {shown(mid(window))}; at step {series[-1].steps[0]} it was {shown(start)}. "
                f"Behind {stack[0]} it is {shown(median(series[0].values[-len(window) :]))}. Pre-norm starts within "
                f"{shown(bound)}.",
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
        usual = max((mid(gains[n]) for n in inside if n in gains), default=1.0)
        if window is None or late_growth is None or not above(window, UNNORMED * usual):
            continue
        if max(growth.values[0], mid(late_growth)) > RISING:
            yield finding(
                "missing-final-norm", "warning", stack[-1], span_of(window),
                "Norms sit inside the blocks and none follows the last: the head reads a stream that nothing holds.",
                f"The stream's rms behind {stack[-1]} is {shown(mid(window))}, {shown(mid(late_growth))} times that behind "
                f"{stack[0]}; at the start it was {shown(growth.values[0])} times. No norm is defined after {inside[-1]}.",
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
        yield finding(
            "dead-upper-blocks", "warning", stack[half], span_of(share),
            f"The upper blocks do almost nothing: about {mid(depth):.1f} of {len(stack)} blocks turn the stream.",
            f"From {stack[half]} on a block turns a token by {shown(mid(share))} of the first block's angle; "
            "0.2 and more is usual.",
        )  # fmt: skip
