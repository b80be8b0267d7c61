"""Each formula once, in plain torch: the definition of truth.

On the CPU everything is computed in float64 and rounded to the input's dtype at the end, so this file is the oracle for every
kernel, the fallback where no kernel fits, and the route of transforms (double backward, vmap, jvp) that kernels do not know.
On other devices it is the same formulas in float32, unless ``use_kernel("reference")`` asks for the oracle there, too. It is written to be read, not to be fast.

Batch, Layer, Instance and Group normalization are one operation, :func:`normalize`, over different sets of axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

AllSum = Callable[[Tensor], Tensor]


float64_everywhere = False  # set by use_kernel


def compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    exact = (
        device == "cpu" or x.dtype == torch.float64 or (float64_everywhere and device != "mps")
    )  # which has no float64
    return torch.float64 if exact else torch.float32


# ---- which cells share a statistic -----------------------------------------------------------------------------------


def axes_of(norm: str, dims: int, channel_dim: int = -1, normalized_dims: int = 1) -> tuple[int, ...]:
    """The axes a norm averages over, for a tensor of ``dims`` dimensions (group: after splitting the channel axis)."""
    channel = channel_dim % dims
    if norm in ("layer", "rms", "scale"):
        return tuple(range(dims - normalized_dims, dims))
    if norm in ("batch", "power"):
        return tuple(a for a in range(dims) if a != channel)
    if norm == "instance":
        return tuple(a for a in range(1, dims) if a != channel)
    raise ValueError(f"{norm!r} has no set of axes")


def statistic_labels(
    norm: str, shape: tuple[int, ...], *, channel_dim: int = -1, num_groups: int = 1, normalized_dims: int = 1
) -> Tensor:
    """Which values of a tensor of this shape share a statistic: an integer label for each, equal labels share.

    >>> statistic_labels("layer", (2, 2, 3)).tolist()
    [[[0, 0, 0], [1, 1, 1]], [[2, 2, 2], [3, 3, 3]]]
    >>> statistic_labels("batch", (2, 2, 3)).tolist()
    [[[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1, 2]]]
    """
    dims = len(shape)
    channel = channel_dim % dims
    if norm in ("dyt", "derf"):  # no statistic: every cell stands alone
        return torch.arange(math.prod(shape)).reshape(shape)
    if norm == "group":
        channels = shape[channel]
        sample = torch.arange(shape[0]).reshape([-1] + [1] * (dims - 1))
        group = torch.arange(channels) // (channels // num_groups)
        label = sample * num_groups + group.reshape([-1 if a == channel else 1 for a in range(dims)])
        return label.expand(shape).contiguous()
    averaged = axes_of(norm, dims, channel_dim, normalized_dims)
    kept = [1 if a in averaged else shape[a] for a in range(dims)]
    return torch.arange(math.prod(kept)).reshape(kept).expand(shape).contiguous()


# ---- the one operation -----------------------------------------------------------------------------------------------


def moments(
    x: Tensor, axes: tuple[int, ...], mask: Tensor | None = None, centered: bool = True, all_sum: AllSum | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, mean squared deviation (mean square when not centered) and count over ``axes``, kept as size-1 axes.

    ``mask`` broadcasts against x, True = real. ``all_sum`` adds a sum over all processes. No cell: zeros.
    """
    total = all_sum or (lambda t: t)
    if mask is None:
        ones = math.prod([x.shape[a] for a in axes])  # a list: tracing rejects a generator here
        count = torch.full(
            [1 if a in axes else n for a, n in enumerate(x.shape)], float(ones), dtype=x.dtype, device=x.device
        )
    else:
        count = mask.expand(x.shape).to(x.dtype).sum(axes, keepdim=True)
        x = torch.where(mask, x, 0)
    count = total(count)
    cells_ = count.clamp(min=1)
    mean = total(x.sum(axes, keepdim=True)) / cells_ if centered else torch.zeros_like(count)
    deviation = x - mean
    if mask is not None:
        deviation = torch.where(mask, deviation, 0)
    return mean, total((deviation * deviation).sum(axes, keepdim=True)) / cells_, count


