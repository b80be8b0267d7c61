"""What is inside a model, as data: norms with their facts, stacks of blocks with their placement and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .branches import Branch
from .sites import NormSite, UnknownSite


@dataclass(frozen=True)
class Block:
    """One use of a block. ``module`` None: its sub-layers are called one by one, and no module is the block."""

    name: str
    module: str | None
    use: int  # of the module: a shared layer is used several times
    placement: str
    branches: tuple[Branch, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "branches": [b.to_dict() for b in self.branches]}


@dataclass(frozen=True)
class Stack:
    """Blocks on one residual stream."""

    name: str  # the module that holds them
    placement: str
    parallel: bool  # do attention and feed-forward layer start from one value?
    blocks: tuple[Block, ...]
    embedding_norms: tuple[str, ...]  # on what enters
    final_norms: tuple[str, ...]  # on what leaves, outside of the blocks

    @property
    def queries_keys(self) -> tuple[str, ...]:
        return tuple(n for block in self.blocks for branch in block.branches for n in branch.queries_keys)

    def to_dict(self) -> dict[str, Any]:
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return {**plain, "queries_keys": list(self.queries_keys), "blocks": [b.to_dict() for b in self.blocks]}


@dataclass(frozen=True)
class AttentionSite:
    """A call that attends: by torch's function, or a softmax of a product written by hand."""

    name: str
    how: str  # function, by hand

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Structure:
    """What is inside a model. ``placement`` is "unknown" where no residual stream was found; ``reason`` says why."""

    capture: str  # operators, graph
    norms: tuple[NormSite, ...]
    unknown: tuple[UnknownSite, ...]
    functions: tuple[str, ...]  # norms that are no modules: where they were called
    silent: tuple[str, ...]  # norms that were never called
    stacks: tuple[Stack, ...]
    attention: tuple[AttentionSite, ...]
    reason: str | None = None

    @property
    def placement(self) -> str:
        """Of the model: that of its stacks."""
        labels = list(dict.fromkeys(s.placement for s in self.stacks))
        return "unknown" if not labels else " / ".join(labels)

    @property
    def blocks(self) -> list[Block]:
        return [b for s in self.stacks for b in s.blocks]

    @property
    def final_norms(self) -> tuple[str, ...]:
        return tuple(n for s in self.stacks for n in s.final_norms)

    @property
    def embedding_norms(self) -> tuple[str, ...]:
        return tuple(n for s in self.stacks for n in s.embedding_norms)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "placement": self.placement, "reason": self.reason, "capture": self.capture,
            "norms": [n.to_dict() for n in self.norms], "unknown": [n.to_dict() for n in self.unknown],
            "functions": list(self.functions), "silent": list(self.silent), "stacks": [s.to_dict() for s in self.stacks],
            "attention": [a.to_dict() for a in self.attention],
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(_drawn(self))


def _drawn(found: Structure) -> Iterator[str]:
    known = {n.name: n for n in found.norms}
    yield f"placement: {found.placement}" + (f" ({found.reason})" if found.reason else "")
    for stack in found.stacks:
        uses = f"{len(stack.blocks)} block{'s' * (len(stack.blocks) != 1)}"
        yield ""
        yield f"{stack.name or 'model'}: {stack.placement}{', parallel' if stack.parallel else ''}, {uses}"
        for name in stack.embedding_norms:
            yield f"  N  {name} {_facts(known.get(name))} on what enters"
        runs: list[list[Block]] = []
        for block in stack.blocks:
            alike = runs and [_outline(b) for b in runs[-1][-1].branches] == [_outline(b) for b in block.branches]
            runs[-1].append(block) if alike else runs.append([block])
        for run in runs:
            names = run[0].name if len(run) == 1 else f"{run[0].name} ... {run[-1].name} ({len(run)})"
            yield f"  {names}: {run[0].placement}"
            for branch in run[0].branches:
                yield "      " + _line(branch)
                for where, sites in (("entry", branch.entry), ("before the last matrix", branch.before_last),
                                     ("exit", branch.exit), ("stream", branch.stream), ("queries and keys", branch.queries_keys),
                                     ("inside", branch.inner)):  # fmt: skip
                    for name in sites:
                        yield f"          {where}: {name} {_facts(known.get(name))}"
        for name in stack.final_norms:
            yield f"  N  {name} {_facts(known.get(name))} on what leaves"
    if found.unknown:
        yield ""
        yield from (f"unknown norm: {u.name}: {u.reason}" for u in found.unknown)
    if found.silent:
        yield f"never called: {', '.join(found.silent)}"


def _outline(branch: Branch) -> tuple[Any, ...]:
    return (branch.kind, *(len(n) for n in (branch.entry, branch.exit, branch.before_last, branch.stream,
                                             branch.queries_keys, branch.inner)), branch.parallel)  # fmt: skip


def _line(branch: Branch) -> str:
    """x ──┬── N ── attention ── N ──+── N ──, as far as it goes."""
    parts = [
        "N" if branch.entry else "",
        _factor(branch.entry_factor),
        branch.kind + ("[N W]" if branch.before_last else ""),
        "N" if branch.exit else "",
        _factor(branch.branch_factor),
    ]
    line = "x ─┬─ " + " ─ ".join(p for p in parts if p) + " ─+─"
    carried = _factor(branch.stream_factor)
    return (
        line
        + (" N ─" if branch.stream else "")
        + (f"   stream times {carried}" if carried else "")
        + ("   parallel to the one before" if branch.parallel else "")
    )


def _factor(factor: float | str | None) -> str:
    return "" if factor is None else factor if isinstance(factor, str) else f"{factor:.4g}"


def _facts(site: NormSite | None) -> str:
    return "" if site is None else f"[{site.kind}, gain {site.gain}, eps {site.eps:g}]"
