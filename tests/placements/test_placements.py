"""Placements: each against its formula, written out here for a whole stack with torch.nn.functional alone.

Sub-layers are tanh of a matrix, norms carry random gains and biases, upstream gradients are random. The last part is
the contract: every norm in every placement in every architecture learns one batch by heart, or is refused with a reason.
"""

from __future__ import annotations

import inspect
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab
from normlab import NORMS, PLACEMENTS, functional, placements
from normlab.models import ARCHITECTURES, Stack, TransformerConfig, build
from normlab.placements import Slot

WIDTH, LAYERS = 7, 3
NAMES = list(PLACEMENTS)


# ---- tools -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


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


def test_formulas_here_cover_the_table() -> None:
    assert set(FORMULAS) == set(PLACEMENTS)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("name", NAMES)
def test_stack_is_its_formula(name: str, norm: str, fuse: bool) -> None:
    make, N = FACTORIES[norm]
    assert_is_formula(name, shaken(Net(name, make, fuse=fuse, **OPTIONS.get(name, {})).double()), N)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_stacks_of_an_encoder_decoder_are_their_formulas(name: str, stack: str, fuse: bool) -> None:
    net = Net(name, FACTORIES["layer"][0], stack=stack, other_layers=4, fuse=fuse, **OPTIONS.get(name, {}))
    assert len(net.places) == (9 if stack == "decoder" else 6)
    assert_is_formula(name, shaken(net.double()), layer_norm)


@pytest.mark.parametrize("norm", ["torch-layer", "torch-rms", "user-batch"])
@pytest.mark.parametrize("name", NAMES)
def test_foreign_norms_stand_in_every_place_and_see_no_mask(name: str, norm: str) -> None:
    make, N = FACTORIES[norm]
    net = shaken(Net(name, make, **OPTIONS.get(name, {})).double())
    assert_is_formula(name, net, N, mask=torch.ones(5, 4, dtype=torch.bool))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("name", NAMES)
def test_fused_stack_in_float32_is_the_unfused_to_its_rounding(name: str, norm: str) -> None:
    make, N = FACTORIES[norm]
    net = shaken(Net(name, make, **OPTIONS.get(name, {})))
    twin = Net(name, make, fuse=False, **OPTIONS.get(name, {}))
    twin.load_state_dict(net.state_dict())
    x, upstream = draw(5, 4, WIDTH, dtype=torch.float32), draw(5, 4, WIDTH, dtype=torch.float32)
    exact = FORMULAS[name](net.double(), x.double(), N)
    net.float()
    for module in (net, twin):
        assert_close(module(x), exact, 1e-5, "y")
    results = []
    for module in (net, twin):
        inputs = [x.clone().requires_grad_(), *module.parameters()]
        results.append(torch.autograd.grad(module(inputs[0]), inputs, upstream))
    assert_gradients_close(*results, 1e-5)


# ---- inside the sub-layers -------------------------------------------------------------------------------------------


