"""One training of the corpus: a model, its batches, an optimizer, and what is done to it on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab

Batch = tuple[dict[str, Any], Tensor]


def adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr)


@dataclass
class Trial:
    """A healthy training, until a plant changes it."""

    model: nn.Module
    batch: Callable[[int], Batch]  # of step 1, 2, ...: keyword arguments of the model, targets (-100: not asked)
    lr: float = 3e-3
    steps: int = 120
    causal: bool = False
    optimizer: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer] = adamw
    schedule: Callable[[int], float] | None = None  # step -> factor of the rate
    clip: float | None = None
    micro_batches: int = 1
    autocast: bool = False
    clears: bool = True  # gradients, before each step
    before: Callable[[int], None] = lambda step: None
    expected_site: str | None = None  # where a finding must point, if the fault has a place
    expected_step: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def loss(self, step: int) -> Tensor:
        inputs, targets = self.batch(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            output = self.model(**inputs)
        logits = output if isinstance(output, Tensor) else output.logits
        return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())

    def run(self, folder: Path, **options: Any) -> Path:
        """``options`` go to the watch. What a user would do: attach, train, close."""
        optimizer = self.optimizer([p for p in self.model.parameters() if p.requires_grad], self.lr)
        if self.causal:
            options["leaks"] = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch = normlab.watch(self.model, optimizer=optimizer, out=folder, **options)
            for step in range(1, self.steps + 1):
                if self.schedule is not None:
                    for group in optimizer.param_groups:
                        group["lr"] = self.lr * self.schedule(step)
                with torch.no_grad():
                    self.before(step)
                if self.clears:
                    optimizer.zero_grad()
                for part in range(self.micro_batches):
                    loss = self.loss(self.micro_batches * (step - 1) + part + 1) / self.micro_batches
                    loss.backward()
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                optimizer.step()
                watch.step(loss=loss * self.micro_batches)
            watch.close()
        return folder