def normalize(
    x: Tensor,
    axes: tuple[int, ...],
    eps: float,
    *,
    mask: Tensor | None = None,
    centered: bool = True,
    statistics: tuple[Tensor, Tensor] | None = None,
    all_sum: AllSum | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(square + eps) over ``axes``; also mean, square and count. Padding comes out as zero."""
    if statistics is None:
        mean, square, count = moments(x, axes, mask, centered, all_sum)
    else:
        mean, square = statistics
        count = torch.zeros_like(square)
    if mask is not None:
        x = torch.where(mask, x, 0)
    xhat = (x - mean) * torch.rsqrt(square + eps)
    if mask is not None:
        xhat = torch.where(mask, xhat, 0)
    return xhat, mean, square, count


def affine(
    xhat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    gain: str = "direct",
    round_before_gain: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """gain * xhat + bias, rounded to ``dtype``: before the gain as well, if asked. Padding comes out as zero."""
    if round_before_gain:
        xhat = xhat.to(dtype).to(xhat.dtype)
    y = xhat
    if weight is not None:
        weight = weight.to(xhat.dtype)
        y = y * (1 + weight if gain == "offset" else weight)
    if bias is not None:
        y = y + bias.to(xhat.dtype)
    if mask is not None:
        y = torch.where(mask, y, 0)
    return y.to(dtype)


# ---- norms over the last axis (the caller has flattened the normalized axes into one) --------------------------------


def row_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    *,
    mode: str,
    eps: float,
    partial: int,
    gain: str = "direct",
    round_before_gain: bool = False,
    detach_statistics: bool = False,
) -> Tensor:
    """LayerNorm, RMSNorm (over the first ``partial`` values) or ScaleNorm of each row; ``mask`` is per row.

    layer: (x - mean) / sqrt(var + eps)      rms: x / sqrt(mean(x[:partial]^2) + eps)      scale: x / max(|x|, eps)

    ``detach_statistics`` takes mean, var, mean square and length from a detached x: they are constants to the gradient.
    """
    c = x.to(compute_dtype(x))
    cell = None if mask is None else mask.unsqueeze(-1)
    source = c.detach() if detach_statistics else c  # where statistics come from
    row = (-1 % x.dim(),)
    if mode == "layer":
        mean, square, _ = moments(source, row, cell)
        xhat = normalize(c, row, eps, mask=cell, statistics=(mean, square))[0]
    else:
        if cell is not None:
            c, source = torch.where(cell, c, 0), torch.where(cell, source, 0)
        if mode == "rms":
            square = moments(source[..., :partial], row, centered=False)[1]
            xhat = c * torch.rsqrt(square + eps)
        else:
            xhat = c / torch.linalg.vector_norm(source, dim=-1, keepdim=True).clamp(min=eps)
    return affine(xhat, weight, bias, dtype=x.dtype, gain=gain, round_before_gain=round_before_gain, mask=cell)


# ---- norms with statistics over rows ---------------------------------------------------------------------------------


def channel_shape(v: Tensor, dims: int, channel_dim: int) -> Tensor:
    """A per-channel vector, shaped to broadcast against a tensor with its channels at ``channel_dim``."""
    return v.reshape([-1 if a == channel_dim % dims else 1 for a in range(dims)])


def column_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    *,
    eps: float,
    groups: int,
    pooled: bool,
    centered: bool = True,
    channel_dim: int = -1,
    gain: str = "direct",
    statistics: tuple[Tensor, Tensor] | None = None,
    all_sum: AllSum | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch (pooled), Instance and Group (per sample) normalization; uncentered and pooled: PowerNorm's PN-V.

    ``mask`` has x's shape without the channel axis. Returns y, mean and mean square of shape (sets, groups) with
    sets = 1 if pooled else samples, and the count per set.
    """
    dims, channel = x.dim(), channel_dim % x.dim()
    channels = x.shape[channel]
    cell = None if mask is None else mask.unsqueeze(channel)
    c = x.to(compute_dtype(x))
    # Split the channel axis into (group, member); the member axis is averaged over.
    split = c.unflatten(channel, (groups, channels // groups))
    split_mask = None if cell is None else cell.unsqueeze(channel)
    axes = tuple(a for a in range(dims + 1) if a != channel and (pooled or a != 0))
    kept = [1 if a in axes else n for a, n in enumerate(split.shape)]
    given = None
    if statistics is not None:
        given = (statistics[0].to(c.dtype).reshape(kept), statistics[1].to(c.dtype).reshape(kept))
    xhat, mean, square, count = normalize(
        split, axes, eps, mask=split_mask, centered=centered, statistics=given, all_sum=all_sum
    )
    per_channel = [None if p is None else channel_shape(p, dims, channel) for p in (weight, bias)]
    y = affine(xhat.flatten(channel, channel + 1), per_channel[0], per_channel[1], dtype=x.dtype, gain=gain, mask=cell)
    sets = 1 if pooled else x.shape[0]
    return y, mean.reshape(sets, groups), square.reshape(sets, groups), count.reshape(sets, groups)[:, 0]


def power_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, *, square: Tensor, along: Tensor, eps: float,
    channel_dim: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dx = (weight * grad - along * xhat) / psi with xhat = x / psi, psi = sqrt(square + eps) given per channel,
    and the sums (2, channels) of grad and grad * xhat. With along = mean(weight * grad * xhat) of a batch whose own
    quadratic mean is psi this is the exact gradient; with along = nu it is the paper's approximation."""
    dims, channel = x.dim(), channel_dim % x.dim()
    axes = axes_of("power", dims, channel)
    c, g = x.to(compute_dtype(x)), grad.to(compute_dtype(x))
    if mask is not None:
        cell = mask.unsqueeze(channel)
        c, g = torch.where(cell, c, 0), torch.where(cell, g, 0)
    inverse = channel_shape(torch.rsqrt(square.to(c.dtype) + eps), dims, channel)
    xhat = c * inverse
    sums = torch.stack([g.sum(axes), (g * xhat).sum(axes)])
    gain = torch.ones_like(sums[0]) if weight is None else weight.to(c.dtype)
    dx = (g * channel_shape(gain, dims, channel) - channel_shape(along.to(c.dtype), dims, channel) * xhat) * inverse
    return dx.to(x.dtype), sums


def power_step(along: Tensor, square: Tensor, batch_square: Tensor, nu: Tensor, *, alpha: float, eps: float) -> Tensor:
    """The new nu: nu + (1 - alpha) * mean(X' * xhat) with X' = weight * grad - nu * xhat, i.e.
    nu + (1 - alpha) * (mean(weight * grad * xhat) - nu * mean(xhat^2)).  ``along`` is the first mean."""
    return nu + (1 - alpha) * (along - nu * batch_square / (square + eps))


# ---- pointwise -------------------------------------------------------------------------------------------------------


def pointwise(
    x: Tensor,
    alpha: Tensor,
    shift: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    *,
    form: str,
) -> Tensor:
    """DyT: weight * tanh(alpha x) + bias.  Derf: weight * erf(alpha x + shift) + bias."""
    c = x.to(compute_dtype(x))
    cell = None if mask is None else mask.unsqueeze(-1)
    if cell is not None:
        c = torch.where(cell, c, 0)
    u = c * alpha.to(c.dtype)
    if shift is not None:
        u = u + shift.to(c.dtype)
    return affine(torch.tanh(u) if form == "tanh" else torch.erf(u), weight, bias, dtype=x.dtype, mask=cell)


# ---- residual --------------------------------------------------------------------------------------------------------


def keep_mask(seed: int, rows: int, width: int, drop: float) -> Tensor:
    """Which elements dropout keeps: a hash of (seed, row, column), the same function as in csrc/rows.h."""
    m32 = 0xFFFFFFFF

    def mix(h: Tensor) -> Tensor:
        h = ((h ^ (h >> 16)) * 0x7FEB352D) & m32
        h = ((h ^ (h >> 15)) * 0x846CA68B) & m32
        return h ^ (h >> 16)

    row = torch.arange(rows, dtype=torch.int64)
    low = mix((seed & m32) ^ mix(row & m32))
    key = mix(low ^ mix(((seed >> 32) & m32) ^ mix(((row >> 32) + 0x9E3779B9) & m32)))
    column = (torch.arange(width, dtype=torch.int64) * 0x9E3779B9) & m32
    return mix((key[:, None] + column[None, :]) & m32) >= int(drop * 4294967296.0)


def residual(x: Tensor, branch: Tensor, alpha: float, keep: Tensor | None, drop: float) -> Tensor:
    """The new stream: alpha * x + dropout(branch), summed before it is rounded once."""
    c = compute_dtype(x)
    b = branch.to(c)
    if keep is not None:
        b = torch.where(keep.reshape(b.shape), b / (1 - drop), 0)
    return (alpha * x.to(c) + b).to(x.dtype)
