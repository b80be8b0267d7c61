"""What the tests of the layers share: every norm in its forms, data, and comparisons.

Gains and upstream gradients are random: ones and ``y.sum()`` hide most bugs of a norm. Sizes are distinct primes where the
formula lets them be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normlab

FEATURES = 21  # 3 * 7: groups of channels must divide it
LENGTHS = [11, 3, 0, 1, 7]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 1.5 + 0.3).to(dtype)


def shaken(layer: Any) -> Any:
    """The layer with random parameters."""
    with torch.no_grad():
        for name, p in layer.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + (0.0 if name == "bias" else 1.0))
    return layer


def grads(y: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y, list(inputs), upstream.to(y.dtype)))


def assert_near(actual: Tensor, expected: Tensor, ulps: float = 32.0, what: str = "") -> None:
    """Within ``ulps`` roundings (of actual's dtype) of the largest expected value."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return
    limit = ulps * torch.finfo(actual.dtype).eps * expected.abs().max().double().clamp(min=1e-30).item()
    error = (actual.double() - expected.double()).abs().max().item()
    assert error <= limit, f"{what}: error {error:.3g} above {limit:.3g} ({actual.dtype})"


def assert_cancels(difference: Tensor, terms: Tensor) -> None:
    """Zero but for the rounding of the terms whose difference it is."""
    assert (difference.abs() <= 2 * torch.finfo(difference.dtype).eps * terms.detach().abs()).all()


def assert_same(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Bit for bit."""
    assert actual.dtype == expected.dtype and torch.equal(actual, expected), (
        f"{what}: {int((actual != expected).sum())} of {actual.numel()} values differ, "
        f"by up to {(actual.double() - expected.double()).abs().max().item():.3g}"
    )


def state_of(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}


def assert_untouched(layer: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} went from {before[name].tolist()} to {value.tolist()}"


def shape_with(dims: int, channel: int, channels: int) -> tuple[int, ...]:
    """Distinct primes with ``channels`` at position ``channel``."""
    sizes = [5, 3, 2, 11][: dims - 1]
    sizes.insert(channel % dims, channels)
    return tuple(sizes)


def lay_out(x: Tensor, layout: str, channel: int) -> Tensor:
    """The same values in other memory."""
    if layout == "channels_last":
        return x.movedim(channel, -1).contiguous().movedim(-1, channel)
    if layout == "strided":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), math.nan)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "reversed":
        order = tuple(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    return x.contiguous()


LAYOUTS = ["contiguous", "channels_last", "strided", "reversed"]


def assert_step(
    ours: nn.Module,
    theirs: Callable[[Tensor], Tensor],
    parameters: Sequence[tuple[Tensor, Tensor]],
    x: Tensor,
    ulps: float,
) -> None:
    """One forward and backward of ours on x against theirs in float64, with a random upstream gradient."""
    a, b = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    y, z = ours(a), theirs(b)
    assert y.dtype == x.dtype
    assert_near(y, z, ulps, "y")
    upstream = draw(*x.shape, dtype=x.dtype)
    got = grads(y, [a, *(p for p, _ in parameters)], upstream)
    want = grads(z, [b, *(q for _, q in parameters)], upstream)
    for name, g, w in zip(["dx", "dweight", "dbias"], got, want, strict=False):
        assert_near(g, w, 4 * ulps if name == "dx" else 2 * ulps, name)


def pairs(ours: nn.Module, theirs: nn.Module) -> list[tuple[Tensor, Tensor]]:
    named = dict(theirs.named_parameters())
    return [(p, named[name]) for name, p in ours.named_parameters()]


# Every norm of NORMS, with the options that change its path; test_tables_cover_every_norm holds it to that.
BUILD: dict[str, list[tuple[str, Callable[[], nn.Module]]]] = {
    "layer": [("", lambda: normlab.LayerNorm(FEATURES))],
    "rms": [
        ("", lambda: normlab.RMSNorm(FEATURES, eps=1e-6)),
        ("partial", lambda: normlab.RMSNorm(FEATURES, eps=1e-6, partial=0.4, bias=True)),
    ],
    "scale": [("", lambda: normlab.ScaleNorm(FEATURES))],
    "batch": [
        ("", lambda: normlab.BatchNorm(FEATURES)),
        ("image", lambda: normlab.BatchNorm(FEATURES, channel_dim=1)),
        ("average", lambda: normlab.BatchNorm(FEATURES, momentum=None)),
        ("untracked", lambda: normlab.BatchNorm(FEATURES, track_running_stats=False)),
        ("ghost", lambda: normlab.BatchNorm(FEATURES, ghost_size=2)),
        ("renorm", lambda: normlab.BatchNorm(FEATURES, renorm=(1.5, 0.5))),
    ],
    "instance": [
        ("", lambda: normlab.InstanceNorm(FEATURES, affine=True)),
        ("image", lambda: normlab.InstanceNorm(FEATURES, affine=True, track_running_stats=True, channel_dim=1)),
        ("tracked", lambda: normlab.InstanceNorm(FEATURES, affine=True, track_running_stats=True)),
    ],
    "group": [
        ("", lambda: normlab.GroupNorm(3, FEATURES)),
        ("image", lambda: normlab.GroupNorm(7, FEATURES, channel_dim=1)),
    ],
    "power": [
        ("", lambda: normlab.PowerNorm(FEATURES)),
        ("image", lambda: normlab.PowerNorm(FEATURES, channel_dim=1, warmup_steps=1)),
        ("running", lambda: normlab.PowerNorm(FEATURES, warmup_steps=0)),
        ("per-batch", lambda: normlab.PowerNorm(FEATURES, running=False)),
        ("grouped", lambda: normlab.PowerNorm(FEATURES, warmup_steps=2, group_scaling=3)),
    ],
    "dyt": [("", lambda: normlab.DyT(FEATURES))],
    "derf": [("", lambda: normlab.Derf(FEATURES, shift_init=0.2))],
}


def all_builds() -> list[Any]:
    return [
        pytest.param(build, id=f"{name}-{label}" if label else name)
        for name, builds in BUILD.items()
        for label, build in builds
    ]


def scattered(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(shape) < share


def turned(layer: nn.Module) -> Callable[..., Tensor]:
    """The layer as a function of (B, L, d), whatever its channel_dim."""
    if getattr(layer, "channel_dim", -1) != 1:
        return layer
    return lambda x, **k: layer(x.transpose(1, 2), **k).transpose(1, 2)


class PowerByHand(nn.Module):
    """PN-V with the channels at 1: x over the root of its mean square over all other axes."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        psi = (x.flatten(0, -2).pow(2).mean(0) + self.eps).sqrt()
        return (x / psi * self.weight + self.bias).movedim(-1, 1)
