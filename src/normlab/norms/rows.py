"""Norms of one token: LayerNorm, RMSNorm, ScaleNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional
from ..functional.rows import eps_of
from ..kernels.facts import RowFacts
from .base import Lengths, Norm, gain_of, shape_of

TOLD = ("normalized_shape", "dim", "eps", "gain", "round_before_gain", "partial")  # what facts are made of


class RowNorm(Norm):
    """A norm over the last axes. Its facts are made when what they are made of is set, not in each call."""

    _facts: RowFacts
    detach_statistics = False  # also of layers that were pickled before there was such an option

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in TOLD and "_facts" in self.__dict__:
            self._make_facts()

    def _make_facts(self) -> None:
        raise NotImplementedError

    def _told_detached(self) -> str:
        return ", detach_statistics=True" if self.detach_statistics else ""


class LayerNorm(RowNorm):
    """Each token on its own: zero mean and unit variance over its features.

        y = (x - mean) / sqrt(var + eps) * weight + bias        mean, biased var over ``normalized_shape``

    Differs from RMSNorm by the mean it removes, from BatchNorm by looking at one token only. A token whose features are
    all equal comes out as the bias. 16-bit inputs are computed in float32 and rounded once, after the gain.
    ``detach_statistics=True`` is DetachNorm of Xu et al. 2019 (arXiv 1911.07013): the same forward, but mean and variance
    are constants to the gradient, dx = weight * dy / sqrt(var + eps). For experiments: the reference formula computes it.
    Ba, Kiros, Hinton 2016 (arXiv 1607.06450).

    >>> norm = LayerNorm(4)
    >>> norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().abs().item() < 1e-6
    True
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        gain: str | None = None,
        round_before_gain: bool = False,
        detach_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape_of(normalized_shape)
        self.eps = functional.check_eps(eps)
        self.elementwise_affine = elementwise_affine
        self.round_before_gain = round_before_gain
        self.detach_statistics = detach_statistics
        self._make_parameters(
            self.normalized_shape, gain_of(gain, elementwise_affine), elementwise_affine and bias, device, dtype
        )
        self._make_facts()

    def _make_facts(self) -> None:
        width = math.prod(self.normalized_shape)
        eps = functional.check_eps(self.eps)
        self._facts = RowFacts("layer", eps, width, width, self.gain == "offset", self.round_before_gain)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        weight, bias = self._own("weight"), self._own("bias")
        return functional.row_norm(
            "LayerNorm", x, self.normalized_shape, weight, bias, self._facts, mask, lengths, self.detach_statistics
        )

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, gain={self.gain!r}, bias={self.bias is not None}{self._told_detached()}"


class RMSNorm(RowNorm):
    """Each token on its own: unit root mean square, the mean left in place.

        y = x / sqrt(mean(x^2) + eps) * weight

    ``partial=p`` takes the mean square from the first p * width features only (pRMSNorm). ``eps=None`` is the machine
    epsilon of the dtype that computes (float32 for 16-bit inputs), as in torch. ``gain="offset"`` uses 1 + weight;
    ``round_before_gain=True`` rounds a 16-bit result before the gain (Llama's order), False after (one rounding).
    ``detach_statistics=True``: the mean square is a constant to the gradient, as in LayerNorm.
    Zhang, Sennrich 2019 (arXiv 1910.07467); the paper adds eps outside the root, practice puts it inside.

    >>> RMSNorm(2)(torch.tensor([[3.0, 4.0]])).square().mean().sqrt().item()
    1.0
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = False,
        gain: str | None = None,
        round_before_gain: bool = False,
        partial: float | None = None,
        detach_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape_of(normalized_shape)
        self.eps = None if eps is None else functional.check_eps(eps)
        self.elementwise_affine = elementwise_affine
        self.round_before_gain = round_before_gain
        self.detach_statistics = detach_statistics
        if partial is not None and not 0 < partial <= 1:
            raise ValueError(
                f"partial is the share of features in the statistic and must lie in (0, 1], got {partial!r}"
            )
        self.partial = partial
        self._make_parameters(
            self.normalized_shape, gain_of(gain, elementwise_affine), elementwise_affine and bias, device, dtype
        )
        self._make_facts()

    def _make_facts(self) -> None:
        width = math.prod(self.normalized_shape)
        partial = width if self.partial is None else max(1, int(self.partial * width))
        single, double = (
            RowFacts("rms", eps_of(dtype, self.eps), width, partial, self.gain == "offset", self.round_before_gain)
            for dtype in (torch.float32, torch.float64)
        )
        self._facts, self._wide_facts = single, double

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        facts = self._wide_facts if isinstance(x, Tensor) and x.dtype is torch.float64 else self._facts
        weight, bias = self._own("weight"), self._own("bias")
        return functional.row_norm(
            "RMSNorm", x, self.normalized_shape, weight, bias, facts, mask, lengths, self.detach_statistics
        )

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, gain={self.gain!r}, partial={self.partial}{self._told_detached()}"


class ScaleNorm(RowNorm):
    """Each token put on a sphere with one learned radius.

        y = weight * x / max(|x|, eps)        weight is one number, starting at sqrt(dim)

    At weight = sqrt(dim) this is RMSNorm without a gain. Nguyen, Salazar 2019 (arXiv 1910.05895).

    >>> ScaleNorm(4)(torch.ones(1, 4)).norm().item()
    2.0
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        detach_statistics: bool = False,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim = dim
        self.eps = functional.check_eps(eps)
        self.affine = affine
        self.detach_statistics = detach_statistics
        self._make_parameters((1,), "direct" if affine else "none", False, device, dtype)
        self._make_facts()

    def _make_facts(self) -> None:
        self._facts = RowFacts("scale", functional.check_eps(self.eps), self.dim, self.dim)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, self.dim**0.5)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        functional.check_floating("ScaleNorm", x)
        if x.shape[-1:] != (self.dim,):
            raise ValueError(
                f"ScaleNorm({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )
        return functional.row_norm(
            "scale_norm", x, (self.dim,), self._own("weight"), None, self._facts, mask, lengths, self.detach_statistics
        )

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, affine={self.affine}{self._told_detached()}"
