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
from .numbers import cell_of, loss_of, mean_curve, steps_to
from .pairs import Pairs
from .stages import allotted, counted
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
    known = {(t.cell, t.lr, t.seed): t for t in map(counted, trials)}
    ended = [known[key] for key in itertools.product(by_name, grid.rates, grid.seeds) if key in known]
    cells, at_best, outstanding = [], {}, 0
    for name, axes in by_name.items():
        its = [t for t in ended if t.cell == name]
        cell, at_best[name] = cell_of(name, axes, its, grid.rates, grid.seeds, grid.first_seeds, grid.blind)
        cells.append(cell)
        had = {(t.lr, t.seed): t for t in its if t.lr is not None and t.seed is not None}
        to_have = allotted(grid.rates, grid.seeds, grid.first_seeds, had, grid.blind)
        outstanding += sum(key not in had for key in to_have.due) + to_have.later
    cells.sort(key=lambda c: math.inf if c.mean is None else c.mean)

    able = [c.name for c in cells if c.mean is not None]
    pairs = Pairs({n: {seed: loss_of(t) for seed, t in at_best[n].items()} for n in able}, margin, grid.share)
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
            difference=pairs.between(cell.name, chosen),
            behind_best=behind,
            tied_with_best=tied,
            steps_to_target=steps,
        )

    found = Summary(
        task=grid.base.get("task"), unit=grid.unit, blind=grid.blind, steps=grid.base.get("steps"), created=grid.created,
        machine=grid.machine, complete=not outstanding and all(t.outcome != "failed" for t in ended),
        planned=len(ended) + outstanding, looks=grid.looks, wrong=grid.wrong,
        baseline=chosen, best=best, margin=margin, target_loss=target_loss, trials=tuple(ended), refused=grid.refused,
        cells=tuple(ranked(rank, cell) for rank, cell in enumerate(cells, start=1)),
    )  # fmt: skip
    return replace(found, verdict=verdict(found, grid, pairs))


def read(
    folder: str | Path, *, baseline: str | None = None, target_loss: float | None = None, margin: float | None = None
) -> Summary:
    """The answer of the sweep in this folder, as far as its trials have come."""
    return answer(*runs.read_trials(folder), baseline=baseline, target_loss=target_loss, margin=margin)


def settled(found: Summary, against: str = "best") -> bool:
    """Is every cell that trained told apart from the best (or from the ``baseline``), or equal to it within the margin?

    Without a mean of the best or the baseline there is nothing that seeds could decide.
    """
    if against not in ("best", "baseline"):
        raise ValueError(f"a question is about the best or the baseline, got {against!r}")
    reference = found.best if against == "best" else found.baseline
    able = {c.name: c.behind_best if against == "best" else c.difference for c in found.cells if c.mean is not None}
    if reference not in able:
        return True
    return all(d is not None and (d.decided or d.equal) for name, d in able.items() if name != reference)
