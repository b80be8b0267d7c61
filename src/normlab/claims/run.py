"""Run what claims need at a budget, and judge them. A folder that holds part of it is gone on with, like any sweep.

Order: exact numbers first, then designs as the table has them, so that a run cut short has answered most.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import __version__
from ..errors import RunUnreadable
from ..lab import Message, Plan, Sweep, Trial, checked, plan
from ..lab import run as run_plan
from ..lab.sweep import Engine
from ..runs import (
    ClaimResult,
    ClaimsRun,
    Evidence,
    read_claims,
    read_evidence,
    read_trials,
    write_claims,
    write_evidence,
)
from .claim import Claim
from .designs import DESIGNS, Design, Measured, Trained, first_budget, size_at
from .designs.base import Trials
from .judge import judge

EngineOf = Callable[[Plan], Engine]
Notify = Callable[[str, "Progress"], None]


@dataclass
class Progress:
    """How far a run is. Time left follows from the trials that ended: their seconds per unit of work."""

    workers: int
    total: float = 0.0  # units of work of all trials still to run: steps x layers x (width + 32)
    done: float = 0.0
    seconds: float = 0.0  # of the trials that ended
    trials: int = 0
    ended: int = 0
    design: str = ""
    last: str = ""

    @staticmethod
    def work(trial: Trial) -> float:
        e = trial.experiment
        return e.steps * e.model.get("num_layers", 4) * (e.model.get("dim", 64) + 32)

    def left(self) -> float | None:
        """Seconds."""
        if not self.done:
            return None
        return self.seconds / self.done * (self.total - self.done) / self.workers


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run, and where."""

    claims: Sequence[Claim]
    budget: str
    folder: Path
    workers: int
    engine_of: EngineOf
    first_seed: int = 0
    notify: Notify = field(default=lambda kind, progress: None)


def needed(claims: Sequence[Claim], budget: str) -> list[Design]:
    """Designs that these claims name, that exist, and that run at this budget, in the table's order."""
    names = {name for claim in claims for name in claim.designs}
    return [d for d in DESIGNS.values() if d.name in names and size_at(d, budget) is not None]


def sweeps_of(design: Trained, request: Request) -> dict[Path, tuple[str, Sweep]]:
    """{folder: (its name, the sweep)}."""
    size = size_at(design, request.budget)
    assert size is not None
    seeds = range(request.first_seed, request.first_seed + size.seeds)
    return {request.folder / design.name / name.replace(", ", "-"): (name, checked(sweep))
            for name, sweep in design.sweeps(size, seeds).items()}  # fmt: skip


def run(request: Request) -> ClaimsRun:
    """Everything asked for; writes claims.json, and again after each design."""
    started = time.monotonic() - _spent_before(request)
    designs = needed(request.claims, request.budget)
    progress = Progress(request.workers)
    plans: dict[str, dict[str, Plan]] = {}
    for design in designs:
        if isinstance(design, Trained):
            plans[design.name] = {name: plan(sweep, at, request.workers, estimate=False)
                                  for at, (name, sweep) in sweeps_of(design, request).items()}  # fmt: skip
            for planned in plans[design.name].values():
                progress.trials += len(planned.missing)
                progress.total += sum(map(progress.work, planned.missing))
    evidence: dict[str, Evidence] = {}
    taken: dict[object, Evidence] = {}  # claims share measurements
    measured = {claim.id: _exact(claim, taken) for claim in request.claims}
    found = _judged(request, evidence, measured, started)
    for design in designs:
        progress.design = design.name
        request.notify("design", progress)
        if isinstance(design, Measured):
            evidence[design.name] = _measured(design, request)
        else:
            for planned in plans[design.name].values():
                _train(planned, request, progress)
            evidence[design.name] = _read(design, plans[design.name], request)
        found = _judged(request, evidence, measured, started)
    return found


