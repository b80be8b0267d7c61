"""DyT and Derf: no statistics at all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..kernels import eager, graph, reference
from ..kernels.facts import Form
from .checks import as_mask, check_floating, check_parameter, check_same_device, dense, of_one_dtype
from .routes import route_of_all


def _pointwise(
    op: str, form: Form, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, lengths: Tensor | Sequence[int] | None,
) -> Tensor:  # fmt: skip
    check_floating(op, x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"{op}: the last axis of an input of shape {tuple(x.shape)} holds no features")
    check_same_device(op, x, alpha=alpha, shift=shift, weight=weight, bias=bias)
    for name, p, size in (("alpha", alpha, 1), ("shift", shift, 1), ("weight", weight, None), ("bias", bias, None)):
        check_parameter(op, name, p, size or x.shape[-1])
    real = as_mask(op, x, tuple(x.shape[:-1]), mask, lengths)
    route = route_of_all(op, x, alpha, shift, weight, bias, real)
    if route in ("torch", "reference"):
        return reference.pointwise(x, alpha, shift, weight, bias, real, form=form)
    alpha, shift, weight, bias = of_one_dtype(alpha, dense(shift), dense(weight), dense(bias))  # type: ignore[assignment]
    if route == "graph":
        return graph.pointwise(x, alpha, shift, weight, bias, real, form)
    return eager.pointwise(x, alpha, shift, weight, bias, real, form)


def dyt(
    x: Tensor, alpha: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *,
    mask: Tensor | None = None, lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """weight * tanh(alpha * x) + bias; see :class:`normlab.DyT`."""
    return _pointwise("dyt", "tanh", x, alpha, None, weight, bias, mask, lengths)


def derf(
    x: Tensor, alpha: Tensor, shift: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *,
    mask: Tensor | None = None, lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """weight * erf(alpha * x + shift) + bias; see :class:`normlab.Derf`."""
    return _pointwise("derf", "erf", x, alpha, shift, weight, bias, mask, lengths)