def attention_formula(m: Any, x: Tensor, N: Normalize) -> Tensor:
    """Two heads; norms on queries, keys and values, a factor per head, a norm before the last matrix, where present."""
    width = x.shape[-1]
    q, k, v = F.linear(x, m.qkv.weight, m.qkv.bias).split(width, -1)
    if m.norm_q is not None:
        q, k, v = N(m.norm_q, q), N(m.norm_k, k), N(m.norm_v, v)
    outputs = []
    for head in range(2):
        span = slice(head * width // 2, (head + 1) * width // 2)
        weights = (q[..., span] @ k[..., span].mT / math.sqrt(width // 2)).softmax(-1)
        outputs.append(weights @ v[..., span] * (1.0 if m.head_scale is None else m.head_scale[head, 0, 0]))
    y = torch.cat(outputs, -1)
    return F.linear(y if m.norm_out is None else N(m.norm_out, y), m.out.weight, m.out.bias)


def feedforward_formula(m: Any, x: Tensor, N: Normalize) -> Tensor:
    h = F.gelu(F.linear(x, m.up.weight, m.up.bias))
    return F.linear(h if m.norm_inner is None else N(m.norm_inner, h), m.down.weight, m.down.bias)


INSIDE = {  # placement -> norms in attention, norms in the feed-forward layer, factors per head
    "pre": (0, 0, False),
    "sub-ln": (1, 1, False),
    "normformer": (0, 1, True),
    "hybrid-norm": (3, 0, False),
}


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("name", INSIDE)
def test_transformer_stack_with_norms_inside_its_sublayers_is_its_formula(name: str, norm: str) -> None:
    config = TransformerConfig(dim=8, num_heads=2, num_layers=2, ffn_dim=11, placement=name, norm=norm)
    stack = shaken(Stack(config, "encoder", 2).double())
    N = FACTORIES[norm][1]
    in_attention, in_feedforward, heads = INSIDE[name]
    x = draw(3, 5, 8).requires_grad_()
    want = x
    for layer in stack.layers:
        A, Fw, a, f = layer.attention, layer.feedforward, layer.attention_place, layer.feedforward_place
        assert sum(m is not None for m in (A.norm_q, A.norm_k, A.norm_v, A.norm_out)) == in_attention
        assert (Fw.norm_inner is not None) == bool(in_feedforward) and (A.head_scale is not None) == heads
        if name == "hybrid-norm":
            h = N(f.norm, want + attention_formula(A, want, N))
            want = h + feedforward_formula(Fw, h, N)
        else:
            branch = attention_formula(A, N(a.norm, want), N)
            h = want + (N(a.norm_out, branch) if name == "normformer" else branch)
            want = h + feedforward_formula(Fw, N(f.norm, h), N)
    want = N(stack.ends.norm, want)
    got = stack(x)
    assert_close(got, want, what="y")
    upstream, inputs = draw(3, 5, 8), [x, *stack.parameters()]
    assert_gradients_close(*(torch.autograd.grad(y, inputs, upstream) for y in (got, want)))


GENERIC_NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: normlab.LayerNorm(WIDTH),
    "scale": lambda: normlab.ScaleNorm(WIDTH),
    "batch without a gain": lambda: normlab.BatchNorm(WIDTH, affine=False),
    "derf without a gain": lambda: normlab.Derf(WIDTH, affine=False),
    "torch's": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "of the user": UserBatchNorm,
}


@pytest.mark.parametrize("norm", GENERIC_NORMS)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_is_made_from_a_factory_and_a_site_alone(name: str, norm: str) -> None:
    facts, make = PLACEMENTS[name], GENERIC_NORMS[norm]
    sites = [Slot(layer=i, num_layers=3, kind=kind, first=kind == "attention", last=kind == "feedforward")
             for i in range(3) for kind in ("attention", "feedforward")]  # fmt: skip
    places, ends = [facts.placement(make, site) for site in sites], facts.ends(make)
    stream = ends.enter(draw(2, 5, WIDTH, dtype=torch.float32))
    for place in places:
        stream = place(stream, torch.tanh)
    assert ends.leave(stream).shape == (2, 5, WIDTH)
    if name == "admin":
        assert {place.omega.shape for place in places} == {(WIDTH,)}


def test_sub_ln_excepts_attention_to_another_stack() -> None:
    model = normlab.build(architecture="encoder-decoder", dim=8, num_heads=2, num_layers=2, vocab_size=7,
                          placement="sub-ln")  # fmt: skip
    for layer in model.encoder.layers:
        assert layer.attention.norm_out is not None and layer.feedforward.norm_inner is not None
    for layer in model.decoder.layers:
        assert layer.attention.norm_out is not None and layer.feedforward.norm_inner is not None
        assert layer.cross.norm_out is None and layer.cross_place.norm is not None


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placements_and_their_ends_start_again_as_they_were_made(name: str) -> None:
    net = Net(name, lambda: normlab.BatchNorm(WIDTH))
    start = {k: v.clone() for k, v in net.state_dict().items() if not k.startswith("maps.")}
    assert bool(start) == (name != "none")
    net.to_empty(device="cpu")
    with torch.no_grad():
        for held in (*net.parameters(), *net.buffers()):
            held.fill_(13)
    for place in net.places:
        place.reset_parameters()
    placements.reset_inside(net.ends)
    again = net.state_dict()
    assert [k for k, v in start.items() if not torch.equal(again[k], v)] == []


# ---- depth rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "stack", "other", "alpha", "beta"),
    [
        (8, "encoder", 0, 2.0, 0.35355339059),  # 16^(1/4), 64^(-1/4)
        (8, "decoder", 0, 2.0, 0.35355339059),
        (50, "encoder", 0, 3.16227766017, 0.22360679775),  # 100^(1/4), 400^(-1/4)
        (6, "encoder", 6, 1.41793814069, 0.49698924077),  # 0.81 * 6^(5/16), 0.87 * 6^(-5/16)
        (6, "decoder", 6, 2.05976714391, 0.34329452399),  # 18^(1/4), 72^(-1/4)
        (16, "encoder", 1, 1.62, 0.435),  # 0.81 * 2, 0.87 / 2
        (27, "decoder", 1, 3.0, 0.2357022604),  # 81^(1/4), 324^(-1/4)
    ],
)
def test_deepnorm_scales_are_the_papers_table(layers: int, stack: str, other: int, alpha: float, beta: float) -> None:
    assert normlab.placements.deepnorm_scales(layers, stack=stack, other_layers=other) == pytest.approx(
        (alpha, beta), rel=1e-9
    )
    site = Slot(num_layers=layers, layer=layers - 1, stack=stack, other_layers=other)
    place = normlab.placements.DeepNorm(lambda: normlab.LayerNorm(4), site)
    assert place.residual.alpha == pytest.approx(alpha, rel=1e-9)


def test_encoder_decoder_gives_each_stack_its_own_scale() -> None:
    model = build(architecture="encoder-decoder", dim=8, num_heads=2, num_layers=6, num_decoder_layers=3, vocab_size=5,
                  placement="deepnorm")  # fmt: skip
    alphas = {
        stack: {m.alpha for m in getattr(model, stack).modules() if isinstance(m, normlab.placements.Residual)}
        for stack in ("encoder", "decoder")
    }
    assert list(alphas["encoder"]) == pytest.approx([0.81 * (6**4 * 3) ** (1 / 16)])
    assert list(alphas["decoder"]) == pytest.approx([9**0.25])


@pytest.mark.parametrize(
    ("layers", "stack", "other", "gain"),
    [
        (12, "encoder", 0, 1.78270969),  # sqrt(ln 24)
        (12, "decoder", 0, 1.78270969),
        (6, "decoder", 6, 1.70010934),  # sqrt(ln 18)
        (6, "encoder", 6, 1.54728838),  # sqrt(ln 18 * ln 12 / 3)
        (4, "encoder", 9, 1.51145626),  # sqrt(ln 27 * ln 8 / 3)
    ],
)
def test_subln_gain_is_the_papers(layers: int, stack: str, other: int, gain: float) -> None:
    assert normlab.placements.subln_gain(layers, stack=stack, other_layers=other) == pytest.approx(gain, rel=1e-7)


@pytest.mark.parametrize(
    ("change", "stack", "other", "scale"),
    [
        ("log", "encoder", 0, math.sqrt(13 / math.log(13) - 1)),  # six layers, twelve sums
        ("constant", "encoder", 0, math.sqrt(12)),
        ("log", "decoder", 6, math.sqrt(19 / math.log(19) - 1)),  # three sub-layers each: eighteen sums
        ("constant", "decoder", 6, math.sqrt(18)),
        ("constant", "encoder", 6, math.sqrt(12)),
        ("constant", "decoder", 0, math.sqrt(12)),
    ],
)
def test_admin_starts_from_the_number_of_sums(change: str, stack: str, other: int, scale: float) -> None:
    site = Slot(num_layers=6, stack=stack, other_layers=other, width=4)
    place = normlab.placements.Admin(nn.Identity, site, output_change=change)
    assert place.omega.tolist() == pytest.approx([scale] * 4, rel=1e-6)


def test_layernorm_scaling_counts_layers_from_one() -> None:
    factors = [p.factor for p in Net("layernorm-scaling", nn.Identity).places]
    assert factors == pytest.approx([1, 1, 0.70710678, 0.70710678, 0.57735027, 0.57735027], rel=1e-7)


def test_rezero_starts_as_the_identity_with_a_gradient_on_its_factors() -> None:
    net, x = Net("rezero", nn.Identity), torch.randn(3, WIDTH)
    y = net(x)
    assert torch.equal(y, x)
    y.square().sum().backward()
    assert all(place.alpha.grad != 0 for place in net.places)


@pytest.mark.parametrize(
    ("layers", "share", "post_layers"),
    [(4, 0.25, 1), (2, 0.25, 0), (12, 0.25, 3), (7, 0.25, 1), (5, 0.0, 0), (5, 1.0, 5), (5, 0.5, 2), (100, 0.29, 29)],
)
def test_mix_splits_at_the_floor_of_the_share(layers: int, share: float, post_layers: int) -> None:
    sites = [Slot(layer=i, num_layers=layers) for i in range(layers)]
    kinds = [type(normlab.placements.MixNorm(nn.Identity, site, post_share=share).place) for site in sites]
    assert kinds == [normlab.placements.PostNorm] * post_layers + [normlab.placements.PreNorm] * (layers - post_layers)


# ---- plain use -------------------------------------------------------------------------------------------------------

BARE: dict[str, Callable[[Any, Tensor, Callable[[Tensor], Tensor]], Tensor]] = {
    "none": lambda p, x, S: x + S(x),
    "post": lambda p, x, S: layer_norm(p.norm, x + S(x)),
    "pre": lambda p, x, S: x + S(layer_norm(p.norm, x)),
    "deepnorm": lambda p, x, S: layer_norm(p.norm, 2**0.25 * x + S(x)),
    "sandwich": lambda p, x, S: x + layer_norm(p.norm_out, S(layer_norm(p.norm, x))),
    "peri": lambda p, x, S: x + layer_norm(p.norm_out, S(layer_norm(p.norm, x))),
    "sub-ln": lambda p, x, S: x + S(layer_norm(p.norm, x)),
    "normformer": lambda p, x, S: x + S(layer_norm(p.norm, x)),
    "b2t": lambda p, x, S: layer_norm(p.norm, x + S(x)),
    "mix-ln": lambda p, x, S: x + S(layer_norm(p.place.norm, x)),
    "hybrid-norm": lambda p, x, S: layer_norm(p.norm, x) + S(layer_norm(p.norm, x)),
    "layernorm-scaling": lambda p, x, S: x + S(layer_norm(p.norm, x)),
    "reordered": lambda p, x, S: x + layer_norm(p.norm, S(x)),
    "admin": lambda p, x, S: layer_norm(p.norm, p.omega * x + S(x)),
    "rezero": lambda p, x, S: x + p.alpha * S(x),
}


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "residual-dual"])
def test_a_tensor_in_a_block_of_ones_own_gives_a_tensor(name: str, fuse: bool) -> None:
    place = PLACEMENTS[name].placement(lambda: normlab.LayerNorm(WIDTH), fuse=fuse)
    place, sublayer, x = shaken(place.double()), shaken(Map().double()), draw(3, WIDTH)
    y = place(x, sublayer)
    assert type(y) is Tensor
    assert_close(y, BARE[name](place, x, sublayer))


