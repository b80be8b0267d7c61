"""One run on disk: written line by line, read as a stream; see the package for the format."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

from ..errors import RunUnreadable, need
from .contents import RUN_FILE, reading
from .files import LINE, appending, check_file, lines, opened, replace_file, replacing
from .shapes import read

SCHEMA, INFO, READINGS = RUN_FILE.schema, RUN_FILE.file, "readings.jsonl"


def encode(value: float) -> float | str:
    return value if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"


def decode(value: float | str) -> float:
    return float(value)


class Writer:
    """Writes one run. Every line reaches the operating system before ``write`` returns, so a killed process loses none.

    ``info`` is what is known at the start; :meth:`update` adds what is known later. An existing run is not overwritten:
    ``again=True`` goes on appending to it, ``after=step`` first takes back what was written after that step.
    """

    def __init__(
        self,
        folder: str | Path,
        info: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
        after: int | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()  # whoever changes the working folder later does not move the run
        if (self.folder / INFO).exists() and not again:
            raise FileExistsError(f"{self.folder} already holds a run; choose another folder or remove it")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / READINGS
        check_file(path)  # before run.json changes
        self.info: dict[str, Any] = {"schema": SCHEMA, "status": "running", "created": _now(), **(info or {})}
        self._file: FileIO | None = None
        self._started = time.monotonic()
        if again and (self.folder / INFO).exists():
            before = _read_info(self.folder)
            self.info = {**before, **(info or {}), "status": "running"}
            self._started -= before.get("seconds") or 0.0
        self._save()
        _cut_torn_line(path)
        if after is not None:
            _cut_after(path, after)
        self._file = appending(path)

    def write(self, step: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """One recorded step: {probe: {site: number}}."""
        coded = {p: {s: encode(float(v)) for s, v in sites.items()} for p, sites in values.items() if sites}
        self._append({"step": step, "time": self._elapsed(), "values": coded})

    def event(self, step: int, event: str, **detail: Any) -> None:
        self._append({"step": step, "time": self._elapsed(), "event": event, **detail})

    def update(self, **info: Any) -> None:
        self.info.update(info)
        self._save()

    def close(self, status: str = "finished", **info: Any) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        self.update(status=status, ended=_now(), seconds=self._elapsed(), **info)

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is None:
            raise ValueError(f"the run in {self.folder} is closed")
        rest = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        whole = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(whole)  # all of a line or none of it
            raise

    def sync(self) -> int:
        """All lines so far reach the disk itself, so that what is saved after them never knows more; how many bytes they are."""
        if self._file is None:
            raise ValueError(f"the run in {self.folder} is closed")
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._started, 4)

    def _save(self) -> None:
        replace_file(self.folder / INFO, json.dumps(self.info, indent=1, allow_nan=False) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _cut_torn_line(path: Path) -> None:
    """Before appending to a file whose last line is torn: the next line must not continue it."""
    try:
        with opened(path) as (file, end):
            keep = end_of_lines(path, file, end)
    except FileNotFoundError:
        return
    if keep < end:
        with appending(path) as whole:
            whole.truncate(keep)


def end_of_lines(path: Path, file: IO[bytes], end: int) -> int:
    """Where the last whole line before ``end`` ends. One torn line may follow it, no longer than a line may be."""
    earliest, at = end - LINE, end
    while at > 0:
        start = max(0, at - 65536)
        file.seek(start)
        if (found := file.read(at - start).rfind(b"\n")) >= 0:
            return start + found + 1
        at = start
        if 0 < at < earliest:
            raise RunUnreadable(f"{path}, its last line is longer than {LINE} bytes")
    return 0


def _cut_after(path: Path, step: int) -> None:
    """Keep the lines up to this step: a run that goes on from a checkpoint writes the later ones again."""
    if not path.exists():
        return
    with replacing(path) as new:
        for number, line in lines(path) if step > 0 else ():
            try:
                keep = reading(line)["step"] <= step
            except ValueError as error:
                raise not_a_reading(path, f"line {number}", error) from error
            if keep:
                new.write(line)


def not_a_reading(path: Path, place: str, error: ValueError) -> RunUnreadable:
    what = "is not valid JSON" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else "is not a reading"
    return RunUnreadable(f"{path}, {place} {what}: {error}")


def _read_info(folder: Path) -> dict[str, Any]:
    return read(folder, RUN_FILE)


@dataclass(frozen=True)
class Series:
    """One quantity at one site over the run."""

    steps: list[int]
    values: list[float]

    def __len__(self) -> int:
        return len(self.steps)

    def last(self) -> float:
        return self.values[-1]


def _table(lines: Iterable[dict[str, Any]], probes: tuple[str, ...]) -> dict[str, dict[str, Series]]:
    found: dict[str, dict[str, Series]] = {}
    for line in lines:
        step = line["step"]
        for probe, sites in line.get("values", {}).items():
            if probes and probe not in probes:
                continue
            kept = found.setdefault(probe, {})
            for site, value in sites.items():
                series = kept.get(site)
                if series is None:
                    series = kept[site] = Series([], [])
                series.steps.append(step)
                series.values.append(value if type(value) is float else decode(value))
    return found


class Run:
    """A run to read; readings are streamed from disk on each request and held only as asked for.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = Writer(folder + "/a")
    >>> writer.write(1, {"loss": {"model": 2.5}})
    >>> writer.close()
    >>> Run(folder + "/a").series("loss")["model"].values
    [2.5]
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.info = _read_info(self.folder)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every whole line, as written and checked. A torn last line is skipped; a wrong one elsewhere is an error with its number."""
        path = self.folder / READINGS
        try:
            os.stat(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            pass  # told in words when it is opened
        for number, line in lines(path):
            try:
                found = reading(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise not_a_reading(path, f"line {number}", error) from error
            yield found

    def readings(self) -> Iterator[tuple[int, str, str, float]]:
        """(step, probe, site, value), in the order they were recorded."""
        for line in self.lines():
            step = line["step"]
            for probe, sites in line.get("values", {}).items():
                for site, value in sites.items():
                    yield step, probe, site, value if type(value) is float else decode(value)

    def events(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "event" in line]

    def table(self, *probes: str) -> dict[str, dict[str, Series]]:
        """{probe: {site: Series}}, of all probes or of those named."""
        return _table(self.lines(), probes)

    def series(self, probe: str) -> dict[str, Series]:
        return self.table(probe).get(probe, {})

    def summary(self) -> dict[str, Any]:
        """What `normlab runs show` prints, as data."""
        steps = count = 0
        recorded: set[int] = set()
        probes: dict[str, set[str]] = {}
        last: dict[str, float] = {}
        events = []
        for line in self.lines():
            steps = max(steps, line["step"])
            if "event" in line:
                events.append(line)
            for probe, sites in line.get("values", {}).items():
                count += len(sites)
                if probe != "loss":  # that one is written for every step
                    recorded.add(line["step"])
                probes.setdefault(probe, set()).update(sites)
                if probe in ("loss", "lr") and sites:
                    last[probe] = decode(next(iter(sites.values())))
        return {"folder": str(self.folder), "status": self.info["status"], "created": self.info.get("created"),
                "last_step": steps, "recorded_steps": len(recorded), "readings": count, "last": {k: encode(v) for k, v in last.items()},
                "probes": {p: len(s) for p, s in probes.items()}, "events": events,
                "coverage": self.info.get("coverage"), "overhead": self.info.get("overhead")}  # fmt: skip


class HeldRun(Run):
    """A run whose readings are read from disk once and held, for several who ask: a page and its diagnosis in two languages."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._events: list[dict[str, Any]] = []
        self._held = _table(self._noting_events(), ())

    def _noting_events(self) -> Iterator[dict[str, Any]]:
        for line in self.lines():
            if "event" in line:
                self._events.append(line)
            yield line

    def events(self) -> list[dict[str, Any]]:
        return self._events

    def table(self, *probes: str) -> dict[str, dict[str, Series]]:
        return {probe: sites for probe, sites in self._held.items() if not probes or probe in probes}


