"""What depth does under each placement, at the start of training: the results the papers derive, measured.

Bands, not points: widths are small (64 and 32) and the theory is about large ones. The gradients are those of Xiong et al.
2020, theorem 1; the change of the output by one small step is that of DeepNet (Wang et al. 2022, section 4), whose bound
on DeepNorm is an upper bound and no constant.

The figures of docs/en/placements.md come from the sizes marked nightly (minutes). The ordinary run asks the same of fewer
layers, seeds and tokens; one band is wider there, which says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F

import normlab


@dataclass(frozen=True)
class Size:
    """What is averaged over, and at which depths: ``depths`` for gradients, ``step_depths`` for the change by one step."""

    depths: tuple[int, ...]
    step_depths: tuple[int, ...]
    seeds: int
    batch: int
    length: int


FULL = Size(depths=(6, 12, 24, 48), step_depths=(4, 8, 16, 32, 64), seeds=5, batch=8, length=65)
SHORT = Size(depths=(4, 8, 16), step_depths=(4, 24), seeds=2, batch=4, length=33)
full = pytest.param(FULL, marks=pytest.mark.nightly, id="full")
short = pytest.param(SHORT, id="short")


def slope(depths: tuple[int, ...], values: list[float]) -> float:
    """Of a straight line through log(value) against log(depth)."""
    xs, ys = ([math.log(v) for v in vs] for vs in (depths, values))
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def decoder(placement: str, num_layers: int, dim: int, seed: int, **settings):
    torch.manual_seed(seed)
    model = normlab.build(architecture="decoder", dim=dim, num_layers=num_layers, ffn_dim=4 * dim, vocab_size=61,
                          max_length=64, placement=placement, activation="relu", **settings)  # fmt: skip
    return model, torch.randint(0, 61, (8, 65))


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


@cache
def gradients(placement: str, num_layers: int, size: Size) -> tuple[tuple[float, ...], ...]:
    """Norm of the gradient of each layer's last feed-forward matrix, from the lowest layer up; one row per seed."""
    rows = []
    for seed in range(size.seeds):
        model, tokens = decoder(placement, num_layers, 64, seed)
        tokens = tokens[: size.batch, : size.length]
        loss_of(model, tokens, model.stack(model.embedding(tokens[:, :-1]))).backward()
        rows.append(tuple(float(layer.feedforward.down.weight.grad.norm()) for layer in model.stack.layers))
    return tuple(rows)


def last_layer(placement: str, size: Size) -> list[float]:
    return [sum(g[-1] for g in gradients(placement, n, size)) / size.seeds for n in size.depths]


def last_over_first(placement: str, num_layers: int, size: Size) -> list[float]:
    return [g[-1] / g[0] for g in gradients(placement, num_layers, size)]


# From 4 to 16 layers pre-norm's line is flatter than from 6 to 48: the embedding still counts beside so few sums.
BANDS = {
    ("pre", FULL): (-0.65, -0.35),
    ("pre", SHORT): (-0.65, -0.25),
    ("post", FULL): (-0.15, 0.25),
    ("post", SHORT): (-0.15, 0.25),
}


@pytest.mark.parametrize("size", [short, full])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_last_layers_gradient_falls_like_the_root_of_depth_under_pre_and_stays_under_post(placement, size):
    low, high = BANDS[placement, size]
    assert low <= slope(size.depths, last_layer(placement, size)) <= high


@pytest.mark.parametrize(
    ("size", "num_layers"),
    [pytest.param(SHORT, n) for n in SHORT.depths]
    + [pytest.param(FULL, n, marks=pytest.mark.nightly) for n in FULL.depths],
    ids=lambda value: str(value) if isinstance(value, int) else ("full" if value is FULL else "short"),
)
def test_deepnorms_gradient_is_even_from_first_to_last_layer(size, num_layers):
    ratios = last_over_first("deepnorm", num_layers, size)
    assert 0.9 <= sum(ratios) / len(ratios) <= 1.1


@pytest.mark.parametrize(
    ("size", "num_layers"),
    [pytest.param(SHORT, 16, id="short"), pytest.param(FULL, 24, id="full", marks=pytest.mark.nightly)],
)
def test_under_pre_the_lowest_layer_gets_the_largest_gradient(size, num_layers):
    ratios = last_over_first("pre", num_layers, size)
    assert max(ratios) < 0.5
    assert sum(ratios) / len(ratios) < 0.4


def test_pre_norms_stream_grows_linearly_with_depth():
    """E|x_l|^2 / d lies between 1 + l/2 and 1 + 3l/2: lemma 2 of Xiong et al."""
    model, tokens = decoder("pre", 24, 64, 0, num_heads=1, positions="none")
    sizes: list[float] = []
    for layer in model.stack.layers:
        layer.feedforward_place.residual.register_forward_hook(
            lambda module, inputs, output: sizes.append(float(output[0].detach().square().mean()))
        )
    model(tokens[:, :-1])
    assert len(sizes) == 24
    assert all(1 + n / 2 <= size <= 1 + 3 * n / 2 for n, size in enumerate(sizes, start=1)), sizes


@cache
def output_change(placement: str, num_layers: int, rule: str, size: Size) -> float:
    """RMS change of the last hidden state by one small step on the layers' parameters, over the step; three seeds."""
    step, total = 1e-7, 0.0
    for seed in range(3):
        model, tokens = decoder(placement, num_layers, 32, seed, num_heads=2)
        model, tokens = model.double(), tokens[: size.batch // 2, : size.length // 2 + 1]

        def hidden(model=model, tokens=tokens) -> torch.Tensor:
            return model.stack(model.embedding(tokens[:, :-1]))

        before = hidden()
        parameters = list(model.stack.layers.parameters())
        slopes = torch.autograd.grad(loss_of(model, tokens, before), parameters)
        with torch.no_grad():
            for parameter, g in zip(parameters, slopes, strict=True):
                parameter -= step * (g if rule == "sgd" else g.sign())  # Adam's first step is the sign
            total += float((hidden() - before).square().mean().sqrt()) / step
    return total / 3


@pytest.mark.parametrize("size", [short, full])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_one_step_moves_post_norm_far_more_than_deepnorm(rule, size):
    depths = size.step_depths
    post, deep = ([output_change(p, n, rule, size) for n in depths] for p in ("post", "deepnorm"))
    assert post[-1] >= 20 * deep[-1], (post, deep)
    assert slope(depths, post) >= slope(depths, deep) + 0.3, (post, deep)


def test_the_step_is_small_enough_to_be_a_derivative():
    """Halving it must not change the quotient, or the effect has saturated."""
    model, tokens = decoder("post", 16, 32, 0, num_heads=2)
    model, tokens = model.double(), tokens[:4, :33]
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    before = model.stack(model.embedding(tokens[:, :-1]))
    parameters = dict(model.stack.layers.named_parameters())
    slopes = torch.autograd.grad(loss_of(model, tokens, before), list(parameters.values()))
    quotients = []
    with torch.no_grad():
        for step in (1e-7, 5e-8):
            model.load_state_dict(start)
            for parameter, g in zip(parameters.values(), slopes, strict=True):
                parameter -= step * g
            moved = model.stack(model.embedding(tokens[:, :-1])) - before
            quotients.append(float(moved.square().mean().sqrt()) / step)
    assert quotients[0] == pytest.approx(quotients[1], rel=1e-3)
