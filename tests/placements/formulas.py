"""A stack of one placement around small maps, and every placement's formula written out for it with torch.nn.functional alone.

Sub-layers are tanh of a matrix, norms carry random gains and biases, upstream gradients are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab
from normlab import PLACEMENTS
from normlab.placements import Slot

WIDTH, LAYERS = 7, 3
NAMES = list(PLACEMENTS)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 1.5 + 0.3).to(dtype)


def shaken(module: Any) -> Any:
    """The module with every parameter random; gains around 1."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * 0.4 + (0.0 if p.dim() > 1 or name.endswith("bias") else 1.0))
    return module


def assert_close(got: Tensor, want: Tensor, relative: float = 1e-12, what: str = "") -> None:
    """Within ``relative`` of the largest wanted value."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    assert torch.isfinite(want).all()
    limit = relative * max(want.abs().max().item(), 1e-30)
    error = (got.double() - want.double()).abs().max().item()
    assert error <= limit, f"{what}: off by {error:.3g}, allowed {limit:.3g}"


def assert_gradients_close(got: Sequence[Tensor], want: Sequence[Tensor], relative: float = 1e-12) -> None:
    """Relative to the largest of all: a bias in front of a norm that removes means has only rounding for a gradient."""
    limit = relative * max(w.abs().max().item() for w in want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        error = (g.double() - w.double()).abs().max().item()
        assert error <= limit, f"gradient {i} (0: x): off by {error:.3g}, allowed {limit:.3g}"


class Map(nn.Module):
    """A sub-layer: tanh of a matrix."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.linear.weight, self.linear.bias))


class Net(nn.Module):
    """A stack: one placement with its ends, around maps."""

    def __init__(
        self, name: str, norm: Callable[[], nn.Module], *, layers: int = LAYERS, stack: str = "encoder",
        other_layers: int = 0, dropout: float = 0.0, fuse: bool = True, width: int = WIDTH, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        facts = PLACEMENTS[name]
        self.kinds = ["attention", *(["cross"] if stack == "decoder" and other_layers else []), "feedforward"]
        self.places = nn.ModuleList(
            facts.placement(
                norm,
                Slot(layer=layer, num_layers=layers, kind=kind, first=kind == "attention", last=kind == "feedforward",
                     stack=stack, other_layers=other_layers, width=width),
                dropout=dropout, fuse=fuse, **options,
            )
            for layer in range(layers)
            for kind in self.kinds
        )  # fmt: skip
        self.maps = nn.ModuleList(Map(width) for _ in self.places)
        self.ends = facts.ends(norm, fuse=fuse)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        stream = self.ends.enter(x, mask)
        for place, sublayer in zip(self.places, self.maps, strict=True):
            stream = place(stream, sublayer, mask)
        return self.ends.leave(stream, mask)

    def layers(self) -> Iterator[tuple[int, list[tuple[str, Any, Any]]]]:
        """(layer from 1, its (kind, placement, sub-layer))."""
        k = len(self.kinds)
        for layer in range(len(self.maps) // k):
            span = slice(layer * k, (layer + 1) * k)
            yield layer + 1, list(zip(self.kinds, self.places[span], self.maps[span], strict=True))

    def each(self) -> Iterator[tuple[int, str, Any, Any]]:
        for layer, sublayers in self.layers():
            for kind, place, sublayer in sublayers:
                yield layer, kind, place, sublayer


# ---- the formulas ----------------------------------------------------------------------------------------------------

Normalize = Callable[[Any, Tensor], Tensor]


def layer_norm(n: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), n.weight, n.bias, 1e-5)


def rms_norm(n: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), n.weight, 1e-6)


def batch_norm(n: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x.flatten(0, -2), None, None, n.weight, n.bias, True, 0.0, 1e-5).view_as(x)


def instance_norm(n: Any, x: Tensor) -> Tensor:
    return F.instance_norm(x.transpose(1, 2), weight=n.weight, bias=n.bias, eps=1e-5).transpose(1, 2)


def group_norm(n: Any, x: Tensor) -> Tensor:
    return F.group_norm(x.transpose(1, 2), 2, n.weight, n.bias, 1e-5).transpose(1, 2)


