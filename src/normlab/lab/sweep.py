"""A comparison: every norm, placement and whatever else is varied, at every learning rate, with every seed.

The grid is complete and balanced, and all cells share seeds and data order, so that differences are paired. A trial's folder is
its only record: what is finished is what the folders say, and resuming is planning again and leaving those out.

What lies where in the folder is known to :mod:`normlab.runs`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from .. import __version__
from ..errors import RunUnreadable, require, unknown
from ..runs import (
    INFO,
    LR,
    READINGS,
    SEED,
    SWEEP,
    WITHIN_CELLS,
    Axes,
    Grid,
    Refused,
    Result,
    Run,
    cell_name,
    finished_result,
    holds_sweep,
    outer,
    plain,
    read_grid,
    same,
    trial_folder,
    write_grid,
)
from .experiment import CODE, Experiment
from .folders import LOCK, sole_writer

LONGEST = 200  # bytes of a trial's name; file systems take 255
START_SECONDS = 3.0  # until a worker has loaded torch


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str
    cell: str
    axes: Axes
    experiment: Experiment


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """``axes``: {field of the experiment, or setting of its model: values}. lr and seed are axes too.

    >>> sweep = Sweep(base=Experiment(steps=5), axes={"norm": ["layer", "rms"], "lr": [1e-3, 1e-2], "seed": [0, 1, 2]})
    >>> len(sweep.trials()), sweep.trials()[0].name
    (12, 'layer-lr0.001-seed0')
    """

    base: Experiment = field(default_factory=Experiment)
    axes: Mapping[str, Sequence[Any]]
    baseline: Axes | None = None  # the cell others are compared with; None: the first
    refused: Sequence[Refused] = ()  # cells that cannot be built
    equal: str = "steps"  # what all cells are given alike, one of EQUAL
    steps: Mapping[str, int] = field(
        default_factory=dict
    )  # of cells, by name, where these follow from it; see lab.equal

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if isinstance(values, (str, bytes)) or not values:
                raise ValueError(f"axis {name!r} needs a list of at least one value, got {values!r}")
            if len({json.dumps(v) for v in values}) != len(values):
                raise ValueError(f"axis {name!r} names a value twice: {list(values)!r}")
            if name == "task" and len(values) > 1:
                raise ValueError(
                    "losses of several tasks have several units and cannot be ranked; run one sweep per task"
                )
            for value in values:
                self.base.changed(**{name: value})
        names = [trial.name for trial in self.trials()]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"two trials would share the folder {twice!r}: values of an axis must differ in letters or digits"
            )
        if self.baseline is not None and self.baseline not in self.cells():
            known = "; ".join(cell_name(cell) for cell in self.cells())
            raise ValueError(f"the baseline {dict(self.baseline)} is none of the cells: {known}")

    def cells(self) -> list[dict[str, Any]]:
        """Refused ones included."""
        names = outer(self.axes)
        values = itertools.product(*(self.axes[name] for name in names))
        return [dict(zip(names, chosen, strict=True)) for chosen in values]

    def trials(self) -> list[Trial]:
        """Seeds outermost: a sweep cut short leaves whole grids."""
        inner = {name: self.axes.get(name, [getattr(self.base, name)]) for name in WITHIN_CELLS}
        shut = {same(r.axes) for r in self.refused}
        found = []
        for seed, axes, lr in itertools.product(inner[SEED], self.cells(), inner[LR]):
            if same(axes) in shut:
                continue
            words = [plain(v) if k in ("norm", "placement") else plain(k) + plain(v) for k, v in axes.items()]
            name = _folder_name("-".join([*words, LR + plain(lr), SEED + plain(seed)]))
            cell = cell_name(axes)
            steps = {"steps": self.steps[cell]} if cell in self.steps else {}
            found.append(Trial(name, cell, axes, self.base.changed(**axes, **steps, lr=lr, seed=seed)))
        return found

    def fewest_and_most_steps(self) -> tuple[int, int]:
        """Of a trial."""
        steps = [*self.steps.values()] or self.axes.get("steps", [self.base.steps])
        return min(steps), max(steps)

    def code(self) -> dict[str, set[str]]:
        """{field: the MODULE:NAME that trials would load and call}."""
        found = {name: {getattr(self.base, name), *self.axes.get(name, ())} - {None} for name in CODE}
        return {name: names for name, names in found.items() if names}

    def grid(self) -> Grid:
        """As sweep.json holds it."""
        baseline = self.baseline or self.cells()[0]
        return Grid(base=self.base.to_dict(), axes=self.axes, baseline=baseline, refused=tuple(self.refused),
                    equal=self.equal, steps=self.steps)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.grid().to_dict()))  # as it will be read again: a pair is a list

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        found = read_grid(folder)
        try:
            base = Experiment.from_dict(found.base)
            return cls(base=base, axes=found.axes, baseline=found.baseline, refused=found.refused, equal=found.equal,
                       steps=found.steps)  # fmt: skip
        except (TypeError, ValueError) as error:
            raise RunUnreadable(
                f"{Path(folder) / SWEEP.file} does not describe a sweep: {type(error).__name__}: {error}"
            ) from error


def _folder_name(name: str) -> str:
    """One that every file system takes: a long value, such as a table of options, is cut and told apart by a sum."""
    data = name.encode()
    return (
        name
        if len(data) <= LONGEST
        else f"{data[: LONGEST - 17].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:16]}"
    )


def checked(sweep: Sweep) -> Sweep:
    """With the cells that cannot be built marked as refused; raises if none can."""
    from ..norms import NORMS
    from ..placements import PLACEMENTS
    from .parts import model_config, task_of

    task = task_of(sweep.base)
    refused = []
    if sweep.base.make_model is None:
        # A name that does not exist is a mistake, and not a combination that cannot be built.
        for axis, known in (("norm", NORMS), ("placement", PLACEMENTS)):
            for name in sweep.axes.get(axis, [getattr(sweep.base, axis)]):
                if name not in known:
                    raise ValueError(unknown(axis, name, known))
        for axes in sweep.cells():
            try:
                model_config(sweep.base.changed(**axes), task)
            except ValueError as error:
                refused.append(Refused(axes=axes, reason=str(error), reason_zh=getattr(error, "chinese", None)))
    if len(refused) == len(sweep.cells()):
        raise ValueError(f"no cell of this sweep can be built: {refused[0].reason}")
    baseline = dict(sweep.baseline or sweep.cells()[0])
    shut = [r.axes for r in refused]
    if baseline in shut:
        baseline = next(cell for cell in sweep.cells() if cell not in shut)
    return replace(sweep, baseline=baseline, refused=refused)


def finished(folder: Path, trials: Sequence[Trial]) -> tuple[dict[str, Result], list[Trial]]:
    """(results of the trials that ended with one, the trials still to run). A run that cannot be read is run again."""
    results, missing = {}, []
    for trial in trials:
        e = trial.experiment
        result = finished_result(trial_folder(folder, trial.name), trial.axes, e.lr, e.seed)
        if result is None:
            missing.append(trial)
        else:
            results[trial.name] = result
    return results, missing


@dataclass(frozen=True, kw_only=True)
class Message:
    """What an engine tells about a trial, by its kind: started; step (with its loss); quiet, lost (why); ended (result)."""

    step: int | None = None
    loss: float | None = None
    reason: str | None = None
    result: Result | None = None


Notify = Callable[[str, Trial, Message], None]  # (kind, trial, message)


class Engine(Protocol):
    """What runs trials: the local pool, or a cluster."""

    def run(self, folder: Path, trials: Sequence[Trial], notify: Notify) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a sweep will do, before it does it."""

    sweep: Sweep
    folder: Path
    done: Mapping[str, Result]
    missing: Sequence[Trial]
    workers: int
    seconds: float | None = None  # estimate for what is missing
    work: Mapping[str, dict[str, float]] = field(default_factory=dict)  # of the cells, see measure
    unknown: str | None = None  # why there is no estimate, if one was tried

    def __str__(self) -> str:
        cells = len(self.sweep.cells()) - len(self.sweep.refused)
        inner = " x ".join(f"{len(self.sweep.axes.get(n, [0]))} {w}" for n, w in ((LR, "rates"), (SEED, "seeds")))
        lines = [f"{cells} cells x {inner} = {len(self.done) + len(self.missing)} trials of {self._steps()}, "
                 f"task {self.sweep.base.task}, {self.workers} at a time"]  # fmt: skip
        if self.sweep.steps:
            lines.append(
                f"cells are compared at equal {self.sweep.equal}, those of {self.sweep.base.steps} steps of the base"
            )
        if self.done:
            lines.append(f"{len(self.done)} are finished and stay as they are")
        lines += [f"refused: {r.name}: {r.reason}" for r in self.sweep.refused]
        if self.seconds is not None and self.missing:
            lines.append(f"estimated time: {duration(self.seconds)}")
        if self.unknown is not None:
            lines.append(f"no estimate of the time: {self.unknown}")
        return "\n".join(lines)

    def _steps(self) -> str:
        low, high = self.sweep.fewest_and_most_steps()
        return f"{low} steps" if low == high else f"{low} to {high} steps"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def measure(trials: Sequence[Trial], seconds: float = 3.0) -> dict[str, dict[str, float]]:
    """{cell: {seconds, evaluation_seconds, flops_per_step, matmul_rate}}: time and arithmetic of a step, time of an evaluation, and
    what the machine's matrix product reaches. For as many cells as can be tried in that time, the first always.
    """
    import torch

    from ..machine import matmul_rate

    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    until = time.perf_counter() + seconds
    found: dict[str, dict[str, float]] = {}
    try:
        for trial in trials:
            if trial.cell not in found and (not found or time.perf_counter() < until):
                torch.set_num_threads(trial.experiment.threads)
                found[trial.cell] = _try(trial.experiment)
        rate = matmul_rate(trials[0].experiment.threads)
        return {cell: {**figures, "matmul_rate": rate} for cell, figures in found.items()}
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _try(experiment: Experiment) -> dict[str, float]:
    from torch.utils.flop_counter import FlopCounterMode

    from .batches import shares
    from .parts import make_model, make_optimizer, task_of

    task = task_of(experiment)
    model, _ = make_model(experiment, task)
    optimizer = make_optimizer(experiment, model)
    size = experiment.batch_size or task.batch_size
    batch = next(shares(task, experiment, 1, size, 0, 1))[0]
    with FlopCounterMode(display=False) as counter:
        task.loss(model, batch).backward()
    optimizer.step()  # the first makes its state
    times = []
    for _ in range(3):
        start = time.perf_counter()
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    step = statistics.median(times) * experiment.accumulate
    # A forward pass is about a third of a step.
    examples = min(experiment.held_out or task.num_held_out, task.num_held_out)
    return {"seconds": step, "evaluation_seconds": step * examples / size / 3,
            "flops_per_step": float(counter.get_total_flops()) * experiment.accumulate}  # fmt: skip


