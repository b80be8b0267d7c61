"""Norms over the last axes: each token on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from .. import kernels
from ..errors import KernelUnavailable, unknown
from ..kernels import cpu, devices, eager, graph, reference
from ..kernels.cpu import Unfit
from ..kernels.facts import ResidualFacts, RowFacts, RowMode, gain_of, known_residual_facts, known_row_facts
from .checks import (
    as_mask,
    check_eps,
    check_floating,
    check_gain,
    check_parameter,
    check_same_device,
    dense,
    of_one_dtype,
)
from .routes import route_of, route_of_all

SINGLE_EPS, DOUBLE_EPS = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def row_norm(
    op: str,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    facts: RowFacts,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    detach_statistics: bool = False,
) -> Tensor:
    """The norms over the last axes, which have this ``shape``."""
    if detach_statistics:
        return _row_norm_checked(op, x, shape, weight, bias, facts, mask, lengths, True)
    # The everyday call first: a small norm takes a few microseconds, and so do careful checks.
    if mask is None and lengths is None and len(shape) == 1 and route_of(op, x) == "eager":
        try:
            if is_grad_enabled():
                return eager.row_norm(x, weight, bias, None, facts)
            return cpu.row_forward(x, weight, bias, None, None, facts)[0]
        except Unfit:
            pass  # the careful way makes it fit, or says what is wrong
    return _row_norm_checked(op, x, shape, weight, bias, facts, mask, lengths)


def _row_norm_checked(
    op: str,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    facts: RowFacts,
    mask: Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    detach_statistics: bool = False,
) -> Tensor:
    """Any call, every check."""
    check_floating(op, x)
    k = len(shape)
    if x.shape[-k:] != shape or k == 0:
        raise ValueError(f"{op}: the input has shape {tuple(x.shape)}, its last axes must be {shape}")
    mode, eps, width, partial, offset, round_before_gain = facts
    if width == 0:
        raise ValueError(f"{op}: cannot normalize over an empty axis, normalized shape {shape}")
    if not 1 <= partial <= width:
        raise ValueError(f"{op}: partial must lie in 1..{width} (the normalized values), got {partial}")
    for name, p in (("weight", weight), ("bias", bias)):
        check_parameter(op, name, p, 1 if mode == "scale" else width)
    check_same_device(op, x, weight=weight, bias=bias)
    weight, bias = dense(weight), dense(bias)
    mask = as_mask(op, x, tuple(x.shape[:-k]), mask, lengths)
    if k > 1:
        x = (x if x.is_contiguous() else cpu.contiguous(x)).flatten(-k)
    route = "reference" if detach_statistics else route_of_all(op, x, weight, bias, mask)
    if detach_statistics and kernels.current_request() == "cpu":
        raise KernelUnavailable(f"kernel 'cpu' was requested for {op}, but none detaches statistics: use 'auto'")
    if route in ("eager", "graph"):
        weight, bias = of_one_dtype(weight, bias)
    if route == "eager":
        y = eager.row_norm(x, weight, bias, mask, facts)
    elif route == "graph":
        y = graph.row_norm(x, weight, bias, mask, mode, eps, partial, offset, round_before_gain)[0]
    else:
        formula = devices.row_norm if route == "torch" else reference.row_norm
        how = {"detach_statistics": True} if detach_statistics else {}
        y = formula(x, weight, bias, mask, mode=mode, eps=eps, partial=partial, gain=gain_of(offset),
                    round_before_gain=round_before_gain, **how)  # fmt: skip
    return y.unflatten(-1, shape) if k > 1 else y


def _facts(
    mode: RowMode,
    eps: float,
    width: int,
    partial: int | None,
    gain: str,
    weight: Tensor | None,
    round_before_gain: bool,
) -> RowFacts:
    make = RowFacts if is_compiling() or type(width) is not int else known_row_facts
    return make(
        mode, eps, width, width if partial is None else partial, check_gain(gain, weight) == "offset", round_before_gain
    )


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    gain: str = "direct",
    round_before_gain: bool = False,
    detach_statistics: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + bias over the last axes; see :class:`normlab.LayerNorm`."""
    shape = tuple(normalized_shape)
    facts = _facts("layer", check_eps(eps), math.prod(shape), None, gain, weight, round_before_gain)
    return row_norm("layer_norm", x, shape, weight, bias, facts, mask, lengths, detach_statistics)


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
    detach_statistics: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axes; see :class:`normlab.RMSNorm`."""
    shape = tuple(normalized_shape)
    facts = _facts("rms", rms_eps(x, eps), math.prod(shape), partial, gain, weight, round_before_gain)
    return row_norm("rms_norm", x, shape, weight, bias, facts, mask, lengths, detach_statistics)


def rms_eps(x: Tensor, eps: float | None) -> float:
    return eps_of(x.dtype if isinstance(x, Tensor) else None, eps)


def eps_of(dtype: torch.dtype | None, eps: float | None) -> float:
    """None is the machine epsilon of the dtype that computes (float32 for 16-bit inputs), as in torch."""
    if eps is not None:
        return check_eps(eps)
    return DOUBLE_EPS if dtype is torch.float64 else SINGLE_EPS


def scale_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    detach_statistics: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """weight * x / max(|x|, eps) with one weight for the whole vector; see :class:`normlab.ScaleNorm`."""
    check_floating("scale_norm", x)
    shape = tuple(x.shape[-1:])
    facts = _facts("scale", check_eps(eps), math.prod(shape), None, "direct", weight, False)
    return row_norm("scale_norm", x, shape, weight, None, facts, mask, lengths, detach_statistics)


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
    mode: RowMode = "layer" if norm == "layer" else "rms"
    if not 0 <= dropout < 1:
        raise ValueError(f"{op}: dropout must lie in [0, 1), got {dropout!r}")
    if isinstance(alpha, Tensor) and alpha.requires_grad:
        raise TypeError(
            f"{op}: alpha is a constant and gets no gradient; to learn it, scale x before: residual_norm(alpha * x, ...)"
        )
    offset, eps, alpha = check_gain(gain, weight) == "offset", check_eps(eps), float(alpha)
    drop = dropout if training else 0.0

    def run_eager(rows_mask: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
        make = ResidualFacts if drop > 0 else known_residual_facts  # a seed does not recur
        facts = make(mode, eps, x.shape[-1], offset, round_before_gain, alpha, drop, seed)
        if is_grad_enabled():
            return eager.residual_norm(x, branch, weight, bias, rows_mask, facts)
        return cpu.residual_forward(x, branch, weight, bias, rows_mask, None, facts)[:2]

    # The everyday call first, as in row_norm. Whatever may be refused is refused before a seed is drawn.
    if mask is None and lengths is None and route_of(op, x) == "eager" and x.dim() > 0:
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
        y, stream, _ = graph.residual_norm(x, branch, weight, bias, rows_mask, mode, eps, offset, round_before_gain, alpha,
                                           drop, seed_tensor)  # fmt: skip
        return (y, stream) if return_stream else y
    seed = int(torch.randint(0, 2**62, (), device="cpu")) if drop > 0 else 0
    if route in ("torch", "reference"):
        formula = devices.row_norm if route == "torch" else reference.row_norm
        facts = ResidualFacts(mode, eps, x.shape[-1], offset, round_before_gain, alpha, drop, seed)
        both = eager.residual_reference(formula, x, branch, weight, bias, rows_mask, facts)
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
    check_parameter(op, "weight", weight, width)
    check_parameter(op, "bias", bias, width)
    rows_mask = as_mask(op, x, tuple(x.shape[:-1]), mask, lengths)
    route = route_of_all(op, x, branch, weight, bias, rows_mask)
    if route in ("eager", "graph"):
        weight, bias = of_one_dtype(weight, bias)
    return route, rows_mask, weight, bias
