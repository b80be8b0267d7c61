"""PowerNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import functional
from .base import Lengths
from .channels import ChannelNorm


class PowerNorm(ChannelNorm):
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
            functional.check_groups(group_scaling, num_features)
        self.num_features = num_features
        self.eps = functional.check_eps(eps)
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
        mask = functional.as_mask("PowerNorm", x, functional.positions(x, channel), mask, lengths)
        if self.group_scaling is not None:
            x = self._scale_groups(x, channel, mask)
        group = functional.process_group(self.sync, self.process_group)
        if self.running_psi2 is None or self.running_nu is None or self.num_batches_tracked is None:
            return functional.column_norm("power_norm", x, self.weight, self.bias, self.eps, groups=self.num_features,
                                   pooled=True, channel=channel, mask=mask, centered=False, group=group)[0]  # fmt: skip
        return functional.power_norm(x, self.running_psi2, self.running_nu, self.num_batches_tracked, self.weight, self.bias,
                              self.training, self.eps, alpha_forward=self.alpha_forward,
                              alpha_backward=self.alpha_backward, warmup_steps=self.warmup_steps, running=self.running,
                              channel_dim=self.channel_dim, mask=mask, group=group)  # fmt: skip

    def _scale_groups(self, x: Tensor, channel: int, mask: Tensor | None) -> Tensor:
        assert self.group_scaling is not None
        last = x.movedim(channel, -1)
        groups = last.unflatten(-1, (self.group_scaling, -1))
        if mask is not None:
            mask = mask.unsqueeze(-1).expand(*mask.shape, self.group_scaling)
        scaled = functional.rms_norm(groups, (groups.shape[-1],), None, self.eps, mask=mask)
        return scaled.flatten(-2).movedim(-1, channel)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, alpha_forward={self.alpha_forward}, warmup_steps={self.warmup_steps}, "
            f"running={self.running}, group_scaling={self.group_scaling}, channel_dim={self.channel_dim}"
        )
