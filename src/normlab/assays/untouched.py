"""A model may be asked anything and comes back as it was: weights, buffers, gradients, modes, random numbers, optimizer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[
    [nn.Module], Any
]  # the model -> its loss: a tensor with one value, or (where nothing is derived) a number


class NothingToAsk(ValueError):
    """The model has nothing that this assay could ask for: no blocks, no running statistics, no norms."""


@contextlib.contextmanager
def untouched(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Whatever happens inside, model and optimizer leave bit for bit as they came, and so do torch's random numbers.

    The hooks of a watch fire inside as they do outside: ask within :meth:`normlab.watch.Watch.suspended` where one is attached.

    >>> layer = nn.BatchNorm1d(3)
    >>> with untouched(layer):
    ...     _ = layer(torch.randn(5, 3))
    >>> int(layer.num_batches_tracked)
    0
    """
    groups = [] if optimizer is None else optimizer.param_groups
    stepped = dict.fromkeys(
        [*model.parameters(), *(p for group in groups for p in group["params"])]
    )  # not the model's alone
    tensors: list[Tensor] = [*stepped, *model.buffers()]
    held = [t.detach().clone() for t in tensors]
    grads = [(p, p.grad) for p in stepped]
    # A model may write into a buffer, or put another tensor in its place.
    owned = [(m, dict(m.named_buffers(recurse=False, remove_duplicate=False))) for m in model.modules()]
    modes = [(m, m.training) for m in model.modules()]
    kept = None if optimizer is None else _Kept(optimizer)
    devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            for p, _ in grads:
                p.grad = None  # what is accumulated inside does not reach the gradients outside
            yield
    finally:
        with torch.no_grad():
            for t, value in zip(tensors, held, strict=True):
                t.copy_(value)
        for p, grad in grads:
            p.grad = grad
        for module, buffers in owned:
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
        for module, training in modes:
            module.training = training
        if kept is not None:
            kept.put_back()


class _Kept:
    """An optimizer's state and settings. Not by load_state_dict, which casts float32 averages of 16-bit weights to 16 bits and fires hooks."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {p: copy.deepcopy(of_parameter) for p, of_parameter in optimizer.state.items()}
        self._settings = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def put_back(self) -> None:
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            group.update(settings)


def number(loss: Any) -> float:
    """A loss as a Python number."""
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)


def differentiable(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"the loss must be a tensor with one value and a gradient, got {got}")
    return loss.reshape(())


def trainable(model: nn.Module) -> list[nn.Parameter]:
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise ValueError("no parameter of the model requires a gradient")
    return found


def update_of(
    model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer | None, lr: float | None
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """(gradients, changes of the trainable parameters by one step, the loss): ``optimizer``'s step, or -lr * gradient.

    Inside :func:`untouched`; the parameters stay where they are.
    """
    if (optimizer is None) == (lr is None):
        raise ValueError(
            "give the optimizer whose step is meant, or the rate lr of a plain gradient step: one of the two"
        )
    parameters = trainable(model)
    value = differentiable(loss(model))
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    grads = [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, found, strict=True)]
    if optimizer is None:
        assert lr is not None
        return grads, [-lr * g for g in grads], value.detach()
    before = [p.detach().clone() for p in parameters]
    for p, g, used in zip(parameters, grads, found, strict=True):
        p.grad = None if used is None else g.clone()
    optimizer.step()
    with torch.no_grad():
        changes = [p.detach() - b for p, b in zip(parameters, before, strict=True)]
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)
            p.grad = None
    return grads, changes, value.detach()
