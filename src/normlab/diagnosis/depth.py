"""Rules about depth: gradients, the stream, its blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from ..runs import Series
from .finding import Finding
from .record import Record
from .windows import above, below, course, late, mid, pairs, ratio, shown, span_of

EXPLODING, VANISHING = 100.0, 0.03


def _gradient_ratio(record: Record) -> Iterator[tuple[list[str], Series, str]]:
    """(stack, lowest block's gradient over the highest's in the last third, words)."""
    for stack in record.stacks:
        for quantity in ("stream_grad", "param_grad"):
            series = record.by_depth(quantity, stack)
            window = late(ratio(series[0], series[-1])) if len(series) > 1 else None
            if window is not None:
                sizes = [median(s.values[-len(window) :]) for s in (series[0], series[-1])]
                yield stack, window, record.say("gradient.why", quantity=quantity, low=sizes[0], lowest=stack[0], high=sizes[1],
                                                highest=stack[-1], ratio=mid(window))  # fmt: skip
                break


def exploding_gradient(record: Record) -> Iterator[Finding]:
    """The lowest block's stream_grad (else param_grad) EXPLODING times the highest block's; sustained, last third.

    Measured, lowest over highest: "pre" 1.1 to 4 (24 layers), other placements 0.14 to 3.3, BatchNorm on images 8 to
    15; "none" with 8 layers 2800.
    """
    for stack, window, told in _gradient_ratio(record):
        if above(window, EXPLODING):
            why = told + record.say("gradient.above", limit=EXPLODING)
            yield record.found("exploding-gradient", "critical", stack[0], span_of(window), why, highest=stack[-1])


def vanishing_gradient(record: Record) -> Iterator[Finding]:
    """The same ratio below VANISHING.

    Measured: "post" at 3e-3 without warm-up 2.5e-4 with 8 layers, 2e-6 with 12, 1e-6 to 1e-5 with 18 (0.009 while its
    loss still falls); "post" with 4 layers and warm-up 0.44, "residual-dual" 0.14. The healthy ones: see above.
    """
    for stack, window, told in _gradient_ratio(record):
        if below(window, VANISHING):
            why = told + record.say("gradient.below", limit=VANISHING)
            yield record.found("vanishing-gradient", "critical", stack[0], span_of(window), why, layers=len(stack))


COLLAPSED = 0.99
BORN_ALIKE = 0.995  # at the first reading, before anything could be learned
REWRITTEN = 0.5  # of a block's length, in one step


def token_collapse(record: Record) -> Iterator[Finding]:
    """All tokens alike after the upper norms by the model's own doing: what it says no longer depends on what it reads.

    anisotropy (mean cosine between different tokens) above COLLAPSED at every norm of the highest quarter, sustained in
    the last third, and a loss that has stalled (last third within one noise of the second); and either tokens were alike
    from the first reading on (BORN_ALIKE), or the gradient dies on its way down, or one step rewrote (REWRITTEN) the weights.
    Without one of these a model whose targets say nothing about its input has learned to ignore it: that is
    :func:`constant_answer`. Measured: above 0.995 for "post" with 8 to 18 layers at 3e-3 and for "pre" at 1; at most
    0.97 in healthy decoders, and falling; above 0.99 with shuffled targets too. First readings of 0.9 to 0.98 are usual with
    GPT-2's initialization.
    """
    series = record.sites("anisotropy")
    windows = list(record.late("anisotropy").items())
    upper, loss = windows[-max(1, len(windows) // 4) :], course(record.of_model("loss"))
    if not upper or loss is None or not all(above(w, COLLAPSED) for _, w in upper):
        return
    if loss.middle - loss.late > loss.noise:
        return
    alike = all(series[site].values[0] > BORN_ALIKE for site, _ in upper)
    rewritten = any(v > REWRITTEN for _, v in pairs(record.across_sites("update_ratio")))
    if not (alike or rewritten or any(vanishing_gradient(record))):
        return
    site, window = upper[0]
    least = min(mid(w) for _, w in upper)
    why = record.say("token-collapse.why", least="0.9999" if least > 0.9999 else f"{math.floor(least * 1e4) / 1e4:g}",
                     count=len(upper), site=site, middle=loss.middle, late=loss.late)  # fmt: skip
    yield record.found("token-collapse", "warning", site, span_of(window), why)


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
            why = record.say("stream-growth.why", last=stack[-1], size=mid(window), step=series[-1].steps[0], start=start,
                             first=stack[0], low=median(series[0].values[-len(window) :]), bound=bound)  # fmt: skip
            yield record.found("stream-growth", "warning", stack[-1], span_of(window), why)


RISING = 1.15  # last block's stream_rms over the first's
UNNORMED = 1.4  # last block's stream_rms over its norms' gain


def _has_final_norm(record: Record, number: int) -> bool | None:
    """Does a norm follow the last block of this stack? As the run recorded it; else from the order in which norms were
    called; None where neither tells: the order of definition says nothing (OPT defines its final norm first)."""
    recorded = record.has_final_norm(record.stacks[number])
    if recorded is not None:
        return recorded
    inside = tuple(b + "." for stack in record.stacks for b in stack)
    last = record.stacks[number][-1] + "."
    if not record.calls:
        return None if any(not n.startswith(inside) for n in record.norms) else False
    places = [i for i, n in enumerate(record.calls) if n.startswith(last)]
    if not places or any(n not in record.calls for n in record.norms if not n.startswith(inside)):
        return None  # a norm that was not seen may be the one
    following = record.calls[places[-1] + 1 :]
    return bool(following) and not following[0].startswith(inside)


def missing_final_norm(record: Record) -> Iterator[Finding]:
    """Blocks with norms, a stream that grows from block to block, and no norm called after the last block.

    stream_rms of the last block RISING times the first's, at the first reading or in the last third, and in the last
    third UNNORMED times the largest gain_rms of its norms (1 without gains). Measured, for placements that have a final
    norm, without it: 1.16 to 1.7 times and 1.65 to 2.8 times (2 to 6 layers); for post-norms, which need none: 1.0 to
    1.17 and 1.0 to 1.15. A stream that starts far smaller than the gains is not told. Nor is one whose norms have their features
    elsewhere than on the last axis: convolutional nets add rectified branches, which grow the stream by 2 in three healthy blocks, and
    pool it before the head.
    """
    gains = record.late("gain_rms")
    for number, stack in enumerate(record.stacks):
        inside = [n for n in record.norms if n.startswith(stack[-1] + ".")]
        series = record.by_depth("stream_rms", stack)
        if len(stack) < 2 or not inside or not series or _has_final_norm(record, number) is not False:
            continue
        if not any(record.features_last(n) for n in inside):
            continue
        growth = ratio(series[-1], series[0])
        window, late_growth = late(series[-1]), late(growth)
        usual = max((mid(gains[n]) for n in inside if n in gains), default=1.0)
        if window is None or late_growth is None or not above(window, UNNORMED * usual):
            continue
        if max(growth.values[0], mid(late_growth)) > RISING:
            why = record.say("missing-final-norm.why", last=stack[-1], size=mid(window), growth=mid(late_growth), first=stack[0],
                             start=growth.values[0], norm=inside[-1])  # fmt: skip
            yield record.found("missing-final-norm", "warning", stack[-1], span_of(window), why, size=mid(window),
                               layer="nn.RMSNorm" if record.norms[inside[-1]] == "rms" else "nn.LayerNorm")  # fmt: skip


DEAD_ANGLE = 0.05  # of the first block's
DEAD_SHARE = 0.5
DIED = 0.5  # of what it was at the first reading
STILL = 0.01  # of half a turn: 1.8 degrees


def dead_upper_blocks(record: Record) -> Iterator[Finding]:
    """An upper half that hardly turns the stream: the median angle there below DEAD_ANGLE of the first block's, and an
    effective depth ((sum of angles)^2 / sum of squares) below DEAD_SHARE of the blocks; sustained in the last third. And
    that is training's doing, or absolute: the upper half's angle has fallen below DIED of its first reading, or lies below
    STILL. A first block that turns a small embedding by much (GPT-2's initialization) makes all others look dead; those
    grow with training.

    From 4 blocks on. Measured: 0.08 to 0.15 in healthy models of Hugging Face, 32 wide with weights of 0.02, whose first block grows
    first (an earlier limit of 0.15 called three of them dead); "pre" 0.26 (24 layers) to 0.5 and 0.77 to 0.95, "sub-ln" 0.2 and 0.7; at a learning rate
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
        angle = late(Series(steps, [median(r[half:]) for r in rows]))
        if share is None or depth is None or angle is None:
            continue
        if not (below(share, DEAD_ANGLE) and below(depth, DEAD_SHARE * len(stack))):
            continue
        start = median(rows[0][half:])
        if not (below(angle, DIED * start) or below(angle, STILL)):
            continue
        why = record.say(
            "dead-upper-blocks.why", half=stack[half], share=mid(share), degrees=180 * mid(angle), start=180 * start
        )
        yield record.found("dead-upper-blocks", "warning", stack[half], span_of(share), why,
                           depth=f"{mid(depth):.1f}", count=len(stack), spare=len(stack) - half, last=shown(mid(angle)))  # fmt: skip
