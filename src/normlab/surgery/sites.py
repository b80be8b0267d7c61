"""Where something is in a model, and the facts that a formula needs of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

EPS_FORMS = ("root", "outside", "clamp")  # 1 / sqrt(square + eps), 1 / (sqrt(square) + eps), 1 / max(norm, eps)
# Which square: the sum of squares over the width, over one, over the width less one. The last two are another multiple of the mean at each width.
SQUARES = ("mean", "sum", "unbiased")


def mean_per_square(square: str, width: int) -> float:
    """sqrt(mean square / square) of ``width`` values, for one of SQUARES.

    >>> mean_per_square("sum", 16)
    0.25
    """
    return {"mean": 1.0, "sum": width**-0.5, "unbiased": ((width - 1) / width) ** 0.5}[square]


@dataclass(frozen=True)
class NormSite:
    """A norm in a model: where, what kind, and the facts a formula needs.

    The gain multiplies what has unit variance (unit mean square where no mean is removed):
    ``gain_scale * weight``, or ``gain_scale * (1 + weight)`` where ``gain`` is "offset". Where the module takes any width, ``square`` may
    be another than the mean: gain and eps then belong to that one, and :meth:`at` gives them for the width that is seen.
    """

    name: str
    module: nn.Module
    kind: str  # a name from NORMS
    gain: str = "direct"  # none, direct, offset
    eps: float = 1e-5
    channel_dim: int = -1  # where the features are
    gain_name: str | None = "weight"  # of the parameter, as the module calls it; None: there is no gain
    bias_name: str | None = None
    gain_scale: float = 1.0
    eps_form: str = "root"
    groups: int | None = None  # of channels, for kind "group"
    axes: int = 1  # how many trailing axes share a statistic, for kinds layer and rms
    square: str = "mean"  # one of SQUARES

    @property
    def weight(self) -> Tensor | None:
        return None if self.gain_name is None else getattr(self.module, self.gain_name)

    @property
    def bias(self) -> Tensor | None:
        return None if self.bias_name is None else getattr(self.module, self.bias_name)

    @torch.no_grad()
    def factor(self) -> Tensor | None:
        """The gain as it multiplies, in float32 and in the parameter's shape; without one the constant alone. None: there is neither.

        >>> NormSite("n", nn.LayerNorm(2), "layer", "offset").factor()
        tensor([2., 2.])
        """
        weight = self.weight
        if weight is None:
            return None if self.gain_scale == 1 else torch.tensor(self.gain_scale)
        gain = weight.detach().float()
        gain = gain + 1 if self.gain == "offset" else gain
        return gain if self.gain_scale == 1 else gain * self.gain_scale

    def at(self, width: int) -> NormSite:
        """The same formula at this width, in terms of the mean square.

        >>> unit = NormSite("n", nn.Identity(), "scale", "none", 1e-6, gain_name=None, square="sum")
        >>> unit.at(16).gain_scale, unit.at(16).eps
        (0.25, 6.25e-08)
        """
        if self.square == "mean":
            return self
        share = mean_per_square(self.square, width)
        power = {"root": 2, "outside": 1, "clamp": 0}[self.eps_form]  # what eps is added to; a bound is one of |x|
        return replace(self, gain_scale=self.gain_scale * share, eps=self.eps * share**power, square="mean")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "gain": self.gain, "eps": self.eps, "eps_form": self.eps_form,
            "channel_dim": self.channel_dim, "gain_name": self.gain_name, "bias_name": self.bias_name,
            "gain_scale": self.gain_scale, "groups": self.groups, "axes": self.axes, "square": self.square,
        }  # fmt: skip


# What can be said of it all the same: by its answers it is a norm, of which not all facts are known; it is a norm with a gate; it scales
# and shifts, and normalizes nothing.
NATURES = ("unknown", "norm", "gated", "linear")


@dataclass(frozen=True)
class UnknownSite:
    """What is called a norm, or is built like one, and answers as no formula does."""

    name: str
    module: nn.Module
    reason: str
    nature: str = "unknown"  # one of NATURES

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "class": type(self.module).__name__, "reason": self.reason}


@dataclass(frozen=True)
class BlockSite:
    """One element of a stack of alike modules."""

    name: str
    module: nn.Module
    depth: int  # from 0
    stack: str  # the list it belongs to
