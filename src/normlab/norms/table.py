"""The table of norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import Table
from .base import Norm
from .batch import BatchNorm
from .channels import GroupNorm, InstanceNorm
from .pointwise import Derf, DyT
from .power import PowerNorm
from .rows import LayerNorm, RMSNorm, ScaleNorm


@dataclass(frozen=True, kw_only=True)
class NormFacts:
    """One row of NORMS: what a norm is, without its code."""

    layer: type[Norm]
    formula: str
    shares: str  # which cells share a statistic
    paper: str
    year: int
    advice: str


NORMS: Table[NormFacts] = Table("norm", {
    "layer": NormFacts(layer=LayerNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="the features of one token", paper="1607.06450", year=2016, advice="the default of most Transformers"),
    "rms": NormFacts(layer=RMSNorm, formula="x / sqrt(mean(x^2) + eps) * w", shares="the features of one token", paper="1910.07467", year=2019, advice="LayerNorm without the mean: cheaper, as good in language models"),
    "scale": NormFacts(layer=ScaleNorm, formula="w * x / max(|x|, eps)", shares="the features of one token", paper="1910.05895", year=2019, advice="one gain for the whole vector"),
    "batch": NormFacts(layer=BatchNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="one channel of all samples and positions", paper="1502.03167", year=2015, advice="images and large batches; on text it needs masks and steady statistics"),
    "instance": NormFacts(layer=InstanceNorm, formula="(x - mean) / sqrt(var + eps)", shares="one channel of one sample", paper="1607.08022", year=2016, advice="style of single images; refuses causal models"),
    "group": NormFacts(layer=GroupNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="a group of channels of one sample", paper="1803.08494", year=2018, advice="images with small batches"),
    "power": NormFacts(layer=PowerNorm, formula="x / running sqrt(mean(x^2)) * w + b", shares="one channel of all samples and positions", paper="2003.07845", year=2020, advice="BatchNorm for text, with running statistics in training"),
    "dyt": NormFacts(layer=DyT, formula="w * tanh(alpha x) + b", shares="nothing", paper="2503.10622", year=2025, advice="no statistics; tune alpha_init"),
    "derf": NormFacts(layer=Derf, formula="w * erf(alpha x + s) + b", shares="nothing", paper="2512.10938", year=2025, advice="DyT with erf; no statistics"),
})  # fmt: skip


def make_norm(norm: str, dim: int, **options: Any) -> nn.Module:
    """A norm by name, for a stream of width ``dim``; GroupNorm takes up to 32 groups of at least 4 channels (a power of two that divides ``dim``) unless told.

    >>> make_norm("rms", 8, eps=1e-6)
    RMSNorm((8,), eps=1e-06, gain='direct', partial=None)
    """
    layer: Any = NORMS[norm].layer
    if layer is GroupNorm:
        groups = math.gcd(dim, 32)
        while groups > 1 and dim // groups < 4:  # one or two channels of a token have no spread, only signs
            groups //= 2
        return GroupNorm(options.pop("num_groups", groups), dim, **options)
    return layer(dim, **options)
