"""BatchNorm and its variants: frozen, ghost batches, renorm, over processes, causal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import functional
from .._torch import own_buffers
from ..errors import TransformUnsupported, unknown
from .base import Lengths, gain_of
from .channels import RunningNorm


class BatchNorm(RunningNorm, nn.modules.batchnorm._BatchNorm):  # type: ignore[misc]  # weight, bias may be None
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
        self.eps = functional.check_eps(eps)
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
        self._make_parameters((num_features,), gain_of(gain, affine), affine and bias, device, dtype)

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
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                                  channel_dim=self.channel_dim, gain=self.gain, mask=mask, lengths=lengths)  # fmt: skip
        if self.training and (self.causal == "running" or self.renorm is not None) and functional.recomputing():
            raise TransformUnsupported(
                "BatchNorm with causal='running' or renorm reads statistics that its own forward has moved, so recomputing it "
                "(activation checkpointing) would give another result; leave this layer outside the checkpoint"
            )
        group = functional.process_group(self.sync, self.process_group) if self.training else None
        if self.causal != "running":
            functional.check_batch("BatchNorm", x, self.num_features, group)
        if mask is not None or lengths is not None:
            mask = functional.as_mask("BatchNorm", x, functional.positions(x, channel), mask, lengths)
        training = self.training
        taken_in = training and (x.numel() > 0 or group is not None)
        factor = self._factor() if taken_in else 0.0
        if self.causal is not None:
            return self._causal(x, mask, factor)
        if self.ghost_size is not None and training:
            y = self._ghost(x, mask, channel, factor)
            if x.numel() > 0:
                self._count()
            return y
        running = None
        if training and self.track_running_stats:
            own = own_buffers(self)
            running = (own["running_mean"], own["running_var"], factor)
        weight, bias, gain = self._own("weight"), self._own("bias"), self.gain
        if self.renorm is not None and training:
            functional.check_running(
                "BatchNorm", self.num_features, running_mean=self.running_mean, running_var=self.running_var
            )
            (weight, bias), gain = self._renormalized(x, mask), "direct"
        y, _ = functional.column_norm("batch_norm", x, weight, bias, self.eps, groups=self.num_features, pooled=True,
                               channel=channel, mask=mask, gain=gain, group=group, running=running)  # fmt: skip
        if taken_in:
            self._count()
        return y

    def _causal(self, x: Tensor, mask: Tensor | None, factor: float | Tensor) -> Tensor:
        """No statistic of later positions; the running ones are those of the whole batch all the same."""
        functional.check_running(
            "BatchNorm", self.num_features, running_mean=self.running_mean, running_var=self.running_var
        )
        if self.causal == "running":
            y = functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps,
                               channel_dim=self.channel_dim, gain=self.gain, mask=mask)  # fmt: skip
        else:
            if x.dim() != 3 or self.channel_dim % 3 != 2:
                raise ValueError(
                    f"BatchNorm(causal='position') takes (B, L, d), got an input of shape {tuple(x.shape)}"
                )
            y = functional.instance_norm(x.transpose(0, 1), weight=self.weight, bias=self.bias, eps=self.eps, gain=self.gain,
                                  mask=None if mask is None else mask.T).transpose(0, 1)  # fmt: skip
        if x.numel() > 0 and not functional.recomputing():
            mean, var, count = functional.batch_statistics(x.detach(), channel_dim=self.channel_dim, mask=mask)
            functional.update_running(self.running_mean, self.running_var, mean, var, count, factor)
            self._count()
        return y

    def _ghost(self, x: Tensor, mask: Tensor | None, channel: int, factor: float | Tensor) -> Tensor:
        """Statistics per ghost batch; the running ones take each in turn. A last, smaller ghost batch is allowed."""
        assert self.ghost_size is not None
        parts = x.split(self.ghost_size)
        masks = [None] * len(parts) if mask is None else list(mask.split(self.ghost_size))
        for part in parts:
            functional.check_batch(f"BatchNorm(ghost_size={self.ghost_size})", part, self.num_features, None)
        out = []
        running = (self.running_mean, self.running_var, factor) if self.track_running_stats else None
        for part, m in zip(parts, masks, strict=True):
            y, _ = functional.column_norm("batch_norm", part, self.weight, self.bias, self.eps, groups=self.num_features,
                               pooled=True, channel=channel, mask=m, gain=self.gain, running=running)  # fmt: skip
            out.append(y)
        return torch.cat(out)

    def _renormalized(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gain and bias that also carry r and d, which move batch statistics to the running ones; r, d are constants."""
        assert self.renorm is not None and self.running_mean is not None and self.running_var is not None
        # Below torch's own operators read the parameters, and would broadcast one of the wrong size.
        functional.check_columns("BatchNorm", x, self.channel_dim, self.weight, self.bias)
        functional.check_memory(self.weight, self.bias, self.running_mean, self.running_var)
        mean, var, _ = functional.batch_statistics(x.detach(), channel_dim=self.channel_dim, mask=mask)
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