def test_residual_dual_refuses_a_tensor() -> None:
    place = normlab.placements.ResidualDual(lambda: normlab.LayerNorm(WIDTH))
    with pytest.raises(TypeError, match=r"two streams.*enter"):
        place(torch.zeros(2, WIDTH), nn.Identity())


def test_residual_dual_keeps_its_second_stream_free_of_norms() -> None:
    net = shaken(Net("residual-dual", FACTORIES["layer"][0]).double())
    x = draw(3, WIDTH)
    stream, plain = net.ends.enter(x), x
    for place, sublayer in zip(net.places, net.maps, strict=True):
        plain = plain + sublayer(stream.normed)
        stream = place(stream, sublayer)
        assert_close(stream.plain, plain)
    assert not torch.allclose(stream.plain, stream.normed)


@pytest.mark.parametrize("batch", [2, 3])
def test_b2t_above_its_first_sublayer_refuses_a_tensor(batch: int) -> None:
    """Without what entered the layer there is nothing to bridge from; a batch of two must not pass for a pair."""
    place = normlab.placements.B2T(lambda: normlab.LayerNorm(WIDTH), Slot(kind="feedforward", first=False))
    with pytest.raises(TypeError):
        place(torch.zeros(batch, WIDTH), nn.Identity())


# ---- Residual --------------------------------------------------------------------------------------------------------

FUSED_NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: normlab.LayerNorm(WIDTH),
    "layer-plain": lambda: normlab.LayerNorm(WIDTH, elementwise_affine=False),
    "layer-offset": lambda: normlab.LayerNorm(WIDTH, gain="offset"),
    "layer-no-bias": lambda: normlab.LayerNorm(WIDTH, bias=False),
    "rms": lambda: normlab.RMSNorm(WIDTH),
    "rms-eps": lambda: normlab.RMSNorm(WIDTH, eps=0.1),
    "rms-plain": lambda: normlab.RMSNorm(WIDTH, elementwise_affine=False),
    "rms-offset": lambda: normlab.RMSNorm(WIDTH, gain="offset"),
    "rms-bias": lambda: normlab.RMSNorm(WIDTH, bias=True),
}


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with each call of the fused op."""
    calls: list[str] = []
    inner = functional.residual_norm

    def spy(*arguments: Any, **options: Any) -> Any:
        calls.append(options["norm"])
        return inner(*arguments, **options)

    monkeypatch.setattr(functional, "residual_norm", spy)
    return calls


def by_hand(norm: Any, x: Tensor, branch: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(stream, norm(stream)) in float64."""
    stream = alpha * x.double() + branch.double()
    weight = None if norm.weight is None else norm.weight.double() + (1 if norm.gain == "offset" else 0)
    bias = None if norm.bias is None else norm.bias.double()
    if isinstance(norm, normlab.LayerNorm):
        return stream, F.layer_norm(stream, (x.shape[-1],), weight, bias, norm.eps)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    y = F.rms_norm(stream, (x.shape[-1],), weight, eps)
    return stream, y if bias is None else y + bias


