"""The residual stream: where a sum is made, and what flows between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from .. import functional
from .._torch import has_hooks
from ..errors import unknown
from ..norms import LayerNorm, RMSNorm

NormFactory = Callable[[], nn.Module]
Sublayer = Callable[[Tensor], Tensor]
KINDS = ("attention", "cross", "feedforward")
STACKS = ("encoder", "decoder")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where in a model a placement stands."""

    layer: int = 0  # from 0, the layer next to the embedding
    num_layers: int = 1
    kind: str = "feedforward"  # of sub-layer: attention, cross (attention to another stack), feedforward
    first: bool = True  # of its layer's sub-layers
    last: bool = True
    stack: str = "encoder"
    other_layers: int = 0  # layers of the other stack of an encoder-decoder; 0: there is none
    width: int | None = None  # of the stream, where it is known

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

    norm_before_output: tuple[str, ...] = ()  # kinds of sub-layer with a norm before their last matrix
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


def fusable(norm: nn.Module | None, x: Tensor, branch: Tensor) -> LayerNorm | RMSNorm | None:
    """The norm, if one kernel can add and normalize: ours, over the whole last axis, stream and branch of one shape and
    dtype, its statistics part of the gradient. A norm with hooks is called, so that they fire (torch's pruning lives in one); a hook marked ``passive`` also
    listens at the Residual."""
    if type(norm) not in (LayerNorm, RMSNorm) or x.dtype != branch.dtype or x.shape != branch.shape:
        return None
    assert isinstance(norm, (LayerNorm, RMSNorm))
    if norm.detach_statistics or has_hooks(norm, aside="passive"):
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
        fused = fusable(norm, x, branch) if self.fuse else None
        if fused is not None:
            y, stream = functional.residual_norm(x, branch, fused._own("weight"), fused._own("bias"), functional.rms_eps(x, fused.eps), alpha=self.alpha,
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


def again(before: Stream, x: Tensor) -> Stream:
    """x in the form the stream had before."""
    return Pending(x) if isinstance(before, Pending) else x
