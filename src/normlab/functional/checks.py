"""What a call is checked for before anything is computed, and parameters and masks in the form that kernels read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._torch import (
    in_transform,
    is_zero_tensor,
)
from ..errors import unknown
from ..kernels import cpu
from ..kernels.cpu import PLAIN

MAYBE_PLAIN = (*PLAIN, type(None))


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_floating(op: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op} takes a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{op} takes a floating-point tensor, got {x.dtype}; convert it first, e.g. x.float()")
    check_dense(op, "x", x)


def check_dense(op: str, name: str, t: Tensor) -> None:
    if t.layout is not torch.strided and type(t) in PLAIN:
        raise TypeError(f"{op}: {name} must be a dense tensor, got one with layout {t.layout}; convert it: .to_dense()")


def check_eps(eps: float) -> float:
    if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
        raise ValueError(f"eps must be a finite number >= 0, got {eps!r}")
    return float(eps)


def check_gain(gain: str, weight: Tensor | None = None) -> str:
    if gain not in ("none", "direct", "offset"):
        raise ValueError(unknown("gain", gain, ("none", "direct", "offset")))
    if gain == "none" and weight is not None:
        raise ValueError("gain='none' takes no weight, but one was given; leave it out, or say gain='direct'")
    return gain


def check_momentum(op: str, momentum: float) -> float:
    if not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
        raise ValueError(f"{op}: momentum must be a number in [0, 1], got {momentum!r}")
    return momentum


def check_same_device(op: str, x: Tensor, **others: Tensor | None) -> None:
    for name, t in others.items():
        if t is not None and t.device != x.device:
            raise ValueError(f"{op}: x is on {x.device} but {name} is on {t.device}; move them to one device")


def check_parameter(op: str, name: str, p: Tensor | None, size: int) -> None:
    if p is None:
        return
    if not isinstance(p, Tensor) or not p.is_floating_point():
        got = p.dtype if isinstance(p, Tensor) else type(p).__name__
        raise TypeError(f"{op}: {name} must be a floating-point tensor, got {got}")
    check_dense(op, name, p)
    if p.numel() != size:
        raise ValueError(f"{op}: {name} has {p.numel()} values (shape {tuple(p.shape)}), the input needs {size}")


def dense(p: Tensor | None) -> Tensor | None:
    """Along one axis, without gaps: kernels read parameters through an address alone."""
    return p if p is None or (p.dim() == 1 and p.is_contiguous()) else cpu.contiguous(p).reshape(-1)


def of_one_dtype(*parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Parameters in a dtype that holds them all exactly: kernels read them as one."""
    dtypes = {p.dtype for p in parameters if p is not None}
    if len(dtypes) < 2:
        return parameters
    wide = functools.reduce(torch.promote_types, dtypes)
    return tuple(None if p is None else cpu.with_memory(p).to(wide) for p in parameters)


def as_mask(
    op: str, x: Tensor, positions: tuple[int, ...], mask: Tensor | None, lengths: Tensor | Sequence[int] | None
) -> Tensor | None:
    """The mask over ``positions`` (x's shape without its feature axes), from a mask or from lengths."""
    if mask is None and lengths is None:
        return None
    if mask is not None and lengths is not None:
        raise ValueError(f"{op}: give mask or lengths, not both")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(
                f"{op}: mask must be a boolean tensor with True = real, got {got}; convert it, e.g. mask.bool()"
            )
        if tuple(mask.shape) != positions:
            raise ValueError(
                f"{op}: mask has shape {tuple(mask.shape)}, an input of shape {tuple(x.shape)} needs {positions}"
            )
        check_dense(op, "mask", mask)
        check_same_device(op, x, mask=mask)
        if not is_compiling() and mask.is_inference() and not torch.is_inference_mode_enabled():
            mask = mask.clone()  # autograd would refuse to save it, and only after running statistics have moved
        return cpu.contiguous(mask)
    lengths = torch.as_tensor(lengths, device=x.device)
    if len(positions) != 2:
        raise ValueError(
            f"{op}: lengths need an input with one sequence axis; for shape {tuple(x.shape)} give mask of shape {positions}"
        )
    if lengths.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise TypeError(f"{op}: lengths must be integers, got {lengths.dtype}")
    if tuple(lengths.shape) != positions[:1]:
        raise ValueError(
            f"{op}: lengths has shape {tuple(lengths.shape)}, a batch of {positions[0]} needs ({positions[0]},)"
        )
    if not is_compiling() and lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= positions[1]:
        raise ValueError(f"{op}: lengths must lie in 0..{positions[1]}, got {int(lengths.min())}..{int(lengths.max())}")
    return torch.arange(positions[1], device=x.device).unsqueeze(0) < lengths.unsqueeze(1)


