"""Placements that differ by layer or by sub-layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

from .base import Placement
from .post import PostNorm
from .pre import PreNorm
from .residual import Inside, NormFactory, Slot, Stream, Sublayer, settled


class MixNorm(Placement):
    """Post-norm in the first ``post_share`` of the layers, pre-norm above, a last norm.

        layers 1..a:  x ──┬── S ──+── N ──        layers above:  x ──┬── N ── S ──+── ... ── N
                          └───────┘                                  └────────────┘

    Mix-LN: Li, Yin, Liu 2024 (arXiv 2412.13795), with a share of 0.25.

    >>> [type(MixNorm(lambda: LayerNorm(4), Slot(layer=l, num_layers=4)).place).__name__ for l in range(4)]
    ['PostNorm', 'PreNorm', 'PreNorm', 'PreNorm']
    """

    def __init__(
        self,
        norm: NormFactory,
        slot: Slot | None = None,
        *,
        dropout: float = 0.0,
        fuse: bool = True,
        post_share: float = 0.25,
    ) -> None:
        nn.Module.__init__(self)
        if not 0 <= post_share <= 1:
            raise ValueError(f"post_share is a share of the layers and must lie in [0, 1], got {post_share!r}")
        self.slot = Slot() if slot is None else slot
        below = self.slot.layer < math.floor(post_share * self.slot.num_layers + 1e-9)
        self.place: Placement = (PostNorm if below else PreNorm)(norm, self.slot, dropout=dropout, fuse=fuse)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        return self.place(x, sublayer, mask)


class HybridNorm(Placement):
    """Attention with norms on queries, keys and values instead of its input; the feed-forward layer post-normed.

        attention      x ──┬── S(QKV-norm) ──+──
                           └─────────────────┘
        feed-forward   x ── N ──┬── S ──+──
                                └───────┘

    The norm before the feed-forward layer is on the stream itself; a last norm follows the stack.
    Zhuo et al. 2025 (arXiv 2503.04598).

    >>> HybridNorm.inside.norm_qkv
    True
    """

    inside = Inside(norm_qkv=True)

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm() if self.slot.kind == "feedforward" else None

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x) if self.norm is None else self._normalized(x, mask)[1]
        return self._add(x, stream, sublayer(stream))
