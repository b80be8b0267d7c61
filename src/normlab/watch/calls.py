"""What hooks ask about the call they see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch import graph_task_id
from ..placements import Residual


def first_given(args: Any, kwargs: Any) -> Any:
    """The first argument, by place or by name."""
    return args[0] if args else next(iter(kwargs.values()), None)


def drops(residual: Residual) -> bool:
    return residual.dropout > 0 and residual.training


def recomputing() -> bool:
    """Inside a backward pass a forward is a recomputation (activation checkpointing)."""
    return graph_task_id() != -1


def running_statistics(module: Any) -> tuple[Tensor, Tensor] | None:
    """Running mean and variance; of a PowerNorm, zero and its mean square."""
    if getattr(module, "running_psi2", None) is not None:
        return torch.zeros_like(module.running_psi2), module.running_psi2
    if getattr(module, "running_mean", None) is not None:
        return module.running_mean, module.running_var
    return None
