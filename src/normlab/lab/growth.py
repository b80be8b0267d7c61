"""A sweep that grows: further seeds, rates and cells beside what is finished, which stays as it is.

Who looks at an answer and then adds seeds or rates has given chance another try, so the sweep remembers its earlier looks and later
intervals are wider (:attr:`normlab.runs.Grid.share`). New cells are no new look at the old ones: the intervals of an answer hold for all
of its pairs, the new ones among them.

Naming what is already there changes nothing: the same command again, after a kill, goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runs import LR, SEED, WITHIN_CELLS, holds_summary, read_grid, write_grid
from .equal import equalized
from .folders import sole_writer
from .sweep import Agenda, Sweep, checked, finished


def more_seeds(sweep: Sweep, total: int) -> list[int]:
    """The sweep's seeds and those that follow, in all so many."""
    seeds = list(sweep.within(SEED))
    if total < len(seeds):
        raise ValueError(f"the sweep has {len(seeds)} seeds, and a sweep can only grow; got {total}")
    return seeds + [max(seeds) + 1 + i for i in range(total - len(seeds))]


def next_round(seeds: int) -> int:
    """How many seeds in all come after so many: half as many again, so that rounds are few and none is long for nothing."""
    return seeds + max(2, seeds // 2)


def grown(sweep: Sweep, values: Mapping[str, Sequence[Any]], *, looked: bool) -> Sweep:
    """With these values of its axes too. ``looked``: at an answer of the sweep as it was.

    Further seeds go to the best rate of each cell: the rates are chosen on the seeds there were first.

    >>> small = Sweep(axes={"norm": ["layer", "rms"], "lr": [1e-3, 1e-2], "seed": [0, 1, 2]})
    >>> large = grown(small, {"norm": ["scale"], "seed": more_seeds(small, 5)}, looked=True)
    >>> large.axes["norm"], large.axes["seed"], large.first_seeds, large.looks
    (['layer', 'rms', 'scale'], [0, 1, 2, 3, 4], 3, (3,))
    """
    axes: dict[str, Sequence[Any]] = dict(sweep.axes)
    grew = set()
    for name, wanted in values.items():
        if name not in axes and name not in WITHIN_CELLS:
            raise ValueError(
                f"{name} is no axis of this sweep, which varies {', '.join(sweep.axes)}: start another sweep"
            )
        had = sweep.within(name) if name in WITHIN_CELLS else axes[name]
        known = {json.dumps(v) for v in had}
        new = [v for v in wanted if json.dumps(v) not in known]
        if new:
            axes[name] = [*had, *new]
            grew.add(name)
    first, looks, count = sweep.first_seeds, tuple(sweep.looks), len(sweep.within(SEED))
    if SEED in grew and first is None:
        first = count
    if looked and grew & {LR, SEED}:
        looks += (count,)
    baseline = sweep.baseline or sweep.cells()[0]
    return replace(sweep, axes=axes, first_seeds=first, looks=looks, baseline=baseline, refused=())


def answered(sweep: Sweep, folder: Path) -> bool:
    """Has there been an answer to look at: was one written, or has everything ended?"""
    agenda = Agenda(sweep, finished(folder, sweep.trials())[0])
    return holds_summary(folder) or not (agenda.queue or agenda.later)


def extended(folder: Path, values: Mapping[str, Sequence[Any]], *, write: bool = True) -> Sweep:
    """The sweep in this folder, grown, and so written. One writer at a time; a kill leaves the old file or the new one."""
    if not write:
        sweep = Sweep.read(folder)
        return equalized(checked(grown(sweep, values, looked=answered(sweep, folder))), sweep.equal)
    read_grid(folder)  # no lock in a folder without a sweep
    with sole_writer(folder):
        sweep = Sweep.read(folder)
        larger = equalized(checked(grown(sweep, values, looked=answered(sweep, folder))), sweep.equal)
        if larger.to_dict() != sweep.to_dict():
            asked = larger.grid()
            write_grid(folder, replace(read_grid(folder), axes=asked.axes, baseline=asked.baseline, refused=asked.refused,
                                       first_seeds=asked.first_seeds, looks=asked.looks, steps=asked.steps))  # fmt: skip
    return Sweep.read(folder)
