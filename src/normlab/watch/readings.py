"""Numbers on their way from the device to the run: a step's values in one copy, losses in few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..runs import Writer
from ..surgery import BlockSite

Values = dict[str, dict[str, Any]]  # quantity: site: a scalar, on the device or not
MOST_WAITING = 1000  # losses, before they are written between recorded steps


class Losses:
    """They wait on the device until a recorded step; then one line each."""

    def __init__(self, writer: Writer | None) -> None:
        self.writer = writer
        self.waiting: list[tuple[int, Any]] = []

    def add(self, step: int, loss: Any) -> None:
        self.waiting.append((step, loss.detach() if isinstance(loss, Tensor) else float(loss)))
        if len(self.waiting) >= MOST_WAITING:
            self.flush()

    def flush(self) -> float | None:
        """Write them; the last."""
        losses, self.waiting = self.waiting, []
        if not losses or self.writer is None:
            return None
        on_device = [v for _, v in losses if isinstance(v, Tensor)]
        numbers = iter(torch.stack([v.double().reshape(()) for v in on_device]).tolist() if on_device else [])
        number = math.nan
        for step, value in losses:
            number = next(numbers) if isinstance(value, Tensor) else value
            self.writer.write(step, {"loss": {"model": number}})
        return number


def per_stack(values: Values, blocks: Sequence[BlockSite]) -> None:
    """Add what only all blocks of a stack together can tell: effective depth and growth of the stream."""
    for stack in dict.fromkeys(block.stack for block in blocks):
        names = [block.name for block in blocks if block.stack == stack]
        site = "model" if len(names) == len(blocks) else stack
        angles = [values["angle"][n] for n in names if n in values.get("angle", {})]
        if len(angles) > 1:
            turns = torch.stack(angles).float()
            values.setdefault("effective_depth", {})[site] = turns.sum() ** 2 / (turns.square().sum() + 1e-30)
        sizes = [values["stream_rms"][n] for n in names if n in values.get("stream_rms", {})]
        if len(sizes) > 1:
            values.setdefault("stream_growth", {})[site] = sizes[-1] / (sizes[0] + 1e-30)


def to_host(values: Sequence[Any], device: torch.device, processes: int) -> list[float]:
    """All scalars in one copy; over several processes, their mean."""
    if not values:
        return []
    stacked = _stacked(values, device)
    if processes > 1:
        count = torch.tensor([len(values)], device=device)
        counts = [torch.zeros_like(count) for _ in range(processes)]
        dist.all_gather(counts, count)
        if all(int(c) == len(values) for c in counts):
            dist.all_reduce(stacked)
            stacked /= processes
    return stacked.tolist()


@torch.no_grad()
def _stacked(values: Sequence[Any], device: torch.device) -> Tensor:
    """In float64. What lies on the device as a float32 scalar already, and that is nearly all, needs one operator together."""
    ready = [
        isinstance(v, Tensor) and v.dtype == torch.float32 and v.dim() == 0 and v.device.type == device.type
        for v in values
    ]
    parts = [torch.stack([v for v, yes in zip(values, ready, strict=True) if yes]).double()] if any(ready) else []
    if all(ready):
        return parts[0]
    parts += [
        torch.as_tensor(v, device=device).double().reshape(1) for v, yes in zip(values, ready, strict=True) if not yes
    ]
    order = [i for i, yes in enumerate(ready) if yes] + [i for i, yes in enumerate(ready) if not yes]
    back = torch.tensor(sorted(range(len(order)), key=order.__getitem__), device=device)
    return torch.cat(parts)[back]
