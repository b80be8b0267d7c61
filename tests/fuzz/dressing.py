"""The tensors of a case: what each says, in the strange form it was drawn in, and as a dense copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import memory
from .cases import (
    GRAD,
    MASK,
    NOT_FLOATS,
    PARAMETER,
    RUNNING,
    Plan,
)

LAYOUTS = ("rows apart", "gaps", "permuted", "expanded", "overlapping")
COUNTER = "num_batches_tracked"


# ---- values ----------------------------------------------------------------------------------------------------------


def values(plan: Plan) -> dict[str, Any]:
    """What each tensor says, as ordinary dense tensors."""
    g = torch.Generator().manual_seed(plan.seed & 0x7FFFFFFF)
    found: dict[str, Any] = {}
    for role, (kind, shape) in plan.roles.items():
        if kind == MASK:
            t = torch.rand(shape, generator=g) < 0.7
        else:
            t = torch.randn(shape, generator=g, dtype=torch.float64)
            if role == "x":
                t = t * plan.scale[0] + plan.scale[1]
            elif kind == PARAMETER:
                t = t + 0.25
            elif role in ("running_var", "running_psi2"):
                t = t.abs() + 0.5
            t = t.to(plan.dtypes.get(role, plan.dtype))
        for name, owner in plan.twists:
            if owner == role and name in ("expanded", "overlapping"):  # cells that share memory share a value
                index = memory.cells(shape, _strides(plan, role, name)).flatten()
                shared = torch.zeros(int(index.max()) + 1, dtype=t.dtype)
                shared[index] = t.flatten()
                t = shared[index].view(shape)
            if owner == role and name == "tensor of no memory, all zero":
                t = torch.zeros_like(t)
            if owner == role and name == "no floating dtype":
                dtype = plan.random.choice(NOT_FLOATS)
                t = t.round().to(dtype)
        found[role] = t
    if plan.lengths:
        # of sequences from the start; a mask says the same
        found["lengths"] = found["mask"].sum(-1)
        found["mask"] = torch.arange(plan.roles["mask"][1][1]) < found["lengths"][:, None]
    if "mask" in found and plan.padding != "values":
        hole = float("nan") if plan.padding == "NaN" else float("inf")
        cell = ~found["mask"].unsqueeze(plan.channel) if plan.axes == 1 else ~found["mask"][..., None, None]
        for role, (kind, _) in plan.roles.items():
            if (kind == GRAD or role in ("x", "branch")) and not any(o == role for _, o in plan.twists):
                found[role] = torch.where(cell, torch.tensor(hole, dtype=found[role].dtype), found[role])
    if any(kind == RUNNING for kind, _ in plan.roles.values()):
        found[COUNTER] = torch.tensor(plan.random.choice((0, 5)))
    return found


def _strides(plan: Plan, role: str, name: str) -> list[int]:
    return memory.draw_strides(name, plan.roles[role][1], plan.random)


# ---- as drawn --------------------------------------------------------------------------------------------------------


def dress(plan: Plan, truth: dict[str, Any]) -> tuple[dict[str, Any], dict[str, memory.Placed]]:
    """The tensors as the case wants them, and the memory to look after."""
    made, kept = {}, {}
    for role, t in truth.items():
        if role in plan.roles and not (role == "mask" and plan.lengths):
            made[role] = _dressed(plan, role, t, [n for n, owner in plan.twists if owner == role], kept)
        elif role != "mask":
            made[role] = t.clone()
    if plan.lengths and "wrong size" in [n for n, owner in plan.twists if owner == "mask"]:
        made["lengths"] = made["lengths"] + plan.roles["mask"][1][1] + 1
    return made, kept


def _dressed(plan: Plan, role: str, t: Tensor, twists: list[str], kept: dict[str, memory.Placed]) -> Any:
    r = plan.random
    place = plan.places[role]
    if "no tensor" in twists:
        return r.choice((None, 3.0, [1.0])) if role != "mask" else r.choice((3.0, [True]))
    if "wrong dtype" in twists:
        return t.to(torch.int64 if role == "x" else torch.float32 if t.dtype != torch.float32 else torch.float64)
    if "wrong size" in twists:
        t = other_size(t, r)
    if "storage resized to nothing" in twists or "upstream gradient without storage" in twists:
        return memory.without_storage(t)
    if "storage a byte too short" in twists:
        return memory.short_storage(t)
    if "on the meta device" in twists:
        return t.to("meta")
    if "tensor of no memory, all zero" in twists:
        return torch._efficientzerotensor(t.shape, dtype=t.dtype)
    if "sparse" in twists:
        return t.to_sparse()
    layout = next((n for n in twists if n in LAYOUTS), "dense")
    shape = tuple(t.shape)
    strides = memory.draw_strides(layout, shape, plan.random)
    if "imaginary part of a conjugate" in twists:
        kept[role] = memory.Placed(torch.complex(torch.randn_like(t), -t), strides, place)
        made = kept[role].tensor.conj().imag
    elif "negative bit" in twists:
        kept[role] = memory.Placed(-t, strides, place)
        made = torch._neg_view(kept[role].tensor)
    elif "bytes other than 0 and 1" in twists:
        byte = torch.tensor([2, 4, 128, 255], dtype=torch.uint8)[torch.arange(t.numel()) % 4].view(t.shape)
        kept[role] = memory.Placed(torch.where(t, byte, 0).to(torch.uint8), strides, place)
        made = kept[role].tensor.view(torch.bool)
    else:
        kept[role] = memory.Placed(t, strides, place)
        made = kept[role].tensor
    if "subclass" in twists:
        made = made.as_subclass(memory.Named)
    if "wrapper subclass" in twists or "upstream gradient a wrapper subclass" in twists:
        made = memory.Wrapped(made)
    if "made in inference mode" in twists:
        with torch.inference_mode():
            made = made.clone()
    return made


def other_size(t: Tensor, r: Any) -> Tensor:
    flat = t.flatten()
    n = flat.numel()
    sizes = [s for s in (0, 1, n - 1, n + 1, 2 * n, 3) if s != n and s >= 0]
    size = r.choice(sizes)
    return torch.cat([flat] * (size // max(n, 1) + 1))[:size] if n else torch.ones(3, dtype=t.dtype)


def dense_copies(
    truth: dict[str, Any], double: bool = False, move: dict[str, float] | None = None, seed: int = 7
) -> dict[str, Any]:
    """``move``: by how much, relative to its size, each value of a role is moved up or down."""
    found = {}
    for role, t in truth.items():
        t = t.clone()
        if double and (t.is_floating_point() or t.is_complex()):
            t = t.double() if not t.is_complex() else t.to(torch.complex128)
        if move and move.get(role):
            sign = torch.randint(0, 2, t.shape, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1
            t = t * (1 + move[role] * sign)
        found[role] = t
    return found
