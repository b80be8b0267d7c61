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
        self._ends: dict[str, tuple[Tensor, ...]] = {}  # of each block's output: its lowest and its highest value
        self._frames: deque[dict[str, Any]] = deque(maxlen=FRAMES)
        self._over = False

    def begin(self) -> None:
        self._ends = {}

    def note(self, block: str, output: Any) -> None:
        """On every step: as few operators as it takes; :func:`largest` is computed when it is asked for."""
        found = ends(output)
        if found:
            self._ends[block] = found

    def step(self, step: int, loss: Any, active: bool) -> dict[str, Any] | None:
        if loss is None or self._over:
            return None
        value = loss.detach() if isinstance(loss, Tensor) else float(loss)
        self._frames.append({"step": step, "loss": value, "blocks": self._ends})
        self._ends = {}  # a compiled model has no hooks on idle steps to renew it
        if isinstance(value, Tensor) and value.is_cuda and not active:
            return None  # no copy to the host on idle steps
        if math.isfinite(float(value)):
            return None
        self._over = True
        frames = [
            {"step": f["step"], "loss": encode(float(f["loss"])),
             "largest": {name: encode(largest(v)) for name, v in f["blocks"].items()}}
            for f in self._frames
        ]  # fmt: skip
        first = next((name for name, v in frames[-1]["largest"].items() if isinstance(v, str)), None)
        return {"site": first, "frames": frames}


def carrier(value: Any) -> Tensor | None:
    """The tensor whose gradient is the gradient of the stream."""
    if isinstance(value, Pending):  # x also feeds the branch, so its gradient is not that of the sum
        return value.x if value.branch is None else value.branch
    if isinstance(value, Tensor):
        # Nested tensors (torch's fast path in evaluation) have no extremes, neither has what an expert without tokens returns.
        return value if value.is_floating_point() and not value.is_nested and value.numel() else None
    return carrier(value[0]) if isinstance(value, (tuple, list)) and value else None


def ends(value: Any) -> tuple[Tensor, ...]:
    """Lowest and highest value, of both parts of an open sum; NaN if there is one; none where there is nothing to look at. (The
    maximum norm of linalg takes ten times as long on a CPU.)"""
    if isinstance(value, Pending) and value.branch is not None:
        return (*torch.aminmax(value.x.detach()), *torch.aminmax(value.branch.detach()))
    found = carrier(value)
    return () if found is None else torch.aminmax(found.detach())


def largest(ends: tuple[Tensor, ...]) -> float:
    """Largest absolute value; NaN if there is one."""
    sizes = [abs(float(end)) for end in ends]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes)
