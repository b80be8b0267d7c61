"""What passes through a norm, in its own units: gradients of its statistics, values within bounds; and what of the stream's
first state is left after each block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .frames import BlockFrame, NormFrame, Probe, denominator, some

POOLED = ("batch", "power")  # kinds whose statistics span the tokens of a batch
CENTERED = ("layer", "batch")
ROWS = ("layer", "rms", "scale")


def plain_rows(frame: NormFrame) -> Tensor | None:
    """The normalized values before gain and bias, from the input; None for kinds whose statistic is neither a row's nor a
    batch's. In evaluation a pooled norm uses other statistics, so there is no answer."""
    kind, x = frame.site.kind, frame.x_rows
    if kind not in ROWS and (kind not in POOLED or not frame.training):
        return None
    axis = 0 if kind in POOLED else -1
    mean = x.mean(axis, keepdim=True) if kind in CENTERED else 0.0
    square = ((x - mean) ** 2).mean(axis, keepdim=True)
    return (x - mean) / denominator(square, x.shape[axis], frame.site.eps, frame.site.eps_form)[0]


class StatisticGradients(Probe):
    """The gradients of a norm's statistics themselves, not their share.

        g = gain * dL/dy,  g_mean = mean(g),  g_var = mean(g xhat)        over the cells that share a statistic
        mean_grad_norm, var_grad_norm                            |g_mean|, |g_var| over all statistics of the norm
        mean_grad_median, _p95, _max; var_grad_median, ...       of the single |g_mean| and |g_var|

    A statistic is a feature's for batch and power, a token's for layer, rms and scale, which (with power) have no mean. The
    norms are those whose outliers Shen et al. 2020 (arXiv 2003.07845) show: dL/dx = (g - g_mean - xhat g_var) / deviation.
    """

    on = "norm gradient"
    price = "full"

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        xhat = plain_rows(frame)
        if xhat is None or getattr(frame.site.module, "detach_statistics", False):
            return {}
        axis = 0 if frame.site.kind in POOLED else -1
        gain = frame.gain()
        g = frame.grad_rows if gain is None else frame.grad_rows * gain
        found = _sizes("var_grad", (g * xhat).mean(axis))
        if frame.site.kind in CENTERED:
            found |= _sizes("mean_grad", g.mean(axis))
        return found


def _sizes(name: str, values: Tensor) -> dict[str, Tensor]:
    sizes = values.abs()
    middle, high = torch.quantile(sizes, torch.tensor([0.5, 0.95], device=sizes.device))
    return {
        f"{name}_norm": torch.linalg.vector_norm(sizes),
        f"{name}_median": middle,
        f"{name}_p95": high,
        f"{name}_max": sizes.max(),
    }


class WithinTwo(Probe):
    """Share of the values after a norm that lie within -2 and 2.

        within_two         of what leaves it, gain and bias included
        within_two_plain   of the normalized values, before gain and bias

    0.954 for normal values, at least 0.75 of the plain ones whatever they are (Chebyshev).
    """

    on = "norm"
    price = "full"

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        found = {"within_two": _share(frame.y_rows)}
        plain = plain_rows(frame)
        return found if plain is None else found | {"within_two_plain": _share(plain)}


def _share(values: Tensor) -> Tensor:
    return (values.abs() <= 2).float().mean()


class IdentityWeight(Probe):
    """How much of what entered the stack is left after each block.

        identity_weight = <x_0, x_l> / <x_0, x_0>        the least-squares factor of x_0 in x_l, over tokens and features
        identity_share  = <x_0, x_l> / (|x_0| |x_l|)     their cosine: 1 where x_l is a multiple of x_0

    x_0 enters the first block of the stack, x_l leaves block l. Under post-norm with branches as large as the stream and
    independent of it the weight is 2^(-s/2) after s sub-layers.
    """

    on = "block"
    price = "full"

    def __init__(self) -> None:
        self._entered: tuple[str, Tensor] | None = None  # (stack, x_0) of the forward that is under way

    def measure(self, frame: BlockFrame) -> Mapping[str, Tensor]:
        if frame.site.depth == 0:
            self._entered = None if frame.x is None else (frame.site.stack, some(frame.rows(frame.x)))
        if self._entered is None or self._entered[0] != frame.site.stack or frame.y is None:
            return {}
        first, y = self._entered[1], some(frame.rows(frame.y))
        if first.shape != y.shape:
            return {}
        product, size = (first * y).sum(), first.square().sum()
        return {
            "identity_weight": product / (size + 1e-30),
            "identity_share": product / (size.sqrt() * torch.linalg.vector_norm(y) + 1e-30),
        }
