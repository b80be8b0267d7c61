"""What a placement is, and the two without a norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .residual import (
    Inside,
    NormFactory,
    Pending,
    Residual,
    Slot,
    Stream,
    Sublayer,
    again,
    apply_norm,
    reset_inside,
    settled,
)


class Placement(nn.Module):
    """What placements share. ``norm`` makes a norm of the stream's width; a placement calls it as often as it needs."""

    inside: ClassVar[Inside] = Inside()

    def __init__(self, norm: NormFactory, slot: Slot | None = None, *, dropout: float = 0.0, fuse: bool = True) -> None:
        super().__init__()
        self.slot = Slot() if slot is None else slot
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
        return again(x, self.residual(stream, sublayer(stream)))


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
        return again(x, self.residual(stream, self.alpha.to(branch.dtype) * branch))