def _spent_before(request: Request) -> float:
    """Seconds that earlier parts of this run took, before they were interrupted."""
    try:
        known = read_claims(request.folder)
    except RunUnreadable:
        return 0.0
    same = (known.budget, known.first_seed) == (request.budget, request.first_seed)
    return known.seconds or 0.0 if same else 0.0


def _exact(claim: Claim, taken: dict[object, Evidence]) -> Evidence:
    if claim.measure is None:
        return Evidence()
    if claim.measure not in taken:
        taken[claim.measure] = Evidence(numbers=dict(claim.measure()))
    return taken[claim.measure]


def _train(planned: Plan, request: Request, progress: Progress) -> None:
    if not planned.missing:
        return

    def notify(kind: str, trial: Trial, message: Message) -> None:
        if message.result is not None:
            progress.ended += 1
            progress.done += progress.work(trial)
            progress.seconds += message.result.seconds or 0.0
            progress.last = trial.name
            request.notify("trial", progress)

    run_plan(planned, request.engine_of(planned), notify)


def _made_with(design: Design, request: Request) -> str:
    size = size_at(design, request.budget)
    assert size is not None
    return json.dumps({**size.to_dict(), "first_seed": request.first_seed})


def _measured(design: Measured, request: Request) -> Evidence:
    """As it lies in the folder, or measured anew."""
    made_with = _made_with(design, request)
    try:
        known = read_evidence(request.folder, design.name)
        if known.made_with == made_with:
            return known
    except RunUnreadable:
        pass
    size = size_at(design, request.budget)
    assert size is not None
    seeds = range(request.first_seed, request.first_seed + size.seeds)
    found = dataclasses.replace(design.measure(size, seeds), made_with=made_with)
    write_evidence(request.folder, design.name, found)
    return found


def _read(design: Trained, plans: dict[str, Plan], request: Request) -> Evidence:
    """What the trials say; kept, so that the verdicts' numbers outlive the trials."""
    trials = {}
    for name, planned in plans.items():
        grid, ended = read_trials(planned.folder)
        broken = [t for t in ended if t.outcome == "failed"]
        if broken:
            raise RuntimeError(f"{broken[0].name} of {design.name} failed: {broken[0].error}")
        trials[name] = Trials(planned.folder, grid.blind, ended)
    found = dataclasses.replace(design.read(trials), made_with=_made_with(design, request))
    write_evidence(request.folder, design.name, found)
    return found


def _judged(
    request: Request, evidence: dict[str, Evidence], measured: dict[str, Evidence], started: float
) -> ClaimsRun:
    """Verdicts on what is known so far, on disk."""
    from .. import machine

    results = [judge_one(claim, measured[claim.id], evidence, request.budget) for claim in request.claims]
    found = ClaimsRun(
        budget=request.budget, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), machine=machine.description(),
        versions={"normlab": __version__}, seconds=round(time.monotonic() - started, 1), first_seed=request.first_seed, workers=request.workers,
        results=tuple(results),
    )  # fmt: skip
    write_claims(request.folder, found)
    return found


def judge_one(claim: Claim, exact: Evidence, evidence: Mapping[str, Evidence], budget: str) -> ClaimResult:
    """A claim on what was measured for it: its own exact numbers, and those of its designs that ran."""
    known = exact
    for name in claim.designs:
        if name in evidence:
            known = known | evidence[name]
    found = judge(claim, known, budget)
    missing = [name for name in claim.designs if name not in evidence]
    if missing and found.verdict in ("not run", "undecided"):
        return dataclasses.replace(found, reason=_why_missing(missing, budget))
    return found


def _why_missing(names: Sequence[str], budget: str) -> str:
    if unbuilt := [name for name in names if name not in DESIGNS]:
        return f"lacking {unbuilt[0]}"
    late = [first_budget(DESIGNS[name]) for name in names if size_at(DESIGNS[name], budget) is None]
    return f"budget {max(late, key=('quick', 'default', 'full').index)}" if late else "unfinished"