@pytest.mark.parametrize("alpha", [1.0, 2.5, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", FUSED_NORMS)
def test_fused_and_unfused_sums_are_the_formula(
    fused_calls: list[str], kind: str, dtype: torch.dtype, alpha: float
) -> None:
    norm = shaken(FUSED_NORMS[kind]().to(dtype))
    x, branch = (draw(5, 3, WIDTH, dtype=dtype).requires_grad_() for _ in range(2))
    upstream = draw(2, 5, 3, WIDTH, dtype=dtype)
    inputs = [x, branch, *norm.parameters()]
    want = torch.stack(by_hand(norm, x, branch, alpha))
    want_grads = torch.autograd.grad(want, inputs, upstream.double())
    relative = 1e-12 if dtype == torch.float64 else 1e-5
    for fuse in (True, False):
        got = torch.stack(normlab.placements.Residual(alpha, fuse=fuse)(x, branch, norm))
        assert got.dtype == dtype
        assert_close(got, want, relative)
        for g, w in zip(torch.autograd.grad(got, inputs, upstream), want_grads, strict=True):
            assert_close(g, w, 4 * relative)
        assert fused_calls == ["layer" if "layer" in kind else "rms"]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("alpha", [1.0, 2.5])
@pytest.mark.parametrize("early", [True, False], ids=["round-before-gain", "round-after"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_sums_in_bfloat16_round_where_they_say(kind: str, early: bool, alpha: float, fuse: bool) -> None:
    """Fused, the sum is rounded once, unfused alpha * x before it; with round_before_gain the result before its gain."""
    width = 16
    norm = shaken(normlab.make_norm(kind, width, round_before_gain=early, eps=1e-5).bfloat16())
    if early:
        norm.bias = None
    x, branch = (draw(64, width, dtype=torch.bfloat16) for _ in range(2))
    scaled = alpha * x.float() if fuse else (alpha * x.float()).bfloat16().float()
    want_stream = (scaled + branch.float()).bfloat16()
    y = (F.layer_norm if kind == "layer" else F.rms_norm)(want_stream.float(), (width,), eps=1e-5)
    bias = 0 if norm.bias is None else norm.bias.float()
    want = y.bfloat16() * norm.weight if early else (y * norm.weight.float() + bias).bfloat16()
    stream, got = normlab.placements.Residual(alpha, fuse=fuse)(x, branch, norm)
    assert stream.dtype == got.dtype == torch.bfloat16
    assert torch.equal(stream, want_stream)
    assert (got != want).float().mean() < 0.01 and within_one_step(got, want)


def within_one_step(got: Tensor, want: Tensor) -> bool:
    return bool(((got.double() - want.double()).abs() <= 2.0**-7 * want.double().abs() + 1e-30).all())


def test_round_before_gain_shows_in_bfloat16() -> None:
    """So that the test above could tell the two orders apart."""
    x, branch = (draw(64, 16, dtype=torch.bfloat16) for _ in range(2))
    early, late = (shaken(normlab.RMSNorm(16, round_before_gain=e).bfloat16()) for e in (True, False))
    late.load_state_dict(early.state_dict())
    differ = normlab.placements.Residual()(x, branch, early)[1] != normlab.placements.Residual()(x, branch, late)[1]
    assert differ.float().mean() > 0.05


def test_partial_rms_norm_goes_the_unfused_way(fused_calls: list[str]) -> None:
    norm = shaken(normlab.RMSNorm(8, partial=0.5, eps=1e-6).double())
    x, branch = draw(5, 8), draw(5, 8)
    stream, y = normlab.placements.Residual(1.5)(x, branch, norm)
    want = 1.5 * x + branch
    assert_close(stream, want)
    assert_close(y, want / (want[:, :4].square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight)
    assert not fused_calls


def test_batch_norm_goes_the_unfused_way_with_its_mask(fused_calls: list[str]) -> None:
    norm = shaken(normlab.BatchNorm(WIDTH).double())
    x, branch = draw(3, 4, WIDTH), draw(3, 4, WIDTH)
    mask = torch.arange(4) < torch.tensor([4, 1, 2])[:, None]
    stream, y = normlab.placements.Residual(1.5)(x, branch, norm, mask)
    assert_close(stream, 1.5 * x + branch)
    assert_close(y[mask], batch_norm(norm, (1.5 * x + branch)[mask]))
    assert not fused_calls


def test_norm_over_several_axes_goes_the_unfused_way(fused_calls: list[str]) -> None:
    norm = shaken(normlab.LayerNorm((4, WIDTH)).double())
    x, branch = draw(3, 4, WIDTH), draw(3, 4, WIDTH)
    y = normlab.placements.Residual()(x, branch, norm)[1]
    assert_close(y, F.layer_norm(x + branch, (4, WIDTH), norm.weight, norm.bias))
    assert not fused_calls


@pytest.mark.parametrize(
    ("stream_dtype", "branch_dtype"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)], ids=str
)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_mixed_dtypes_go_the_unfused_way_and_keep_the_wider(
    fused_calls: list[str], stream_dtype: torch.dtype, branch_dtype: torch.dtype, alpha: float
) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH, dtype=stream_dtype))
    x, branch = draw(5, WIDTH, dtype=stream_dtype), draw(5, WIDTH, dtype=branch_dtype)
    stream, y = normlab.placements.Residual(alpha)(x, branch, norm)
    want = alpha * x.double() + branch.double()
    assert stream.dtype == y.dtype == stream_dtype
    assert_close(stream, want, 4 * torch.finfo(stream_dtype).eps)
    assert_close(
        y, F.layer_norm(want, (WIDTH,), norm.weight.double(), norm.bias.double()), 64 * torch.finfo(stream_dtype).eps
    )
    assert not fused_calls


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_branch_that_broadcasts_is_added_fused_or_not(fuse: bool) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH).double())
    x, branch = draw(3, 4, WIDTH), draw(WIDTH)
    stream, y = normlab.placements.Residual(fuse=fuse)(x, branch, norm)
    assert_close(stream, x + branch)
    assert_close(y, layer_norm(norm, x + branch))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", ["pre", "post"])
