"""What running statistics cost: the loss in evaluation under them, and under the statistics of the batch at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .. import surgery
from .untouched import Loss, NothingToAsk, number, untouched


@dataclass(frozen=True, kw_only=True)
class StatisticsGap:
    """The loss of one model in evaluation under both kinds of statistics."""

    running: float
    batch: float
    norms: int  # that have running statistics

    @property
    def gap(self) -> float:
        """running - batch: above 0 the running statistics do harm."""
        return self.running - self.batch


def statistics_gap(model: nn.Module, loss: Loss) -> StatisticsGap:
    """The loss in evaluation mode, and the same with every norm that has running statistics in training mode.

    Only those norms are switched, so dropout stays off. ``loss(model)`` decides how large a batch is whose statistics count.
    The model leaves bit for bit as it came, its running statistics included.

    >>> norm = nn.BatchNorm1d(1)
    >>> found = statistics_gap(norm, lambda m: m(torch.tensor([[4.0], [6.0]])).mean())
    >>> round(found.running, 3), round(abs(found.batch), 3), found.norms
    (5.0, 0.0, 1)
    """
    norms = [site.module for site in surgery.find_norms(model) if _has_running(site.module)]
    if not norms:
        raise NothingToAsk("no norm of this model has running statistics: batch and power norms have")
    with torch.no_grad():
        with untouched(model):
            running = number(loss(model.eval()))
        with untouched(model):
            model.eval()
            for norm in norms:
                norm.train()
            batch = number(loss(model))
    return StatisticsGap(running=running, batch=batch, norms=len(norms))


def _has_running(module: nn.Module) -> bool:
    return any(getattr(module, name, None) is not None for name in ("running_mean", "running_psi2"))
