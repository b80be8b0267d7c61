"""Residual sums, and the streams they make, in what flowed through a model.

Going back from a value over operators without weights (carry, scale, norm) leads along one path to a sum or to where weights
stand. A sum is residual if on one side such a path leads to a value x (its carry), and the other side (its branch) comes from x
as well, through weights. A stream is a chain of residual sums, each carrying the one before. What else is added to a stream on its way
(a mean of it, a condition, a position) is passed over. What starts inside of a branch and does not come back to the stream (a state
that is kept for later) is the branch's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .flow import NORMAL, Flow, Node

ALONG = ("carry", "scale", *NORMAL)
LEVELS = 4  # sums back that a branch may start from: parallel branches start one back


@dataclass
class Sum:
    """One residual sum: its node, what it carries and what it adds."""

    node: int
    path: list[int]  # from the carry's side back, its end included: a sum, or where the stream starts
    branch: int  # the node that is added
    region: set[int]  # nodes between the stream and the sum, the branch's own
    taps: set[int]  # nodes of the stream that the branch starts from
    before: int | None = None  # the residual sum that is carried
    bridges: list[int] = field(
        default_factory=list
    )  # sums on the path that add an earlier value of the stream once more

    @property
    def end(self) -> int:
        return self.path[-1]


class Streams:
    """All residual sums of a flow; ``chains`` are those of each stream, in order, without streams inside of branches."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.sums: dict[int, Sum] = {}
        self.bridges: dict[int, int] = {}  # sum that adds an earlier value of the stream -> the input that carries on
        self.passed: dict[int, int] = {}  # sum that adds something else to a stream -> the input that carries on
        self.around: dict[int, set[int]] = {}  # sum that skips whole layers -> what it skips
        self.users: list[list[int]] = [[] for _ in flow.nodes]
        for node in flow.nodes:
            for i in node.inputs:
                self.users[i].append(node.at)
        for node in flow.nodes:
            if node.role == "sum":
                self._see(node)
        self.chains = self._chains()

    def back(self, index: int) -> tuple[list[int], list[int]]:
        """The path over operators without weights, its end included; and the bridges on it."""
        path, bridges = [index], []
        while True:
            node = self.flow.nodes[path[-1]]
            if node.at in self.bridges:
                bridges.append(node.at)
                path.append(self.bridges[node.at])
            elif node.at in self.passed:
                path.append(self.passed[node.at])
            elif node.role in ALONG and len(node.inputs) == 1:
                path.append(node.inputs[0])
            else:
                return path, bridges

    def _see(self, node: Node) -> None:
        found = []
        for carry, branch in (node.inputs, node.inputs[::-1]):
            one = self._residual(node.at, carry, branch)
            if one is not None:
                found.append(one)
        if not found:
            self._pass(node)
            return
        best = min(found, key=lambda s: len(s.path))
        inner = self.sums.get(self.back(best.branch)[0][-1])
        held = [self.sums[i] for i in best.region & self.sums.keys()]
        attending = [s for s in held if not self.flow.attending.isdisjoint(s.region)]
        skips = bool(attending) and not self._in_body(node, held, attending)
        if skips or (inner is not None and self._carries(inner, best.path[0])):
            # Deep side and an earlier value of the stream, or one that skipped whole layers: it goes on through the deep side.
            if inner is not None:
                self.bridges[node.at] = best.branch
            else:
                self.around[node.at] = best.region
            return
        self.sums[node.at] = best

    def _in_body(self, node: Node, held: list[Sum], attending: list[Sum]) -> bool:
        """x + f(x + g(x)), both sums in the body of one block (Zamba 2): g is part of what f is given, and no layer that is skipped."""
        flow = self.flow
        here = [s for s in held if flow.nodes[s.node].call == node.call]
        return len(here) == 1 and attending == here and any(flow.calls[c].listed for c in flow.stack_of(node.call))

    def _pass(self, node: Node) -> None:
        """No residual sum: if one side alone leads back to one, the stream goes on through that side."""
        ends = [self.back(side)[0][-1] in self.sums for side in node.inputs]
        if ends.count(True) == 1:
            self.passed[node.at] = node.inputs[ends.index(True)]

    def _carries(self, late: Sum, early: int) -> bool:
        """Is ``early`` a value of the stream that ``late`` ends?"""
        at: Sum | None = late
        for _ in range(LEVELS):
            if at is None:
                return False
            if early in at.path:
                return True
            at = None if at.before is None else self.sums[at.before]
        return False

    def _residual(self, index: int, carry: int, branch: int) -> Sum | None:
        path, bridges = self.back(carry)
        if (self.flow.nodes[carry].factor or 0.0) < 0:
            return None  # f(x) - x, what a branch of pooling computes: a difference, which carries nothing
        before = path[-1] if path[-1] in self.sums else None
        # What is taken away without a matrix is a mean or a trend, and no sub-layer.
        needed = self.flow.matrices if self.flow.nodes[index].op in ("sub", "rsub") else self.flow.weighty
        stream, at = set(path), before
        passed: set[int] = set()  # branches of the sums that were gone back over
        for _ in range(LEVELS):
            region, taps = self._between(branch, stream, min(stream))
            if passed and (region & passed or not region.isdisjoint(self.sums)):
                return None  # from further back, but through sums or their branches: a second stream, not a parallel branch
            through = (self.sums[i].end for i in region & self.sums.keys())
            if any(end not in region and end not in stream for end in through):
                return (
                    None  # another stream runs through it: what was taken for a carry is a bias that many layers share
                )
            if taps and not needed.isdisjoint(region):
                return Sum(index, path, branch, region, taps, before, bridges)
            if at is None:
                return None
            stream |= set(self.sums[at].path)
            passed.add(self.sums[at].branch)
            at = self.sums[at].before
        return None

    def _between(self, branch: int, stream: set[int], oldest: int) -> tuple[set[int], set[int]]:
        region: set[int] = set()
        taps: set[int] = set()
        waiting = [branch]
        while waiting:
            i = waiting.pop()
            if i in stream:
                taps.add(i)
            elif i >= oldest and i not in region:
                region.add(i)
                waiting += self.flow.nodes[i].inputs
        return region, taps

    def _chains(self) -> list[list[Sum]]:
        after: dict[int, list[int]] = {}
        for s in self.sums.values():
            if s.before is not None:
                after.setdefault(s.before, []).append(s.node)
        inside: set[int] = set()
        for s in self.sums.values():
            inside |= s.region & self.sums.keys()
        made_in: dict[int, list[Sum]] = {}
        for s in self.sums.values():
            made_in.setdefault(self.flow.nodes[s.node].call, []).append(s)
        inside |= {s.node for s in self.sums.values() if s.node not in inside and self._starts_inside(s, made_in)}
        chains, taken = [], set()
        for first in sorted(self.sums):
            if first in taken or first in inside:
                continue
            chain, at = [], first
            while True:
                chain.append(self.sums[at])
                taken.add(at)
                following = [i for i in after.get(at, ()) if i not in inside and i not in taken]
                if not following:
                    break
                # of two that carry the same value, the one that is carried on itself
                at = max(following, key=lambda i: (i in after, -i))
            chains.append(chain)
        # A second stream that gets the same branches is no stream of its own.
        added = [{s.branch for s in chain} for chain in chains]
        return [c for c, mine in zip(chains, added, strict=True) if not any(mine < theirs for theirs in added)]

    def _starts_inside(self, s: Sum, made_in: dict[int, list[Sum]]) -> bool:
        """Is it made in a call inside of another sum's, before that sum, and is what it carries made of that one's stream?"""
        nodes = self.flow.nodes
        for call in self.flow.stack_of(nodes[s.node].call)[1:-1]:
            for other in made_in.get(call, ()):
                oldest = min(other.taps)
                if s.node > other.node or s.end in other.taps or s.end < oldest:
                    continue
                waiting, seen = [s.end], {s.end}
                while waiting:
                    fresh = [p for p in nodes[waiting.pop()].inputs if p >= oldest and p not in seen]
                    if not other.taps.isdisjoint(fresh):
                        return True
                    seen.update(fresh)
                    waiting += fresh
        return False

    def bridged(self, index: int) -> bool:
        """Is an earlier value of the stream added to this one, before anything else is?"""
        waiting = [index]
        while waiting:
            i = waiting.pop()
            if any(self.bridges.get(user) == i for user in self.users[i]):
                return True
            waiting += [user for user in self.users[i] if self.flow.nodes[user].role in ("carry", "scale")]
        return False

    def twins(self, chain: list[Sum]) -> list[int]:
        """Sums that add the same branches to a second stream, if each branch has one."""
        own = {s.node for s in chain}
        found = [[u for u in self.users[s.branch] if self.flow.nodes[u].role == "sum" and u not in own] for s in chain]
        return [u for each in found for u in each] if all(found) else []

    # ---- around a branch

    def norms_on(self, path: list[int]) -> list[Node]:
        """In the order they were passed through."""
        return [self.flow.nodes[i] for i in reversed(path) if self.flow.nodes[i].role in NORMAL]

    def entering(self, index: int) -> list[Node]:
        """The norms on the terms of a sum that a stream starts with: of words, of patches, one of them a table (of positions)."""
        node = self.flow.nodes[index]
        if node.role != "sum" or index in self.sums or index in self.around:
            return []
        paths = [self.back(side)[0] for side in node.inputs]
        if not any(self.flow.nodes[path[-1]].role == "start" for path in paths):
            return []
        return [n for path in paths for n in (*self.entering(path[-1]), *self.norms_on(path))]

    def ahead(self, index: int) -> list[Node]:
        """The norms that a value reaches over operators without weights, the nearest first; behind the last sum around whole layers, too."""
        return self._reached([index]) or self._reached(
            [
                i
                for i, region in self.around.items()
                if index in region and not any(i in s.path for s in self.sums.values())
            ]
        )

    def _joins(self, node: Node, mine: int) -> bool:
        """Are streams put beside each other, of which mine is the last? What follows is counted with that one."""
        if node.op != "cat":
            return False
        ends = {i: self.back(i)[0][-1] for i in node.inputs}
        streams = set(ends.values())
        return len(streams) > 1 and self.sums.keys() >= streams and ends[mine] == max(streams)

    def _reached(self, starts: list[int]) -> list[Node]:
        found: list[Node] = []
        waiting, seen = list(starts), set(starts)
        while waiting:
            i = waiting.pop(0)
            for user in self.users[i]:
                node = self.flow.nodes[user]
                pooled = node.op == "mean" and len(node.inputs) == 1  # of tokens, before the head
                on = i in (self.bridges.get(user), self.passed.get(user))
                if user in seen or (node.role not in ALONG and not pooled and not on and not self._joins(node, i)):
                    continue
                seen.add(user)
                if node.role in NORMAL:
                    found.append(node)
                waiting.append(user)
        return found
