"""What a model is made from: every setting, and the combinations that cannot work."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Unbuildable, unknown
from ..norms import NORMS, NoisyNorm, make_norm
from ..placements import (
    PLACEMENTS,
)

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder", "vision", "convolution")
POOLINGS = ("mean", "none")
# Networks without a residual stream, and what placement can mean in them: is there a norm, on which side of the activation?
WITHOUT_STREAM: dict[str, tuple[str, ...]] = {
    "recurrent": ("pre", "none"),
    "plain-convolution": ("pre", "post", "none"),
}
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
    """What :func:`build` makes. Sizes are in values, not bytes; None means the default named in the comment."""

    architecture: str = "encoder"
    dim: int = 128
    num_layers: int = 4
    num_decoder_layers: int | None = None  # of an encoder-decoder: num_layers
    num_heads: int = 4
    num_kv_heads: int | None = None  # num_heads; fewer: several heads share keys and values
    ffn_dim: int | None = None  # 4 dim
    norm: str | Callable[[int], nn.Module] = "layer"  # a name from NORMS, or width -> module
    norm_options: Mapping[str, Any] = field(default_factory=dict)
    norm_noise: Mapping[str, Any] | None = None  # shift and scale of NoisyNorm around every norm; its seed: torch's
    placement: str = "pre"
    placement_options: Mapping[str, Any] = field(default_factory=dict)
    final_norm: bool | None = None  # as the placement has it
    embedding_norm: bool = False
    qk_norm: str | None = None  # "head": each head's queries and keys on their own; "width": all heads together
    mask_statistics: bool = True  # False: norms over tokens take padding for tokens; attention never does
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
    pooling: str = "mean"  # encoder with classes: "mean" over the real tokens; "none": scores for each token
    # images
    image_size: int = 8
    patch_size: int = 2
    channels: int = 1

    def __post_init__(self) -> None:
        for what, value, known in (
            ("architecture", self.architecture, (*ARCHITECTURES, *WITHOUT_STREAM)),
            ("positions", self.positions, POSITIONS),
            ("activation", self.activation, ACTIVATIONS),
            ("qk_norm", self.qk_norm, (None, "head", "width")),
            ("pooling", self.pooling, POOLINGS),
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
        if self.architecture in WITHOUT_STREAM:
            self._check_without_stream()
        elif self.architecture != "convolution":
            if self.dim % self.num_heads:
                raise ValueError(f"num_heads={self.num_heads} does not divide dim={self.dim}")
            if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
                raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
            if self.positions == "rotary" and (self.dim // self.num_heads) % 2:
                raise ValueError(f"rotary positions need an even width per head, got {self.dim // self.num_heads}")
        if self.embedding_norm and self.architecture in ("vision", "convolution", "plain-convolution"):
            raise ValueError(f"embedding_norm belongs to token embeddings, and {self.architecture!r} has none")
        if self.architecture == "vision" and self.image_size % self.patch_size:
            raise ValueError(f"patch_size={self.patch_size} does not divide image_size={self.image_size}")
        if self.architecture == "vision" and self.tokens > self.max_length:
            raise ValueError(f"an image of {self.tokens} patches is longer than max_length={self.max_length}")
        if self.tie_embeddings and self.architecture not in ("decoder", "encoder-decoder", "recurrent"):
            raise ValueError(
                f"tie_embeddings shares the vocabulary with the output; {self.architecture!r} has none there"
            )
        if self.norm_options and not isinstance(self.norm, str):
            raise ValueError("norm_options belong to a norm given by name; put them into your norm factory instead")
        if self.norm_noise is not None:
            check_options("noise option", NoisyNorm, self.norm_noise, ("norm", "stream"))
            NoisyNorm(nn.Identity(), **self.norm_noise)
        facts = PLACEMENTS[self.placement]
        check_options("placement option", facts.placement, self.placement_options, ("norm", "slot", "dropout", "fuse"))
        if isinstance(self.norm, str):
            check_options("norm option", NORMS[self.norm].layer, self.norm_options, ())
        if self.final_norm is not None and facts.has_own_ends:
            raise Unbuildable(
                f"placement {self.placement!r} has its own ends; final_norm cannot be set",
                f"归一化位置 {self.placement!r} 有自己的首尾，不能设 final_norm",
            )
        inside = facts.placement.inside
        if self.architecture == "convolution":
            if inside.norm_qkv or inside.scale_heads:
                raise Unbuildable(
                    f"placement {self.placement!r} reaches into attention, and a convolution has none",
                    f"归一化位置 {self.placement!r} 要伸进注意力，而卷积网络没有注意力",
                )
            if self.qk_norm is not None:
                raise Unbuildable(
                    "qk_norm belongs to attention, and a convolution has none",
                    "qk_norm 属于注意力，而卷积网络没有注意力",
                )
        if inside.norm_qkv and self.qk_norm is not None:
            raise Unbuildable(
                f"placement {self.placement!r} already normalizes queries and keys; leave qk_norm out",
                f"归一化位置 {self.placement!r} 已经对查询和键做归一化，不要再设 qk_norm",
            )
        if self.architecture in ("decoder", "encoder-decoder"):
            self._causal_options()
        elif self.norm == "instance" and self._pools() and self._ends_in_norm():
            raise Unbuildable(
                f"norm 'instance' centres every channel over a sample's tokens, and the mean over tokens that the class scores "
                f"are made from is then zero: with placement {self.placement!r} the model could not see its input. Use "
                "another norm, or a placement that ends without one (none, rezero; or final_norm=False)",
                f"'instance' 归一化把每个通道对一个样本的词元取中心，而类别得分来自词元的平均，于是恒为零：归一化位置为 {self.placement!r} 时，"
                "模型看不到输入。请换一种归一化，或用末尾没有归一化层的位置（none、rezero，或 final_norm=False）",
            )
        if self.checkpoint and self._reads_what_it_moves():
            raise Unbuildable(
                f"norm {self.norm!r} in its running form reads statistics that its own forward moves; recomputing it "
                "(checkpoint=True) would give another result",
                f"{self.norm!r} 归一化在运行形式下读取的统计量会被自己的前向改动；重新计算（checkpoint=True）的结果会不同",
            )

    def _ends_in_norm(self) -> bool:
        if self.architecture in WITHOUT_STREAM:
            return self.placement == "post"
        return PLACEMENTS[self.placement].ends_in_norm(self.final_norm)

    def _check_without_stream(self) -> None:
        name = self.architecture
        if self.placement not in WITHOUT_STREAM[name]:
            raise ValueError(
                f"architecture {name!r} has no residual stream to place norms around; placement may be "
                f"{', '.join(WITHOUT_STREAM[name])} there (norms before the activations, after them, or none), got {self.placement!r}"
            )
        for what in ("final_norm", "qk_norm", "causal_statistics", "num_decoder_layers"):
            if getattr(self, what) is not None:
                raise ValueError(f"{what} belongs to a Transformer, and architecture {name!r} is none")
        if self.checkpoint or self.activation == "swiglu":
            raise ValueError(f"checkpoint and swiglu belong to a Transformer, and architecture {name!r} is none")
        if name == "recurrent" and self.norm == "instance":
            raise ValueError(
                "norm 'instance' has nothing to average in a recurrent cell, which sees one position at a time"
            )

    def _pools(self) -> bool:
        return self.architecture != "encoder" or (self.num_classes is not None and self.pooling == "mean")

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
        either = " 或 ".join(f"causal_statistics={form!r}" for form in forms)
        raise Unbuildable(
            f"norm {self.norm!r} takes statistics over {NORMS[self.norm].shares}: in a causal stack every token would see "
            f"later ones in training. Use {offer + ', or ' if offer else ''}a norm that looks at one token ({safe})",
            f"{self.norm!r} 归一化的统计量跨词元：在因果堆叠里，训练时每个词元都会看到后面的词元。请用{' ' + either + '，或' if either else ''}"
            f"只看一个词元的归一化（{safe}）",
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
        make = self.norm
        if isinstance(make, str):
            name, options = make, {**self.norm_options, **(self._causal_options() if causal else {})}
            make = lambda width: make_norm(name, width, **options)  # noqa: E731
        if self.norm_noise is None:
            return make
        plain, noise = make, {"seed": torch.initial_seed(), **self.norm_noise}
        return lambda width: NoisyNorm(plain(width), **noise)

    def resolved(self) -> dict[str, Any]:
        """Every setting; sizes that were left to others as the numbers they come to."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values.update(ffn_dim=self.inner_width, num_kv_heads=self.num_kv_heads or self.num_heads)
        if self.architecture == "recurrent":
            values["positions"] = "none"
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


def check_options(what: str, target: type, options: Mapping[str, Any], taken: tuple[str, ...]) -> None:
    """Options reach a constructor; name the nearest when it does not know one."""
    known = [p for c in (target, *target.__mro__) if "__init__" in vars(c) for p in inspect.signature(c).parameters]
    for name in options:
        if name in taken or name not in known:
            raise ValueError(unknown(what, name, sorted(set(known) - {*taken, "self", "args", "kwargs"})))
