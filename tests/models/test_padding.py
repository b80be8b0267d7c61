"""Padding changes nothing real; fused sums change nothing at all."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    BATCH,
    DIM,
    LENGTH,
    LLAMA,
    WORDS,
    assert_buffers,
    assert_outcomes,
    example,
    gradients,
    lengths_mask,
    make,
    make_any,
    off,
    outcome,
    words,
)

import normlab
from normlab import NORMS, PLACEMENTS

# ---- fused and unfused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "dtype", "limit"),
    [
        ("encoder", torch.float32, 3e-5),
        ("encoder-decoder", torch.float64, 1e-12),
        ("convolution", torch.float64, 1e-12),
    ],
    ids=["encoder", "encoder-decoder", "convolution"],
)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_fused_sums_and_norms_equal_the_two_steps(monkeypatch, placement, norm, architecture, dtype, limit):
    if architecture == "convolution" and placement in ("normformer", "hybrid-norm"):
        pytest.skip("reaches into attention")
    fused = make_any(architecture, placement=placement, norm=norm, num_layers=3).to(dtype)
    plain = make_any(architecture, placement=placement, norm=norm, num_layers=3, fused=False).to(dtype)
    plain.load_state_dict(fused.state_dict())
    calls = []
    real = normlab.functional.residual_norm
    monkeypatch.setattr(normlab.functional, "residual_norm", lambda *a, **k: calls.append(k["alpha"]) or real(*a, **k))
    arguments = tuple(a.to(dtype) if a.is_floating_point() else a for a in example(architecture))
    want = outcome(plain, lambda: plain(*arguments))
    assert not calls
    got = outcome(fused, lambda: fused(*arguments))
    assert bool(calls) == (placement not in ("none", "rezero"))
    assert (placement == "deepnorm") == any(alpha != 1 for alpha in calls)
    assert_outcomes(got, want, limit)


# ---- padding -----------------------------------------------------------------------------------------------------------

PADDED: dict[str, dict[str, Any]] = {
    **{name: {"norm": name} for name in NORMS},
    "power-running": {"norm": "power", "norm_options": {"warmup_steps": 0}},
    "instance-affine": {"norm": "instance", "norm_options": {"affine": True, "track_running_stats": True}},
}


@pytest.mark.parametrize("placement", ["pre", "post", "sub-ln", "hybrid-norm", "residual-dual"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing_real(name, training, placement):
    """More of it, or other words in it: the same outputs at real positions, gradients and running statistics."""
    model = make(placement=placement, **PADDED[name]).double().train(training)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH - 1, 4)
    mask[1, 3] = False
    other = torch.where(mask, tokens, (tokens + 5) % WORDS)
    longer, longer_mask = F.pad(other, (0, 3), value=2), F.pad(mask, (0, 3))
    upstream = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64) * mask[..., None]
    twins = [copy.deepcopy(model) for _ in range(2)]
    want = outcome(model, lambda: model(tokens, mask), upstream)
    changed = outcome(twins[0], lambda: twins[0](other, mask), upstream)
    padded = outcome(twins[1], lambda: twins[1](longer, longer_mask)[:, :LENGTH], upstream)
    for twin, got in zip(twins, (changed, padded), strict=True):
        assert off(got.pop("output")[mask], want["output"][mask]) <= 1e-11
        assert_outcomes({"output": want["output"], **got}, want, 1e-11)
        assert_buffers(twin, model, 1e-11)


@pytest.mark.parametrize("name", PADDED)
def test_without_its_mask_padding_does_change_what_norms_over_tokens_see(name):
    """So that the test above says something."""
    model = make(placement="post", positions="none", **PADDED[name]).double()
    twin = copy.deepcopy(model)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    with torch.no_grad():
        with_mask, without = model(tokens, mask)[mask], twin(tokens)[mask]
    assert off(without, with_mask) > 1e-3


@pytest.mark.parametrize("placement", ["pre", "post", "sub-ln", "hybrid-norm"])
@pytest.mark.parametrize("name", PADDED)
def test_a_sample_of_nothing_but_padding_stays_finite_and_touches_no_other(name, placement):
    # The mean over tokens of an InstanceNorm is zero, so with that norm class scores are refused.
    classes = None if PADDED[name]["norm"] == "instance" else 5
    model = make(placement=placement, num_classes=classes, **PADDED[name]).double()
    twin = copy.deepcopy(model)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, 0, LENGTH)
    real = torch.tensor([0, 2])
    y = model(tokens, mask)
    assert y.isfinite().all()
    rows = (y[real], twin(tokens[real], mask[real]))
    assert off(*(rows if classes else (r[mask[real]] for r in rows))) <= 1e-11
    y.backward(torch.randn_like(y))
    assert all(g.isfinite().all() for g in gradients(model).values())


def test_a_source_of_nothing_but_padding_stays_finite():
    model = make(architecture="encoder-decoder").double()
    source, target, mask = words(BATCH, LENGTH), words(BATCH, 5), lengths_mask(LENGTH, 7, 0, LENGTH)
    y = model(source, target, mask)
    real = torch.tensor([0, 2])
    assert y.isfinite().all()
    assert off(y[real], model(source[real], target[real], mask[real])) <= 1e-12
    y.backward(torch.randn_like(y))
    assert all(g.isfinite().all() for g in gradients(model).values())


def test_padding_may_stand_anywhere_in_a_decoders_text():
    """Left, right or between: real positions see the real ones before them, and no row is empty."""
    model = make(architecture="decoder", **LLAMA).double()
    tokens, mask = words(BATCH, LENGTH), torch.rand(BATCH, LENGTH) < 0.6
    mask[0, :4] = False
    mask[1] = False
    y, other = model(tokens, mask), model(torch.where(mask, tokens, (tokens + 5) % WORDS), mask)
    assert y.isfinite().all()
    assert off(other[mask], y[mask]) <= 1e-12
    assert off(model(tokens)[mask], y[mask]) > 1e-3


def test_class_scores_come_from_the_mean_of_real_tokens():
    model = make(num_classes=5)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    vectors = model.stack(model.embedding(tokens, mask), mask)
    mean = torch.stack([vectors[0, :7].mean(0), vectors[1].mean(0), vectors[2, :4].mean(0)])
    assert off(model(tokens, mask), F.linear(mean, model.head.weight, model.head.bias)) <= 1e-5