def test_hooks_on_norms_fire_fused_or_not(name: str, fuse: bool) -> None:
    net, seen = Net(name, FACTORIES["layer"][0], fuse=fuse), []
    norms = [m for m in net.modules() if isinstance(m, normlab.LayerNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, inputs, output: seen.append(module))
    net(torch.randn(2, WIDTH))
    assert len(norms) == len(seen) == len(set(seen))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", ["pre", "post", "sandwich", "reordered", "none", "hybrid-norm", "mix-ln"])
def test_hook_on_every_residual_sees_stream_and_branch(name: str, fuse: bool) -> None:
    net, seen = shaken(Net(name, FACTORIES["layer"][0], fuse=fuse).double()), []
    branches: list[Tensor] = []
    for m in net.modules():
        if isinstance(m, normlab.placements.Residual):
            m.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs, output)))
        elif isinstance(m, Map) and name in ("pre", "post"):
            m.register_forward_hook(lambda module, inputs, output: branches.append(output))
    x = draw(3, WIDTH)
    y = net(x)
    assert len(seen) == len({module for module, _, _ in seen}) == len(net.maps) == 2 * LAYERS
    streams = [output if isinstance(output, Tensor) else output[0] for _, _, output in seen]
    for (_, inputs, _), stream in zip(seen, streams, strict=True):
        assert_close(stream, inputs[0] + inputs[1])
    assert torch.equal(seen[0][1][0], x)
    if name in ("pre", "post"):
        assert all(a is inputs[1] for a, (_, inputs, _) in zip(branches, seen, strict=True))
    if name == "pre":
        assert all(torch.equal(a, inputs[0]) for a, (_, inputs, _) in zip(streams, seen[1:], strict=False))
        assert_close(y, layer_norm(net.ends.norm, streams[-1]))
    if name == "post":
        assert_close(y, layer_norm(net.places[-1].norm, streams[-1]))


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", NAMES)
def test_batch_norm_in_every_place_is_that_of_the_batch_without_its_padding(name: str, fuse: bool) -> None:
    net = shaken(Net(name, FACTORIES["batch"][0], fuse=fuse, **OPTIONS.get(name, {})).double())
    x = draw(5, 4, WIDTH)
    mask = torch.rand(5, 4) < 0.6
    x[~mask] = 1e3 * draw(int((~mask).sum()), WIDTH)
    x.requires_grad_()
    real = x.detach()[mask].requires_grad_()
    got, want = net(x, mask)[mask], FORMULAS[name](net, real, batch_norm)
    assert_close(got, want, 1e-11)
    upstream, parameters = draw(*want.shape), list(net.parameters())
    got_grads = torch.autograd.grad(got, [x, *parameters], upstream)
    want_grads = torch.autograd.grad(want, [real, *parameters], upstream)
    assert (got_grads[0][~mask] == 0).all()
    assert_gradients_close([got_grads[0][mask], *got_grads[1:]], want_grads, 1e-11)


@pytest.mark.parametrize(
    ("make", "N"),
    [
        (lambda: normlab.InstanceNorm(WIDTH - 1, affine=True), instance_norm),
        (lambda: normlab.GroupNorm(2, WIDTH - 1), group_norm),
    ],
    ids=["instance", "group"],
)
@pytest.mark.parametrize("name", NAMES)
def test_norms_of_one_sample_in_every_place_are_those_of_the_sample_without_its_padding(
    name: str, make: Callable[[], nn.Module], N: Normalize
) -> None:
    net = shaken(Net(name, make, width=WIDTH - 1, **OPTIONS.get(name, {})).double())
    x, lengths = draw(3, 6, WIDTH - 1), [6, 3, 4]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    x[~mask] = 1e3
    y = net(x, mask)
    for sample, length in enumerate(lengths):
        assert_close(
            y[sample, :length], FORMULAS[name](net, x[sample : sample + 1, :length], N)[0], 1e-11, f"sample {sample}"
        )


