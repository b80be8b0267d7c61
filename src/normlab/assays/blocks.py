"""What blocks are worth: the loss without one of them, and with two neighbours side by side instead of one after the other.

Both work on any model whose blocks hand on what they were given, in whatever form: hooks replace the stream and leave the
rest of what a block returns (caches, attention weights) as it is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import surgery
from ..placements import Dual, Pending
from .untouched import Loss, NothingToAsk, number, untouched


@dataclass(frozen=True, kw_only=True)
class BlockEffect:
    """The loss of a model whose block, or pair of blocks, was changed."""

    block: str  # of a pair, both names with + between
    loss: float | None  # None: it could not be done, for the reason
    increase: float | None  # over the loss of the model as it is
    reason: str | None = None


Fired = list[str]  # blocks that were called: a change that none of them saw would be no change


class _Unfit(Exception):
    """The stream of this block cannot be replaced."""


def block_drop(model: nn.Module, loss: Loss, *, blocks: Sequence[surgery.BlockSite] | None = None) -> list[BlockEffect]:
    """The loss, in evaluation mode, with each block in turn left out: what enters it leaves it.

    ``loss(model)`` computes the loss, usually of held-out batches. A block whose output has another shape than its input
    cannot be left out and says so. The model leaves bit for bit as it came.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> with torch.no_grad(): _ = model[0].weight.copy_(torch.eye(2)), model[1].weight.copy_(3 * torch.eye(2))
    >>> [round(e.increase, 6) for e in block_drop(model, lambda m: m(torch.ones(1, 2)).sum())]
    [0.0, -4.0]
    """

    @contextlib.contextmanager
    def without(block: surgery.BlockSite) -> Iterator[Fired]:
        fired: Fired = []

        def leave_out(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            fired.append(block.name)
            return with_stream(output, given(args, kwargs), block.name)

        handle = block.module.register_forward_hook(leave_out, with_kwargs=True)
        try:
            yield fired
        finally:
            handle.remove()

    found = _blocks(model, blocks)
    return _effects(model, loss, [(block.name, without(block)) for block in found])


def parallel_blocks(
    model: nn.Module, loss: Loss, *, blocks: Sequence[surgery.BlockSite] | None = None
) -> list[BlockEffect]:
    """The loss with two neighbouring blocks f, g side by side: x + (f(x) - x) + (g(x) - x) instead of g(f(x)).

    For every pair of neighbours of a stack. Where it changes little, the two act like one block of twice the width, and depth
    has become width. As in :func:`block_drop` otherwise.

    >>> double = nn.Linear(1, 1, bias=False)
    >>> with torch.no_grad(): _ = double.weight.fill_(2.0)
    >>> model = nn.Sequential(double, nn.Linear(1, 1, bias=False))
    >>> with torch.no_grad(): _ = model[1].weight.fill_(5.0)
    >>> [e.loss for e in parallel_blocks(model, lambda m: m(torch.ones(1, 1)).sum())]  # 1 + 1 + 4, not 10
    [6.0]
    """

    @contextlib.contextmanager
    def together(first: surgery.BlockSite, second: surgery.BlockSite) -> Iterator[Fired]:
        seen: dict[str, Any] = {}
        fired: Fired = []

        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            x, y = (settled_stream(v, first.name) for v in (given(args, kwargs), output))
            seen.update(x=x, change=y - x)

        def same_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if "x" not in seen:
                raise _Unfit(f"block {first.name} does not run before {second.name}")
            if args:
                return (with_stream(args[0], seen["x"], second.name), *args[1:]), kwargs
            name = next(iter(kwargs))
            return args, {**kwargs, name: with_stream(kwargs[name], seen["x"], second.name)}

        def add(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            fired.append(second.name)
            return with_stream(output, settled_stream(output, second.name) + seen["change"], second.name)

        handles = [
            first.module.register_forward_hook(keep, with_kwargs=True),
            second.module.register_forward_pre_hook(same_input, with_kwargs=True),
            second.module.register_forward_hook(add, with_kwargs=True),
        ]
        try:
            yield fired
        finally:
            for handle in handles:
                handle.remove()

    found = _blocks(model, blocks)
    neighbours = [(a, b) for a, b in itertools.pairwise(found) if a.stack == b.stack]
    if not neighbours:
        raise NothingToAsk("no two neighbouring blocks to run side by side")
    return _effects(model, loss, [(f"{a.name}+{b.name}", together(a, b)) for a, b in neighbours])


def _blocks(model: nn.Module, blocks: Sequence[surgery.BlockSite] | None) -> Sequence[surgery.BlockSite]:
    found = surgery.find_blocks(model) if blocks is None else blocks
    if not found:
        raise NothingToAsk(
            "no blocks were found in the model; give them: blocks=[BlockSite(name, module, depth, stack), ...]"
        )
    return found


def _effects(
    model: nn.Module, loss: Loss, changes: list[tuple[str, contextlib.AbstractContextManager[Fired]]]
) -> list[BlockEffect]:
    found = []
    with torch.no_grad(), untouched(model):
        model.eval()
        whole = number(loss(model))
        for name, changed in changes:
            try:
                with changed as fired:
                    value = number(loss(model))
                    if not fired:
                        raise _Unfit(f"the forward did not come to {name}")
            except _Unfit as error:
                found.append(BlockEffect(block=name, loss=None, increase=None, reason=str(error)))
                continue
            found.append(BlockEffect(block=name, loss=value, increase=value - whole))
    return found


# ---- the stream in what a block is given and gives back --------------------------------------------------------------


def given(args: Any, kwargs: Any) -> Any:
    """The first argument, by place or by name."""
    return args[0] if args else next(iter(kwargs.values()), None)


def settled_stream(value: Any, name: str) -> Any:
    """The stream itself: open sums carried out; of ResiDual both streams as one tensor with two parts."""
    if isinstance(value, Pending):
        return value.settle()
    if isinstance(value, Dual):
        return torch.stack((value.normed, value.plain))
    if isinstance(value, (tuple, list)) and value and not isinstance(value, Tensor):
        return settled_stream(value[0], name)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise _Unfit(f"block {name} hands on {type(value).__name__}, and no stream was found in it")
    return value


def with_stream(form: Any, value: Any, name: str) -> Any:
    """``value`` (a stream in any form) in the form of ``form``, which keeps what else it holds."""
    stream = settled_stream(value, name)
    if isinstance(form, Pending):
        _check_shape(form.x, stream, name)
        return Pending(stream)
    if isinstance(form, Dual):
        return Dual(*(stream if stream.dim() > form.normed.dim() else (stream, stream)))
    if isinstance(form, (tuple, list)) and form:
        parts = (with_stream(form[0], stream, name), *form[1:])
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    if not isinstance(form, Tensor):
        raise _Unfit(f"block {name} returns {type(form).__name__}, and no stream was found in it")
    _check_shape(form, stream, name)
    return stream


def _check_shape(form: Tensor, stream: Tensor, name: str) -> None:
    if form.shape != stream.shape:
        raise _Unfit(
            f"block {name} takes {tuple(stream.shape)} and returns {tuple(form.shape)}: it cannot be passed by"
        )
