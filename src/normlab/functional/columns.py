"""Norms with statistics per channel: over the batch, a sample, or a group of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from .._torch import in_transform
from ..kernels import cpu, devices, eager, graph, reference
from ..kernels.cpu import Unfit
from ..kernels.facts import ColumnFacts, known_column_facts
from .checks import (
    MAYBE_PLAIN,
    as_mask,
    check_batch,
    check_channel_parameters,
    check_columns,
    check_eps,
    check_gain,
    check_groups,
    check_memory,
    check_momentum,
    check_running,
    dense,
    of_one_dtype,
    positions,
)
from .routes import recomputing, route_of, route_of_all
from .running import update_running


def column_norm(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    groups: int,
    pooled: bool,
    channel: int,
    mask: Tensor | None,
    centered: bool = True,
    gain: str = "direct",
    statistics: tuple[Tensor, Tensor] | None = None,
    running: Any = None,
    group: Any = None,
    want_statistics: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """y; and, where wanted, the mean, mean square and count of each set, float64. Arguments are checked already.

    ``running`` (mean, variance, factor) are moved towards the batch's statistics.
    """
    if not pooled and channel not in (1, x.dim() - 1):  # a sample is axis 0: bring the channels next to it
        y, found = column_norm(op, x.movedim(channel, -1), weight, bias, eps, groups=groups, pooled=pooled,
                                channel=x.dim() - 1, mask=mask, centered=centered, gain=gain, statistics=statistics,
                                want_statistics=want_statistics)  # fmt: skip
        return y.movedim(-1, channel), found
    check_eps(eps)
    offset = check_gain(gain, weight) == "offset"
    weight, bias = dense(weight), dense(bias)
    route = route_of(op, x)
    if route != "eager" or not (
        type(weight) in MAYBE_PLAIN and type(bias) in MAYBE_PLAIN and type(mask) in MAYBE_PLAIN
    ):
        check_channel_parameters(op, x.shape[channel], weight, bias)
        route = route_of_all(op, x, weight, bias, mask)
    if weight is not None and bias is not None and weight.dtype is not bias.dtype and route in ("eager", "graph"):
        check_channel_parameters(op, x.shape[channel], weight, bias)
        route = route_of_all(op, x, weight, bias, mask)
        if route in ("eager", "graph"):
            weight, bias = of_one_dtype(weight, bias)
    if statistics is not None:
        check_memory(*statistics)
        if route == "eager":
            route = route_of_all(op, x, *statistics)
    move = running is not None and not recomputing()
    if running is not None and route != "eager" and not in_transform():
        check_running(op, x.shape[channel], running_mean=running[0], running_var=running[1])
    make = known_column_facts if route == "eager" else ColumnFacts
    facts = make(eps, offset, centered, channel, groups, pooled)
    if route == "torch":
        theirs = _by_torch(
            x, weight, bias, mask, facts, gain, statistics, running if move else None, group, want_statistics
        )
        if theirs is not None:
            return theirs, None
    if route == "eager":
        given = None
        if statistics is not None:
            given = torch.cat([*(s.double().flatten() for s in statistics), x.new_zeros(1, dtype=torch.float64)])
        # Done below: an update by a factor that is a tensor (plain average), of synced or of unusual statistics.
        inside = (
            running is not None
            and group is None
            and not isinstance(running[2], Tensor)
            and cpu.fits_running(running[0], running[1], x.shape[channel])
        )
        if running is not None and is_grad_enabled() and _from_inference(x, weight, bias):
            raise RuntimeError(
                f"{op}: tensors made in inference mode cannot be saved for backward; clone them outside of it"
            )
        if not inside and running is not None:
            check_running(op, x.shape[channel], running_mean=running[0], running_var=running[1])
        # Also when a forward is only recomputed: autograd must find the same tensors saved.
        want = want_statistics or (running is not None and not inside)
        asked = (running if inside and move else None, group, want)
        try:
            result = eager.column_norm(cpu.packed(x, channel), weight, bias, mask, given, facts, asked)
        except Unfit:
            check_channel_parameters(op, x.shape[channel], weight, bias)
            raise
        if not want:
            return result, None
        y, found = result[0], cpu.split_statistics(result[1], x, facts)
        move = move and not inside
    elif route == "graph" and (group is None or statistics is not None):
        mean, square = (None, None) if statistics is None else (s.double().reshape(-1, groups) for s in statistics)
        y, *rest = graph.column_norm(cpu.packed(x, channel), weight, bias, mask, mean, square, *facts)
        found = (rest[0], rest[1], rest[2])
    else:
        y, *rest = reference.column_norm(x, weight, bias, mask, eps=eps, groups=groups, pooled=pooled,
                                         centered=centered, channel_dim=channel, gain=gain, statistics=statistics,
                                         all_sum=_all_sum(group))  # fmt: skip
        found = (rest[0], rest[1], rest[2])
    if move:
        with torch.no_grad():
            update_running(running[0], running[1], found[0][0], found[1][0], found[2][0], running[2])
    return y, found


def _by_torch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, facts: ColumnFacts, gain: str,
    statistics: tuple[Tensor, Tensor] | None, running: Any, group: Any, want_statistics: bool,
) -> Tensor | None:  # fmt: skip
    """y by torch's own kernels on another device, or None where they do not do this."""
    odd = mask is not None or group is not None or want_statistics or not facts.centered or x.numel() == 0
    if odd or (running is not None and isinstance(running[2], Tensor)):
        return None
    return devices.column_norm(x, weight, bias, eps=facts.eps, groups=facts.groups, pooled=facts.pooled,
                               channel=facts.channel, gain=gain, statistics=statistics, running=running)  # fmt: skip


