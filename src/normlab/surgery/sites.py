"""Where something is in a model, and the facts that a formula needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

EPS_FORMS = ("root", "outside", "clamp")  # 1 / sqrt(square + eps), 1 / (sqrt(square) + eps), 1 / max(norm, eps)


@dataclass(frozen=True)
class NormSite:
    """A norm in a model: where, what kind, and the facts a formula needs.

    The gain multiplies what has unit variance (unit mean square where no mean is removed):
    ``gain_scale * weight``, or ``gain_scale * (1 + weight)`` where ``gain`` is "offset".
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

    @property
    def weight(self) -> Tensor | None:
        return None if self.gain_name is None else getattr(self.module, self.gain_name)

    @property
    def bias(self) -> Tensor | None:
        return None if self.bias_name is None else getattr(self.module, self.bias_name)

    @torch.no_grad()
    def factor(self) -> Tensor | None:
        """The gain as it multiplies, in float32 and in the parameter's shape; None: there is none.

        >>> NormSite("n", nn.LayerNorm(2), "layer", "offset").factor()
        tensor([2., 2.])
        """
        weight = self.weight
        if weight is None:
            return None
        gain = weight.detach().float()
        gain = gain + 1 if self.gain == "offset" else gain
        return gain if self.gain_scale == 1 else gain * self.gain_scale

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "gain": self.gain, "eps": self.eps, "eps_form": self.eps_form,
            "channel_dim": self.channel_dim, "gain_name": self.gain_name, "bias_name": self.bias_name,
            "gain_scale": self.gain_scale, "groups": self.groups, "axes": self.axes,
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
