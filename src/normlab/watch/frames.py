"""What a probe is: a pure function of tensors, where it is asked, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..surgery import BlockSite, NormSite

PRICES = ("lite", "standard", "full")
OCCASIONS = ("norm", "norm gradient", "block", "block gradient", "attention", "output", "before step", "after step")


@dataclass(frozen=True)
class NormFrame:
    """What went through a norm: input, output and, in a "norm gradient" frame, the gradient of the output."""

    site: NormSite
    x: Tensor
    y: Tensor
    mask: Tensor | None = None  # x's shape without features, True = real
    grad: Tensor | None = None
    training: bool = True
    running: tuple[Tensor, Tensor] | None = (
        None  # the norm's own running mean and variance before this batch moved them
    )

    def _rows(self, t: Tensor) -> Tensor:
        """(tokens, features), the real ones."""
        rows = _features_last(self.site, t)
        return rows if self.mask is None else rows[self.mask.flatten()]

    @cached_property
    def x_rows(self) -> Tensor:
        return self._rows(self.x).float()

    @cached_property
    def y_rows(self) -> Tensor:
        return self._rows(self.y).float()

    @cached_property
    def grad_rows(self) -> Tensor:
        assert self.grad is not None
        return self._rows(self.grad).float()

    @cached_property
    def padded_rows(self) -> Tensor:
        """The input with its padding."""
        return _features_last(self.site, self.x).float()

    def gain(self) -> Tensor | None:
        """One factor per feature; one per row and feature where the heads of a row have gains of their own."""
        gain = self.site.factor()
        if gain is None or gain.squeeze().dim() <= 1:
            return None if gain is None else gain.flatten().to(self.x.device)
        if self.site.axes > 1:
            return gain.flatten()
        return self._rows(gain.expand(self.x.shape))


def _features_last(site: NormSite, t: Tensor) -> Tensor:
    """(rows, features): what shares a statistic of one token is one row."""
    return t.detach().movedim(site.channel_dim, -1).flatten(-site.axes).flatten(0, -2)


FEW = 512  # rows that geometry looks at; more change nothing but the price
SMALL = 2**16  # elements: below, operators take longer to start than to run, and norms are measured together


class NormFrames:
    """Norms of one kind and one shape, measured together: rows are (norms, tokens, features)."""

    def __init__(self, frames: Sequence[NormFrame]) -> None:
        self.frames = tuple(frames)
        self.sites = [frame.site for frame in frames]

    @staticmethod
    def alike(frame: NormFrame) -> Any:
        """What those that are measured together have in common."""
        site, mask = frame.site, frame.mask
        return (site.kind, site.channel_dim % frame.x.dim(), site.axes, frame.x.shape, frame.y.shape, frame.x.dtype,
                frame.y.dtype, frame.running is None, None if mask is None else (mask.data_ptr(), mask.stride(), mask.shape))  # fmt: skip

    def _rows(self, tensors: list[Tensor], masked: bool = True) -> Tensor:
        site, mask = self.sites[0], self.frames[0].mask
        rank = tensors[0].dim()
        t = torch.stack(tensors).movedim(1 + site.channel_dim % rank, -1).flatten(-site.axes).flatten(1, -2)
        if mask is not None and masked:
            t = t[:, self.real]
        return t.float()

    @cached_property
    def real(self) -> Tensor:
        mask = self.frames[0].mask
        assert mask is not None
        return mask.flatten().nonzero().squeeze(1)

    @cached_property
    def x(self) -> Tensor:
        return self._rows([frame.x for frame in self.frames])

    @cached_property
    def y(self) -> Tensor:
        return self._rows([frame.y for frame in self.frames])

    @cached_property
    def padded(self) -> Tensor:
        """Inputs with their padding."""
        return self._rows([frame.x for frame in self.frames], masked=False)


def some(rows: Tensor, count: int = FEW) -> Tensor:
    """Evenly spaced rows of (..., rows, features): no randomness, the same for the same shape."""
    n = rows.shape[-2]
    return rows if n <= count else rows[..., :: -(-n // count), :]


@dataclass(frozen=True)
class BlockFrame:
    """What entered and what left a block: the stream; in a "block gradient" frame, the gradient of what left."""

    site: BlockSite
    x: Tensor | None
    y: Tensor | None
    mask: Tensor | None = None
    grad: Tensor | None = None
    channel_dim: int = -1  # the axis of a token's features

    def rows(self, t: Tensor) -> Tensor:
        """(tokens, features), the real ones."""
        t = t.detach().movedim(self.channel_dim, -1)
        rows = t.flatten(0, -2)
        if self.mask is not None and self.mask.shape == t.shape[:-1]:
            rows = rows[self.mask.flatten()]
        return rows.float()


@dataclass(frozen=True)
class AttentionFrame:
    """Queries and keys (B, H, L, width) of one attention, what may be looked at and what is added to the scores; or, where it is
    written out by hand, the scores (B, H, queries, keys) as they went into the softmax."""

    site: str
    q: Tensor | None
    k: Tensor | None
    allowed: Tensor | None
    causal: bool
    scale: float
    bias: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True)
class StepFrame:
    """The model around an optimizer step; ``before`` holds copies of the parameters in an "after step" frame."""

    model: nn.Module
    norms: list[NormSite]
    blocks: list[BlockSite]
    before: Mapping[nn.Parameter, Tensor] = field(default_factory=dict)
    first: bool = False  # the run's first recorded step; none of a run that goes on
    own: Mapping[str, list[nn.Parameter]] = field(
        default_factory=dict
    )  # parameters by block, where they have been listed

    def parameters_of(self, block: BlockSite) -> list[nn.Parameter]:
        """Listed once a step: going through a model's modules takes longer than most of what is computed of them."""
        found = self.own.get(block.name)
        return list(block.module.parameters()) if found is None else found


