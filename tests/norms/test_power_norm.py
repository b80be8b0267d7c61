"""PowerNorm, per batch and running, against the paper's algorithm."""

from __future__ import annotations

import math

import pytest
import torch
from norm_cases import (
    PowerByHand,
    assert_near,
    assert_step,
    assert_untouched,
    draw,
    grads,
    pairs,
    scattered,
    shaken,
    state_of,
    turned,
)
from torch import Tensor

import normlab

# ---- power normalization ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [-1, 1])
def test_power_norm_per_batch_gradient_is_exact(kernel: str, channel: int) -> None:
    norm = shaken(normlab.PowerNorm(7, eps=0.01, running=False, channel_dim=channel)).double()
    hand = PowerByHand(7, eps=0.01).double()
    hand.load_state_dict({"weight": norm.weight, "bias": norm.bias})
    x = draw(5, 7, 7, dtype=torch.float64)
    for _ in range(3):  # PN-V has no memory
        assert_step(norm, lambda b: hand(b.movedim(channel, 1)).movedim(1, channel), pairs(norm, hand), x, ulps=64)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("channel", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_power_norm_follows_the_papers_algorithm(kernel: str, dtype: torch.dtype, channel: int, masked: bool) -> None:
    """20 steps, warm-up of 7. After it: forward by psi of the step before; backward by the same psi, with nu in place
    of the batch's own mean; then nu moves along mean(X' xhat). Different factors forward and backward."""
    alpha_forward, alpha_backward, warmup, eps = 0.8, 0.65, 7, 1e-3
    norm = shaken(normlab.PowerNorm(
        7, eps, alpha_forward, alpha_backward, warmup, channel_dim=channel
    )).to(dtype)  # fmt: skip
    weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
    psi2, nu = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    seen: list[Tensor] = []
    for step in range(20):
        x = draw(5, 3, 7, dtype=dtype) * (1 + 0.2 * step)
        upstream = draw(5, 3, 7, dtype=dtype) + 0.2
        mask = scattered(5, 3) if masked else torch.ones(5, 3, dtype=torch.bool)
        mask[0] = True
        real, g = x[mask].double(), upstream[mask].double()
        batch = (real * real).sum(0) / len(real)
        psi = ((batch if step < warmup else psi2) + eps).sqrt()
        xhat = real / psi
        y = weight * xhat + bias
        along = weight * g  # dL / dxhat
        residue = along - (nu if step >= warmup else (along * xhat).mean(0)) * xhat
        dx = residue / psi
        nu = nu + (1 - alpha_backward) * ((along - nu * xhat) * xhat).mean(0)
        seen.append(batch)
        psi2 = torch.stack(seen).mean(0) if step < warmup else alpha_forward * psi2 + (1 - alpha_forward) * batch

        leaf = x.clone().requires_grad_()
        given = leaf if channel == -1 else leaf.transpose(1, 2)
        got = norm(given, mask=mask if masked else None)
        got = got if channel == -1 else got.transpose(1, 2)
        got_dx, dweight, dbias = grads(got, [leaf, norm.weight, norm.bias], upstream)
        ulps = 64
        assert_near(got[mask], y, ulps, f"y at step {step}")
        assert_near(got_dx[mask], dx, 4 * ulps, f"dx at step {step}")
        assert_near(dweight, (g * xhat).sum(0), ulps, "dweight")
        assert_near(dbias, g.sum(0), ulps, "dbias")
        assert_near(norm.running_psi2, psi2, ulps, f"psi2 after step {step}")
        assert_near(norm.running_nu, nu, ulps, f"nu after step {step}")
        assert int(norm.num_batches_tracked) == step + 1
    norm.eval()
    x = draw(5, 3, 7, dtype=dtype).requires_grad_()
    z = norm(x if channel == -1 else x.transpose(1, 2))
    z = z if channel == -1 else z.transpose(1, 2)
    psi = (psi2 + eps).sqrt()
    assert_near(z, x.detach().double() / psi * weight + bias, 64, "evaluation divides by the running psi")
    upstream = draw(5, 3, 7)
    before = state_of(norm)
    assert_near(grads(z, [x], upstream)[0], upstream.double() * weight / psi, 64, "and psi is a constant there")
    assert_untouched(norm, before)


@pytest.mark.parametrize("gap", [None, 0, 3], ids=["", "all-masked-first", "all-masked-between"])
def test_power_norm_warm_up_is_the_plain_average(kernel: str, gap: int | None) -> None:
    """psi^2 of 1, 2, 3, 4, 5 average to 3 (the published code, which updates twice, reaches 3.37)."""
    norm = normlab.PowerNorm(7, warmup_steps=100)
    for step, square in enumerate([1.0, 2.0, 3.0, 4.0, 5.0]):
        if step == gap:
            norm(draw(3, 5, 7), mask=torch.zeros(3, 5, dtype=torch.bool))
        sign = torch.randint(0, 2, (3, 5, 7)) * 2.0 - 1
        norm(sign * math.sqrt(square))
    assert_near(norm.running_psi2, torch.full((7,), 3.0), 8)


@pytest.mark.parametrize("channel", [-1, 1])
def test_power_norm_group_scaling(kernel: str, channel: int) -> None:
    """First every token over the RMS of each of its groups of channels, then PowerNorm."""
    scaled = shaken(normlab.PowerNorm(21, eps=0.01, group_scaling=3, warmup_steps=1, channel_dim=channel)).double()
    plain = normlab.PowerNorm(21, eps=0.01, warmup_steps=1).double()
    plain.load_state_dict(scaled.state_dict())
    for _ in range(3):
        x, upstream = draw(5, 11, 21, dtype=torch.float64), draw(5, 11, 21, dtype=torch.float64)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = turned(scaled)(a)
        groups = b.view(5, 11, 3, 7)
        z = plain((groups / (groups.pow(2).mean(-1, keepdim=True) + 0.01).sqrt()).view(5, 11, 21))
        assert_near(y, z, 64, "y")
        got, want = grads(y, [a, *scaled.parameters()], upstream), grads(z, [b, *plain.parameters()], upstream)
        for g, w in zip(got, want, strict=True):
            assert_near(g, w, 256, "gradient")
        assert_near(scaled.running_psi2, plain.running_psi2, 64)
        assert_near(scaled.running_nu, plain.running_nu, 256)
