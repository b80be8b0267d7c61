"""A sweep on disk. Nobody else knows where in its folder something lies, or what it is called.

    sweep.json               what is compared: a Grid
    trials/<name>/           one run each
    summary.json             the answer: a Summary
    trials.csv, cells.csv    the same as tables

A trial's run is its only record: what is finished is what the runs say.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ..errors import RunUnreadable
from .axes import LR, SEED, WITHIN_CELLS, Axes, cell_name, check_distinct, outer, same
from .files import LinkedElsewhere, check_place, present, replace_file
from .records import (
    OUTCOMES,
    SUMMARY,
    Cell,
    Difference,
    Figure,
    Flag,
    Record,
    Refused,
    Result,
    Summary,
    Text,
    TrialResult,
    tuple_of,
)
from .run import INFO, Run
from .shapes import Kind, anything, each, list_of, maybe, number, one_of, read, record, table_of, text, whole

TRIALS, TRIALS_TABLE, CELLS_TABLE = "trials", "trials.csv", "cells.csv"
EQUAL = ("steps", "samples", "tokens", "seconds")  # what cells can be given alike
# In what share of sweeps, at most, anything is decided falsely: simulated, one cell four times noisier than the others included
# (tests/answer/test_planted_looks.py holds these figures).
WRONG, WRONG_IN_SERIES = 0.08, 0.05
MOST_TRIALS = 100_000  # of a sweep; planning them takes seconds, and two axes of a hostile file could ask for 10^12


# ---- what is compared ------------------------------------------------------------------------------------------------


def _values_of_axes(value: Any, where: str) -> dict[str, list[Any]]:
    found = table_of(list_of(anything, least=1))(value, where)
    for name, shape in ((LR, number), (SEED, whole)):
        if name in found:
            list_of(shape)(found[name], f"{where}.{name}")
    for name, values in found.items():
        check_distinct(name, values)
    trials = math.prod(map(len, found.values()))
    if trials > MOST_TRIALS:
        raise ValueError(f"{where} ask for {trials} trials, more than {MOST_TRIALS}")
    return found


_BASE = record({}, {"task": maybe(text), **each(f"{LR} steps", maybe(number)), SEED: maybe(whole)})


@dataclass(frozen=True, kw_only=True)
class Grid(Record):
    """sweep.json: what a sweep compares. Each value of each axis with each of the others; ``base`` says the rest."""

    SCHEMA: ClassVar[str] = "normlab.sweep/1"

    base: Annotated[Mapping[str, Any], _BASE] = field(default_factory=dict)  # an experiment, as JSON holds it
    axes: Annotated[Mapping[str, Sequence[Any]], _values_of_axes]
    baseline: Annotated[Axes | None, table_of(anything)] = None  # the cell that others are compared with
    refused: Annotated[tuple[Refused, ...], tuple_of(Refused.from_dict)] = ()
    equal: Annotated[str, one_of(*EQUAL)] = "steps"  # what all cells are given alike
    steps: Annotated[Mapping[str, int], table_of(whole)] = field(
        default_factory=dict
    )  # of cells, where these follow from it
    first_seeds: Annotated[int | None, whole] = (
        None  # how many every rate gets; the others the best rate; None: a complete grid
    )
    looks: Annotated[tuple[int, ...], tuple_of(whole)] = ()  # seeds in all when it was answered before and then grew
    sequential: Flag = False  # begun as a series of looks: already the first spends only its share
    task: Text = None
    unit: Text = None
    blind: Figure = None
    machine: Annotated[Any, anything] = None
    created: Text = None
    normlab: Text = None  # the version that planned it

    def __post_init__(self) -> None:
        for name in WITHIN_CELLS:
            if not self.axes.get(name) and self.base.get(name) is None:
                raise ValueError(f"a sweep needs {name}, as an axis or in its base")
        if self.first_seeds is not None and not 1 <= self.first_seeds <= len(self.seeds):
            raise ValueError(f"first_seeds must be 1 to {len(self.seeds)}, the number of seeds, got {self.first_seeds}")
        if not self.cells():
            reasons = dict.fromkeys(r.reason for r in self.refused)
            raise ValueError(
                f"every cell is refused, so that there is nothing to compare: {'; '.join(map(str, reasons))}"
            )

    def to_dict(self) -> dict[str, Any]:
        """What is not known is left out: a plan knows neither unit nor machine."""
        found = super().to_dict()
        known = ("schema", "base", "axes", "baseline", "refused")
        usual = ("equal", "steps") if not self.steps else ()
        told = {key: value for key, value in found.items() if key not in usual}
        return {key: value for key, value in told.items() if key in known or value not in (None, [], False)}

    @property
    def rates(self) -> list[float]:
        """Ascending."""
        return sorted(self._within(LR))

    @property
    def seeds(self) -> list[int]:
        return list(self._within(SEED))

    def _within(self, name: str) -> Sequence[Any]:
        return self.axes.get(name) or [self.base[name]]

    def combinations(self) -> list[dict[str, Any]]:
        """The axes of every cell, refused ones included."""
        names = outer(self.axes)
        return [dict(zip(names, v, strict=True)) for v in itertools.product(*(self.axes[name] for name in names))]

    def cells(self) -> dict[str, dict[str, Any]]:
        """{name: axes} of the cells that can be built."""
        shut = {same(r.axes) for r in self.refused}
        return {cell_name(c): c for c in self.combinations() if same(c) not in shut}

    @property
    def planned(self) -> int:
        """How many trials a complete grid has."""
        return (len(self.combinations()) - len(self.refused)) * len(self._within(LR)) * len(self._within(SEED))

    @property
    def share(self) -> float:
        """Of the error of a single look: this one's. A series spends a half, a quarter, an eighth and so on.

        Who did not plan one has spent all of it at the first look; the later ones spend what they would have in a series.
        """
        return 1.0 if not self.looks and not self.sequential else 0.5 ** (len(self.looks) + 1)

    @property
    def wrong(self) -> float:
        """In what share of sweeps, at most, any look decides something falsely, however many follow in this way."""
        return WRONG_IN_SERIES if self.sequential else WRONG


SWEEP = Kind("sweep", "sweep.json", Grid.SCHEMA, Grid.from_dict, 64 * 2**20)


def holds_sweep(folder: Path) -> bool:
    return present(folder / SWEEP.file)


def read_grid(folder: str | Path) -> Grid:
    return read(folder, SWEEP)


def write_grid(folder: Path, grid: Grid) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / SWEEP.file, json.dumps(grid.to_dict(), indent=1) + "\n")


# ---- trials ----------------------------------------------------------------------------------------------------------


def trial_folder(folder: Path, name: str) -> Path:
    return folder / TRIALS / name


def check_trial_folder(folder: Path, name: str) -> Path:
    """The same, to be written: it lies in the sweep itself."""
    at, trials = trial_folder(folder, name), folder / TRIALS
    if present(trials) and not trials.is_dir():
        raise LinkedElsewhere(f"{trials} is not a folder; remove it, or put the trials' folder in its place")
    check_place(trials, folder)
    check_place(at, folder)
    return at


def _task_of(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return info["task"] if isinstance(info.get("task"), dict) else {}


def read_trial(at: Path, names: Sequence[str]) -> tuple[TrialResult, dict[str, Any]]:
    """(what the trial in this folder gave, its run.json). ``names``: the axes that name cells."""
    info = Run(at).info
    of, result = info.get("experiment"), info.get("result")
    if not isinstance(of, dict) or not isinstance(result, dict):
        raise RunUnreadable(f"{at} holds a run without a result")
    settings = {
        k: v for inner in (of.get("options"), of.get("model"), of) if isinstance(inner, dict) for k, v in inner.items()
    }
    if lacking := [name for name in (*names, *WITHIN_CELLS) if name not in settings]:
        raise RunUnreadable(f"{at / INFO}: experiment.{lacking[0]} is missing")
    axes = {name: settings[name] for name in names}
    if result.get("blind") is None:
        result = {**result, "blind": _task_of(info).get("blind")}
    identity = {"name": at.name, "cell": cell_name(axes), "axes": axes, LR: of[LR], SEED: of[SEED],
                "folder": f"{TRIALS}/{at.name}", "choices": _choices(info)}  # fmt: skip
    try:
        return TrialResult.from_dict({**result, **identity}), info
    except ValueError as error:
        raise RunUnreadable(f"{at / INFO}: {error}") from error


def _choices(info: Mapping[str, Any]) -> list[Any]:
    """Older runs hold sentences instead."""
    found = info.get("choices")
    return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []


def finished_result(at: Path, axes: Axes, lr: float, seed: int) -> Result | None:
    """Of the trial with these values, if it ended with one. A folder that cannot be read, or is another's, has none."""
    try:
        found, info = read_trial(at, list(axes))
    except RunUnreadable:
        return None
    whose = {**found.axes, LR: found.lr, SEED: found.seed}
    ended = info["status"] == "finished" and found.outcome in OUTCOMES
    its_own = whose == json.loads(json.dumps({**axes, LR: lr, SEED: seed}))  # as read: a pair is a list
    return Result.from_dict({**info["result"], "blind": found.blind}) if ended and its_own else None