# ---- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normed", [True, False], ids=["with-norm", "bare"])
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("drop", [0.1, 0.5])
def test_residual_dropout_keeps_the_mean_of_the_branch(drop: float, fuse: bool, normed: bool) -> None:
    residual = normlab.placements.Residual(2.0, drop, fuse=fuse)
    x, branch = torch.randn(400, 50), torch.ones(400, 50)
    arguments = (x, branch, normlab.LayerNorm(50)) if normed else (x, branch)
    stream = residual(*arguments)[0] if normed else residual(*arguments)
    kept = stream - 2 * x
    dropped = kept.abs() < 1e-3
    assert_close(kept[~dropped], torch.full_like(kept[~dropped], 1 / (1 - drop)), 1e-5)
    share = dropped.double().mean().item()
    assert abs(share - drop) < 5 * math.sqrt(drop * (1 - drop) / kept.numel())
    residual.eval()
    stream = residual(*arguments)[0] if normed else residual(*arguments)
    assert_close(stream, 2 * x + 1, 1e-6)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_every_placement_falls_on_the_branch_once(name: str, fuse: bool) -> None:
    """Norms that do nothing, a stream of zero and a constant branch: what comes out is dropped or scaled up."""
    drop = 0.3
    facts = PLACEMENTS[name]
    place, ends = (
        facts.placement(nn.Identity, Slot(width=50), dropout=drop, fuse=fuse),
        facts.ends(nn.Identity, fuse=fuse),
    )
    if name == "rezero":
        nn.init.constant_(place.alpha, 1.5)

    def run() -> Tensor:
        return ends.leave(place(ends.enter(torch.zeros(400, 50)), torch.ones_like))

    y = run()
    whole = place.eval() and run()
    constant = {"rezero": 1.5, "residual-dual": 2.0}.get(name, 1.0)
    assert torch.equal(whole, torch.full((400, 50), constant))
    assert_close(y[y != 0], torch.full_like(y[y != 0], constant / (1 - drop)), 1e-6)
    share = (y == 0).double().mean().item()
    assert abs(share - drop) < 5 * math.sqrt(drop * (1 - drop) / y.numel())


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_follows_the_seed_and_is_off_in_eval(name: str, fuse: bool) -> None:
    net = shaken(Net(name, FACTORIES["layer"][0], dropout=0.4, fuse=fuse, **OPTIONS.get(name, {})))
    x = torch.randn(6, 5, WIDTH)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(net(x))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert_close(net.eval()(x), FORMULAS[name](net, x, layer_norm), 1e-5)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_residual_dual_drops_the_same_from_both_streams(fuse: bool) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH).double())
    place = normlab.placements.ResidualDual(lambda: norm, dropout=0.5, fuse=fuse)
    x, r, branch = draw(20, WIDTH), draw(20, WIDTH), draw(20, WIDTH)
    normed, plain = place(placements.Dual(x, r), lambda h: branch)
    dropped = plain - r
    assert 0.2 < (dropped.abs() < 1e-9).double().mean() < 0.8
    assert_close(normed, layer_norm(norm, x + dropped))


# ---- how the matrices start ------------------------------------------------------------------------------------------


def assert_spread(weight: Tensor, gain: float, what: str = "") -> None:
    """The standard deviation is gain * sqrt(2 / (fan_in + fan_out)), to five times its sampling error."""
    receptive = weight[0, 0].numel()
    want = gain * math.sqrt(2 / ((weight.shape[0] + weight.shape[1]) * receptive))
    error = 5 / math.sqrt(2 * weight.numel())
    assert error < 0.05
    assert weight.std().item() == pytest.approx(want, rel=error), what
    assert abs(weight.mean().item()) < 5 * want / math.sqrt(weight.numel()), what


PARTS = ("query", "key", "value", "output", "cross_value", "cross_output", "feedforward")
RULES: dict[str, tuple[Callable[..., None], dict[str, Any], dict[str, float]]] = {
    "plain": (normlab.placements.plain_init, {"num_layers": 8}, dict.fromkeys(PARTS, 1.0)),
    "deepnorm": (
        normlab.placements.deepnorm_init,
        {"num_layers": 8},
        {**dict.fromkeys(PARTS, 0.35355339), "query": 1.0, "key": 1.0},
    ),
    "deepnorm-decoder": (
        normlab.placements.deepnorm_init,
        {"num_layers": 27, "stack": "decoder", "other_layers": 5},
        {**dict.fromkeys(PARTS, 0.23570226), "query": 1.0, "key": 1.0},
    ),
    "subln": (
        normlab.placements.subln_init,
        {"num_layers": 12},
        {**dict.fromkeys(PARTS, 1.0), "value": 1.78270969, "output": 1.78270969, "feedforward": 1.78270969},
    ),
    "subln-encoder": (
        normlab.placements.subln_init,
        {"num_layers": 6, "stack": "encoder", "other_layers": 6},
        {**dict.fromkeys(PARTS, 1.0), "value": 1.54728838, "output": 1.54728838, "feedforward": 1.54728838},
    ),
    "b2t": (normlab.placements.b2t_init, {"num_layers": 16}, dict.fromkeys(PARTS, 0.25)),
}


@pytest.mark.parametrize("name", RULES)
def test_initialization_rule_gives_each_kind_its_spread(name: str) -> None:
    rule, depth, gains = RULES[name]
    parts = {kind: [nn.Linear(200, 120), nn.Linear(120, 200).weight] for kind in PARTS}
    rule(parts, **depth)
    for kind, (module, weight) in parts.items():
        assert_spread(module.weight, gains[kind], kind)
        assert_spread(weight, gains[kind], kind)
        assert (module.bias == 0).all()


def test_slices_of_a_fused_projection_have_their_own_fans() -> None:
    qkv = nn.Linear(200, 3 * 160)
    before = qkv.bias.clone()
    slices = [qkv.weight[i * 160 : (i + 1) * 160] for i in range(3)]
    normlab.placements.deepnorm_init({"query": slices[:1], "key": slices[1:2], "value": slices[2:]}, num_layers=8)
    for i, gain in enumerate((1.0, 1.0, 0.35355339)):
        assert_spread(qkv.weight[i * 160 : (i + 1) * 160], gain)
    assert qkv.weight.requires_grad and qkv.weight.is_leaf
    assert torch.equal(qkv.bias, before)


