"""Which runs, sweeps, runs of claims and benchmarks (``bench*.json``) lie below the folder. What a browser asks for is looked up here by its name and never joined to a path.

Linked folders are not entered, and what is read is confined to the folder (see ``normlab.runs.confined``). Searching ends
at bounds that a folder made to harm could otherwise leave behind.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RunUnreadable
from ...runs import CLAIMS, DECIDED, INFO, SUMMARY, SWEEP, TRIALS, Run, read_claims, read_grid, read_summary

DEPTH = 12  # folders below folders
ENTRIES = 200_000  # names looked at
LISTED = 2_000  # in the list; trials of sweeps aside
LONGEST = 300  # characters of a text out of a run that the list shows
SUMMARY_READ = 4 * 2**20  # bytes of a sweep's summary that are worth reading for the one number that the list shows

TIMED = re.compile(r"bench[\w.-]*\.json")  # what normlab bench --json is told to write, by its name

Stamp = tuple[int, ...]  # of files: another one if they changed


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the list."""

    key: str  # its path below the folder, with slashes; "." is the folder itself
    kind: str  # "run", "sweep", "claims" or "kernels"
    status: str | None = None
    created: str | None = None
    task: str | None = None
    outcome: str | None = None
    loss: float | None = None
    unit: str | None = None
    trials: int | None = None  # folders of them
    planned: int | None = None
    problem: str | None = None  # why it cannot be read


@dataclass(frozen=True)
class Found:
    """All there is, at one look."""

    folders: dict[str, tuple[str, Path]]  # key -> (kind, folder, or file of a benchmark); trials included
    listed: list[tuple[str, str, Path, int]]  # key, kind, folder, trials
    more: int  # that did not fit into the list
    unnamed: int  # whose names are no text


