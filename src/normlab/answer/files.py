"""From the folder of a sweep, and into it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from .. import runs
from ..errors import RunUnreadable
from .judge import answer
from .numbers import FIELDS, Answer, Data, Grid, cell_name

CELL_COLUMNS = ("cell", "rank", "best_lr", "best_at_edge", "mean", "low", "high", "n", "largest_stable_lr", "stable_up_to_edge",
                "divergence_rate", "steps_to_target", "tokens_per_second", "peak_memory", "tied_with_best",
                *(f"difference_{k}" for k in ("mean", "low", "high", "n", "p", "p_holm", "decided", "seeds_needed")))  # fmt: skip


def read_sweep(folder: str | Path) -> Data:
    """What sweep.json says was to be compared."""
    found = runs.read(folder, runs.SWEEP)
    try:
        Grid.of(found)
    except ValueError as error:
        raise RunUnreadable(f"{Path(folder) / runs.SWEEP.file}: {error}") from error
    return found


def read_trial(place: Path, outer: Sequence[str]) -> tuple[Data, Data]:
    """(the entry of a trial that ended, its run.json). ``outer``: the axes that name cells."""
    info = runs.Run(place).info
    of, result = info.get("experiment"), info.get("result")
    if not isinstance(of, dict) or not isinstance(result, dict):
        raise RunUnreadable(f"{place} holds a run without a result")
    settings = {**model, **of} if isinstance(model := of.get("model"), dict) else of
    if lacking := [name for name in (*outer, "lr", "seed") if name not in settings]:
        raise RunUnreadable(f"{place / runs.INFO}: experiment.{lacking[0]} is missing")
    axes = {name: settings[name] for name in outer}
    identity = {"name": place.name, "cell": cell_name(axes), "axes": axes, "lr": of["lr"], "seed": of["seed"],
                "folder": f"trials/{place.name}"}  # fmt: skip
    return {**dict.fromkeys(FIELDS), **result, **identity}, info


def collect(folder: str | Path) -> tuple[Data, list[Data]]:
    """(sweep.json, the entries of the trials that ended). A run that cannot be read, or has no result, is a missing one.

    What the sweep does not say about its task and machine is taken from the first run that does.
    """
    sweep = read_sweep(folder)
    outer = [name for name in sweep["axes"] if name not in ("lr", "seed")]
    trials = []
    for place in sorted((Path(folder) / "trials").glob("*")):
        try:
            entry, info = read_trial(place, outer)
        except RunUnreadable:
            continue
        trials.append(entry)
        task = info["task"] if isinstance(info.get("task"), dict) else {}
        for key, value in (("unit", task.get("unit")), ("blind", task.get("blind")), ("machine", info.get("machine"))):
            if sweep.get(key) is None and value is not None:
                sweep[key] = value
    return sweep, trials


def read(folder: str | Path, *, baseline: str | None = None, target_loss: float | None = None) -> Answer:
    return answer(*collect(folder), baseline=baseline, target_loss=target_loss)


def write(folder: str | Path, answer: Answer) -> None:
    """summary.json, trials.csv, cells.csv; each replaced as a whole."""
    text = json.dumps(answer.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    trials = _csv(answer.trials, [f for f in FIELDS if f not in ("axes", "curve")])
    for name, content in (
        ("trials.csv", trials),
        ("cells.csv", _csv(answer.cells, CELL_COLUMNS)),
        ("summary.json", text),
    ):
        runs.replace_file(Path(folder) / name, content)


def _csv(rows: Sequence[Data], columns: Sequence[str]) -> str:
    """One line each; the axes are columns of their own behind the cell's name."""
    after = columns.index("cell") + 1
    axes = [a for a in (rows[0]["axes"] if rows else {}) if a not in columns]
    file = io.StringIO()
    writer = csv.DictWriter(
        file, [*columns[:after], *axes, *columns[after:]], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        difference = {f"difference_{k}": v for k, v in (row.get("difference") or {}).items()}
        writer.writerow({**row["axes"], **difference, **row})
    return file.getvalue()
