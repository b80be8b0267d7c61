"""The padding masks among a model's arguments, found by name, and which of them a tensor wants."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

NAMES = ("mask", "attention_mask", "padding_mask", "src_key_padding_mask", "source_mask", "target_mask",
         "tgt_key_padding_mask", "decoder_attention_mask")  # fmt: skip
INVERTED = ("src_key_padding_mask", "tgt_key_padding_mask")  # True = padding
OF_THE_DECODER = ("target_mask", "tgt_key_padding_mask", "decoder_attention_mask")


class Masks:
    """Of one model: ``find`` reads the arguments of a call, ``fitting`` answers for a tensor inside of it."""

    def __init__(self, model: nn.Module) -> None:
        parts = {part for name, _ in model.named_modules() for part in name.split(".")}
        self._two_stacks = bool(parts & {"decoder", "target"}) and bool(parts & {"encoder", "source"})
        self._found: dict[str, Tensor] = {}

    def find(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Two-dimensional and not floating: (B, L), kept as True = real."""
        try:
            named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        except TypeError:
            named = kwargs
        rest = named.get("kwargs")
        named = {**(rest if isinstance(rest, dict) else {}), **named}
        self._found = {}
        for name in NAMES:
            mask = named.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
                self._found[name] = ~mask.bool() if name in INVERTED else mask.bool()

    @staticmethod
    def like(mask: Tensor | None, x: Tensor, channel_dim: int) -> Tensor | None:
        """The mask, if it has a cell for each of x's tokens."""
        places = tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
        return mask if mask is not None and tuple(mask.shape) == places else None

    def fitting(self, site: str, x: Tensor, channel_dim: int = -1) -> Tensor | None:
        """The mask of x's shape; where both stacks have one of that shape, the site's name decides."""
        places = tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
        found = {name: mask for name, mask in self._found.items() if tuple(mask.shape) == places}
        if self._two_stacks:  # a model with a decoder alone may call its mask what it likes
            above = any(part in ("decoder", "target") for part in site.split("."))
            found = {n: m for n, m in found.items() if (n in OF_THE_DECODER) == above}
        return next(iter(found.values()), None)
