"""Which cells share a statistic: seen from outside, by moving one cell and looking at what else moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm

N, C, H, W, G = 3, 4, 5, 7, 2  # images: samples, channels, height, width; groups of channels
B, L, D = 3, 5, 11  # text: sentences, tokens, features


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def given(norm: Any, gain: Tensor, bias: Tensor | None = None) -> None:
    """Gain and bias of a layer become these."""
    with torch.no_grad():
        norm.weight.copy_(gain)
        if bias is not None:
            norm.bias.copy_(bias)


def moved_by_one_cell(norm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Which outputs change when the first cell of the second sample does."""
    at = (1, *[0] * (x.dim() - 1))
    other = x.clone()
    other[at] += 0.5
    return norm(x) != norm(other)


def reach(norm: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    """How many cells share the statistic, and over how many places along each axis they lie."""
    moved = moved_by_one_cell(norm, x)
    along = [moved.any(dim=[a for a in range(x.dim()) if a != axis]).sum() for axis in range(x.dim())]
    return {"cells": float(moved.sum()), **{f"axis{i}": float(count) for i, count in enumerate(along)}}


def _float64(norm: torch.nn.Module) -> torch.nn.Module:
    return norm.double().train()


def images() -> dict[str, float]:
    """The four norms on (N, C, H, W), as the stack of books tells it."""
    x = drawn(N, C, H, W)
    norms = {
        "batch": BatchNorm(C, channel_dim=1), "layer": LayerNorm((C, H, W)), "instance": InstanceNorm(C, channel_dim=1),
        "group": GroupNorm(G, C, channel_dim=1),
    }  # fmt: skip
    found: dict[str, float] = {}
    for name, norm in norms.items():
        seen = reach(_float64(norm), x)
        found |= {f"{name}_cells": seen["cells"], f"{name}_samples": seen["axis0"], f"{name}_channels": seen["axis1"]}
    return found


def text() -> dict[str, float]:
    """LayerNorm and BatchNorm on (B, L, d), as a Transformer has them, and LayerNorm over whole sentences."""
    x = drawn(B, L, D, seed=1)
    token, sentence, batch = _float64(LayerNorm(D)), _float64(LayerNorm((L, D))), _float64(BatchNorm(D))
    found: dict[str, float] = {}
    for name, norm in (("token", token), ("sentence", sentence), ("batch", batch)):
        seen = reach(norm, x)
        found |= {f"{name}_{what}": seen[axis] for what, axis in
                  (("cells", "cells"), ("samples", "axis0"), ("positions", "axis1"), ("features", "axis2"))}  # fmt: skip
    found["token_against_sentence"] = float((token(x) - sentence(x)).detach().abs().max())
    return found


def special_cases() -> dict[str, float]:
    """Largest differences where one norm should be another."""
    x, one = drawn(N, C, H, W, seed=2), drawn(1, C, H, W, seed=3)
    layer = LayerNorm((C, H, W), elementwise_affine=False)
    instance = InstanceNorm(C, channel_dim=1)

    def group(groups: int) -> GroupNorm:
        return GroupNorm(groups, C, affine=False, channel_dim=1)

    batch = BatchNorm(C, affine=False, channel_dim=1)

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max())

    return {
        "one_group_is_layer": apart(group(1)(x), layer(x)),
        "group_per_channel_is_instance": apart(group(C)(x), instance(x)),
        "batch_of_one_is_instance": apart(batch(one), instance(one)),
        "two_groups_are_not_layer": apart(group(G)(x), layer(x)),
    }


def contrast() -> dict[str, float]:
    """InstanceNorm on an image and on the same image with other brightness and contrast in each channel."""
    x = drawn(2, C, 13, 17, seed=4)
    scale, shift = drawn(1, C, 1, 1, seed=5).abs() + 0.5, drawn(1, C, 1, 1, seed=6)
    norm = InstanceNorm(C, eps=1e-12, channel_dim=1)
    return {**{f"instance_{k}": v for k, v in reach(norm, x).items()},
            "changed_by_contrast": float((norm(x) - norm(x * scale + shift)).abs().max())}  # fmt: skip


def order() -> dict[str, float]:
    """Rank correlations: of the samples in a feature through BatchNorm, of the features in a token through LayerNorm."""
    x = drawn(31, D, seed=7)
    batch, layer = _float64(BatchNorm(D)), _float64(LayerNorm(D))

    def ranks(a: Tensor) -> Tensor:
        return a.argsort().argsort().double()

    def kept(a: Tensor, b: Tensor) -> float:
        """The lowest rank correlation between rows of a and b."""
        pairs = [torch.corrcoef(torch.stack([ranks(p), ranks(q)]))[0, 1] for p, q in zip(a, b, strict=True)]
        return float(torch.stack(pairs).min())

    with torch.no_grad():
        found = {"batch_keeps_samples": kept(x.T, batch(x).T), "layer_keeps_features": kept(x, layer(x)),
                 "batch_keeps_features": kept(x, batch(x)), "layer_keeps_samples": kept(x.T, layer(x).T)}  # fmt: skip
        given(layer, drawn(D, seed=8))
        return {**found, "layer_keeps_features_with_gain": kept(x, layer(x))}


def same_feature_everywhere() -> dict[str, float]:
    """The matrices of a Transformer layer are the same at every position: tokens swapped in front of the feed-forward layer, or behind it."""
    from ...models import TransformerConfig, build

    torch.manual_seed(0)
    layer = (
        build(TransformerConfig(dim=16, num_layers=1, num_heads=4, num_classes=2)).double().stack.layers[0].feedforward
    )
    x = drawn(2, L, 16, seed=9)
    turned = torch.tensor([3, 1, 2, 0, 4])
    with torch.no_grad():
        return {"swapped_before_or_after": float((layer(x[:, turned], None) - layer(x, None)[:, turned]).abs().max())}
