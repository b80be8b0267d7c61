"""ResidualNorm: the residual sum and its norm, against the parts one after the other."""

from __future__ import annotations

import math
import os
import platform
from typing import Any

import pytest
import torch
from norm_cases import LENGTHS, assert_near, assert_same, draw, grads, lay_out, scattered, shaken
from torch import Tensor, nn

import normlab
from normlab.kernels import cpu, reference

# ---- the residual sum and its norm -----------------------------------------------------------------------------------


def parts_of(layer: normlab.ResidualNorm) -> nn.Module:
    """Our norm on its own, with the fused layer's parameters."""
    kind = {"layer": normlab.LayerNorm, "rms": normlab.RMSNorm}[layer.norm]
    alone = kind(layer.dim, eps=layer.eps, bias=layer.bias is not None, gain=layer.gain,
                 round_before_gain=layer.round_before_gain)  # fmt: skip
    alone.load_state_dict(layer.state_dict())
    return alone.to(next(layer.parameters()).dtype)


SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
DEEP = 64**0.25  # DeepNorm's alpha for 32 encoder layers; not exact in any of the dtypes


def scaled_sum(alpha: float, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    """alpha * x + branch as the kernels round it: once, except on an x86 without fused multiply-add and in the build of `make asan`, which
    is hardly optimized and fuses nothing. torch.add is of no use for bfloat16: it rounds alpha itself to it."""
    if x.dtype == torch.bfloat16:
        return (alpha * x.float() + branch.float()).to(x.dtype)
    plain = cpu.native is not None and (cpu.native.isa() == "baseline" or SANITIZED)
    twice = plain and platform.machine() in ("x86_64", "AMD64")
    return alpha * x + branch if twice else torch.add(branch, x, alpha=alpha)


@pytest.mark.parametrize("options", [{}, {"gain": "offset"}, {"round_before_gain": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.5, DEEP])
@pytest.mark.parametrize("stream", [False, True], ids=["y", "y-and-stream"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_norm_is_add_then_norm(
    kernel: str, norm: str, dtype: torch.dtype, stream: bool, alpha: float, options: dict[str, Any]
) -> None:
    fused = shaken(normlab.ResidualNorm(131, norm, alpha=alpha, return_stream=stream, **options)).to(dtype)
    alone = parts_of(fused)
    leaves = [draw(5, 7, 131, dtype=dtype) for _ in range(2)]
    (x, branch), (p, q) = ([t.clone().requires_grad_() for t in leaves] for _ in range(2))
    upstream, upstream_stream = draw(5, 7, 131, dtype=dtype), draw(5, 7, 131, dtype=dtype)
    summed = scaled_sum(alpha, p, q)
    exact_sum = kernel == "cpu" or alpha != DEEP  # the reference sums in float64
    if stream:
        y, new = fused(x, branch)
        assert_near(new, alpha * p.double() + q.double(), 1.5, "stream")
        if exact_sum:
            assert_same(new, summed, "stream")
        z = alone(new.detach())
        assert_same(y, z, "the norm is that of the stored stream")
        got = torch.autograd.grad([y, new], [x, branch, *fused.parameters()], [upstream, upstream_stream])
        want = torch.autograd.grad([alone(summed), summed], [p, q, *alone.parameters()], [upstream, upstream_stream])
    else:
        y, z = fused(x, branch), alone(summed)
        if exact_sum:
            assert_same(y, z, "y")
        else:
            assert_near(y, z, 16, "y")
        got, want = (grads(o, leaves, upstream) for o, leaves in
                     ((y, [x, branch, *fused.parameters()]), (z, [p, q, *alone.parameters()])))  # fmt: skip
    exact = alpha == 1.0 and not stream
    for name, g, w in zip(["x", "branch", *dict(fused.named_parameters())], got, want, strict=True):
        if exact:
            assert_same(g, w, f"d{name}")
        else:
            assert_near(g, w, 2 if dtype == torch.bfloat16 else 64, f"d{name}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_residual_sum_is_rounded_as_the_instruction_set_rounds(isa: str, dtype: torch.dtype) -> None:
    x, branch = draw(5, 131, dtype=dtype), draw(5, 131, dtype=dtype)
    stream = normlab.ResidualNorm(131, "rms", alpha=DEEP, return_stream=True).to(dtype)(x, branch)[1]
    assert_same(stream, scaled_sum(DEEP, x, branch), isa)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_gradients_do_not_share_memory(norm: str) -> None:
    """With alpha 1 both inputs have the same gradient; writing into one must not change the other."""
    layer = shaken(normlab.ResidualNorm(13, norm))
    x, branch = draw(5, 13).requires_grad_(), draw(5, 13).requires_grad_()
    layer(x, branch).backward(draw(5, 13))
    assert_same(x.grad, branch.grad)
    kept = branch.grad.clone()
    x.grad.zero_()
    assert_same(branch.grad, kept)


@pytest.mark.parametrize("only", ["y", "stream"])
def test_residual_gradient_of_one_output(kernel: str, only: str) -> None:
    layer = shaken(normlab.ResidualNorm(13, alpha=0.7, return_stream=True)).double()
    x, branch, upstream = (draw(5, 13, dtype=torch.float64) for _ in range(3))
    x.requires_grad_(), branch.requires_grad_()
    y, stream = layer(x, branch)
    got = grads(y if only == "y" else stream, [x, branch], upstream)
    summed = 0.7 * x + branch
    want = grads(parts_of(layer)(summed) if only == "y" else summed, [x, branch], upstream)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, 64)


def keep_of(seed: int, shape: tuple[int, ...], drop: float) -> Tensor:
    """The mask a layer draws after ``torch.manual_seed(seed)``, by the reference."""
    torch.manual_seed(seed)
    drawn = int(torch.randint(0, 2**62, ()))
    return reference.keep_mask(drawn, math.prod(shape[:-1]), shape[-1], drop).view(shape)


@pytest.mark.parametrize("drop", [0.1, 0.3, 0.75])
def test_dropout_keeps_its_share(kernel: str, drop: float) -> None:
    layer = normlab.ResidualNorm(211, dropout=drop, return_stream=True)
    _, stream = layer(torch.zeros(101, 211), torch.ones(101, 211))
    kept = stream != 0
    assert_near(stream[kept], torch.full_like(stream[kept], 1 / (1 - drop)), 1)
    deviation = math.sqrt(drop * (1 - drop))
    assert abs(kept.double().mean() - (1 - drop)) < 5 * deviation / math.sqrt(kept.numel())
    for axis in (0, 1):  # no row or column is favoured
        shares, n = kept.double().mean(axis), kept.shape[axis]
        assert (shares - (1 - drop)).abs().max() < 5.5 * deviation / math.sqrt(n)
    neighbours = (kept[:, 1:] == kept[:, :-1]).double().mean()
    assert abs(neighbours - (1 - 2 * drop * (1 - drop))) < 0.02


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_is_the_reference_mask_and_the_seed(kernel: str, norm: str, dtype: torch.dtype) -> None:
    drop, alpha, shape = 0.3, 1.5, (5, 7, 131)
    layer = shaken(normlab.ResidualNorm(131, norm, dropout=drop, alpha=alpha, return_stream=True)).to(dtype)
    x, branch = draw(*shape, dtype=dtype).requires_grad_(), draw(*shape, dtype=dtype).requires_grad_()
    keep = keep_of(1234, shape, drop)
    torch.manual_seed(1234)
    y, stream = layer(x, branch)
    again, _ = layer(x, branch)
    assert not torch.equal(again, y), "every call draws anew"
    torch.manual_seed(1234)
    assert_same(layer(x, branch)[0], y, "the same seed, the same mask")
    p, q = x.detach().double().requires_grad_(), branch.detach().double().requires_grad_()
    want = alpha * p + torch.where(keep, q / (1 - drop), 0)
    assert_near(stream, want, 2)
    z = parts_of(layer).double()(want)
    assert_near(y, z, 2 if dtype == torch.bfloat16 else 16)
    upstream = draw(*shape, dtype=dtype)
    dx, dbranch = grads(y, [x, branch], upstream)
    assert not dbranch[~keep].any() and dbranch[keep].count_nonzero() > 0.9 * keep.sum()
    for name, g, w in zip(["dx", "dbranch"], (dx, dbranch), grads(z, [p, q], upstream), strict=True):
        assert_near(g, w, 4 if dtype == torch.bfloat16 else 64, name)


def test_dropout_is_off_in_eval(kernel: str) -> None:
    layer = shaken(normlab.ResidualNorm(13, dropout=0.9, alpha=0.5))
    x, branch = draw(5, 13), draw(5, 13)
    before = torch.get_rng_state()
    assert_same(layer.eval()(x, branch), parts_of(layer)(torch.add(branch, x, alpha=0.5)))
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws no random number"
    assert not torch.equal(layer.train()(x, branch), layer.eval()(x, branch))


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_mask(kernel: str, norm: str, drop: float) -> None:
    layer = shaken(normlab.ResidualNorm(13, norm, dropout=drop, alpha=1.5, return_stream=True))
    mask = scattered(5, 11)
    x, branch, upstream, upstream_stream = (draw(5, 11, 13) for _ in range(4))

    def outcome(fill: float, **padding: Any) -> list[Tensor]:
        a, b, g, s = (torch.where(mask[..., None], t, fill) for t in (x, branch, upstream, upstream_stream))
        a.requires_grad_(), b.requires_grad_()
        torch.manual_seed(7)
        y, stream = layer(a, b, **padding)
        return [y, stream, *torch.autograd.grad([y, stream], [a, b, *layer.parameters()], [g, s])]

    clean, dirty = outcome(0.0, mask=mask), outcome(math.nan, mask=mask)
    for c, d in zip(clean, dirty, strict=True):
        assert c.isfinite().all()
        assert_same(d, c)
    for t in dirty[:4]:
        assert not t[~mask].any() and t[mask].any()
    free = outcome(0.0)  # without a mask, real rows are the same
    for c, f in zip(clean[:4], free[:4], strict=True):
        assert_same(c[mask], f[mask])


def test_residual_lengths_are_a_mask() -> None:
    layer = shaken(normlab.ResidualNorm(13))
    x, branch = draw(5, 11, 13), draw(5, 11, 13)
    mask = torch.arange(11)[None, :] < torch.tensor(LENGTHS)[:, None]
    assert_same(layer(x, branch, lengths=LENGTHS), layer(x, branch, mask=mask))
    assert not layer(x, branch, lengths=LENGTHS)[~mask].any()


@pytest.mark.parametrize("layout", ["strided", "reversed"])
def test_residual_of_any_memory(layout: str) -> None:
    layer = shaken(normlab.ResidualNorm(13))
    x, branch = draw(5, 7, 13), draw(5, 7, 13)
    assert_same(layer(lay_out(x, layout, 1), branch), layer(x, branch))
    assert_same(layer(x, lay_out(branch, layout, 1)), layer(x, branch))
