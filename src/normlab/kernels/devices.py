"""Devices that have no kernels of ours: torch's own kernels where the formula is theirs, else the reference formulas.

There the formulas compute in float32 (float64 only for float64 inputs): most cards run float64 at a small fraction of
float32's rate. The numerics contract is kept on the CPU alone; a row of mean 1e4 or of values near 1e30 is as exact here as
torch is. ``use_kernel("reference")`` asks for float64 on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from . import reference


def _gain(weight: Tensor | None, gain: str) -> Tensor | None:
    return weight if weight is None or gain != "offset" else 1 + weight


def _theirs(x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, gain: str) -> bool:
    """Does torch take this and compute the same? Not a mask, not parameters of another dtype, not 1 + weight in 16 bits, which
    would be rounded before it is used."""
    alike = all(p is None or p.dtype == x.dtype for p in (weight, bias))
    return mask is None and alike and (gain != "offset" or x.dtype in (torch.float32, torch.float64))


def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, *, mode: str, eps: float, partial: int,
    gain: str = "direct", round_before_gain: bool = False,
) -> Tensor:  # fmt: skip
    """As :func:`reference.row_norm`."""
    width = x.shape[-1]
    rounded = round_before_gain and x.dtype in (torch.float16, torch.bfloat16) and weight is not None
    if _theirs(x, weight, bias, mask, gain) and not rounded and x.is_floating_point():
        if mode == "layer":
            return functional.layer_norm(x, (width,), _gain(weight, gain), bias, eps)
        if mode == "rms" and partial == width and bias is None:
            return functional.rms_norm(x, (width,), _gain(weight, gain), eps)
    return reference.row_norm(
        x, weight, bias, mask, mode=mode, eps=eps, partial=partial, gain=gain, round_before_gain=round_before_gain
    )


def column_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float, groups: int, pooled: bool, channel: int, gain: str,
    statistics: tuple[Tensor, Tensor] | None, running: tuple[Any, Any, float] | None,
) -> Tensor | None:  # fmt: skip
    """Batch, Instance and Group normalization by torch's kernels, the running statistics moved on the way; None where theirs
    are not these. The caller has ruled out masks, wanted statistics, exchanges between processes and uncentered statistics."""
    if not _theirs(x, weight, bias, None, gain):
        return None
    first = x.movedim(channel, 1)  # where torch has its channels
    weight = _gain(weight, gain)
    if pooled:
        if statistics is not None and torch.is_grad_enabled():
            statistics = (
                statistics[0].clone(),
                statistics[1].clone(),
            )  # kept for backward, while a layer may move its own
        mean, variance, factor = running if running is not None else (*(statistics or (None, None)), 0.0)
        if any(t is not None and t.dtype not in (x.dtype, torch.float32) for t in (mean, variance)):
            return None
        y = functional.batch_norm(first, mean, variance, weight, bias, statistics is None, factor, eps)
    elif statistics is not None or x.numel() == groups:  # of one value in all of them torch refuses the mean
        return None
    elif first.dim() == 2:  # one position per sample: torch's kernels want a length
        y = functional.group_norm(first.unsqueeze(-1), groups, weight, bias, eps).squeeze(-1)
    else:
        y = functional.group_norm(first, groups, weight, bias, eps)
    return y.movedim(1, channel)
