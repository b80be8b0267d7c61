"""Which axis of a block's stream holds the features of a token: the last one, or the second where convolutions have theirs.

A block may turn its stream around on the way in and out, for a norm or for a convolution: what such modules say of themselves is
their own layout, not the stream's. The number of features tells: the axis that has as many as a norm or a convolution of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..surgery import BlockSite, NormSite

CONVOLUTIONS = {
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
    nn.ConvTranspose1d: 3,
    nn.ConvTranspose2d: 4,
    nn.ConvTranspose3d: 5,
}


class Features:
    """Of one model's blocks. ``unknown``: those of which it could not be told, and the last axis was taken."""

    def __init__(self, blocks: Sequence[BlockSite], norms: Sequence[NormSite]) -> None:
        self.unknown: set[str] = set()
        self._told: dict[str, int] = {}
        self._widths: dict[str, set[int]] = {}  # of blocks that have something with its features on the second axis
        self._ranks: dict[str, set[int]] = {}  # of what their convolutions are given
        for block in blocks:
            parts: set[Any] = set(block.module.modules())
            inside = [n for n in norms if n.module in parts]
            convolutions: list[tuple[Any, int]] = [
                (p, rank) for p in parts for kind, rank in CONVOLUTIONS.items() if isinstance(p, kind)
            ]
            if convolutions or any(n.channel_dim == 1 for n in inside):
                self._ranks[block.name] = {rank for _, rank in convolutions}
                self._widths[block.name] = {width for n in inside for width in _widths(n)}
                self._widths[block.name] |= {w for p, _ in convolutions for w in (p.in_channels, p.out_channels)}

    def axis(self, block: str, stream: Tensor) -> int:
        """-1 or 1. Where both axes have such a number a stream of four axes is an image, which torch's convolutions take no other way;
        of three, what this block had when it could be told."""
        if block not in self._widths or stream.dim() < 3:
            return -1
        fits = [axis for axis in (1, -1) if stream.shape[axis] in self._widths[block]]
        if len(fits) == 1:
            self._told[block] = fits[0]
        elif fits and stream.dim() > 3 and stream.dim() in self._ranks[block]:
            return 1
        elif block not in self._told:
            self.unknown.add(block)
        return self._told.get(block, -1)


def _widths(norm: NormSite) -> list[int]:
    """How many features it has."""
    module: Any = norm.module
    found = [getattr(module, name, None) for name in ("num_features", "num_channels")]
    shape = getattr(module, "normalized_shape", None)
    found += [shape[-1]] if isinstance(shape, (tuple, list)) and shape else []
    found += [norm.weight.numel()] if norm.weight is not None else []
    return [n for n in found if isinstance(n, int)]
