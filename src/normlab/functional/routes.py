"""Which way a call takes: the thin eager path, the registered ops, torch's own kernels, or the reference formulas."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import kernels
from .._torch import (
    LEVEL,
    are_transforms_active,
    dispatch_depth,
    forward_mode,
    graph_task_id,
    in_transform,
)
from ..kernels import cpu
from ..kernels.cpu import PLAIN


def route_of(op: str, x: Tensor) -> str:
    """ "eager", "graph", "torch" (another device) or "reference"."""
    if type(x) not in PLAIN or not kernels.choose_native(x):
        if not isinstance(x, Tensor):
            return "reference"  # the checks will say so
        kernel, _ = kernels.choose(op, x.device.type, x.dtype, x.shape, kernels.current_request(), cpu.missing)
        if kernel != "cpu":
            return kernel
        return "reference" if in_transform() and not is_compiling() else "graph"
    if is_compiling():
        return "graph"
    if are_transforms_active() or forward_mode[LEVEL] >= 0:
        return "reference"
    return "graph" if dispatch_depth() > 0 else "eager"


def route_of_all(op: str, x: Tensor, *others: Tensor | None) -> str:
    """The same for x and what comes with it: a tensor of another class may have no memory of its own for a kernel to read,
    and parameters may have a dtype (8 bits) that no kernel knows."""
    route = route_of(op, x)
    for t in others:
        if t is None or route in ("reference", "torch"):
            continue
        if t.dtype not in cpu.CODES and t.dtype is not torch.bool:
            kernel, _ = kernels.choose(op, t.device.type, t.dtype, t.shape, kernels.current_request(), cpu.missing)
            return kernel
        if route == "eager" and type(t) not in PLAIN:
            route = "graph"
    return route


def recomputing() -> bool:
    """Is this forward a recomputation inside a backward pass (activation checkpointing)? State has moved already then."""
    return not is_compiling() and graph_task_id() != -1
