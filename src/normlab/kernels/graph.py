"""The same kernels as registered torch ops: what a traced graph (compile, export, fake tensors) contains.

Every op is functional and has a fake, an autograd and a vmap rule. PowerNorm's backward op alone changes one of its
inputs, the running ``nu``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from . import cpu, eager, power
from .facts import ColumnFacts, ResidualFacts, RowFacts

Maybe = Tensor | None


def _or_empty(t: Maybe, like: Tensor) -> Tensor:
    return like.new_empty(0) if t is None else t


def _none_if_empty(t: Tensor, wanted: bool) -> Maybe:
    return t if wanted else None


def _save(ctx: Any, *tensors: Maybe) -> None:
    ctx.save_for_backward(*tensors)
    ctx.forms = [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]


def _saved(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """The saved tensors, as they were saved: a hook may bring others back. With one on another device torch would run an
    op's fake and return what memory held; statistics of fewer bits would be taken for exact ones."""
    found = ctx.saved_tensors
    for t, form in zip(found, ctx.forms, strict=True):
        if t is not None:
            cpu.with_memory(
                t
            )  # torch resolves a negative bit before the op is reached, from memory it does not look for
        if t is not None and (t.shape, t.dtype, t.device) != form:
            shape, dtype, device = form
            raise cpu.changed(
                f"a saved tensor is {tuple(t.shape)} {t.dtype} on {t.device} instead of {tuple(shape)} {dtype} on {device}"
            )
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


@custom_op("normlab::row_norm", mutates_args=())
def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, mode: str, eps: float, partial: int,
    offset: bool, round_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    facts = RowFacts(mode, eps, x.shape[-1], partial, offset, round_first)  # type: ignore[arg-type]
    statistics = cpu.row_statistics(x, facts.mode)
    return cpu.row_forward(x, weight, bias, mask, statistics, facts)[0], statistics


@row_norm.register_fake
def _(x: Tensor, weight: Maybe, bias: Maybe, mask: Maybe, mode: str, *_: Any) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape), x.new_empty(2 * rows if mode == "layer" else rows, dtype=torch.float64)


@custom_op("normlab::row_norm_backward", mutates_args=())
def row_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor, mode: str, eps: float,
    partial: int, offset: bool, round_first: bool, parameters: Sequence[bool], parameter_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    size = 1 if mode == "scale" else x.shape[-1]
    dweight, dbias = (x.new_empty(size, dtype=parameter_dtype) if p else None for p in parameters)
    facts = RowFacts(mode, eps, x.shape[-1], partial, offset, round_first)  # type: ignore[arg-type]
    dx = cpu.row_backward(grad, x, weight, mask, statistics, dweight, dbias, facts)
    return dx, _or_empty(dweight, x), _or_empty(dbias, x)


@row_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Maybe, mask: Maybe, statistics: Tensor, mode: str, eps: float, partial: int,
      offset: bool, round_first: bool, parameters: Sequence[bool], parameter_dtype: torch.dtype) -> tuple[Tensor, ...]:  # fmt: skip
    size = 1 if mode == "scale" else x.shape[-1]
    return x.new_empty(x.shape), *(
        x.new_empty(size, dtype=parameter_dtype) if p else x.new_empty(0) for p in parameters
    )


def _parameter_dtype(x: Tensor, weight: Maybe, bias: Maybe) -> torch.dtype:
    return weight.dtype if weight is not None else bias.dtype if bias is not None else x.dtype


def _row_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, mask, *facts = inputs
    _save(ctx, x, weight, mask, output[1])
    ctx.facts = facts
    ctx.shapes = [None if p is None else p.shape for p in (weight, bias)]
    ctx.parameter_dtype = _parameter_dtype(x, weight, bias)


def _row_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x, weight, mask, statistics = _saved(ctx, grad)
    wanted = [shape is not None for shape in ctx.shapes]
    eager.check_dtype(weight, ctx.parameter_dtype)
    dx, dweight, dbias = row_norm_backward(grad, x, weight, mask, statistics, *ctx.facts, wanted, ctx.parameter_dtype)
    return (
        dx,
        dweight.view(ctx.shapes[0]) if wanted[0] else None,
        dbias.view(ctx.shapes[1]) if wanted[1] else None,
        *[None] * 6,
    )


row_norm.register_autograd(_row_backward, setup_context=_row_setup)


