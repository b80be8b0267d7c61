"""A comparison: every norm, placement and whatever else is varied, at several learning rates, with several seeds.

All cells share seeds and data order, so that differences are paired. Which trials a cell gets is known to :mod:`normlab.answer.stages`: every
rate the first seeds, the best one the further ones. A trial's folder is its only record: what is finished is what the folders say, and
resuming is planning again and leaving those out. What lies where in the folder is known to :mod:`normlab.runs`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from .. import __version__
from ..answer.stages import allotted, counted
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
    check_distinct,
    check_file,
    check_trial_folder,
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
from .told import told
from .work import Work, estimated, measure

LONGEST = 200  # bytes of a trial's name; file systems take 255


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
    first_seeds: int | None = (
        None  # how many of the seeds every rate gets, the best rate all of them; None: a complete grid
    )
    looks: Sequence[int] = ()  # seeds in all when it was answered before and then grew
    sequential: bool = False  # begun as a series of looks
    equal: str = "steps"  # what all cells are given alike, one of EQUAL
    steps: Mapping[str, int] = field(
        default_factory=dict
    )  # of cells, by name, where these follow from it; see lab.equal

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if isinstance(values, (str, bytes)) or not values:
                raise ValueError(f"axis {name!r} needs a list of at least one value, got {values!r}")
            check_distinct(name, values)
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

        self.grid()  # which checks the rest

    def cells(self) -> list[dict[str, Any]]:
        """Refused ones included."""
        names = outer(self.axes)
        values = itertools.product(*(self.axes[name] for name in names))
        return [dict(zip(names, chosen, strict=True)) for chosen in values]

    def trials(self) -> list[Trial]:
        """All that there may be. Seeds outermost: a sweep cut short leaves whole grids."""
        inner = {name: self.within(name) for name in WITHIN_CELLS}
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

    def within(self, name: str) -> Sequence[Any]:
        """The rates or the seeds."""
        return self.axes.get(name, [getattr(self.base, name)])

    def code(self) -> dict[str, set[str]]:
        """{field: the MODULE:NAME that trials would load and call}."""
        found = {name: {getattr(self.base, name), *self.axes.get(name, ())} - {None} for name in CODE}
        return {name: names for name, names in found.items() if names}

    def grid(self) -> Grid:
        """As sweep.json holds it."""
        baseline = self.baseline or self.cells()[0]
        return Grid(base=self.base.to_dict(), axes=self.axes, baseline=baseline, refused=tuple(self.refused),
                    first_seeds=self.first_seeds, looks=tuple(self.looks), sequential=self.sequential,
                    equal=self.equal, steps=self.steps)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.grid().to_dict()))  # as it will be read again: a pair is a list

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        found = read_grid(folder)
        try:
            base = Experiment.from_dict(found.base)
            return cls(base=base, axes=found.axes, baseline=found.baseline, refused=found.refused,
                       first_seeds=found.first_seeds, looks=found.looks, sequential=found.sequential, equal=found.equal,
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


def _check_names(norms: Sequence[str], placements: Sequence[str]) -> None:
    """A name that does not exist is a mistake, and not a combination that cannot be built."""
    from ..norms import NORMS
    from ..placements import PLACEMENTS

    for kind, names, known in (("norm", norms, NORMS), ("placement", placements, PLACEMENTS)):
        for name in names:
            if name not in known:
                raise ValueError(unknown(kind, name, known))


def check_buildable(experiment: Experiment) -> None:
    """Raises if its names do not exist or its model cannot be built; a model of the user's is not tried."""
    from .parts import model_config, task_of

    if experiment.make_model is None:
        _check_names([experiment.norm], [experiment.placement])
        model_config(experiment, task_of(experiment))


def checked(sweep: Sweep) -> Sweep:
    """With the cells that cannot be built marked as refused; raises if none can."""
    from .parts import model_config, task_of

    task = task_of(sweep.base)
    refused = []
    if sweep.base.make_model is None:
        _check_names(*(sweep.axes.get(axis, [getattr(sweep.base, axis)]) for axis in ("norm", "placement")))
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


