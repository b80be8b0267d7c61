"""What a norm's kernel is told besides its tensors: numbers and switches, one immutable tuple that forward hands to backward.

csrc reads them in the order of their fields. Making one takes longer than finding one that was made before: ``known_...``
does that, outside of traces (where a size may be a symbol, which cannot be looked up) and for sizes that recur.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from torch import Tensor

RowMode = Literal["layer", "rms", "scale"]
Form = Literal["tanh", "erf"]


def gain_of(offset_gain: bool) -> str:
    """In the reference's words. A function, because torch 2.5 cannot trace a property of a named tuple."""
    return "offset" if offset_gain else "direct"


class RowFacts(NamedTuple):
    """Of a norm over rows of ``width`` values; the statistic is that of the first ``partial`` of them (all, save for rms)."""

    mode: RowMode
    eps: float
    width: int
    partial: int
    offset_gain: bool = False
    round_before_gain: bool = False


class ResidualFacts(NamedTuple):
    """Of stream = alpha * x + dropout(branch) and the norm of each row of the stream."""

    mode: RowMode
    eps: float
    width: int
    offset_gain: bool
    round_before_gain: bool
    alpha: float
    drop: float
    seed: int

    @property
    def shared(self) -> bool:
        """Are the gradients of both summands one and the same?"""
        return self.alpha == 1 and self.drop == 0


class ColumnFacts(NamedTuple):
    """Of a norm with a statistic per group of channels: of each sample, or of all together if ``pooled``."""

    eps: float
    offset_gain: bool
    centered: bool
    channel: int
    groups: int
    pooled: bool

    def sets(self, x: Tensor) -> int:
        return 1 if self.pooled else x.shape[0]


known_row_facts = lru_cache(maxsize=1024)(RowFacts)
known_residual_facts = lru_cache(maxsize=1024)(ResidualFacts)
known_column_facts = lru_cache(maxsize=1024)(ColumnFacts)
