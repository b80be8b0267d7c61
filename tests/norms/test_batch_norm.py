"""BatchNorm: averages, frozen statistics, ghost batches, renormalization."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from norm_cases import (
    FEATURES,
    all_builds,
    assert_cancels,
    assert_near,
    assert_same,
    assert_untouched,
    draw,
    grads,
    scattered,
    shaken,
    state_of,
    turned,
)
from torch import nn

import normlab

# ---- batch normalization ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channel", [-1, 1])
def test_cumulative_average_is_torchs(kernel: str, channel: int, dtype: torch.dtype) -> None:
    ours = normlab.BatchNorm(7, momentum=None, channel_dim=channel, dtype=dtype)
    oracle = nn.BatchNorm1d(7, momentum=None).double()
    for step in range(1, 6):
        x = draw(5, 7, 11, dtype=dtype) * step
        oracle(x.double())
        ours(x if channel == 1 else x.transpose(1, 2))
        assert_near(ours.running_mean, oracle.running_mean, 16, "running_mean")
        assert_near(ours.running_var, oracle.running_var, 16, "running_var")
        assert int(ours.num_batches_tracked) == step


def test_running_variance_is_unbiased_by_real_cells(kernel: str) -> None:
    norm = normlab.BatchNorm(7, momentum=0.25)
    mean, var = torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    for _ in range(3):
        x, mask = draw(3, 5, 7), scattered(3, 5)
        mask[0, :2] = True
        norm(x, mask=mask)
        real = x[mask].double()
        mean += 0.25 * (real.mean(0) - mean)
        var += 0.25 * (real.var(0, unbiased=True) - var)
    assert_near(norm.running_mean, mean, 8)
    assert_near(norm.running_var, var, 8)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
def test_frozen_statistics_train_like_eval(kernel: str, masked: bool) -> None:
    norm = shaken(normlab.BatchNorm(7))
    norm(draw(5, 3, 7) * 2 + 1)
    evaluated = copy.deepcopy(norm).eval()
    before = state_of(norm.train().freeze())
    x, upstream = draw(5, 11, 7).requires_grad_(), draw(5, 11, 7)
    mask = scattered(5, 11) if masked else None
    y, z = norm(x, mask=mask), evaluated(x, mask=mask)
    assert_same(y, z, "y")
    for g, w in zip(
        grads(y, [x, *norm.parameters()], upstream), grads(z, [x, *evaluated.parameters()], upstream), strict=True
    ):
        assert_same(g, w, "gradient")
    assert_untouched(norm, before)
    wanted = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    dx = grads(norm(x), [x], upstream)[0]
    assert_near(dx, upstream * wanted, 8, "statistics are constants")
    assert not torch.allclose(norm.freeze(False)(x, mask=mask), y)
    assert int(norm.num_batches_tracked) == int(before["num_batches_tracked"]) + 1


def test_frozen_constructor_and_single_sample() -> None:
    norm = normlab.BatchNorm(7, frozen=True)
    x = draw(1, 7)
    assert_near(norm(x), x / math.sqrt(1 + 1e-5), 4)
    with pytest.raises(ValueError, match="track_running_stats"):
        normlab.BatchNorm(7, track_running_stats=False).freeze()


@pytest.mark.parametrize("shape", [(1, 7), (1, 1, 7), (1, 7, 1, 1), (1, 7, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"renorm": (2.0, 1.0)}, {"ghost_size": 3}], ids=str)
def test_one_value_per_channel_is_an_error(kernel: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    norm = normlab.BatchNorm(7, channel_dim=2 if len(shape) == 3 else 1, **options)
    before = state_of(norm)
    with pytest.raises(ValueError, match="one value per channel") as caught:
        norm(draw(*shape))
    assert str(shape) in str(caught.value)
    assert_untouched(norm, before)
    norm.eval()
    assert norm(draw(*shape)).shape == shape


def test_last_ghost_batch_of_one_value_is_an_error_before_anything_moves(kernel: str) -> None:
    norm = normlab.BatchNorm(7, ghost_size=3)
    before = state_of(norm)
    with pytest.raises(ValueError, match="one value per channel"):
        norm(draw(7, 7))
    assert_untouched(norm, before)


EMPTY = [(0, 5, FEATURES), (3, 0, FEATURES)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("build", all_builds())
def test_empty_batch_passes_and_changes_nothing(
    kernel: str, build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Also the gradients: zeros, not None, as torch gives, so that DDP finds every parameter."""
    layer = shaken(build())
    for _ in range(2):
        turned(layer)(draw(5, 7, FEATURES))
    before = state_of(layer)
    x = torch.empty(shape, requires_grad=True)
    y = turned(layer)(x)
    assert y.shape == x.shape
    assert_untouched(layer, before)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    for name, p in layer.named_parameters():
        assert p.grad is not None and torch.equal(p.grad, torch.zeros_like(p)), f"{name} has gradient {p.grad}"
    assert_untouched(layer, before)


