"""Mean, variance, eps and rounding: what standardizing does to numbers, and what it does not."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import gradcheck

from ...norms import BatchNorm, LayerNorm, RMSNorm
from .axes import drawn, given

D = 257


def standardized() -> dict[str, float]:
    """Mean and biased variance of LayerNorm's rows: ordinary inputs, tiny ones, and behind gain and bias."""
    x = drawn(13, D, seed=10)
    norm = LayerNorm(D).double()
    with torch.no_grad():
        y, tiny = norm(x), norm(1e-3 * x)
        given(norm, drawn(D, seed=11), drawn(D, seed=12))
        after = norm(x)

    def variance(t: Tensor) -> float:
        return float(t.var(-1, correction=0).mean())

    return {"mean": float(y.mean(-1).abs().max()), "variance": variance(y), "variance_of_tiny": variance(tiny),
            "variance_behind_gain": variance(after), "mean_behind_bias": float(after.mean(-1).abs().max())}  # fmt: skip


def batch_standardized() -> dict[str, float]:
    """BatchNorm's channels over the batch, and the affine map that gives the input back."""
    x = 3 * drawn(101, 7, seed=13) + drawn(7, seed=14)
    norm = BatchNorm(7).double().train()
    with torch.no_grad():
        y = norm(x)
        given(norm, torch.sqrt(x.var(0, correction=0) + norm.eps), x.mean(0))
        back = norm(x)
    return {"mean": float(y.mean(0).abs().max()), "variance": float((y.var(0, correction=0) - 1).abs().max()),
            "restored": float((back - x).abs().max())}  # fmt: skip


def formula() -> dict[str, float]:
    """LayerNorm and RMSNorm against their formulas written out number by number, the biased variance among them."""
    d, eps = 19, 1e-5
    rows = drawn(5, d, seed=15)
    gain, bias = drawn(d, seed=16), drawn(d, seed=17)
    layer, rms = LayerNorm(d).double(), RMSNorm(d, eps=eps).double()
    given(layer, gain, bias)
    given(rms, gain)

    def written(row: list[float], correction: int) -> list[float]:
        mean = math.fsum(row) / d
        variance = math.fsum((v - mean) ** 2 for v in row) / (d - correction)
        return [
            float(g) * (v - mean) / math.sqrt(variance + eps) + float(b)
            for v, g, b in zip(row, gain, bias, strict=True)
        ]

    def rms_written(row: list[float]) -> list[float]:
        size = math.sqrt(math.fsum(v * v for v in row) / d + eps)
        return [float(g) * v / size for v, g in zip(row, gain, strict=True)]

    def apart(y: Tensor, expected: list[list[float]]) -> float:
        return float((y.detach() - torch.tensor(expected, dtype=torch.float64)).abs().max())

    def of_torch(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (d,), gain, bias)

    lists = rows.tolist()
    x = rows.clone().requires_grad_()
    right = gradcheck(of_torch, (x,), raise_exception=False)
    upstream = drawn(5, d, seed=18)
    (ours,) = torch.autograd.grad((layer(x) * upstream).sum(), x)
    (theirs,) = torch.autograd.grad((of_torch(x) * upstream).sum(), x)
    return {
        "layer_against_formula": apart(layer(rows), [written(row, 0) for row in lists]),
        "layer_against_unbiased": apart(layer(rows), [written(row, 1) for row in lists]),
        "rms_against_formula": apart(rms(rows), [rms_written(row) for row in lists]),
        "gradient": float((ours - theirs).abs().max()) if right else 1.0,
    }


def eps() -> dict[str, float]:
    """What eps does: a constant row with and without it, and rows whose spread is near its root."""
    constant = torch.full((3, 17), 0.5, dtype=torch.float64)  # whose mean is exact
    with_eps = LayerNorm(17).double()(constant)
    mean = constant.mean(-1, keepdim=True)
    without = (constant - mean) / torch.sqrt(((constant - mean) ** 2).mean(-1, keepdim=True))
    x = drawn(11, D, seed=19)
    small = torch.nn.functional.layer_norm(1e-3 * x, (D,), eps=1e-5)
    return {
        "largest_of_constant": float(with_eps.detach().abs().max()),
        "finite_without_eps": float(torch.isfinite(without).double().mean()),
        "default_of_torch": torch.nn.LayerNorm(3).eps,
        "deviation_of_small_rows": float(small.std(-1, correction=0).mean()),
    }