def search(root: Path) -> Found:
    folders: dict[str, tuple[str, Path]] = {}
    listed: list[tuple[str, str, Path, int]] = []
    left, unnamed, more = ENTRIES, 0, 0
    waiting: list[tuple[Path, str, int]] = [(root, ".", 0)]
    while waiting:
        folder, key, depth = waiting.pop()
        try:
            key.encode()
        except UnicodeEncodeError:
            unnamed += 1
            continue
        names, inner, timed = set[str](), [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    names.add(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(entry.name)
                    elif TIMED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        timed.append(entry.name)
        except OSError:
            continue
        kind = (
            "sweep"
            if names & {SWEEP.file, SUMMARY.file}
            else "run"
            if INFO in names
            else "claims"
            if CLAIMS.file in names
            else None
        )
        for name in sorted(timed) if kind is None else ():
            file = name if key == "." else f"{key}/{name}"
            folders[file] = ("kernels", folder / name)
            if len(listed) < LISTED:
                listed.append((file, "kernels", folder / name, 0))
            else:
                more += 1
        within = key.endswith(f"/{TRIALS}") or key == TRIALS
        if kind is not None:
            folders[key] = (kind, folder)
            of_sweep = os.path.dirname(os.path.dirname(key)) or "."
            if os.path.basename(os.path.dirname(key)) == TRIALS and folders.get(of_sweep, ("",))[0] == "sweep":
                pass  # shown on the sweep's page
            elif len(listed) < LISTED:
                trials = _count(folder / TRIALS) if kind == "sweep" and TRIALS in inner else 0
                listed.append((key, kind, folder, trials))
            else:
                more += 1
        if depth < DEPTH and left > 0 and not (kind == "run" and within):
            waiting += [(folder / n, n if key == "." else f"{key}/{n}", depth + 1) for n in sorted(inner, reverse=True)]
    return Found(folders, listed, more, unnamed)


def _count(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.is_dir(follow_symlinks=False) for _, entry in zip(range(ENTRIES), entries, strict=False))
    except OSError:
        return 0


def stamp(*paths: Path) -> Stamp:
    found: list[int] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found += [0, 0, 0]
        else:
            found += [status.st_ino, status.st_mtime_ns, status.st_size]
    return tuple(found)


def stamp_of(kind: str, folder: Path) -> Stamp:
    """Of what its page is made from, readings of trials aside."""
    if kind == "run":
        return stamp(folder / INFO, folder / "readings.jsonl")
    if kind in ("claims", "kernels"):
        return stamp(folder / CLAIMS.file if kind == "claims" else folder)
    trials = folder / TRIALS
    try:
        names = sorted(os.listdir(trials))[:ENTRIES]
    except OSError:
        names = []
    return stamp(folder / SWEEP.file, folder / SUMMARY.file, *(trials / name / INFO for name in names))


def mark(stamp: Stamp) -> str:
    """By which a page knows whether what it was told of is what it shows."""
    return format(hash(stamp) & (2**64 - 1), "x")


def files_of(kind: str, folder: Path) -> tuple[Path, ...]:
    """The files that a line of the list is made from."""
    if kind == "kernels":
        return (folder,)
    return folder / INFO, folder / SWEEP.file, folder / SUMMARY.file, folder / CLAIMS.file


class Listing:
    """The list, whose lines are read again only when their files changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[Stamp, Entry]] = {}
        self._planned: dict[str, tuple[Stamp, int]] = {}  # key of a sweep -> of its summary

    def entries(self, found: Found) -> list[Entry]:
        known, self._known = self._known, {}
        for key, kind, folder, trials in found.listed:
            files = (*stamp(*files_of(kind, folder)), trials)
            before = known.get(key)
            entry = before[1] if before and before[0] == files else self._read(key, kind, folder, trials)
            self._known[key] = (files, entry)
        self._planned = {key: planned for key, planned in self._planned.items() if key in self._known}
        return [entry for _, entry in self._known.values()]

    def _read(self, key: str, kind: str, folder: Path, trials: int) -> Entry:
        try:
            if kind == "kernels":
                return Entry(key=key, kind=kind)
            if kind == "claims":
                return _of_claims(key, folder)
            return self._of_sweep(key, folder, trials) if kind == "sweep" else _of_run(key, folder)
        except (RunUnreadable, OSError) as error:
            return Entry(key=key, kind=kind, problem=said(error, self.root)[:LONGEST])

    def _of_sweep(self, key: str, folder: Path, trials: int) -> Entry:
        if not (folder / SWEEP.file).exists():
            return Entry(key=key, kind="sweep", trials=trials)
        grid = read_grid(folder)
        task = grid.task or grid.base.get("task")
        answered = self._answered(key, folder)
        planned = answered if answered >= trials else 0  # else the answer is an old one
        return Entry(key=key, kind="sweep", created=_text(grid.created), task=_text(task), unit=_text(grid.unit),
                     trials=trials, planned=planned or grid.planned)  # fmt: skip

    def _answered(self, key: str, folder: Path) -> int:
        """Trials planned as its answer says, which knows the rates that get no further seeds; 0 where there is none. Remembered
        apart from the line, which is made again whenever a trial begins.
        """
        file = stamp(folder / SUMMARY.file)
        if key not in self._planned or self._planned[key][0] != file:
            self._planned[key] = file, _planned(folder) if file[2] <= SUMMARY_READ else 0
        return self._planned[key][1]


def _planned(folder: Path) -> int:
    try:
        return read_summary(folder).planned
    except (RunUnreadable, OSError):  # its own page says what is wrong with it
        return 0


def _of_claims(key: str, folder: Path) -> Entry:
    run = read_claims(folder)
    decided = sum(result.verdict in DECIDED for result in run.results)
    return Entry(
        key=key,
        kind="claims",
        created=_text(run.created),
        task=_text(run.budget),
        trials=decided,
        planned=len(run.results),
    )


def _of_run(key: str, folder: Path) -> Entry:
    info = Run(folder).info
    task = info["task"] if isinstance(info.get("task"), dict) else {}
    result = info["result"] if isinstance(info.get("result"), dict) else {}
    return Entry(key=key, kind="run", status=info["status"], created=_text(info.get("created")), task=_text(task.get("name")),
                 unit=_text(task.get("unit")), outcome=_text(result.get("outcome")), loss=result.get("loss"))  # fmt: skip


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def said(error: BaseException, root: Path) -> str:
    """On one line, without where the folder lies on this machine."""
    text = " ".join(str(error).split())
    for place in {str(root), os.path.realpath(root)}:
        text = text.replace(place + os.sep, "").replace(place, root.name or ".")
    return text