@pytest.mark.parametrize("real", [0, 1])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_fewer_than_two_real_cells_leave_the_running_statistics(kernel: str, real: int, momentum: float | None) -> None:
    norm = shaken(normlab.BatchNorm(7, momentum=momentum))
    norm(draw(5, 11, 7))
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    x, mask = draw(3, 5, 7).requires_grad_(), torch.zeros(3, 5, dtype=torch.bool)
    mask[1, :real] = True
    y = norm(x, mask=mask)
    assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)
    assert_same(y[mask], norm.bias.detach().expand(real, 7), "one cell is its own mean: the bias is left")
    assert torch.equal(y[~mask], torch.zeros(15 - real, 7))
    upstream = draw(3, 5, 7)
    (dx,) = grads(y, [x], upstream)
    assert not dx[~mask].any()
    assert_cancels(dx, upstream * norm.weight / math.sqrt(norm.eps))


def test_skipped_batches_do_not_weigh_in_the_plain_average(kernel: str) -> None:
    """momentum=None is the average of the batches that were taken in; start values (0, 1) must not leak into it."""
    norm = normlab.BatchNorm(7, momentum=None)
    means, variances = [], []
    for step in range(5):
        x = draw(3, 5, 7) * (step + 1)
        if step in (0, 3):
            norm(x, mask=torch.zeros(3, 5, dtype=torch.bool))
            continue
        norm(x)
        means.append(x.double().flatten(0, 1).mean(0))
        variances.append(x.double().flatten(0, 1).var(0))
    assert_near(norm.running_mean, torch.stack(means).mean(0), 16)
    assert_near(norm.running_var, torch.stack(variances).mean(0), 16)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("channel", [-1, 1])
@pytest.mark.parametrize("samples", [6, 7, 2])
def test_ghost_batches_are_batch_norm_on_each_chunk(kernel: str, samples: int, channel: int, masked: bool) -> None:
    """7 = 3 + 3 + 1: the last chunk may be smaller; 2: one chunk, smaller than asked."""
    ghost = shaken(normlab.BatchNorm(7, ghost_size=3, momentum=0.3, channel_dim=channel))
    plain = normlab.BatchNorm(7, momentum=0.3, channel_dim=channel)
    plain.load_state_dict(ghost.state_dict())
    x = draw(samples, 11, 7)
    mask = scattered(samples, 11) if masked else None
    upstream = draw(samples, 11, 7)
    if channel == 1:
        x, upstream = x.transpose(1, 2).contiguous(), upstream.transpose(1, 2)
    x.requires_grad_()
    y = ghost(x, mask=mask)
    z = torch.cat([
        plain(part, mask=None if mask is None else mask[3 * i : 3 * i + 3]) for i, part in enumerate(x.split(3))
    ])  # fmt: skip
    assert_same(y, z, "y")
    got, want = grads(y, [x, *ghost.parameters()], upstream), grads(z, [x, *plain.parameters()], upstream)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, 8, "gradient")
    assert_same(ghost.running_mean, plain.running_mean, "running_mean")
    assert_same(ghost.running_var, plain.running_var, "running_var")
    assert_same(ghost.eval()(x, mask=mask), plain.eval()(x, mask=mask), "evaluation")


