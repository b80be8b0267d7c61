"""The thin path: kernels under ``torch.autograd.Function``, for ordinary eager tensors on the CPU.

A dispatcher round trip through a Python custom op costs more than a small norm, so eager calls come here and graphs
(compile, export) go to :mod:`graph`; both run the same kernels. A second derivative replays the reference formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, empty_like, is_grad_enabled
from torch.autograd import Function

from .._torch import direct_apply
from ..errors import TransformUnsupported
from . import cpu, reference
from .facts import ColumnFacts, Form, ResidualFacts, RowFacts, gain_of


def replay(
    formula: Callable[..., Any], inputs: Sequence[Tensor | None], needs: Sequence[bool], grads: Any
) -> list[Tensor | None]:
    """Gradients of a reference formula, themselves differentiable.

    They are taken with respect to aliases: one input may depend on another (layers that share a weight), and only the way
    through this formula counts here.
    """
    with torch.enable_grad():
        aliases = [None if t is None else cpu.with_memory(t).view_as(t) for t in inputs]
        wanted = [t for t, need in zip(aliases, needs, strict=True) if need and t is not None]
        found = iter(torch.autograd.grad(formula(*aliases), wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if need and t is not None else None for t, need in zip(inputs, needs, strict=True)]


def _like(t: Tensor | None, wanted: bool) -> Tensor | None:
    return torch.empty_like(t) if wanted and t is not None else None


def _dtype_of(weight: Tensor | None, bias: Tensor | None) -> torch.dtype | None:
    """Of both, where there are both: they come in one."""
    return weight.dtype if weight is not None else bias.dtype if bias is not None else None


def check_dtype(parameter: Tensor | None, dtype: torch.dtype | None) -> None:
    if parameter is not None and parameter.dtype is not dtype:
        raise cpu.changed(f"a parameter is {parameter.dtype} instead of {dtype}")


def _check_saved(
    x: Tensor, parameter: Tensor | None, mask: Tensor | None, grad: Tensor, dtype: torch.dtype | None, channel: int = -1,
    size: int | None = None,
) -> None:  # fmt: skip
    """Before formulas that would take what a hook on saved tensors brings back in whatever precision it has."""
    if x.dtype is not grad.dtype or x.shape != grad.shape:
        raise cpu.changed(
            f"a saved tensor is {tuple(x.shape)} {x.dtype}, its gradient {tuple(grad.shape)} {grad.dtype}"
        )
    features = channel % x.dim()
    if mask is not None and (
        mask.dtype is not torch.bool or mask.shape != x.shape[:features] + x.shape[features + 1 :]
    ):
        raise cpu.changed(f"the mask is {tuple(mask.shape)} {mask.dtype} for an input of shape {tuple(x.shape)}")
    check_dtype(parameter, dtype)
    if parameter is not None and parameter.numel() != (x.shape[channel] if size is None else size):
        raise cpu.changed(f"a parameter has {parameter.numel()} values for an input of shape {tuple(x.shape)}")


def _parameter_gradients(
    weight: Tensor | None, parameter_dtype: torch.dtype | None, size: int, need_weight: bool, need_bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Places for the gradients of gain and bias, whose dtypes are the same where there are both."""
    check_dtype(weight, parameter_dtype)
    if type(weight) in cpu.PLAIN:
        return empty_like(weight) if need_weight else None, empty_like(weight) if need_bias else None  # type: ignore[arg-type]
    # No weight, or one of another class, which empty_like would give to the gradients as well.
    shape = (size,) if weight is None else weight.shape
    dweight, dbias = (
        torch.empty(shape, dtype=parameter_dtype, device="cpu") if need else None for need in (need_weight, need_bias)
    )
    return dweight, dbias


