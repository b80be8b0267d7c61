"""The functional API: what torch.nn.functional offers for norms, with masks, and the norms it lacks.

Each function checks its arguments, asks :mod:`kernels` who computes, and takes one of three routes: the thin eager
path, the registered ops (when a graph is being traced), or the reference formula (another kernel, or a functional
transform such as vmap or jvp). All three agree; masks are boolean with True = real, and padding comes out as zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from . import devices, eager, graph, kernels, reference
from ._torch import (
    LEVEL,
    are_transforms_active,
    dispatch_depth,
    forward_mode,
    graph_task_id,
    in_transform,
    is_zero_tensor,
)
from .errors import TransformUnsupported, unknown
from .kernels import cpu
from .kernels.cpu import PLAIN, Unfit

MODES = {"layer": 0, "rms": 1, "scale": 2}
MAYBE_PLAIN = (*PLAIN, type(None))
SINGLE_EPS, DOUBLE_EPS = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


# ---- routes ----------------------------------------------------------------------------------------------------------


def _route(op: str, x: Tensor) -> str:
    """ "eager", "graph", "torch" (another device) or "reference"."""
    if type(x) not in PLAIN or not kernels.choose_native(x):
        if not isinstance(x, Tensor):
            return "reference"  # the checks will say so
        kernel, _ = kernels.choose(op, x.device.type, x.dtype, x.shape, kernels.current_request(), cpu.missing)
        if kernel != "cpu":
            return kernel
        return "reference" if in_transform() and not is_compiling() else "graph"
    if is_compiling():
        return "graph"
    if are_transforms_active() or forward_mode[LEVEL] >= 0:
        return "reference"
    return "graph" if dispatch_depth() > 0 else "eager"


def _route_with(op: str, x: Tensor, *others: Tensor | None) -> str:
    """The same for x and what comes with it: a tensor of another class may have no memory of its own for a kernel to read,
    and parameters may have a dtype (8 bits) that no kernel knows."""
    route = _route(op, x)
    for t in others:
        if t is None or route in ("reference", "torch"):
            continue
        if t.dtype not in cpu.CODES and t.dtype is not torch.bool:
            kernel, _ = kernels.choose(op, t.device.type, t.dtype, t.shape, kernels.current_request(), cpu.missing)
            return kernel
        if route == "eager" and type(t) not in PLAIN:
            route = "graph"
    return route


def recomputing() -> bool:
    """Is this forward a recomputation inside a backward pass (activation checkpointing)? State has moved already then."""
    return not is_compiling() and graph_task_id() != -1


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_floating(op: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op} takes a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{op} takes a floating-point tensor, got {x.dtype}; convert it first, e.g. x.float()")


def check_eps(eps: float) -> float:
    if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
        raise ValueError(f"eps must be a finite number >= 0, got {eps!r}")
    return float(eps)


def check_gain(gain: str) -> str:
    if gain not in ("none", "direct", "offset"):
        raise ValueError(unknown("gain", gain, ("none", "direct", "offset")))
    return gain


def check_same_device(op: str, x: Tensor, **others: Tensor | None) -> None:
    for name, t in others.items():
        if t is not None and t.device != x.device:
            raise ValueError(f"{op}: x is on {x.device} but {name} is on {t.device}; move them to one device")


def _check_parameter(op: str, name: str, p: Tensor | None, size: int) -> None:
    if p is None:
        return
    if not isinstance(p, Tensor) or not p.is_floating_point():
        got = p.dtype if isinstance(p, Tensor) else type(p).__name__
        raise TypeError(f"{op}: {name} must be a floating-point tensor, got {got}")
    if p.numel() != size:
        raise ValueError(f"{op}: {name} has {p.numel()} values (shape {tuple(p.shape)}), the input needs {size}")


def dense(p: Tensor | None) -> Tensor | None:
    """Along one axis, without gaps: kernels read parameters through an address alone."""
    return p if p is None or (p.dim() == 1 and p.is_contiguous()) else cpu.contiguous(p).reshape(-1)


def _of_one_dtype(*parameters: Tensor | None) -> tuple[Tensor | None, ...]:
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
        check_same_device(op, x, mask=mask)
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


# ---- rows ------------------------------------------------------------------------------------------------------------


def row_norm(
    op: str,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    facts: tuple[int, float, int, bool, bool],
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """The norms over the last axes. ``facts``: mode, eps, values in the statistic (0 = all), offset gain, round first."""
    # The everyday call first: a small norm takes a few microseconds, and so do careful checks.
    if mask is None and lengths is None and len(shape) == 1 and _route(op, x) == "eager":
        mode, eps, partial, offset, round_first = facts
        width = shape[0]
        try:
            every = (mode, eps, width, partial or width, offset, round_first)
            if is_grad_enabled():
                return eager.row_norm(x, weight, bias, None, every)
            return cpu.row_forward(x, weight, bias, None, None, every)[0]
        except Unfit:
            pass  # the careful way makes it fit, or says what is wrong
    return _row_norm_checked(op, x, shape, weight, bias, facts, mask, lengths)


def _row_norm_checked(
    op: str,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    facts: tuple[int, float, int, bool, bool],
    mask: Tensor | None,
    lengths: Tensor | Sequence[int] | None,
) -> Tensor:
    """Any call, every check."""
    check_floating(op, x)
    k = len(shape)
    if x.shape[-k:] != shape or k == 0:
        raise ValueError(f"{op}: the input has shape {tuple(x.shape)}, its last axes must be {shape}")
    width = math.prod(shape)
    if width == 0:
        raise ValueError(f"{op}: cannot normalize over an empty axis, normalized shape {shape}")
    mode, eps, partial, offset, round_before_gain = facts
    partial = partial or width
    if not 1 <= partial <= width:
        raise ValueError(f"{op}: partial must lie in 1..{width} (the normalized values), got {max(partial, 0)}")
    for name, p in (("weight", weight), ("bias", bias)):
        _check_parameter(op, name, p, 1 if mode == 2 else width)
    check_same_device(op, x, weight=weight, bias=bias)
    weight, bias = dense(weight), dense(bias)
    mask = as_mask(op, x, tuple(x.shape[:-k]), mask, lengths)
    if k > 1:
        x = (x if x.is_contiguous() else cpu.contiguous(x)).flatten(-k)
    route = _route_with(op, x, weight, bias, mask)
    if route in ("eager", "graph"):
        weight, bias = _of_one_dtype(weight, bias)
    if route == "eager":
        y = eager.row_norm(x, weight, bias, mask, (mode, eps, width, partial, offset, round_before_gain))
    elif route == "graph":
        y = graph.row_norm(x, weight, bias, mask, mode, eps, partial, offset, round_before_gain)[0]
    else:
        formula = devices.row_norm if route == "torch" else reference.row_norm
        y = formula(x, weight, bias, mask, mode=eager.MODE_NAMES[mode], eps=eps, partial=partial,
                               gain=eager.GAINS[offset], round_before_gain=round_before_gain)  # fmt: skip
    return y.unflatten(-1, shape) if k > 1 else y


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    gain: str = "direct",
    round_before_gain: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + bias over the last axes; see :class:`normlab.LayerNorm`."""
    facts = (0, check_eps(eps), 0, check_gain(gain) == "offset", round_before_gain)
    return row_norm("layer_norm", x, tuple(normalized_shape), weight, bias, facts, mask, lengths)


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    partial: int | None = None,
    gain: str = "direct",
    round_before_gain: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axes; see :class:`normlab.RMSNorm`."""
    count = 0 if partial is None else partial or -1  # 0 would mean all
    facts = (1, rms_eps(x, eps), count, check_gain(gain) == "offset", round_before_gain)
    return row_norm("rms_norm", x, tuple(normalized_shape), weight, bias, facts, mask, lengths)


def rms_eps(x: Tensor, eps: float | None) -> float:
    """None is the machine epsilon of the dtype that computes (float32 for 16-bit inputs), as in torch."""
    if eps is not None:
        return check_eps(eps)
    return DOUBLE_EPS if isinstance(x, Tensor) and x.dtype == torch.float64 else SINGLE_EPS


def scale_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """weight * x / max(|x|, eps) with one weight for the whole vector; see :class:`normlab.ScaleNorm`."""
    check_floating("scale_norm", x)
    return row_norm(
        "scale_norm", x, tuple(x.shape[-1:]), weight, None, (2, check_eps(eps), 0, False, False), mask, lengths
    )


def residual_norm(
    x: Tensor,
    branch: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    norm: str = "layer",
    alpha: float = 1.0,
    dropout: float = 0.0,
    training: bool = True,
    gain: str = "direct",
    round_before_gain: bool = False,
    return_stream: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Any:
    """norm(alpha * x + dropout(branch)) in one pass; with ``return_stream`` also the sum that was normalized.

    See :class:`normlab.ResidualNorm`. The sum is rounded to x's dtype before it is normalized, as if it were stored.
    """
    op = "residual_norm"
    if norm not in ("layer", "rms"):
        raise ValueError(unknown("norm", norm, ("layer", "rms")))
    if not 0 <= dropout < 1:
        raise ValueError(f"{op}: dropout must lie in [0, 1), got {dropout!r}")
    offset, eps, alpha = check_gain(gain) == "offset", check_eps(eps), float(alpha)
    drop = dropout if training else 0.0

    def run_eager(rows_mask: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
        width = x.shape[-1]
        facts = (MODES[norm], eps, width, width, offset, round_before_gain, alpha, drop, seed)
        if is_grad_enabled():
            return eager.residual_norm(x, branch, weight, bias, rows_mask, facts)
        return cpu.residual_forward(x, branch, weight, bias, rows_mask, None, facts)[:2]

    # The everyday call first, as in row_norm. Whatever may be refused is refused before a seed is drawn.
    if mask is None and lengths is None and _route(op, x) == "eager" and x.dim() > 0:
        try:
            if drop == 0 or cpu.native.fits_residual(x, branch, weight, bias):
                both = run_eager(None, int(torch.randint(0, 2**62, (), device="cpu")) if drop > 0 else 0)
                return both if return_stream else both[0]
        except Unfit:
            pass
    route, rows_mask, weight, bias = _check_residual(op, x, branch, weight, bias, mask, lengths)
    if route == "graph":
        seed_tensor = (
            torch.randint(0, 2**62, (), device="cpu") if drop > 0 else torch.zeros((), dtype=torch.int64, device="cpu")
        )
        y, stream, _ = graph.residual_norm(x, branch, weight, bias, rows_mask, MODES[norm], eps, offset,
                                           round_before_gain, alpha, drop, seed_tensor)  # fmt: skip
        return (y, stream) if return_stream else y
    seed = int(torch.randint(0, 2**62, (), device="cpu")) if drop > 0 else 0
    if route in ("torch", "reference"):
        formula = devices.row_norm if route == "torch" else reference.row_norm
        both = eager.residual_reference(formula, x, branch, weight, bias, rows_mask, norm, eps, gain, round_before_gain, alpha,
                                        drop, seed)  # fmt: skip
    else:
        both = run_eager(rows_mask, seed)
    return both if return_stream else both[0]


def _check_residual(
    op: str,
    x: Tensor,
    branch: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | Sequence[int] | None,
) -> tuple[str, Tensor | None, Tensor | None, Tensor | None]:
    """Any call, every check of its tensors: the route, the mask over rows, and the parameters as kernels need them."""
    check_floating(op, x)
    check_floating(op, branch)
    if x.shape != branch.shape or x.dtype != branch.dtype:
        raise ValueError(
            f"{op}: x is {tuple(x.shape)} {x.dtype} and branch is {tuple(branch.shape)} {branch.dtype}; they must match"
        )
    weight, bias = dense(weight), dense(bias)
    check_same_device(op, x, branch=branch, weight=weight, bias=bias)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"{op}: cannot normalize over an empty axis, input of shape {tuple(x.shape)}")
    width = x.shape[-1]
    _check_parameter(op, "weight", weight, width)
    _check_parameter(op, "bias", bias, width)
    rows_mask = as_mask(op, x, tuple(x.shape[:-1]), mask, lengths)
    route = _route_with(op, x, branch, weight, bias, rows_mask)
    if route in ("eager", "graph"):
        weight, bias = _of_one_dtype(weight, bias)
    return route, rows_mask, weight, bias


# ---- statistics over rows --------------------------------------------------------------------------------------------


def positions(x: Tensor, channel: int) -> tuple[int, ...]:
    """The shape of a mask for x."""
    return tuple(n for a, n in enumerate(x.shape) if a != channel)


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
    offset = check_gain(gain) == "offset"
    weight, bias = dense(weight), dense(bias)
    route = _route(op, x)
    if route != "eager" or not (
        type(weight) in MAYBE_PLAIN and type(bias) in MAYBE_PLAIN and type(mask) in MAYBE_PLAIN
    ):
        _check_channel_parameters(op, x.shape[channel], weight, bias)
        route = _route_with(op, x, weight, bias, mask)
    if statistics is not None and route == "eager":
        route = _route_with(op, x, *statistics)
    if weight is not None and bias is not None and weight.dtype is not bias.dtype and route in ("eager", "graph"):
        _check_channel_parameters(op, x.shape[channel], weight, bias)
        route = _route_with(op, x, weight, bias, mask)
        if route in ("eager", "graph"):
            weight, bias = _of_one_dtype(weight, bias)
    move = running is not None and not recomputing()
    facts = (eps, offset, centered, channel, groups, pooled)
    if route == "torch":
        theirs = _by_torch(
            x, weight, bias, mask, facts, gain, statistics, running if move else None, group, want_statistics
        )
        if theirs is not None:
            return theirs, None
    if route == "eager":
        given = None
        if statistics is not None:
            given = torch.cat(
                [*(cpu.with_memory(s).double().flatten() for s in statistics), x.new_zeros(1, dtype=torch.float64)]
            )
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
            check_running(op, x.shape[channel], running[0], running[1])
        # Also when a forward is only recomputed: autograd must find the same tensors saved.
        want = want_statistics or (running is not None and not inside)
        more = (running if inside and move else None, group, want)
        try:
            result = eager.column_norm(cpu.packed(x, channel), weight, bias, mask, given, facts, more)
        except Unfit:
            _check_channel_parameters(op, x.shape[channel], weight, bias)
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
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, facts: tuple[Any, ...], gain: str,
    statistics: tuple[Tensor, Tensor] | None, running: Any, group: Any, want_statistics: bool,
) -> Tensor | None:  # fmt: skip
    """y by torch's own kernels on another device, or None where they do not do this."""
    eps, _, centered, channel, groups, pooled = facts
    odd = mask is not None or group is not None or want_statistics or not centered or x.numel() == 0
    if odd or (running is not None and isinstance(running[2], Tensor)):
        return None
    return devices.column_norm(x, weight, bias, eps=eps, groups=groups, pooled=pooled, channel=channel, gain=gain,
                               statistics=statistics, running=running)  # fmt: skip