# ---- residual --------------------------------------------------------------------------------------------------------


@custom_op("normlab::residual_norm", mutates_args=())
def residual_norm(
    x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, mode: str, eps: float,
    offset: bool, round_first: bool, alpha: float, drop: float, seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    facts = ResidualFacts(mode, eps, x.shape[-1], offset, round_first, alpha, drop, int(seed))  # type: ignore[arg-type]
    statistics = cpu.row_statistics(x, facts.mode)
    y, stream, _ = cpu.residual_forward(x, branch, weight, bias, mask, statistics, facts)
    return y, stream, statistics


@residual_norm.register_fake
def _(x: Tensor, branch: Tensor, weight: Maybe, bias: Maybe, mask: Maybe, mode: str, *_: Any) -> tuple[Tensor, ...]:
    rows = x.numel() // x.shape[-1]
    statistics = x.new_empty(2 * rows if mode == "layer" else rows, dtype=torch.float64)
    return x.new_empty(x.shape), x.new_empty(x.shape), statistics


@custom_op("normlab::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    grad: Tensor, grad_stream: Tensor, stream: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor,
    mode: str, eps: float, offset: bool, round_first: bool, alpha: float, drop: float, seed: Tensor,
    parameters: Sequence[bool], parameter_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dweight, dbias = (stream.new_empty(stream.shape[-1], dtype=parameter_dtype) if p else None for p in parameters)
    facts = ResidualFacts(mode, eps, stream.shape[-1], offset, round_first, alpha, drop, int(seed))  # type: ignore[arg-type]
    dx, dbranch = cpu.residual_backward(grad, grad_stream, stream, weight, mask, statistics, dweight, dbias, facts)
    return dx, stream.new_empty(0) if dbranch is dx else dbranch, _or_empty(dweight, stream), _or_empty(dbias, stream)


@residual_norm_backward.register_fake
def _(grad: Tensor, grad_stream: Tensor, stream: Tensor, weight: Maybe, mask: Maybe, statistics: Tensor, mode: str,
      eps: float, offset: bool, round_first: bool, alpha: float, drop: float, seed: Tensor, parameters: Sequence[bool],
      parameter_dtype: torch.dtype) -> tuple[Tensor, ...]:  # fmt: skip
    dbranch = stream.new_empty(0) if alpha == 1 and drop == 0 else stream.new_empty(stream.shape)
    width = stream.shape[-1]
    return (
        stream.new_empty(stream.shape), dbranch,
        *(stream.new_empty(width, dtype=parameter_dtype) if p else stream.new_empty(0) for p in parameters),
    )  # fmt: skip


def _residual_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, weight, bias, mask, *facts, alpha, drop, seed = inputs
    _save(ctx, output[1], weight, mask, output[2], seed)
    ctx.facts = (*facts, alpha, drop)
    ctx.shared = alpha == 1 and drop == 0
    ctx.wanted = [weight is not None, bias is not None]
    ctx.parameter_dtype = _parameter_dtype(x, weight, bias)


def _residual_backward(ctx: Any, grad: Tensor, grad_stream: Tensor, _: Any) -> tuple[Any, ...]:
    stream, weight, mask, statistics, seed = _saved(ctx, grad)
    eager.check_dtype(weight, ctx.parameter_dtype)
    dx, dbranch, dweight, dbias = residual_norm_backward(
        grad, grad_stream, stream, weight, mask, statistics, *ctx.facts, seed, ctx.wanted, ctx.parameter_dtype
    )
    return (
        dx, dx if ctx.shared else dbranch, _none_if_empty(dweight, ctx.wanted[0]), _none_if_empty(dbias, ctx.wanted[1]),
        *[None] * 8,
    )  # fmt: skip


residual_norm.register_autograd(_residual_backward, setup_context=_residual_setup)


# ---- statistics over rows --------------------------------------------------------------------------------------------


@custom_op("normlab::column_norm", mutates_args=())
def column_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, mean: Tensor | None,
    square: Tensor | None, eps: float, offset: bool, centered: bool, channel: int, groups: int, pooled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    facts = ColumnFacts(eps, offset, centered, channel, groups, pooled)
    if mean is not None and square is not None:
        statistics = _flat(mean, square, torch.zeros(facts.sets(x), dtype=torch.float64, device="cpu"))
        y = cpu.column_apply(x, weight, bias, mask, statistics, facts)
    else:
        statistics = cpu.column_statistics(x, facts)
        y, _ = cpu.column_forward(x, weight, bias, mask, statistics, None, facts)
    found = cpu.split_statistics(statistics, x, facts)
    return y, found[0].clone(), found[1].clone(), found[2].clone()


def _flat(mean: Tensor, square: Tensor, count: Tensor) -> Tensor:
    return torch.cat([cpu.with_memory(t).flatten() for t in (mean, square, count)])


@column_norm.register_fake
def _(x: Tensor, weight: Maybe, bias: Maybe, mask: Maybe, mean: Maybe, square: Maybe, eps: float, offset: bool,
      centered: bool, channel: int, groups: int, pooled: bool) -> tuple[Tensor, ...]:  # fmt: skip
    sets = 1 if pooled else x.shape[0]
    shape = (sets, groups)
    return torch.empty_like(x), *(x.new_empty(s, dtype=torch.float64) for s in (shape, shape, (sets,)))


@custom_op("normlab::column_norm_backward", mutates_args=())
def column_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, mean: Tensor, square: Tensor, count: Tensor,
    given: bool, eps: float, offset: bool, centered: bool, channel: int, groups: int, pooled: bool,
    parameters: Sequence[bool], parameter_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dweight, dbias = (x.new_empty(x.shape[channel], dtype=parameter_dtype) if p else None for p in parameters)
    facts = ColumnFacts(eps, offset, centered, channel, groups, pooled)
    statistics = _flat(mean, square, count)
    dx = cpu.column_backward(grad, x, weight, mask, statistics, dweight, dbias, facts, given=given)
    return dx, _or_empty(dweight, x), _or_empty(dbias, x)


@column_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Maybe, mask: Maybe, mean: Tensor, square: Tensor, count: Tensor, given: bool,
      eps: float, offset: bool, centered: bool, channel: int, groups: int, pooled: bool, parameters: Sequence[bool],
      parameter_dtype: torch.dtype) -> tuple[Tensor, ...]:  # fmt: skip
    return (
        torch.empty_like(x),
        *(x.new_empty(x.shape[channel], dtype=parameter_dtype) if p else x.new_empty(0) for p in parameters),
    )


def _column_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, mask, mean, _, *facts = inputs
    _save(ctx, x, weight, mask, *output[1:])
    ctx.facts = (mean is not None, *facts)
    ctx.wanted = [weight is not None, bias is not None]
    ctx.parameter_dtype = _parameter_dtype(x, weight, bias)


def _column_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, mask, mean, square, count = _saved(ctx, grad)
    eager.check_dtype(weight, ctx.parameter_dtype)
    dx, dweight, dbias = column_norm_backward(
        grad, x, weight, mask, mean, square, count, *ctx.facts, ctx.wanted, ctx.parameter_dtype
    )
    return dx, _none_if_empty(dweight, ctx.wanted[0]), _none_if_empty(dbias, ctx.wanted[1]), *[None] * 9


column_norm.register_autograd(_column_backward, setup_context=_column_setup)


@custom_op("normlab::power_norm", mutates_args=())
def power_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, psi2: Tensor, nu: Tensor, step: Tensor,
    warmup: int, alpha: float, eps: float, channel: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    y, batch, used, count, warm = power.power_forward(
        x, weight, bias, mask, psi2, step, warmup, eps, True, channel, None
    )
    return y, batch.clone(), count.clone(), used, warm.clone()


@power_norm.register_fake
def _(x: Tensor, weight: Maybe, bias: Maybe, mask: Maybe, psi2: Tensor, nu: Tensor, step: Tensor, warmup: int,
      alpha: float, eps: float, channel: int) -> tuple[Tensor, ...]:  # fmt: skip
    wide = (1, x.shape[channel])
    return (
        torch.empty_like(x), x.new_empty(wide, dtype=torch.float64), x.new_empty(1, dtype=torch.float64),
        x.new_empty(wide, dtype=torch.float64), x.new_empty(step.shape, dtype=torch.bool),
    )  # fmt: skip


@custom_op("normlab::power_norm_backward", mutates_args=("nu",))
def power_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, batch: Tensor, used: Tensor, count: Tensor,
    warm: Tensor, nu: Tensor, alpha: float, eps: float, channel: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dx, sums = power.power_gradient(
        grad, x, weight, mask, batch, used, count, warm, nu, alpha, eps, True, channel, None
    )
    return dx, sums.clone()


@power_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Maybe, mask: Maybe, batch: Tensor, used: Tensor, count: Tensor, warm: Tensor,
      nu: Tensor, alpha: float, eps: float, channel: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), x.new_empty((2, x.shape[channel]), dtype=torch.float64)


