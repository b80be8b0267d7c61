"""The layers: torch.nn's constructor and parameter names, masks, and the norms torch lacks.

A norm is a formula plus facts: ``weight`` and ``bias`` are the parameter names (so torch checkpoints load), ``gain`` is
"none", "direct" (starts at 1) or "offset" (starts at 0, used as 1 + weight), ``round_before_gain`` says whether a 16-bit
result is rounded before the gain is applied or after. Every layer takes ``mask`` (bool, True = real) or ``lengths``;
padding never enters a statistic and comes out as zero. NORMS lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import ops
from ._torch import own_buffers, own_parameter, own_parameters
from .errors import TransformUnsupported, unknown

Lengths = Tensor | Sequence[int] | None


def _gain_of(gain: str | None, affine: bool) -> str:
    if gain is None:
        return "direct" if affine else "none"
    gain = ops.check_gain(gain)
    if gain != "none" and not affine:
        raise ValueError(
            f"gain={gain!r} needs a weight, but affine is off; ask for affine=True (elementwise_affine=True)"
        )
    return gain


class _Norm(nn.Module):
    """What the layers share: a gain and a bias that may be absent, and their start values."""

    over_tokens = False  # do statistics span tokens, so that padding (and, in a causal model, the future) matters?
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    gain: str

    def _make_parameters(self, shape: tuple[int, ...], gain: str, bias: bool, device: Any, dtype: Any) -> None:
        self.gain = gain
        for name, wanted in (("weight", gain != "none"), ("bias", bias)):
            self.register_parameter(
                name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None
            )
        self.reset_parameters()

    _own = own_parameter  # self.weight or self.bias without the half microsecond of attribute lookup

    def reset_parameters(self) -> None:
        """Parameters and running quantities as they were at construction."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.gain == "offset" else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or any(n < 1 for n in shape):
        raise ValueError(f"normalized_shape must name at least one axis of at least one value, got {shape}")
    return shape


