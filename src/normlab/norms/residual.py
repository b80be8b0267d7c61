"""ResidualNorm: a residual sum and its norm in one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import functional
from ..errors import unknown
from .base import Lengths, Norm, gain_of, shape_of


class ResidualNorm(Norm):
    """The residual sum and the norm after it, in one pass over memory.

        stream = alpha * x + dropout(branch)        y = norm(stream)

    ``forward(x, branch)`` returns y, or (y, stream) with ``return_stream=True``. ``alpha`` is DeepNorm's factor on the
    stream; ``norm`` is "layer" or "rms". Computing the parts one after the other gives the same numbers.

    >>> norm = ResidualNorm(4, norm="rms", return_stream=True)
    >>> y, stream = norm(torch.ones(2, 4), torch.ones(2, 4))
    >>> stream[0, 0].item()
    2.0
    """

    def __init__(
        self,
        dim: int,
        norm: str = "layer",
        eps: float | None = None,
        elementwise_affine: bool = True,
        bias: bool | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        alpha: float = 1.0,
        dropout: float = 0.0,
        return_stream: bool = False,
        gain: str | None = None,
        round_before_gain: bool = False,
    ) -> None:
        super().__init__()
        if norm not in ("layer", "rms"):
            raise ValueError(unknown("norm", norm, ("layer", "rms")))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")
        (self.dim,) = shape_of(dim)
        self.norm = norm
        self.eps = (1e-5 if norm == "layer" else None) if eps is None else functional.check_eps(eps)
        self.alpha = float(alpha)
        self.dropout = dropout
        self.return_stream = return_stream
        self.round_before_gain = round_before_gain
        with_bias = norm == "layer" if bias is None else bias
        self._make_parameters(
            (self.dim,), gain_of(gain, elementwise_affine), elementwise_affine and with_bias, device, dtype
        )

    def forward(self, x: Tensor, branch: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Any:
        functional.check_floating("ResidualNorm", x)
        functional.check_floating("ResidualNorm", branch)
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise ValueError(
                f"ResidualNorm({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )
        eps = functional.rms_eps(x, self.eps)
        return functional.residual_norm(x, branch, self._own("weight"), self._own("bias"), eps, norm=self.norm, alpha=self.alpha,
                                 dropout=self.dropout, training=self.training, gain=self.gain,
                                 round_before_gain=self.round_before_gain, return_stream=self.return_stream, mask=mask,
                                 lengths=lengths)  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.dim}, norm={self.norm!r}, alpha={self.alpha}, dropout={self.dropout}, gain={self.gain!r}"