def _power_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, mask, _, nu, _, _, alpha, eps, channel = inputs
    _, batch, count, used, warm = output
    _save(ctx, x, weight, mask, batch, used, count, warm)
    ctx.nu = nu  # not among the saved: backward changes it, and a second use of the layer still needs it
    ctx.facts = (alpha, eps, channel)
    ctx.dtypes = [None if p is None else p.dtype for p in (weight, bias)]


def _power_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, mask, batch, used, count, warm = _saved(ctx, grad)
    eager.check_dtype(weight, ctx.dtypes[0])
    dx, sums = power_norm_backward(grad, x, weight, mask, batch, used, count, warm, ctx.nu, *ctx.facts)
    dweight = None if ctx.dtypes[0] is None else sums[1].to(ctx.dtypes[0])
    dbias = None if ctx.dtypes[1] is None else sums[0].to(ctx.dtypes[1])
    return dx, dweight, dbias, *[None] * 8


power_norm.register_autograd(_power_backward, setup_context=_power_setup)


# ---- pointwise -------------------------------------------------------------------------------------------------------


@custom_op("normlab::pointwise", mutates_args=())
def pointwise(
    x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    form: str,
) -> Tensor:  # fmt: skip
    return cpu.pointwise_forward(x, alpha, shift, weight, bias, mask, form)  # type: ignore[arg-type]