def test_ghost_batches_in_a_plain_average(kernel: str) -> None:
    norm = normlab.BatchNorm(7, ghost_size=3, momentum=None)
    parts = []
    for _ in range(2):
        x = draw(7, 11, 7)
        norm(x)
        parts += [p.double().flatten(0, 1) for p in x.split(3)]
    assert_near(norm.running_mean, torch.stack([p.mean(0) for p in parts]).mean(0), 16)
    assert_near(norm.running_var, torch.stack([p.var(0) for p in parts]).mean(0), 16)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_batch_renormalization_by_hand(kernel: str, affine: bool, masked: bool) -> None:
    """y = ((x - mean) / dev * r + d) * weight + bias, dev = sqrt(var + eps); r = dev / running dev and
    d = (mean - running mean) / running dev, both clamped and both constants to the gradient."""
    r_max, d_max, eps, momentum = 1.3, 0.4, 1e-3, 0.2
    norm = shaken(normlab.BatchNorm(53, eps=eps, momentum=momentum, renorm=(r_max, d_max), affine=affine))
    weight, bias = (norm.weight, norm.bias) if affine else (torch.ones(53), torch.zeros(53))
    weight, bias = weight.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    run_mean, run_var = torch.zeros(53, dtype=torch.float64), torch.ones(53, dtype=torch.float64)
    clamped = free = 0
    for _ in range(3):
        x = draw(3, 5, 53)
        mask = scattered(3, 5) if masked else torch.ones(3, 5, dtype=torch.bool)
        mask[0] = True
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        real = b[mask]
        mean, var = real.mean(0), real.var(0, unbiased=False)
        deviation, running = (var + eps).sqrt(), (run_var + eps).sqrt()
        with torch.no_grad():
            raw_r, raw_d = deviation / running, (mean - run_mean) / running
            r, d = raw_r.clamp(1 / r_max, r_max), raw_d.clamp(-d_max, d_max)
            clamped += int((r != raw_r).sum() + (d != raw_d).sum())
            free += int((r == raw_r).sum() + (d == raw_d).sum())
        z = torch.zeros_like(b)
        z[mask] = ((real - mean) / deviation * r + d) * weight + bias
        y = norm(a, mask=mask if masked else None)
        assert_near(y, z, 32, "y")
        upstream = draw(3, 5, 53)
        got = grads(y, [a, *norm.parameters()], upstream)
        want = grads(z, [b, weight, bias] if affine else [b], upstream)
        for g, w in zip(got, want, strict=True):
            assert_near(g, w, 64, "gradient")
        with torch.no_grad():
            run_mean += momentum * (mean - run_mean)
            run_var += momentum * (real.var(0) - run_var)
        assert_near(norm.running_mean, run_mean, 16, "running_mean")
        assert_near(norm.running_var, run_var, 16, "running_var")
    assert clamped > 20 and free > 20, "the test must meet both sides of the bounds"


def test_batch_renormalization_at_one_and_zero_is_batch_norm(kernel: str) -> None:
    renorm, plain = (shaken(normlab.BatchNorm(7, renorm=r)) for r in ((1.0, 0.0), None))
    plain.load_state_dict(renorm.state_dict())
    for _ in range(3):
        x, upstream = draw(5, 11, 7).requires_grad_(), draw(5, 11, 7)
        y, z = renorm(x), plain(x)
        assert_same(y, z, "y")
        got, want = grads(y, [x, *renorm.parameters()], upstream), grads(z, [x, *plain.parameters()], upstream)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w, "gradient")
    assert_untouched(renorm, state_of(plain))
