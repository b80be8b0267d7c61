"""What `normlab compare` is told about seeds and about growing: 3+2, +power, until decided, 20m."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import named_values, values_of
from .words import Words, words_in

if TYPE_CHECKING:
    from ..lab.sweep import Message, Notify, Plan, Sweep, Trial
    from ..runs import Summary

QUESTIONS = {"decided": "best", "baseline": "baseline"}  # --until: what each cell is to be told apart from
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


class TimeSpent(Exception):
    """--time-limit is over."""


def seeds_of(text: str, first_seed: int = 0) -> tuple[list[int], int | None]:
    """(the seeds, how many of them every rate gets): 3 is a complete grid, 3+2 gives the best rates two more."""
    match = re.fullmatch(r"(\d+)(?:\+(\d+))?", text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"--seeds must be at least 1, as 3 or as 3+2, got {text!r}")
    if first_seed < 0:
        raise ValueError(f"--first-seed must be at least 0, got {first_seed}")
    first, further = int(match[1]), None if match[2] is None else int(match[2])
    seeds = list(range(first_seed, first_seed + first + (further or 0)))
    return seeds, None if further is None else first


def seconds_of(text: str) -> float:
    """Of 90, 90s, 20m, 1h30m."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    found = (
        0.0 if parts is None else sum(float(n or 0) * u for n, u in zip(parts.groups(), _UNITS.values(), strict=True))
    )
    if found <= 0:
        raise ValueError(f"--time-limit needs a time such as 90s, 20m or 1h30m, got {text!r}")
    return found


def added_values(args: argparse.Namespace, sweep: Sweep) -> dict[str, list[Any]]:
    """{axis: values} that the options add to a sweep that is resumed: --norm +power, --lr +1e-1, --vary num_layers=+8, --seeds 5 or +2."""
    from ..lab.growth import more_seeds
    from ..runs import LR, SEED

    asked: dict[str, str] = {"norm": args.norm, "placement": args.placement, LR: args.lr}
    asked = {name: text for name, text in asked.items() if text is not None} | named_values(args.vary, "--vary")
    found: dict[str, list[Any]] = {}
    for name, text in asked.items():
        if not text.startswith("+"):
            option = f"--{name} +{text}" if name in ("norm", "placement", LR) else f"--vary {name}=+{text}"
            raise ValueError(f"--resume goes on with the sweep as it is; to add to it write {option}")
        words = [word.strip().removeprefix("+") for word in text.split(",")]
        found[name] = words if name in ("norm", "placement") else values_of(",".join(words))
        if name == LR and not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in found[name]):
            raise ValueError(f"--lr needs numbers separated by commas, got {text!r}")
    if args.seeds is not None:
        found[SEED] = more_seeds(sweep, _total(args.seeds, sweep))
    return found


def _total(text: str, sweep: Sweep) -> int:
    """Of --seeds with --resume: 5 (in all), +2 (two more) or 3+2 (where every rate has 3)."""
    from ..runs import SEED

    had = len(sweep.within(SEED))
    match = re.fullmatch(r"(\d+)?(?:\+(\d+))?", text.strip())
    if match is None or not text.strip():
        raise ValueError(f"--seeds with --resume is their number in all, such as 5, or +2 for two more; got {text!r}")
    if match[1] is None:
        return had + int(match[2])
    first = had if sweep.first_seeds is None else sweep.first_seeds
    if match[2] is not None and int(match[1]) != first:
        raise ValueError(
            f"--seeds {text}: every rate of this sweep has {first} seeds, which stays; write {first}+{match[2]}"
        )
    return int(match[1]) + int(match[2] or 0)


def describe(planned: Plan, words: Words) -> str:
    """The cells of a plan, one line each, with their trials: what --dry-run adds."""
    ended: dict[str, int] = {}
    total: dict[str, int] = {}
    for trial in planned.sweep.trials():
        total[trial.cell] = total.get(trial.cell, 0) + 1
        ended[trial.cell] = ended.get(trial.cell, 0) + (trial.name in planned.done)
    width = max(map(len, total))
    rates = ", ".join(f"{lr:g}" for lr in planned.sweep.within("lr"))
    seeds = ", ".join(map(str, planned.sweep.within("seed")))
    rows = [words("cell", cell=f"{cell:<{width}}", ended=ended[cell], most=most) for cell, most in total.items()]
    return "\n".join([words("rates", rates=rates), words("seeds", seeds=seeds), words("cells"), *rows])


def stopping_at(deadline: float | None, notify: Notify) -> Notify:
    """Raises TimeSpent at the first word after the deadline; running trials are then saved."""
    if deadline is None:
        return notify

    def hear(kind: str, trial: Trial, message: Message) -> None:
        notify(kind, trial, message)
        if time.monotonic() > deadline:
            raise TimeSpent

    return hear


def next_look(
    folder: Path, sweep: Sweep, found: Summary, question: str, left: float, workers: int, tell: Callable[[str], None],
    language: str = "en",
) -> Sweep | None:  # fmt: skip
    """The sweep grown by a round of seeds; None if the question is decided, or the round would not end in the time that is left."""
    from .. import answer
    from ..lab.growth import extended, more_seeds, next_round
    from ..lab.told import duration
    from ..lab.work import START_SECONDS
    from ..runs import SEED

    words, seeds = words_in(language), len(sweep.within(SEED))
    if answer.settled(found, QUESTIONS[question]):
        or_equal = "" if found.margin is None else words("or_equal", margin=found.margin)
        tell(words("decided", seeds=seeds, whom=words(QUESTIONS[question]), or_equal=or_equal))
        return None
    total = next_round(seeds)
    took = [t.seconds for t in found.trials if t.seconds is not None]
    trials = sum(c.mean is not None for c in found.cells) * (total - seeds)
    needed = START_SECONDS + sum(took) / max(1, len(took)) * trials / max(1, min(workers, trials))
    if needed > left:
        times = {"needed": duration(needed, language), "left": duration(max(0.0, left), language)}
        tell(words("too_long", seeds=seeds, total=total, **times))
        return None
    tell(words("next_round", seeds=seeds, total=total))
    return extended(folder, {SEED: more_seeds(sweep, total)})
