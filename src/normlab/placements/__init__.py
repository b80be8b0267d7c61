"""Where a norm sits around the residual, as data.

A placement is an object with ``forward(x, sublayer)``: it holds its norms and a :class:`Residual` that only adds, and
knows nothing about the sub-layer but that it maps the stream to a branch. It receives a norm *factory*, so any norm can
stand in any place; what depends on depth comes from its :class:`Slot`. What happens before the first and after the last
sub-layer of a stack (final norm, second stream) is :class:`Ends`: ``enter`` and ``leave``. Some placements also want
something inside the sub-layer; ``inside`` says what. How the matrices start is a function per placement, usable on any
model. PLACEMENTS lists them all.

In the drawings time runs to the right, S is the sub-layer, N a norm and ``+`` a residual sum.
"""

from __future__ import annotations

from .base import NoNorm, Placement, ReZero
from .ends import DualEnds, Ends, FinalNorm, NormedEnds
from .initialization import (
    PARTS,
    admin_scale,
    b2t_init,
    deepnorm_init,
    deepnorm_scales,
    plain_init,
    scaled_init,
    subln_gain,
    subln_init,
)
from .mixed import HybridNorm, MixNorm
from .post import B2T, Admin, DeepNorm, PostNorm, ResidualDual
from .pre import LayerNormScaling, NormFormer, PeriNorm, PreNorm, ReorderedNorm, SandwichNorm, SubNorm
from .residual import (
    Dual,
    FromBottom,
    Inside,
    NormFactory,
    Pending,
    Residual,
    Slot,
    Stream,
    Sublayer,
    apply_norm,
    reset_inside,
    settled,
)
from .table import PLACEMENTS, PlacementFacts

__all__ = [
    "B2T",
    "PARTS",
    "PLACEMENTS",
    "Admin",
    "DeepNorm",
    "Dual",
    "DualEnds",
    "Ends",
    "FinalNorm",
    "FromBottom",
    "HybridNorm",
    "Inside",
    "LayerNormScaling",
    "MixNorm",
    "NoNorm",
    "NormFactory",
    "NormFormer",
    "NormedEnds",
    "Pending",
    "PeriNorm",
    "Placement",
    "PlacementFacts",
    "PostNorm",
    "PreNorm",
    "ReZero",
    "ReorderedNorm",
    "Residual",
    "ResidualDual",
    "SandwichNorm",
    "Slot",
    "Stream",
    "SubNorm",
    "Sublayer",
    "admin_scale",
    "apply_norm",
    "b2t_init",
    "deepnorm_init",
    "deepnorm_scales",
    "plain_init",
    "reset_inside",
    "scaled_init",
    "settled",
    "subln_gain",
    "subln_init",
]
