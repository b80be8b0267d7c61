"""All of a sweep's trials to one answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from .. import runs
from ..errors import unknown
from ..runs import Cell, Grid, Summary, TrialResult
from .numbers import cell_of, counted, loss_of, mean_curve, steps_to
from .pairs import Pairs
from .verdict import verdict


def answer(
    grid: Grid, trials: Iterable[TrialResult], *, baseline: str | None = None, target_loss: float | None = None,
    margin: float | None = None,
) -> Summary:  # fmt: skip
    """The answer of a sweep, from what it compares and the trials that ended; missing trials make it a partial one.

    ``baseline``: a cell's name, instead of the grid's own. ``target_loss``: for steps_to_target, instead of the baseline's mean.
    ``margin``: differences whose whole interval lies within it, on both sides of zero, are called equal.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise ValueError(f"a margin must be a finite number above 0, got {margin}")
    by_name = grid.cells()
    if baseline is not None and baseline not in by_name:
        raise ValueError(unknown("cell", baseline, by_name))
    planned = list(itertools.product(by_name, grid.rates, grid.seeds))
    known = {(t.cell, t.lr, t.seed): t for t in map(counted, trials)}
    ended = [known[key] for key in planned if key in known]
    cells, at_best = [], {}
    for name, axes in by_name.items():
        cell, at_best[name] = cell_of(name, axes, [t for t in ended if t.cell == name], grid.rates, grid.blind)
        cells.append(cell)
    cells.sort(key=lambda c: math.inf if c.mean is None else c.mean)

    able = [c.name for c in cells if c.mean is not None]
    pairs = Pairs({n: {seed: loss_of(t) for seed, t in at_best[n].items()} for n in able}, margin)
    best = pairs.best(able)
    named = baseline or next((name for name, axes in by_name.items() if axes == grid.baseline), None)
    chosen = named or best or (cells[0].name if cells else None)
    if target_loss is None:
        target_loss = next((c.mean for c in cells if c.name == chosen), None)

    def ranked(rank: int, cell: Cell) -> Cell:
        steps = None
        if target_loss is not None:
            steps = steps_to(mean_curve([t.curve for t in at_best[cell.name].values()]), target_loss)
        behind = pairs.between(cell.name, best)
        tied = cell.name in able and cell.name != best and not (behind is not None and behind.decided)
        return replace(
            cell,
            rank=rank,
            steps=grid.steps.get(cell.name, cell.axes.get("steps", grid.base.get("steps"))),
            difference=pairs.between(cell.name, chosen),
            behind_best=behind,
            tied_with_best=tied,
            steps_to_target=steps,
        )

    found = Summary(
        task=grid.base.get("task"), unit=grid.unit, blind=grid.blind, steps=grid.base.get("steps"), equal=grid.equal, created=grid.created,
        machine=grid.machine, complete=len(ended) == len(planned) and all(t.outcome != "failed" for t in ended),
        baseline=chosen, best=best, margin=margin, target_loss=target_loss, trials=tuple(ended), refused=grid.refused,
        cells=tuple(ranked(rank, cell) for rank, cell in enumerate(cells, start=1)),
    )  # fmt: skip
    return replace(found, verdict=verdict(found, grid, pairs))


def read(
    folder: str | Path, *, baseline: str | None = None, target_loss: float | None = None, margin: float | None = None
) -> Summary:
    """The answer of the sweep in this folder, as far as its trials have come."""
    return answer(*runs.read_trials(folder), baseline=baseline, target_loss=target_loss, margin=margin)
