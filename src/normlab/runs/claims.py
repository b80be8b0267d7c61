"""Claims on disk: what was measured for them, and what follows.

    claims.json                 the verdicts of a run of claims: a ClaimsRun
    measured/<design>.json      what a design measured, so that it is not measured again: an Evidence
    <design>/<sweep>/           the sweeps of designs that train, as any sweep

A verdict holds the numbers it rests on, with the ranges that were written down before; it can be read without running anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from .files import replace_file
from .records import Count, Figure, Record, Text, tuple_of
from .shapes import Kind, anything, flag, number, one_of, read, table_of, text, whole

DECIDED = ("holds", "conditions", "fails")
VERDICTS = (*DECIDED, "undecided", "untestable", "not run")
OUTCOMES_OF_A_CHECK = ("true", "small", "false", "undecided")
BUDGETS = ("quick", "default", "full")
MEASURED = "measured"  # folder


def _by_seed(value: Any, where: str) -> dict[int, float]:
    """JSON has text for keys."""
    found = table_of(number)(value, where)
    try:
        return {whole(int(seed), where): v for seed, v in found.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _finite(value: Mapping[str, Any]) -> None:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            _finite(inner)
        elif not math.isfinite(inner):
            raise ValueError(f"evidence must be finite, {name} is {inner}")


@dataclass(frozen=True, kw_only=True)
class Evidence(Record):
    """What was measured. ``numbers`` are exact; ``by_seed`` holds a number per seed; ``arms`` holds families of arms that share seeds."""

    SCHEMA: ClassVar[str] = "normlab.evidence/1"

    made_with: Text = None  # the design's size and seeds, as JSON; another asks for another measurement
    numbers: Annotated[Mapping[str, float], table_of(number)] = field(default_factory=dict)
    by_seed: Annotated[Mapping[str, Mapping[int, float]], table_of(_by_seed)] = field(default_factory=dict)
    arms: Annotated[Mapping[str, Mapping[str, Mapping[int, float]]], table_of(table_of(_by_seed))] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        for part in (self.numbers, self.by_seed, self.arms):
            _finite(part)

    def __or__(self, other: Evidence) -> Evidence:
        return Evidence(
            numbers={**self.numbers, **other.numbers},
            by_seed={**self.by_seed, **other.by_seed},
            arms={**self.arms, **other.arms},
        )


@dataclass(frozen=True, kw_only=True)
class CheckResult(Record):
    """One number of a claim: what the claim says of it, what it is, and what follows."""

    quantity: Annotated[str, text]
    against: Text = None  # the arm it is a difference from
    core: Annotated[bool, flag] = True
    least: Figure = None  # what the claim says: from least to most
    most: Figure = None
    margin: Figure = None  # the smallest difference that matters
    value: Figure = None
    low: Figure = None  # of its interval; the value itself where it is exact
    high: Figure = None
    n: Count = 0  # seeds; 0: exact
    outcome: Annotated[str, one_of(*OUTCOMES_OF_A_CHECK)]
    seeds_needed: Annotated[int | None, whole] = None  # in all, if mean and spread held


@dataclass(frozen=True, kw_only=True)
class ClaimResult(Record):
    """What became of one claim."""

    id: Annotated[str, text]
    verdict: Annotated[str, one_of(*VERDICTS)]
    budget: Annotated[str, one_of(*BUDGETS)]
    checks: Annotated[tuple[CheckResult, ...], tuple_of(CheckResult.from_dict)] = ()
    level: Figure = None  # of each interval
    further_seeds: Annotated[int | None, whole] = None  # of an undecided claim, if mean and spread held
    reason: Text = None  # of a claim that did not run


@dataclass(frozen=True, kw_only=True)
class ClaimsRun(Record):
    """claims.json."""

    SCHEMA: ClassVar[str] = "normlab.claims/1"

    budget: Annotated[str, one_of(*BUDGETS)]
    created: Text = None
    machine: Annotated[Any, anything] = None
    versions: Annotated[Any, anything] = None
    seconds: Figure = None
    workers: Count = 1  # trials at a time
    first_seed: Count = 0
    results: Annotated[tuple[ClaimResult, ...], tuple_of(ClaimResult.from_dict)] = ()

    def by_id(self) -> dict[str, ClaimResult]:
        return {r.id: r for r in self.results}


CLAIMS = Kind("run of claims", "claims.json", ClaimsRun.SCHEMA, ClaimsRun.from_dict, 64 * 2**20)


def holds_claims(folder: str | Path) -> bool:
    return (Path(folder) / CLAIMS.file).is_file()


def read_claims(folder: str | Path) -> ClaimsRun:
    return read(folder, CLAIMS)


def write_claims(folder: str | Path, found: ClaimsRun) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = json.dumps(found.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    replace_file(Path(folder) / CLAIMS.file, text)


def _measured(name: str) -> Kind[Evidence]:
    return Kind("measurement", f"{name}.json", Evidence.SCHEMA, Evidence.from_dict, 64 * 2**20)


def read_evidence(folder: str | Path, name: str) -> Evidence:
    return read(Path(folder) / MEASURED, _measured(name))


def read_all_evidence(folder: str | Path) -> dict[str, Evidence]:
    """{design: what it measured}, of all that are kept."""
    return {path.stem: read_evidence(folder, path.stem) for path in sorted((Path(folder) / MEASURED).glob("*.json"))}


def write_evidence(folder: str | Path, name: str, found: Evidence) -> None:
    at = Path(folder) / MEASURED
    at.mkdir(parents=True, exist_ok=True)
    replace_file(at / f"{name}.json", json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
