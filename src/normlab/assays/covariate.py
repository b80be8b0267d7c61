"""Internal covariate shift as Santurkar et al. measure it: how much a layer's gradient changes because those below it moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import surgery
from .order import first_use
from .untouched import Loss, NothingToAsk, differentiable, trainable, untouched, update_of


@dataclass(frozen=True, kw_only=True)
class LayerShift:
    """Of one layer: g its gradient, g' its gradient once the layers below have made their step and it has not."""

    layer: str
    distance: float  # |g' - g|
    gradient: float  # |g|
    cosine: float  # between g' and g: 1 where the others' steps change nothing; 0 where one of them vanishes

    @property
    def relative(self) -> float:
        """distance / gradient."""
        return self.distance / self.gradient if self.gradient > 0 else 0.0


def covariate_shift(
    model: nn.Module,
    loss: Loss,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    lr: float | None = None,
    layers: Mapping[str, nn.Module] | None = None,
    redraw: bool = False,
) -> list[LayerShift]:
    """For every layer: |g' - g|, g = dL/dW_l at the weights as they are, g' the same after the layers below have moved.

    ``loss(model)`` computes the loss of one batch, in the mode the model is in. The step is ``optimizer``'s, or a plain
    gradient step of rate ``lr``. ``layers`` (default: the blocks, see :func:`normlab.find_blocks`) are taken in the order in
    which a forward comes to them; below a layer is every parameter used before its first one, embeddings included.
    Dropout and injected noise draw the same numbers for g and g'; with ``redraw=True`` they draw anew, and the shift is
    what the next step's noise adds to it. Model and optimizer leave bit for bit as they came.
    Definition 2.1 of Santurkar et al. 2018 (arXiv 1805.11604).

    >>> model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    >>> x = torch.ones(2, 3)
    >>> [s.layer for s in covariate_shift(model, lambda m: m(x).square().sum(), lr=0.1)]
    ['0', '1']
    """
    if layers is None:
        layers = {block.name: block.module for block in surgery.find_blocks(model)}
    if not layers:
        raise NothingToAsk("no blocks were found in the model; name its layers: layers={name: module}")
    with untouched(model, optimizer):
        with untouched(model):
            used = first_use(model, lambda: loss(model))
        evaluate = _evaluator(model, loss, redraw)
        grads, changes, _ = update_of(model, loss, optimizer, lr)
        of = {p: (g, c) for p, g, c in zip(trainable(model), grads, changes, strict=True)}
        ordered = sorted(
            ((name, [p for p in module.parameters() if p in of]) for name, module in layers.items()),
            key=lambda entry: min((used[p] for p in entry[1]), default=0),
        )
        moved: set[nn.Parameter] = set()
        found = []
        for name, own in ordered:
            if not own:
                continue
            start = min(used[p] for p in own)
            with torch.no_grad():
                for p, (_, change) in of.items():
                    if used[p] < start and p not in moved:
                        p.add_(change)
                        moved.add(p)
            found.append(_shift(name, [of[p][0] for p in own], evaluate(own)))
    return found


def _evaluator(model: nn.Module, loss: Loss, redraw: bool) -> Callable[[list[nn.Parameter]], list[Tensor]]:
    """parameters -> their gradient. Buffers and random numbers start each evaluation where they stood at the first."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    random = torch.get_rng_state()

    def evaluate(parameters: list[nn.Parameter]) -> list[Tensor]:
        if not redraw:
            torch.set_rng_state(random)
            for buffer, value in buffers:
                buffer.copy_(value)
        found = torch.autograd.grad(differentiable(loss(model)), parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, found, strict=True)]

    return evaluate


def _shift(name: str, before: list[Tensor], after: list[Tensor]) -> LayerShift:
    g, h = (torch.cat([t.double().flatten() for t in ts]) for ts in (before, after))
    product = float(g.norm() * h.norm())
    return LayerShift(
        layer=name,
        distance=float((h - g).norm()),
        gradient=float(g.norm()),
        cosine=float(g @ h) / product if product > 0 else 0.0,
    )
