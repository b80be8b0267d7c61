"""Where a norm sits around the residual, as data.

A placement is an object with ``forward(x, sublayer)``: it holds its norms and a :class:`Residual` that only adds, and
knows nothing about the sub-layer but that it maps the stream to a branch. It receives a norm *factory*, so any norm can
stand in any place; what depends on depth comes from its :class:`Site`. What happens before the first and after the last
sub-layer of a stack (final norm, second stream) is :class:`Ends`: ``enter`` and ``leave``. Some placements also want
something inside the sub-layer; ``inside`` says what. How the matrices start is a function per placement, usable on any
model. PLACEMENTS lists them all.

In the drawings time runs to the right, S is the sub-layer, N a norm and ``+`` a residual sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import ops
from ._torch import has_hooks
from .errors import unknown
from .norms import LayerNorm, RMSNorm

NormFactory = Callable[[], nn.Module]
Sublayer = Callable[[Tensor], Tensor]
KINDS = ("attention", "cross", "feedforward")
STACKS = ("encoder", "decoder")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where in a model a placement stands."""

    layer: int = 0  # from 0, the layer next to the embedding
    num_layers: int = 1
    kind: str = "feedforward"  # of sub-layer: attention, cross (attention to another stack), feedforward
    first: bool = True  # of its layer's sub-layers
    last: bool = True
    stack: str = "encoder"
    other_layers: int = 0  # layers of the other stack of an encoder-decoder; 0: there is none

    def __post_init__(self) -> None:
        for what, value, known in (("kind", self.kind, KINDS), ("stack", self.stack, STACKS)):
            if value not in known:
                raise ValueError(unknown(what, value, known))
        if not 0 <= self.layer < self.num_layers:
            raise ValueError(
                f"layer must lie in 0..{self.num_layers - 1} (num_layers={self.num_layers}), got {self.layer}"
            )
        if self.other_layers < 0:
            raise ValueError(f"other_layers must be at least 0 (0: no other stack), got {self.other_layers}")

    @property
    def sublayers(self) -> int:
        """Residual sums in this stack."""
        return self.num_layers * (3 if self.stack == "decoder" and self.other_layers else 2)


@dataclass(frozen=True)
class Inside:
    """What a placement asks of the sub-layers themselves."""

    norm_before_output: tuple[str, ...] = ()  # kinds of sub-layer with a norm in front of their last matrix
    norm_qkv: bool = False  # norms on queries, keys and values
    scale_heads: bool = False  # one learned factor per attention head


