"""What the layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional
from .._torch import own_parameter

Lengths = Tensor | Sequence[int] | None


def gain_of(gain: str | None, affine: bool) -> str:
    if gain is None:
        return "direct" if affine else "none"
    gain = functional.check_gain(gain)
    if gain != "none" and not affine:
        raise ValueError(
            f"gain={gain!r} needs a weight, but affine is off; ask for affine=True (elementwise_affine=True)"
        )
    return gain


class Norm(nn.Module):
    """What the layers share: a gain and a bias that may be absent, and their start values."""

    over_tokens = False  # do statistics span tokens, so that padding (and, in a causal model, the future) matters?
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    gain: str

    def _make_parameters(self, shape: tuple[int, ...], gain: str, bias: bool, device: Any, dtype: Any) -> None:
        self.gain = gain
        for name, wanted in (("weight", gain != "none"), ("bias", bias)):
            self.register_parameter(
                name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None
            )
        self.reset_parameters()

    _own = own_parameter  # self.weight or self.bias without the half microsecond of attribute lookup

    def reset_parameters(self) -> None:
        """Parameters and running quantities as they were at construction."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.gain == "offset" else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def shape_of(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or any(n < 1 for n in shape):
        raise ValueError(f"normalized_shape must name at least one axis of at least one value, got {shape}")
    return shape
