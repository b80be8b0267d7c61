"""What flowed through a model, as a graph of few kinds of nodes, whichever way it was captured.

An operator becomes one of these roles, by its name and by what it was given (activations, parameters, constants):

    start    where activations begin: an embedding, a matrix on the input
    norm     a call of a norm module, one node whatever runs inside, an operator that normalizes, or the formula written out
    normlike what may be one and is not known: x times a statistic of x, a module that says so, somebody's own function with a vector
    sum      two activations added, subtracted, interpolated
    scale    an activation times a number or times a parameter
    carry    one activation, no weights: views, casts, dropout, a bias, a mask, a curve
    matrix   an activation times weights: linear layers and convolutions
    mixer    positions or activations meet without weights: a product of two activations' matrices, attention, Fourier, pooling
    other    everything else: gates, reductions, concatenations
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from torch import Tensor

from .written import normalizes

MATRIX = {
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "mkldnnconvolution", "matmul", "groupedmm", "addmv", "mv", "convdepthwise2d",
    "slowconv2dforward", "thnnconv2d", "addbmm", "einsum",
}  # fmt: skip
MIXERS = {"fftc2c", "fftr2c", "fftc2r", "cumsum", "avgpool2d", "avgpool1d", "maxpool2dwithindices", "logcumsumexp"}
NORMS = {
    "nativelayernorm": "layer", "fusedrmsnorm": "rms", "nativegroupnorm": "group", "nativebatchnorm": "batch",
    "cudnnbatchnorm": "batch", "batchnorm": "batch", "nativebatchnormlegitnotraining": "batch",
    "nativebatchnormlegit": "batch", "nativebatchnormlegitfunctional": "batch", "instancenorm": "instance",
}  # fmt: skip
REDUCTIONS = {
    "mean", "sum", "amax", "amin", "max", "min", "var", "std", "varmean", "norm", "linalgvectornorm", "prod", "argmax",
    "logsumexp", "topk", "sort", "nllloss", "nllloss2dforward", "logsoftmax", "softmax", "crossentropyloss",
}  # fmt: skip

STATISTICS = {
    "mean", "sum", "amax", "amin", "max", "min", "var", "std", "varmean", "norm", "linalgvectornorm", "prod", "logsumexp",
}  # fmt: skip
# What may lie, besides roots, between x and the statistic that makes a norm of it. A curve on the way (a sigmoid, a bound from above) makes something else.
TO_STATISTIC = STATISTICS | {
    "pow", "square", "mul", "div", "add", "reciprocal", "abs", "clampmin", "expand", "expandas", "unsqueeze", "squeeze",
    "view", "unsafeview", "reshape", "tocopy", "to", "clone", "alias", "detach", "norm",
}  # fmt: skip
ADDING = ("addmm", "baddbmm", "addbmm", "addmv")  # what is first given to them is added


def _role_of_own(acts: Sequence[int], learned: Sequence[Given]) -> str:
    """Of a function that somebody wrote: with a matrix it is one, of many activations attention; of one, with a vector or without, it may
    be a norm as well as a curve."""
    if any(g.dims >= 2 for g in learned):
        return "matrix"
    return "mixer" if len(acts) > 2 else "normlike" if len(acts) == 1 else "other"


class Node(NamedTuple):
    """A value that was computed."""

    at: int  # its own place in the list
    op: str
    role: str
    inputs: tuple[int, ...]  # activations only
    call: int
    factor: float | None = None  # of a scale by a number
    learned: str | None = None  # of a scale by a parameter: its name
    site: str | None = None  # of a norm
    kind: str | None = None  # of a norm; of a scale by a parameter: "number" if it is one
    apart: tuple[int, ...] = ()  # of a product: the factors that are spread over the features; of attention: the values


@dataclass(frozen=True)
class Call:
    """One call of one module."""

    index: int
    name: str
    cls: str
    parent: int  # -1: none
    use: int  # the how-manieth call of this module
    listed: bool  # is the module an element of a list?


class Given(NamedTuple):
    """What an operator was given: an activation (its node), a parameter (its name), or a constant (its value, if one number)."""

    node: int | None = None
    parameter: str | None = None
    number: float | None = None
    dims: int = 0
    one: bool = False  # of a parameter: one element of it


class Pair(NamedTuple):
    """What a product or a quotient of two activations was taken of: shapes, and the values themselves if they can still be had."""

    shapes: tuple[Sequence[int], Sequence[int]]
    values: Callable[[], tuple[Tensor, Tensor] | None]


CONSTANT = Given()
UNKNOWN = "unknown"  # the kind of what may be a norm
NORMAL = ("norm", "normlike")
FACTORS = frozenset(("mul", "div", "addcmul", "lerp"))  # whose numbers matter


@cache
def op_name(name: str) -> str:
    """aten.add_.Tensor, AddBackward0 -> add.

    >>> op_name("aten.native_layer_norm.default"), op_name("NativeLayerNormBackward0"), op_name("aten.add_.Tensor")
    ('nativelayernorm', 'nativelayernorm', 'add')
    """
    name = name.split(".")[1] if name.startswith("aten.") else name.split(".")[0]
    return re.sub(r"Backward\d*$", "", name).replace("_", "").lower()


@dataclass
class Flow:
    """The graph of one forward pass."""

    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)  # parameters of one element
    given_more: set[str] = field(default_factory=set)  # norms that were called with more than their input
    _uses: dict[str, int] = field(default_factory=dict)
    _pairs: dict[int, tuple[int, Pair]] = field(default_factory=dict)  # node -> (its first factor, both); until the end

    # ---- calls

    def enter(self, name: str, cls: str, parent: int, listed: bool) -> int:
        use = self._uses.get(name, 0)
        self._uses[name] = use + 1
        self.calls.append(Call(len(self.calls), name, cls, parent, use, listed))
        return len(self.calls) - 1

    def stack_of(self, call: int) -> list[int]:
        """The calls around a node, the outermost first."""
        found = []
        while call >= 0:
            found.append(call)
            call = self.calls[call].parent
        return found[::-1]

    def last_call_of(self, name: str, before: int) -> int:
        """The latest call of a module, or else of the nearest module around it; ``before`` if there is none."""
        while True:
            for call in reversed(self.calls):
                if call.name == name:
                    return call.index
            if not name:
                return before
            name = name.rpartition(".")[0]

    # ---- nodes

    def _put(self, op: str, role: str, inputs: Sequence[int], call: int, **details: object) -> Given:
        at = len(self.nodes)
        one = tuple(inputs) if len(inputs) < 2 else tuple(dict.fromkeys(inputs))
        self.nodes.append(Node(at, op, role, one, call, **details))  # type: ignore[arg-type]
        return Given(at)

    def norm(self, site: str, kind: str, x: Given, call: int) -> Given:
        role = "norm" if kind != UNKNOWN else "normlike"
        return self._put("norm", role, [] if x.node is None else [x.node], call, site=site, kind=kind)

    def sum(self, x: Given, branch: Given, alpha: float, call: int) -> Given:
        """alpha * x + branch, as one module does it."""
        if alpha != 1 and x.node is not None:
            x = self._put("mul", "scale", [x.node], call, factor=alpha)
        return self.add("add", [branch, x], call)

    def start(self, call: int) -> Given:
        return self._put("input", "start", [], call)

    def add(
        self, op: str, given: Sequence[Given], call: int, alpha: float = 1.0, *, opaque: bool = False, pair: Pair | None = None
    ) -> Given:  # fmt: skip
        """What an operator makes: a node, or, of parameters or constants alone, a parameter or a constant again. ``opaque``: a
        function of somebody's own, of which only what it was given is known. ``pair``: of a product or quotient, what is known of both."""
        acts: list[int] = []
        learned: list[Given] = []
        rest = 0
        for g in given:
            if g.node is not None:
                acts.append(g.node)
            elif g.parameter is not None:
                learned.append(g)
            else:
                rest += 1
        if not acts:
            if not learned:
                return CONSTANT
            looked_up = op == "embedding" or (op in ("index", "indexselect") and learned[0].dims == 2)
            if looked_up or (op in MATRIX and rest):
                return self._put(op, "start", [], call)
            return Given(parameter=learned[0].parameter, dims=max(g.dims for g in learned))
        if opaque:
            return self._put(op, _role_of_own(acts, learned), acts, call, kind=UNKNOWN)
        if op in NORMS:
            return self._put(op, "norm", acts[:1], call, kind=NORMS[op])
        if op in MATRIX:
            if op in ADDING and given[0].node is not None and len(acts) > 1:  # a sum and a product in one
                product = self.add("mm", given[1:], call)
                return self._sum(op, given[0], product, call)
            role = "matrix" if learned or (rest and len(acts) == 1) else "mixer"
            return self._put(op, role, acts, call)
        if "scaleddotproduct" in op or op in MIXERS:
            values = acts[2:3] if "scaleddotproduct" in op and acts[2:3] != acts[1:2] else ()
            return self._put(op, "mixer", acts, call, apart=tuple(values))
        if op == "addcmul" and len(given) >= 3 and given[0].node is not None:
            return self._sum(op, given[0], self.add("mul", given[1:], call), call)
        if op == "lerp" and len(acts) == 2 and given[0].node is not None and given[1].node is not None:
            weight = given[2] if len(given) > 2 else CONSTANT
            other = Given(number=1 - weight.number) if weight.number is not None else weight
            kept, added = self.add("mul", [given[0], other], call), self.add("mul", [given[1], weight], call)
            return self._sum(op, kept, added, call)
        if op in ("add", "sub", "rsub") and len(acts) == 2:
            if acts[0] == acts[1]:
                return self._put(op, "scale", acts, call, factor=2.0) if op == "add" else CONSTANT
            factor = alpha if op == "add" else -alpha
            if factor != 1:
                which = 0 if op == "rsub" else 1
                acts[which] = self._scaled(acts[which], factor, call)
            return self._put(op, "sum", acts, call)
        if op == "sum" and len(acts) == 1 and self.nodes[acts[0]].op == "stack":
            terms = [Given(i) for i in self.nodes[acts[0]].inputs]
            while len(terms) > 1:
                terms = [self._sum(op, terms[0], terms[1], call), *terms[2:]]
            return terms[0]
        if op in ("mul", "div") and len(acts) == 1 and len(given) >= 2:
            if learned:
                name = learned[0].parameter
                one = learned[0].one or name in self.numbers
                return self._put(op, "scale", acts, call, learned=name, kind="number" if one else None)
            number = next((g.number for g in given if g.number is not None), None)
            if number is None or number == 0:
                return self._put(op, "carry", acts, call)
            return self._put(op, "scale", acts, call, factor=number if op == "mul" else 1 / number)
        if len(set(acts)) == 1 and op not in REDUCTIONS and not (op in ("mul", "div", "pow") and len(acts) > 1):
            return self._put(op, "carry", acts, call)
        if pair is not None and len(set(acts)) == 2:
            widths = [shape[-1] if len(shape) else 1 for shape in pair.shapes]
            spread = [a for a, n in zip(acts, widths, strict=True) if n == 1 < max(widths)]
            made = self._put(op, "other", acts, call, apart=tuple(spread))
            self._pairs[len(self.nodes) - 1] = acts[0], pair
            return made
        return self._put(op, "other", acts, call)

    def _sum(self, op: str, x: Given, y: Given, call: int) -> Given:
        return (
            self.add("add", [x, y], call) if x.node is not None and y.node is not None else x if y.node is None else y
        )

    def _scaled(self, node: int, factor: float, call: int) -> int:
        made = self._put("mul", "scale", [node], call, factor=factor).node
        assert made is not None
        return made

    @cached_property
    def attending(self) -> set[int]:
        """scaled_dot_product_attention, and each softmax of a product of two activations' matrices. Of a finished flow."""
        return {
            node.at for node in self.nodes if ("softmax" in node.op or "scaleddot" in node.op) and self._attends(node)
        }

    @cached_property
    def matrices(self) -> set[int]:
        return {node.at for node in self.nodes if node.role == "matrix"}

    @cached_property
    def mixers(self) -> set[int]:
        return {node.at for node in self.nodes if node.role == "mixer"}

    @cached_property
    def weighty(self) -> set[int]:
        return self.matrices | self.mixers

    @cached_property
    def weighing(self) -> set[int]:
        """Products with a factor that is spread over the features."""
        return {node.at for node in self.nodes if node.apart and node.role == "other"}

    @cached_property
    def mixing(self) -> set[int]:
        """Where positions meet: mixers, and convolutions."""
        return self.mixers | {node.at for node in self.nodes if "conv" in node.op}

    @cached_property
    def functions(self) -> dict[int, list[int]]:
        """Norms that are no modules, and what may be one, by the call they were made in. Of a finished flow."""
        found: dict[int, list[int]] = {}
        for node in self.nodes:
            if node.role in NORMAL and node.site is None:
                found.setdefault(node.call, []).append(node.at)
        return found

    def _attends(self, node: Node) -> bool:
        if "scaleddotproduct" in node.op:
            return True
        if node.op not in ("softmax", "safesoftmax"):
            return False
        waiting, seen = list(node.inputs), 0
        while waiting and seen < 24:  # masks, biases and scales lie between
            seen += 1
            at = self.nodes[waiting.pop(0)]
            if at.role == "mixer":
                return True
            if at.role != "matrix":
                waiting += at.inputs
        return False

    def within(self, call: int, names: set[str]) -> bool:
        """Is a call one of these modules', or inside one?"""
        return any(self.calls[c].name in names for c in self.stack_of(call))

    def finish(self, outputs: Sequence[Given]) -> None:
        """Norms written out are found, and what did not become part of an output is dropped (its node stays, as "unused")."""
        ends = [g.node for g in outputs if g.node is not None]
        self._settle_norms(self._leading_to(ends))
        self._pairs = {}
        used = self._leading_to(ends)
        self.nodes = [n if n.at in used else n._replace(role="unused", inputs=()) for n in self.nodes]

    def _leading_to(self, ends: list[int]) -> set[int]:
        used: set[int] = set()
        waiting = list(ends)
        while waiting:
            i = waiting.pop()
            if i not in used:
                used.add(i)
                waiting += self.nodes[i].inputs
        return used

    def _settle_norms(self, used: set[int]) -> None:
        """x / sqrt(mean(x^2) + eps), (x - mean(x)) / sqrt(var(x) + eps), x / |x|: one norm, if the values say so as well. Another statistic of x that
        x is multiplied with or divided by: one that may be. The statistic's own nodes stay, and lead nowhere."""
        for node in self.nodes:
            if node.role == "other" and node.op in ("mul", "div") and len(node.inputs) == 2 and node.at in used:
                for x, statistic in (node.inputs, node.inputs[::-1]):
                    kind = self._statistic_of(node, statistic, x)
                    if kind is not None:
                        role = "norm" if kind != UNKNOWN else "normlike"
                        self.nodes[node.at] = node._replace(
                            role=role, inputs=(self._uncentred(x),), kind=kind, apart=()
                        )
                        break

    def _uncentred(self, x: int) -> int:
        """What the mean was taken from, if x is a value less its mean."""
        node = self.nodes[x]
        if node.op != "sub" or node.role != "sum":
            return x
        for value, taken in (node.inputs, node.inputs[::-1]):
            mean = self.nodes[taken]
            if mean.role == "scale" and mean.factor == -1:
                of = self.nodes[mean.inputs[0]]
                if of.op in ("mean", "varmean") and set(of.inputs) & self._same_value(value):
                    return value
        return x

    def _statistic_of(self, node: Node, statistic: int, x: int) -> str | None:
        """The kind of norm that x times (or over) this statistic is; None: it is no statistic of x."""
        plain = self._uncentred(x)
        centred = plain != x
        values = self._same_value(x) | self._same_value(plain)
        seen: list[Node] = []
        reduction = None
        at = self.nodes[statistic]
        for _ in range(12):
            seen.append(at)
            if at.op in STATISTICS:
                reduction = at.op
            if reduction is not None and set(at.inputs) & values:
                break
            if len(at.inputs) != 1 or at.role in ("matrix", "mixer", "start"):
                return None
            at = self.nodes[at.inputs[0]]
        else:
            return None
        if any(n.op not in TO_STATISTIC and not n.op.endswith("sqrt") for n in seen):
            return UNKNOWN
        if reduction not in ("mean", "sum", "norm", "linalgvectornorm", "var", "std", "varmean"):
            return UNKNOWN
        if reduction in ("var", "std", "varmean") and not centred:
            return UNKNOWN
        first, pair = self._pairs.get(node.at, (None, None))
        found = pair.values() if pair is not None else None
        if found is None or (node.op == "div" and first != x):  # a statistic over x
            return UNKNOWN
        of, by = found if first == x else found[::-1]
        return normalizes(of, by, node.op == "div", centred, any(n.role == "scale" for n in seen)) or UNKNOWN

    def _same_value(self, x: int) -> set[int]:
        """x, and what it was cast from: the statistic may be taken of either."""
        found = {x}
        while self.nodes[x].op in ("tocopy", "to", "view", "clone", "alias") and len(self.nodes[x].inputs) == 1:
            x = self.nodes[x].inputs[0]
            found.add(x)
        return found