class LayerNorm(_Norm):
    """Each token on its own: zero mean and unit variance over its features.

        y = (x - mean) / sqrt(var + eps) * weight + bias        mean, biased var over ``normalized_shape``

    Differs from RMSNorm by the mean it removes, from BatchNorm by looking at one token only. A token whose features are
    all equal comes out as the bias. 16-bit inputs are computed in float32 and rounded once, after the gain.
    Ba, Kiros, Hinton 2016 (arXiv 1607.06450).

    >>> norm = LayerNorm(4)
    >>> norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().abs().item() < 1e-6
    True
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        gain: str | None = None,
        round_before_gain: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = ops.check_eps(eps)
        self.elementwise_affine = elementwise_affine
        self.round_before_gain = round_before_gain
        self._make_parameters(
            self.normalized_shape, _gain_of(gain, elementwise_affine), elementwise_affine and bias, device, dtype
        )

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        facts = (0, self.eps, 0, self.gain == "offset", self.round_before_gain)
        weight, bias = self._own("weight"), self._own("bias")
        return ops.row_norm("LayerNorm", x, self.normalized_shape, weight, bias, facts, mask, lengths)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, gain={self.gain!r}, bias={self.bias is not None}"


class RMSNorm(_Norm):
    """Each token on its own: unit root mean square, the mean left in place.

        y = x / sqrt(mean(x^2) + eps) * weight

    ``partial=p`` takes the mean square from the first p * width features only (pRMSNorm). ``eps=None`` is the machine
    epsilon of the dtype that computes (float32 for 16-bit inputs), as in torch. ``gain="offset"`` uses 1 + weight;
    ``round_before_gain=True`` rounds a 16-bit result before the gain (Llama's order), False after (one rounding).
    Zhang, Sennrich 2019 (arXiv 1910.07467); the paper adds eps outside the root, practice puts it inside.

    >>> RMSNorm(2)(torch.tensor([[3.0, 4.0]])).square().mean().sqrt().item()
    1.0
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = False,
        gain: str | None = None,
        round_before_gain: bool = False,
        partial: float | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = None if eps is None else ops.check_eps(eps)
        self.elementwise_affine = elementwise_affine
        self.round_before_gain = round_before_gain
        if partial is not None and not 0 < partial <= 1:
            raise ValueError(
                f"partial is the share of features in the statistic and must lie in (0, 1], got {partial!r}"
            )
        self.partial = partial
        width = torch.Size(self.normalized_shape).numel()
        self._partial_width = 0 if partial is None else max(1, int(partial * width))
        self._make_parameters(
            self.normalized_shape, _gain_of(gain, elementwise_affine), elementwise_affine and bias, device, dtype
        )

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        facts = (1, ops.rms_eps(x, self.eps), self._partial_width, self.gain == "offset", self.round_before_gain)
        weight, bias = self._own("weight"), self._own("bias")
        return ops.row_norm("RMSNorm", x, self.normalized_shape, weight, bias, facts, mask, lengths)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, gain={self.gain!r}, partial={self.partial}"


class ScaleNorm(_Norm):
    """Each token put on a sphere with one learned radius.

        y = weight * x / max(|x|, eps)        weight is one number, starting at sqrt(dim)

    At weight = sqrt(dim) this is RMSNorm without a gain. Nguyen, Salazar 2019 (arXiv 1910.05895).

    >>> ScaleNorm(4)(torch.ones(1, 4)).norm().item()
    2.0
    """

    def __init__(self, dim: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim = dim
        self.eps = ops.check_eps(eps)
        self.affine = affine
        self._make_parameters((1,), "direct" if affine else "none", False, device, dtype)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, self.dim**0.5)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        ops.check_floating("ScaleNorm", x)
        if x.shape[-1:] != (self.dim,):
            raise ValueError(
                f"ScaleNorm({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )
        return ops.scale_norm(x, self.weight, self.eps, mask=mask, lengths=lengths)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, affine={self.affine}"


class _ChannelNorm(_Norm):
    """Norms with one gain per channel, the channels at ``channel_dim`` (last for tokens, 1 for images)."""

    over_tokens = True
    num_features: int
    channel_dim: int

    def _check_channels(self, x: Tensor) -> int:
        channel = ops.check_channels(type(self).__name__, x, self.channel_dim, self.num_features)
        on_cpu = x.is_cpu
        for own in (own_parameters(self), own_buffers(self)):
            for name, t in own.items():
                if t is not None and not (on_cpu and t.is_cpu):
                    ops.check_same_device(type(self).__name__, x, **{name: t})
        return channel


class _RunningNorm(_ChannelNorm):
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
        _RunningNorm.reset_running_stats(self)  # frozen ones as well

    def _factor(self) -> float | Tensor:
        """A batch's share in the running statistics, or, for the plain average, the counter that gives it: see
        ops.update_running, which counts only batches that are taken in."""
        tracked = own_buffers(self)["num_batches_tracked"]  # not self.…: attribute lookup in a module takes longer
        if tracked is None:
            return 0.0
        return tracked if self.momentum is None else self.momentum

    def _count(self) -> None:
        tracked = own_buffers(self)["num_batches_tracked"]
        if self.track_running_stats and tracked is not None and self.momentum is not None and not ops.recomputing():
            tracked.add_(1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        key = prefix + "num_batches_tracked"
        if self.track_running_stats and key not in state_dict and (metadata.get("version") or 0) < 2:  # as torch does
            state_dict[key] = torch.tensor(0, dtype=torch.long)
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)


class BatchNorm(_RunningNorm, nn.modules.batchnorm._BatchNorm):  # type: ignore[misc]  # weight, bias may be None
    """Each channel over the batch: zero mean and unit variance over all real cells of all samples.

        y = (x - mean) / sqrt(var + eps) * weight + bias        training: mean, biased var of the batch
                                                                evaluation: running mean, running (unbiased) var

    Takes (N, C) to 5-D with the channels at ``channel_dim``: last by default, so (B, L, d) needs no transpose; 1 for
    images. Rules: one value per channel in training is an error; an empty batch passes through and changes nothing;
    with fewer than two real cells under a mask the running statistics stay as they are.

    momentum=None      plain average of all batches instead of a moving one
    frozen=True        running statistics in training as well (``freeze()``)
    ghost_size=k       statistics over ghost batches of k samples each (arXiv 1705.08741)
    renorm=(r, d)      batch renormalization with these bounds (arXiv 1702.03275)
    sync=True          statistics over all processes of ``process_group``, weighted by their real cells
    causal="position"  in training, statistics over the batch at each position of (B, L, d): no token sees a later one
    causal="running"   in training, the running statistics of earlier batches; the batch moves them afterwards

    Unlike LayerNorm a token's result depends on the other tokens; in a causal model that includes later ones, unless
    ``causal`` is set. In training with "position" a position with one real sample comes out as the bias.
    It is a ``_BatchNorm`` to torch, whose ``update_bn`` and others ask for that class and pass over what is none.
    Ioffe, Szegedy 2015 (arXiv 1502.03167).

    >>> norm = BatchNorm(3)
    >>> norm(torch.randn(8, 5, 3), lengths=[5, 5, 5, 5, 5, 2, 1, 1]).shape
    torch.Size([8, 5, 3])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        channel_dim: int = -1,
        gain: str | None = None,
        frozen: bool = False,
        ghost_size: int | None = None,
        renorm: tuple[float, float] | None = None,
        sync: bool = False,
        process_group: Any = None,
        causal: str | None = None,
    ) -> None:
        nn.Module.__init__(self)  # _BatchNorm's own would make parameters and buffers of its own kind
        self.num_features = num_features
        self.eps = ops.check_eps(eps)
        self.affine = affine
        self.channel_dim = channel_dim
        self.frozen = frozen
        self.ghost_size = ghost_size
        self.renorm = renorm
        self.sync = sync
        self.process_group = process_group
        self.causal = causal
        if causal not in (None, "position", "running"):
            raise ValueError(unknown("causal", causal, ("position", "running")))
        if ghost_size is not None and ghost_size < 1:
            raise ValueError(f"ghost_size must be at least 1 sample, got {ghost_size}")
        if renorm is not None and not (renorm[0] >= 1 and renorm[1] >= 0):
            raise ValueError(f"renorm=(r_max, d_max) needs r_max >= 1 and d_max >= 0, got {renorm}")
        if not track_running_stats and (frozen or renorm is not None or causal is not None):
            raise ValueError(
                "frozen statistics, renorm and causal need running statistics: set track_running_stats=True"
            )
        if sum((ghost_size is not None, renorm is not None, sync, causal is not None)) > 1:
            raise ValueError("ghost_size, renorm, sync and causal exclude one another")
        self._make_buffers(track_running_stats, momentum, device, dtype)
        self._make_parameters((num_features,), _gain_of(gain, affine), affine and bias, device, dtype)

    def freeze(self, frozen: bool = True) -> BatchNorm:
        """Use (and keep) the running statistics in training as well."""
        if frozen and not self.track_running_stats:
            raise ValueError("there are no running statistics to freeze: track_running_stats is False")
        self.frozen = frozen
        return self

    def reset_running_stats(self) -> None:
        """Running statistics as they were at construction; frozen ones are kept, since no batch would fill them again."""
        if not self.frozen:
            super().reset_running_stats()

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        use_batch = (self.training and not self.frozen) or not self.track_running_stats
        if not use_batch:
            return ops.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                                  channel_dim=self.channel_dim, gain=self.gain, mask=mask, lengths=lengths)  # fmt: skip
        if self.training and (self.causal == "running" or self.renorm is not None) and ops.recomputing():
            raise TransformUnsupported(
                "BatchNorm with causal='running' or renorm reads statistics that its own forward has moved, so recomputing it "
                "(activation checkpointing) would give another result; leave this layer outside the checkpoint"
            )
        group = ops.process_group(self.sync, self.process_group) if self.training else None
        if self.causal != "running":
            ops.check_batch("BatchNorm", x, self.num_features, group)
        if mask is not None or lengths is not None:
            mask = ops.as_mask("BatchNorm", x, ops.positions(x, channel), mask, lengths)
        training = self.training
        taken_in = training and (x.numel() > 0 or group is not None)
        factor = self._factor() if taken_in else 0.0
        if self.causal is not None:
            return self._causal(x, mask, factor)
        if self.ghost_size is not None and training:
            y = self._ghost(x, mask, factor)
            if x.numel() > 0:
                self._count()
            return y
        running = None
        if training and self.track_running_stats:
            own = own_buffers(self)
            running = (own["running_mean"], own["running_var"], factor)
        weight, bias, gain = self._own("weight"), self._own("bias"), self.gain
        if self.renorm is not None and training:
            (weight, bias), gain = self._renormalized(x, mask), "direct"
        y, _ = ops.column_norm("batch_norm", x, weight, bias, self.eps, groups=self.num_features, pooled=True,
                               channel=channel, mask=mask, gain=gain, group=group, running=running)  # fmt: skip
        if taken_in:
            self._count()
        return y

    def _causal(self, x: Tensor, mask: Tensor | None, factor: float | Tensor) -> Tensor:
        """No statistic of later positions; the running ones are those of the whole batch all the same."""
        if self.causal == "running":
            y = ops.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                               channel_dim=self.channel_dim, gain=self.gain, mask=mask)  # fmt: skip
        else:
            if x.dim() != 3 or self.channel_dim % 3 != 2:
                raise ValueError(
                    f"BatchNorm(causal='position') takes (B, L, d), got an input of shape {tuple(x.shape)}"
                )
            y = ops.instance_norm(x.transpose(0, 1), weight=self.weight, bias=self.bias, eps=self.eps, gain=self.gain,
                                  mask=None if mask is None else mask.T).transpose(0, 1)  # fmt: skip
        if x.numel() > 0 and not ops.recomputing():
            mean, var, count = ops.batch_statistics(x.detach(), channel_dim=self.channel_dim, mask=mask)
            ops.update_running(self.running_mean, self.running_var, mean, var, count, factor)
            self._count()
        return y

    def _ghost(self, x: Tensor, mask: Tensor | None, factor: float | Tensor) -> Tensor:
        """Statistics per ghost batch; the running ones take each in turn. A last, smaller ghost batch is allowed."""
        assert self.ghost_size is not None
        parts = x.split(self.ghost_size)
        masks = [None] * len(parts) if mask is None else list(mask.split(self.ghost_size))
        for part in parts:
            ops.check_batch(f"BatchNorm(ghost_size={self.ghost_size})", part, self.num_features, None)
        out = []
        for part, m in zip(parts, masks, strict=True):
            y = ops.batch_norm(part, self.running_mean, self.running_var, self.weight, self.bias, True, factor,
                               self.eps, channel_dim=self.channel_dim, gain=self.gain, mask=m)  # fmt: skip
            out.append(y)
        return torch.cat(out)

    def _renormalized(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gain and bias that also carry r and d, which move batch statistics to the running ones; r, d are constants."""
        assert self.renorm is not None and self.running_mean is not None and self.running_var is not None
        mean, var, _ = ops.batch_statistics(x.detach(), channel_dim=self.channel_dim, mask=mask)
        deviation, running = torch.sqrt(var + self.eps), torch.sqrt(self.running_var.to(var.dtype) + self.eps)
        r = (deviation / running).clamp(1 / self.renorm[0], self.renorm[0])
        d = ((mean - self.running_mean.to(mean.dtype)) / running).clamp(-self.renorm[1], self.renorm[1])
        dtype = self.running_mean.dtype
        weight = torch.ones_like(self.running_mean) if self.weight is None else self.weight + (self.gain == "offset")
        shift = weight * d.to(dtype)
        return weight * r.to(dtype), shift if self.bias is None else self.bias + shift

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}, channel_dim={self.channel_dim}"
        )