def read_trials(folder: str | Path) -> tuple[Grid, list[TrialResult]]:
    """(what is compared, the trials that ended). A run that cannot be read, or has no result, is a missing one.

    What sweep.json does not say about its task and machine is taken from the first run that does.
    """
    grid, trials = read_grid(folder), []
    names = outer(grid.axes)
    for at in sorted((Path(folder) / TRIALS).glob("*")):
        try:
            found, info = read_trial(at, names)
        except RunUnreadable:
            continue
        trials.append(found)
        task = _task_of(info)
        known: dict[str, Any] = {"unit": task.get("unit"), "blind": task.get("blind"), "machine": info.get("machine")}
        grid = replace(grid, **{key: value for key, value in known.items() if getattr(grid, key) is None})
    return grid, trials


# ---- the answer ------------------------------------------------------------------------------------------------------


def holds_summary(folder: Path) -> bool:
    return present(folder / SUMMARY.file)


def read_summary(folder: str | Path) -> Summary:
    return read(folder, SUMMARY)


def write_summary(folder: str | Path, summary: Summary) -> None:
    """summary.json, trials.csv, cells.csv; each replaced as a whole."""
    text = json.dumps(summary.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    trials = _csv(TrialResult(cell=""), summary.trials)
    cells = _csv(Cell(name="", difference=Difference(mean=0.0), behind_best=Difference(mean=0.0)), summary.cells)
    for name, content in ((TRIALS_TABLE, trials), (CELLS_TABLE, cells), (SUMMARY.file, text)):
        replace_file(Path(folder) / name, content)


NOT_SINGLE = (
    "axes",
    "curve",
    "rates",
    "choices",
    "findings",
    "figures",
    "traits",
)  # no single values: not in the tables


def _row(of: TrialResult | Cell) -> dict[str, Any]:
    """Single values; those of the differences come last."""
    found = of.to_dict()
    pairs = {name: found.pop(name, None) or {} for name in ("difference", "behind_best")}
    single = {key: value for key, value in found.items() if key not in NOT_SINGLE}
    return {**single, **{f"{name}_{key}": value for name, pair in pairs.items() for key, value in pair.items()}}


def _csv(example: TrialResult | Cell, records: Sequence[TrialResult | Cell]) -> str:
    """One line each; the axes are columns of their own after the cell's name."""
    columns = list(_row(example))
    after = columns.index("cell") + 1
    columns[after:after] = [name for name in (records[0].axes if records else ()) if name not in columns]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for found in records:
        writer.writerow({**{k: v for k, v in found.axes.items() if k in columns}, **_row(found)})
    return file.getvalue()
