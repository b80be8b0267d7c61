"""Each placement against its formula: in stacks, inside the sub-layers, in a block of one's own, with masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas import (
    FACTORIES,
    FORMULAS,
    NAMES,
    OPTIONS,
    WIDTH,
    Map,
    Net,
    Normalize,
    UserBatchNorm,
    assert_close,
    assert_gradients_close,
    assert_is_formula,
    batch_norm,
    draw,
    group_norm,
    instance_norm,
    layer_norm,
    shaken,
)
from torch import Tensor, nn

import normlab
from normlab import PLACEMENTS, placements
from normlab.models import Stack, TransformerConfig
from normlab.placements import Slot


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