class RowNorm(Function):
    """Numbers and switches are one argument, because each costs time."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, facts: RowFacts
    ) -> Tensor:
        y, statistics = cpu.row_forward(x, weight, bias, mask, None, facts)
        ctx.save_for_backward(x, weight, mask)
        # The statistics are bytes of ours, not a tensor: nothing can change them, and they cost a tenth.
        ctx.kept = (facts, statistics, _dtype_of(weight, bias))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, mask = ctx.saved_tensors
        facts, statistics, parameter_dtype = ctx.kept
        _, need_weight, need_bias, _, _ = needs = ctx.needs_input_grad
        if is_grad_enabled() or type(grad) not in cpu.PLAIN:
            _check_saved(x, weight, mask, grad, parameter_dtype, size=1 if facts.mode == "scale" else None)
            # No gradient depends on the bias's value, so it was not saved: any will do.
            bias = (
                torch.zeros(x.shape[-1], dtype=parameter_dtype, device="cpu", requires_grad=True) if need_bias else None
            )

            def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return reference.row_norm(x, weight, bias, mask, mode=facts.mode, eps=facts.eps, partial=facts.partial,
                                          gain=gain_of(facts.offset_gain), round_before_gain=facts.round_before_gain)  # fmt: skip

            return (*replay(formula, (x, weight, bias), needs[:3], grad), None, None)
        dweight, dbias = _parameter_gradients(weight, parameter_dtype, x.shape[-1], need_weight, need_bias)
        dx = cpu.row_backward(grad, x, weight, mask, statistics, dweight, dbias, facts)
        return dx, dweight, dbias, None, None


row_norm = direct_apply(RowNorm)


class ResidualNorm(Function):
    """y and the new stream.

    Of the inputs only the stream is kept, not its two parts: a second derivative reaches them through it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
                facts: ResidualFacts) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, stream, statistics = cpu.residual_forward(x, branch, weight, bias, mask, None, facts)
        ctx.save_for_backward(stream, weight, mask)
        ctx.kept = (facts, statistics, _dtype_of(weight, bias))
        ctx.set_materialize_grads(False)
        return y, stream

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_stream: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        stream, weight, mask = ctx.saved_tensors
        facts, statistics, parameter_dtype = ctx.kept
        _, _, need_weight, need_bias, _, _ = ctx.needs_input_grad
        if grad is not None and type(grad) in cpu.PLAIN and not is_grad_enabled():
            dweight, dbias = _parameter_gradients(weight, parameter_dtype, stream.shape[-1], need_weight, need_bias)
            dx, dbranch = cpu.residual_backward(
                grad, grad_stream, stream, weight, mask, statistics, dweight, dbias, facts
            )
            return dx, dbranch, dweight, dbias, None, None
        width = facts.width
        whole, of_weight, of_bias = grad_stream, None, None
        upstream = grad if grad is not None else grad_stream
        if upstream is not None:
            _check_saved(stream, weight, mask, upstream, parameter_dtype)
        if grad is not None:
            bias = torch.zeros(width, dtype=parameter_dtype, device="cpu", requires_grad=True) if need_bias else None

            def formula(stream: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return reference.row_norm(stream, weight, bias, mask, mode=facts.mode, eps=facts.eps, partial=width,
                                          gain=gain_of(facts.offset_gain), round_before_gain=facts.round_before_gain)  # fmt: skip

            through, of_weight, of_bias = replay(formula, (stream, weight, bias), (True, need_weight, need_bias), grad)
            assert through is not None
            whole = through if whole is None else whole + through
        if whole is None:
            return (None,) * 6
        if mask is not None:
            whole = torch.where(mask.unsqueeze(-1), whole, 0)
        kept = whole
        if facts.drop > 0:
            keep = reference.keep_mask(facts.seed, stream.numel() // width, width, facts.drop).view_as(stream)
            kept = torch.where(keep, whole, 0) / (1 - facts.drop)
        return whole * facts.alpha, kept, of_weight, of_bias, None, None


residual_norm = direct_apply(ResidualNorm)


def residual_reference(
    row_norm: Callable[..., Tensor], x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, facts: ResidualFacts,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the new stream by the formulas (``row_norm``: those of the norm); padding is zero in both."""
    width, drop = facts.width, facts.drop
    keep = reference.keep_mask(facts.seed, x.numel() // width, width, drop).to(x.device) if drop > 0 else None
    stream = reference.residual(x, branch, facts.alpha, keep, drop)
    if mask is not None:
        stream = torch.where(mask.unsqueeze(-1), stream, 0)
    y = row_norm(stream, weight, bias, mask, mode=facts.mode, eps=facts.eps, partial=width, gain=gain_of(facts.offset_gain),
                 round_before_gain=facts.round_before_gain)  # fmt: skip
    return y, stream


# ---- statistics over rows --------------------------------------------------------------------------------------------


def gather_moments(statistics: Tensor, x: Tensor, facts: ColumnFacts, group: Any) -> None:
    """Replace this process's statistics by those of all processes together, weighted by their counts, in rank order."""
    parts = [torch.empty_like(statistics) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, statistics, group=group)
    mean, square, count = cpu.split_statistics(statistics, x, facts)
    means, squares, counts = (
        torch.stack(t) for t in zip(*(cpu.split_statistics(p, x, facts) for p in parts), strict=True)
    )
    share = (counts / counts.sum(0).clamp(min=1)).unsqueeze(-1)
    mean.copy_((share * means).sum(0))
    spread = squares + (means - mean) ** 2 if facts.centered else squares
    square.copy_((share * spread).sum(0))
    count.copy_(counts.sum(0))


# What is asked of a column norm besides y: running statistics (mean, variance, factor) to be moved, a group of processes to
# share the statistics with, and the statistics themselves. A plain tuple, because it is made in each call.
Asked = tuple[tuple[Tensor, Tensor, float] | None, Any, bool]


class ColumnNorm(Function):
    """Batch, Instance, Group and per-batch Power normalization; synced over ``group`` when it is not None.

    Returns y, or (y, statistics) when they are asked for. Running statistics are updated on the way.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
                given: Tensor | None, facts: ColumnFacts, asked: Asked) -> Any:  # fmt: skip
        running, group, want_statistics = asked
        known = given is not None
        statistics, kept = given, None
        if group is not None and not known:
            statistics = cpu.column_moments(x, mask, facts)
            gather_moments(statistics, x, facts, group)
        if statistics is not None:
            y = cpu.column_apply(x, weight, bias, mask, statistics, facts)
        else:
            statistics = cpu.column_statistics(x, facts) if want_statistics else None
            y, kept = cpu.column_forward(x, weight, bias, mask, statistics, running, facts)
        ctx.save_for_backward(x, weight, mask, statistics)
        # Statistics nobody else sees are bytes of ours, not a tensor: nothing can change them, and they cost a tenth.
        ctx.kept = (facts, known, kept, group, _dtype_of(weight, bias))
        if not want_statistics:
            return y
        ctx.mark_non_differentiable(statistics)
        return y, statistics

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, mask, statistics = ctx.saved_tensors
        facts, known, kept, group, parameter_dtype = ctx.kept
        synced = group is not None and not known
        _, need_weight, need_bias, _, _, _, _ = needs = ctx.needs_input_grad
        channels = cpu.channels_of(x, facts.channel)
        if is_grad_enabled() or (type(grad) not in cpu.PLAIN and not synced):
            _check_saved(x, weight, mask, grad, parameter_dtype, facts.channel)
            if synced:
                raise TransformUnsupported(
                    "a second derivative of synced statistics is not defined here; use sync=False"
                )
            given = cpu.split_statistics(statistics, x, facts)[:2] if known else None
            # No gradient depends on the bias's value, so it was not saved: any will do.
            bias = torch.zeros(channels, dtype=parameter_dtype, device="cpu", requires_grad=True) if need_bias else None

            def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return reference.column_norm(x, weight, bias, mask, eps=facts.eps, groups=facts.groups,
                                             pooled=facts.pooled, centered=facts.centered, channel_dim=facts.channel,
                                             gain=gain_of(facts.offset_gain), statistics=given)[0]  # fmt: skip

            return (*replay(formula, (x, weight, bias), needs[:3], grad), None, None, None, None)
        dweight, dbias = _parameter_gradients(weight, parameter_dtype, channels, need_weight, need_bias)
        if synced:
            dx = synced_gradient(group, grad, x, weight, mask, statistics, dweight, dbias, facts)
        else:
            found = kept if statistics is None else statistics
            dx = cpu.column_backward(grad, x, weight, mask, found, dweight, dbias, facts, given=known)
        return dx, dweight, dbias, None, None, None, None


column_norm = direct_apply(ColumnNorm)


def synced_gradient(
    group: Any, grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor,
    dweight: Tensor | None, dbias: Tensor | None, facts: ColumnFacts,
) -> Tensor | None:  # fmt: skip
    """dx with the sums of all processes; the parameters get this process's own sums, as DistributedDataParallel expects."""
    sums = cpu.column_sums(grad, x, weight, mask, statistics, facts)
    if dweight is not None:
        dweight.copy_(sums[1, 0])
    if dbias is not None:
        dbias.copy_(sums[0, 0])
    dist.all_reduce(sums, group=group)
    _, square, count = cpu.split_statistics(statistics, x, facts)
    gain = 1.0 if weight is None else weight.detach().double() + facts.offset_gain
    direct = gain / torch.sqrt(square + facts.eps)
    share = direct / count.clamp(min=1)
    offset = -share * sums[0] if facts.centered else torch.zeros_like(share)
    return cpu.column_combine(grad, x, mask, statistics, torch.stack([direct, -share * sums[1], offset]), facts)


def without_mean(square: Tensor, count: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(square[0]), square[0], count])


def all_sum(group: Any) -> Callable[[Tensor], Tensor]:
    def add(t: Tensor) -> Tensor:
        t = t.clone()
        dist.all_reduce(t, group=group)
        return t

    return add


class Pointwise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None,
                mask: Tensor | None, form: Form) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, alpha, shift, weight, bias, mask)
        ctx.form, ctx.dtype = form, alpha.dtype
        return cpu.pointwise_forward(x, alpha, shift, weight, bias, mask, form)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, alpha, shift, weight, bias, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if is_grad_enabled() or type(grad) not in cpu.PLAIN:
            _check_saved(x, alpha, mask, grad, ctx.dtype, size=1)
            for p, size in ((shift, 1), (weight, x.shape[-1]), (bias, x.shape[-1])):
                _check_saved(x, p, None, grad, ctx.dtype, size=size)

            def formula(
                x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None
            ) -> Tensor:
                return reference.pointwise(x, alpha, shift, weight, bias, mask, form=ctx.form)

            return (*replay(formula, (x, alpha, shift, weight, bias), needs[:5], grad), None, None)
        check_dtype(alpha, ctx.dtype)
        _, *wanted, _, _ = needs
        slots = (_like(alpha, wanted[0]), _like(shift, wanted[1]), _like(weight, wanted[2]), _like(bias, wanted[3]))
        dx = cpu.pointwise_backward(grad, x, alpha, shift, weight, mask, ctx.form, slots)
        return dx, *slots, None, None


pointwise = direct_apply(Pointwise)
