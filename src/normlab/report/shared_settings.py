"""What all trials of a sweep have in common: only what each of them really has, sizes of the model and of a batch among it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunUnreadable
from ..runs import Grid, Run, TrialResult, trial_folder

MOST_CELLS = 400  # whose run.json is read; axes are left out in any case
FIRST = ("task", "steps", "dim", "num_layers", "num_heads", "batch_size", "optimizer")  # what a reader asks for first

Data = dict[str, Any]


def flat(value: Any, name: str = "") -> Data:
    """Nested settings as one level, "a.b": value; a bare value has the name ""."""
    if isinstance(value, Mapping):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{name}.{key}".lstrip(".")).items()}
    return {} if value is None or value == [] else {name: value}


def common_settings(folder: Path, grid: Grid | None, trials: Sequence[TrialResult]) -> Data:
    """Settings of the experiment and of its model, as the runs hold them, without axes and without what differs between runs."""
    varied = {
        "norm",
        "placement",
        "lr",
        "seed",
        *(grid.axes if grid else ()),
        *(("steps",) if grid and grid.steps else ()),
    }
    if grid is not None:  # what no axis varies is the base's, though it names one norm and one placement
        varied -= {n for n in ("norm", "placement", "lr", "seed") if n not in grid.axes}
    base = _settings(grid.base, {}) if grid else {}
    each: list[Data] = []
    seen: set[str] = set()
    for trial in trials:
        if trial.cell not in seen and len(seen) < MOST_CELLS:
            seen.add(trial.cell)
            try:
                info = Run(folder / trial.folder if trial.folder else trial_folder(folder, str(trial.name))).info
            except (RunUnreadable, OSError):
                continue
            each.append(_settings(info.get("experiment"), info))
    of_runs = {k: v for settings in each for k, v in settings.items()}
    shared = {k: v for k, v in of_runs.items() if all(k in s and json.dumps(s[k]) == json.dumps(v) for s in each)}
    shared |= {k: v for k, v in base.items() if k not in of_runs}
    shared = {k: v for k, v in shared.items() if k not in varied}
    return {k: shared[k] for k in (*(n for n in FIRST if n in shared), *(n for n in shared if n not in FIRST))}


def _settings(experiment: Any, info: Mapping[str, Any]) -> Data:
    """The settings of one run by their own names; what it leaves to the task as the task has it."""
    experiment = experiment if isinstance(experiment, dict) else {}
    model = {**_dict(experiment.get("model")), **_dict(info.get("model"))}
    rest = {k: v for k, v in experiment.items() if k not in ("model", "options")}
    size = info.get("batch_size")
    return flat({**model, **_dict(experiment.get("options")), **rest, **({} if size is None else {"batch_size": size})})


def _dict(value: Any) -> Data:
    return value if isinstance(value, dict) else {}