def _from_inference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Would autograd refuse these, and only once the running statistics have moved?"""
    if not x.is_inference() and not (weight is not None and weight.is_inference()):
        return False
    return any(t is not None and t.requires_grad for t in (x, weight, bias))


def _check_channel_parameters(op: str, channels: int, weight: Tensor | None, bias: Tensor | None) -> None:
    _check_parameter(op, "weight", weight, channels)
    _check_parameter(op, "bias", bias, channels)


def check_running(op: str, channels: int, mean: Tensor | None, variance: Tensor | None) -> None:
    """Before anything is computed: running statistics that cannot be moved."""
    for name, t in (("running_mean", mean), ("running_var", variance)):
        _check_parameter(op, name, t, channels)
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


def _all_sum(group: Any) -> reference.AllSum | None:
    if group is None:
        return None
    from torch.distributed.nn.functional import all_reduce

    return lambda t: all_reduce(t.contiguous(), group=group)


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


def _check_columns(
    op: str, x: Tensor, channel_dim: int, weight: Tensor | None, bias: Tensor | None, **buffers: Tensor | None
) -> int:
    channel = check_channels(op, x, channel_dim)
    size = x.shape[channel]
    for name, p in (("weight", weight), ("bias", bias), *buffers.items()):
        if p is not None and (p.numel() != size or p.device != x.device or not p.is_floating_point()):
            _check_parameter(op, name, p, size)
            check_same_device(op, x, **{name: p})
    return channel


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
        if _route_with("batch_norm", x, mask) == "eager":
            facts = (0.0, False, True, channel, x.shape[channel], True)
            statistics = cpu.column_statistics(x, facts)
            cpu.column_forward(cpu.packed(x, channel), None, None, mask, statistics, False, facts, moments_only=True)
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


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
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
    channel = _check_columns(op, x, channel_dim, weight, bias, running_mean=running_mean, running_var=running_var)
    if mask is not None or lengths is not None:
        mask = as_mask(op, x, positions(x, channel), mask, lengths)
    channels = x.shape[channel]
    statistics = running = None
    if training:
        check_batch(op, x, channels, group)
        if running_mean is not None and running_var is not None:
            running = (running_mean, running_var, momentum)
    elif running_mean is None or running_var is None:
        raise ValueError(
            f"{op}: without running statistics there is nothing to evaluate with; pass them or training=True"
        )
    else:
        statistics = (running_mean, running_var)
    return column_norm(op, x, weight, bias, eps, groups=channels, pooled=True, channel=channel, mask=mask, gain=gain,
                        statistics=statistics, running=running, group=group)[0]  # fmt: skip


def check_batch(op: str, x: Tensor, channels: int, group: Any) -> None:
    if x.numel() == channels and group is None:
        raise ValueError(
            f"{op}: an input of shape {tuple(x.shape)} has one value per channel; training needs at least two to have a "
            "variance. Use a larger batch, eval mode, frozen statistics, or a norm without batch statistics"
        )


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
    channel = _check_columns("instance_norm", x, channel_dim, weight, bias)
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
    channel = _check_columns("group_norm", x, channel_dim, weight, bias)
    check_groups(num_groups, x.shape[channel])
    if mask is not None or lengths is not None:
        mask = as_mask("group_norm", x, positions(x, channel), mask, lengths)
    return column_norm("group_norm", x, weight, bias, eps, groups=num_groups, pooled=False, channel=channel,
                        mask=mask, gain=gain)[0]  # fmt: skip


def check_groups(num_groups: int, channels: int) -> None:
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"num_groups must divide the channels: {channels} channels, num_groups={num_groups}")


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
    channel = _check_columns(op, x, channel_dim, weight, bias, running_psi2=running_psi2, nu=nu)
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
    route = _route_with(op, x, weight, bias, real, running_psi2, nu)
    if route in ("eager", "graph"):
        weight, bias = _of_one_dtype(weight, bias)
    warmup = warmup_steps if running else 2**62
    again = recomputing()
    if in_transform():
        raise TransformUnsupported(
            "PowerNorm updates its running quantities in training, which functional transforms cannot see; use "
            "PowerNorm(running=False, track_running_stats=False) or eval mode"
        )
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
        apply = eager.PowerNorm.apply if is_compiling() else eager.power_norm  # a tracer knows the wrapped one
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


# ---- pointwise -------------------------------------------------------------------------------------------------------


def _pointwise(
    op: str, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, lengths: Tensor | Sequence[int] | None,
) -> Tensor:  # fmt: skip
    check_floating(op, x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"{op}: the last axis of an input of shape {tuple(x.shape)} holds no features")
    check_same_device(op, x, alpha=alpha, shift=shift, weight=weight, bias=bias)
    for name, p, size in (("alpha", alpha, 1), ("shift", shift, 1), ("weight", weight, None), ("bias", bias, None)):
        _check_parameter(op, name, p, size or x.shape[-1])
    real = as_mask(op, x, tuple(x.shape[:-1]), mask, lengths)
    route = _route_with(op, x, alpha, shift, weight, bias, real)
    if route in ("torch", "reference"):
        return reference.pointwise(x, alpha, shift, weight, bias, real, form="tanh" if op == "dyt" else "erf")
    alpha, shift, weight, bias = _of_one_dtype(alpha, dense(shift), dense(weight), dense(bias))  # type: ignore[assignment]
    if route == "graph":
        return graph.pointwise(x, alpha, shift, weight, bias, real, op == "derf")
    return eager.pointwise(x, alpha, shift, weight, bias, real, op == "derf")


def dyt(
    x: Tensor, alpha: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *,
    mask: Tensor | None = None, lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """weight * tanh(alpha * x) + bias; see :class:`normlab.DyT`."""
    return _pointwise("dyt", x, alpha, None, weight, bias, mask, lengths)


def derf(
    x: Tensor, alpha: Tensor, shift: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *,
    mask: Tensor | None = None, lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """weight * erf(alpha * x + shift) + bias; see :class:`normlab.Derf`."""
    return _pointwise("derf", x, alpha, shift, weight, bias, mask, lengths)
