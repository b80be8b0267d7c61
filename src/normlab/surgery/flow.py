"""What flowed through a model, as a graph of few kinds of nodes, whichever way it was captured.

An operator becomes one of these roles, by its name and by what it was given (activations, parameters, constants):

    start    where activations begin: an embedding, a matrix on the input
    norm     a call of a norm module, one node whatever runs inside, or an operator that normalizes
    sum      two activations added
    scale    an activation times a number or times a parameter
    carry    one activation, no weights: views, casts, dropout, a bias, a mask, a curve
    matrix   an activation times weights: linear layers and convolutions
    mixer    positions or activations meet without weights: a product of two activations' matrices, attention, Fourier, pooling
    other    everything else: gates, reductions, concatenations
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

MATRIX = {
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "mkldnnconvolution", "matmul", "groupedmm", "addmv", "mv", "convdepthwise2d",
    "slowconv2dforward", "thnnconv2d", "addbmm", "einsum",
}  # fmt: skip
MIXERS = {"fftc2c", "fftr2c", "fftc2r", "cumsum", "avgpool2d", "avgpool1d", "maxpool2dwithindices", "logcumsumexp"}
NORMS = {
    "nativelayernorm": "layer", "fusedrmsnorm": "rms", "nativegroupnorm": "group", "nativebatchnorm": "batch",
    "cudnnbatchnorm": "batch", "batchnorm": "batch", "nativebatchnormlegitnotraining": "batch",
    "nativebatchnormlegit": "batch", "nativebatchnormlegitfunctional": "batch",
}  # fmt: skip
REDUCTIONS = {
    "mean", "sum", "amax", "amin", "max", "min", "var", "std", "varmean", "norm", "linalgvectornorm", "prod", "argmax",
    "logsumexp", "topk", "sort", "nllloss", "nllloss2dforward", "logsoftmax", "softmax", "crossentropyloss",
}  # fmt: skip


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


CONSTANT = Given()


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
    _uses: dict[str, int] = field(default_factory=dict)

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
        return self._put("norm", "norm", [] if x.node is None else [x.node], call, site=site, kind=kind)

    def sum(self, x: Given, branch: Given, alpha: float, call: int) -> Given:
        """alpha * x + branch, as one module does it."""
        if alpha != 1 and x.node is not None:
            x = self._put("mul", "scale", [x.node], call, factor=alpha)
        return self.add("add", [branch, x], call)

    def start(self, call: int) -> Given:
        return self._put("input", "start", [], call)

    def add(self, op: str, given: Sequence[Given], call: int, alpha: float = 1.0) -> Given:
        """What an operator makes: a node, or, of parameters or constants alone, a parameter or a constant again."""
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
        if op in NORMS:
            return self._put(op, "norm", acts[:1], call, kind=NORMS[op])
        if op in MATRIX:
            role = "matrix" if learned or (rest and len(acts) == 1) else "mixer"
            return self._put(op, role, acts, call)
        if "scaleddotproduct" in op or op in MIXERS:
            return self._put(op, "mixer", acts, call)
        if op == "add" and len(acts) == 2:
            if acts[0] == acts[1]:
                return self._put(op, "scale", acts, call, factor=2.0)
            if alpha != 1:
                scaled = self._put("mul", "scale", [acts[1]], call, factor=alpha).node
                assert scaled is not None
                acts[1] = scaled
            return self._put(op, "sum", acts, call)
        if op in ("mul", "div") and len(acts) == 1 and len(given) >= 2:
            if learned:
                name = learned[0].parameter
                return self._put(op, "scale", acts, call, learned=name, kind="number" if name in self.numbers else None)
            number = next((g.number for g in given if g.number is not None), None)
            if number is None or number == 0:
                return self._put(op, "carry", acts, call)
            return self._put(op, "scale", acts, call, factor=number if op == "mul" else 1 / number)
        if len(set(acts)) == 1 and op not in REDUCTIONS and not (op in ("mul", "div", "pow") and len(acts) > 1):
            return self._put(op, "carry", acts, call)
        return self._put(op, "other", acts, call)

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
    def mixing(self) -> set[int]:
        """Where positions meet: mixers, and convolutions."""
        return self.mixers | {node.at for node in self.nodes if "conv" in node.op}

    @cached_property
    def functions(self) -> dict[int, list[int]]:
        """Norms that are no modules, by the call they were made in. Of a finished flow."""
        found: dict[int, list[int]] = {}
        for node in self.nodes:
            if node.role == "norm" and node.site is None:
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
        self._settle_norms()
        used: set[int] = set()
        waiting = [g.node for g in outputs if g.node is not None]
        while waiting:
            i = waiting.pop()
            if i not in used:
                used.add(i)
                waiting += self.nodes[i].inputs
        self.nodes = [n if n.at in used else n._replace(role="unused", inputs=()) for n in self.nodes]

    def _settle_norms(self) -> None:
        """x / sqrt(mean(x^2) + eps), x / |x|: one norm. The statistic's own nodes stay, and lead nowhere."""
        for node in self.nodes:
            if node.role == "other" and node.op in ("mul", "div") and len(node.inputs) == 2:
                for x, statistic in (node.inputs, node.inputs[::-1]):
                    kind = self._statistic_of(statistic, x)
                    if kind is not None:
                        self.nodes[node.at] = node._replace(role="norm", inputs=(x,), kind=kind)
                        break

    def _statistic_of(self, statistic: int, x: int) -> str | None:
        seen, kind = [], None
        at = self.nodes[statistic]
        for _ in range(12):
            seen.append(at.op)
            if at.op in ("mean", "linalgvectornorm", "norm", "sum", "var"):
                kind = "rms" if at.op == "mean" else "scale"
            if kind is not None and set(at.inputs) & self._same_value(x):
                rooted = any(op.endswith("sqrt") or op in ("pow", "linalgvectornorm", "norm") for op in seen)
                return kind if rooted else None
            if len(at.inputs) != 1:
                return None
            at = self.nodes[at.inputs[0]]
        return None

    def _same_value(self, x: int) -> set[int]:
        """x, and what it was cast from: the statistic may be taken of either."""
        found = {x}
        while self.nodes[x].op in ("tocopy", "to", "view", "clone", "alias") and len(self.nodes[x].inputs) == 1:
            x = self.nodes[x].inputs[0]
            found.add(x)
        return found