def _from_inference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Would autograd refuse these, and only once the running statistics have moved?"""
    if not x.is_inference() and not (weight is not None and weight.is_inference()):
        return False
    return any(t is not None and t.requires_grad for t in (x, weight, bias))


def _all_sum(group: Any) -> reference.AllSum | None:
    if group is None:
        return None
    from torch.distributed.nn.functional import all_reduce

    return lambda t: all_reduce(t.contiguous(), group=group)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    channel_dim: int = -1,
    gain: str = "direct",
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + bias per channel over all real cells; see :class:`normlab.BatchNorm`."""
    op = "batch_norm"
    channel = check_columns(op, x, channel_dim, weight, bias, running_mean=running_mean, running_var=running_var)
    if mask is not None or lengths is not None:
        mask = as_mask(op, x, positions(x, channel), mask, lengths)
    channels = x.shape[channel]
    statistics = running = None
    if training:
        check_batch(op, x, channels, group)
        if (running_mean is None) != (running_var is None):
            raise ValueError(f"{op}: give running_mean and running_var both, or none of them")
        if running_mean is not None:
            running = (running_mean, running_var, check_momentum(op, momentum))
    elif running_mean is None or running_var is None:
        raise ValueError(
            f"{op}: without running statistics there is nothing to evaluate with; pass them or training=True"
        )
    else:
        statistics = (running_mean, running_var)
    return column_norm(op, x, weight, bias, eps, groups=channels, pooled=True, channel=channel, mask=mask, gain=gain,
                        statistics=statistics, running=running, group=group)[0]  # fmt: skip


def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    channel_dim: int = -1,
    gain: str = "direct",
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) per sample and channel over its real positions; see :class:`normlab.InstanceNorm`."""
    channel = check_columns("instance_norm", x, channel_dim, weight, bias)
    if mask is not None or lengths is not None:
        mask = as_mask("instance_norm", x, positions(x, channel), mask, lengths)
    return column_norm("instance_norm", x, weight, bias, eps, groups=x.shape[channel], pooled=False, channel=channel,
                        mask=mask, gain=gain)[0]  # fmt: skip


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    channel_dim: int = -1,
    gain: str = "direct",
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) per sample and group of channels; see :class:`normlab.GroupNorm`."""
    channel = check_columns("group_norm", x, channel_dim, weight, bias)
    check_groups(num_groups, x.shape[channel])
    if mask is not None or lengths is not None:
        mask = as_mask("group_norm", x, positions(x, channel), mask, lengths)
    return column_norm("group_norm", x, weight, bias, eps, groups=num_groups, pooled=False, channel=channel,
                        mask=mask, gain=gain)[0]  # fmt: skip
