"""``inspect``: look into a model by one forward pass of its own, and leave it as it was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import own_buffers, uncompiled, version_of
from .capture import GraphCapture, OperatorCapture, tensors_in
from .dataflow import structure_of
from .examples import example_inputs_of
from .find import in_use, survey
from .structure import Structure


class _as_it_was:
    """Training flags, buffers, attributes and random states come back as they were."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.attributes = [(m, dict(vars(m)), dict(own_buffers(m))) for m in self.model.modules()]
        self.buffers = [(b, version_of(b), b.detach().clone()) for b in self.model.buffers() if not b.is_meta]
        devices = sorted({t.device.index for t in self.model.parameters() if t.device.type == "cuda"})
        self.random = torch.random.fork_rng(devices)
        self.random.__enter__()
        self.python = random.getstate()
        self.fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one fused operator would hide a whole layer

    def __exit__(self, *error: Any) -> None:
        torch.backends.mha.set_fastpath_enabled(self.fast)
        random.setstate(self.python)
        self.random.__exit__(*error)
        for module, attributes, buffers in self.attributes:
            vars(module).clear()
            vars(module).update(attributes)
            own_buffers(module).clear()
            own_buffers(module).update(buffers)
        with torch.no_grad():
            for buffer, version, value in self.buffers:
                if version_of(buffer) != version:
                    buffer.copy_(value)


def inspect(model: nn.Module, example_inputs: Any = None, *, capture: str = "operators") -> Structure:
    """What is inside a model: norms with their facts, blocks, placement with the evidence, as one forward pass shows them.

    example_inputs  what the model is called with: a tensor, a tuple of arguments, or a dictionary of them. Without it an input is made
                    where the model says what it takes (an embedding of tokens, a Hugging Face configuration).
    capture         "operators": without gradients, in evaluation mode. "graph": autograd's graph, as a watch reads it.

    The model is left as it was: weights, buffers, mode, random states. ``print`` shows a drawing, ``to_dict()`` gives JSON.

    >>> block = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    >>> inspect(block, torch.randn(1, 5, 8)).placement
    'pre'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"inspect looks into an nn.Module, got {type(model).__name__}")
    if capture not in ("operators", "graph"):
        raise ValueError(f'capture must be "operators" or "graph", got {capture!r}')
    model = uncompiled(model) or model
    args, kwargs = _arguments(example_inputs_of(model) if example_inputs is None else example_inputs)
    found = survey(model)
    with _as_it_was(model):
        model.eval()
        if capture == "graph":
            seen = GraphCapture(model, found.norms, found.unknown)
            args, kwargs = _with_gradient((args, kwargs))
            with torch.enable_grad(), seen:
                output = model(*args, **kwargs)
            flow = seen.finish(output)
        else:
            listener = OperatorCapture(model, found.norms, found.unknown)
            listener.begin(args, kwargs)
            with torch.no_grad(), listener:
                output = model(*args, **kwargs)
            flow = listener.finish(output)
    return structure_of(flow, in_use(found, flow.given_more), capture)


def _with_gradient(value: Any) -> Any:
    """Floating inputs take part in the graph, so that the first sum of a model without an embedding is seen."""
    if isinstance(value, Tensor):
        return value.detach().requires_grad_() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)([_with_gradient(v) for v in value])
    return {k: _with_gradient(v) for k, v in value.items()} if isinstance(value, dict) else value


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    args = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not tensors_in(args):
        raise TypeError(
            f"example_inputs must be a tensor, a tuple of arguments or a dictionary of them, got {type(given).__name__}"
        )
    if len(args) == 1 and isinstance(args[0], Tensor) and args[0].dim() == 0:
        raise ValueError("example_inputs is a tensor without axes; give a batch of one row")
    return args, {}
