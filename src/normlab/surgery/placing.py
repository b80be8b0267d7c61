"""From norms around branches to the name of a placement, for one block, for a stack, for a model.

Names are those of :data:`normlab.PLACEMENTS`. What fits none is described ("attention pre, feedforward post"), or unknown with a reason.
"""

from __future__ import annotations

from .branches import Branch
from .flow import UNKNOWN


def shape_of(branch: Branch) -> str:
    """One sum alone."""
    if branch.stream:
        inside = [w for w, n in (("pre", branch.entry), ("exit", branch.exit), ("sub", branch.before_last)) if n]
        return "+".join(["post", *inside])
    if branch.entry and branch.exit:
        return "sandwich"
    if branch.entry:
        return "sub-ln" if branch.before_last else "pre"
    if branch.exit:
        return "reordered"
    return "sub" if branch.before_last else "inner" if branch.inner else "none"


def block_placement(branches: tuple[Branch, ...]) -> str:
    """The name of what a block's branches have in common.

    >>> block_placement((Branch("attention", entry=("a",)), Branch("feedforward", entry=("b",))))
    'pre'
    """
    if any(b.unrecognized for b in branches):
        return UNKNOWN
    shapes = [shape_of(b) for b in branches]
    kinds = [b.kind for b in branches]
    one = set(shapes)
    if one == {"post"} or one == {
        "post",
        "post+sub",
    }:  # an inner norm in one kind of sub-layer alone is that sub-layer's own
        return _post(branches)
    if one == {"none"}:
        return "rezero" if all(b.learned_number for b in branches) else "none"
    if len(one) == 1 and shapes[0] in ("pre", "reordered", "sandwich", "sub-ln", "inner"):
        return shapes[0]
    named = dict(zip(kinds, shapes, strict=True)) if len(set(kinds)) == len(kinds) else {}
    if named == {"attention": "sandwich", "feedforward": "sub-ln"}:
        return "normformer"
    if named == {"attention": "post", "feedforward": "none"} and branches[kinds.index("attention")].queries_keys:
        return "hybrid-norm"
    if one == {"pre", "sub-ln"}:
        # Cross-attention is excepted from sub-LN; an inner norm in one kind of sub-layer alone is that sub-layer's own.
        feedforward = {s for s, k in zip(shapes, kinds, strict=True) if k == "feedforward"}
        return "sub-ln" if feedforward == {"sub-ln"} and shapes[0] == "sub-ln" else "pre"
    return ", ".join(f"{k} {s}" for k, s in zip(kinds, shapes, strict=True))


def _post(branches: tuple[Branch, ...]) -> str:
    if any(b.bridge for b in branches):
        return "b2t"
    factors = [b.stream_factor for b in branches]
    if all(isinstance(f, str) for f in factors):
        return "admin"
    if all(isinstance(f, float) and f > 1 for f in factors):
        return "deepnorm"
    return "post"


def stack_placement(
    blocks: list[tuple[Branch, ...]], labels: list[str], *, embedding_norm: bool, final_norm: bool, twins: bool
) -> str:
    """The name for a stack of blocks, in order. ``twins``: is every branch added to a second stream as well?"""
    if embedding_norm and set(labels[1:]) == {"pre"} and shape_of(blocks[0][0]) == "none":
        # The first branch needs no norm of its own where one stands on what enters (ModernBERT).
        labels = ["pre" if all(shape_of(b) == "pre" for b in blocks[0][1:]) else labels[0], *labels[1:]]
    one = list(dict.fromkeys(labels))
    if UNKNOWN in one:
        return UNKNOWN
    if one == ["post"] and twins:
        return "residual-dual"
    if one == ["sandwich"] and embedding_norm and final_norm:
        return "peri"
    if one == ["pre"] and _shrinks(blocks):
        return "layernorm-scaling"
    if one == ["post", "pre"] and labels == sorted(labels):
        return "mix-ln"
    if len(one) == 1:
        return one[0]
    return " / ".join(one) if len(one) <= 3 else "mixed"


def _shrinks(blocks: list[tuple[Branch, ...]]) -> bool:
    """Is the factor after each entry norm 1 / sqrt(layer), counted from 1?"""
    if len(blocks) < 2:
        return False
    for depth, block in enumerate(blocks):
        for branch in block:
            factor = 1.0 if branch.entry_factor is None else branch.entry_factor
            if isinstance(factor, str) or abs(factor - (depth + 1) ** -0.5) > 1e-4:
                return False
    return True