def test_gains_not_named_are_one_and_convolutions_count_their_window() -> None:
    conv, linear = nn.Conv2d(40, 48, 3), nn.Linear(200, 120, bias=False)
    normlab.placements.scaled_init({"value": [conv], "output": [linear]}, {"value": 3.0})
    assert_spread(conv.weight, 3.0)
    assert_spread(linear.weight, 1.0)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_models_start_as_their_placement_wants(name: str, stack: str) -> None:
    """An encoder-decoder of 2 and 3 layers; the factors by hand from the papers."""
    config = TransformerConfig(architecture="encoder-decoder", dim=128, num_heads=2, num_kv_heads=1, ffn_dim=256,
                               num_layers=2, num_decoder_layers=3, vocab_size=5, placement=name)  # fmt: skip
    layers, other = (2, 3) if stack == "encoder" else (3, 2)
    model = Stack(config, stack, layers, other)
    everything = 1 / math.sqrt(layers) if name == "b2t" else 1.0
    branch = cross = everything
    if name == "deepnorm":
        branch = cross = 0.87 * (2**4 * 3) ** (-1 / 16) if stack == "encoder" else 36**-0.25
    if name == "sub-ln":
        branch = math.sqrt(math.log(9) * math.log(4) / 3) if stack == "encoder" else math.sqrt(math.log(9))
    for layer in model.layers:
        qkv = layer.attention.qkv.weight
        assert_spread(qkv[:128], everything, "query")
        assert_spread(qkv[128:192], everything, "key")
        assert_spread(qkv[192:], branch, "value")
        for linear in (layer.attention.out, layer.feedforward.up, layer.feedforward.down):
            assert_spread(linear.weight, branch)
        if stack == "decoder":
            assert_spread(layer.cross.q.weight, everything, "cross query")
            assert_spread(layer.cross.kv.weight[:64], everything, "cross key")
            assert_spread(layer.cross.kv.weight[64:], cross, "cross value")
            assert_spread(layer.cross.out.weight, cross, "cross output")
        assert all((m.bias == 0).all() for m in layer.modules() if isinstance(m, nn.Linear))


def test_rules_work_on_a_model_of_torchs() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 8, enable_nested_tensor=False
    )
    parts: dict[str, list[Any]] = {"query": [], "key": [], "value": [], "output": [], "feedforward": []}
    for layer in model.layers:
        q, k, v = layer.self_attn.in_proj_weight.chunk(3)
        for kind, matrix in (("query", q), ("key", k), ("value", v), ("output", layer.self_attn.out_proj)):
            parts[kind].append(matrix)
        parts["feedforward"] += [layer.linear1, layer.linear2]
    normlab.placements.deepnorm_init(parts, num_layers=8)
    for layer in model.layers:
        q, k, v = layer.self_attn.in_proj_weight.chunk(3)
        assert_spread(q, 1.0)
        assert_spread(k, 1.0)
        for weight in (v, layer.self_attn.out_proj.weight, layer.linear1.weight, layer.linear2.weight):
            assert_spread(weight, 0.35355339)
        assert (layer.linear1.bias == 0).all() and (layer.self_attn.out_proj.bias == 0).all()
    model(torch.randn(2, 3, 128)).sum().backward()
    assert model.layers[0].self_attn.in_proj_weight.grad is not None


# ---- refusals --------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "layer-too-high": (lambda: Slot(layer=4, num_layers=4), r"0\.\.3.*got 4"),
    "layer-negative": (lambda: Slot(layer=-1), "got -1"),
    "no-layers": (lambda: Slot(num_layers=0), "num_layers=0"),
    "other-layers-negative": (lambda: Slot(other_layers=-1), "other_layers"),
    "kind": (lambda: Slot(kind="atention"), "Did you mean 'attention'"),
    "stack": (lambda: Slot(stack="encodr"), "Did you mean 'encoder'"),
    "placement": (lambda: normlab.PLACEMENTS["sandwhich"], "Did you mean 'sandwich'"),
    "placement-of-a-model": (lambda: build(placement="deep-norm"), "Did you mean 'deepnorm'"),
    "residual-dropout-one": (lambda: normlab.placements.Residual(dropout=1.0), r"\[0, 1\).*1\.0"),
    "residual-dropout-negative": (lambda: normlab.placements.Residual(dropout=-0.1), r"\[0, 1\).*-0\.1"),
    "placement-dropout": (lambda: normlab.placements.PreNorm(nn.Identity, dropout=1.5), r"\[0, 1\).*1\.5"),
    "share-above-one": (lambda: normlab.placements.MixNorm(nn.Identity, post_share=1.01), r"\[0, 1\].*1\.01"),
    "share-negative": (lambda: normlab.placements.MixNorm(nn.Identity, post_share=-0.5), r"\[0, 1\].*-0\.5"),
    "output-change": (lambda: normlab.placements.admin_scale(12, "constnt"), "Did you mean 'constant'"),
    "admin": (
        lambda: normlab.placements.Admin(nn.Identity, Slot(width=4), output_change="linear"),
        "Known: constant, log",
    ),
    "admin-width": (lambda: normlab.placements.Admin(nn.Identity), "width from Identity; name it: Slot"),
    "deepnorm-depth": (lambda: normlab.placements.deepnorm_scales(0), "num_layers >= 1"),
    "deepnorm-stack": (lambda: normlab.placements.deepnorm_scales(4, stack="decodr"), "Did you mean 'decoder'"),
    "subln-other": (lambda: normlab.placements.subln_gain(4, other_layers=-2), "other_layers >= 0"),
    "part": (lambda: normlab.placements.scaled_init({"valu": [nn.Linear(2, 2)]}), "Did you mean 'value'"),
    "part-of-a-rule": (
        lambda: normlab.placements.deepnorm_init({"feed_forward": []}, num_layers=2),
        "Did you mean 'feedforward'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_with_what_to_do(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        make()


def test_option_of_another_placement_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="post_share"):
        build(placement="pre", placement_options={"post_share": 0.5}, dim=8, num_heads=2, num_layers=1)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_complete(name: str) -> None:
    facts = PLACEMENTS[name]
    assert issubclass(facts.placement, placements.Placement) and issubclass(facts.ends, placements.Ends)
    assert re.fullmatch(r"\d{4}\.\d{5}", facts.paper)
    assert facts.year == 2000 + int(facts.paper[:2])
    assert facts.formula and facts.advice and facts.advice[-1] != "."
    assert set(inspect.signature(facts.init).parameters) == {"parts", "num_layers", "stack", "other_layers"}
    assert normlab.PLACEMENTS[name] is facts
    assert getattr(placements, facts.placement.__name__) is facts.placement


