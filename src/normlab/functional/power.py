"""PowerNorm as a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._torch import (
    in_transform,
)
from ..errors import TransformUnsupported
from ..kernels import cpu, graph, power
from .checks import as_mask, check_columns, check_eps, check_running, dense, of_one_dtype, positions
from .columns import column_norm
from .routes import recomputing, route_of_all


def power_norm(
    x: Tensor,
    running_psi2: Tensor,
    nu: Tensor,
    step: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    eps: float = 1e-5,
    *,
    alpha_forward: float = 0.9,
    alpha_backward: float = 0.9,
    warmup_steps: int = 0,
    running: bool = True,
    channel_dim: int = -1,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """x / psi * weight + bias per channel, psi the (running) quadratic mean; see :class:`normlab.PowerNorm`.

    In training ``running_psi2`` and ``step`` are updated at once and ``nu`` when the gradient arrives.
    """
    op = "power_norm"
    channel = check_columns(op, x, channel_dim, weight, bias, running_psi2=running_psi2, nu=nu)
    real = as_mask(op, x, positions(x, channel), mask, lengths)
    check_eps(eps)
    for t in (running_psi2, nu, step):
        cpu.with_memory(t)
    weight, bias = dense(weight), dense(bias)
    channels = x.shape[channel]
    if not training:
        statistics = (torch.zeros_like(running_psi2), running_psi2)
        return column_norm(op, x, weight, bias, eps, groups=channels, pooled=True, channel=channel, mask=real,
                            centered=False, statistics=statistics)[0]  # fmt: skip
    route = route_of_all(op, x, weight, bias, real, running_psi2, nu)
    if route in ("eager", "graph"):
        weight, bias = of_one_dtype(weight, bias)
    warmup = warmup_steps if running else 2**62
    again = recomputing()
    if in_transform():
        raise TransformUnsupported(
            "PowerNorm updates its running quantities in training, which functional transforms cannot see; use "
            "PowerNorm(running=False, track_running_stats=False) or eval mode"
        )
    check_running(op, channels, running_psi2=running_psi2, nu=nu)
    if again and running:
        raise TransformUnsupported(
            "PowerNorm's running form moves the statistics it divides by, so recomputing it (activation checkpointing) "
            "would give another result; leave this layer outside the checkpoint"
        )
    if not running:
        y, found = column_norm(op, x, weight, bias, eps, groups=channels, pooled=True, channel=channel, mask=real,
                                centered=False, group=group, want_statistics=True)  # fmt: skip
        assert found is not None
        _, batch, count = found
    elif route == "graph":
        if group is not None:
            raise TransformUnsupported("a synced PowerNorm cannot be compiled; leave it outside torch.compile")
        y, batch, count, _, _ = graph.power_norm(cpu.packed(x, channel), weight, bias, real, running_psi2.clone(), nu,
                                                 step.clone(), warmup, alpha_backward, eps, channel)  # fmt: skip
    else:
        native = route == "eager"
        apply = power.PowerNorm.apply if is_compiling() else power.power_norm  # a tracer knows the wrapped one
        y, batch, count = apply(cpu.packed(x, channel) if native else x, weight, bias, real, running_psi2, nu, step, warmup,
                                alpha_backward, eps, native, channel, group)  # fmt: skip
    if again:
        return y
    with torch.no_grad():
        # Warm-up: the plain average of all batches so far. Later: the moving average. One update per step.
        share = torch.where(step < warmup, 1.0 / (step + 1).to(batch.dtype), 1.0 - alpha_forward).to(running_psi2.dtype)
        moved = running_psi2 + share * (batch.flatten().to(running_psi2.dtype) - running_psi2)
        running_psi2.copy_(torch.where(count > 0, moved, running_psi2))
        step.add_((count > 0).any())  # a batch without a real cell is no batch
    return y
