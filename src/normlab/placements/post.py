"""Placements that normalize the stream itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Placement
from .initialization import admin_scale, deepnorm_scales
from .residual import Dual, FromBottom, NormFactory, Residual, Slot, Stream, Sublayer, again, settled


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
        return again(x, self.residual(stream, sublayer(stream), self.norm, mask)[1])


class DeepNorm(PostNorm):
    """Post-norm with a heavier stream and lighter branches, for very deep models.

        x ──┬── S ──────+── N ──        alpha > 1 from the depth; values, outputs and feed-forward matrices start
            └── alpha ──┘               beta < 1 times smaller (deepnorm_init)

    Wang et al. 2022 (arXiv 2203.00555).

    >>> round(DeepNorm(lambda: LayerNorm(4), Slot(num_layers=50)).residual.alpha, 4)
    3.1623
    """

    def _alpha(self) -> float:
        return deepnorm_scales(self.slot.num_layers, stack=self.slot.stack, other_layers=self.slot.other_layers)[0]


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

    >>> first = B2T(lambda: LayerNorm(4), Slot(kind="attention", last=False))
    >>> type(first(torch.randn(2, 4), nn.Linear(4, 4))).__name__
    'FromBottom'
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        if self.slot.first:
            stream = bottom = settled(x)
        elif isinstance(x, FromBottom):
            stream, bottom = x
        else:
            raise TypeError(
                "b2t adds what entered the layer at its last sub-layer: hand on what the layer's first one (Slot(first=True)) gave"
            )
        branch = sublayer(stream)
        if not self.slot.last:
            return FromBottom(self.residual(stream, branch, self.norm, mask)[1], bottom)
        if self.slot.first:  # the only sub-layer of its layer: the bridge would be the residual once more
            return self.residual(stream, branch, self.norm, mask)[1]
        return self.bridge(self.residual(stream, branch), bottom, self.norm, mask)[1]

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        if self.slot.last and not self.slot.first:
            self.bridge = Residual(fuse=self.residual.fuse)


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
        "name it: Slot(width=...)"
    )


class Admin(Placement):
    """Post-norm with a learned weight per feature on the stream, which starts from the depth.

        x ──┬── S ──────+── N ──        omega starts at sqrt((n+1) / log(n+1) - 1), or sqrt(n) with
            └── omega ──┘               output_change="constant"; n: residual sums in the stack

    The width is the slot's, or else the norm's. The paper sets omega from a profiling pass; these closed forms
    come from its later implementation. Liu et al. 2020 (arXiv 2004.08249).

    >>> round(Admin(lambda: LayerNorm(4), Slot(num_layers=9)).omega[0].item(), 4)
    2.3351
    """

    def __init__(
        self, norm: NormFactory, slot: Slot | None = None, *, dropout: float = 0.0, fuse: bool = True,
        output_change: str = "log",
    ) -> None:  # fmt: skip
        super().__init__(norm, slot, dropout=dropout, fuse=fuse)
        self.start = admin_scale(self.slot.sublayers, output_change)
        width = self.slot.width or _width(self.norm)
        self.omega = nn.Parameter(torch.full((width,), self.start))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.omega, self.start)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        return again(x, self.residual(stream * self.omega.to(stream.dtype), sublayer(stream), self.norm, mask)[1])
