"""Questions put to a model that take more than looking: run it again, changed, and compare. It leaves as it came.

untouched    a model that is asked anything and comes back bit for bit
covariate    how much a layer's gradient changes because those below it moved (internal covariate shift)
smoothness   the loss and its gradient along a training step
blocks       the loss without a block; with two neighbours side by side
statistics   the loss under running and under batch statistics
states       what goes into and out of each norm in one forward
similarity   which tokens are alike before and after a norm
position     can a token's position be read from its state?

A probe of the watch looks at a training step that happens anyway; an assay makes forwards, backwards and steps of its own.
Every one takes the model and a function that runs it (``loss(model)``), so models and losses of any kind will do.
"""

from __future__ import annotations

from .blocks import BlockEffect, block_drop, parallel_blocks
from .covariate import LayerShift, covariate_shift
from .position import PositionProbe, position_probe
from .similarity import SNAPSHOT_TOKENS, Cloud, TokenSimilarity, token_similarity
from .smoothness import Smoothness, smoothness
from .states import NormStates, norm_states
from .statistics import StatisticsGap, statistics_gap
from .untouched import NothingToAsk, untouched

__all__ = [
    "SNAPSHOT_TOKENS",
    "BlockEffect",
    "Cloud",
    "LayerShift",
    "NormStates",
    "NothingToAsk",
    "PositionProbe",
    "Smoothness",
    "StatisticsGap",
    "TokenSimilarity",
    "block_drop",
    "covariate_shift",
    "norm_states",
    "parallel_blocks",
    "position_probe",
    "smoothness",
    "statistics_gap",
    "token_similarity",
    "untouched",
]