class InstanceNorm(_RunningNorm):
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
        self.eps = ops.check_eps(eps)
        self.affine = affine
        self.channel_dim = channel_dim
        self._make_buffers(track_running_stats, momentum, device, dtype)
        self._make_parameters((num_features,), _gain_of(gain, affine), affine and bias, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        if self.track_running_stats and not self.training:
            return ops.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                                  channel_dim=self.channel_dim, gain=self.gain, mask=mask, lengths=lengths)  # fmt: skip
        if mask is not None or lengths is not None:
            mask = ops.as_mask("InstanceNorm", x, ops.positions(x, channel), mask, lengths)
        tracked = self.track_running_stats and self.training
        y, found = ops.column_norm("instance_norm", x, self.weight, self.bias, self.eps, groups=self.num_features,
                                    pooled=False, channel=channel, mask=mask, gain=self.gain,
                                    want_statistics=tracked)  # fmt: skip
        if tracked and not ops.recomputing():  # recomputed, it saves the same tensors and moves nothing
            ops.check_running("InstanceNorm", self.num_features, self.running_mean, self.running_var)
            assert found is not None
            mean, var, count = found
            with torch.no_grad():  # the running statistics are averages over samples, as in torch
                taken = count >= 2  # one position says nothing about a variance
                share = taken.to(mean.dtype)[:, None] / taken.sum().clamp(min=1)
                unbiased = var * (count / (count - 1).clamp(min=1))[:, None]
                ops.update_running(self.running_mean, self.running_var, (mean * share).sum(0), (unbiased * share).sum(0),
                                   taken.any() * 2.0**62, self._factor())  # fmt: skip
                if self.momentum is not None and self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(taken.any())
        return y

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}, channel_dim={self.channel_dim}"


