"""Which tokens are alike before and after a norm: neighbours and a map of a few tokens, small enough to keep in a run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .states import NormStates, norm_states
from .untouched import Loss, NothingToAsk

SNAPSHOT_TOKENS, COORDINATES, NEIGHBOURS = 64, 3, 5  # of a snapshot, at most
SITES = 3  # norms of a model that a snapshot is taken of unless named: the first, the middle one, the last
FORMS = ("before", "plain", "after")  # in front of the norm; behind it without gain and bias; as it leaves


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Some tokens as vectors: where they lie on their principal axes, and which are nearest to which."""

    coordinates: tuple[tuple[float, ...], ...]  # per token, on up to 3 principal axes
    explained: float  # share of the variance on those axes
    neighbours: tuple[tuple[int, ...], ...]  # per token, numbers of the 5 nearest by cosine, the nearest first
    mean_cosine: float  # between different tokens


@dataclass(frozen=True, kw_only=True)
class TokenSimilarity:
    """The same tokens in front of a norm, behind it without gain and bias, and as they leave it."""

    site: str
    places: tuple[int, ...]  # of the tokens among all of the forward, flattened
    tokens: tuple[int, ...] | None  # their ids, where the model was given ids
    before: Cloud
    plain: Cloud
    after: Cloud

    def overlap(self, one: str, other: str) -> float:
        """Mean share of a token's neighbours that are the same in two of "before", "plain" and "after"."""
        pairs = zip(getattr(self, one).neighbours, getattr(self, other).neighbours, strict=True)
        shares = [len(set(a) & set(b)) / len(a) for a, b in pairs if a]
        return sum(shares) / len(shares) if shares else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a run: 64 tokens, 3 coordinates and 5 neighbours each, at most."""
        return asdict(self)


def token_similarity(
    model: nn.Module,
    run: Loss,
    *,
    names: tuple[str, ...] | None = None,
    ids: Tensor | None = None,
    mask: Tensor | None = None,
) -> list[TokenSimilarity]:
    """A snapshot for each norm that is named (default: first, middle and last) in the forward that ``run(model)`` makes.

    Up to 64 evenly spaced tokens, the same for every norm; with ``mask`` (True = real) real ones. Without gain and bias
    the cosine of two tokens behind LayerNorm is their correlation, ``<a, b> / d``; gain and bias can change who is near whom.
    ``ids`` are kept beside the tokens for display.

    >>> found = token_similarity(nn.Sequential(nn.LayerNorm(4)), lambda m: m(torch.randn(9, 4)))
    >>> len(found[0].before.neighbours), len(found[0].before.neighbours[0])
    (9, 5)
    """
    states = norm_states(model, run, names=names)
    if not states:
        raise NothingToAsk("the forward came to no norm")
    chosen = list(states.values())
    if names is None and len(chosen) > SITES:
        chosen = [chosen[round(i * (len(chosen) - 1) / (SITES - 1))] for i in range(SITES)]
    return [_snapshot(s, ids, mask) for s in chosen]


def _snapshot(states: NormStates, ids: Tensor | None, mask: Tensor | None) -> TokenSimilarity:
    site = states.site
    x, y = (t.flatten(-site.axes).flatten(0, -2).double() for t in (states.x, states.y))
    places = torch.arange(len(x))
    if mask is not None and mask.numel() == len(x):
        places = places[mask.flatten().cpu()]
    stride = max(1, -(-len(places) // SNAPSHOT_TOKENS))
    length = states.x.shape[1] if states.x.dim() > 2 else 1
    while math.gcd(stride, length) > 1:  # a stride of whole sequences would show one position of each
        stride += 1
    places = places[::stride]
    named = tuple(ids.flatten()[places].tolist()) if ids is not None and ids.numel() == len(x) else None
    after = y[places]
    return TokenSimilarity(
        site=site.name,
        places=tuple(places.tolist()),
        tokens=named,
        before=cloud(x[places]),
        plain=cloud(_without_affine(states, after)),
        after=cloud(after),
    )


def _without_affine(states: NormStates, y: Tensor) -> Tensor:
    """(y - bias) / gain. A gain of zero has erased its feature: it stays zero."""
    gain, bias = states.site.factor(), states.site.bias
    if bias is not None:
        y = y - bias.detach().double().flatten()
    if gain is None:
        return y
    g = gain.double().flatten().expand(y.shape[-1])
    return torch.where(g == 0, torch.zeros_like(y), y / torch.where(g == 0, torch.ones_like(g), g))


def cloud(rows: Tensor) -> Cloud:
    """Of rows (tokens, features)."""
    rows = rows.detach().double()
    count = len(rows)
    unit = rows / (torch.linalg.vector_norm(rows, dim=1, keepdim=True) + 1e-300)
    cosine = unit @ unit.T
    others = cosine.clone().fill_diagonal_(-torch.inf)
    near = torch.sort(others, dim=1, descending=True, stable=True).indices[:, : max(0, min(NEIGHBOURS, count - 1))]
    centered = rows - rows.mean(0)
    _, values, axes = torch.linalg.svd(centered, full_matrices=False)
    axes = axes[:COORDINATES]
    peak = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    places = (
        centered @ (axes * torch.sign(peak)).T
    )  # an axis has no direction of its own: its largest entry is positive
    total = float(values.square().sum())
    between = float((cosine.sum() - cosine.diagonal().sum()) / (count * (count - 1))) if count > 1 else 1.0
    return Cloud(
        coordinates=tuple(tuple(round(v, 6) for v in row) for row in places.tolist()),
        explained=float(values[:COORDINATES].square().sum()) / total if total > 0 else 0.0,
        neighbours=tuple(tuple(row) for row in near.tolist()),
        mean_cosine=between,
    )
