"""What a run remembers of its optimizer and of its weights: advice that names them can be followed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def description_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """For run.json: ``optimizer`` (class, lr, weight_decay, decays_vectors) and ``weights`` ({dtype: how many})."""
    weights: dict[str, int] = {}
    for p in model.parameters():
        kind = str(p.dtype).removeprefix("torch.")
        weights[kind] = weights.get(kind, 0) + p.numel()
    found: dict[str, Any] = {"weights": weights}
    if optimizer is not None:
        groups = optimizer.param_groups
        decays = [float(g.get("weight_decay", 0) or 0) for g in groups]
        found["optimizer"] = {
            "class": type(optimizer).__name__, "lr": float(groups[0]["lr"]), "weight_decay": max(decays),
            # gains and biases are vectors
            "decays_vectors": any(d > 0 and any(p.dim() < 2 for p in g["params"]) for d, g in zip(decays, groups, strict=True)),
        }  # fmt: skip
    return found
