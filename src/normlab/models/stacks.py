"""Layers of sub-layers and placements, and a stack of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..placements import (
    PLACEMENTS,
    Placement,
    PlacementFacts,
    Slot,
    reset_inside,
)
from .config import TransformerConfig
from .sublayers import Attention, Cache, Convolution, FeedForward, table_near, turn_angles, turn_speeds


def _add_parts(total: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for kind, matrices in more.items():
        total.setdefault(kind, []).extend(matrices)


class Layer(nn.Module):
    """One layer of any architecture: its sub-layers, each in its place."""

    def __init__(self, config: TransformerConfig, layer: int, *, stack: str, num_layers: int, other_layers: int,
                 norm: Callable[[int], nn.Module], facts: PlacementFacts) -> None:  # fmt: skip
        super().__init__()
        inside = facts.placement.inside
        cross = stack == "decoder" and other_layers > 0

        def place(kind: str) -> Placement:
            slot = Slot(layer=layer, num_layers=num_layers, kind=kind, first=kind == "attention",
                        last=kind == "feedforward", stack=stack, other_layers=other_layers, width=config.dim)  # fmt: skip
            options = config.placement_options
            return facts.placement(lambda: norm(config.dim), slot, dropout=config.dropout, fuse=config.fused, **options)

        self.attention: nn.Module = (
            Convolution(config, norm, inside)
            if config.architecture == "convolution"
            else Attention(config, layer, norm, inside)
        )
        self.attention_place = place("attention")
        self.cross = Attention(config, layer, norm, inside, cross=True) if cross else None
        self.cross_place = place("cross") if cross else None
        self.feedforward = FeedForward(config, norm, inside)
        self.feedforward_place = place("feedforward")

    def forward(
        self, x: Any, mask: Tensor | None = None, attend: Tensor | None = None, causal: bool = False,
        memory: Tensor | None = None, memory_mask: Tensor | None = None, memory_attend: Tensor | None = None,
        angles: tuple[Tensor, Tensor] | None = None, cache: Cache | None = None,
    ) -> Any:  # fmt: skip
        x = self.attention_place(
            x, lambda h: self.attention(h, mask=mask, attend=attend, causal=causal, angles=angles, cache=cache), mask
        )
        if self.cross is not None and self.cross_place is not None:
            cross = self.cross
            x = self.cross_place(
                x,
                lambda h: cross(
                    h, mask=mask, attend=memory_attend, memory=memory, memory_mask=memory_mask, cache=cache
                ),
                mask,
            )
        return self.feedforward_place(x, lambda h: self.feedforward(h, mask), mask)

    def sublayers(self) -> list[Any]:
        return [s for s in (self.attention, self.cross, self.feedforward) if s is not None]


class Stack(nn.Module):
    """Layers between the two ends of a placement: (B, L, d) -> (B, L, d)."""

    def __init__(self, config: TransformerConfig, stack: str, num_layers: int, other_layers: int = 0) -> None:
        super().__init__()
        self.config, self.stack, self.num_layers, self.other_layers = config, stack, num_layers, other_layers
        self.causal = stack == "decoder"
        self.facts = PLACEMENTS[config.placement]
        norm = config.norm_factory(causal=self.causal)
        self.layers = nn.ModuleList(
            Layer(config, i, stack=stack, num_layers=num_layers, other_layers=other_layers, norm=norm, facts=self.facts)
            for i in range(num_layers)
        )
        ends = self.facts.ends_with(config.final_norm)
        self.ends = ends(lambda: norm(config.dim), fuse=config.fused)
        if config.positions == "rotary" and config.architecture != "convolution":
            half = config.dim // config.num_heads // 2
            turns = turn_angles(config.max_length, turn_speeds(config.rotary_base, half)).repeat(1, 2)
            self.cos, self.sin = turns.cos().float(), turns.sin().float()
        self._start_matrices()

    def parts(self) -> dict[str, list[Any]]:
        """The matrices by kind, for an initialization rule."""
        total: dict[str, list[Any]] = {}
        for layer in self.layers:
            for sublayer in layer.sublayers():  # type: ignore[operator]
                _add_parts(total, sublayer.parts())
        return total

    def reset_parameters(self) -> None:
        """The state at construction: constants as they were, matrices drawn anew."""
        reset_inside(self)
        self._start_matrices()

    def _start_matrices(self) -> None:
        for layer in self.layers:
            for sublayer in layer.sublayers():  # type: ignore[operator]
                sublayer.reset_biases()
        self.facts.init(self.parts(), num_layers=self.num_layers, stack=self.stack, other_layers=self.other_layers)

    def _angles(self, x: Tensor, start: int) -> tuple[Tensor, Tensor] | None:
        if self.config.positions != "rotary":
            return None
        span = slice(start, start + x.shape[1])
        return table_near(self, "cos", x)[span].to(x.dtype), table_near(self, "sin", x)[span].to(x.dtype)

    def _attend(self, x: Tensor, mask: Tensor | None, seen: int) -> tuple[Tensor | None, bool]:
        """(attention mask, causal) for tokens that follow ``seen`` others."""
        if not self.causal:
            return _visible(mask), False
        length = x.shape[1]
        if mask is None and seen == 0:
            return None, True
        if mask is None and length == 1:
            return None, False
        rows = torch.arange(seen, seen + length, device=x.device).unsqueeze(1)
        allowed = torch.arange(seen + length, device=x.device).unsqueeze(0) <= rows
        if mask is None:
            return allowed, False
        own = torch.eye(length, dtype=torch.bool, device=x.device)  # padding may see itself: no row without a sum
        return (allowed & (_over_heads(mask) | own)), False

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        if mask is not None and cache is not None:
            raise ValueError("a cache holds no padding: give the decoder a mask or a cache, not both")
        seen = 0 if cache is None else cache.length
        attend, causal = (None, False) if x.dim() == 4 else self._attend(x, mask, seen)
        angles = None if x.dim() == 4 else self._angles(x, seen)
        memory_attend = _visible(memory_mask)
        if not self.config.mask_statistics:  # what is left of the masks is for norms
            mask = memory_mask = None
        stream = self.ends.enter(x, mask)
        for layer in self.layers:
            arguments = (stream, mask, attend, causal, memory, memory_mask, memory_attend, angles, cache)
            if self.config.checkpoint and self.training and torch.is_grad_enabled():
                stream = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                stream = layer(*arguments)
        return self.ends.leave(stream, mask)


def _visible(mask: Tensor | None) -> Tensor | None:
    """(B, 1, 1, S): what may be looked at. A sample that is all padding sees its first position, so that no sum is empty."""
    if mask is None:
        return None
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return _over_heads(mask | (first & ~mask.any(1, keepdim=True)))


def _over_heads(mask: Tensor) -> Tensor:
    """(B, S) as (B, 1, 1, S). Not by slices: torch 2.5 takes a slice of a whole axis for a condition on its length."""
    return mask.unsqueeze(1).unsqueeze(1)
