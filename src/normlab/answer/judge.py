"""All of a sweep's trials to one answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import unknown
from .numbers import Answer, Grid, cell_of, clean, compared, entry, mean_curve, steps_to
from .verdict import verdict


def answer(
    sweep: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], *, baseline: str | None = None,
    target_loss: float | None = None,
) -> Answer:  # fmt: skip
    """The answer of a sweep, from its sweep.json and its trials' entries; missing trials make it a partial one.

    ``baseline``: a cell's name, instead of the sweep's own. ``target_loss``: for steps_to_target, instead of the baseline's mean.
    """
    grid, base = Grid.of(sweep), sweep.get("base") or {}
    if baseline is not None and baseline not in grid.cells:
        raise ValueError(unknown("cell", baseline, grid.cells))
    planned = list(itertools.product(grid.cells, grid.rates, grid.seeds))
    known = {(t["cell"], t["lr"], t["seed"]): t for t in map(entry, trials)}
    ended = [known[key] for key in planned if key in known]
    cells, at_best = [], {}
    for name, axes in grid.cells.items():
        cell, at_best[name] = cell_of(name, axes, [t for t in ended if t["cell"] == name], grid.rates)
        cells.append(cell)
    cells.sort(key=lambda c: math.inf if c["mean"] is None else c["mean"])
    by_name = {c["cell"]: c for c in cells}

    given = baseline or next((n for n, axes in grid.cells.items() if axes == sweep.get("baseline")), None)
    chosen = given or (cells[0]["cell"] if cells else None)
    able = [c["cell"] for c in cells if c["mean"] is not None]
    pairs = len(able) * (len(able) - 1) // 2
    against = compared(chosen, able, at_best, None if chosen == given else pairs)
    top = able[0] if able else None
    with_top = against if top == chosen else compared(top, able, at_best, pairs)
    if chosen in with_top:  # one pair, one decision: the baseline's
        with_top[chosen] = against[str(top)]
    if target_loss is None and chosen is not None:
        target_loss = by_name[chosen]["mean"]
    for rank, cell in enumerate(cells, start=1):
        name = cell["cell"]
        cell["rank"] = rank
        cell["difference"] = against.get(name)
        cell["tied_with_best"] = name in with_top and not (with_top[name] or {}).get("decided")
        if target_loss is not None:
            cell["steps_to_target"] = steps_to(
                mean_curve([t["curve"] or [] for t in at_best[name].values()]), target_loss
            )

    complete = len(ended) == len(planned) and all(t["outcome"] != "failed" for t in ended)
    found = Answer(
        task=base.get("task"), unit=sweep.get("unit"), blind=clean(sweep.get("blind")), steps=base.get("steps"),
        created=sweep.get("created"), machine=clean(sweep.get("machine")), complete=complete, baseline=chosen,
        target_loss=clean(target_loss), trials=ended, cells=cells, refused=grid.refused, verdict={},
    )  # fmt: skip
    return replace(found, verdict=verdict(found, grid, at_best, chosen == given))
