"""What depends on depth, and how the matrices start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from formulas import (
    NAMES,
    WIDTH,
    Net,
)
from torch import Tensor, nn

import normlab
from normlab.models import Stack, TransformerConfig, build
from normlab.placements import Slot

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
