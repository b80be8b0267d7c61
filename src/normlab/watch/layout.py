"""Which axis of a tensor inside a model counts sequences, and which tokens: read off the graph that autograd makes on the way to it.

Needed where the shape does not tell: as many sequences as tokens, or both in one axis. From the tensor's first axis the graph is gone
back, over operators that leave axes where they are, views, transpositions and products with weights, to a tensor whose axes are
known: what an embedding made of the model's tokens, what torch's attention was given, or, with other numbers of sequences and tokens,
any shape that has one of them. Operators that could do anything with their axes are not gone through: then nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from .._torch import node_shapes

MOST = 20_000  # nodes that are looked at for one answer
VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze")  # the order in memory stays
PRODUCTS = {"Addmm": 1, "Mm": 0, "Linear": 0}  # which of what they are given brings the rows
OPAQUE = ("AsStrided", "Bmm", "Baddbmm", "Addbmm", "Einsum", "Dot", "Fft", "Expand", "Repeat", "Copy", "Index")
Place = tuple[Any, int]  # a node of the graph, and which of its outputs
Axis = tuple[
    int, int
]  # its number, and how many steps of slower axes one step of it spans that were folded into it: 1 if none


class Layout:
    """Of one forward pass. ``mark`` what is known, then ``leads_with_sequences``."""

    def __init__(self) -> None:
        self._known: dict[Place, int] = {}  # the axis that counts sequences
        self._kept: list[Tensor] = []

    def mark(self, t: Tensor, sequences: int) -> None:
        """Axis ``sequences`` of this tensor counts sequences; of 0 and 1 the other one counts tokens."""
        if t.grad_fn is not None:
            self._known[t.grad_fn, t.output_nr] = sequences
            self._kept.append(t)

    def leads_with_sequences(self, t: Tensor, batch: int, length: int) -> bool | None:
        """Does the first axis of ``t``, or the slower part of it, count sequences? None: it cannot be told."""
        if t.grad_fn is None:
            return None
        start = (t.grad_fn, t.output_nr)
        waiting: list[tuple[Place, Axis]] = [(start, (0, 1))]
        came_from: dict[tuple[Place, Axis], tuple[Place, Axis] | None] = {waiting[0]: None}
        while waiting and len(came_from) < MOST:
            state = waiting.pop()
            (node, number), axis = state
            told = self._told((node, number), axis, batch, length)
            if told is not None:
                self._remember(state, came_from, told)
                return told
            for following in _back(node, number, axis):
                if following not in came_from:
                    came_from[following] = state
                    waiting.append(following)
        return None

    def _told(self, place: Place, at: Axis, batch: int, length: int) -> bool | None:
        known, (axis, folded) = self._known.get(place), at
        if folded != 1:
            return None
        if known is not None:
            return True if axis == known else False if axis == 1 - known else None
        shape = _shape(*place)
        if batch != length and shape is not None and axis < len(shape) and shape[axis] in (batch, length):
            return shape[axis] == batch
        return None

    def _remember(self, state: Any, came_from: dict[Any, Any], told: bool) -> None:
        """Every tensor on the way there is known now, where its axes are the first two."""
        while state is not None:
            place, (axis, folded) = state
            if axis < 2 and folded == 1:
                self._known.setdefault(place, axis if told else 1 - axis)
            state = came_from[state]


def _shape(node: Any, number: int) -> tuple[int, ...] | None:
    shapes = node_shapes(node)
    return shapes[number] if number < len(shapes) else None


def _back(node: Any, number: int, axis: Axis) -> Iterator[tuple[Place, Axis]]:
    """(what the node was given, the axis there that this axis came from); the first that was given comes last."""
    shape, name = _shape(node, number), type(node).__name__.partition("Backward")[0]
    if shape is None or _is_foreign(node) or name in OPAQUE:
        return
    given: Sequence[Place] = node.next_functions
    for place, parent in reversed(list(enumerate(given))):
        if parent[0] is None or (name in PRODUCTS and place != PRODUCTS[name]):
            continue
        before = _shape(*parent)
        if before is None:
            continue
        came = _axis_before(node, name, axis, shape, before)
        if came is not None:
            yield parent, came


def _axis_before(node: Any, name: str, at: Axis, shape: tuple[int, ...], before: tuple[int, ...]) -> Axis | None:
    rank, (axis, folded) = len(shape), at
    if name in ("Transpose", "T"):
        first, second = (0, 1) if name == "T" else (_signed(node._saved_dim0, rank), _signed(node._saved_dim1, rank))
        return {first: second, second: first}.get(axis, axis), folded
    if name == "Permute":
        return _signed(node._saved_dims[axis], rank), folded
    if name in VIEWS:
        return _through_view(before, math.prod(shape[:axis]) * folded)
    if name in PRODUCTS:
        return at if axis < rank - 1 and before[:-1] == shape[:-1] else None
    # Anything else leaves its axes where they are, as far as it has them: sums, factors, curves, norms, slices along another axis.
    same = len(before) == rank and all(a == b for i, (a, b) in enumerate(zip(shape, before, strict=True)) if i <= axis)
    return at if same else None


def _through_view(before: tuple[int, ...], slower: int) -> Axis | None:
    """The axis, in the order in memory, that has ``slower`` steps of slower axes in front of it, or contains it."""
    passed = 1
    for axis, size in enumerate(before):
        if passed <= slower < passed * size:
            return (axis, slower // passed) if slower % passed == 0 else None
        passed *= size
    return None


def _signed(dim: int, rank: int) -> int:
    """autograd keeps negative numbers of axes as very large ones."""
    return (dim - 2**64 if dim >= 2**63 else dim) % rank


def _is_foreign(node: Any) -> bool:
    """A function of Python's, other than ours: it may do anything."""
    made_by = getattr(node, "_forward_cls", None)
    return made_by is not None and not made_by.__module__.startswith("normlab.")