class Agenda:
    """What is to run, as trials end: one queue, to which what has become due is added at its end."""

    def __init__(self, sweep: Sweep, ended: Mapping[str, Result]) -> None:
        self.sweep = sweep
        self.queue: deque[Trial] = deque()
        self._ended: dict[str, dict[tuple[float, int], Result]] = {}
        self._trials: dict[str, dict[tuple[float, int], Trial]] = {}
        self._later: dict[str, int] = {}
        self._handed: set[str] = set()
        every = sweep.trials()
        for trial in every:
            key = trial.experiment.lr, trial.experiment.seed
            self._trials.setdefault(trial.cell, {})[key] = trial
            if trial.name in ended:
                self._ended.setdefault(trial.cell, {})[key] = counted(ended[trial.name])
        due = {trial.name for cell in self._trials for trial in self._due(cell)}
        self._add([trial for trial in every if trial.name in due])

    @property
    def later(self) -> int:
        """How many trials may still become due, at most."""
        return sum(self._later.values())

    def end(self, trial: Trial, result: Result) -> list[Trial]:
        """One has ended. What is due because of it, which has been added to the queue."""
        self._ended.setdefault(trial.cell, {})[trial.experiment.lr, trial.experiment.seed] = counted(result)
        return [] if self.sweep.first_seeds is None else self._add(self._due(trial.cell))

    def _due(self, cell: str) -> list[Trial]:
        had, trials = self._ended.get(cell, {}), self._trials[cell]
        found = allotted(sorted(self.sweep.within(LR)), self.sweep.within(SEED), self.sweep.first_seeds, had)
        self._later[cell] = found.later
        return [trials[key] for key in found.due if key not in had and trials[key].name not in self._handed]

    def _add(self, trials: list[Trial]) -> list[Trial]:
        self._handed.update(trial.name for trial in trials)
        self.queue.extend(trials)
        return trials


@dataclass(frozen=True, kw_only=True)
class Message:
    """What an engine tells about a trial, by its kind: started; step (with its loss); quiet, lost (why); ended (result)."""

    step: int | None = None
    loss: float | None = None
    reason: str | None = None
    reason_zh: str | None = None  # the same in Chinese
    result: Result | None = None
    left: int | None = None  # trials that have not ended, at most; known when one has


Notify = Callable[[str, Trial, Message], None]  # (kind, trial, message)


class Engine(Protocol):
    """What runs trials: the local pool, or a cluster. A deque is taken from as it is, and grows while it is: ends make others due."""

    def run(self, folder: Path, trials: deque[Trial], notify: Notify) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a sweep will do, before it does it."""

    sweep: Sweep
    folder: Path
    done: Mapping[str, Result]
    missing: Sequence[Trial]
    workers: int
    seconds: float | None = None  # estimate for what is missing
    work: Mapping[str, Work] = field(default_factory=dict)  # of the cells that were tried
    unknown: str | None = None  # why there is no estimate, if one was tried
    later: int = 0  # trials that will follow from what the missing ones show, at most

    def __str__(self) -> str:
        return told(self)


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
    if write:
        check_folder(sweep, folder)
        if not holds_sweep(folder):
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_grid(folder, replace(sweep.grid(), created=created, normlab=__version__))
    done, open_ = finished(folder, sweep.trials())
    if write:
        check_own(folder, open_)
    agenda = Agenda(sweep, done)
    missing = list(agenda.queue)
    work: dict[str, Work] = {}
    seconds, unknown = None, None
    if estimate and missing and sweep.base.make_model is None:
        try:
            work = measure(missing)
            seconds = estimated(missing, work, workers, agenda.later)
        except Exception as error:  # the trial itself will fail with it, and its traceback is kept
            unknown = f"{type(error).__name__}: {error}"
    return Plan(sweep, folder, done, missing, workers, seconds, work, unknown, agenda.later)


def run(plan: Plan, engine: Engine, notify: Notify) -> None:
    """Run what is missing. Only one process may do so in a folder at a time."""
    from .checkpoint import NEEDS

    require("training", "lab", *NEEDS)  # here too: in a worker it would be a result, trial by trial
    with sole_writer(plan.folder):
        # Between planning and here another sweep may have finished some of it.
        since, not_ended = finished(plan.folder, [t for t in plan.sweep.trials() if t.name not in plan.done])
        check_own(plan.folder, not_ended)
        agenda = Agenda(plan.sweep, {**plan.done, **since})
        open_ = {trial.name for trial in agenda.queue}
        for trial in agenda.queue:
            _put_aside_unreadable(trial_folder(plan.folder, trial.name))

        def hear(kind: str, trial: Trial, message: Message) -> None:
            if message.result is not None:
                kept, _ = finished(plan.folder, [trial])  # as resuming would find it; a failure is found nowhere
                open_.discard(trial.name)
                for new in agenda.end(trial, kept.get(trial.name, message.result)):
                    _put_aside_unreadable(trial_folder(plan.folder, new.name))
                    open_.add(new.name)
                message = replace(message, left=len(open_) + agenda.later)
            notify(kind, trial, message)

        if agenda.queue:
            engine.run(plan.folder, agenda.queue, hear)


def check_own(folder: Path, trials: Sequence[Trial]) -> None:
    """Refuse to run these if something that would be written lies elsewhere, before any is touched. Those that ended are only read."""
    check_file(folder / LOCK)
    for trial in trials:
        at = check_trial_folder(folder, trial.name)
        if at.is_dir():  # anything else is put aside, as are readings that are no file
            check_file(at / LOCK)
            if (at / READINGS).is_file():
                check_file(at / READINGS)


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
