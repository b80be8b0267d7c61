"""What cells are given alike: steps, samples, tokens or seconds.

A schedule needs the number of steps before the first one, so what is made equal is turned into steps per cell when a sweep is planned,
and those stand in sweep.json. The measure is the base experiment: what its ``steps`` steps see or take, every cell gets, to the
nearest whole step and never less than one. Seconds are timed on this machine at that moment: another time gives other steps, so
sweeps at equal seconds cannot be repeated bit for bit, while each of their trials can.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from ..errors import unknown
from ..runs import EQUAL, cell_name, same
from . import tasks
from .batches import tokens_of
from .experiment import Experiment
from .parts import task_of
from .sweep import Sweep, Trial
from .work import measure

DRAWN = 8  # batches whose mean is the number of tokens in a step: lines differ in length


def equalized(sweep: Sweep, how: str) -> Sweep:
    """The sweep with as many steps for each cell as make ``how`` the same for all; cells that have their steps keep them."""
    if how not in EQUAL:
        raise ValueError(unknown("measure", how, EQUAL))
    if how == "steps":
        return sweep
    if "steps" in sweep.axes:
        raise ValueError(f"steps are varied, so they cannot follow from equal {how}; leave one of them out")
    if sweep.base.task == "own":
        raise ValueError(
            f"equal {how} needs one of the lab's tasks: batches of your own have sizes that it does not know"
        )
    shut = {same(refused.axes) for refused in sweep.refused}
    cells = {cell_name(axes): sweep.base.changed(**axes) for axes in sweep.cells() if same(axes) not in shut}
    missing = {name: experiment for name, experiment in cells.items() if name not in sweep.steps}
    if not missing:
        return sweep
    base, *each = _amounts([sweep.base, *missing.values()], how)
    found = {name: max(1, round(sweep.base.steps * base / amount)) for name, amount in zip(missing, each, strict=True)}
    return replace(sweep, equal=how, steps={**sweep.steps, **found})


def _amounts(experiments: list[Experiment], how: str) -> list[float]:
    """What one step of each takes."""
    if how == "seconds":
        trials = [Trial(str(i), str(i), {}, experiment) for i, experiment in enumerate(experiments)]
        took = measure(trials, seconds=float("inf"))
        return [took[trial.cell].step_seconds for trial in trials]
    return [float(_size(e)) if how == "samples" else _tokens(e) for e in experiments]


def _size(experiment: Experiment) -> int:
    return experiment.batch_size or task_of(experiment).batch_size


def _tokens(experiment: Experiment) -> float:
    task = task_of(experiment)
    assert isinstance(task, tasks.DataTask)
    return statistics.fmean(tokens_of(task.batch(0, step, _size(experiment))) for step in range(1, DRAWN + 1))