@pointwise.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@custom_op("normlab::pointwise_backward", mutates_args=())
def pointwise_backward(
    grad: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, mask: Tensor | None, form: str,
    parameters: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sizes = (1, 1, x.shape[-1], x.shape[-1])
    slots: Any = tuple(alpha.new_empty(size) if p else None for size, p in zip(sizes, parameters, strict=True))
    dx = cpu.pointwise_backward(grad, x, alpha, shift, weight, mask, form, slots)  # type: ignore[arg-type]
    dalpha, dshift, dweight, dbias = (_or_empty(s, x) for s in slots)
    return dx, dalpha, dshift, dweight, dbias


@pointwise_backward.register_fake
def _(grad: Tensor, x: Tensor, alpha: Tensor, shift: Maybe, weight: Maybe, mask: Maybe, form: str,
      parameters: Sequence[bool]) -> tuple[Tensor, ...]:  # fmt: skip
    sizes = (1, 1, x.shape[-1], x.shape[-1])
    return (
        x.new_empty(x.shape),
        *(alpha.new_empty(n) if p else x.new_empty(0) for n, p in zip(sizes, parameters, strict=True)),
    )


def _pointwise_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, alpha, shift, weight, bias, mask, form = inputs
    _save(ctx, x, alpha, shift, weight, mask)
    ctx.form = form
    ctx.shapes = [None if t is None else t.shape for t in (alpha, shift, weight, bias)]


def _pointwise_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, alpha, shift, weight, mask = _saved(ctx, grad)
    wanted = [s is not None for s in ctx.shapes]
    dx, *rest = pointwise_backward(grad, x, alpha, shift, weight, mask, ctx.form, wanted)
    return dx, *(None if s is None else t.view(s) for t, s in zip(rest, ctx.shapes, strict=True)), None, None


pointwise.register_autograd(_pointwise_backward, setup_context=_pointwise_setup)


# ---- vmap ------------------------------------------------------------------------------------------------------------


def _dense(t: Tensor) -> Tensor:
    """Kernels read through addresses: a slice with gaps is copied, in the same order of its axes."""
    return t if t.is_contiguous() else t.clone()


def _per_sample(op: Callable[..., Any]) -> Callable[..., Any]:
    """A vmap rule that calls the op once per element of the mapped axis and stacks the results."""

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        results = []
        for i in range(info.batch_size):
            picked = (_dense(a.select(d, i)) if isinstance(d, int) else a for a, d in zip(args, in_dims, strict=True))
            results.append(op(*picked))
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


for _op in (row_norm, row_norm_backward, residual_norm, residual_norm_backward, column_norm, column_norm_backward,
            pointwise, pointwise_backward):  # fmt: skip
    _op.register_vmap(_per_sample(_op))