class Probe:
    """Base of all probes. ``measure(frame)`` returns {quantity: scalar tensor} for one site, or, at "before step" and
    "after step", {quantity: {site: scalar tensor}}. It must not change anything it is given.

    ``on`` says where it is asked (OCCASIONS), ``price`` from which preset on it is part of the run (PRICES). State that
    spans steps, such as a running average, lives in the probe.

    >>> class Zeros(Probe):
    ...     "share of zeros after each norm"
    ...     on = "norm"
    ...     def measure(self, frame):
    ...         return {"zeros": (frame.y_rows == 0).float().mean()}
    """

    on: ClassVar[str] = "norm"
    price: ClassVar[str] = "standard"

    @property
    def name(self) -> str:
        return type(self).__name__

    def measure(self, frame: Any) -> Mapping[str, Any]:
        raise NotImplementedError


class NormProbe(Probe):
    """A probe of norms that measures several at once: ``measure_all(frames)`` returns {quantity: one value per norm}."""

    on = "norm"

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        return {quantity: values[0] for quantity, values in self.measure_all(NormFrames([frame])).items()}

    def measure_all(self, frames: NormFrames) -> Mapping[str, Tensor]:
        raise NotImplementedError


def denominator(square: Tensor, count: int, eps: float, form: str = "root") -> tuple[Tensor, Tensor]:
    """What a norm divides by, of the mean square of ``count`` values, and its derivative to the root of that, over this root.

    root  sqrt(square + eps)      outside  sqrt(square) + eps      clamp  max(sqrt(count square), eps) / sqrt(count)
    """
    if form == "root":
        low = torch.sqrt(square + eps + 1e-30)
        return low, 1 / low
    root = torch.sqrt(square + 1e-30)
    if form == "outside":
        return root + eps, 1 / root
    least = eps / count**0.5
    return root.clamp(min=least), (root > least) / root


def rms(t: Tensor) -> Tensor:
    return torch.linalg.vector_norm(t) / max(1, t.numel()) ** 0.5