# ---- statistics over rows --------------------------------------------------------------------------------------------


def positions(x: Tensor, channel: int) -> tuple[int, ...]:
    """The shape of a mask for x."""
    return tuple(n for a, n in enumerate(x.shape) if a != channel)


def check_channel_parameters(op: str, channels: int, weight: Tensor | None, bias: Tensor | None) -> None:
    check_parameter(op, "weight", weight, channels)
    check_parameter(op, "bias", bias, channels)


def check_memory(*tensors: Tensor | None) -> None:
    """Before torch's own operators read them, which trust the memory behind a tensor. In a transform there is none to see."""
    if not in_transform():
        for t in tensors:
            cpu.with_memory(t)


def check_running(op: str, channels: int, **running: Tensor | None) -> None:
    """Before anything is computed: running statistics that cannot be moved."""
    for name, t in running.items():
        check_parameter(op, name, t, channels)
        if t is not None and t.dim() != 1:
            raise ValueError(
                f"{op}: {name} has shape {tuple(t.shape)}, a value per channel along one axis is needed: .flatten()"
            )
        if is_compiling():
            continue
        cpu.with_memory(t)
        if t is not None and t.dtype not in cpu.CODES:
            raise TypeError(f"{op}: {name} cannot be kept in {t.dtype}")
        if t is not None and is_zero_tensor(t):
            raise ValueError(f"{op}: {name} is zeros without memory, which cannot be moved; give it its own: .clone()")
        if t is not None and any(n > 1 and step == 0 for n, step in zip(t.shape, t.stride(), strict=True)):
            raise ValueError(
                f"{op}: {name} is expanded, so that its {channels} values share memory; give it its own: .clone()"
            )


def check_channels(op: str, x: Tensor, channel_dim: int, channels: int | None = None) -> int:
    """The channel axis of x, counted from the front; x must have ``channels`` channels there, if given."""
    check_floating(op, x)
    dims = x.dim()
    if not 2 <= dims <= 5:
        raise ValueError(f"{op} takes 2-D to 5-D inputs, got shape {tuple(x.shape)}")
    if not -dims <= channel_dim < dims or channel_dim % dims == 0:
        raise ValueError(
            f"{op}: channel_dim must be an axis after the batch axis of a {dims}-D input, got {channel_dim}"
        )
    channel = channel_dim % dims
    size = x.shape[channel]
    if size == 0 or (channels is not None and size != channels):
        want = "at least one channel" if channels is None else f"{channels} channels"
        raise ValueError(
            f"{op}: axis {channel} of an input of shape {tuple(x.shape)} has {size} channels, {want} expected; "
            f"channel_dim={channel_dim} says where the channels are"
        )
    return channel


def check_columns(
    op: str, x: Tensor, channel_dim: int, weight: Tensor | None, bias: Tensor | None, **buffers: Tensor | None
) -> int:
    channel = check_channels(op, x, channel_dim)
    size = x.shape[channel]
    for name, p in (("weight", weight), ("bias", bias), *buffers.items()):
        if p is None:
            continue
        if not isinstance(p, Tensor) or p.numel() != size or p.device != x.device or not p.is_floating_point():
            check_parameter(op, name, p, size)
            check_same_device(op, x, **{name: p})
    return channel


def check_batch(op: str, x: Tensor, channels: int, group: Any) -> None:
    if x.numel() == channels and group is None:
        raise ValueError(
            f"{op}: an input of shape {tuple(x.shape)} has one value per channel; training needs at least two to have a "
            "variance. Use a larger batch, eval mode, frozen statistics, or a norm without batch statistics"
        )


def check_groups(num_groups: int, channels: int) -> None:
    if not isinstance(num_groups, int) or num_groups < 1 or channels % num_groups:
        raise ValueError(f"num_groups must divide the channels: {channels} channels, num_groups={num_groups}")
