"""Blocks and placement from what flowed: a captured :class:`.flow.Flow` and the norms of the model make a Structure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .blocks import Group, group, list_of
from .branches import Branch, branch_of, kind_of, norm_name
from .find import Survey
from .flow import NORMAL, UNKNOWN, Flow, Node
from .placing import block_placement, stack_placement
from .stream import Streams, Sum
from .structure import AttentionSite, Block, Stack, Structure

LEAST = 0.5  # of a model's products, on the streams that were found: 75 % and more in all models that are understood


def structure_of(flow: Flow, survey: Survey, capture: str) -> Structure:
    """What the flow says of the model whose norms ``survey`` lists; ``capture``: which way it was taken, operators or graph."""
    # What runs inside of a norm, or of a gated one, is not one more norm; where a norm was handed more than its input, it is all we have.
    held = {s.name for s in survey.norms} | {s.name for s in survey.unknown if s.nature == "gated"}
    held -= flow.given_more
    flow.nodes = [
        n._replace(role="carry") if n.role in NORMAL and n.site is None and flow.within(n.call, held) else n
        for n in flow.nodes
    ]
    streams = Streams(flow)
    stacks = _without_heads(flow, [s for chain in streams.chains if (s := _stack(streams, chain)) is not None])
    stacks = [_consistent(s, stacks) for s in stacks]
    explained = flow.weighty.intersection(set().union(*(s.region for chain in streams.chains for s in chain)))
    aside = len(flow.weighty - explained) if len(explained) < LEAST * len(flow.weighty) else 0
    if aside:
        stacks = [replace(s, placement=UNKNOWN) for s in stacks]
    frozen: list[str] = []
    if capture == "graph":
        stacks, frozen = _with_frozen(flow, stacks)
    called = {n.site for n in flow.nodes if n.role == "norm" and n.site is not None}
    functions = [norm_name(flow, n) for n in flow.nodes if n.role == "norm" and n.site is None]
    return Structure(
        capture=capture, norms=tuple(survey.norms), unknown=tuple(survey.unknown), functions=tuple(functions),
        silent=tuple(s.name for s in survey.norms if s.name not in called), stacks=tuple(stacks),
        attention=tuple(_attention(flow)), reason=_why(stacks, aside, frozen) if stacks else _why_none(flow, streams),
    )  # fmt: skip


def _with_frozen(flow: Flow, stacks: list[Stack]) -> tuple[list[Stack], list[str]]:
    """Elements of a stack's list that were called before its first block and were given nothing with a gradient are not in autograd's graph: blocks of
    which no more is known. Their names, too."""
    called = {(c.name, c.use): c for c in flow.calls}
    known = {(b.module, b.use) for s in stacks for b in s.blocks}
    found, names = [], []
    for stack in stacks:
        calls = [c for b in stack.blocks if b.module is not None and (c := called.get((b.module, b.use))) is not None]
        first = min(calls, key=lambda c: c.index, default=None)
        before = [] if first is None or not first.listed else [
            c for c in flow.calls[: first.index]
            if c.listed and c.parent == first.parent and list_of(c) == list_of(first) and c.cls in {k.cls for k in calls}
            and (c.name, c.use) not in known and not _is_given(flow, c.index)
        ]  # fmt: skip
        names += [c.name for c in before]
        unseen = tuple(Block(c.name, c.name, c.use, UNKNOWN, ()) for c in before)
        found.append(replace(stack, blocks=unseen + stack.blocks))
    return found, names


def _is_given(flow: Flow, call: int) -> bool:
    """Does anything that a call made come from what was made outside of it?"""
    inside = {call}
    for c in flow.calls[call + 1 :]:
        if c.parent in inside:
            inside.add(c.index)
    return any(flow.nodes[i].call not in inside for n in flow.nodes if n.call in inside for i in n.inputs)


def _why(stacks: list[Stack], aside: int, frozen: list[str]) -> str | None:
    said = [_why_unknown(stacks, aside) or ""]
    if frozen:
        names = frozen[0] if len(frozen) == 1 else f"{frozen[0]} ... {frozen[-1]} ({len(frozen)})"
        said.append(f"not in autograd's graph, as what enters has no gradient: {names}")
    return "; ".join(filter(None, said)) or None


def _without_heads(flow: Flow, stacks: list[Stack]) -> list[Stack]:
    """Next to stacks of several branches, one lone feed-forward branch is a head's, a pooler's, a projector's; unless its module is of the
    class of a block, whose other sum begins a stream of another width."""
    classes = {call.name: call.cls for call in flow.calls if call.listed}
    many = [s for s in stacks if sum(len(b.branches) for b in s.blocks) > 1]
    known = {classes[b.module] for s in many for b in s.blocks if b.module in classes}
    alone = [
        s
        for s in stacks
        if all(branch.kind == "feedforward" for b in s.blocks for branch in b.branches)
        and not any(classes.get(b.module or "") in known for b in s.blocks)
    ]
    return [s for s in stacks if s in many or s not in alone] if many else stacks


def _consistent(stack: Stack, stacks: list[Stack]) -> Stack:
    """A norm inside of some block is no norm after the last one; a block that two streams share, or one stream twice, is not understood."""
    blocks = [b for s in stacks for b in s.blocks]
    modules = [f"{b.module}." for b in blocks if b.module]
    final = tuple(n for n in stack.final_norms if not n.startswith(tuple(modules)) or n in _after(stack))
    uses = Counter((b.module or "", b.use) for b in blocks if b.module is not None)
    twice = any(uses[b.module or "", b.use] > 1 for b in stack.blocks)
    return replace(stack, final_norms=final, placement=UNKNOWN if twice else stack.placement)


def _after(stack: Stack) -> set[str]:
    """Norms on the stream behind sums of the stack's own blocks."""
    return {n for b in stack.blocks for branch in b.branches for n in branch.stream}