def _estimate(trials: Sequence[Trial], work: Mapping[str, Mapping[str, float]], workers: int) -> float:
    """Seconds for these trials side by side; cells that were not measured are taken for the mean of those that were."""
    known = list(work.values())
    usual = {name: statistics.fmean(figures[name] for figures in known) for name in known[0]}
    total = 0.0
    for trial in trials:
        figures, e = work.get(trial.cell, usual), trial.experiment
        total += e.steps * figures["seconds"] + min(e.evaluations, e.steps) * figures["evaluation_seconds"]
    # Watching, saving and side by side running cost about a fifth; then there is the start of the workers.
    return START_SECONDS + 1.2 * total / max(1, min(workers, len(trials)))


def check_folder(sweep: Sweep, folder: Path) -> None:
    """Raises if the folder holds another sweep or anything else; changes nothing."""
    if holds_sweep(folder):
        if Sweep.read(folder).to_dict() != sweep.to_dict():
            raise ValueError(
                f"{folder} holds another sweep; resume it as it is (--resume {folder}) or choose another folder"
            )
    elif folder.is_dir() and any(p.name not in (LOCK, SWEEP.file + ".partial") for p in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no sweep; choose another folder")


def plan(sweep: Sweep, folder: str | Path, workers: int, *, estimate: bool = True, write: bool = True) -> Plan:
    """Write sweep.json, or check that the folder holds this very sweep, and see what is left to do.

    ``estimate`` trains a few steps here. A model of the user's is not tried: what it does to its process is to happen to a worker's.
    ``write=False`` leaves the disk as it is.
    """
    folder = Path(folder)
    check_folder(sweep, folder)
    if write and not holds_sweep(folder):
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_grid(folder, replace(sweep.grid(), created=created, normlab=__version__))
    done, missing = finished(folder, sweep.trials())
    work: dict[str, dict[str, float]] = {}
    seconds, unknown = None, None
    if estimate and missing and sweep.base.make_model is None:
        try:
            work = measure(missing)
            seconds = _estimate(missing, work, workers)
        except Exception as error:  # the trial itself will fail with it, and its traceback is kept
            unknown = f"{type(error).__name__}: {error}"
    return Plan(sweep, folder, done, missing, workers, seconds, work, unknown)


def run(plan: Plan, engine: Engine, notify: Notify) -> None:
    """Run what is missing. Only one process may do so in a folder at a time."""
    from .checkpoint import NEEDS

    require("training", "lab", *NEEDS)  # here too: in a worker it would be a result, trial by trial
    with sole_writer(plan.folder):
        # Between planning and here another sweep may have finished some of it.
        _, missing = finished(plan.folder, plan.missing)
        for trial in missing:
            _put_aside_unreadable(trial_folder(plan.folder, trial.name))
        if missing:
            engine.run(plan.folder, missing, notify)


def _put_aside_unreadable(at: Path) -> None:
    """What cannot be read would stop its trial from being run again; it is kept under another name."""
    aside = []
    if os.path.lexists(at) and not at.is_dir():
        aside.append(at)
    elif os.path.lexists(at / INFO):
        try:
            Experiment.of_run(Run(at))
        except RunUnreadable:
            aside.append(at / INFO)
    if os.path.lexists(at / READINGS) and not (at / READINGS).is_file():
        aside.append(at / READINGS)
    for path in aside:
        os.replace(path, path.with_name(path.name + ".unreadable"))
