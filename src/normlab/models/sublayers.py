"""What stands between norms: attention, feed-forward, convolution. They know nothing of the norms around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import RMSNorm
from ..placements import (
    Inside,
    apply_norm,
    reset_inside,
)
from .config import ACTIVATIONS, TransformerConfig


def _linear(config: TransformerConfig, width_in: int, width_out: int) -> nn.Linear:
    return nn.Linear(width_in, width_out, bias=config.bias)


class Cache:
    """Keys and values of the tokens seen so far, for generation."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        self._fixed: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of the layer, these included."""
        if layer not in self._held:
            shape = (*k.shape[:2], self.max_length, k.shape[3])
            self._held[layer] = (k.new_empty(shape), v.new_empty(shape))
        end = self.length + k.shape[2]
        for held, new in zip(self._held[layer], (k, v), strict=True):
            held[:, :, self.length : end] = new
        keys, values = self._held[layer]
        return keys[:, :, :end], values[:, :, :end]

    def fixed(self, layer: int, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the other stack, computed once."""
        if layer not in self._fixed:
            self._fixed[layer] = make()
        return self._fixed[layer]


def turn_angles(max_length: int, speeds: Tensor) -> Tensor:
    return torch.outer(torch.arange(max_length, dtype=torch.float64, device="cpu"), speeds)


def turn_speeds(base: float, count: int) -> Tensor:
    return base ** (-torch.arange(count, dtype=torch.float64, device="cpu") / count)


def table_near(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """A module's table of positions, where x is.

    Tables are plain attributes, made on the CPU whatever the default device: a buffer that no state_dict holds would be
    left as garbage by ``to_empty``, and on meta by ``load_state_dict(assign=True)``.
    """
    table: Tensor = getattr(module, name)
    if table.device != x.device:
        with torch.inference_mode(False):  # a table made in inference could not serve training afterwards
            table = table.to(x.device)
        if type(table) is Tensor and not table.is_meta and not torch.compiler.is_compiling():
            setattr(module, name, table)
    return table


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on (B, H, L, width per head): element i turns with element i + width/2."""
    cos, sin = angles
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Attention(nn.Module):
    """Multi-head attention, to the stream itself or (``cross``) to another stack's output."""

    def __init__(self, config: TransformerConfig, layer: int, norm: Callable[[int], nn.Module], inside: Inside,
                 cross: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.cross = layer, cross
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        self.head_dim = config.dim // config.num_heads
        self.dropout = config.attention_dropout
        self.q_width, self.kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if cross:
            self.q = _linear(config, config.dim, self.q_width)
            self.kv = _linear(config, config.dim, 2 * self.kv_width)
        else:
            self.qkv = _linear(config, config.dim, self.q_width + 2 * self.kv_width)
        self.out = _linear(config, self.q_width, config.dim)
        kind = "cross" if cross else "attention"
        self.norm_out = norm(self.q_width) if kind in inside.norm_before_output else None
        self.head_scale = nn.Parameter(torch.ones(self.num_heads, 1, 1)) if inside.scale_heads else None
        self.norm_q = self.norm_k = self.norm_v = None
        self.norm_heads = config.qk_norm == "head"
        if inside.norm_qkv:
            self.norm_q, self.norm_k, self.norm_v = norm(self.q_width), norm(self.kv_width), norm(self.kv_width)
        elif config.qk_norm is not None:
            widths = (self.head_dim,) * 2 if self.norm_heads else (self.q_width, self.kv_width)
            self.norm_q, self.norm_k = (self._per_token(norm, width) for width in widths)

    @staticmethod
    def _per_token(norm: Callable[[int], nn.Module], width: int) -> nn.Module:
        """The model's norm, or RMSNorm where that one's statistics span tokens: a logit compares two tokens only."""
        made = norm(width)
        return RMSNorm(width) if getattr(made, "over_tokens", False) else made

    def _heads(self, x: Tensor, norm: nn.Module | None, mask: Tensor | None, count: int) -> Tensor:
        """(B, L, width) -> (B, heads, L, width per head), normalized on the way if asked."""
        if norm is not None and not self.norm_heads:
            x = apply_norm(norm, x, mask)
        x = x.unflatten(-1, (count, self.head_dim))
        if norm is not None and self.norm_heads:
            x = norm(x)
        return x.transpose(1, 2)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, attend: Tensor | None = None, causal: bool = False,
        memory: Tensor | None = None, memory_mask: Tensor | None = None,
        angles: tuple[Tensor, Tensor] | None = None, cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        """``attend`` (B or 1, 1, L, S), True where a token may look, or ``causal``."""
        if self.cross:
            assert memory is not None
            q = self._heads(self.q(x), self.norm_q, mask, self.num_heads)

            def make() -> tuple[Tensor, Tensor]:
                k, v = self.kv(memory).split(self.kv_width, -1)
                return (self._heads(k, self.norm_k, memory_mask, self.num_kv_heads),
                        self._heads(v, self.norm_v, memory_mask, self.num_kv_heads))  # fmt: skip

            k, v = make() if cache is None else cache.fixed(self.layer, make)
        else:
            q, k, v = self.qkv(x).split((self.q_width, self.kv_width, self.kv_width), -1)
            q = self._heads(q, self.norm_q, mask, self.num_heads)
            k = self._heads(k, self.norm_k, mask, self.num_kv_heads)
            v = self._heads(v, self.norm_v, mask, self.num_kv_heads)
            if angles is not None:
                q, k = rotate(q, angles), rotate(k, angles)
            if cache is not None:
                k, v = cache.extend(self.layer, k, v)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attend, dropout_p=self.dropout if self.training else 0.0, is_causal=causal,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        if self.head_scale is not None:
            y = y * self.head_scale.to(y.dtype)
        y = y.transpose(1, 2).flatten(2)
        if self.norm_out is not None:
            y = apply_norm(self.norm_out, y, mask)
        return self.out(y)

    def parts(self) -> dict[str, list[Any]]:
        q, kv = self.q_width, self.kv_width
        if self.cross:
            w = self.kv.weight
            return {"query": [self.q], "key": [w[:kv]], "cross_value": [w[kv:]], "cross_output": [self.out]}
        w = self.qkv.weight
        return {"query": [w[:q]], "key": [w[q : q + kv]], "value": [w[q + kv :]], "output": [self.out]}

    def reset_biases(self) -> None:
        for linear in (self.kv,) if self.cross else (self.qkv,):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def reset_parameters(self) -> None:
        """Norms and factors; how the matrices start is the stack's to say."""
        reset_inside(self)
        if self.head_scale is not None:
            nn.init.ones_(self.head_scale)


class FeedForward(nn.Module):
    """Two matrices and an activation function between them; SwiGLU has a third matrix, the gate, beside the first."""

    def __init__(self, config: TransformerConfig, norm: Callable[[int], nn.Module], inside: Inside) -> None:
        super().__init__()
        width = config.inner_width
        self.gated = config.activation == "swiglu"
        self.up = _linear(config, config.dim, 2 * width if self.gated else width)  # gated: [gate | up]
        self.down = _linear(config, width, config.dim)
        self.curve = ACTIVATIONS[config.activation]
        self.dropout = config.activation_dropout
        self.norm_inner = norm(width) if "feedforward" in inside.norm_before_output else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.up(x)
        if self.gated:
            gate, h = h.chunk(2, -1)
            h = self.curve(gate) * h
        else:
            h = self.curve(h)
        if self.norm_inner is not None:
            h = apply_norm(self.norm_inner, h, mask)
        return self.down(F.dropout(h, self.dropout, self.training))

    def parts(self) -> dict[str, list[Any]]:
        up = list(self.up.weight.chunk(2)) if self.gated else [self.up]
        return {"feedforward": [*up, self.down]}

    def reset_biases(self) -> None:
        if self.up.bias is not None:
            nn.init.zeros_(self.up.bias)


class Convolution(nn.Module):
    """A 3 x 3 convolution on (B, height, width, d), then a matrix: attention's place in an image network."""

    def __init__(self, config: TransformerConfig, norm: Callable[[int], nn.Module], inside: Inside) -> None:
        super().__init__()
        self.conv = nn.Conv2d(config.dim, config.dim, 3, padding=1, bias=config.bias)
        self.out = _linear(config, config.dim, config.dim)
        self.curve = ACTIVATIONS[config.activation]
        self.norm_out = norm(config.dim) if "attention" in inside.norm_before_output else None

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        # channels_last memory under Conv2d's (B, d, height, width) view: no copy in either direction.
        y = self.curve(self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        return self.out(y if self.norm_out is None else apply_norm(self.norm_out, y))

    def parts(self) -> dict[str, list[Any]]:
        return {"value": [self.conv], "output": [self.out]}

    def reset_biases(self) -> None:
        pass
