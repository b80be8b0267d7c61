"""Models small enough for a test, arguments for them, and how far apart two results are.

Every parameter is random, the norms' gains and biases too, and so is the upstream gradient; sizes are primes where heads
let them be. An error is measured against the largest value of its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normlab import TransformerConfig, build

Tensors = Mapping[str, Tensor]
CLOSE = {torch.float32: 3e-5, torch.float64: 1e-12}
BATCH, LENGTH, DIM, HEADS, FFN, WORDS, LONGEST = 3, 11, 22, 2, 29, 17, 19
SIZES: dict[str, Any] = {
    "dim": DIM, "num_heads": HEADS, "ffn_dim": FFN, "num_layers": 2, "vocab_size": WORDS, "max_length": LONGEST,
}  # fmt: skip
IMAGES: dict[str, Any] = {"image_size": 6, "patch_size": 2, "channels": 3, "num_classes": 5}
DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
LLAMA = {"norm": "rms", "activation": "swiglu", "positions": "rotary", "dim": 24, "num_heads": 6, "num_kv_heads": 2}


# ---- tools -----------------------------------------------------------------------------------------------------------


def shaken(module: Any, bias: float = 0.5) -> Any:
    """The module with random parameters: matrices that keep variance, gains around 1, biases around 0."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.dim() >= 2 and not name.endswith("head_scale"):
                p.normal_(std=p[0].numel() ** -0.5)
            elif name.endswith("bias"):
                p.normal_(std=bias)
            else:
                p.uniform_(0.5, 1.5)
    return module


def make(**settings: Any) -> Any:
    return shaken(build(TransformerConfig(**{**SIZES, **settings})))


def words(*shape: int) -> Tensor:
    return torch.randint(WORDS, shape)


def lengths_mask(length: int, *lengths: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def example(architecture: str) -> tuple[Tensor, ...]:
    """Arguments of a model's forward, with the masks it takes."""
    source, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    if architecture in ("vision", "convolution"):
        return (torch.randn(BATCH, 3, 6, 6),)
    return (source, words(BATCH, 5), mask) if architecture == "encoder-decoder" else (source, mask)


def make_any(architecture: str, **settings: Any) -> Any:
    return make(
        architecture=architecture, **{**(IMAGES if architecture in ("vision", "convolution") else {}), **settings}
    )


def off(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert got.shape == want.shape, f"{tuple(got.shape)} and {tuple(want.shape)}"
    assert torch.isfinite(got).all() and torch.isfinite(want).all()
    assert want.any(), "nothing but zeros to compare with"
    return ((got - want).abs().max() / want.abs().max()).item()


def assert_same(got: Mapping[str, Tensor], want: Mapping[str, Tensor], limit: float) -> None:
    assert got.keys() == want.keys()
    wrong = {name: error for name in want if not (error := off(got[name].detach(), want[name].detach())) <= limit}
    assert not wrong, f"more than {limit} apart: {wrong}"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def outcome(model: nn.Module, call: Callable[[], Tensor], upstream: Tensor | None = None) -> dict[str, Tensor]:
    """The output and every parameter's gradient, for a fixed upstream gradient."""
    model.zero_grad()
    y = call()
    if upstream is None:
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    y.backward(upstream)
    found = {name: g.clone() for name, g in gradients(model).items()}
    assert found.keys() == dict(model.named_parameters()).keys(), "a parameter without a gradient"
    return {"output": y.detach(), **found}


def assert_outcomes(got: Mapping[str, Tensor], want: Mapping[str, Tensor], limit: float = 3e-5) -> None:
    """As assert_same, but a gradient that is zero in exact arithmetic (a bias that a norm removes) may be noise."""
    assert got.keys() == want.keys()
    assert torch.isfinite(got["output"]).all() and off(got["output"], want["output"]) <= limit
    floor = 1e-3 * max(g.abs().max().item() for name, g in want.items() if name != "output")
    wrong = {}
    for name in want.keys() - {"output"}:
        error = (got[name] - want[name]).abs().max().item() / max(floor, want[name].abs().max().item())
        if not error <= limit:
            wrong[name] = error
    assert not wrong, f"more than {limit} apart: {wrong}"


def assert_buffers(got: nn.Module, want: nn.Module, limit: float = 1e-5) -> None:
    pairs = list(zip(got.named_buffers(), want.named_buffers(), strict=True))
    for (name, a), (_, b) in pairs:
        torch.testing.assert_close(a, b, rtol=limit, atol=limit, msg=lambda m, n=name: f"{n}: {m}")
