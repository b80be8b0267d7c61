"""The padding masks among a model's arguments, found by name, and how one lies in a tensor inside of the model.

A mask is (batch, tokens). A stream may be batch-first or sequence-first, flattened, or have heads: where the shape leaves one
reading, that is it. Where it leaves two (as many sequences as tokens, or both in one axis) the data flow decides: inside of torch's own
layers what they were told (``batch_first``), elsewhere the graph back to what an embedding made of the tokens, see :mod:`.layout`.
Without evidence the mask is not used there, and the coverage says so.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .layout import Layout

NAMES = ("mask", "attention_mask", "padding_mask", "src_key_padding_mask", "source_mask", "target_mask",
         "tgt_key_padding_mask", "decoder_attention_mask")  # fmt: skip
INVERTED = ("src_key_padding_mask", "tgt_key_padding_mask")  # True = padding
OF_THE_DECODER = ("target_mask", "tgt_key_padding_mask", "decoder_attention_mask")


class Masks:
    """Of one model: ``find`` reads the arguments of a call, ``fitting`` answers for a tensor inside of it."""

    def __init__(self, model: nn.Module) -> None:
        parts = {part for name, _ in model.named_modules() for part in name.split(".")}
        self._two_stacks = bool(parts & {"decoder", "target"}) and bool(parts & {"encoder", "source"})
        # BERT calls a linear layer so: answers are a decoder's if it has parts.
        self._decodes = self._two_stacks and any(
            name.rpartition(".")[2] in ("decoder", "target") and any(m.children()) for name, m in model.named_modules()
        )
        # Torch's own layers hand their stream to their attention as it is: there is no transposition inside of them.
        self._torchs: dict[str, bool] = {
            name: m.self_attn.batch_first for name, m in model.named_modules()
            if type(m).forward in (nn.TransformerEncoderLayer.forward, nn.TransformerDecoderLayer.forward)
        }  # fmt: skip
        for name, m in model.named_modules():
            if isinstance(m, (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)):
                inside = {way for at, way in self._torchs.items() if not name or at.startswith(name + ".")}
                if len(inside) == 1:
                    self._torchs[name] = next(iter(inside))
        self._found: dict[str, Tensor] = {}
        self._tokens: list[Tensor] = []
        self._layout = Layout()
        self._told: dict[
            str, bool
        ] = {}  # batch-first, by an unmistakable shape or the graph at this site, now or earlier?
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
        self._found, self._layout, self.unused = {}, Layout(), {}
        # torch's own stacks have both: there "mask" says which token may look at which.
        names = NAMES[1:] if "src_key_padding_mask" in signature.parameters else NAMES
        for name in names:
            mask = named.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
                self._found[name] = ~mask.bool() if name in INVERTED else mask.bool()
        flat = [part for value in named.values() for part in (value if isinstance(value, tuple) else (value,))]
        self._tokens = [t for t in flat if isinstance(t, Tensor) and t.dim() == 2 and t.dtype in (torch.int64, torch.int32)
                        and t.shape[0] == t.shape[1]]  # fmt: skip  # only these leave a doubt

    def done(self) -> None:
        """The forward is over: let go of its graph."""
        self._layout = Layout()

    @property
    def asks(self) -> bool:
        """Would it help to see what embeddings make of what they are given?"""
        return bool(self._tokens)

    def embedded(self, indices: Any, output: Any) -> None:
        """An embedding was given the model's tokens as they came, or turned around."""
        for tokens in self._tokens:
            if isinstance(indices, Tensor) and isinstance(output, Tensor) and indices.shape == tokens.shape:
                straight, turned = torch.equal(indices, tokens), torch.equal(indices, tokens.T)
                if straight != turned:
                    self._layout.mark(output, 0 if straight else 1)
                    return

    def attended(self, query: Any, batch_first: bool) -> None:
        """torch's attention was given this."""
        if isinstance(query, Tensor) and query.dim() == 3:
            self._layout.mark(query, 0 if batch_first else 1)

    def _batch_first(self, site: str, x: Tensor, mask: Tensor, *told: bool | None) -> bool | None:
        inside = [n for n in self._torchs if not n or site == n or site.startswith(n + ".")]
        if inside:
            return self._torchs[max(inside, key=len)]
        way = self._layout.leads_with_sequences(x, *mask.shape)
        if way is not None:
            self._told[site] = way  # for a recomputation, which has no graph of its own
        return next((w for w in (way, self._told.get(site), *told) if w is not None), None)

    def like(self, site: str, mask: Tensor | None, x: Tensor, channel_dim: int) -> Tensor | None:
        """The mask in x's shape without features, if it can be told how it lies there; nothing is said where it cannot."""
        return None if mask is None else self._laid(site, x, mask, _places(x, channel_dim))[0]

    def of_answers(self, y: Tensor) -> Tensor | None:
        """The mask of what the model returned: of two stacks the decoder's, or none."""
        return self._fitting("model", y, -1, self._decodes)

    def fitting(self, site: str, x: Tensor, channel_dim: int = -1) -> Tensor | None:
        """The mask in x's shape without features; where both stacks have one that fits, the site's name decides."""
        return self._fitting(site, x, channel_dim, any(part in ("decoder", "target") for part in site.split(".")))

    def _fitting(self, site: str, x: Tensor, channel_dim: int, above: bool) -> Tensor | None:
        places, found = _places(x, channel_dim), self._found
        if self._two_stacks:  # a model with a decoder alone may call its mask what it likes
            found = {n: m for n, m in found.items() if (n in OF_THE_DECODER) == above}
        why = None
        for mask in found.values():
            laid, reason = self._laid(site, x, mask, places)
            if laid is not None:
                self.unused.pop(site, None)
                return laid
            why = why or reason
        if why is not None:
            self.unused[site] = why
        return None

    def _laid(self, site: str, x: Tensor, mask: Tensor, places: tuple[int, ...]) -> tuple[Tensor | None, str | None]:
        """(the mask in that shape, None), or (None, why not); (None, None) where there are no tokens to hide."""
        batch, length = mask.shape
        if len(places) == 3:
            return self._with_heads(site, x, mask, places)
        if len(places) == 1 and places[0] == batch * length:
            # One token per sequence: its vector is the sequence's, and padding in either reading.
            first = True if 1 in (batch, length) else self._batch_first(site, x, mask, self._told_last)
            return self._one_of({True: mask.reshape(-1), False: mask.T.reshape(-1)}, first, places)
        ways = {way: laid for way, laid in ((True, mask), (False, mask.T)) if tuple(laid.shape) == places}
        if len(ways) == 1:
            self._told_last = self._told[site] = next(iter(ways))
            return next(iter(ways.values())), None
        if ways:
            return self._one_of(ways, self._batch_first(site, x, mask), places)
        if len(places) < 2:
            return None, None  # one vector per sequence: nothing is padding
        return None, f"a mask of {batch} x {length} does not lie in {' x '.join(map(str, places))}"

    @staticmethod
    def _one_of(
        ways: dict[bool, Tensor], first: bool | None, places: tuple[int, ...]
    ) -> tuple[Tensor | None, str | None]:
        if first is None:
            shape = " x ".join(map(str, places))
            return None, f"{shape} can be read batch-first or sequence-first, and nothing tells which"
        return ways[first], None

    def _with_heads(
        self, site: str, x: Tensor, mask: Tensor, places: tuple[int, ...]
    ) -> tuple[Tensor | None, str | None]:
        """Queries and keys: (B, H, L), (B, L, H), (L, B, H), (L, H, B)."""
        ways = [(first, at) for first, (one, other) in ((True, mask.shape), (False, mask.shape[::-1])) for at in (1, 2)
                if places[0] == one and places[at] == other]  # fmt: skip
        if len({first for first, _ in ways}) > 1:
            lead = self._batch_first(site, x, mask)
            if lead is None:
                return self._one_of({}, None, places)
            ways = [way for way in ways if way[0] is lead]
        if len(ways) == 1:
            first, at = ways[0]
            laid = mask if first else mask.T
            return (laid[:, :, None] if at == 1 else laid[:, None, :]).expand(places), None
        batch, length = mask.shape
        shape = " x ".join(map(str, places))
        return None, f"a mask of {batch} x {length} lies in {shape} in {len(ways) or 'no'} ways"


def _places(x: Tensor, channel_dim: int) -> tuple[int, ...]:
    return tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
