"""A norm with its steadiness taken away again: what Santurkar et al. put after BatchNorm to test what it is for.

If norms helped by keeping the distribution of what follows steady, noise that moves it at every step would undo the
help. It is a wrapper, so that any norm can have it; models take it as ``norm_noise``.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from .. import functional
from .base import Lengths


class NoisyNorm(nn.Module):
    """Another norm, then a random shift and scale of each feature, drawn anew at every forward in training.

        y = norm(x) * s_t + m_t        m_t uniform in [-shift, shift], log s_t uniform in [-log scale, log scale]

    One m and one s per feature and forward, the same for all tokens. None in evaluation. The draws are a function of
    ``seed``, ``stream`` (which norm of a model this is) and ``forwards``, a counter in the state_dict: they touch no random
    state of torch, come out the same after a resumption, and a recomputation (activation checkpointing) draws what the forward
    drew. Santurkar et al. 2018 (arXiv 1805.11604), who also jitter single samples.

    >>> from normlab.norms import LayerNorm
    >>> norm = NoisyNorm(LayerNorm(4, elementwise_affine=False), shift=0.5, scale=1.0)
    >>> y = norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> bool((y.mean() - 0).abs() > 1e-3), norm.eval()(torch.ones(1, 4)).tolist()
    (True, [[0.0, 0.0, 0.0, 0.0]])
    """

    forwards: Tensor

    def __init__(
        self, norm: nn.Module, *, shift: float = 0.5, scale: float = 1.25, seed: int = 0, stream: int = 0
    ) -> None:
        super().__init__()
        for what, value, least in (("shift", shift, 0.0), ("scale", scale, 1.0)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
                raise ValueError(f"{what} must be a finite number of at least {least:g}, got {value!r}")
        self.norm = norm
        self.shift, self.scale, self.seed, self.stream = float(shift), float(scale), int(seed), int(stream)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    @property
    def over_tokens(self) -> bool:
        return getattr(self.norm, "over_tokens", False)

    def reset_parameters(self) -> None:
        """The norm and the counter as they were at construction."""
        self.forwards.zero_()
        if callable(reset := getattr(self.norm, "reset_parameters", None)):
            reset()

    def draw(self, features: int, forward: int) -> tuple[Tensor, Tensor]:
        """(scale, shift) of forward 1, 2, ..., one of each per feature, in float64."""
        key = hashlib.sha256(f"{self.seed}/{self.stream}/{forward}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
        draws = torch.rand(2, features, dtype=torch.float64, generator=generator, device="cpu") * 2 - 1
        return torch.exp(draws[0] * math.log(self.scale)), draws[1] * self.shift

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Lengths = None) -> Tensor:
        axes = len(getattr(self.norm, "normalized_shape", (1,)))  # that a mask does not have
        channel = getattr(self.norm, "channel_dim", -1) % x.dim()
        rows = tuple(x.shape[:channel]) + tuple(x.shape[channel + 1 :])
        mask = functional.as_mask("NoisyNorm", x, rows[: len(rows) + 1 - axes], mask, lengths)
        y = self.norm(x) if mask is None else self.norm(x, mask=mask)
        if not self.training:
            return y
        if not functional.recomputing():
            self.forwards += 1
        shape = [-1 if axis == channel else 1 for axis in range(y.dim())]
        drawn = self.draw(y.shape[channel], int(self.forwards))
        scale, shift = (t.to(y.device, y.dtype).reshape(shape) for t in drawn)
        noisy = y * scale + shift
        if mask is None:
            return noisy
        cell = mask.unsqueeze(channel) if axes == 1 else mask.reshape(*mask.shape, *[1] * axes)
        return torch.where(cell, noisy, 0)

    def extra_repr(self) -> str:
        return f"shift={self.shift:g}, scale={self.scale:g}, seed={self.seed}, stream={self.stream}"
