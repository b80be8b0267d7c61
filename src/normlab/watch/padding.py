"""Padding that no argument tells of: seen in the inputs themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def inferred(values: Iterable[Any]) -> Tensor | None:
    """(B, L), True = real: of the first integers (B, L) whose rows end in runs of one and the same number, of different lengths;
    or of the first vectors (B, L, d) whose rows end in zeros. None where nothing looks padded.

    A quarter of the rows must end in three or more, so that texts which happen to end alike are not taken for padded.
    """
    for value in values:
        if not isinstance(value, Tensor) or value.dim() not in (2, 3) or value.is_nested or value.shape[1] < 4:
            continue
        if value.dim() == 2 and not value.is_floating_point() and value.dtype != torch.bool:
            filler = value[:, -1].mode().values
            pad = value == filler
        elif value.dim() == 3 and value.is_floating_point():
            pad = (value == 0).all(-1)
        else:
            continue
        trailing = pad.flip(1).cumprod(1).flip(1).bool()
        lengths = trailing.sum(1)
        if (lengths >= 3).float().mean() >= 0.25 and len(lengths.unique()) > 1 and lengths.max() < value.shape[1]:
            return ~trailing
    return None
