"""What a task is: batches, a held-out part, loss and score."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

UNASKED = -100  # torch's own choice for cross entropy
SIZES = {"dim": 64, "num_layers": 4, "num_heads": 4}  # proposals; an experiment may say otherwise


class Batch(NamedTuple):
    """What a model is given, by the names of its ``forward``, and what it should say."""

    arguments: dict[str, Tensor]
    targets: Tensor  # (B,) classes or (B, L) tokens; UNASKED where nothing is asked


class Scores(NamedTuple):
    """Per example: mean loss over its targets (float64; 0 where it has none), number of targets, number right."""

    losses: Tensor
    counts: Tensor
    correct: Tensor | None  # None: the loss is the user's own and does not say what is right


def _answers(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """float32 scores (..., classes) and targets (...) of a Batch, or of a pair (inputs, targets)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise TypeError(f"cross entropy needs batches (inputs, targets), got {outline(batch)}; give a loss of your own")
    inputs, targets = batch
    scores = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    if not isinstance(scores, Tensor):
        raise TypeError(f"cross entropy needs a tensor from the model, got {outline(scores)}; give a loss of your own")
    if scores.shape[:-1] != targets.shape:
        raise ValueError(
            f"scores of shape {tuple(scores.shape)} do not answer targets of shape {tuple(targets.shape)}: they must "
            "have the targets' shape and one more dimension, the classes"
        )
    return scores.float(), targets


def outline(value: Any) -> str:
    inner = f" of {', '.join(type(v).__name__ for v in value)}" if isinstance(value, (tuple, list)) else ""
    return type(value).__name__ + inner


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross entropy over the targets asked, in float32."""
    scores, targets = _answers(model, batch)
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=UNASKED)


@torch.no_grad()
def score(model: nn.Module, batch: Any) -> Scores:
    """The same per example; the model stays in the mode it is in."""
    scores, targets = _answers(model, batch)
    each = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=UNASKED, reduction="none")
    asked = (targets != UNASKED).view(len(targets), -1)
    right = (scores.argmax(-1) == targets).view(len(targets), -1) & asked
    return Scores(each.view(len(targets), -1).double().sum(1) / asked.sum(1).clamp(min=1), asked.sum(1), right.sum(1))


class Task(ABC):
    """Training batches, a fixed held-out part, and what a model needs to know of them."""

    name: str
    unit: str  # of the loss
    batch_size: int  # a proposal
    settings: dict[str, Any]  # of normlab.TransformerConfig: what the data imposes, and sizes as a proposal
    sources: dict[str, str]  # what was read -> sha256
    blind: float | None  # held-out loss of the best predictor that never sees the input; None: unknown
    num_training: int  # different examples; 0: unknown
    num_held_out: int

    @abstractmethod
    def batch(self, seed: int, step: int, size: int) -> Any:
        """The training batch of step 1, 2, ...: the same arguments give the same bits in any process."""

    @abstractmethod
    def held_out(self, size: int, limit: int | None = None) -> list[Any]:
        """The held-out examples in batches; ``limit`` of them, evenly spread over all, if given."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch)

    def score(self, model: nn.Module, batch: Any) -> Scores:
        return score(model, batch)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DataTask(Task):
    """A task whose examples can be told apart."""

    name: str
    unit: str
    batch_size: int
    settings: dict[str, Any]
    sources: dict[str, str]
    blind: float
    num_training: int
    num_held_out: int
    draw: Callable[[int, int, int], Batch]  # seed, step, size
    pick: Callable[[Tensor], Batch]  # by numbers of held-out examples

    def batch(self, seed: int, step: int, size: int) -> Batch:
        check_positive(step=step, size=size)
        return self.draw(seed, step, size)

    def held_out(self, size: int, limit: int | None = None) -> list[Batch]:
        count = self.num_held_out if limit is None else min(limit, self.num_held_out)
        check_positive(size=size, limit=count)
        return [self.pick(part) for part in (torch.arange(count) * self.num_held_out // count).split(size)]


def check_positive(**numbers: Any) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {number!r}")


def generator_of(*key: object) -> torch.Generator:
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def one_in(parts: int, content: bytes) -> bool:
    """True for one of ``parts`` contents, the same ones everywhere."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % parts == 0


def blind_loss(training: Tensor, held_out: Tensor) -> float:
    """Mean of -log(frequency in training) over held-out targets, from how often each occurs. Training counts one more
    of each, so that a target that occurs only held out costs much and not infinitely much."""
    known = training.double() + 1
    return float(-(held_out.double() * (known / known.sum()).log()).sum() / held_out.sum())


def byte_rows(rows: Sequence[bytes], length: int) -> Tensor:
    """(rows, length) ids, zero after the end."""
    joined = bytearray().join(row.ljust(length, b"\0") for row in rows)
    return torch.frombuffer(joined, dtype=torch.uint8).view(len(rows), length).long()
