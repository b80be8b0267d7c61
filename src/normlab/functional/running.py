"""Statistics of a batch, over processes where asked, and how running ones follow them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._torch import (
    in_transform,
)
from ..errors import TransformUnsupported
from ..kernels import cpu, reference
from ..kernels.facts import ColumnFacts
from .checks import as_mask, check_channels, check_running, positions
from .routes import route_of_all


def process_group(sync: bool, group: Any = None) -> Any:
    """The group to sync over, or None when there is nothing to sync with."""
    if not sync or not dist.is_available() or not dist.is_initialized():
        return None
    group = group if group is not None else dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None


def batch_statistics(
    x: Tensor, *, channel_dim: int = -1, mask: Tensor | None = None, lengths: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-channel mean and biased variance over all real cells, and their number; float64, no gradient.

    >>> mean, var, count = batch_statistics(torch.tensor([[1.0], [3.0]]))
    >>> mean.item(), var.item(), count.item()
    (2.0, 1.0, 2.0)
    """
    channel = check_channels("batch_statistics", x, channel_dim)
    mask = as_mask("batch_statistics", x, positions(x, channel), mask, lengths)
    with torch.no_grad():
        if route_of_all("batch_norm", x, mask) == "eager":
            facts = ColumnFacts(0.0, False, centered=True, channel=channel, groups=x.shape[channel], pooled=True)
            statistics = cpu.column_moments(cpu.packed(x, channel), mask, facts)
            mean, var, count = cpu.split_statistics(statistics, x, facts)
            return mean[0], var[0], count[0]
        axes = reference.axes_of("batch", x.dim(), channel)
        cell = None if mask is None else mask.unsqueeze(channel)
        mean, var, counts = reference.moments(x.to(reference.compute_dtype(x)), axes, cell)
        return mean.flatten(), var.flatten(), counts.flatten()[0]


def update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    factor: float | Tensor,
) -> None:
    """running <- (1 - factor) * running + factor * statistic, with the unbiased variance by the number of real cells.

    Fewer than two real cells say nothing about a variance: the buffers are then left as they are.
    """
    if not in_transform():
        check_running("running statistics", mean.numel(), running_mean=running_mean, running_var=running_var)
    try:
        _update_running(running_mean, running_var, mean, var, count, factor)
    except RuntimeError as error:
        if not in_transform():
            raise
        raise TransformUnsupported(
            "running statistics cannot be updated inside this functional transform; use eval mode or "
            "track_running_stats=False, or make the buffers inputs of the transformed function"
        ) from error


def _update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    factor: float | Tensor,
) -> None:
    enough = count >= 2
    if isinstance(factor, Tensor):  # the plain average: factor is the number of batches taken in so far
        factor.add_(enough)
        factor = 1.0 / factor.clamp(min=1).to(mean.dtype)
    for running, value in ((running_mean, mean), (running_var, var * (count / (count - 1).clamp(min=1)))):
        if running is not None:
            moved = (running + factor * (value - running)).to(running.dtype)
            running.copy_(torch.where(enough, moved, running))
