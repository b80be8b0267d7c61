"""The runs of claims that the package comes with, by budget: verdicts and numbers, no trials. What a new run is compared with.

A verdict that contradicts the shipped one, where both are decided, is a difference: the code has changed, or the machine computes other
bits. Decided in one run and undecided in the other is what samples do, and no difference; for exact claims there is no such excuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...runs import BUDGETS, CLAIMS, DECIDED, ClaimsRun, read_claims

HERE = Path(__file__).parent


class Change(NamedTuple):
    """A claim whose verdict is another."""

    id: str
    before: str
    now: str


def shipped(budget: str) -> ClaimsRun | None:
    """The shipped run of this budget, if there is one."""
    return read_claims(HERE / budget) if (HERE / budget / CLAIMS.file).exists() else None


def best_shipped() -> ClaimsRun | None:
    """Of the largest budget."""
    return None if (folder := best_folder()) is None else read_claims(folder)


def best_folder() -> Path | None:
    """Where that one lies, with what was measured for it."""
    return next((HERE / budget for budget in reversed(BUDGETS) if (HERE / budget / CLAIMS.file).exists()), None)


def changes(found: ClaimsRun, expected: ClaimsRun) -> list[Change]:
    """Claims of both whose verdicts contradict each other."""
    before = expected.by_id()
    return [
        Change(r.id, before[r.id].verdict, r.verdict)
        for r in found.results
        if r.id in before and _contradict(before[r.id].verdict, r.verdict, exact=not any(c.n for c in r.checks))
    ]


def _contradict(before: str, now: str, exact: bool) -> bool:
    if before == now or "not run" in (before, now):
        return False
    return exact or (before in DECIDED and now in DECIDED)