def test_every_placement_class_has_a_row_of_its_own() -> None:
    classes = {
        c
        for c in vars(placements).values()
        if inspect.isclass(c) and issubclass(c, placements.Placement) and c is not placements.Placement
    }
    assert classes == {facts.placement for facts in PLACEMENTS.values()} and len(classes) == len(PLACEMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_draws_the_placement(name: str) -> None:
    place = PLACEMENTS[name].placement
    drawing = [line for line in (vars(place)["__doc__"] or "").splitlines() if "──" in line]
    assert len(drawing) >= 2 and "S" in drawing[0] + drawing[1]
    assert any("└" in line and "┘" in line for line in drawing), "no residual drawn"
    norms = sum(isinstance(m, nn.Identity) for m in Net(name, nn.Identity, layers=4).modules())
    assert ("N " in "\n".join(drawing) + " ") == (norms > 0)


# ---- the contract ----------------------------------------------------------------------------------------------------

CAUSAL = ("decoder", "encoder-decoder")
STATISTICS = {"batch": "position", "group": "position", "power": "running"}
STEPS, GOAL = 60, 0.3


def may_be_refused(architecture: str, norm: str, placement: str) -> bool:
    """No causal form; statistics that leave nothing of a mean over positions; attention that is not there."""
    if norm == "instance" and architecture != "encoder":
        return True
    return architecture == "convolution" and placement in ("normformer", "hybrid-norm")


def tiny(architecture: str, norm: str, placement: str, **more: Any) -> Any:
    settings = {
        "dim": 24, "num_heads": 2, "num_layers": 2, "ffn_dim": 48, "vocab_size": 11, "max_length": 8, "image_size": 4,
        "num_classes": 4 if architecture in ("vision", "convolution") else None,
        "causal_statistics": STATISTICS.get(norm) if architecture in CAUSAL else None,
    }  # fmt: skip
    return build(architecture=architecture, norm=norm, placement=placement, **{**settings, **more})


def task_of(architecture: str, model: Any) -> tuple[list[nn.Parameter], Callable[[], Tensor], nn.Parameter]:
    """(what is learned, the loss on one fixed batch, the first matrix)."""
    random = torch.Generator().manual_seed(3)
    tokens, labels = (torch.randint(0, 11, (4, 6), generator=random) for _ in range(2))
    mask = torch.arange(6) < torch.tensor([6, 5, 4, 6])[:, None]
    images = torch.randn(4, 1, 4, 4, generator=random)
    parameters = list(model.parameters())
    if architecture == "encoder":
        head = nn.Linear(24, 11)
        parameters += head.parameters()
        return (
            parameters,
            lambda: F.cross_entropy(head(model(tokens, mask)[mask]), labels[mask]),
            model.embedding.token.weight,
        )
    if architecture == "decoder":
        return parameters, lambda: F.cross_entropy(model(tokens).mT, labels), model.embedding.token.weight
    if architecture == "encoder-decoder":
        loss = lambda: F.cross_entropy(model(tokens, tokens.flip(1), mask).mT, labels)  # noqa: E731
        return parameters, loss, model.source.token.weight
    first = model.patch.weight if architecture == "vision" else model.stem.weight
    return parameters, lambda: F.cross_entropy(model(images), torch.arange(4)), first


def assert_learns(parameters: list[nn.Parameter], loss: Callable[[], Tensor], first: nn.Parameter) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, fused=True)
    start = loss()
    start.backward()
    assert torch.isfinite(start)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in parameters)
    reached = False
    for step in range(STEPS):
        reached |= bool(first.grad.abs().max() > 1e-7)
        optimizer.step()
        optimizer.zero_grad()
        now = loss()
        if step > 0 and now < GOAL * start:
            assert reached, "no gradient came to the first matrix"
            return
        now.backward()
    pytest.fail(f"loss went from {start.item():.3f} to {now.item():.3f} only")


@pytest.mark.parametrize("placement", NAMES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_norm_in_every_place_learns_one_batch_or_is_refused(architecture: str, norm: str, placement: str) -> None:
    try:
        model = tiny(architecture, norm, placement)
    except ValueError as refusal:
        assert may_be_refused(architecture, norm, placement)
        assert norm in str(refusal) or placement in str(refusal)
        assert len(str(refusal).split()) > 8, "a refusal gives its reason"
        return
    assert_learns(*task_of(architecture, model))


@pytest.mark.parametrize("norm", ["batch", "group", "instance", "power"])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_norms_over_tokens_in_a_causal_stack_are_refused_unless_made_safe(architecture: str, norm: str) -> None:
    with pytest.raises(ValueError, match=rf"{norm}.*later.*layer, rms, scale") as refusal:
        tiny(architecture, norm, "pre", causal_statistics=None)
    assert ("causal_statistics" in str(refusal.value)) == (norm != "instance")


@pytest.mark.parametrize("norm", ["batch", "power"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_running_forms_learn_in_a_decoder(norm: str, placement: str) -> None:
    assert_learns(*task_of("decoder", tiny("decoder", norm, placement, causal_statistics="running")))


@pytest.mark.parametrize("placement", ["pre", "post", "reordered"])
def test_classifier_behind_instance_norm_learns_or_is_refused(placement: str) -> None:
    """The mean over tokens of what was centred over tokens is zero: such a model cannot see its input."""
    try:
        model = tiny("encoder", "instance", placement, num_classes=4)
    except ValueError as refusal:
        assert "instance" in str(refusal)
        return
    tokens = torch.randint(0, 11, (4, 6))
    assert_learns(list(model.parameters()), lambda: F.cross_entropy(model(tokens), torch.arange(4)),
                  model.embedding.token.weight)  # fmt: skip


@pytest.mark.parametrize("dim", [16, 32, 64])
def test_group_norm_of_single_tokens_leaves_something_to_see_at_small_widths(dim: int) -> None:
    """A group of one channel of one token has no spread: all comes out as the bias."""
    model = tiny("decoder", "group", "pre", dim=dim)
    assert_learns(*task_of("decoder", model))
