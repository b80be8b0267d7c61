"""Is x times (or over) another tensor a norm of x? As the values say, whatever operators made them."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

LARGEST_EPS = 0.01  # absolute, or as a share of the statistic; beyond it what x is divided by is no statistic of x


def normalizes(x: Tensor, by: Tensor, divided: bool, centred: bool, scaled: bool) -> str | None:
    """The kind of norm that x times (or over) ``by`` is, as the values say: is what x^2 is divided by the mean or the sum of x^2 over the axes
    that ``by`` is spread over, with a small eps? None: it is not. ``scaled``: a factor of any size may be in it."""
    if x.is_meta or by.dim() > x.dim() or not x.numel() or not (x.is_floating_point() and by.is_floating_point()):
        return None
    tolerance = max(1e-4, 8 * torch.finfo(by.dtype).eps, 8 * torch.finfo(x.dtype).eps)
    by = by.detach()[(None,) * (x.dim() - by.dim())]
    for axis, stride in enumerate(by.stride()):
        by = by.narrow(axis, 0, 1) if stride == 0 else by  # expanded
    axes = [i for i, (n, m) in enumerate(zip(x.shape, by.shape, strict=True)) if m == 1 < n]
    if not axes and scaled:
        axes = [x.dim() - 1]  # a gain is in it
    if not axes:
        return None
    for i in set(range(x.dim())) - set(axes):  # some rows are enough
        x, by = x.narrow(i, 0, min(64, x.shape[i])), by.narrow(i, 0, min(64, by.shape[i]))
    count = prod(x.shape[i] for i in axes)
    x, by = x.detach().double(), by.double()
    square = x.square().sum(axes, keepdim=True)
    over = by.square() if divided else by.square().reciprocal()
    square, over = torch.broadcast_tensors(square, over)
    real = (square > 0) & over.isfinite()
    if not real.any() or (centred and bool((x.mean(axes, keepdim=True).square() * count > 1e-4 * square).any())):
        return None
    rows = square[real], over[real]
    for n in (count, count - 1) if centred else (count, 1):
        if n and (_same(rows[0] / n, rows[1], tolerance) or _same((rows[0] / n).sqrt(), rows[1].sqrt(), tolerance)):
            return _kind_over(axes, x.dim(), "layer" if centred else "rms" if n == count else "scale")
    if scaled and square.numel() > square.shape[-1]:  # of one row any factor could be
        ratio = torch.where(real, over / square, torch.nan)
        across = ratio.flatten(0, -2)
        mean = across.nanmean(0)
        if bool((((across - mean).abs() <= 0.02 * mean) | across.isnan()).all()):
            return _kind_over(axes, x.dim(), "layer" if centred else "scale")
    return None


def _same(statistic: Tensor, over: Tensor, tolerance: float) -> bool:
    """Is it the statistic, plus one small number or bounded from below by one?"""
    least = over.min()
    eps = (over - statistic)[over.argmin()].clamp(min=0)
    plus = (over - statistic - eps).abs() <= tolerance * over
    bounded = (over - statistic.clamp(min=float(least))).abs() <= tolerance * over
    return bool((eps <= LARGEST_EPS * least.clamp(min=1)) & (plus.all() | bounded.all()))


def _kind_over(axes: list[int], dims: int, kind: str) -> str:
    """Features are the last axis. Over other axes: which ones; centred over all but one, the first among them, it is BatchNorm."""
    if axes == [dims - 1]:
        return kind
    if kind == "layer" and len(axes) == dims - 1 and axes[0] == 0:
        return "batch"
    return f"{kind} over {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"
