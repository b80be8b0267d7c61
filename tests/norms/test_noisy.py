"""Noise behind a norm: its distribution, its repetition, and where there must be none."""

from __future__ import annotations

import pytest
import torch
from norm_cases import shaken

import normlab
from normlab.norms import NoisyNorm


def noisy(norm=None, **options):
    return NoisyNorm(norm or shaken(normlab.LayerNorm(13)), **options)


def test_a_forward_in_training_is_the_norm_scaled_and_shifted_by_its_draw():
    layer = noisy(shift=0.7, scale=1.5, seed=3)
    x = torch.randn(4, 5, 13)
    for forward in (1, 2):
        scale, shift = layer.draw(13, forward)
        torch.testing.assert_close(layer(x), layer.norm(x) * scale.float() + shift.float())
    assert int(layer.forwards) == 2
    assert not torch.equal(layer.draw(13, 1)[1], layer.draw(13, 2)[1])


def test_draws_are_uniform_within_their_bounds():
    scale, shift = noisy(shift=0.5, scale=1.25).draw(20000, 1)
    assert shift.abs().max() <= 0.5 and (scale <= 1.25).all() and (scale >= 0.8).all()
    assert abs(shift.mean()) < 0.01 and abs(shift.std() - 1 / 12**0.5) < 0.01
    assert abs(scale.log().mean()) < 0.01  # as often larger as smaller
    quarters = torch.histc(shift, 4, -0.5, 0.5) / len(shift)
    assert (quarters - 0.25).abs().max() < 0.02


def test_none_in_evaluation_and_gradients_are_those_of_the_affine_map():
    layer = noisy()
    x = torch.randn(3, 13)
    assert torch.equal(layer.eval()(x), layer.norm(x)) and int(layer.forwards) == 0
    layer.train()
    x = x.double().requires_grad_()
    layer = layer.double()
    up = torch.randn(3, 13, dtype=torch.float64)
    (got,) = torch.autograd.grad(layer(x), [x], up)
    (want,) = torch.autograd.grad(layer.norm(x), [x], up * layer.draw(13, 1)[0])
    torch.testing.assert_close(got, want)


def test_torchs_random_numbers_are_left_alone():
    layer, x = noisy(), torch.randn(3, 13)
    before = torch.get_rng_state()
    layer(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_state_goes_on_with_the_same_noise():
    layer, x = noisy(seed=5), torch.randn(2, 13)
    for _ in range(3):
        layer(x)
    state = layer.state_dict()
    other = noisy(seed=5)
    other.load_state_dict(state)
    assert torch.equal(layer(x), other(x))
    layer.reset_parameters()
    assert int(layer.forwards) == 0 and torch.equal(layer.norm.weight, torch.ones(13))


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_padding_stays_zero(kind):
    layer = noisy(normlab.make_norm(kind, 13))
    mask = torch.arange(6) < torch.tensor([6, 2, 0])[:, None]
    y = layer(torch.randn(3, 6, 13), mask=mask)
    assert not y[~mask].any() and y[mask].all(-1).any()
    again = layer(torch.randn(3, 6, 13), lengths=[6, 2, 0])
    assert not again[~mask].any()
    assert layer.over_tokens == (kind == "batch")


def test_channels_of_images_have_their_own_noise():
    layer = noisy(normlab.BatchNorm(3, affine=False, channel_dim=1), scale=1.0)
    y = layer(torch.randn(4, 3, 5, 5))
    torch.testing.assert_close(y.mean((0, 2, 3)), layer.draw(3, 1)[1].float(), rtol=1e-4, atol=1e-4)


def test_settings_that_mean_nothing_are_refused():
    for wrong in ({"shift": -1}, {"scale": 0.5}, {"shift": float("nan")}, {"scale": "2"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            noisy(**wrong)
        with pytest.raises(ValueError, match=next(iter(wrong))):
            normlab.TransformerConfig(norm_noise=wrong)
    with pytest.raises(ValueError, match="noise option 'shfit'"):
        normlab.TransformerConfig(norm_noise={"shfit": 1})


SETTINGS = dict(architecture="decoder", dim=12, num_layers=2, num_heads=2, vocab_size=11, placement="sandwich")


def test_a_model_has_the_same_weights_with_and_without_noise_and_its_norms_differ():
    torch.manual_seed(7)
    plain = normlab.build(**SETTINGS)
    torch.manual_seed(7)
    model = normlab.build(**SETTINGS, norm_noise={"shift": 0.5, "scale": 1.25})
    layers = [m for m in model.modules() if isinstance(m, NoisyNorm)]
    assert len(layers) == 9 and {m.seed for m in layers} == {7}
    assert len({tuple(m.draw(12, 1)[1].tolist()) for m in layers}) == 9  # each norm its own noise
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q), name
    tokens = torch.randint(0, 11, (3, 6))
    torch.testing.assert_close(model.eval()(tokens), plain(tokens))
    assert (model.train()(tokens) - plain(tokens)).abs().max() > 0.05


def test_recomputing_a_layer_draws_what_the_forward_drew():
    tokens, up = torch.randint(0, 11, (3, 6)), torch.randn(3, 6, 11)
    found = []
    for checkpoint in (False, True):
        torch.manual_seed(1)
        model = normlab.build(**SETTINGS, norm_noise={}, checkpoint=checkpoint)
        (model(tokens) * up).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert {int(m.forwards) for m in model.modules() if isinstance(m, NoisyNorm)} == {1}
    torch.testing.assert_close(*found)


def test_norms_inside_are_found():
    model = normlab.build(**SETTINGS, norm_noise={})
    assert [s.kind for s in normlab.find_norms(model)] == ["layer"] * 9
