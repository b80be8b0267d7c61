"""DyT and Derf, which take no statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import functional
from .base import Lengths, Norm


class Pointwise(Norm):
    """A squashing curve in place of a norm: no statistic at all."""

    def _make(self, dim: int, starts: dict[str, float], affine: bool, device: Any, dtype: Any) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim = dim
        self.affine = affine
        self.starts = starts  # of the curve's own numbers, by name
        for name in starts:
            self.register_parameter(name, nn.Parameter(torch.empty(1, device=device, dtype=dtype)))
        self._make_parameters((dim,), "direct" if affine else "none", affine, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, value in self.starts.items():
            nn.init.constant_(getattr(self, name), value)

    def _check(self, x: Tensor) -> None:
        functional.check_floating(type(self).__name__, x)
        if x.shape[-1:] != (self.dim,):
            raise ValueError(
                f"{type(self).__name__}({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )

    def extra_repr(self) -> str:
        return f"{self.dim}, affine={self.affine}"


class DyT(Pointwise):
    """A learned tanh in place of a norm.

        y = weight * tanh(alpha * x) + bias        alpha is one number, starting at ``alpha_init``

    Each cell stands alone: large values are squashed, nothing is centred or scaled by data.
    Zhu et al. 2025 (arXiv 2503.10622).

    >>> DyT(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    alpha: nn.Parameter

    def __init__(
        self, dim: int, alpha_init: float = 0.5, affine: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self._make(dim, {"alpha": alpha_init}, affine, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        self._check(x)
        return functional.dyt(x, self.alpha, self.weight, self.bias, mask=mask, lengths=lengths)


class Derf(Pointwise):
    """A learned, shifted error function in place of a norm.

        y = weight * erf(alpha * x + shift) + bias        alpha starts at ``alpha_init``, shift at ``shift_init``

    DyT with erf for tanh and a shift. arXiv 2512.10938.

    >>> Derf(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    alpha: nn.Parameter
    shift: nn.Parameter

    def __init__(
        self,
        dim: int,
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._make(dim, {"alpha": alpha_init, "shift": shift_init}, affine, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        self._check(x)
        return functional.derf(x, self.alpha, self.shift, self.weight, self.bias, mask=mask, lengths=lengths)
