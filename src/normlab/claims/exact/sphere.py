"""Where vectors lie behind a norm, and what of them is lost: geometry and information."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...norms import BatchNorm, LayerNorm, RMSNorm, ScaleNorm
from .axes import drawn, given

D = 64
TINY = 1e-30  # for an eps that does nothing


def radius() -> dict[str, float]:
    """Lengths behind LayerNorm without gain and bias, for three widths, and behind them for one."""
    found: dict[str, float] = {}
    for d in (8, 64, 768):
        y = LayerNorm(d, eps=TINY, elementwise_affine=False)(drawn(101, d, seed=30))
        lengths = torch.linalg.vector_norm(y, dim=-1)
        found |= {f"radius_{d}": float(lengths.mean()), f"radius_over_root_{d}": float(lengths.mean() / math.sqrt(d)),
                  f"spread_{d}": float(lengths.std() / lengths.mean()), f"off_plane_{d}": float(y.sum(-1).abs().max())}  # fmt: skip
    norm = LayerNorm(D, eps=TINY).double()
    with torch.no_grad():
        gain, bias = drawn(D, seed=31), drawn(D, seed=32)
        given(norm, gain, bias)
        y = norm(drawn(101, D, seed=33))
        ellipsoid = ((y - bias) / gain).square().sum(-1).sqrt()
    lengths = torch.linalg.vector_norm(y, dim=-1)
    return {**found, "spread_behind_gain": float(lengths.std() / lengths.mean()),
            "ellipsoid": float((ellipsoid / math.sqrt(D) - 1).abs().max())}  # fmt: skip


def vector_norm() -> dict[str, float]:
    """LayerNorm, RMSNorm and ScaleNorm as divisions by a length."""
    x = drawn(23, D, seed=34)
    centred = x - x.mean(-1, keepdim=True)

    def by_length(t: Tensor) -> Tensor:
        return math.sqrt(D) * t / torch.linalg.vector_norm(t, dim=-1, keepdim=True)

    scale = ScaleNorm(D, affine=False).double()
    return {
        "layer": float((LayerNorm(D, eps=TINY, elementwise_affine=False)(x) - by_length(centred)).abs().max()),
        "rms": float((RMSNorm(D, eps=TINY, elementwise_affine=False)(x) - by_length(x)).abs().max()),
        "scale": float((math.sqrt(D) * scale(x) - by_length(x)).abs().max()),
    }


def _rank(norm: torch.nn.Module, x: Tensor) -> int:
    jacobian = torch.autograd.functional.jacobian(norm, x)
    values = torch.linalg.svdvals(jacobian)  # type: ignore[arg-type]
    return int((values > 1e-9 * values[0]).sum())


def information() -> dict[str, float]:
    """What can be recovered: ranks of Jacobians, inputs that LayerNorm cannot tell apart, and BatchNorm's way back in evaluation."""
    d = 16
    x = drawn(d, seed=35)
    layer, rms = LayerNorm(d, eps=TINY, elementwise_affine=False), RMSNorm(d, eps=TINY, elementwise_affine=False)
    batch: Any = BatchNorm(d).double()
    with torch.no_grad():
        batch.running_mean.copy_(drawn(d, seed=36))
        batch.running_var.copy_(drawn(d, seed=37).square() + 0.1)
        gain, bias = drawn(d, seed=38), drawn(d, seed=39)
        given(batch, gain, bias)
        batch.eval()
        rows = drawn(9, 7, d, seed=40)
        y = batch(rows)
        back = (y - bias) / gain * torch.sqrt(batch.running_var + batch.eps) + batch.running_mean
    training = BatchNorm(d, affine=False).double().train()
    z, deviation = training(rows), rows.flatten(0, 1).std(0, correction=0)
    apart_before, apart_after = rows[0, 0] - rows[3, 5], (z[0, 0] - z[3, 5]) * torch.sqrt(deviation**2 + training.eps)
    return {
        "width": float(d),
        "rank_of_layer": float(_rank(layer, x)),
        "rank_of_rms": float(_rank(rms, x)),
        "rank_of_batch_in_evaluation": float(_rank(lambda t: batch(t[None])[0], x)),  # type: ignore[arg-type]
        "told_apart_by_layer": float((layer(x) - layer(3.7 * x - 2.1)).abs().max()),
        "recovered_from_batch": float((back - rows).abs().max()),
        "differences_kept_by_batch": float((apart_before - apart_after).abs().max()),
    }


def jacobian_size() -> dict[str, float]:
    """The largest singular value of LayerNorm's Jacobian times |x - mean| / sqrt(d): at most 1; and its fall with the input's size."""
    d = 24
    norm = LayerNorm(d, eps=TINY, elementwise_affine=False)
    x = drawn(d, seed=41)
    sizes = {}
    for factor in (1.0, 10.0):
        sizes[factor] = float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(norm, factor * x), 2))  # type: ignore[arg-type]
    length = float(torch.linalg.vector_norm(x - x.mean()))
    return {"size_times_length": sizes[1.0] * length / math.sqrt(d), "fall_with_scale": sizes[1.0] / sizes[10.0],
            "changed_by_scale": float((norm(x) - norm(10 * x)).abs().max())}  # fmt: skip


def similarity() -> dict[str, float]:
    """Cosines behind LayerNorm, with and without gain and bias: against Pearson's correlation, and the nearest neighbours by both distances."""
    x = drawn(97, D, seed=42) + 0.7 * drawn(1, D, seed=43)
    plain = LayerNorm(D, eps=TINY, elementwise_affine=False)(x)
    norm = LayerNorm(D, eps=TINY).double()
    with torch.no_grad():
        given(norm, 1 + 0.5 * drawn(D, seed=44), drawn(D, seed=45))
        affine = norm(x)

    def cosines(t: Tensor) -> Tensor:
        unit = t / torch.linalg.vector_norm(t, dim=-1, keepdim=True)
        return unit @ unit.T

    def same_neighbours(t: Tensor) -> float:
        """Share of rows whose nearest other row is the same by cosine and by distance."""
        near = cosines(t).fill_diagonal_(-2).argmax(1)
        return float((near == torch.cdist(t, t).fill_diagonal_(math.inf).argmin(1)).double().mean())

    return {"cosine_against_pearson": float((cosines(plain) - torch.corrcoef(x)).abs().max()),
            "cosine_against_product": float((cosines(plain) - plain @ plain.T / D).abs().max()),
            "same_neighbours": same_neighbours(plain), "same_neighbours_with_gain": same_neighbours(affine),
            "cosine_against_pearson_with_gain": float((cosines(affine) - torch.corrcoef(x)).abs().max())}  # fmt: skip