def find(folder: str | Path) -> list[Path]:
    """Folders with a run, in or below this one, by name."""
    root = Path(folder)
    if not root.is_dir():
        raise RunUnreadable(f"{root} is not a folder")
    return sorted(path.parent for path in root.rglob(INFO))


def export_csv(run: Run, path: str | Path) -> int:
    """All readings as step, probe, site, value; returns how many."""
    count = 0
    with replacing(Path(path)) as out:
        file = io.TextIOWrapper(out, encoding="utf-8", newline="")
        writer = csv.writer(file)
        writer.writerow(("step", "probe", "site", "value"))
        for reading in run.readings():
            writer.writerow(reading)
            count += 1
        file.detach()  # with what it still held; the file is closed by its own
    return count


def export_parquet(run: Run, path: str | Path, batch: int = 100_000) -> int:
    """The same as a Parquet file, written in batches; needs the extra normlab[parquet]."""
    pa, pq = (need("Parquet", "parquet", name) for name in ("pyarrow", "pyarrow.parquet"))
    names = ("step", "probe", "site", "value")
    schema = pa.schema(list(zip(names, (pa.int64(), pa.string(), pa.string(), pa.float64()), strict=True)))
    count, rows = 0, []
    with replacing(Path(path)) as out, pq.ParquetWriter(out, schema) as writer:
        for reading in run.readings():
            rows.append(reading)
            if len(rows) == batch:
                writer.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)), schema=schema))
                count, rows = count + len(rows), []
        if rows:
            writer.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)), schema=schema))
            count += len(rows)
    return count
