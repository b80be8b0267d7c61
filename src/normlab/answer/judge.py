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
from .inside import Look, looking_into, traits_of
from .metrics import METRICS, common_target, estimates, values_of
from .numbers import cell_of, mean_curve, steps_to
from .pairs import Pairs
from .stages import allotted, counted
from .verdict import verdict


def answer(
    grid: Grid, trials: Iterable[TrialResult], *, baseline: str | None = None, target_loss: float | None = None,
    margin: float | None = None, metric: str = "loss", look: Look = lambda trial: {},
) -> Summary:  # fmt: skip
    """The answer of a sweep, from what it compares and the trials that ended; missing trials make it a partial one.

    ``baseline``: a cell's name, instead of the grid's own. ``target_loss``: for steps_to_target, instead of the baseline's mean.
    ``metric``: what is ranked and compared, one of METRICS; rates are chosen by the loss in any case. ``look``: what probes saw inside a trial.
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
    judged = METRICS[metric]
    # One that all of them reach, where no other is asked for.
    common = (
        common_target(t for those in at_best.values() for t in those.values()) if target_loss is None else target_loss
    )
    cells = [replace(c, figures=estimates(at_best[c.name], common)) for c in cells]

    def place(cell: Cell) -> float:
        if cell.mean is None or metric not in cell.figures:
            return math.inf
        return cell.figures[metric].mean * (1 if judged.lower else -1)

    cells.sort(key=place)
    able = [c.name for c in cells if c.mean is not None and metric in c.figures]
    if not able and any(c.mean is not None for c in cells):
        raise ValueError(f"no trial of this sweep has a number for the metric {metric!r}")
    pairs = Pairs({n: values_of(judged, at_best[n], common) for n in able}, margin, grid.share, lower=judged.lower)
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
            traits=traits_of(at_best[cell.name].values(), look),
        )

    found = Summary(
        task=grid.base.get("task"), unit=grid.unit, blind=grid.blind, steps=grid.base.get("steps"), equal=grid.equal, created=grid.created,
        machine=grid.machine, complete=not outstanding and all(t.outcome != "failed" for t in ended),
        planned=len(ended) + outstanding, looks=grid.looks, wrong=grid.wrong,
        baseline=chosen, best=best, metric=metric, margin=margin, target_loss=target_loss, common_target=common, trials=tuple(ended), refused=grid.refused,
        cells=tuple(ranked(rank, cell) for rank, cell in enumerate(cells, start=1)),
    )  # fmt: skip
    return replace(found, verdict=verdict(found, grid, pairs))


def read(
    folder: str | Path, *, baseline: str | None = None, target_loss: float | None = None, margin: float | None = None,
    metric: str = "loss",
) -> Summary:  # fmt: skip
    """The answer of the sweep in this folder, as far as its trials have come."""
    look = looking_into(Path(folder))
    how = {"baseline": baseline, "target_loss": target_loss, "margin": margin, "metric": metric}
    return answer(*runs.read_trials(folder), look=look, **how)  # type: ignore[arg-type]


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
