"""One token after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .sublayers import Cache


class evaluating:
    """Evaluation mode within the block."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.modes = {m: m.training for m in self.model.modules()}
        self.model.eval()

    def __exit__(self, *_: Any) -> None:
        for module, training in self.modes.items():
            module.training = training


def check_sampling(model: Any, start: Tensor, steps: int, temperature: float, top_k: int | None) -> None:
    if start.dim() != 2 or start.shape[1] < 1:
        raise ValueError(
            f"generation starts from tokens of shape (B, L), at least one each, got shape {tuple(start.shape)}"
        )
    limit, length = model.config.max_length, start.shape[1] + steps
    if steps < 0 or length > limit:
        raise ValueError(
            f"{steps} more tokens make {length}; they must fit max_length={limit} (and steps be at least 0)"
        )
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0 (0: the likeliest token), got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")


def extend(
    tokens: Tensor, steps: int, score: Callable[..., Tensor], cache: Cache | None, temperature: float,
    top_k: int | None, generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """The tokens and ``steps`` more; with a cache ``score`` is shown the new ones only."""
    new = tokens
    for _ in range(steps):
        scores = score(tokens if cache is None else new, cache=cache)[:, -1]
        new = choose(scores, temperature, top_k, generator)
        tokens = torch.cat((tokens, new), 1)
    return tokens


def choose(scores: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return scores.argmax(-1, keepdim=True)
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    return torch.multinomial((scores.float() / temperature).softmax(-1), 1, generator=generator)