def none(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, _, S in net.each():
        x = x + S(x)
    return x


def post(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = N(p.norm, x + S(x))
    return x


def pre(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = x + S(N(p.norm, x))
    return N(net.ends.norm, x)


def deepnorm(net: Net, x: Tensor, N: Normalize) -> Tensor:
    """Of three layers alone, or beside four of the other stack."""
    site = net.places[0].slot
    if site.other_layers == 0:
        alpha = 6**0.25
    elif site.stack == "decoder":
        alpha = 9**0.25
    else:
        alpha = 0.81 * (3**4 * 4) ** (1 / 16)
    for _, _, p, S in net.each():
        x = N(p.norm, alpha * x + S(x))
    return x


def sandwich(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = x + N(p.norm_out, S(N(p.norm, x)))
    return N(net.ends.norm, x)


def peri(net: Net, x: Tensor, N: Normalize) -> Tensor:
    return sandwich(net, N(net.ends.norm_in, x), N)


def normformer(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, kind, p, S in net.each():
        branch = S(N(p.norm, x))
        x = x + (branch if kind == "feedforward" else N(p.norm_out, branch))
    return N(net.ends.norm, x)


def residual_dual(net: Net, x: Tensor, N: Normalize) -> Tensor:
    r = x
    for _, _, p, S in net.each():
        branch = S(x)
        x, r = N(p.norm, x + branch), r + branch
    return x + N(net.ends.norm, r)


def b2t(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, sublayers in net.layers():
        bottom = x
        for kind, p, S in sublayers:
            x = N(p.norm, x + S(x) + (bottom if kind == "feedforward" else 0))
    return x


def mix(net: Net, x: Tensor, N: Normalize) -> Tensor:
    """With post_share=0.5: floor(3 / 2) = 1 layer of three."""
    for layer, _, p, S in net.each():
        x = N(p.place.norm, x + S(x)) if layer == 1 else x + S(N(p.place.norm, x))
    return N(net.ends.norm, x)


def hybrid(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, kind, p, S in net.each():
        if kind == "feedforward":
            x = N(p.norm, x)
        x = x + S(x)
    return N(net.ends.norm, x)


def layernorm_scaling(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for layer, _, p, S in net.each():
        x = x + S(N(p.norm, x) / math.sqrt(layer))
    return N(net.ends.norm, x)


def reordered(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = x + N(p.norm, S(x))
    return N(net.ends.norm, x)


def admin(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = N(p.norm, p.omega * x + S(x))
    return x


def rezero(net: Net, x: Tensor, N: Normalize) -> Tensor:
    for _, _, p, S in net.each():
        x = x + p.alpha * S(x)
    return x


FORMULAS: dict[str, Callable[[Net, Tensor, Normalize], Tensor]] = {
    "none": none, "post": post, "pre": pre, "deepnorm": deepnorm, "sandwich": sandwich, "peri": peri, "sub-ln": pre,
    "normformer": normformer, "residual-dual": residual_dual, "b2t": b2t, "mix-ln": mix, "hybrid-norm": hybrid,
    "layernorm-scaling": layernorm_scaling, "reordered": reordered, "admin": admin, "rezero": rezero,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {"mix-ln": {"post_share": 0.5}}


class UserBatchNorm(nn.Module):
    """A norm as a user writes it: over tokens, without a mask argument."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH)
        self.weight, self.bias = self.bn.weight, self.bn.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.transpose(1, 2)).transpose(1, 2)


FACTORIES: dict[str, tuple[Callable[[], nn.Module], Normalize]] = {
    "layer": (lambda: normlab.LayerNorm(WIDTH), layer_norm),
    "rms": (lambda: normlab.RMSNorm(WIDTH, eps=1e-6), rms_norm),
    "batch": (lambda: normlab.BatchNorm(WIDTH), batch_norm),
    "torch-layer": (lambda: nn.LayerNorm(WIDTH), layer_norm),
    "torch-rms": (lambda: nn.RMSNorm(WIDTH, eps=1e-6), rms_norm),
    "user-batch": (UserBatchNorm, batch_norm),
}


def assert_is_formula(name: str, net: Net, N: Normalize, mask: Tensor | None = None) -> None:
    x = draw(5, 4, WIDTH).requires_grad_()
    got, want = net(x, mask), FORMULAS[name](net, x, N)
    assert_close(got, want, what="y")
    upstream, inputs = draw(5, 4, WIDTH), [x, *net.parameters()]
    assert_gradients_close(*(torch.autograd.grad(y, inputs, upstream) for y in (got, want)))
