"""The contract suite's machinery: any norm of the table, run on a kernel and in float64, and how far apart they may be.

A result may differ from the float64 answer by its own rounding (half a step of its dtype) plus a few steps of the
compute precision at the size of the largest terms it was made from: for dx the gradient that passes straight through,
gain * grad / deviation, before the shares of mean and variance are taken off; for a parameter the sum over rows.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_map

import normlab

STEP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
SMALLEST = {torch.float32: 2.0**-149, torch.float64: 0.0, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


def groups_of(width):
    return next((g for g in (4, 3, 2) if width % g == 0), 1)


def make_layer(name, width, dtype, **options):
    """A layer with random gain and bias."""
    arguments = (groups_of(width), width) if name == "group" else (width,)
    if name == "instance":
        options.setdefault("affine", True)
    if name == "rms":
        options.setdefault("eps", 1e-5)
    layer = normlab.NORMS[name].layer(*arguments, dtype=dtype, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape) + 0.25)
    return layer


def as_float64(name, layer, width, **options):
    exact = make_layer(name, width, torch.float64, **options)
    exact.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in layer.state_dict().items()})
    return exact


class Wrapped(torch.Tensor):
    """Holds a tensor, has no memory of its own, and gives plain tensors as results."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, cls) else t, (args, kwargs or {}))
        return function(*args, **kwargs)


@dataclass
class Outcome:
    y: torch.Tensor
    dx: torch.Tensor
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def run(layer: nn.Module, x, grad, kernel="cpu", **call) -> Outcome:
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    with normlab.use_kernel(kernel):
        y = layer(x, **call)
        y.backward(grad)
    return Outcome(
        y.detach(),
        x.grad,
        {n: p.grad.clone() for n, p in layer.named_parameters()},
        {n: b.clone() for n, b in layer.named_buffers()},
    )


def straight_gradient(name, layer, x, grad, mask=None, channel_dim=-1):
    """The largest |gain * grad / deviation| of any real cell, float64: what dx is made from."""
    if mask is None:
        mask = torch.ones([n for a, n in enumerate(x.shape) if a != channel_dim % x.dim()], dtype=torch.bool)
    real = mask.unsqueeze(channel_dim).expand(x.shape).flatten()
    state = layer.state_dict()
    gain = state.get("weight", torch.ones(1)).abs().max().double()
    if name in ("dyt", "derf"):
        return gain * state["alpha"].abs().max().double() * grad.double().flatten()[real].abs().max()
    labels = normlab.functional.statistic_labels(
        name, x.shape, channel_dim=channel_dim, num_groups=getattr(layer, "num_groups", 1)
    ).flatten()[real]
    values = x.double().flatten()[real]
    sums = lambda t: torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, t)  # noqa: E731
    count = sums(torch.ones_like(values)).clamp(min=1)
    mean = sums(values) / count if name not in ("rms", "scale", "power") else torch.zeros_like(count)
    square = sums((values - mean[labels]) ** 2) / count
    deviation = (square * count).sqrt().clamp(min=layer.eps) if name == "scale" else (square + layer.eps).sqrt()
    return (gain * grad.double().flatten()[real].abs() / deviation[labels]).max()


def assert_close(what, got, want, dtype, compute_steps=8.0, terms=None):
    """``terms``: the size of what was added up to make ``want``; default its largest value."""
    # float64 is compared with itself in another order of summation: the oracle's own error counts, too
    compute = 32 * STEP[torch.float64] if dtype == torch.float64 else STEP[torch.float32]
    size = want.abs().max() if terms is None else terms
    allowed = 0.51 * STEP[dtype] * want.abs() + compute_steps * compute * size + SMALLEST[dtype]
    excess = (got.double() - want).abs() - allowed
    assert torch.isfinite(got).all(), f"{what}: not finite"
    assert (excess <= 0).all(), (
        f"{what}: off by {(got.double() - want).abs().max():.3e}, {excess.max():.3e} more than allowed"
    )


def assert_outcomes_close(got: Outcome, want: Outcome, dtype, rows: int, straight):
    assert got.y.dtype == got.dx.dtype == dtype
    assert_close("y", got.y, want.y, dtype)
    assert_close("dx", got.dx, want.dx, dtype, terms=straight)
    for name, value in want.parameters.items():
        # a gradient of a parameter is a sum over rows of terms of about this size
        terms = value.abs().max() + want.y.abs().max() * rows**0.5
        assert_close(f"d{name}", got.parameters[name], value, dtype, compute_steps=16.0, terms=terms)
