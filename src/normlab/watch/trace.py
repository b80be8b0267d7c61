"""What led up to a non-finite loss: each block's largest value over the last steps."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from ..placements import Pending
from ..runs import encode

FRAMES = 16  # steps the trace goes back


class Trace:
    """``note`` after each block, ``step`` after each step; once, the event of the first loss that is not finite."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}
        self._frames: deque[dict[str, Any]] = deque(maxlen=FRAMES)
        self._over = False

    def begin(self) -> None:
        self._largest = {}

    def note(self, block: str, output: Any) -> None:
        self._largest[block] = largest(output)

    def step(self, step: int, loss: Any, active: bool) -> dict[str, Any] | None:
        if loss is None or self._over:
            return None
        value = loss.detach() if isinstance(loss, Tensor) else float(loss)
        self._frames.append({"step": step, "loss": value, "blocks": self._largest})
        self._largest = {}  # a compiled model has no hooks on idle steps to renew it
        if isinstance(value, Tensor) and value.is_cuda and not active:
            return None  # no copy to the host on idle steps
        if math.isfinite(float(value)):
            return None
        self._over = True
        frames = [
            {"step": f["step"], "loss": encode(float(f["loss"])),
             "largest": {name: encode(float(v)) for name, v in f["blocks"].items()}}
            for f in self._frames
        ]  # fmt: skip
        first = next((name for name, v in frames[-1]["largest"].items() if isinstance(v, str)), None)
        return {"site": first, "frames": frames}


def carrier(value: Any) -> Tensor | None:
    """The tensor whose gradient is the gradient of the stream."""
    if isinstance(value, Pending):  # x also feeds the branch, so its gradient is not that of the sum
        return value.x if value.branch is None else value.branch
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    return carrier(value[0]) if isinstance(value, (tuple, list)) and value else None


def largest(value: Any) -> Tensor:
    """Largest absolute value; NaN if there is one. (The maximum norm of linalg takes ten times as long on a CPU.)"""
    if isinstance(value, Pending) and value.branch is not None:
        return torch.maximum(largest(value.x), largest(value.branch))
    found = carrier(value)
    assert found is not None
    low, high = torch.aminmax(found.detach())
    return torch.maximum(high, -low)
