"""Operations counted: of a norm alone, and of a norm beside the matrices of a Transformer layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..._torch import TorchDispatchMode
from ...kernels import reference
from ...models import TransformerConfig, build
from .axes import drawn


class _Cells(TorchDispatchMode):
    """Counts the cells that every operator writes."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.cells += value.numel()
        return out


def _cells(batch: int, length: int, d: int) -> int:
    x, gain, bias = drawn(batch, length, d, seed=70), drawn(d, seed=71), drawn(d, seed=72)
    with _Cells() as counted:
        reference.row_norm(x, gain, bias, None, mode="layer", eps=1e-5, partial=d)
    return counted.cells


def linear() -> dict[str, float]:
    """How the cells that LayerNorm's formula writes grow when B, L or d is doubled: 1 is linear."""
    base = (8, 64, 256)

    def growth(axis: int) -> float:
        larger = tuple(2 * n if i == axis else n for i, n in enumerate(base))
        return math.log2(_cells(*larger) / _cells(*base))

    found = {f"growth_{name}": growth(i) for i, name in enumerate("BLd")}
    return {**found, "cells_per_value": _cells(*base) / math.prod(base)}


def share() -> dict[str, float]:
    """Operations of a layer of width 512: norms against matrices, and the part of the matrices that grows with the length's square."""
    d = 512
    found: dict[str, float] = {}
    per_value = linear()["cells_per_value"]
    for length in (64, 4096):
        config = TransformerConfig(dim=d, num_layers=1, num_heads=8, num_classes=2, max_length=length, vocab_size=2)
        with torch.device("meta"):
            model = build(config)
            with FlopCounterMode(display=False) as counter:
                model(torch.zeros(1, length, dtype=torch.long))
        total = float(counter.get_total_flops())
        products = 2 * 2 * length**2 * d  # queries by keys, weights by values
        found[f"norms_at_{length}"] = 2 * per_value * length * d / total
        found[f"square_at_{length}"] = products / total
    return found
