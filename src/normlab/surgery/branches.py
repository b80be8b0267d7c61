"""What stands where in one branch: norms at its entry, its exit, before its last matrix, on queries and keys; factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .flow import NORMAL, Flow, Node
from .stream import Streams, Sum


@dataclass(frozen=True)
class Branch:
    """One residual sum: what kind of sub-layer it adds, and the norms around it, by name."""

    kind: str  # attention, mixing (of positions by other means), feedforward
    entry: tuple[str, ...] = ()
    exit: tuple[str, ...] = ()
    before_last: tuple[str, ...] = ()
    queries_keys: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()  # elsewhere inside
    stream: tuple[str, ...] = ()  # on the stream, after the sum
    stream_factor: float | str | None = None  # on what is carried: a number, or the parameter's name
    branch_factor: float | str | None = None  # on what is added
    entry_factor: float | str | None = None  # after the norm at the entry
    parallel: bool = False  # does it start where the one before it started?
    bridge: bool = False  # is an earlier value of the stream added once more?
    learned_number: bool = False  # is the factor on what is added one learned number?
    unrecognized: tuple[str, ...] = ()  # what stands where a norm would, and may be one

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items() if v not in ((), None, False)}


def norm_name(flow: Flow, node: Node) -> str:
    """A module's name, or, of a norm that is no module, where it was called."""
    if node.site is not None:
        return node.site
    where = flow.calls[node.call].name if node.call >= 0 else ""
    alike = flow.functions[node.call]
    which = f" {alike.index(node.at) + 1}" if len(alike) > 1 else ""
    return f"{where or 'model'} ({node.kind}, a function{which})"


def factor_of(nodes: list[Node]) -> float | str | None:
    """The product of the numbers, or a parameter's name."""
    product = 1.0
    for node in nodes:
        if node.learned is not None:
            return node.learned
        product *= node.factor or 1.0
    return None if product == 1 else product


def kind_of(streams: Streams, s: Sum) -> str:
    """What kind of sub-layer a sum adds."""
    if not streams.flow.attending.isdisjoint(s.region):
        return "attention"
    return "feedforward" if streams.flow.mixing.isdisjoint(s.region) else "mixing"


def branch_of(streams: Streams, s: Sum, stream_norms: list[Node], parallel: bool) -> Branch:
    """``stream_norms``: those after the sum."""
    flow = streams.flow
    region = sorted(s.region)
    weighty = "mixer" if flow.matrices.isdisjoint(s.region) else "matrix"
    held = s.region
    comes: dict[int, bool] = {}  # from the stream
    above: dict[int, bool] = {}  # is there a matrix between the stream and it?
    below: dict[int, bool] = dict.fromkeys(region, False)  # ... between it and the sum?
    nodes = flow.nodes
    for i in region:
        comes[i] = above[i] = False
        for p in nodes[i].inputs:
            if p in s.taps or comes.get(p):
                comes[i] = True
            if p in held and (above[p] or nodes[p].role == weighty):
                above[i] = True
    for i in reversed(region):
        under = below[i] or nodes[i].role == weighty
        if under:
            for p in nodes[i].inputs:
                if p in held:
                    below[p] = True
    attends = not flow.attending.isdisjoint(region)
    places: dict[str, list[str]] = {"entry": [], "exit": [], "before_last": [], "queries_keys": [], "inner": []}
    unrecognized = [norm_name(flow, n) for n in stream_norms if n.role == "normlike"]
    way_out = set(streams.back(s.branch)[0])
    features = _features(flow, s)
    for i in region:
        node = nodes[i]
        if node.role not in NORMAL or not comes[i] or not (above[i] or below[i]) or i not in features:
            continue
        if node.role == "normlike":
            # At the exit only on the branch's own way: weights of experts are divided by their sum as well.
            if not above[i] or i in way_out:
                unrecognized.append(norm_name(flow, node))
            continue
        if not above[i]:
            place = "entry"
        elif not below[i]:
            place = "exit"
        else:
            place = _inside(streams, i, held, below)
            place = "inner" if place == "queries_keys" and not attends else place
        places[place].append(norm_name(flow, node))
    # What stands before the branch starts acts on both: an embedding's factor, for instance.
    own = s.path[: next((k for k, i in enumerate(s.path) if i in s.taps), len(s.path))]
    scales = [flow.nodes[i] for i in own if flow.nodes[i].role == "scale"]
    last = [flow.nodes[i] for i in streams.back(s.branch)[0] if flow.nodes[i].role == "scale"]
    return Branch(
        kind=kind_of(streams, s),
        stream=tuple(norm_name(flow, n) for n in stream_norms),
        stream_factor=factor_of(scales),
        branch_factor=factor_of(last), learned_number=any(n.kind == "number" for n in last),
        entry_factor=_entry_factor(streams, region, held, above),
        parallel=parallel, bridge=streams.bridged(s.node), unrecognized=tuple(dict.fromkeys(unrecognized)),
        **{place: tuple(dict.fromkeys(names)) for place, names in places.items()},
    )  # fmt: skip


def _features(flow: Flow, s: Sum) -> set[int]:
    """What the branch's features come from: all of it but what weighs them as a whole, the weights of experts for instance."""
    if flow.weighing.isdisjoint(s.region):
        return s.region
    found: set[int] = set()
    waiting = [s.branch]
    while waiting:
        i = waiting.pop()
        if i in s.region and i not in found:
            found.add(i)
            aside = flow.nodes[i].apart if i in flow.weighing else ()
            waiting += [p for p in flow.nodes[i].inputs if p not in aside]
    return found


def _is_value(flow: Flow, mixer: Node, given: int) -> bool:
    """Is it attention's third, which the weights are multiplied with?"""
    if mixer.apart:
        return given in mixer.apart
    return any(_is_weights(flow, i) for i in mixer.inputs if i != given)


def _is_weights(flow: Flow, index: int) -> bool:
    """Attention's, or what dropout, a cast or a view made of them."""
    node = flow.nodes[index]
    while node.at not in flow.attending and node.role in ("carry", "scale"):
        node = flow.nodes[node.inputs[0]]
    return node.at in flow.attending


def _inside(streams: Streams, norm: int, held: set[int], below: dict[int, bool]) -> str:
    """What the norm's output meets first: attention, the last matrix, or another."""
    flow = streams.flow
    waiting, seen = [norm], {norm}
    last = False
    while waiting:
        given = waiting.pop()
        for user in streams.users[given]:
            if user not in held or user in seen:
                continue
            seen.add(user)
            node = flow.nodes[user]
            if node.role == "mixer":
                return "inner" if _is_value(flow, node, given) else "queries_keys"
            if node.role == "matrix":
                last = last or not below[user]
            else:
                waiting.append(user)
    return "before_last" if last else "inner"


def _entry_factor(streams: Streams, region: list[int], held: set[int], above: dict[int, bool]) -> float | str | None:
    """A factor between the norm at the entry and the first matrix."""
    flow = streams.flow
    for i in region:
        node = flow.nodes[i]
        if (
            node.role == "scale"
            and not above[i]
            and any(flow.nodes[p].role in NORMAL for p in streams.back(i)[0] if p in held)
        ):
            return factor_of([node])
    return None