def apply_norm(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mask goes to norms whose statistics span tokens; the others neither need it nor (torch's) take it."""
    if mask is not None and getattr(norm, "over_tokens", False):
        return norm(x, mask=mask)
    return norm(x)


def reset_inside(module: nn.Module) -> None:
    """Start everything inside the module again: children before parents, who may have the last word about them."""
    for child in module.children():
        reset_inside(child)
        if callable(reset := getattr(child, "reset_parameters", None)):
            reset()


# ---- the sum ---------------------------------------------------------------------------------------------------------


def _fusable(norm: nn.Module | None, x: Tensor, branch: Tensor) -> LayerNorm | RMSNorm | None:
    """The norm, if one kernel can add and normalize: ours, over the whole last axis, stream and branch of one shape and
    dtype. A norm with hooks is called, so that they fire (torch's pruning lives in one); a hook marked ``passive`` also
    listens at the Residual."""
    if type(norm) not in (LayerNorm, RMSNorm) or x.dtype != branch.dtype or x.shape != branch.shape:
        return None
    assert isinstance(norm, (LayerNorm, RMSNorm))
    if has_hooks(norm, aside="passive"):
        return None
    return norm if norm.normalized_shape == x.shape[-1:] and getattr(norm, "partial", None) is None else None


class Residual(nn.Module):
    """Adds, and nothing else: ``alpha * x + dropout(branch)``. A hook on it sees x, branch and the new stream.

    Given a norm, ``residual(x, branch, norm)`` returns (stream, norm(stream)); LayerNorm and RMSNorm then run in the same
    pass over memory. ``fuse=False`` takes the two steps one after the other: the same numbers up to the rounding of
    alpha * x, but another dropout pattern for the same seed.

    >>> Residual()(torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, alpha: float = 1.0, dropout: float = 0.0, *, fuse: bool = True) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")
        self.alpha = float(alpha)
        self.dropout = dropout
        self.fuse = fuse

    def forward(self, x: Tensor, branch: Tensor, norm: nn.Module | None = None, mask: Tensor | None = None) -> Any:
        fused = _fusable(norm, x, branch) if self.fuse else None
        if fused is not None:
            y, stream = ops.residual_norm(x, branch, fused._own("weight"), fused._own("bias"), ops.rms_eps(x, fused.eps), alpha=self.alpha,
                                          norm="layer" if type(fused) is LayerNorm else "rms", dropout=self.dropout,
                                          training=self.training, gain=fused.gain,
                                          round_before_gain=fused.round_before_gain, return_stream=True)  # fmt: skip
            return stream, y
        if self.dropout > 0:
            branch = F.dropout(branch, self.dropout, self.training)
        stream = branch + (x if self.alpha == 1 else self.alpha * x)
        return stream if norm is None else (stream, apply_norm(norm, stream, mask))

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}, dropout={self.dropout:g}"


class Pending(NamedTuple):
    """A residual sum not yet carried out, so that the norm that comes next can share its pass over memory.

    Between ``enter`` and ``leave`` the stream may have this form; ``branch`` None means that nothing is outstanding.
    """

    x: Tensor
    branch: Tensor | None = None
    residual: Any = None  # the Residual that will add them

    def settle(self) -> Tensor:
        return self.x if self.branch is None else self.residual(self.x, self.branch)

    def normalized(self, norm: nn.Module, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(stream, norm(stream))."""
        if self.branch is None:
            return self.x, apply_norm(norm, self.x, mask)
        return self.residual(self.x, self.branch, norm, mask)


class Dual(NamedTuple):
    """ResiDual's two streams."""

    normed: Tensor
    plain: Tensor


class FromBottom(NamedTuple):
    """The stream inside a layer, and what entered that layer."""

    x: Tensor
    bottom: Tensor


Stream = Any  # Tensor | Pending | Dual | FromBottom


def settled(x: Stream) -> Tensor:
    return x.settle() if isinstance(x, Pending) else x


def _again(before: Stream, x: Tensor) -> Stream:
    """x in the form the stream had before."""
    return Pending(x) if isinstance(before, Pending) else x


# ---- placements ------------------------------------------------------------------------------------------------------


class Placement(nn.Module):
    """What placements share. ``norm`` makes a norm of the stream's width; a placement calls it as often as it needs."""

    inside: ClassVar[Inside] = Inside()

    def __init__(self, norm: NormFactory, site: Site | None = None, *, dropout: float = 0.0, fuse: bool = True) -> None:
        super().__init__()
        self.site = Site() if site is None else site
        self.residual = Residual(self._alpha(), dropout, fuse=fuse)
        self._make_norms(norm)

    def _alpha(self) -> float:
        return 1.0

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm: nn.Module | None = norm()

    def reset_parameters(self) -> None:
        """The state at construction, that of the norms included."""
        reset_inside(self)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        raise NotImplementedError

    def _add(self, before: Stream, x: Tensor, branch: Tensor) -> Stream:
        """The sum, left to the next norm if the stream came in that form."""
        return Pending(x, branch, self.residual) if isinstance(before, Pending) else self.residual(x, branch)

    def _normalized(self, x: Stream, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.norm is not None
        if isinstance(x, Pending):
            return x.normalized(self.norm, mask)
        return x, apply_norm(self.norm, x, mask)


class NoNorm(Placement):
    """No norm at all: the bare residual network.

        x ──┬── S ──+──
            └───────┘

    >>> NoNorm(nn.Identity)(torch.ones(2), lambda x: 3 * x)
    tensor([4., 4.])
    """

    def _make_norms(self, norm: NormFactory) -> None:
        pass

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        return _again(x, self.residual(stream, sublayer(stream)))


class PostNorm(Placement):
    """The norm on the stream, after the sum. Vaswani et al. 2017.

        x ──┬── S ──+── N ──
            └───────┘

    Each norm also rescales what came from below: after l sums the input's share has shrunk by about 2^(-l/2).

    >>> PostNorm(lambda: LayerNorm(4))(torch.randn(2, 4), nn.Linear(4, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        return _again(x, self.residual(stream, sublayer(stream), self.norm, mask)[1])


class PreNorm(Placement):
    """The norm on the branch, before the sub-layer; the stream itself is never normalized, so a last norm follows.

        x ──┬── N ── S ──+── ... ── N
            └────────────┘

    Baevski, Auli 2018; analysed by Xiong et al. 2020 (arXiv 2002.04745).

    >>> PreNorm(lambda: LayerNorm(4))(torch.randn(2, 4), nn.Linear(4, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        return self._add(x, stream, sublayer(y))


class DeepNorm(PostNorm):
    """Post-norm with a heavier stream and lighter branches, for very deep models.

        x ──┬── S ──────+── N ──        alpha > 1 from the depth; values, outputs and feed-forward matrices start
            └── alpha ──┘               beta < 1 times smaller (deepnorm_init)

    Wang et al. 2022 (arXiv 2203.00555).

    >>> round(DeepNorm(lambda: LayerNorm(4), Site(num_layers=50)).residual.alpha, 4)
    3.1623
    """

    def _alpha(self) -> float:
        return deepnorm_scales(self.site.num_layers, stack=self.site.stack, other_layers=self.site.other_layers)[0]


class SandwichNorm(Placement):
    """A norm on both sides of the sub-layer, and a last one. CogView: Ding et al. 2021 (arXiv 2105.13290).

        x ──┬── N ── S ── N ──+── ... ── N
            └─────────────────┘

    >>> len([m for m in SandwichNorm(lambda: LayerNorm(4)).modules() if isinstance(m, LayerNorm)])
    2
    """

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm, self.norm_out = norm(), norm()

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        return self._add(x, stream, apply_norm(self.norm_out, sublayer(y), mask))


class PeriNorm(SandwichNorm):
    """The sandwich, with a norm on the embedding as well. Kim et al. 2025 (arXiv 2502.02732).

        N ── x ──┬── N ── S ── N ──+── ... ── N
                 └─────────────────┘

    >>> PLACEMENTS["peri"].ends.__name__
    'NormedEnds'
    """


class SubNorm(PreNorm):
    """Pre-norm with a second norm inside the sub-layer, in front of its last matrix.

        x ──┬── N ── [ S' ── N ── W ] ──+── ... ── N        S = W S'; W, values and feed-forward start larger
            └───────────────────────────┘                   (subln_init)

    Attention to another stack is excepted: it has the first norm only, and starts as it is. Sub-LN of Magneto:
    Wang et al. 2022 (arXiv 2210.06423).

    >>> SubNorm.inside.norm_before_output
    ('attention', 'feedforward')
    """

    inside = Inside(norm_before_output=("attention", "feedforward"))


class NormFormer(PreNorm):
    """Pre-norm, with a norm behind attention, one inside the feed-forward layer, and a factor per head.

        attention      x ──┬── N ── S ── N ──+──        S with one learned factor per head
                           └─────────────────┘
        feed-forward   x ──┬── N ── [ S' ── N ── W ] ──+──
                           └───────────────────────────┘

    Shleifer, Weston, Ott 2021 (arXiv 2110.09456).

    >>> NormFormer.inside.scale_heads
    True
    """

    inside = Inside(norm_before_output=("feedforward",), scale_heads=True)

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        self.norm_out = norm() if self.site.kind != "feedforward" else None

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        branch = sublayer(y)
        if self.norm_out is not None:
            branch = apply_norm(self.norm_out, branch, mask)
        return self._add(x, stream, branch)


class ResidualDual(Placement):
    """Two streams: one post-norm, one that is only added to and normalized once, at the end.

        x ──┬── S ──┬──+── N ── ... ────+──
            └───────│──┘                │
        r ──────────+── ... ─────── N ──┘

    ``enter`` starts both from x, ``leave`` returns x + N(r). ResiDual: Xie et al. 2023 (arXiv 2304.14802).

    >>> PLACEMENTS["residual-dual"].ends.__name__
    'DualEnds'
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        if not isinstance(x, Dual):
            raise TypeError("residual-dual carries two streams: start with its enter(x) and end with leave(...)")
        branch = F.dropout(sublayer(x.normed), self.dropout, self.training)  # drawn once: both streams get the same
        _, normed = self.residual(x.normed, branch, self.norm, mask)
        return Dual(normed, self.plain(x.plain, branch))

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        self.plain = Residual()
        self.dropout, self.residual.dropout = self.residual.dropout, 0.0


class B2T(Placement):
    """Post-norm with a bridge from the bottom of each layer to its last norm.

        x ──┬──┬── S1 ──+── N ──┬── S2 ──+──+── N ──        the matrices start 1/sqrt(layers) times smaller (b2t_init)
            │  └────────┘       └────────┘  │
            └───────────────────────────────┘

    Takase et al. 2022 (arXiv 2206.00330).

    >>> first = B2T(lambda: LayerNorm(4), Site(kind="attention", last=False))
    >>> type(first(torch.randn(2, 4), nn.Linear(4, 4))).__name__
    'FromBottom'
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        if self.site.first:
            stream = bottom = settled(x)
        elif isinstance(x, FromBottom):
            stream, bottom = x
        else:
            raise TypeError(
                "b2t adds what entered the layer at its last sub-layer: hand on what the layer's first one (Site(first=True)) gave"
            )
        branch = sublayer(stream)
        if not self.site.last:
            return FromBottom(self.residual(stream, branch, self.norm, mask)[1], bottom)
        if self.site.first:  # the only sub-layer of its layer: the bridge would be the residual once more
            return self.residual(stream, branch, self.norm, mask)[1]
        return self.bridge(self.residual(stream, branch), bottom, self.norm, mask)[1]

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        if self.site.last and not self.site.first:
            self.bridge = Residual(fuse=self.residual.fuse)


class MixNorm(Placement):
    """Post-norm in the first ``post_share`` of the layers, pre-norm above, a last norm.

        layers 1..a:  x ──┬── S ──+── N ──        layers above:  x ──┬── N ── S ──+── ... ── N
                          └───────┘                                  └────────────┘

    Mix-LN: Li, Yin, Liu 2024 (arXiv 2412.13795), with a share of 0.25.

    >>> [type(MixNorm(lambda: LayerNorm(4), Site(layer=l, num_layers=4)).place).__name__ for l in range(4)]
    ['PostNorm', 'PreNorm', 'PreNorm', 'PreNorm']
    """

    def __init__(
        self,
        norm: NormFactory,
        site: Site | None = None,
        *,
        dropout: float = 0.0,
        fuse: bool = True,
        post_share: float = 0.25,
    ) -> None:
        nn.Module.__init__(self)
        if not 0 <= post_share <= 1:
            raise ValueError(f"post_share is a share of the layers and must lie in [0, 1], got {post_share!r}")
        self.site = Site() if site is None else site
        below = self.site.layer < math.floor(post_share * self.site.num_layers + 1e-9)
        self.place: Placement = (PostNorm if below else PreNorm)(norm, self.site, dropout=dropout, fuse=fuse)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        return self.place(x, sublayer, mask)


class HybridNorm(Placement):
    """Attention with norms on queries, keys and values instead of its input; the feed-forward layer post-normed.

        attention      x ──┬── S(QKV-norm) ──+──
                           └─────────────────┘
        feed-forward   x ── N ──┬── S ──+──
                                └───────┘

    The norm in front of the feed-forward layer is on the stream itself; a last norm follows the stack.
    Zhuo et al. 2025 (arXiv 2503.04598).

    >>> HybridNorm.inside.norm_qkv
    True
    """

    inside = Inside(norm_qkv=True)

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm() if self.site.kind == "feedforward" else None

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x) if self.norm is None else self._normalized(x, mask)[1]
        return self._add(x, stream, sublayer(stream))


class LayerNormScaling(PreNorm):
    """Pre-norm whose normalized input shrinks with depth, against the growth of the stream.

        x ──┬── N ── 1/sqrt(l) ── S ──+── ... ── N        l: the layer, from 1
            └─────────────────────────┘

    Sun et al. 2025 (arXiv 2502.05795).

    >>> LayerNormScaling(lambda: LayerNorm(4), Site(layer=3, num_layers=4)).factor
    0.5
    """

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        self.factor = 1 / math.sqrt(self.site.layer + 1)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        return self._add(x, stream, sublayer(y * self.factor))


class ReorderedNorm(Placement):
    """The norm behind the sub-layer, still on the branch; a last norm. OLMo 2 (arXiv 2501.00656).

        x ──┬── S ── N ──+── ... ── N
            └────────────┘

    >>> ReorderedNorm(lambda: LayerNorm(4))(torch.randn(2, 4), nn.Linear(4, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        assert self.norm is not None
        return self._add(x, stream, apply_norm(self.norm, sublayer(stream), mask))


def _width(norm: nn.Module | None) -> int:
    """Of the stream that the norm is for: from its parameters, or, where it has no vector, from what it says of itself."""
    vectors = set() if norm is None else {p.numel() for p in norm.parameters() if p.dim() == 1 and p.numel() > 1}
    if len(vectors) == 1:
        return vectors.pop()
    for name in ("normalized_shape", "num_features", "num_channels", "dim"):
        said = getattr(norm, name, None)
        width = said[-1] if isinstance(said, tuple) else said
        if isinstance(width, int) and width > 0:
            return width
    raise ValueError(
        f"placement 'admin' has one weight per feature and cannot tell the stream's width from {type(norm).__name__}; "
        "give it as width="
    )


class Admin(Placement):
    """Post-norm with a learned weight per feature on the stream, which starts from the depth.

        x ──┬── S ──────+── N ──        omega starts at sqrt((n+1) / log(n+1) - 1), or sqrt(n) with
            └── omega ──┘               output_change="constant"; n: residual sums in the stack

    ``width`` is the stream's; None takes the norm's. The paper sets omega from a profiling pass; these closed forms
    come from its later implementation. Liu et al. 2020 (arXiv 2004.08249).

    >>> round(Admin(lambda: LayerNorm(4), Site(num_layers=9)).omega[0].item(), 4)
    2.3351
    """

    def __init__(
        self, norm: NormFactory, site: Site | None = None, *, width: int | None = None, dropout: float = 0.0,
        fuse: bool = True, output_change: str = "log",
    ) -> None:  # fmt: skip
        super().__init__(norm, site, dropout=dropout, fuse=fuse)
        self.start = admin_scale(self.site.sublayers, output_change)
        self.omega = nn.Parameter(torch.full((_width(self.norm) if width is None else width,), self.start))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.omega, self.start)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        return _again(x, self.residual(stream * self.omega.to(stream.dtype), sublayer(stream), self.norm, mask)[1])


class ReZero(NoNorm):
    """No norm; a learned factor on the branch that starts at zero. Bachlechner et al. 2020 (arXiv 2003.04887).

        x ──┬── S ── alpha ──+──
            └────────────────┘

    >>> ReZero(nn.Identity)(torch.ones(2), lambda x: 3 * x).tolist()
    [1.0, 1.0]
    """

    def _make_norms(self, norm: NormFactory) -> None:
        self.alpha = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        branch = sublayer(stream)
        return _again(x, self.residual(stream, self.alpha.to(branch.dtype) * branch))


# ---- ends of a stack -------------------------------------------------------------------------------------------------


class Ends(nn.Module):
    """Before the first sub-layer and after the last: nothing."""

    def __init__(self, norm: NormFactory, *, fuse: bool = True) -> None:
        super().__init__()
        self.fuse = fuse

    def enter(self, x: Tensor, mask: Tensor | None = None) -> Stream:
        return Pending(x) if self.fuse else x

    def leave(self, x: Stream, mask: Tensor | None = None) -> Tensor:
        return settled(x)


class FinalNorm(Ends):
    """A norm after the last sub-layer, for placements that leave the stream itself unnormalized."""

    def __init__(self, norm: NormFactory, *, fuse: bool = True) -> None:
        super().__init__(norm, fuse=fuse)
        self.norm = norm()

    def leave(self, x: Stream, mask: Tensor | None = None) -> Tensor:
        return x.normalized(self.norm, mask)[1] if isinstance(x, Pending) else apply_norm(self.norm, x, mask)


class NormedEnds(FinalNorm):
    """A norm on what enters as well."""

    def __init__(self, norm: NormFactory, *, fuse: bool = True) -> None:
        super().__init__(norm, fuse=fuse)
        self.norm_in = norm()

    def enter(self, x: Tensor, mask: Tensor | None = None) -> Stream:
        return super().enter(apply_norm(self.norm_in, x, mask))


class DualEnds(Ends):
    """Two streams from one, and one from two."""

    def __init__(self, norm: NormFactory, *, fuse: bool = True) -> None:
        super().__init__(norm, fuse=fuse)
        self.norm = norm()

    def enter(self, x: Tensor, mask: Tensor | None = None) -> Stream:
        return Dual(x, x)

    def leave(self, x: Stream, mask: Tensor | None = None) -> Tensor:
        return x.normed + apply_norm(self.norm, x.plain, mask)


# ---- depth rules -----------------------------------------------------------------------------------------------------


def _check_depth(num_layers: int, stack: str, other_layers: int) -> None:
    if stack not in STACKS:
        raise ValueError(unknown("stack", stack, STACKS))
    if num_layers < 1 or other_layers < 0:
        raise ValueError(f"need num_layers >= 1 and other_layers >= 0, got {num_layers} and {other_layers}")


def deepnorm_scales(num_layers: int, *, stack: str = "encoder", other_layers: int = 0) -> tuple[float, float]:
    """(alpha, beta) of DeepNorm for a stack of ``num_layers``.

    Alone (encoder-only, decoder-only): (2N)^(1/4), (8N)^(-1/4). In an encoder-decoder of N and M layers the encoder gets
    0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16) and the decoder (3M)^(1/4), (12M)^(-1/4).

    >>> deepnorm_scales(8)
    (2.0, 0.3535533905932738)
    """
    _check_depth(num_layers, stack, other_layers)
    if not other_layers:
        return (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25
    if stack == "decoder":
        return (3 * num_layers) ** 0.25, (12 * num_layers) ** -0.25
    power = (num_layers**4 * other_layers) ** 0.0625
    return 0.81 * power, 0.87 / power


def subln_gain(num_layers: int, *, stack: str = "encoder", other_layers: int = 0) -> float:
    """Magneto's factor on the matrices: sqrt(log 2N) for one stack; sqrt(log 3M) for the decoder and
    sqrt(log(3M) log(2N) / 3) for the encoder of an encoder-decoder of N and M layers.

    >>> round(subln_gain(12), 4)
    1.7827
    """
    _check_depth(num_layers, stack, other_layers)
    if not other_layers:
        return math.sqrt(math.log(2 * num_layers))
    if stack == "decoder":
        return math.sqrt(math.log(3 * num_layers))
    return math.sqrt(math.log(3 * other_layers) * math.log(2 * num_layers) / 3)


def admin_scale(sublayers: int, output_change: str = "log") -> float:
    """Where Admin's omega starts, for a stack of this many residual sums.

    >>> admin_scale(16, "constant")
    4.0
    """
    if output_change == "log":
        return math.sqrt((sublayers + 1) / math.log(sublayers + 1) - 1)
    if output_change == "constant":
        return math.sqrt(sublayers)
    raise ValueError(unknown("output_change", output_change, ("log", "constant")))


# ---- how the matrices start ------------------------------------------------------------------------------------------

PARTS = ("query", "key", "value", "output", "cross_value", "cross_output", "feedforward")
Parts = Mapping[str, Iterable[nn.Module | Tensor]]


def scaled_init(parts: Parts, gains: Mapping[str, float] | None = None) -> None:
    """Xavier's normal initialization, times a gain per kind of matrix; biases of modules start at zero.

    ``parts`` maps kinds (PARTS) to modules with a ``weight``, or to weight tensors; a slice of a fused projection is a
    part of its own, with its own fans.

    >>> layer = nn.Linear(4, 4)
    >>> scaled_init({"output": [layer]}, {"output": 0.5})
    """
    for kind, matrices in parts.items():
        if kind not in PARTS:
            raise ValueError(unknown("part", kind, PARTS))
        gain = 1.0 if gains is None else gains.get(kind, 1.0)
        for matrix in matrices:
            weight: Any = matrix if isinstance(matrix, Tensor) else matrix.weight
            with torch.no_grad():  # a slice of a parameter is a view that autograd would watch
                nn.init.xavier_normal_(weight.detach(), gain=gain)
                bias = None if isinstance(matrix, Tensor) else getattr(matrix, "bias", None)
                if bias is not None:
                    bias.zero_()


def plain_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """Xavier's initialization as it is; most placements start so."""
    scaled_init(parts)


def deepnorm_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """DeepNorm's: values, outputs and feed-forward matrices beta times smaller; queries and keys as they are.

    >>> deepnorm_init({"feedforward": [nn.Linear(4, 8), nn.Linear(8, 4)]}, num_layers=12)
    """
    beta = deepnorm_scales(num_layers, stack=stack, other_layers=other_layers)[1]
    scaled_init(parts, dict.fromkeys(("value", "output", "cross_value", "cross_output", "feedforward"), beta))


def subln_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """Magneto's: values, outputs and feed-forward matrices larger by subln_gain; cross-attention as it is."""
    gain = subln_gain(num_layers, stack=stack, other_layers=other_layers)
    scaled_init(parts, dict.fromkeys(("value", "output", "feedforward"), gain))


def b2t_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """B2T's: every matrix 1/sqrt(layers) times smaller."""
    scaled_init(parts, dict.fromkeys(PARTS, num_layers**-0.5))


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlacementFacts:
    """One row of PLACEMENTS."""

    place: type[Placement]
    formula: str
    paper: str
    year: int
    advice: str
    ends: type[Ends] = Ends
    init: Callable[..., None] = plain_init


PLACEMENTS: dict[str, PlacementFacts] = {
    "none": PlacementFacts(place=NoNorm, formula="x + S(x)", paper="1512.03385", year=2015, advice="a baseline: shows what a norm is for"),
    "post": PlacementFacts(place=PostNorm, formula="N(x + S(x))", paper="1706.03762", year=2017, advice="up to about 12 layers, with warm-up"),
    "pre": PlacementFacts(place=PreNorm, ends=FinalNorm, formula="x + S(N(x)); N at the end", paper="2002.04745", year=2020, advice="the safe default; upper layers do less and less"),
    "deepnorm": PlacementFacts(place=DeepNorm, init=deepnorm_init, formula="N(a x + S(x)); matrices b times smaller", paper="2203.00555", year=2022, advice="post-norm that trains at hundreds of layers"),
    "sandwich": PlacementFacts(place=SandwichNorm, ends=FinalNorm, formula="x + N(S(N(x))); N at the end", paper="2105.13290", year=2021, advice="when branch outputs grow too large in 16 bits"),
    "peri": PlacementFacts(place=PeriNorm, ends=NormedEnds, formula="N at the start; x + N(S(N(x))); N at the end", paper="2502.02732", year=2025, advice="pre-norm whose stream grows slowly"),
    "sub-ln": PlacementFacts(place=SubNorm, ends=FinalNorm, init=subln_init, formula="x + W N(S'(N(x))); N at the end", paper="2210.06423", year=2022, advice="pre-norm for larger learning rates; one norm more per sub-layer, cross-attention excepted"),
    "normformer": PlacementFacts(place=NormFormer, ends=FinalNorm, formula="x + N(A(N(x))), x + W N(F'(N(x))); head factors; N at the end", paper="2110.09456", year=2021, advice="evens out pre-norm's gradients between lower and upper layers"),
    "residual-dual": PlacementFacts(place=ResidualDual, ends=DualEnds, formula="x = N(x + S(x)), r = r + S(x); x + N(r)", paper="2304.14802", year=2023, advice="post-norm with a clear way for the gradient; twice the stream"),
    "b2t": PlacementFacts(place=B2T, init=b2t_init, formula="h = N(x + A(x)); N(x + h + F(h))", paper="2206.00330", year=2022, advice="post-norm that survives at more layers"),
    "mix-ln": PlacementFacts(place=MixNorm, ends=FinalNorm, formula="post in the lowest quarter, pre above; N at the end", paper="2412.13795", year=2024, advice="puts pre-norm's upper layers to use"),
    "hybrid-norm": PlacementFacts(place=HybridNorm, ends=FinalNorm, formula="h = x + A(QKV-norm), y = N(h), y + F(y); N at the end", paper="2503.04598", year=2025, advice="stable attention, post-normed feed-forward"),
    "layernorm-scaling": PlacementFacts(place=LayerNormScaling, ends=FinalNorm, formula="x + S(N(x) / sqrt(layer)); N at the end", paper="2502.05795", year=2025, advice="pre-norm with a tamed stream; not with depth-scaled initialization"),
    "reordered": PlacementFacts(place=ReorderedNorm, ends=FinalNorm, formula="x + N(S(x)); N at the end", paper="2501.00656", year=2025, advice="bounded branches; use it with QK-norm"),
    "admin": PlacementFacts(place=Admin, formula="N(w x + S(x)), w from the depth", paper="2004.08249", year=2020, advice="post-norm for deep models, with learned stream weights"),
    "rezero": PlacementFacts(place=ReZero, formula="x + a S(x), a from 0", paper="2003.04887", year=2020, advice="no norm to pay for; can be fragile in 16 bits"),
}  # fmt: skip


def find_placement(name: str) -> PlacementFacts:
    if name not in PLACEMENTS:
        raise ValueError(unknown("placement", name, PLACEMENTS))
    return PLACEMENTS[name]
