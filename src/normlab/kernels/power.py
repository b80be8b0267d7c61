"""PowerNorm on the eager path: its own backward, and what it remembers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from .._torch import direct_apply
from ..errors import TransformUnsupported
from . import cpu, reference
from .eager import all_sum, check_dtype, gather_moments, without_mean
from .facts import ColumnFacts


class PowerNorm(Function):
    """PowerNorm in training. While ``step < warmup`` the batch's own quadratic mean and the exact gradient are used,
    later the running one and the paper's approximate gradient. ``nu`` is updated by backward.

    Without ``native`` the stages run on the reference formulas.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, psi2: Tensor,
                nu: Tensor, step: Tensor, warmup: int, alpha: float, eps: float, native: bool,
                channel: int, group: Any) -> Any:  # fmt: skip
        y, batch, used, count, warm = power_forward(
            x, weight, bias, mask, psi2, step, warmup, eps, native, channel, group
        )
        ctx.save_for_backward(x, weight, mask, batch, used, count, warm)
        ctx.dtypes = [None if p is None else p.dtype for p in (weight, bias)]
        ctx.facts = (nu, alpha, eps, native, channel, group)
        ctx.mark_non_differentiable(batch, count)
        return y, batch, count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise TransformUnsupported(
                "PowerNorm's backward is an approximation that carries state; it has no second derivative. "
                "Use PowerNorm(running=False), whose gradient is exact."
            )
        x, weight, mask, batch, used, count, warm = ctx.saved_tensors
        check_dtype(weight, ctx.dtypes[0])
        nu, alpha, eps, native, channel, group = ctx.facts
        dx, sums = power_gradient(
            grad, x, weight, mask, batch, used, count, warm, nu, alpha, eps, native, channel, group
        )
        needs = ctx.needs_input_grad
        dweight = sums[1].to(ctx.dtypes[0]) if needs[1] else None
        dbias = sums[0].to(ctx.dtypes[1]) if needs[2] else None
        return dx, dweight, dbias, *[None] * 10


power_norm = direct_apply(PowerNorm)


def power_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, psi2: Tensor, step: Tensor, warmup: int,
    eps: float, native: bool, channel: int, group: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y; the batch's mean square, the one used, the count (all float64); whether this is warm-up."""
    channels = x.shape[channel]
    facts = _power_facts(x, eps, channel)
    if not native:
        cell = None if mask is None else mask.unsqueeze(channel)
        _, square, counts = reference.moments(
            x.to(reference.compute_dtype(x)), reference.axes_of("power", x.dim(), channel), cell, centered=False,
            all_sum=None if group is None else all_sum(group),
        )  # fmt: skip
        batch, count = square.view(1, channels), counts.flatten()[:1]
    else:
        statistics = cpu.column_moments(x, mask, facts)
        if group is not None:
            gather_moments(statistics, x, facts, group)
        _, batch, count = cpu.split_statistics(statistics, x, facts)
    warm = step < warmup
    used = torch.where(warm, batch, psi2.to(batch.dtype).view_as(batch))
    if not native:
        y = reference.column_norm(x, weight, bias, mask, eps=eps, groups=channels, pooled=True, centered=False,
                                  channel_dim=channel, statistics=(torch.zeros_like(used), used))[0]  # fmt: skip
    else:
        y = cpu.column_apply(x, weight, bias, mask, without_mean(used, count), facts)
    return y, batch, used, count, warm


def _power_facts(x: Tensor, eps: float, channel: int) -> ColumnFacts:
    """No mean; statistics of each channel over all samples."""
    return ColumnFacts(eps, offset_gain=False, centered=False, channel=channel, groups=x.shape[channel], pooled=True)


def power_gradient(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, batch: Tensor, used: Tensor, count: Tensor,
    warm: Tensor, nu: Tensor, alpha: float, eps: float, native: bool, channel: int, group: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dx and this process's sums (2, channels) of grad and grad * xhat; ``nu`` takes its step."""
    channels = cpu.channels_of(x, channel)
    if x.dtype is not grad.dtype or x.shape != grad.shape:
        raise cpu.changed(
            f"a saved tensor is {tuple(x.shape)} {x.dtype}, its gradient {tuple(grad.shape)} {grad.dtype}"
        )
    if native:  # what follows reads them by torch's own operators, which trust the memory behind a tensor
        weight, batch, used, count, warm = (cpu.readable(t) for t in (weight, batch, used, count, warm))
    for t, shape, dtype in ((batch, (1, channels), used.dtype), (used, (1, channels), batch.dtype), (count, (1,), batch.dtype),
                            (warm, (), torch.bool)):  # fmt: skip
        if tuple(t.shape) != shape or t.dtype is not dtype or t.device != x.device:
            raise cpu.changed(f"a statistic is {tuple(t.shape)} {t.dtype} on {t.device}")
    square = used[0]
    facts, statistics = _power_facts(x, eps, channel), without_mean(used, count)
    if not native:
        _, sums = reference.power_backward(
            grad, x, weight, mask, square=square, along=square, eps=eps, channel_dim=channel
        )
    else:
        sums = cpu.column_sums(grad, x, weight, mask, statistics, facts)[:, 0]
    total = sums
    if group is not None:
        total = sums.clone()
        dist.all_reduce(total, group=group)
    gain = torch.ones_like(square) if weight is None else weight.detach().to(square.dtype)
    mean_along = gain * total[1] / count.clamp(min=1)
    old = nu.to(square.dtype)
    along = torch.where(warm, mean_along, old)
    if not native:
        dx, _ = reference.power_backward(
            grad, x, weight, mask, square=square, along=along, eps=eps, channel_dim=channel
        )
    else:
        root = torch.sqrt(square + eps)
        coefficients = torch.stack([gain / root, -along / root, torch.zeros_like(root)])
        dx = cpu.column_combine(grad, x, mask, statistics, coefficients, facts)
    moved = reference.power_step(mean_along, square, batch[0], old, alpha=alpha, eps=eps)
    nu.copy_(torch.where(count > 0, moved, old))
    return dx, sums