class GroupNorm(_ChannelNorm):
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
        ops.check_groups(num_groups, num_channels)
        if causal not in (None, "position"):
            raise ValueError(unknown("causal", causal, ("position",)))
        self.causal = causal
        self.num_groups = num_groups
        self.num_channels = self.num_features = num_channels
        self.eps = ops.check_eps(eps)
        self.affine = affine
        self.channel_dim = channel_dim
        self._make_parameters((num_channels,), _gain_of(gain, affine), affine and bias, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        if mask is not None or lengths is not None:
            mask = ops.as_mask("GroupNorm", x, ops.positions(x, channel), mask, lengths)
        weight, bias = self._own("weight"), self._own("bias")
        if self.causal is not None:
            rows = x.movedim(channel, -1).flatten(0, -2)
            y, _ = ops.column_norm("group_norm", rows, weight, bias, self.eps, groups=self.num_groups, pooled=False, channel=1,
                                   mask=None if mask is None else mask.flatten(), gain=self.gain)  # fmt: skip
            return y.unflatten(0, x.movedim(channel, -1).shape[:-1]).movedim(-1, channel)
        return ops.column_norm("group_norm", x, weight, bias, self.eps, groups=self.num_groups, pooled=False,
                               channel=channel, mask=mask, gain=self.gain)[0]  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, channel_dim={self.channel_dim}"


class PowerNorm(_ChannelNorm):
    """Each channel divided by its quadratic mean over the batch, kept as a running quantity; no mean is removed.

        training    y = x / psi * weight + bias     psi = running quadratic mean of earlier batches (PN),
                                                    or of this batch while step < warmup_steps, or always with
                                                    running=False (PN-V)
        evaluation  the running psi
        backward    (weight * grad - nu * xhat) / psi, nu a running quantity of its own

    ``track_running_stats=False`` (with running=False) keeps no state: evaluation, too, uses the batch.
    ``group_scaling=g`` first divides every token by its RMS within each of g groups of channels, as the paper's
    experiments do. ``sync=True`` pools over processes. During warm-up the running psi^2 is the plain average of the
    batches so far and the gradient is exact. Shen et al. 2020 (arXiv 2003.07845).

    >>> norm = PowerNorm(4, warmup_steps=10)
    >>> norm(torch.randn(8, 5, 4)).square().mean().item() - 1 < 1e-4
    True
    """

    running_psi2: Tensor | None
    running_nu: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        alpha_forward: float = 0.9,
        alpha_backward: float = 0.9,
        warmup_steps: int = 10000,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        running: bool = True,
        track_running_stats: bool = True,
        group_scaling: int | None = None,
        channel_dim: int = -1,
        sync: bool = False,
        process_group: Any = None,
    ) -> None:
        super().__init__()
        for name, alpha in (("alpha_forward", alpha_forward), ("alpha_backward", alpha_backward)):
            if not 0 <= alpha <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {alpha!r}")
        if group_scaling is not None:
            ops.check_groups(group_scaling, num_features)
        self.num_features = num_features
        self.eps = ops.check_eps(eps)
        self.alpha_forward = alpha_forward
        self.alpha_backward = alpha_backward
        self.warmup_steps = warmup_steps
        self.affine = affine
        if running and not track_running_stats:
            raise ValueError("the running form needs its running quantities: set running=False as well")
        self.running = running
        self.track_running_stats = track_running_stats
        self.group_scaling = group_scaling
        self.channel_dim = channel_dim
        self.sync = sync
        self.process_group = process_group
        tracked = track_running_stats
        for name in ("running_psi2", "running_nu"):
            self.register_buffer(name, torch.empty(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer(
            "num_batches_tracked", torch.empty((), dtype=torch.long, device=device) if tracked else None
        )
        self._make_parameters((num_features,), "direct" if affine else "none", affine and bias, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.track_running_stats:
            assert (
                self.running_psi2 is not None and self.running_nu is not None and self.num_batches_tracked is not None
            )
            self.running_psi2.fill_(1)
            self.running_nu.zero_()
            self.num_batches_tracked.zero_()

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        channel = self._check_channels(x)
        mask = ops.as_mask("PowerNorm", x, ops.positions(x, channel), mask, lengths)
        if self.group_scaling is not None:
            x = self._scale_groups(x, channel, mask)
        group = ops.process_group(self.sync, self.process_group)
        if self.running_psi2 is None or self.running_nu is None or self.num_batches_tracked is None:
            return ops.column_norm("power_norm", x, self.weight, self.bias, self.eps, groups=self.num_features,
                                   pooled=True, channel=channel, mask=mask, centered=False, group=group)[0]  # fmt: skip
        return ops.power_norm(x, self.running_psi2, self.running_nu, self.num_batches_tracked, self.weight, self.bias,
                              self.training, self.eps, alpha_forward=self.alpha_forward,
                              alpha_backward=self.alpha_backward, warmup_steps=self.warmup_steps, running=self.running,
                              channel_dim=self.channel_dim, mask=mask, group=group)  # fmt: skip

    def _scale_groups(self, x: Tensor, channel: int, mask: Tensor | None) -> Tensor:
        assert self.group_scaling is not None
        last = x.movedim(channel, -1)
        groups = last.unflatten(-1, (self.group_scaling, -1))
        if mask is not None:
            mask = mask.unsqueeze(-1).expand(*mask.shape, self.group_scaling)
        scaled = ops.rms_norm(groups, (groups.shape[-1],), None, self.eps, mask=mask)
        return scaled.flatten(-2).movedim(-1, channel)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, alpha_forward={self.alpha_forward}, warmup_steps={self.warmup_steps}, "
            f"running={self.running}, group_scaling={self.group_scaling}, channel_dim={self.channel_dim}"
        )


class _Pointwise(_Norm):
    """A squashing curve in place of a norm: no statistic at all."""

    def _make(self, dim: int, starts: dict[str, float], affine: bool, device: Any, dtype: Any) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim = dim
        self.affine = affine
        self.starts = starts  # of the curve's own numbers, by name
        for name in starts:
            self.register_parameter(name, nn.Parameter(torch.empty(1, device=device, dtype=dtype)))
        self._make_parameters((dim,), "direct" if affine else "none", affine, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, value in self.starts.items():
            nn.init.constant_(getattr(self, name), value)

    def _check(self, x: Tensor) -> None:
        ops.check_floating(type(self).__name__, x)
        if x.shape[-1:] != (self.dim,):
            raise ValueError(
                f"{type(self).__name__}({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )

    def extra_repr(self) -> str:
        return f"{self.dim}, affine={self.affine}"


class DyT(_Pointwise):
    """A learned tanh in place of a norm.

        y = weight * tanh(alpha * x) + bias        alpha is one number, starting at ``alpha_init``

    Each cell stands alone: large values are squashed, nothing is centred or scaled by data.
    Zhu et al. 2025 (arXiv 2503.10622).

    >>> DyT(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    alpha: nn.Parameter

    def __init__(
        self, dim: int, alpha_init: float = 0.5, affine: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self._make(dim, {"alpha": alpha_init}, affine, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        self._check(x)
        return ops.dyt(x, self.alpha, self.weight, self.bias, mask=mask, lengths=lengths)


class Derf(_Pointwise):
    """A learned, shifted error function in place of a norm.

        y = weight * erf(alpha * x + shift) + bias        alpha starts at ``alpha_init``, shift at ``shift_init``

    DyT with erf for tanh and a shift. arXiv 2512.10938.

    >>> Derf(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    alpha: nn.Parameter
    shift: nn.Parameter

    def __init__(
        self,
        dim: int,
        alpha_init: float = 0.5,
        shift_init: float = 0.0,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._make(dim, {"alpha": alpha_init, "shift": shift_init}, affine, device, dtype)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        self._check(x)
        return ops.derf(x, self.alpha, self.shift, self.weight, self.bias, mask=mask, lengths=lengths)


class ResidualNorm(_Norm):
    """The residual sum and the norm behind it, in one pass over memory.

        stream = alpha * x + dropout(branch)        y = norm(stream)

    ``forward(x, branch)`` returns y, or (y, stream) with ``return_stream=True``. ``alpha`` is DeepNorm's factor on the
    stream; ``norm`` is "layer" or "rms". Computing the parts one after the other gives the same numbers.

    >>> norm = ResidualNorm(4, norm="rms", return_stream=True)
    >>> y, stream = norm(torch.ones(2, 4), torch.ones(2, 4))
    >>> stream[0, 0].item()
    2.0
    """

    def __init__(
        self,
        dim: int,
        norm: str = "layer",
        eps: float | None = None,
        elementwise_affine: bool = True,
        bias: bool | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        alpha: float = 1.0,
        dropout: float = 0.0,
        return_stream: bool = False,
        gain: str | None = None,
        round_before_gain: bool = False,
    ) -> None:
        super().__init__()
        if norm not in ("layer", "rms"):
            raise ValueError(unknown("norm", norm, ("layer", "rms")))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")
        (self.dim,) = _shape(dim)
        self.norm = norm
        self.eps = (1e-5 if norm == "layer" else None) if eps is None else ops.check_eps(eps)
        self.alpha = float(alpha)
        self.dropout = dropout
        self.return_stream = return_stream
        self.round_before_gain = round_before_gain
        with_bias = norm == "layer" if bias is None else bias
        self._make_parameters(
            (self.dim,), _gain_of(gain, elementwise_affine), elementwise_affine and with_bias, device, dtype
        )

    def forward(self, x: Tensor, branch: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Any:
        ops.check_floating("ResidualNorm", x)
        ops.check_floating("ResidualNorm", branch)
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise ValueError(
                f"ResidualNorm({self.dim}) got an input of shape {tuple(x.shape)}; its last axis must be {self.dim}"
            )
        eps = ops.rms_eps(x, self.eps)
        return ops.residual_norm(x, branch, self._own("weight"), self._own("bias"), eps, norm=self.norm, alpha=self.alpha,
                                 dropout=self.dropout, training=self.training, gain=self.gain,
                                 round_before_gain=self.round_before_gain, return_stream=self.return_stream, mask=mask,
                                 lengths=lengths)  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.dim}, norm={self.norm!r}, alpha={self.alpha}, dropout={self.dropout}, gain={self.gain!r}"


@dataclass(frozen=True, kw_only=True)
class NormFacts:
    """One row of NORMS: what a norm is, without its code."""

    layer: type[_Norm]
    formula: str
    shares: str  # which cells share a statistic
    paper: str
    year: int
    advice: str


NORMS: dict[str, NormFacts] = {
    "layer": NormFacts(layer=LayerNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="the features of one token", paper="1607.06450", year=2016, advice="the default of most Transformers"),
    "rms": NormFacts(layer=RMSNorm, formula="x / sqrt(mean(x^2) + eps) * w", shares="the features of one token", paper="1910.07467", year=2019, advice="LayerNorm without the mean: cheaper, as good in language models"),
    "scale": NormFacts(layer=ScaleNorm, formula="w * x / max(|x|, eps)", shares="the features of one token", paper="1910.05895", year=2019, advice="one gain for the whole vector"),
    "batch": NormFacts(layer=BatchNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="one channel of all samples and positions", paper="1502.03167", year=2015, advice="images and large batches; on text it needs masks and steady statistics"),
    "instance": NormFacts(layer=InstanceNorm, formula="(x - mean) / sqrt(var + eps)", shares="one channel of one sample", paper="1607.08022", year=2016, advice="style of single images; refuses causal models"),
    "group": NormFacts(layer=GroupNorm, formula="(x - mean) / sqrt(var + eps) * w + b", shares="a group of channels of one sample", paper="1803.08494", year=2018, advice="images with small batches"),
    "power": NormFacts(layer=PowerNorm, formula="x / running sqrt(mean(x^2)) * w + b", shares="one channel of all samples and positions", paper="2003.07845", year=2020, advice="BatchNorm for text, with running statistics in training"),
    "dyt": NormFacts(layer=DyT, formula="w * tanh(alpha x) + b", shares="nothing", paper="2503.10622", year=2025, advice="no statistics; tune alpha_init"),
    "derf": NormFacts(layer=Derf, formula="w * erf(alpha x + s) + b", shares="nothing", paper="2512.10938", year=2025, advice="DyT with erf; no statistics"),
}  # fmt: skip


def make_norm(norm: str, dim: int, **options: Any) -> nn.Module:
    """A norm by name, for a stream of width ``dim``; GroupNorm takes up to 32 groups of at least 4 channels (a power of two that divides ``dim``) unless told.

    >>> make_norm("rms", 8, eps=1e-6)
    RMSNorm((8,), eps=1e-06, gain='direct', partial=None)
    """
    if norm not in NORMS:
        raise ValueError(unknown("norm", norm, NORMS))
    layer: Any = NORMS[norm].layer
    if layer is GroupNorm:
        groups = math.gcd(dim, 32)
        while groups > 1 and dim // groups < 4:  # one or two channels of a token have no spread, only signs
            groups //= 2
        return GroupNorm(options.pop("num_groups", groups), dim, **options)
    return layer(dim, **options)
