"""Statistics that are constants to the gradient: the forward of the ordinary norm, the backward of a fixed affine map."""

from __future__ import annotations

import pytest
import torch
from norm_cases import FEATURES, LENGTHS, assert_near, draw, grads, shaken

import normlab

MAKERS = {
    "layer": lambda **k: normlab.LayerNorm(FEATURES, eps=1e-3, **k),
    "rms": lambda **k: normlab.RMSNorm(FEATURES, eps=1e-3, bias=True, **k),
    "partial": lambda **k: normlab.RMSNorm(FEATURES, eps=1e-3, partial=0.4, **k),
    "offset": lambda **k: normlab.LayerNorm(FEATURES, eps=1e-3, gain="offset", **k),
    "scale": lambda **k: normlab.ScaleNorm(FEATURES, **k),
}


def by_hand(kind, x, layer):
    """In float64, with what the statistics are taken from cut off the graph by hand."""
    fixed = x.detach()
    if kind in ("layer", "offset"):
        mean = fixed.mean(-1, keepdim=True)
        y = (x - mean) / ((fixed - mean).pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    elif kind == "scale":
        y = x / fixed.norm(dim=-1, keepdim=True).clamp(min=1e-5)
    else:
        count = int(0.4 * FEATURES) if kind == "partial" else FEATURES
        y = x / (fixed[..., :count].pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    weight = layer.weight.double()
    y = y * (1 + weight if kind == "offset" else weight)
    return y if layer.bias is None else y + layer.bias.double()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_forward_and_gradients_equal_autograd_with_detached_statistics(kind, masked, dtype):
    layer = shaken(MAKERS[kind](detach_statistics=True))
    mask = torch.arange(11) < torch.tensor(LENGTHS)[:, None] if masked else None
    x = draw(5, 11, FEATURES, dtype=dtype).requires_grad_()
    z = x.detach().double().requires_grad_()
    y, expected = layer(x, mask=mask), by_hand(kind, z, layer)
    up = draw(5, 11, FEATURES, dtype=dtype)
    if mask is not None:
        expected = torch.where(mask[..., None], expected, 0)
    assert y.dtype == dtype
    assert_near(y, expected, 8, "y")
    parameters = list(layer.parameters())
    for name, got, want in zip(
        ["dx", *dict(layer.named_parameters())], grads(y, [x, *parameters], up), grads(expected, [z, *parameters], up),
        strict=True,
    ):  # fmt: skip
        assert_near(got, want, 16, name)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_forward_is_the_ordinary_norms_and_the_gradient_is_not(kind):
    layer, ordinary = (shaken(MAKERS[kind](detach_statistics=d)) for d in (True, False))
    ordinary.load_state_dict(layer.state_dict())
    x = draw(7, FEATURES, dtype=torch.float64).requires_grad_()
    up = draw(7, FEATURES, dtype=torch.float64)
    assert_near(layer(x), ordinary(x), 8, "y")
    (a,), (b,) = grads(layer(x), [x], up), grads(ordinary(x), [x], up)
    assert (a - b).norm() > 0.05 * b.norm()
    if kind == "layer":  # the mean of an ordinary gradient is nothing; here it is not
        assert b.mean(-1).abs().max() < 1e-12 < a.mean(-1).abs().max()


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_models_take_it_as_an_option_and_never_fuse_it_away(norm, placement):
    """Fused with its sum a norm is never called: the option would be lost without a word."""
    settings = dict(
        architecture="decoder", dim=12, num_layers=2, num_heads=2, vocab_size=13, norm=norm, placement=placement
    )
    tokens = torch.randint(0, 13, (3, 7))
    up = torch.randn(3, 7, 13)

    def gradients(**more):
        torch.manual_seed(0)
        model = normlab.build(**settings, **more)
        (model(tokens) * up).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    option = {"norm_options": {"detach_statistics": True}}
    fused, apart = gradients(**option), gradients(fused=False, **option)
    torch.testing.assert_close(fused, apart, rtol=1e-4, atol=1e-5)
    assert (fused - gradients()).norm() > 0.05 * fused.norm()


def test_the_fused_residual_norm_is_not_asked_for_it(tmp_path):
    norm = normlab.LayerNorm(6, detach_statistics=True)
    x, branch = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    residual = normlab.placements.Residual()
    up = torch.randn(4, 6)
    _, y = residual(x, branch, norm)
    (got,) = torch.autograd.grad((y * up).sum(), [x])
    total = (x + branch).detach()
    torch.testing.assert_close(
        got, up / (total.var(-1, keepdim=True, correction=0) + 1e-5).sqrt(), rtol=1e-5, atol=1e-6
    )


def test_second_derivatives_vmap_and_functions():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def f(x, weight):
        return normlab.functional.layer_norm(x, (5,), weight, detach_statistics=True)

    assert torch.autograd.gradgradcheck(lambda w: f(x.detach(), w), (weight,))
    (dx,) = torch.autograd.grad((f(x, weight) ** 3).sum(), [x], create_graph=True)
    assert dx.grad_fn is not None
    torch.testing.assert_close(torch.vmap(f, (0, None))(x, weight), f(x, weight))
    rms = normlab.functional.rms_norm(x, (5,), weight, 1e-6, detach_statistics=True)
    torch.testing.assert_close(rms, normlab.functional.rms_norm(x, (5,), weight, 1e-6))
    (one,) = torch.autograd.grad(normlab.functional.scale_norm(x, detach_statistics=True).sum(), [x])
    torch.testing.assert_close(one, 1 / x.detach().norm(dim=-1, keepdim=True).expand(4, 5))


def test_a_kernel_that_was_asked_for_by_name_is_not_silently_left():
    layer = normlab.LayerNorm(4, detach_statistics=True)
    with normlab.use_kernel("cpu"), pytest.raises(normlab.KernelUnavailable, match="detach"):
        layer(torch.ones(2, 4))
    assert "detach_statistics=True" in repr(layer) and "detach" not in repr(normlab.LayerNorm(4))


def test_the_watch_does_not_report_a_flow_through_detached_statistics(tmp_path):
    for name, options in (("plain", {}), ("detached", {"detach_statistics": True})):
        model = normlab.build(dim=8, num_layers=2, num_heads=2, vocab_size=7, num_classes=3, norm_options=options)
        with normlab.watch(model, out=tmp_path / name, every=1, preset="full", max_overhead=None) as watch:
            model(torch.randint(0, 7, (4, 5))).square().sum().backward()
            watch.step(loss=1.0)
        table = normlab.Run(tmp_path / name).table()
        assert ("grad_through_var" in table) == ("var_grad_norm" in table) == (name == "plain")
