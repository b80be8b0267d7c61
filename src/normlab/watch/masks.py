"""The padding masks among a model's arguments, found by name, and how one lies in a tensor inside of the model.

A mask is (batch, tokens). A stream may be batch-first or sequence-first, flattened, or have heads: where the shape leaves one
reading, that is it; where it leaves two (as many sequences as tokens), evidence decides: torch's attention says which it wants,
an embedding was given the tokens one way or the other. Without evidence the mask is not used there, and the coverage says so.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
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
        wants = {m.batch_first for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
        self._torch_wants = wants.pop() if len(wants) == 1 else None
        self._found: dict[str, Tensor] = {}
        self._tokens: list[Tensor] = []
        self._seen: bool | None = None  # batch-first, by what an embedding was given in this call?
        self._told: dict[str, bool] = {}  # batch-first, by an unmistakable shape at this site, now or earlier?
        self._told_last: bool | None = None
        self.unused: dict[str, str] = {}  # site: why a mask of the call was not used there

    def find(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Two-dimensional and not floating: (B, L), kept as True = real."""
        signature = inspect.signature(module.forward)
        try:
            named = signature.bind(*args, **kwargs).arguments
        except TypeError:
            named = kwargs
        rest = named.get("kwargs")
        named = {**(rest if isinstance(rest, dict) else {}), **named}
        self._found, self._seen, self.unused = {}, None, {}
        # torch's own stacks have both: there "mask" says which token may look at which.
        names = NAMES[1:] if "src_key_padding_mask" in signature.parameters else NAMES
        for name in names:
            mask = named.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
                self._found[name] = ~mask.bool() if name in INVERTED else mask.bool()
        flat = [part for value in named.values() for part in (value if isinstance(value, tuple) else (value,))]
        self._tokens = [t for t in flat if isinstance(t, Tensor) and t.dim() == 2 and t.dtype in (torch.int64, torch.int32)
                        and t.shape[0] == t.shape[1]]  # fmt: skip  # only these leave a doubt

    @property
    def asks(self) -> bool:
        """Would it help to see what embeddings are given?"""
        return bool(self._found and self._tokens) and self._seen is None

    def embedded(self, indices: Any) -> None:
        """What an embedding was given: the model's tokens as they came, or turned around."""
        for tokens in self._tokens:
            if isinstance(indices, Tensor) and indices.shape == tokens.shape:
                straight, turned = torch.equal(indices, tokens), torch.equal(indices, tokens.T)
                if straight != turned:
                    self._seen = straight
                    return

    def _batch_first(self, *told: bool | None) -> bool | None:
        return next((way for way in (self._torch_wants, *told, self._seen) if way is not None), None)

    @staticmethod
    def like(mask: Tensor | None, x: Tensor, channel_dim: int) -> Tensor | None:
        """The mask, if it has a cell for each of x's tokens."""
        places = tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
        return mask if mask is not None and tuple(mask.shape) == places else None

    def fitting(self, site: str, x: Tensor, channel_dim: int = -1) -> Tensor | None:
        """The mask in x's shape without features; where both stacks have one that fits, the site's name decides."""
        places = tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
        found = self._found
        if self._two_stacks:  # a model with a decoder alone may call its mask what it likes
            above = any(part in ("decoder", "target") for part in site.split("."))
            found = {n: m for n, m in found.items() if (n in OF_THE_DECODER) == above}
        why = None
        for mask in found.values():
            laid, reason = self._laid(site, mask, places)
            if laid is not None:
                self.unused.pop(site, None)
                return laid
            why = why or reason
        if why is not None:
            self.unused[site] = why
        return None

    def _laid(self, site: str, mask: Tensor, places: tuple[int, ...]) -> tuple[Tensor | None, str | None]:
        """(the mask in that shape, None), or (None, why not); (None, None) where there are no tokens to hide."""
        batch, length = mask.shape
        if len(places) == 3:
            return self._with_heads(mask, places)
        if len(places) == 1 and places[0] == batch * length and length > 1:
            first = True if batch == 1 else self._batch_first(self._told_last)
            return self._one_of({True: mask.reshape(-1), False: mask.T.reshape(-1)}, first, places)
        ways = {way: laid for way, laid in ((True, mask), (False, mask.T)) if tuple(laid.shape) == places}
        if len(ways) == 1:
            self._told_last = self._told[site] = next(iter(ways))
        if ways:
            return self._one_of(ways, self._batch_first(self._told.get(site)), places)
        if len(places) < 2:
            return None, None  # one vector per sequence: nothing is padding
        return None, f"a mask of {batch} x {length} does not lie in {' x '.join(map(str, places))}"

    @staticmethod
    def _one_of(
        ways: dict[bool, Tensor], first: bool | None, places: tuple[int, ...]
    ) -> tuple[Tensor | None, str | None]:
        if len(ways) == 1:
            return next(iter(ways.values())), None
        if first is None:
            return (
                None,
                f"{' x '.join(map(str, places))} can be read batch-first or sequence-first, and nothing tells which",
            )
        return ways[first], None

    def _with_heads(self, mask: Tensor, places: tuple[int, ...]) -> tuple[Tensor | None, str | None]:
        """Queries and keys: (B, H, L), (B, L, H), (L, B, H)."""
        batch, length = mask.shape
        ways = []
        if places[0] == batch and places[2] == length:
            ways.append(mask[:, None, :].expand(places))
        if places[:2] == (batch, length):
            ways.append(mask[:, :, None].expand(places))
        if places[:2] == (length, batch) and self._batch_first() is not True and batch != length:
            ways.append(mask.T[:, :, None].expand(places))
        if len(ways) == 1:
            return ways[0], None
        shape = " x ".join(map(str, places))
        return None, f"a mask of {batch} x {length} lies in {shape} in {len(ways) or 'no'} ways"