def _why_unknown(stacks: list[Stack], aside: int) -> str | None:
    """None where nothing is. ``aside``: products with weights that no stream explains, where these are most."""
    unknown = [s for s in stacks if s.placement == UNKNOWN]
    if not unknown:
        return None
    if aside:
        return f"{aside} products with weights, the most part, are on no residual stream that was found"
    names = list(
        dict.fromkeys(n for s in unknown for b in s.blocks for branch in b.branches for n in branch.unrecognized)
    )
    if not names:
        return f"{unknown[0].blocks[0].name} carries more than one residual stream"
    more = " and more" if len(names) > 3 else ""
    return f"in the place of a norm stands what is not known to be one: {', '.join(names[:3])}{more}"


def _why_none(flow: Flow, streams: Streams) -> str:
    if not flow.nodes:
        return "nothing was captured: no operator on activations ran"
    if any("checkpoint" in n.op for n in flow.nodes):
        return "reentrant checkpointing hides what runs inside it"
    if any(n.op == "copyslices" for n in flow.nodes):
        return "an operator in place, on a view, hides from autograd's graph what it did"
    sums = sum(n.role == "sum" for n in flow.nodes)
    if not sums:
        return "no sum of two activations: the model has no residual stream"
    return f"none of {sums} sums adds to a value what weights made of that value: no residual stream"


def _attention(flow: Flow) -> list[AttentionSite]:
    found = {}
    for node in (flow.nodes[i] for i in sorted(flow.attending)):
        name = flow.calls[node.call].name if node.call >= 0 else ""
        found[name] = AttentionSite(name, "function" if "scaleddotproduct" in node.op else "by hand")
    return list(found.values())


def _stack(streams: Streams, chain: list[Sum]) -> Stack | None:
    flow = streams.flow
    kinds = [kind_of(streams, s) for s in chain]
    groups, _ = group(flow, [_home(flow, s) for s in chain], kinds)
    groups = [g for g in groups if _is_block(streams, [chain[i] for i in g.members])]
    if not groups:
        return None
    places = {i: g for g in groups for i in g.members}
    first, last = min(places), max(places)
    blocks: list[Block] = []
    for g in groups:
        branches = tuple(_branch(streams, chain, i, g, groups) for i in g.members)
        blocks.append(_block(flow, g, branches, len(blocks)))
    entered = [*streams.entering(chain[0].end), *(n for s in chain[: first + 1] for n in streams.norms_on(s.path))]
    late = {norm_name(flow, n) for n in _one_block_late(streams, chain, groups)}  # the last block's, and the stack's
    owned = {name for b in blocks for branch in b.branches for name in branch.stream} - late
    twins = streams.twins(chain)
    # Sums after the last block belong to the stream, and so do norms between them.
    between = [n for s in chain[last + 1 :] for n in streams.norms_on(s.path)]
    left = [norm_name(flow, n) for n in (*between, *streams.ahead(max([chain[-1].node, *twins])))]
    final = tuple(dict.fromkeys(n for n in left if n not in owned))
    # Without a gradient on the input autograd does not show the first sum: its norm is no embedding's.
    hidden = len(blocks) > 1 and len(blocks[0].branches) < len(blocks[1].branches)
    outside = [n for n in entered if not (hidden and any(_belongs(streams, n, g, []) for g in groups))]
    enters = tuple(dict.fromkeys(norm_name(flow, n) for n in outside))
    labels = [b.placement for b in blocks]
    return Stack(
        name=_common_name([flow.calls[g.within].name for g in groups if g.within >= 0], blocks),
        placement=stack_placement(
            [b.branches for b in blocks], labels, embedding_norm=bool(enters), final_norm=bool(final), twins=bool(twins)
        ),
        parallel=any(branch.parallel for b in blocks for branch in b.branches),
        blocks=tuple(blocks), embedding_norms=enters, final_norms=final,
    )  # fmt: skip


