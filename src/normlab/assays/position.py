"""Can a token's position be read from its state? A linear probe, fitted on some sequences and judged on others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RIDGES = (
    1e-6,
    1e-4,
    1e-2,
    1.0,
)  # of the mean square of a feature; the best on the fitted sequences' last fifth is taken


@dataclass(frozen=True, kw_only=True)
class PositionProbe:
    """How well a linear map finds positions, on sequences it was not fitted on."""

    accuracy: float  # share of tokens whose position is named exactly
    chance: float  # of a guess: 1 / number of positions
    r2: float  # of the position as a number, from the same states; 0: no better than the mean, 1: exact
    positions: int
    tokens: int  # judged


def position_probe(states: Tensor, *, mask: Tensor | None = None, seed: int = 0) -> PositionProbe:
    """Fit linear discriminants from states (B, L, d) to each token's position, and judge them on held-out sequences.

    Half of the sequences (drawn by ``seed``) fit the map, with a ridge chosen among four on part of them; the other half judges.
    Discriminants (one center per position, one covariance for all) and not least squares to one-hot positions, which cannot
    name positions that lie along a line. States are standardized by the fitted half first, so that scale and shift of a feature make no difference.
    ``mask`` (B, L), True = real.

    >>> steps = torch.eye(5).repeat(8, 1, 1)  # the state says where it is
    >>> position_probe(steps).accuracy
    1.0
    """
    if states.dim() != 3 or len(states) < 8:
        raise ValueError(
            f"states must have shape (sequences, positions, features) with at least 8 sequences, got {tuple(states.shape)}"
        )
    count, length, _ = states.shape
    rows = states.detach().double().cpu()
    real = torch.ones(count, length, dtype=torch.bool) if mask is None else mask.cpu()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    judged, fitted = order[: count // 2], order[count // 2 :]
    tune = max(1, len(fitted) // 5)
    where = torch.arange(length).expand(count, length)

    def tokens(chosen: Tensor) -> tuple[Tensor, Tensor]:
        keep = real[chosen]
        return rows[chosen][keep], where[chosen][keep]

    ridge = RIDGES[0]
    if len(fitted) > 2 * tune:
        inner, outer = tokens(fitted[tune:]), tokens(fitted[:tune])
        ridge = max(RIDGES, key=lambda r: _Fit(*inner, length, r).accuracy(*outer))
    fit = _Fit(*tokens(fitted), length, ridge)
    x, position = tokens(judged)
    expected = position.double()
    left = (fit.numbers(x) - expected).square().sum()
    total = (expected - expected.mean()).square().sum()
    return PositionProbe(
        accuracy=fit.accuracy(x, position), chance=1 / length, r2=float(1 - left / total) if total > 0 else 0.0,
        positions=length, tokens=len(position),
    )  # fmt: skip


class _Fit:
    """Linear discriminants of the positions, and least squares to the position as a number."""

    def __init__(self, x: Tensor, position: Tensor, length: int, ridge: float) -> None:
        self.mean, deviation = x.mean(0), x.std(0, correction=0)
        self.deviation = torch.where(deviation > 1e-12 * (1 + self.mean.abs()), deviation, torch.ones_like(deviation))
        x = self._standard(x)
        count = torch.bincount(position, minlength=length).double()
        centers = torch.zeros(length, x.shape[1], dtype=torch.float64).index_add_(0, position, x)
        centers /= count.clamp(min=1)[:, None]
        within = x - centers[position]
        penalty = ridge * torch.eye(x.shape[1], dtype=torch.float64)
        self.matrix = torch.linalg.solve(within.T @ within / len(x) + penalty, centers.T)
        self.offset = -0.5 * (centers.T * self.matrix).sum(0)
        self.offset[count == 0] = -torch.inf  # a position that no fitted sequence has
        target = position.double()
        self.slope = torch.linalg.solve(x.T @ x / len(x) + penalty, x.T @ (target - target.mean()) / len(x))
        self.level = target.mean()

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def accuracy(self, x: Tensor, position: Tensor) -> float:
        named = (self._standard(x) @ self.matrix + self.offset).argmax(1)
        return float((named == position).double().mean())

    def numbers(self, x: Tensor) -> Tensor:
        return self._standard(x) @ self.slope + self.level
