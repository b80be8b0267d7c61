"""Norms with one gain per channel: what they share, and those within one sample: InstanceNorm, GroupNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import functional
from .._torch import own_buffers, own_parameters
from ..errors import unknown
from .base import Lengths, Norm, gain_of


class ChannelNorm(Norm):
    """Norms with one gain per channel, the channels at ``channel_dim`` (last for tokens, 1 for images)."""

    over_tokens = True
    num_features: int
    channel_dim: int

    def _check_channels(self, x: Tensor) -> int:
        channel = functional.check_channels(type(self).__name__, x, self.channel_dim, self.num_features)
        on_cpu = x.is_cpu
        for own in (own_parameters(self), own_buffers(self)):
            for name, t in own.items():
                if t is not None and not (on_cpu and t.is_cpu):
                    functional.check_same_device(type(self).__name__, x, **{name: t})
        return channel


class RunningNorm(ChannelNorm):
    """A running mean and variance with torch's buffer names."""

    _version = 2  # torch's: 2 counts batches
    momentum: float | None
    track_running_stats: bool
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def _make_buffers(self, track: bool, momentum: float | None, device: Any, dtype: Any) -> None:
        if momentum is not None and not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1], or be None for a plain average, got {momentum!r}")
        self.momentum = momentum
        self.track_running_stats = track
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, torch.empty(self.num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", torch.empty((), dtype=torch.long, device=device) if track else None)

    def reset_running_stats(self) -> None:
        """Running statistics as they were at construction."""
        if self.track_running_stats:
            assert (
                self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
            )
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        RunningNorm.reset_running_stats(self)  # frozen ones as well

    def _factor(self) -> float | Tensor:
        """A batch's share in the running statistics, or, for the plain average, the counter that gives it: see
        functional.update_running, which counts only batches that are taken in."""
        tracked = own_buffers(self)["num_batches_tracked"]  # not self.…: attribute lookup in a module takes longer
        if tracked is None:
            return 0.0
        return tracked if self.momentum is None else self.momentum

    def _count(self) -> None:
        tracked = own_buffers(self)["num_batches_tracked"]
        if (
            self.track_running_stats
            and tracked is not None
            and self.momentum is not None
            and not functional.recomputing()
        ):
            tracked.add_(1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        key = prefix + "num_batches_tracked"
        if self.track_running_stats and key not in state_dict and (metadata.get("version") or 0) < 2:  # as torch does
            state_dict[key] = torch.tensor(0, dtype=torch.long)
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)


class InstanceNorm(RunningNorm):
    """Each channel of each sample on its own: zero mean and unit variance over the sample's real positions.

        y = (x - mean) / sqrt(var + eps)        mean, biased var per (sample, channel)

    ``affine`` and ``track_running_stats`` are off by default, as in torch. A sample with one real position comes out as
    the bias; one with none as zero. Ulyanov, Vedaldi, Lempitsky 2016 (arXiv 1607.08022).

    >>> InstanceNorm(3)(torch.randn(2, 7, 3)).mean(1).abs().max().item() < 1e-6
    True
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        channel_dim: int = -1,
        gain: str | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = functional.check_eps(eps)
        self.affine = affine
        self.channel_dim = channel_dim
        self._make_buffers(track_running_stats, momentum, device, dtype)
        self._make_parameters((num_features,), gain_of(gain, affine), affine and bias, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        if self.track_running_stats and not self.training:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                                  channel_dim=self.channel_dim, gain=self.gain, mask=mask, lengths=lengths)  # fmt: skip
        if mask is not None or lengths is not None:
            mask = functional.as_mask("InstanceNorm", x, functional.positions(x, channel), mask, lengths)
        tracked = self.track_running_stats and self.training
        y, found = functional.column_norm("instance_norm", x, self.weight, self.bias, self.eps, groups=self.num_features,
                                    pooled=False, channel=channel, mask=mask, gain=self.gain,
                                    want_statistics=tracked)  # fmt: skip
        if tracked and not functional.recomputing():  # recomputed, it saves the same tensors and moves nothing
            functional.check_running(
                "InstanceNorm", self.num_features, running_mean=self.running_mean, running_var=self.running_var
            )
            assert found is not None
            mean, var, count = found
            with torch.no_grad():  # the running statistics are averages over samples, as in torch
                taken = count >= 2  # one position says nothing about a variance
                share = taken.to(mean.dtype)[:, None] / taken.sum().clamp(min=1)
                unbiased = var * (count / (count - 1).clamp(min=1))[:, None]
                functional.update_running(self.running_mean, self.running_var, (mean * share).sum(0), (unbiased * share).sum(0),
                                   taken.any() * 2.0**62, self._factor())  # fmt: skip
                if self.momentum is not None and self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(taken.any())
        return y

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}, channel_dim={self.channel_dim}"


class GroupNorm(ChannelNorm):
    """Each group of neighbouring channels of each sample on its own.

        y = (x - mean) / sqrt(var + eps) * weight + bias        mean, biased var per (sample, group)

    One group is layer normalization over a whole sample (not over a token); as many groups as channels is
    InstanceNorm. ``causal="position"`` takes each token's groups on their own, so that no token of a sequence sees
    another. Wu, He 2018 (arXiv 1803.08494).

    >>> GroupNorm(2, 6)(torch.randn(4, 5, 6)).shape
    torch.Size([4, 5, 6])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        channel_dim: int = -1,
        gain: str | None = None,
        causal: str | None = None,
    ) -> None:
        super().__init__()
        functional.check_groups(num_groups, num_channels)
        if causal not in (None, "position"):
            raise ValueError(unknown("causal", causal, ("position",)))
        self.causal = causal
        self.num_groups = num_groups
        self.num_channels = self.num_features = num_channels
        self.eps = functional.check_eps(eps)
        self.affine = affine
        self.channel_dim = channel_dim
        self._make_parameters((num_channels,), gain_of(gain, affine), affine and bias, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        if mask is not None or lengths is not None:
            mask = functional.as_mask("GroupNorm", x, functional.positions(x, channel), mask, lengths)
        weight, bias = self._own("weight"), self._own("bias")
        if self.causal is not None:
            rows = x.movedim(channel, -1).flatten(0, -2)
            y, _ = functional.column_norm("group_norm", rows, weight, bias, self.eps, groups=self.num_groups, pooled=False, channel=1,
                                   mask=None if mask is None else mask.flatten(), gain=self.gain)  # fmt: skip
            return y.unflatten(0, x.movedim(channel, -1).shape[:-1]).movedim(-1, channel)
        return functional.column_norm("group_norm", x, weight, bias, self.eps, groups=self.num_groups, pooled=False,
                               channel=channel, mask=mask, gain=self.gain)[0]  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, channel_dim={self.channel_dim}"
