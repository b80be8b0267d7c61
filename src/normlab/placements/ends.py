"""Before the first sub-layer of a stack and after the last."""

from __future__ import annotations

from torch import Tensor, nn

from .residual import Dual, NormFactory, Pending, Stream, apply_norm, settled


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
