"""Transformers with one norm slot and one placement slot: encoder, decoder, encoder-decoder, images.

Every architecture is a :class:`Stack` of the same :class:`Layer`: sub-layers (attention, feed-forward, convolution) that
know nothing of norms around them, and placements that know nothing of what they surround. :func:`build` makes a model
from a :class:`TransformerConfig`; combinations that cannot work are refused there, with the reason.

Shapes: B batch, L tokens, S tokens of the other stack, d width, H heads, C channels of an image. Masks are (B, L),
boolean, True = real, and reach every norm whose statistics span tokens.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .errors import unknown
from .norms import NORMS, RMSNorm, make_norm
from .placements import (
    B2T,
    Admin,
    Ends,
    FinalNorm,
    Inside,
    Placement,
    PlacementFacts,
    PostNorm,
    Site,
    apply_norm,
    find_placement,
    reset_inside,
)

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder", "vision", "convolution")
POSITIONS = ("sinusoidal", "learned", "rotary", "none")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": functools.partial(F.gelu, approximate="tanh"),  # no lambda: models must pickle
    "relu": F.relu,
    "swiglu": F.silu,  # on the gate; FeedForward multiplies
}

# How a norm whose statistics span tokens can stand in a causal stack: causal_statistics -> its options.
CAUSAL_FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "batch": {"position": {"causal": "position"}, "running": {"causal": "running"}},
    "power": {"running": {"warmup_steps": 0}},
    "group": {"position": {"causal": "position"}},
    "instance": {},
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What :func:`build` makes. Sizes are in values, not bytes; None means the default given behind it."""

    architecture: str = "encoder"
    dim: int = 128
    num_layers: int = 4
    num_decoder_layers: int | None = None  # of an encoder-decoder: num_layers
    num_heads: int = 4
    num_kv_heads: int | None = None  # num_heads; fewer: several heads share keys and values
    ffn_dim: int | None = None  # 4 dim
    norm: str | Callable[[int], nn.Module] = "layer"  # a name from NORMS, or width -> module
    norm_options: Mapping[str, Any] = field(default_factory=dict)
    placement: str = "pre"
    placement_options: Mapping[str, Any] = field(default_factory=dict)
    final_norm: bool | None = None  # as the placement has it
    embedding_norm: bool = False
    qk_norm: str | None = None  # "head": each head's queries and keys on their own; "width": all heads together
    causal_statistics: str | None = None  # for norms over tokens in a causal stack: "position" or "running"
    activation: str = "gelu"
    bias: bool = True
    dropout: float = 0.0  # on the embedding and on every branch
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    fused: bool = True  # residual sums and norms in one pass where both allow it
    checkpoint: bool = False  # recompute each layer in the backward pass instead of keeping it
    # text
    vocab_size: int = 256
    max_length: int = 512
    positions: str = "sinusoidal"
    rotary_base: float = 10000.0
    embedding_scale: float | None = None  # sqrt(dim), on embeddings that start with variance 1/dim
    tie_embeddings: bool = False
    num_classes: int | None = None  # encoder: None gives a vector per token; images: 10
    # images
    image_size: int = 8
    patch_size: int = 2
    channels: int = 1

    def __post_init__(self) -> None:
        for what, value, known in (
            ("architecture", self.architecture, ARCHITECTURES),
            ("positions", self.positions, POSITIONS),
            ("activation", self.activation, ACTIVATIONS),
            ("qk_norm", self.qk_norm, (None, "head", "width")),
            ("causal_statistics", self.causal_statistics, (None, "position", "running")),
        ):
            if value not in known:
                raise ValueError(unknown(what, value, [k for k in known if k is not None]))
        for what in ("dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim", "num_decoder_layers", "vocab_size",
                     "max_length", "image_size", "patch_size", "channels", "num_classes"):  # fmt: skip
            value = getattr(self, what)
            if value is not None and value < 1:
                raise ValueError(f"{what} must be at least 1, got {value}")
        for what in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, what) < 1:
                raise ValueError(f"{what} must lie in [0, 1), got {getattr(self, what)!r}")
        if self.architecture != "convolution":
            if self.dim % self.num_heads:
                raise ValueError(f"num_heads={self.num_heads} does not divide dim={self.dim}")
            if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
                raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
            if self.positions == "rotary" and (self.dim // self.num_heads) % 2:
                raise ValueError(f"rotary positions need an even width per head, got {self.dim // self.num_heads}")
        if self.embedding_norm and self.architecture in ("vision", "convolution"):
            raise ValueError(f"embedding_norm belongs to token embeddings, and {self.architecture!r} has none")
        if self.architecture == "vision" and self.image_size % self.patch_size:
            raise ValueError(f"patch_size={self.patch_size} does not divide image_size={self.image_size}")
        if self.architecture == "vision" and self.tokens > self.max_length:
            raise ValueError(f"an image of {self.tokens} patches is longer than max_length={self.max_length}")
        if self.tie_embeddings and self.architecture not in ("decoder", "encoder-decoder"):
            raise ValueError(
                f"tie_embeddings shares the vocabulary with the output; {self.architecture!r} has none there"
            )
        if self.norm_options and not isinstance(self.norm, str):
            raise ValueError("norm_options belong to a norm given by name; put them into your norm factory instead")
        if isinstance(self.norm, str) and self.norm not in NORMS:
            raise ValueError(unknown("norm", self.norm, NORMS))
        facts = find_placement(self.placement)
        _check_options("placement option", facts.place, self.placement_options, ("norm", "site", "dropout", "fuse"))
        if isinstance(self.norm, str):
            _check_options("norm option", NORMS[self.norm].layer, self.norm_options, ())
        if self.final_norm is not None and facts.ends not in (Ends, FinalNorm):
            raise ValueError(f"placement {self.placement!r} has its own ends; final_norm cannot be set")
        inside = facts.place.inside
        if self.architecture == "convolution":
            if inside.norm_qkv or inside.scale_heads:
                raise ValueError(f"placement {self.placement!r} reaches into attention, and a convolution has none")
            if self.qk_norm is not None:
                raise ValueError("qk_norm belongs to attention, and a convolution has none")
        if inside.norm_qkv and self.qk_norm is not None:
            raise ValueError(f"placement {self.placement!r} already normalizes queries and keys; leave qk_norm out")
        if self.architecture in ("decoder", "encoder-decoder"):
            self._causal_options()
        elif self.norm == "instance" and self._pools() and self._ends_in_norm(facts):
            raise ValueError(
                f"norm 'instance' centres every channel over a sample's tokens, and the mean over tokens that the class scores "
                f"are made from is then zero: with placement {self.placement!r} the model could not see its input. Use "
                "another norm, or a placement that ends without one (none, rezero; or final_norm=False)"
            )
        if self.checkpoint and self._reads_what_it_moves():
            raise ValueError(
                f"norm {self.norm!r} in its running form reads statistics that its own forward moves; recomputing it "
                "(checkpoint=True) would give another result"
            )

    def _pools(self) -> bool:
        return self.architecture != "encoder" or self.num_classes is not None

    def _ends_in_norm(self, facts: PlacementFacts) -> bool:
        if issubclass(facts.place, (PostNorm, B2T, Admin)):
            return True
        return facts.ends is not Ends if self.final_norm is None else self.final_norm

    @property
    def inner_width(self) -> int:
        """Of the feed-forward layer."""
        return 4 * self.dim if self.ffn_dim is None else self.ffn_dim

    @property
    def tokens(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    def _causal_options(self) -> dict[str, Any]:
        """Options that make the norm safe in a causal stack; raises where it cannot be."""
        if not isinstance(self.norm, str) or not NORMS[self.norm].layer.over_tokens:
            return {}
        forms = CAUSAL_FORMS[self.norm]
        if self.causal_statistics in forms:
            return forms[self.causal_statistics]
        safe = ", ".join(n for n, f in NORMS.items() if not f.layer.over_tokens)
        offer = " or ".join(f"causal_statistics={form!r}" for form in forms)
        raise ValueError(
            f"norm {self.norm!r} takes statistics over {NORMS[self.norm].shares}: in a causal stack every token would see "
            f"later ones in training. Use {offer + ', or ' if offer else ''}a norm that looks at one token ({safe})"
        )

    def _reads_what_it_moves(self) -> bool:
        if self.norm == "power":
            return bool(self.norm_options.get("running", True))
        return self.norm == "batch" and (
            "renorm" in self.norm_options
            or self.norm_options.get("causal") == "running"
            or (self.architecture in ("decoder", "encoder-decoder") and self.causal_statistics == "running")
        )

    def norm_factory(self, *, causal: bool) -> Callable[[int], nn.Module]:
        """width -> norm."""
        if not isinstance(self.norm, str):
            return self.norm
        name, options = self.norm, {**self.norm_options, **(self._causal_options() if causal else {})}
        return lambda width: make_norm(name, width, **options)

    def resolved(self) -> dict[str, Any]:
        """Every setting; sizes that were left to others as the numbers they come to."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values.update(ffn_dim=self.inner_width, num_kv_heads=self.num_kv_heads or self.num_heads)
        if self.architecture == "encoder-decoder":
            values["num_decoder_layers"] = self.num_decoder_layers or self.num_layers
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(unknown("setting", name, known))
        return cls(**values)


def _check_options(what: str, target: type, options: Mapping[str, Any], taken: tuple[str, ...]) -> None:
    """Options reach a constructor; name the nearest when it does not know one."""
    known = [p for c in (target, *target.__mro__) if "__init__" in vars(c) for p in inspect.signature(c).parameters]
    for name in options:
        if name in taken or name not in known:
            raise ValueError(unknown(what, name, sorted(set(known) - {*taken, "self", "args", "kwargs"})))


def _linear(config: TransformerConfig, width_in: int, width_out: int) -> nn.Linear:
    return nn.Linear(width_in, width_out, bias=config.bias)


def _add_parts(total: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for kind, matrices in more.items():
        total.setdefault(kind, []).extend(matrices)


# ---- sub-layers ------------------------------------------------------------------------------------------------------


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


def _turns(max_length: int, speeds: Tensor) -> Tensor:
    return torch.outer(torch.arange(max_length, dtype=torch.float64, device="cpu"), speeds)


def _speeds(base: float, count: int) -> Tensor:
    return base ** (-torch.arange(count, dtype=torch.float64, device="cpu") / count)


def _near(module: nn.Module, name: str, x: Tensor) -> Tensor:
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
    """Two matrices and a curve between them; SwiGLU has a third, the gate, in front of the first."""

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


# ---- layers ----------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """One layer of any architecture: its sub-layers, each in its place."""

    def __init__(self, config: TransformerConfig, layer: int, *, stack: str, num_layers: int, other_layers: int,
                 norm: Callable[[int], nn.Module], facts: PlacementFacts) -> None:  # fmt: skip
        super().__init__()
        inside = facts.place.inside
        cross = stack == "decoder" and other_layers > 0

        def place(kind: str) -> Placement:
            site = Site(layer=layer, num_layers=num_layers, kind=kind, first=kind == "attention",
                        last=kind == "feedforward", stack=stack, other_layers=other_layers)  # fmt: skip
            options = dict(config.placement_options)
            if facts.place is Admin:
                options.setdefault("width", config.dim)
            return facts.place(lambda: norm(config.dim), site, dropout=config.dropout, fuse=config.fused, **options)

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
        self.facts = find_placement(config.placement)
        norm = config.norm_factory(causal=self.causal)
        self.layers = nn.ModuleList(
            Layer(config, i, stack=stack, num_layers=num_layers, other_layers=other_layers, norm=norm, facts=self.facts)
            for i in range(num_layers)
        )
        ends = self.facts.ends if config.final_norm is None else FinalNorm if config.final_norm else Ends
        self.ends = ends(lambda: norm(config.dim), fuse=config.fused)
        if config.positions == "rotary" and config.architecture != "convolution":
            half = config.dim // config.num_heads // 2
            turns = _turns(config.max_length, _speeds(config.rotary_base, half)).repeat(1, 2)
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
        return _near(self, "cos", x)[span].to(x.dtype), _near(self, "sin", x)[span].to(x.dtype)

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


# ---- models ----------------------------------------------------------------------------------------------------------


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
            x = apply_norm(self.norm, x, mask)
        return F.dropout(x, self.dropout, self.training)


class Positions(nn.Module):
    """Adds sinusoidal or learned positions; rotary ones are applied in attention."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.positions
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.max_length, config.dim))
        elif self.kind == "sinusoidal":
            turns = _turns(config.max_length, _speeds(10000.0, (config.dim + 1) // 2))
            self.table = torch.stack((turns.sin(), turns.cos()), -1).flatten(1)[:, : config.dim].float()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.kind == "learned":
            nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        if self.kind in ("rotary", "none"):
            return x
        table = self.weight if self.kind == "learned" else _near(self, "table", x)
        return x + table[start : start + x.shape[1]].to(x.dtype)


def _head(config: TransformerConfig, width_out: int, embedding: nn.Embedding | None) -> nn.Linear:
    head = nn.Linear(
        config.dim, width_out, bias=embedding is None and config.architecture not in ("decoder", "encoder-decoder")
    )
    _start_head(head)
    if embedding is not None:
        head.weight = embedding.weight
    return head


def _start_head(head: nn.Linear) -> None:
    nn.init.normal_(head.weight, std=head.in_features**-0.5)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def _start_input(matrix: nn.Linear | nn.Conv2d) -> None:
    nn.init.xavier_normal_(matrix.weight)
    assert matrix.bias is not None
    nn.init.zeros_(matrix.bias)


class _Model(nn.Module):
    """What the models share."""

    def reset_parameters(self) -> None:
        """The state at construction: constants as they were, matrices and embeddings drawn anew. A weight that output
        and embedding share is drawn as both are: with variance 1 / dim."""
        for name, part in self.named_children():
            if name == "head":
                _start_head(part)  # type: ignore[arg-type]
            elif isinstance(part, (nn.Linear, nn.Conv2d)):
                _start_input(part)
            else:
                part.reset_parameters()  # type: ignore[operator]


class Encoder(_Model):
    """Tokens and their mask -> class scores (B, classes) from the mean of the real tokens, or a vector per token.

    >>> model = build(TransformerConfig(dim=16, num_layers=1, num_classes=3))
    >>> model(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.norm_factory(causal=False))
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = None if config.num_classes is None else _head(config, config.num_classes, None)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.stack(self.embedding(tokens, mask), mask)
        return x if self.head is None else self.head(_mean(x, mask))


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Over the real tokens; a sample without any gives zero."""
    if mask is None:
        return x.mean(1)
    real = mask.unsqueeze(-1)
    return torch.where(real, x, 0).sum(1) / real.sum(1).clamp(min=1)


class Decoder(_Model):
    """A causal language model: tokens (B, L) -> scores of the next token (B, L, vocabulary).

    Causal-safe norms: layer, rms, scale, dyt, derf; batch, group and power in the form that ``causal_statistics`` names.

    >>> model = build(TransformerConfig(architecture="decoder", dim=16, num_layers=1, vocab_size=11))
    >>> model.generate(torch.tensor([[1, 2]]), 3).shape
    torch.Size([1, 5])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.norm_factory(causal=True))
        self.stack = Stack(config, "decoder", config.num_layers)
        self.head = _head(config, config.vocab_size, self.embedding.token if config.tie_embeddings else None)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        x = self.embedding(tokens, mask, 0 if cache is None else cache.length)
        x = self.stack(x, mask, cache=cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.head(x)

    @torch.no_grad()
    def generate(
        self, prompt: Tensor, steps: int, *, temperature: float = 0.0, top_k: int | None = None,
        generator: torch.Generator | None = None, use_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """The prompts (B, L), of one length, and ``steps`` more tokens: the likeliest, or drawn when temperature > 0."""
        _check_sampling(self, prompt, steps, temperature, top_k)
        cache = Cache(self.config.max_length) if use_cache else None
        with _evaluating(self):
            return _extend(prompt, steps, self, cache, temperature, top_k, generator)


class EncoderDecoder(_Model):
    """Source and target tokens -> scores of the next target token (B, L, vocabulary). One vocabulary for both.

    >>> model = build(TransformerConfig(architecture="encoder-decoder", dim=16, num_layers=1, vocab_size=11))
    >>> model(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)).shape
    torch.Size([2, 3, 11])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        below, above = config.num_layers, config.num_decoder_layers or config.num_layers
        self.source = Embedding(config, config.norm_factory(causal=False))
        self.target = Embedding(config, config.norm_factory(causal=True))
        if config.tie_embeddings:
            self.target.token = self.source.token
        self.encoder = Stack(config, "encoder", below, above)
        self.decoder = Stack(config, "decoder", above, below)
        self.head = _head(config, config.vocab_size, self.source.token if config.tie_embeddings else None)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(self.source(source, mask), mask)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        return self._decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def _decode(
        self, target: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        x = self.target(target, target_mask, 0 if cache is None else cache.length)
        x = self.decoder(x, target_mask, memory, source_mask, cache)
        if cache is not None:
            cache.length += target.shape[1]
        return self.head(x)

    @torch.no_grad()
    def generate(
        self, source: Tensor, start: Tensor, steps: int, *, source_mask: Tensor | None = None, temperature: float = 0.0,
        top_k: int | None = None, generator: torch.Generator | None = None, use_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """``start`` (B, L) and ``steps`` more target tokens."""
        _check_sampling(self, start, steps, temperature, top_k)
        cache = Cache(self.config.max_length) if use_cache else None
        with _evaluating(self):
            memory = self.encode(source, source_mask)
            decode = functools.partial(self._decode, memory=memory, source_mask=source_mask)
            return _extend(start, steps, decode, cache, temperature, top_k, generator)


class _evaluating:
    """Evaluation mode within the block."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.modes = {m: m.training for m in self.model.modules()}
        self.model.eval()

    def __exit__(self, *_: Any) -> None:
        for module, training in self.modes.items():
            module.training = training


def _check_sampling(model: Any, start: Tensor, steps: int, temperature: float, top_k: int | None) -> None:
    if start.dim() != 2 or start.shape[1] < 1:
        raise ValueError(
            f"generation starts from tokens of shape (B, L), at least one each, got shape {tuple(start.shape)}"
        )
    limit, length = model.config.max_length, start.shape[1] + steps
    if steps < 0 or length > limit:
        raise ValueError(
            f"{steps} more tokens make {length}; they must fit max_length={limit} (and steps be at least 0)"
        )
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0 (0: the likeliest token), got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")


def _extend(
    tokens: Tensor, steps: int, score: Callable[..., Tensor], cache: Cache | None, temperature: float,
    top_k: int | None, generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """The tokens and ``steps`` more; with a cache ``score`` is shown the new ones only."""
    new = tokens
    for _ in range(steps):
        scores = score(tokens if cache is None else new, cache=cache)[:, -1]
        new = _choose(scores, temperature, top_k, generator)
        tokens = torch.cat((tokens, new), 1)
    return tokens


def _choose(scores: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return scores.argmax(-1, keepdim=True)
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    return torch.multinomial((scores.float() / temperature).softmax(-1), 1, generator=generator)


class VisionTransformer(_Model):
    """Images (B, C, size, size) -> class scores, by patches and the mean over them.

    >>> model = build(TransformerConfig(architecture="vision", dim=16, num_layers=1))
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = nn.Linear(config.channels * config.patch_size**2, config.dim)
        _start_input(self.patch)
        self.position = Positions(config)
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = _head(config, config.num_classes or 10, None)

    def forward(self, images: Tensor) -> Tensor:
        _check_images(self.config, images)
        p = self.config.patch_size
        patches = images.unflatten(2, (-1, p)).unflatten(4, (-1, p))  # (B, C, rows, p, columns, p)
        x = self.patch(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        x = F.dropout(self.position(x), self.config.dropout, self.training)
        return self.head(self.stack(x).mean(1))


class ConvNet(_Model):
    """Images (B, C, size, size) -> class scores, by a stack whose attention is a 3 x 3 convolution.

    >>> model = build(TransformerConfig(architecture="convolution", dim=16, num_layers=1))
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(config.channels, config.dim, 3, padding=1)
        _start_input(self.stem)
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = _head(config, config.num_classes or 10, None)

    def forward(self, images: Tensor) -> Tensor:
        _check_images(self.config, images)
        x = self.stem(images.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1).contiguous()
        return self.head(self.stack(x).mean((1, 2)))


def _check_images(config: TransformerConfig, images: Tensor) -> None:
    size = config.image_size
    if images.dim() != 4 or tuple(images.shape[1:]) != (config.channels, size, size):
        raise ValueError(
            f"images must have shape (B, {config.channels}, {size}, {size}) as configured, got {tuple(images.shape)}"
        )


MODELS: dict[str, type[nn.Module]] = {
    "encoder": Encoder,
    "decoder": Decoder,
    "encoder-decoder": EncoderDecoder,
    "vision": VisionTransformer,
    "convolution": ConvNet,
}


def build(config: TransformerConfig | None = None, **settings: Any) -> Any:
    """A model from a config, or from its settings.

    >>> sum(p.numel() for p in build(architecture="decoder", dim=16, num_layers=2, vocab_size=11).parameters())
    6944
    """
    if config is None:
        config = TransformerConfig.from_dict(settings)
    elif settings:
        raise ValueError(f"give a config or settings, not both; got settings {', '.join(settings)}")
    return MODELS[config.architecture](config)
