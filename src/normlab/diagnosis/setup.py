"""Rules about how a training was set up: weights that cannot move or start too large, gradients of earlier steps, an eps that is
too large."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .finding import Finding
from .record import Record, worst_of
from .windows import above, late, mid, shown, span_of

STUCK = 0.9  # of the weights that had a gradient


def stuck_weights(record: Record) -> Iterator[Finding]:
    """16-bit weights that the optimizer's steps do not change: each step is smaller than half the spacing of the numbers.

    unmoved_share (median over blocks) above STUCK, sustained in the last third, at a learning rate above 0. Measured in
    bfloat16, 24 to 32 wide: see docs/en/diagnosis.md.
    """
    window = late(record.across_sites("unmoved_share"))
    if not above(window, STUCK) or (record.rate is not None and record.rate <= 0):
        return
    assert window is not None
    kind = next((k for k in record.weights if k in ("bfloat16", "float16")), "16-bit")
    spacing = {"bfloat16": "0.4 %", "float16": "0.05 %"}.get(kind, "0.05 - 0.4 %")
    why = record.say("stuck-weights.why", share=f"{mid(window):.0%}", kind=kind, spacing=spacing)
    yield record.found("stuck-weights", "critical", None, span_of(window), why, kind=kind)


STALE = 0.1


def stale_gradient(record: Record) -> Iterator[Finding]:
    """The gradients that the optimizer uses hold those of earlier steps: nobody cleared them.

    stale_gradient above STALE, sustained in the last third. It is rounding (below 1e-5) where gradients are cleared,
    however many micro-batches make a step. Measured where they are not: see docs/en/diagnosis.md.
    """
    window = late(record.of_model("stale_gradient"))
    if above(window, STALE):
        assert window is not None
        why = record.say("stale-gradient.why", share=f"{min(1.0, mid(window)):.0%}")
        yield record.found("stale-gradient", "critical", None, span_of(window), why)


SWALLOWED = 0.5
OF_KIND = {"rms": "nn.RMSNorm", "batch": "nn.BatchNorm1d"}  # torch's norm of a kind, for the advice


def eps_swallows(record: Record) -> Iterator[Finding]:
    """A norm whose eps is larger than the variance of what it gets: it no longer normalizes, it scales.

    eps_share above SWALLOWED, sustained in the last third. Measured in healthy runs: see docs/en/diagnosis.md.
    """
    worst = worst_of((mid(w), site, w) for site, w in record.late("eps_share").items() if above(w, SWALLOWED))
    if worst is None:
        return
    size, site, window, more = worst
    left = (1 - size) ** 0.5  # of the size that the norm is meant to give
    why = record.say("eps-swallows.why", share=f"{size:.1%}", left=f"{left:.0%}") + record.others(more)
    yield record.found("eps-swallows", "warning", site, span_of(window), why, times=shown(size / max(1e-9, 1 - size)),
                       layer=OF_KIND.get(record.norms.get(site, ""), "nn.LayerNorm"))  # fmt: skip


LARGE_START = 3.0


def large_initialization(record: Record) -> Iterator[Finding]:
    """Matrices that start far larger than what keeps the size of their input.

    weight_scale (rms * sqrt(smaller side), 1 keeps the size) above LARGE_START at step 1; of a layer outside the blocks only if
    that shows in what comes out (:func:`_shows`): a model may scale what its head reads. Measured: usual initializations lie between
    0.1 and 1.4: GPT-2's 0.02 gives 0.1 at width 32 and 0.55 at 768, torch's own 0.58, Xavier's about 1; T5's tied head 5.6 at width 32,
    11 at 128.
    """
    found = [(s.values[0], site, s) for site, s in record.sites("weight_scale").items() if s.steps[0] == 1]
    found = [row for row in found if row[0] > LARGE_START]
    blocks = {site for _, site, _ in found if site in record.blocks}
    worst = worst_of(row for row in found if row[1] in blocks or _shows(record, blocks))
    if worst is None:
        return
    size, site, window, more = worst
    loss = record.of_model("loss").values
    why = record.say("large-initialization.why", size=size) + record.others(more)
    if loss:
        why += record.say("large-initialization.loss", loss=loss[0])
    case = "block" if site in record.blocks else "layer"
    yield record.found(
        "large-initialization", "warning", site, (1, window.steps[-1]), why, case=case, times=shown(size)
    )


def _shows(record: Record, blocks: Collection[str]) -> bool:
    """Is what comes out at step 1 too large as well: the answers, or the stream where it enters the blocks (not if that block,
    one of ``blocks``, is too large itself)? Yes where it was not read.

    Answers have about the size output_spread / sqrt(1 - anisotropy) of the last norm: tokens that are alike have answers that are.
    Measured: output_spread 0.001 to 0.98 in healthy models, 0.96 in T5, 12 to 18 with heads that start 15 to 19 times too large.
    """
    spread = _first(record, "output_spread", "model")
    if spread is None:
        return True
    alike = _first(record, "anisotropy", record.calls[-1]) if record.calls else None
    entered = [_first(record, "stream_rms", stack[0]) for stack in record.stacks if stack[0] not in blocks]
    size = spread / max(1e-9, 1 - max(0.0, alike or 0.0)) ** 0.5
    return size > LARGE_START or any(rms is not None and rms > LARGE_START for rms in entered)


def _first(record: Record, quantity: str, site: str) -> float | None:
    """Its reading at step 1."""
    series = record.sites(quantity).get(site)
    return series.values[0] if series is not None and series.steps[0] == 1 else None
