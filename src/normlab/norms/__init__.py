"""The layers: torch.nn's constructor and parameter names, masks, and the norms torch lacks.

A norm is a formula plus facts: ``weight`` and ``bias`` are the parameter names (so torch checkpoints load), ``gain`` is
"none", "direct" (starts at 1) or "offset" (starts at 0, used as 1 + weight), ``round_before_gain`` says whether a 16-bit
result is rounded before the gain is applied or after. Every layer takes ``mask`` (bool, True = real) or ``lengths``;
padding never enters a statistic and comes out as zero. NORMS lists them all.
"""

from __future__ import annotations

from .base import Lengths, Norm
from .batch import BatchNorm
from .channels import GroupNorm, InstanceNorm
from .noisy import NoisyNorm
from .pointwise import Derf, DyT
from .power import PowerNorm
from .residual import ResidualNorm
from .rows import LayerNorm, RMSNorm, ScaleNorm
from .table import NORMS, NormFacts, make_norm

__all__ = [
    "NORMS",
    "BatchNorm",
    "Derf",
    "DyT",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "Lengths",
    "NoisyNorm",
    "Norm",
    "NormFacts",
    "PowerNorm",
    "RMSNorm",
    "ResidualNorm",
    "ScaleNorm",
    "make_norm",
]
