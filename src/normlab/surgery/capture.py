"""Two ways to see what flows through a model; both fill the same :class:`.flow.Flow`.

``GraphCapture`` reads the graph that autograd has made in a training step anyway: nothing runs but the model's own forward.
``OperatorCapture`` listens to operators while a forward runs without gradients. In both, hooks on modules tell which call
an operator belongs to (autograd's nodes are numbered as they are made), and a norm's call becomes one node.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .._torch import TorchDispatchMode, node_number, node_shapes, nodes_made, version_of
from ..placements import Residual
from .flow import CONSTANT, FACTORS, UNKNOWN, Flow, Given, Pair, op_name
from .sites import NormSite, UnknownSite
from .written import LARGEST_EPS

# Of these nothing but one matrix, one table or one curve comes: no sum, no norm and no attention is made inside, so that what they do
# may be counted as their parent's, and half of a model's modules need no hook.
PLAIN_LEAVES = (
    nn.Linear, nn.Embedding, nn.Dropout, nn.Identity, nn.Conv1d, nn.Conv2d, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid,
)  # fmt: skip


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors in nested tuples, lists, dictionaries and records, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        value = list(vars(value).values())
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (tuple, list)) else []


class _Capture:
    """Hooks around every module; what a value is, is the subclass's to say."""

    def __init__(self, model: nn.Module, norms: Sequence[NormSite], unknown: Sequence[UnknownSite] = ()) -> None:
        self.model, self.flow = model, Flow()
        self.norms = {id(s.module): s for s in norms}
        self.unknown = {id(s.module): s for s in unknown if s.nature in ("unknown", "norm")}
        self.modules = {id(m): (n, m) for n, m in model.named_modules()}
        named = list(model.named_parameters())
        self.parameters = {id(p): n for n, p in named}
        self.flow.numbers = {n for n, p in named if p.numel() == 1}
        lists = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        self.listed = {id(c) for _, m in self.modules.values() if isinstance(m, lists) for c in m.children()}
        self._handles: list[Any] = []
        self._calls: list[int] = []

    @property
    def call(self) -> int:
        return self._calls[-1] if self._calls else -1

    def attach(self) -> None:
        """Hooks on every module, until :meth:`detach`. Those on norms are passive: a sum and its norm that run in one kernel go
        on doing so, and dropout draws the same pattern."""

        def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._see_if_alone(self.norms[id(module)], args, kwargs, output)

        see.passive = True  # type: ignore[attr-defined]
        keep = self._handles.append
        for _, module in self.modules.values():
            if id(module) in self.norms and not may_take_more(module):
                keep(module.register_forward_hook(see, with_kwargs=True))
            elif type(module) not in PLAIN_LEAVES:
                keep(module.register_forward_pre_hook(self._enter, prepend=True))
                keep(module.register_forward_hook(self._leave, with_kwargs=True, always_call=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self.modules[id(module)][0]
        self._calls.append(self.flow.enter(name, type(module).__name__, self.call, id(module) in self.listed))
        self._entered()

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._calls.pop()
        if isinstance(module, Residual) and output is not None:
            # A sum of ours, whose norm may run in the same kernel. One left open is carried out in the next block: it belongs to
            # the module that holds it.
            call = self.flow.last_call_of(self.modules[id(module)][0].rpartition(".")[0], self.call)
            made = output if isinstance(output, tuple) else (output,)
            self._see_sum(args[0], args[1], module.alpha, made[0], call)
            if len(made) > 1 and id(args[2]) in self.norms:
                self._see_norm(self.norms[id(args[2])], made[0], made[1])
        self._left()
        site = self.norms.get(id(module)) or self.unknown.get(id(module))
        if site is not None:
            self._see_if_alone(site, args, kwargs, output)

    def _see_if_alone(self, site: NormSite | UnknownSite, args: Any, kwargs: Any, output: Any) -> None:
        """A norm's call is one node, if it was given its input alone. Given more (what to add before, what to scale by after), what it
        made of that tells; so it does where something unknown takes or returns several tensors."""
        given = [t for t in tensors_in((args, kwargs)) if t.is_floating_point()]
        made = tensors_in(output)
        if len(given) == 1 and made and (len(made) == 1 or isinstance(site, NormSite)):
            self._see_norm(site, given[0], made[0])
        elif len(given) > 1:
            self.flow.given_more.add(site.name)

    def _see_norm(self, site: NormSite | UnknownSite, x: Tensor, y: Tensor) -> None:
        raise NotImplementedError

    def _see_sum(self, x: Tensor, branch: Tensor, alpha: float, y: Tensor, call: int) -> None:
        raise NotImplementedError

    def _entered(self) -> None: ...

    def _left(self) -> None: ...


class OperatorCapture(_Capture, TorchDispatchMode):
    """``with capture: model(...)``, without gradients. Tensors are kept until it is forgotten."""

    def __init__(self, model: nn.Module, norms: Sequence[NormSite], unknown: Sequence[UnknownSite] = ()) -> None:
        TorchDispatchMode.__init__(self)
        _Capture.__init__(self, model, norms, unknown)
        self._values: dict[int, Given] = {i: Given(parameter=n, dims=p.dim()) for (i, n), p in zip(
            self.parameters.items(), model.parameters(), strict=True)}  # fmt: skip
        self._kept: list[Tensor] = []
        self._aliases: dict[int, list[Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's wrapper against it takes longer than a small operator

    def __enter__(self) -> Any:
        self.attach()
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)
        self.detach()

    def begin(self, *given: Any) -> None:
        """What the model is given is where activations start."""
        for t in tensors_in(given):
            if t.is_floating_point():
                self.set(t, self.flow.start(-1))

    def finish(self, output: Any) -> Flow:
        self.flow.finish([self.value(t) for t in tensors_in(output)])
        self._values, self._kept, self._aliases = {}, [], {}
        return self.flow

    def value(self, t: Tensor) -> Given:
        return self._values.get(id(t), CONSTANT)

    def _see_norm(self, site: NormSite | UnknownSite, x: Tensor, y: Tensor) -> None:
        if self.value(x).parameter is not None:  # latents, whose stream starts here
            self.set(x, self.flow.start(self.call))
        self.set(y, self.flow.norm(site.name, _kind(site), self.value(x), self.call))

    def _see_sum(self, x: Tensor, branch: Tensor, alpha: float, y: Tensor, call: int) -> None:
        self.set(y, self.flow.sum(self.value(x), self.value(branch), alpha, call))

    def set(self, t: Tensor, value: Given) -> None:
        if id(t) not in self._values:
            self._kept.append(t)
            if value != CONSTANT or t.is_floating_point():
                self._aliases.setdefault(_memory(t), []).append(t)
        self._values[id(t)] = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        op, changes = _what(func)
        given, factor = [], op in FACTORS
        for a in args:
            if isinstance(a, (int, float)):
                if factor:
                    given.append(Given(number=float(a)))
                continue
            for t in (a,) if isinstance(a, Tensor) else tensors_in(a):
                value = self.value(t)
                if factor and t.numel() == 1 and not t.is_meta:
                    if value == CONSTANT:
                        value = Given(number=float(t))
                    elif value.parameter is not None:
                        value = value._replace(one=True)
                given.append(value)
        pair = None
        if op == "copy":
            given = given[1:]  # what was there before is gone
        elif op == "clamp":
            op = _clamp(
                args[1] if len(args) > 1 else kwargs.get("min"), args[2] if len(args) > 2 else kwargs.get("max")
            )
        elif op in ("mul", "div") and len(given) == 2 and given[0].node is not None and given[1].node is not None:
            pair = _pair(op, args[0], args[1], out, changes)
        elif op == "nativebatchnorm" and given[0].node is not None:
            op = _normalized(op, args[0], args[3], args[5], self.flow.nodes[given[0].node].op)
        made = self.flow.add(op, given, self.call, float(kwargs.get("alpha", 1)), pair=pair)
        for t in (out,) if isinstance(out, Tensor) else tensors_in(out):
            if t.is_floating_point() or t.is_complex():
                if changes:
                    self._changed(t, made)
                self.set(t, made)
        return out

    def _changed(self, t: Tensor, made: Given) -> None:
        """Other views of the same memory have changed with it."""
        for other in self._aliases.get(_memory(t), ()):
            if other is not t:
                old = self._values.get(id(other), CONSTANT)
                self._values[id(other)] = made if old.node is None else self.flow.add("write", [old, made], self.call)


@cache
def _what(func: Any) -> tuple[str, bool]:
    """An operator's name, and whether it writes into what it is given."""
    name = str(func)
    return op_name(name), name.split(".")[1].endswith("_") and not name.startswith("aten.__")


def _clamp(least: Any, most: Any) -> str:
    """A bound from below by a small number is an eps; any other is a curve."""
    return "clampmin" if most is None and isinstance(least, (int, float)) and least <= LARGEST_EPS else "clamp"


def _normalized(op: str, x: Tensor, running: Any, training: bool, before: str) -> str:
    """torch's instance_norm is batch_norm of all examples beside each other, in one."""
    return "instancenorm" if running is None and training and x.shape[0] == 1 and before in ("view", "reshape") else op


def _pair(op: str, a: Tensor, b: Tensor, out: Tensor, changes: bool) -> Pair:
    """Of what was changed in place since, what the result says. A change is counted when the operator is done, which it is not yet."""
    shapes = a.shape, b.shape
    if out.is_inference():
        return Pair(shapes, lambda: None)  # changes are not counted
    versions = [-1 if changes else version_of(a), version_of(b)]
    made = version_of(out) + changes

    def values() -> tuple[Tensor, Tensor] | None:
        kept = [version_of(t) == v for t, v in zip((a, b), versions, strict=True)]
        if all(kept):
            return a, b
        if not any(kept) or version_of(out) != made:
            return None
        if kept[1] and out.shape == a.shape:
            return (out / b if op == "mul" else out * b), b
        return (a, out / a) if kept[0] and op == "mul" and out.shape == b.shape else None

    return Pair(shapes, values)


def may_take_more(module: nn.Module) -> bool:
    """Has its forward room for more than one tensor? torch's and our own norms take none that is not a mask."""
    if type(module).__module__.startswith(("torch.nn.", "normlab.")):
        return False
    try:
        taken = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return True
    return len(taken) > 1 or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken)


def _kind(site: NormSite | UnknownSite) -> str:
    """Of something unknown that is one by its answers: "norm"."""
    return site.kind if isinstance(site, NormSite) else "norm" if site.nature == "norm" else UNKNOWN


def _memory(t: Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors and the like have none
        return id(t)


class GraphCapture(_Capture):
    """Of one forward with gradients: ``with capture: output = model(...)``, or ``attach()`` before and ``detach()`` after it; then
    ``finish(output)``, before the backward pass.

    The graph is walked once at the end; until then nothing but numbers is noted at each call."""

    def __init__(self, model: nn.Module, norms: Sequence[NormSite], unknown: Sequence[UnknownSite] = ()) -> None:
        super().__init__(model, norms, unknown)
        self._spans: list[tuple[int, int]] = []  # (number of the next node, call in force from there on)
        self._pending: dict[Edge, tuple[Any, ...]] = {}
        self._flows: dict[Edge, Given] = {}
        self._starts: list[int] = []

    def __enter__(self) -> GraphCapture:
        self.attach()
        return self

    def __exit__(self, *error: Any) -> None:
        self.detach()

    def _entered(self) -> None:
        self._spans.append((nodes_made(), self.call))

    _left = _entered

    # Norms and sums are noted by the edge they made, and become nodes when the graph is walked.

    def _see_norm(self, site: NormSite | UnknownSite, x: Tensor, y: Tensor) -> None:
        if y.grad_fn is not None:
            self._pending[_edge(y)] = ("norm", site, _edge(x), self.call)

    def _see_sum(self, x: Tensor, branch: Tensor, alpha: float, y: Tensor, call: int) -> None:
        if y.grad_fn is not None:
            self._pending[_edge(y)] = ("sum", _edge(x), _edge(branch), alpha, call)

    def finish(self, output: Any) -> Flow:
        self.detach()
        self._starts = [number for number, _ in self._spans]
        roots = [_edge(t) for t in tensors_in(output) if t.grad_fn is not None]
        for number, edge, parents in self._in_order(roots):
            self._flows[edge] = self._make(number, edge, parents)
        self.flow.finish([self._given(edge) for edge in roots])
        self._flows, self._pending = {}, {}
        return self.flow

    def _parents(self, edge: Edge) -> tuple[Edge, ...]:
        note = self._pending.get(edge)
        if note is None:
            return edge[0].next_functions
        return (note[2],) if note[0] == "norm" else note[1:3]

    def _in_order(self, roots: list[Edge]) -> list[tuple[int, Edge, tuple[Edge, ...]]]:
        """(number, edge, what it depends on), every edge after those it depends on."""
        parents: dict[Edge, tuple[Edge, ...]] = {}
        order: list[Edge] = []
        waiting: list[Edge | None] = list(roots)
        open_: list[Edge] = []
        while waiting:
            edge = waiting.pop()
            if edge is None:
                order.append(open_.pop())
            elif edge not in parents:
                parents[edge] = above = self._parents(edge)
                open_.append(edge)
                waiting.append(None)
                waiting += [e for e in above if e[0] is not None and e not in parents]
        # As made, so that both captures number alike; what was noted at a call comes after what it is made of.
        ranked = sorted((_number(edge[0]), rank) for rank, edge in enumerate(order))
        return [(number, order[rank], parents[order[rank]]) for number, rank in ranked]

    def _call_of(self, number: int) -> int:
        at = bisect_right(self._starts, number)
        return self._spans[at - 1][1] if at else -1

    def _given(self, edge: Edge) -> Given:
        return CONSTANT if edge[0] is None else self._flows.get(edge, CONSTANT)

    def _make(self, number: int, edge: Edge, parents: tuple[Edge, ...]) -> Given:
        note = self._pending.get(edge)
        if note is not None and note[0] == "norm":
            if self._given(note[2]).parameter is not None:  # latents, whose stream starts here
                self._flows[note[2]] = self.flow.start(note[3])
            return self.flow.norm(note[1].name, _kind(note[1]), self._given(note[2]), note[3])
        if note is not None:
            return self.flow.sum(self._given(note[1]), self._given(note[2]), note[3], note[4])
        fn = edge[0]
        kind = type(fn).__name__
        if kind == LEAF:
            name = self.parameters.get(id(fn.variable))
            return self.flow.start(-1) if name is None else Given(None, name, None, fn.variable.dim())
        op = op_name(kind)
        given = [self._given(parent) for parent in parents]
        if op in FACTORS:
            given = [_constant(fn, g, i) for i, g in enumerate(given)]
            if op == "lerp" and len(given) == 2:
                given.append(Given(number=float(fn._saved_weight)))
        alpha = float(getattr(fn, "_saved_alpha", 1) or 1) if op in ("add", "sub", "rsub") else 1.0
        pair = None
        if op in ("clamp", "clampmin"):
            op = _clamp(_saved(fn, "_saved_min"), _saved(fn, "_saved_max"))
        elif op in ("mul", "div") and len(given) == 2 and given[0].node is not None and given[1].node is not None:
            shapes = [node_shapes(f)[n : n + 1] for f, n in parents]
            pair = Pair((shapes[0][0], shapes[1][0]), partial(_saved_pair, fn)) if all(shapes) else None
        elif op == "nativebatchnorm" and given[0].node is not None:
            x, running = _saved(fn, "_saved_input"), _saved(fn, "_saved_running_mean", "changed")
            if x is not None:
                op = _normalized(op, x, running, fn._saved_training, self.flow.nodes[given[0].node].op)
        opaque = isinstance(fn, BackwardCFunction)
        return self.flow.add(op, given, self._call_of(number), alpha, opaque=opaque, pair=pair)


Edge = tuple[Any, int]  # a node of autograd's graph, or None, and which of its outputs
LEAF = "AccumulateGrad"  # the class of nodes that stand for a parameter, or for an input with a gradient


def _saved(fn: Any, name: str, otherwise: Any = None) -> Any:
    """What a node keeps, unless it has been changed in place since."""
    try:
        return getattr(fn, name, otherwise)
    except RuntimeError:
        return otherwise


def _saved_pair(fn: Any) -> tuple[Tensor, Tensor] | None:
    a, b = _saved(fn, "_saved_self"), _saved(fn, "_saved_other")
    return None if a is None or b is None else (a, b)


def _number(fn: Any) -> int:
    return -1 if type(fn).__name__ == LEAF else node_number(fn)


def _edge(t: Tensor) -> Edge:
    if t.grad_fn is None:
        return (None, 0) if not t.requires_grad else (t.expand_as(t).grad_fn.next_functions[0][0], 0)  # type: ignore[union-attr]
    return t.grad_fn, t.output_nr


# Where a node keeps the tensors that it was given.
_SAVED = {"mul": ("_saved_self", "_saved_other"), "div": ("_saved_self", "_saved_other"),
          "addcmul": ("", "_saved_tensor1", "_saved_tensor2"), "lerp": ("", "", "_saved_weight")}  # fmt: skip


def _constant(fn: Any, given: Given, place: int) -> Given:
    """The constant factor of a product, if it is one number; a parameter, with whether it is one."""
    if given.node is not None:
        return given
    names = _SAVED[op_name(type(fn).__name__)]
    saved = getattr(fn, names[place], None) if place < len(names) and names[place] else None
    one = isinstance(saved, Tensor) and saved.numel() == 1 and not saved.is_meta
    if given.parameter is not None:
        return given._replace(one=True) if one else given
    if isinstance(saved, (int, float)) or (isinstance(saved, Tensor) and one):
        return Given(number=float(saved))
    return given
