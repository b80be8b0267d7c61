"""Into the stream and out of it: tokens, positions, heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..placements import (
    apply_norm,
    reset_inside,
)
from .config import TransformerConfig
from .sublayers import table_near, turn_angles, turn_speeds


class Embedding(nn.Module):
    """Token ids (B, L) -> vectors (B, L, d) with their positions."""

    def __init__(self, config: TransformerConfig, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.max_length, self.dropout = config.max_length, config.dropout
        self.scale = math.sqrt(config.dim) if config.embedding_scale is None else config.embedding_scale
        self.token = nn.Embedding(config.vocab_size, config.dim)
        self._start_tokens()
        self.position = Positions(config)
        self.norm = norm(config.dim) if config.embedding_norm else None
        self.mask_statistics = config.mask_statistics

    def _start_tokens(self) -> None:
        nn.init.normal_(self.token.weight, std=self.token.embedding_dim**-0.5)

    def reset_parameters(self) -> None:
        reset_inside(self)
        self._start_tokens()

    def forward(self, tokens: Tensor, mask: Tensor | None = None, start: int = 0) -> Tensor:
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ValueError(
                f"tokens must be integer ids of shape (B, L), got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        end = start + tokens.shape[1]
        if end > self.max_length:
            raise ValueError(
                f"a sequence of {end} tokens is longer than max_length={self.max_length}; raise it in the config"
            )
        if mask is not None and (mask.shape != tokens.shape or mask.dtype != torch.bool):
            raise ValueError(
                f"mask must be boolean with True = real and have the tokens' shape {tuple(tokens.shape)}, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        x = self.position(self.token(tokens) * self.scale, start)
        if self.norm is not None:
            x = apply_norm(self.norm, x, mask if self.mask_statistics else None)
        return F.dropout(x, self.dropout, self.training)


class Positions(nn.Module):
    """Adds sinusoidal or learned positions; rotary ones are applied in attention."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.positions
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.max_length, config.dim))
        elif self.kind == "sinusoidal":
            turns = turn_angles(config.max_length, turn_speeds(10000.0, (config.dim + 1) // 2))
            self.table = torch.stack((turns.sin(), turns.cos()), -1).flatten(1)[:, : config.dim].float()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.kind == "learned":
            nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        if self.kind in ("rotary", "none"):
            return x
        table = self.weight if self.kind == "learned" else table_near(self, "table", x)
        return x + table[start : start + x.shape[1]].to(x.dtype)


def make_head(config: TransformerConfig, width_out: int, embedding: nn.Embedding | None) -> nn.Linear:
    head = nn.Linear(
        config.dim,
        width_out,
        bias=embedding is None and config.architecture not in ("decoder", "encoder-decoder", "recurrent"),
    )
    start_head(head)
    if embedding is not None:
        head.weight = embedding.weight
    return head


def start_head(head: nn.Linear) -> None:
    nn.init.normal_(head.weight, std=head.in_features**-0.5)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def start_input(matrix: nn.Linear | nn.Conv2d) -> None:
    nn.init.xavier_normal_(matrix.weight)
    assert matrix.bias is not None
    nn.init.zeros_(matrix.bias)
