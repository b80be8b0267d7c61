"""A user's own model and data as a task."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from .. import texts
from .base import Scores, Task, check_positive, loss, outline

HELD_OUT_SEED = 2**31 - 1  # for data that knows no splits; no trial may use it
MOST_HELD_OUT = 64  # batches, for data that never ends


@final
class OwnTask(Task):
    """Batches from ``make_data(seed)``; the loss from ``make_loss(model, batch)`` or, for pairs, cross entropy.

    If ``make_data`` has a parameter ``split``, it is given "train" or "held-out"; otherwise the held-out batches are
    those of HELD_OUT_SEED. The seed must decide the data, or trials cannot be compared. Sizes are the data's own; what
    ``held_out`` limits and ``score`` judges is a batch. A pass that ends is followed by another ``make_data(seed)``.

    A loader that draws from torch's global random numbers (as a shuffling DataLoader does) draws from a stream of its own, started
    from the seed: dropout and the data cannot disturb each other, and a resumed run finds the order it had.
    """

    name, unit, batch_size, blind = "own", "own loss", 1, None
    num_training = num_held_out = 0

    def __init__(
        self, make_data: Callable[..., Iterable[Any]], make_loss: Callable[[nn.Module, Any], Tensor] | None = None
    ) -> None:
        self.make_data, self.make_loss = make_data, make_loss
        self.settings, self.sources = {}, {}
        for function in (make_data, make_loss):
            if function is not None and not callable(function):
                raise TypeError(f"make_data and make_loss must be functions, got {type(function).__name__}")
            if inspect.isfunction(function):
                with contextlib.suppress(OSError):  # what was typed at a prompt has no source
                    digest = texts.sha256(inspect.getsource(function).encode())
                    self.sources[f"{function.__module__}:{function.__qualname__}"] = digest
        self._at: dict[int, tuple[int, Any, Iterator[Any]]] = {}  # seed -> last step, its batch, those after it
        self._held_out: dict[int, list[Any]] = {}
        self._random: dict[int, Tensor] = {}  # seed -> state of torch's random numbers as its loader left them

    @contextlib.contextmanager
    def _own_random(self, seed: int) -> Iterator[None]:
        before = torch.get_rng_state()
        own = self._random.get(seed)
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state() if own is None else own)
        try:
            yield
        finally:
            self._random[seed] = torch.get_rng_state()
            torch.set_rng_state(before)

    def _pass(self, seed: int, split: str) -> Iterator[Any]:
        takes_split = "split" in inspect.signature(self.make_data).parameters
        batches = self.make_data(seed, split=split) if takes_split else self.make_data(seed)
        if not isinstance(batches, Iterable):
            raise TypeError(f"make_data must return something to iterate over, got {type(batches).__name__}")
        return iter(batches)

    def _endless(self, seed: int) -> Iterator[Any]:
        for number in itertools.count(1):
            empty = True
            for batch in self._pass(seed, "train"):
                empty = False
                yield batch
            if empty:
                raise ValueError(
                    f"pass {number} of make_data({seed}) yielded no batch; each call must return fresh data, not an "
                    "iterator that an earlier call returned and that is used up"
                )

    def batch(self, seed: int, step: int, size: int) -> Any:
        check_positive(step=step)
        if seed == HELD_OUT_SEED:
            raise ValueError(f"seed {seed} is kept for held-out data; use another")
        at, batch, batches = self._at.pop(seed, (0, None, iter(())))  # popped: what breaks starts again
        if at == 0 or step < at:
            at, batches = 0, self._endless(seed)
            self._random.pop(seed, None)
        with self._own_random(seed):
            for _ in range(step - at):  # a resumed trial passes over what it has seen
                batch = next(batches)
        self._at[seed] = (step, batch, batches)
        return batch

    def held_out(self, size: int, limit: int | None = None) -> list[Any]:
        """The first ``limit`` batches, at most 64; drawn once, so that data which ignores its seed stays fixed."""
        count = MOST_HELD_OUT if limit is None else min(limit, MOST_HELD_OUT)
        check_positive(limit=count)
        if count not in self._held_out:
            self._random.pop(HELD_OUT_SEED, None)
            with self._own_random(HELD_OUT_SEED):
                self._held_out[count] = list(itertools.islice(self._pass(HELD_OUT_SEED, "held-out"), count))
        if not self._held_out[count]:
            raise ValueError("make_data yielded no held-out batch")
        return self._held_out[count]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.make_loss is None:
            return loss(model, batch)
        value = self.make_loss(model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError(f"make_loss must return a tensor with one value, got {outline(value)}")
        return value.reshape(())

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Any) -> Scores:
        return Scores(self.loss(model, batch).double()[None], torch.ones(1, dtype=torch.long), None)
