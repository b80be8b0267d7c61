"""Which residual sums belong to one block, by the calls they were made in.

Downwards from the call that holds a whole stream: elements of a list that hold sums are blocks, or hold blocks; a call whose sums
are made in its own body, or in parts that are not alike, is one block, unless the kinds of its sums repeat: then each
repetition is a block without a module of its own. An element of a list is never taken apart so.
"""

from __future__ import annotations

from dataclasses import dataclass

from .flow import Call, Flow


@dataclass(frozen=True)
class Group:
    """Sums (their places in the stream) that make one block; ``call`` None: it has no module."""

    members: tuple[int, ...]
    call: int | None
    within: int  # the call that holds it


def group(flow: Flow, calls: list[int], kinds: list[str]) -> tuple[list[Group], list[int]]:
    """Blocks of a stream, from each sum's call and kind; and the sums that belong to no block."""
    stacks = [flow.stack_of(call) for call in calls]
    blocks: list[Group] = []
    loose: list[int] = []
    _split(flow, stacks, kinds, list(range(len(calls))), _common(stacks), blocks, loose)
    return blocks, loose


def _common(stacks: list[list[int]]) -> int:
    """How many calls all stacks share."""
    shared = 0
    while all(len(s) > shared and s[shared] == stacks[0][shared] for s in stacks):
        shared += 1
    return shared


def _split(
    flow: Flow, stacks: list[list[int]], kinds: list[str], members: list[int], depth: int, blocks: list[Group], loose: list[int]
) -> None:  # fmt: skip
    """``depth``: calls that the members share; the last of them is split."""
    own = [i for i in members if len(stacks[i]) == depth]
    parts: dict[int, list[int]] = {}
    for i in members:
        if len(stacks[i]) > depth:
            parts.setdefault(stacks[i][depth], []).append(i)
    here = stacks[members[0]][depth - 1] if depth else -1
    if not own and len(parts) == 1:
        _split(flow, stacks, kinds, members, depth + 1, blocks, loose)
    elif parts and _are_blocks(flow, parts, kinds):
        loose += own  # a positional convolution before the stack, for instance
        for part in parts.values():
            _split(flow, stacks, kinds, part, depth + 1, blocks, loose)
    else:
        element = here >= 0 and flow.calls[here].listed
        period = len(members) if element else _period([kinds[i] for i in members])
        whole = period == len(members)
        for at in range(0, len(members), period):
            blocks.append(Group(tuple(members[at : at + period]), here if whole and here >= 0 else None, here))


def _are_blocks(flow: Flow, parts: dict[int, list[int]], kinds: list[str]) -> bool:
    """Are the parts blocks, rather than sub-layers of one? Elements of a list that are of one class, or each complete."""
    calls = [flow.calls[c] for c in parts]
    complete = all(len(part) >= 2 for part in parts.values())
    if sum(len({kinds[i] for i in part}) > 1 for part in parts.values()) > 1:
        return True  # two of them have sub-layers of several kinds each: whatever stands beside them on the stream is no sub-layer of theirs
    if complete or (len({c.cls for c in calls}) == 1 and any(len(part) >= 2 for part in parts.values())):
        return len(calls) >= 2
    if not all(c.listed for c in calls) or len({list_of(c) for c in calls}) != 1:
        # stages of blocks next to single blocks
        return any(len(part) >= 4 for part in parts.values()) and all(c.listed for c in calls)
    if len({c.cls for c in calls}) == 1:
        return True
    repeated = len(calls) > len({c.cls for c in calls})
    return repeated and len(calls) > 3


def list_of(call: Call) -> str:
    return call.name.rpartition(".")[0]


def _period(kinds: list[str]) -> int:
    """The length of the shortest beginning whose repetition is the whole."""
    for period in range(1, len(kinds)):
        if len(kinds) % period == 0 and kinds == kinds[:period] * (len(kinds) // period):
            return period
    return len(kinds)
