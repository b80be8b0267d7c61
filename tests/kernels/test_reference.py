"""The reference against independent implementations (torch, numpy by hand) and against its own identities."""

import math

import pytest
import torch
from torch.nn import functional as F

import normlab
from normlab.kernels import reference

D = torch.float64


def randn(*shape):
    return torch.randn(*shape, dtype=D)


def test_layer_rms_scale_against_torch():
    x, w, b = randn(5, 7, 13), randn(13), randn(13)
    row = dict(eps=1e-5, partial=13)
    torch.testing.assert_close(reference.row_norm(x, w, b, None, mode="layer", **row), F.layer_norm(x, (13,), w, b))
    torch.testing.assert_close(reference.row_norm(x, w, None, None, mode="rms", **row), F.rms_norm(x, (13,), w, 1e-5))
    scaled = reference.row_norm(x, torch.full((1,), math.sqrt(13), dtype=D), None, None, mode="scale", **row)
    torch.testing.assert_close(scaled, F.rms_norm(x, (13,), None, 0.0))


def test_columns_against_torch():
    x, w, b = randn(5, 12, 7), randn(12), randn(12)
    facts = dict(eps=1e-5, channel_dim=1)
    y = reference.column_norm(x, w, b, None, groups=12, pooled=True, **facts)[0]
    torch.testing.assert_close(y, F.batch_norm(x, None, None, w, b, True))
    y = reference.column_norm(x, w, b, None, groups=12, pooled=False, **facts)[0]
    torch.testing.assert_close(y, F.instance_norm(x, weight=w, bias=b))
    y = reference.column_norm(x, w, b, None, groups=3, pooled=False, **facts)[0]
    torch.testing.assert_close(y, F.group_norm(x, 3, w, b))


def test_masked_moments_equal_the_moments_of_what_is_real():
    x, mask = randn(6, 9, 4), torch.rand(6, 9) > 0.5
    x[~mask] = math.nan
    mean, square, count = reference.moments(x, (0, 1), mask.unsqueeze(-1))
    real = x[mask]
    torch.testing.assert_close(mean.flatten(), real.mean(0))
    torch.testing.assert_close(square.flatten(), real.var(0, correction=0))
    assert (count == mask.sum()).all()
    empty = reference.moments(x, (0, 1), torch.zeros(6, 9, 1, dtype=torch.bool))
    assert all((t == 0).all() for t in empty)


def test_cells_are_exactly_the_cells_that_share_a_statistic():
    """Moving one cell moves precisely the outputs with its label, seen through the gradient of the reference."""
    torch.manual_seed(0)
    shape = (3, 4, 6)
    for name in ("layer", "rms", "scale", "batch", "instance", "group", "power"):
        labels = normlab.functional.statistic_labels(name, shape, num_groups=2)
        x = randn(*shape).requires_grad_()
        if name in ("layer", "rms", "scale"):
            y = reference.row_norm(x, None, None, None, mode=name, eps=0.0, partial=6)
        else:
            groups = 2 if name == "group" else 6
            pooled, centered = name in ("batch", "power"), name != "power"
            y = reference.column_norm(x, None, None, None, eps=0.0, groups=groups, pooled=pooled, centered=centered)[0]
        influence = torch.autograd.grad(y[1, 2, 3], x)[0]
        assert torch.equal(influence != 0, labels == labels[1, 2, 3]), name
    assert normlab.functional.statistic_labels("dyt", shape).unique().numel() == 72


@pytest.mark.parametrize(
    "shape, name, expected", [((4, 5, 6), "layer", 6), ((4, 5, 6), "batch", 20), ((4, 5, 6), "instance", 5)]
)
def test_counts_of_shared_cells(shape, name, expected):
    _, counts = normlab.functional.statistic_labels(name, shape).unique(return_counts=True)
    assert (counts == expected).all()


def test_partial_rms_uses_the_first_values_only():
    x = randn(3, 10)
    y = reference.row_norm(x, None, None, None, mode="rms", eps=0.0, partial=4)
    torch.testing.assert_close(y, x / x[:, :4].square().mean(-1, keepdim=True).sqrt())


def test_power_backward_is_exact_for_the_batchs_own_mean_square():
    x, w, g = randn(11, 5).requires_grad_(), randn(5), randn(11, 5)
    y, _, square, _ = reference.column_norm(x, w, None, None, eps=1e-5, groups=5, pooled=True, centered=False)
    y.backward(g)
    xhat = x.detach() / torch.sqrt(square[0] + 1e-5)
    along = (w * g * xhat).mean(0)
    dx, sums = reference.power_backward(
        g, x.detach(), w, None, square=square[0].detach(), along=along, eps=1e-5, channel_dim=-1
    )
    torch.testing.assert_close(dx, x.grad)
    torch.testing.assert_close(sums, torch.stack([g.sum(0), (g * xhat).sum(0)]))


def test_power_step_is_the_papers_update():
    """nu + (1 - a) * mean(X' * xhat), X' = g - nu * xhat, written out on the data."""
    xhat, g, nu = randn(50, 3), randn(50, 3), randn(3)
    want = nu + 0.1 * ((g - nu * xhat) * xhat).mean(0)
    square = torch.ones(3, dtype=D)
    got = reference.power_step((g * xhat).mean(0), square, xhat.square().mean(0), nu, alpha=0.9, eps=0.0)
    torch.testing.assert_close(got, want)


def test_keep_mask_is_fair_and_depends_on_everything():
    a = reference.keep_mask(12345, 400, 500, 0.3)
    assert abs(a.double().mean() - 0.7) < 0.005
    assert abs(a.double().mean(0) - 0.7).max() < 0.12 and abs(a.double().mean(1) - 0.7).max() < 0.12
    assert (a != reference.keep_mask(12346, 400, 500, 0.3)).double().mean() > 0.3
    assert (a != reference.keep_mask(12345 + (1 << 40), 400, 500, 0.3)).double().mean() > 0.3
    assert torch.equal(a[:7, :11], reference.keep_mask(12345, 7, 11, 0.3))
    assert reference.keep_mask(1, 3, 5, 0.0).all()


def test_pointwise_by_hand():
    x, w, b = randn(4, 6), randn(6), randn(6)
    alpha, shift = torch.tensor([0.7], dtype=D), torch.tensor([-0.2], dtype=D)
    torch.testing.assert_close(
        reference.pointwise(x, alpha, None, w, b, None, form="tanh"), w * torch.tanh(0.7 * x) + b
    )
    torch.testing.assert_close(
        reference.pointwise(x, alpha, shift, w, b, None, form="erf"), w * torch.erf(0.7 * x - 0.2) + b
    )


def test_sixteen_bit_rounds_once_or_before_the_gain():
    x, w = torch.randn(8, 32).bfloat16(), torch.randn(32).bfloat16()
    facts = dict(mode="rms", eps=1e-6, partial=32)
    xhat = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    once = reference.row_norm(x, w, None, None, **facts)
    twice = reference.row_norm(x, w, None, None, round_before_gain=True, **facts)
    assert torch.equal(once, (xhat * w.double()).bfloat16())
    assert torch.equal(twice, (xhat.bfloat16().double() * w.double()).bfloat16())
    assert not torch.equal(once, twice)
