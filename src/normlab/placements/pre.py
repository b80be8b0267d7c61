"""Placements that leave the stream alone and normalize the branch."""

from __future__ import annotations

import math

from torch import Tensor

from .base import Placement
from .residual import Inside, NormFactory, Stream, Sublayer, apply_norm, settled


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
    """Pre-norm with a second norm inside the sub-layer, before its last matrix.

        x ──┬── N ── [ S' ── N ── W ] ──+── ... ── N        S = W S'; W, values and feed-forward start larger
            └───────────────────────────┘                   (subln_init)

    Attention to another stack is excepted: it has the first norm only, and starts as it is. Sub-LN of Magneto:
    Wang et al. 2022 (arXiv 2210.06423).

    >>> SubNorm.inside.norm_before_output
    ('attention', 'feedforward')
    """

    inside = Inside(norm_before_output=("attention", "feedforward"))


class NormFormer(PreNorm):
    """Pre-norm, with a norm after attention, one inside the feed-forward layer, and a factor per head.

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
        self.norm_out = norm() if self.slot.kind != "feedforward" else None

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        branch = sublayer(y)
        if self.norm_out is not None:
            branch = apply_norm(self.norm_out, branch, mask)
        return self._add(x, stream, branch)


class LayerNormScaling(PreNorm):
    """Pre-norm whose normalized input shrinks with depth, against the growth of the stream.

        x ──┬── N ── 1/sqrt(l) ── S ──+── ... ── N        l: the layer, from 1
            └─────────────────────────┘

    Sun et al. 2025 (arXiv 2502.05795).

    >>> LayerNormScaling(lambda: LayerNorm(4), Slot(layer=3, num_layers=4)).factor
    0.5
    """

    def _make_norms(self, norm: NormFactory) -> None:
        self.norm = norm()
        self.factor = 1 / math.sqrt(self.slot.layer + 1)

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream, y = self._normalized(x, mask)
        return self._add(x, stream, sublayer(y * self.factor))


class ReorderedNorm(Placement):
    """The norm after the sub-layer, still on the branch; a last norm. OLMo 2 (arXiv 2501.00656).

        x ──┬── S ── N ──+── ... ── N
            └────────────┘

    >>> ReorderedNorm(lambda: LayerNorm(4))(torch.randn(2, 4), nn.Linear(4, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Stream, sublayer: Sublayer, mask: Tensor | None = None) -> Stream:
        stream = settled(x)
        assert self.norm is not None
        return self._add(x, stream, apply_norm(self.norm, sublayer(stream), mask))