def start() -> dict[str, float]:
    """Gains and biases as layers come, ours and torch's."""
    layers = [LayerNorm(7), BatchNorm(7), torch.nn.LayerNorm(7), torch.nn.BatchNorm1d(7)]
    gains, biases = (torch.cat([getattr(m, name).detach() for m in layers]) for name in ("weight", "bias"))
    return {
        "least_gain": float(gains.min()),
        "largest_gain": float(gains.max()),
        "largest_bias": float(biases.abs().max()),
    }


def without_centring() -> dict[str, float]:
    """(x - mean) / sqrt(mean(x^2)), as the Keras lines have it, on rows of mean 3 and deviation 1."""
    x = drawn(7, 4001, seed=20)
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True) + 3
    mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    variance = float(((x - mean) / torch.sqrt(square)).var(-1, correction=0).mean())
    return {"variance": variance, "against_theory": abs(variance - 1 / (1 + 3**2)),
            "variance_of_layer_norm": float(LayerNorm(4001).double()(x).detach().var(-1, correction=0).mean())}  # fmt: skip


def shape_is_kept() -> dict[str, float]:
    """Skew and excess kurtosis of an exponential sample before and after standardizing and scaling to [0, 1]."""
    uniform = torch.rand(1_000_000, dtype=torch.float64, generator=torch.Generator().manual_seed(21))
    x = -torch.log1p(-uniform)

    def skew_and_kurtosis(t: Tensor) -> tuple[float, float]:
        z = (t - t.mean()) / t.std(correction=0)
        return float((z**3).mean()), float((z**4).mean() - 3)

    standard = (x - x.mean()) / x.std(correction=0)
    skew, kurtosis = skew_and_kurtosis(standard)
    before = skew_and_kurtosis(x)
    layer = LayerNorm(D).double()(x[: 1000 * D].reshape(-1, D)).detach()
    return {
        "skew": skew, "excess_kurtosis": kurtosis, "skew_changed": abs(skew - before[0]),
        "mean": float(standard.mean().abs()), "variance": float(standard.var(correction=0)),
        "share_of_layer_norm_in_0_1": float(((layer >= 0) & (layer <= 1)).double().mean()),
    }  # fmt: skip


def one_pass() -> dict[str, float]:
    """The variance of float32 rows of mean 1e4 and deviation 1: E[x^2] - E[x]^2 in one pass, against two passes; float16 sums."""
    x = (drawn(64, 4096, seed=22) + 1e4).float()
    true = x.double().var(-1, correction=0)
    single = (x * x).mean(-1) - x.mean(-1) ** 2
    double = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)
    fives = torch.full((4096,), 5.0, dtype=torch.float16)
    y = LayerNorm(4096)(x).detach().double()
    expected = torch.nn.functional.layer_norm(x.double(), (4096,))
    return {
        "one_pass_error": float(((single.double() - true) / true).abs().max()),
        "two_pass_error": float(((double.double() - true) / true).abs().max()),
        "float16_sum_of_squares_finite": float(torch.isfinite((fives * fives).cumsum(0)[-1]).double()),
        "layer_norm_error": float((y - expected).abs().max()),
    }


def gaussian_range() -> dict[str, float]:
    """Values behind LayerNorm: of normal rows the share within 2, and the largest value that any row can have."""
    d = 768
    y = LayerNorm(d).double()(drawn(500, d, seed=23)).detach()
    spike = torch.zeros(1, d, dtype=torch.float64)
    spike[0, 0] = 1e6
    worst = LayerNorm(d).double()(spike).detach().max()
    return {"share_within_2": float((y.abs() <= 2).double().mean()), "largest_possible": float(worst)}


def affine_only_rescales() -> dict[str, float]:
    """What gain and bias change of a BatchNorm: the output's mean and deviation become what they say; its shape stays."""
    x = drawn(401, 5, seed=24).exp()
    norm = BatchNorm(5).double().train()
    with torch.no_grad():
        plain = norm(x)
        gain, bias = drawn(5, seed=25), drawn(5, seed=26)
        given(norm, gain, bias)
        y = norm(x)
    shape = [abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) for a, b in zip(plain.T, y.T, strict=True)]
    deviation = y.std(0, correction=0) / plain.std(0, correction=0)
    return {"mean_as_told": float((y.mean(0) - bias).abs().max()), "deviation_as_told": float((deviation - gain.abs()).abs().max()),
            "correlation": min(shape)}  # fmt: skip
