"""The largest stable learning rate of a model, bracketed: by search, with seeds and an interval.

For each seed the rate is raised by factors of ten, then the gap above the last good one is halved (in the logarithm) a
few times. A run is judged by the mean loss of its last tenth: it is stable if every loss is finite and it gives away no
more than a twentieth of what the best rate gained. (Merely ending below the start would not do: a model that has collapsed to
the frequencies of the tokens does that.)
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..intervals import mean_interval

MOST_LOST = 0.05  # of the best rate's gain


@dataclass(frozen=True)
class Bracket:
    """One seed: training was stable at ``stable`` and broke at ``broken`` (None: it did not break up to the last rate)."""

    seed: int
    stable: float | None  # None: no rate lowered the loss
    broken: float | None
    trials: int
    best: float = math.nan  # the rate with the lowest loss at the end, among those tried
    best_loss: float = math.nan


@dataclass(frozen=True)
class LearningRateRange:
    """Brackets of all seeds, and the largest stable rate as a geometric mean with a 95 % interval over seeds."""

    brackets: tuple[Bracket, ...]
    rate: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        lines = [
            f"seed {b.seed}: stable at {_show(b.stable)}, broke at {_show(b.broken)}; lowest loss {b.best_loss:.4g} at "
            f"{_show(b.best)} ({b.trials} runs)"
            for b in self.brackets
        ]
        if self.rate is None:
            lines.append("no largest stable rate: " + _why_none(self.brackets))
        else:
            interval = (
                "" if self.low is None else f", 95 % interval {self.low:.2g} to {self.high:.2g} over {len(lines)} seeds"
            )
            lines.append(f"largest stable learning rate {self.rate:.2g}{interval}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a loss that is not finite, which JSON cannot hold, is None."""
        found = asdict(self)
        for bracket in found["brackets"]:
            bracket.update({k: None for k, v in bracket.items() if isinstance(v, float) and not math.isfinite(v)})
        return found


def _show(rate: float | None) -> str:
    return "no rate tried" if rate is None else f"{rate:.3g}"


def _why_none(brackets: tuple[Bracket, ...]) -> str:
    if any(b.stable is None for b in brackets):
        return "no rate tried lowered the loss; lower them, give more steps, or look at the model"
    return "training did not break at the highest rate tried; raise it"


@contextmanager
def _random_state_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def train(
    model: nn.Module, loss_of: Callable[[nn.Module, Any], Tensor], batches: Iterable[Any], rate: float, steps: int,
    optimizer: Callable[..., torch.optim.Optimizer],
) -> list[float]:  # fmt: skip
    """Losses of a short run at a constant rate; it ends at the first one that is not finite."""
    opt = optimizer(model.parameters(), lr=rate)
    losses: list[float] = []
    model.train()
    for batch in itertools.islice(batches, steps):
        loss = loss_of(model, batch)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    if len(losses) < steps and all(map(math.isfinite, losses)):
        raise ValueError(f"the data ended after {len(losses)} batches, a run needs {steps}; give more, or fewer steps")
    return losses


def lr_range(
    make: Callable[[], nn.Module] | nn.Module,
    loss_of: Callable[[nn.Module, Any], Tensor],
    batches: Callable[[int], Iterable[Any]],
    *,
    lowest: float = 1e-5,
    highest: float = 10.0,
    steps: int = 60,
    seeds: int = 3,
    halvings: int = 3,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    progress: Callable[[str], None] | None = None,
) -> LearningRateRange:
    """Bracket the largest stable learning rate.

    ``make`` builds a fresh model (after the seed was set), or is a model, whose every run starts from a copy; it is not
    changed itself. ``batches(seed)`` gives the data, ``loss_of(model, batch)`` the loss. The random state is as before
    afterwards.

    >>> data = lambda seed: (torch.ones(4, 1) for _ in range(30))
    >>> found = lr_range(lambda: nn.Linear(1, 1), lambda m, x: (m(x) - 5).square().mean(), data, steps=20, seeds=1,
    ...                  optimizer=torch.optim.SGD)
    >>> 0.3 < found.rate < 1
    True
    """
    if not (0 < lowest < highest) or steps < 2 or seeds < 1 or halvings < 0:
        raise ValueError(
            f"need 0 < lowest < highest, steps >= 2, seeds >= 1, halvings >= 0; got {lowest}, {highest}, {steps}, {seeds}, "
            f"{halvings}"
        )
    say = progress or (lambda text: None)
    brackets = []
    with _random_state_kept():
        for seed in range(seeds):
            tried: dict[float, float] = {}
            start = math.nan

            def end_of(rate: float, seed: int = seed, tried: dict[float, float] = tried) -> float:
                """The loss at the end; infinite if training broke."""
                nonlocal start
                torch.manual_seed(seed)
                model = copy.deepcopy(make) if isinstance(make, nn.Module) else make()
                losses = train(model, loss_of, batches(seed), rate, steps, optimizer)
                start = losses[0]
                finite = all(map(math.isfinite, losses))
                tried[rate] = statistics.fmean(losses[-max(1, steps // 10) :]) if finite else math.inf
                say(f"seed {seed}, rate {rate:.3g}: loss {start:.4g} -> {tried[rate]:.4g}")
                return tried[rate]

            rate = lowest
            while rate <= highest * 1.0000001 and math.isfinite(end_of(rate)):
                rate *= 10
            best = min(tried.values())
            limit = best + MOST_LOST * (start - best)
            good = [r for r, loss in tried.items() if loss <= limit and loss < start]
            stable = max(good, default=None)
            broken = None if stable is None else min((r for r in tried if r > stable), default=None)
            for _ in range(halvings if stable is not None and broken is not None else 0):
                assert stable is not None and broken is not None
                middle = math.sqrt(stable * broken)
                if end_of(middle) <= limit:
                    stable = middle
                else:
                    broken = middle
            lowest_loss = min(tried, key=lambda r: tried[r])
            brackets.append(Bracket(seed, stable, broken, len(tried), lowest_loss, tried[lowest_loss]))
    return summarize(tuple(brackets))


def summarize(brackets: tuple[Bracket, ...]) -> LearningRateRange:
    """The middle of each bracket in the logarithm, their mean, and its interval from the spread over seeds.

    The interval is never narrower than the brackets: it covers at least half of one on both sides.
    """
    if any(b.stable is None or b.broken is None for b in brackets):
        return LearningRateRange(brackets, None, None, None)
    pairs = [(math.log(b.stable), math.log(b.broken)) for b in brackets]  # type: ignore[arg-type]
    middles = [(low + high) / 2 for low, high in pairs]
    mean = statistics.fmean(middles)
    if len(middles) == 1:
        return LearningRateRange(brackets, math.exp(mean), None, None)
    _, low, high = mean_interval(middles)
    assert low is not None and high is not None
    half = max((high - low) / 2, statistics.fmean((top - bottom) / 2 for bottom, top in pairs))
    return LearningRateRange(brackets, math.exp(mean), math.exp(mean - half), math.exp(mean + half))
