"""Whole training steps: a decoder with normlab's norms against the same decoder with torch's, both sides in one run.

A step is forward, loss, backward and fused AdamW. The share of a step that goes to normalization is the time of one norm
alone, forward and backward, times the number of norms, over the time of the step. (Leaving the norms out instead measures
something else: without them the values run away, and arithmetic on subnormal numbers is slow.) Alone a norm finds its
data in the cache, so in the step it costs more than this share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models import Decoder, Embedding, TransformerConfig, build
from ..norms import make_norm
from .timing import Goal, Row, Side, compare, interleave

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {"dim": 256, "num_layers": 6, "num_heads": 4, "max_length": 256, "vocab_size": 256}
QUICK_SIZES = {**SIZES, "num_layers": 2, "max_length": 64}


class TorchDecoder(nn.Module):
    """The same model around nn.TransformerEncoder with a causal mask."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config, nn.LayerNorm)
        layer = nn.TransformerEncoderLayer(config.dim, config.num_heads, 4 * config.dim, 0.0, "gelu", batch_first=True,
                                           norm_first=True)  # fmt: skip
        self.stack = nn.TransformerEncoder(
            layer, config.num_layers, nn.LayerNorm(config.dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.stack(x, mask=mask, is_causal=True))


def copy_into_torch(ours: Decoder, theirs: TorchDecoder) -> None:
    """Our weights into the nn.TransformerEncoder model."""
    theirs.embedding.load_state_dict(ours.embedding.state_dict())
    theirs.head.load_state_dict(ours.head.state_dict())
    theirs.stack.norm.load_state_dict(ours.stack.ends.norm.state_dict())  # type: ignore[union-attr]
    for mine, other in zip(ours.stack.layers, theirs.stack.layers, strict=True):
        a: Any = mine
        b: Any = other
        pairs = ((b.self_attn.out_proj, a.attention.out), (b.linear1, a.feedforward.up), (b.linear2, a.feedforward.down),
                 (b.norm1, a.attention_place.norm), (b.norm2, a.feedforward_place.norm))  # fmt: skip
        for target, source in pairs:
            target.load_state_dict(source.state_dict())
        with torch.no_grad():
            b.self_attn.in_proj_weight.copy_(a.attention.qkv.weight)
            b.self_attn.in_proj_bias.copy_(a.attention.qkv.bias)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def _step(model: nn.Module, tokens: Tensor) -> Side:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        _loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _norms_alone(name: str, shape: tuple[int, ...], dtype: torch.dtype, seconds: float) -> dict[str, float]:
    """Seconds of one norm of ours and of torch's, forward and backward; under every name torch's goes by here."""
    x, grad = torch.randn(shape).to(dtype).requires_grad_(), torch.randn(shape).to(dtype)
    layers: dict[str, nn.Module] = {
        "ours": make_norm(name, shape[-1], dtype=dtype),
        "torch": (nn.RMSNorm if name == "rms" else nn.LayerNorm)(shape[-1], dtype=dtype),
    }

    def side(layer: nn.Module) -> Side:
        def run() -> None:
            layer(x).backward(grad)
            x.grad = None
            layer.zero_grad()

        return run

    times = interleave({key: side(layer) for key, layer in layers.items()}, seconds)
    return {"ours": min(times["ours"]), **dict.fromkeys(("nn.RMSNorm", "nn.TransformerEncoder"), min(times["torch"]))}


def training_steps(dtype_name: str, seconds: float, compiled: bool, quick: bool = False) -> Iterator[Row]:
    """One row per norm: RMSNorm against nn.RMSNorm in the same model, LayerNorm against nn.TransformerEncoder.

    Refuses to time models that do not compute the same loss.
    """
    dtype = DTYPES[dtype_name]
    sizes: dict[str, Any] = dict(QUICK_SIZES if quick else SIZES)
    batch, length = 8, sizes["max_length"]
    tokens = torch.randint(0, 256, (batch, length + 1), generator=torch.Generator().manual_seed(0))
    for family, name, rival in (("RMSNorm", "rms", "nn.RMSNorm"), ("LayerNorm", "layer", "nn.TransformerEncoder")):
        torch.manual_seed(0)
        ours = build(architecture="decoder", norm=name, **sizes)
        if name == "rms":
            theirs: nn.Module = build(architecture="decoder", norm=nn.RMSNorm, fused=False, **sizes)
            theirs.load_state_dict(ours.state_dict())
        else:
            theirs = TorchDecoder(ours.config)
            copy_into_torch(ours, theirs)  # type: ignore[arg-type]
        models = {"ours": ours, rival: theirs}
        models = {side: model.to(dtype) for side, model in models.items()}
        with torch.no_grad():
            mine, other = (float(_loss(models[side], tokens)) for side in ("ours", rival))
        if abs(mine - other) > (1e-4 if dtype_name == "float32" else 3e-2) * abs(mine):
            raise RuntimeError(f"the models disagree, nothing was timed: loss {mine} against {other} ({family})")
        sides = {side: _step(model, tokens) for side, model in models.items()}
        if compiled:
            torch.compiler.reset()
            for side in ("ours", rival):
                sides[f"{side}, compiled"] = _step(torch.compile(models[side]), tokens)  # type: ignore[arg-type]
        shape = (batch, length, sizes["dim"])
        row = compare(Row(family="training step", case=f"{family}, {sizes['num_layers']} layers", shape=shape,
                          dtype=dtype_name), sides, 6 * seconds)  # fmt: skip
        count = 2 * sizes["num_layers"] + 1
        alone = _norms_alone(name, shape, dtype, seconds)
        row.share_of_step = {side: count * alone[side] / row.sides[side] for side in ("ours", rival)}
        yield row


def goals(rows: list[Row]) -> list[Goal]:
    found = []
    for rival, target in (("nn.RMSNorm", 1.1), ("nn.TransformerEncoder", 1.0)):
        for row in (r for r in rows if r.family == "training step" and rival in r.ratios):
            found.append(
                Goal(
                    what=f"training step vs the model with {rival}, {row.dtype}",
                    what_zh=f"训练一步对比使用 {rival} 的模型，{row.dtype}",
                    measured=row.ratios[rival],
                    target=target,
                )
            )
    return found