def _home(flow: Flow, s: Sum) -> int:
    """The call that a sum belongs to: the one it was made in, unless that is the next block, or the last norm, which were handed the sum's two
    sides (kernels that add and normalize in one): then the block that made the branch."""
    own = flow.nodes[s.node].call
    last = max(s.region & flow.weighty)
    here, there = flow.stack_of(own), flow.stack_of(flow.nodes[last].call)
    shared = 0
    while shared < min(len(here), len(there)) and here[shared] == there[shared]:
        shared += 1
    if shared in (len(here), len(there)):
        return own
    mine, theirs = flow.calls[here[shared]], flow.calls[there[shared]]
    if not theirs.listed or (mine.listed and (mine.cls != theirs.cls or list_of(mine) != list_of(theirs))):
        return own
    return there[shared]


def _is_block(streams: Streams, sums: Sequence[Sum]) -> bool:
    return any(not streams.flow.weighty.isdisjoint(s.region) for s in sums)


def _branch(streams: Streams, chain: list[Sum], place: int, g: Group, groups: list[Group]) -> Branch:
    """With the norms on the stream after its sum, as far as they belong to the block."""
    s = chain[place]
    if place + 1 < len(chain):
        after = streams.norms_on(chain[place + 1].path)
    else:
        # After the last sum: the block's own norm, or the stack's last one. A name inside of the block's decides; where the block has
        # no module or is the model itself, whether the sum before it is followed by a norm; of one sum, whether its branch begins with none.
        own = [n for n in streams.ahead(s.node) if _belongs(streams, n, g, chain)]
        after = own or _one_block_late(streams, chain, groups)
    parallel = any(_start_alike(streams, chain[i], s) for i in g.members if i < place)
    return branch_of(streams, s, after, parallel or _two_in_one(streams, s))


def _belongs(streams: Streams, norm: Node, g: Group, chain: list[Sum]) -> bool:
    flow = streams.flow
    block = "" if g.call is None else flow.calls[g.call].name
    if block and norm.site is not None:
        return norm.site.startswith(block + ".")
    if block:
        assert g.call is not None
        return g.call in flow.stack_of(norm.call)
    if len(chain) > 1:
        return bool(streams.norms_on(chain[-1].path))
    return not any(
        flow.nodes[i].role in NORMAL and flow.nodes[i].inputs and flow.nodes[i].inputs[0] in chain[0].taps
        for i in chain[0].region
    )


def _one_block_late(streams: Streams, chain: list[Sum], groups: list[Group]) -> list[Node]:
    """The first norm after the last sum, where every block but the last leaves the norm after its last sum to the next one, which
    begins with it on the stream (MiniMax): after the last block the stack's own norm is that norm."""
    modules = [g for g in groups if g.call is not None]
    if len(groups) < 2 or len(modules) < len(groups) or groups[-1].members[-1] != len(chain) - 1:
        return []
    for g in groups[:-1]:
        after = streams.norms_on(chain[g.members[-1] + 1].path)
        if not after or any(_belongs(streams, n, g, chain) for n in after):
            return []
    return streams.ahead(chain[-1].node)[:1]


def _start_alike(streams: Streams, early: Sum, s: Sum) -> bool:
    """Do two sub-layers of different kinds start from one value?"""
    return max(s.taps) == max(early.taps) and kind_of(streams, early) != kind_of(streams, s)


def _two_in_one(streams: Streams, s: Sum) -> bool:
    """(attention + feed-forward) + x: a sum of two branches, one of which attends."""
    flow = streams.flow
    end = flow.nodes[streams.back(s.branch)[0][-1]]
    if end.role != "sum" or end.at in streams.sums or end.at not in s.region:
        return False
    attends = []
    for side in end.inputs:
        region, waiting = set(), [side]
        while waiting:
            i = waiting.pop()
            if i in s.region and i not in region:
                region.add(i)
                waiting += flow.nodes[i].inputs
        attends.append(not flow.attending.isdisjoint(region))
    return attends.count(True) == 1


def _block(flow: Flow, g: Group, branches: tuple[Branch, ...], depth: int) -> Block:
    placement = block_placement(branches)
    if g.call is None:
        holder = flow.calls[g.within].name if g.within >= 0 else ""
        return Block(f"{holder or 'model'}[{depth}]", None, 0, placement, branches)
    call = flow.calls[g.call]
    return Block(call.name or "model", call.name, call.use, placement, branches)


def _common_name(names: list[str], blocks: list[Block]) -> str:
    """The module around the blocks."""
    names = [b.module if b.module is not None else n for b, n in zip(blocks, names, strict=False)]
    parts = [n.split(".") for n in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) != 1:
            break
        shared.append(level[0])
    return ".".join(shared)
