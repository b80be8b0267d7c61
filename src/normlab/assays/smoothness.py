"""How smooth the loss is along the step that training takes: range of the loss, change of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .untouched import Loss, differentiable, trainable, untouched, update_of

FACTORS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)


@dataclass(frozen=True, kw_only=True)
class Smoothness:
    """The loss and its gradient at W + factor * step, for each factor."""

    loss: float  # at W
    gradient: float  # |dL/dW| at W
    step: float  # length of the step
    factors: tuple[float, ...]
    losses: tuple[float, ...]
    changes: tuple[float, ...]  # |dL/dW there - dL/dW at W|

    @property
    def loss_range(self) -> float:
        """Largest minus smallest loss along the step, W itself not included."""
        return max(self.losses) - min(self.losses)

    @property
    def gradient_change(self) -> float:
        """The largest change of the gradient along the step."""
        return max(self.changes)

    @property
    def beta(self) -> float:
        """Effective smoothness: the largest change of the gradient over the distance it was met at."""
        reached = (c / (f * self.step) for c, f in zip(self.changes, self.factors, strict=True))
        return max(reached) if self.step > 0 else 0.0


def smoothness(
    model: nn.Module,
    loss: Loss,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    lr: float | None = None,
    factors: Sequence[float] = FACTORS,
) -> Smoothness:
    """Walk along one training step of the batch that ``loss(model)`` is computed of, and look at the loss on the way.

    The step is ``optimizer``'s, or -lr * gradient; ``factors`` of it are tried. Dropout and injected noise draw the same
    numbers at every stop, running statistics start from the same values. Model and optimizer leave bit for bit as they came.
    Santurkar et al. 2018 (arXiv 1805.11604) walk along the gradient with factors 0.5 to 4 of the rate.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> with torch.no_grad(): _ = line.weight.fill_(1.0)
    >>> found = smoothness(line, lambda m: m.weight.square().sum(), lr=0.25, factors=(1.0, 2.0))
    >>> found.losses, found.beta  # w = 1 - factor / 2, and the second derivative is 2
    ((0.25, 0.0), 2.0)
    """
    factors = tuple(float(f) for f in factors)
    if not factors or any(not f > 0 for f in factors):
        raise ValueError(f"factors of the step must be above 0, got {factors}")
    with untouched(model, optimizer):
        with untouched(model, optimizer):
            grads, changes, value = update_of(model, loss, optimizer, lr)
        parameters = trainable(model)
        losses, moves = [], []
        for factor in factors:
            with untouched(model):
                with torch.no_grad():
                    for p, change in zip(parameters, changes, strict=True):
                        p.add_(change, alpha=factor)
                there = differentiable(loss(model))
                after = torch.autograd.grad(there, parameters, allow_unused=True)
                losses.append(float(there.detach()))
                moved = [g if h is None else h - g for g, h in zip(grads, after, strict=True)]
                moves.append(_length(moved))
    return Smoothness(
        loss=float(value), gradient=_length(grads), step=_length(changes), factors=factors,
        losses=tuple(losses), changes=tuple(moves),
    )  # fmt: skip


def _length(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([t.detach().double().square().sum() for t in tensors]).sum().sqrt())
