"""Batch, length, padding and the future: on whom a token's result depends."""

from __future__ import annotations

import torch
from torch import Tensor

from ...norms import BatchNorm, LayerNorm, RMSNorm
from .axes import drawn, given

B, L, D = 7, 13, 29


def _layer() -> LayerNorm:
    norm = LayerNorm(D).double()
    given(norm, drawn(D, seed=50), drawn(D, seed=51))
    return norm


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def independence() -> dict[str, float]:
    """One sample alone against the same in a batch, cut sequences, halves side by side; BatchNorm beside it."""
    x = drawn(B, L, D, seed=52)
    layer, batch = _layer(), BatchNorm(D).double().train()
    turned = torch.arange(B - 1, -1, -1)
    halves = torch.cat([layer(x[:3]), layer(x[3:])])
    return {
        "layer_alone": max(apart(layer(x)[i], layer(x[i : i + 1])[0]) for i in range(B)),
        "layer_permuted": apart(layer(x)[turned], layer(x[turned])),
        "layer_cut": max(apart(layer(x)[:, :t], layer(x[:, :t])) for t in (1, 5, L)),
        "layer_in_halves": apart(layer(x), halves),
        "batch_alone": max(apart(batch(x)[i], batch(x[i : i + 1])[0]) for i in range(B)),
        "batch_in_halves": apart(batch(x), torch.cat([batch(x[:3]), batch(x[3:])])),
    }


def batch_of_one() -> dict[str, float]:
    """A batch of one token: LayerNorm, and BatchNorm in training, which has no spread to divide by; what each has to keep."""
    one = drawn(1, 1, D, seed=53)
    layer = _layer()
    try:
        BatchNorm(D).double().train()(one)
        refused = 0.0
    except ValueError:
        refused = 1.0
    running = [name for name, _ in BatchNorm(D).named_buffers() if name.startswith("running")]
    return {"layer_finite": float(torch.isfinite(layer(one)).all()), "batch_refuses": refused,
            "buffers_of_layer": float(len(list(layer.buffers()))), "running_of_batch": float(len(running))}  # fmt: skip


def padding() -> dict[str, float]:
    """BatchNorm's mean and deviation with a third of padding counted, against real tokens alone; and more padding under a mask."""
    x = drawn(B, L, D, seed=54) + 1.0
    lengths = torch.tensor([13, 11, 9, 8, 7, 5, 4])
    mask = torch.arange(L)[None] < lengths[:, None]
    padded = torch.where(mask[..., None], x, 0.0)
    real = x[mask]
    counted = padded.flatten(0, 1)
    longer = torch.cat([padded, torch.zeros(B, 20, D, dtype=torch.float64)], 1)
    long_mask = torch.cat([mask, torch.zeros(B, 20, dtype=torch.bool)], 1)
    norm = BatchNorm(D).double().train()
    return {
        "mean_moved": float(((counted.mean(0) - real.mean(0)) / real.std(0)).abs().mean()),
        "deviation_changed": float((counted.std(0) / real.std(0) - 1).abs().mean()),
        "masked_and_longer": apart(norm(padded, mask=mask), norm(longer, mask=long_mask)[:, :L]),
    }


def future() -> dict[str, float]:
    """The gradient of a token's output with respect to later tokens, through the statistics."""
    t = 4

    def leak(norm: torch.nn.Module) -> float:
        x = drawn(B, L, D, seed=55).requires_grad_()
        (grad,) = torch.autograd.grad((norm(x)[:, t] * drawn(B, D, seed=56)).sum(), x)
        return float(torch.linalg.vector_norm(grad[:, t + 1 :]))

    evaluated = BatchNorm(D).double().eval()
    return {
        "batch": leak(BatchNorm(D).double().train()),
        "layer": leak(_layer()),
        "batch_in_evaluation": leak(evaluated),
    }


def folding() -> dict[str, float]:
    """Gain and bias of a pre-norm, folded into the matrix after it; and LayerNorm turned into RMSNorm by centring what feeds the stream."""
    norm, linear = _layer(), torch.nn.Linear(D, 31).double()
    x = drawn(B, L, D, seed=57)
    plain = LayerNorm(D, elementwise_affine=False)
    weight = linear.weight * drawn(D, seed=50)
    bias = linear.bias + linear.weight @ drawn(D, seed=51)
    folded = torch.nn.functional.linear(plain(x), weight, bias)
    feeds = drawn(D, 17, seed=58)
    centred = feeds - feeds.mean(0, keepdim=True)
    hidden = drawn(B, L, 17, seed=59)
    rms = RMSNorm(D, eps=1e-5, elementwise_affine=False)
    return {"folded": apart(linear(norm(x)), folded), "gain_left_out": apart(linear(norm(x)), linear(plain(x))),
            "layer_as_rms": apart(plain(hidden @ feeds.T), rms(hidden @ centred.T)),
            "layer_is_not_rms": apart(plain(hidden @ feeds.T), rms(hidden @ feeds.T))}  # fmt: skip
