"""A run of claims as one page that needs no network: all claims in both languages, by verdict and by document, with their numbers.

Each number is drawn against the range that the claim gives it. Everything in the run is data and is escaped; a content security policy
lets the page's own script run, by its hash, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..report.bundle import save
from ..report.pages import PAGE
from ..report.pages import render as page_of
from ..runs import VERDICTS, CheckResult, ClaimResult, ClaimsRun, read_claims
from . import words
from .claim import Claim, Words
from .designs import DESIGNS
from .judge import expected_false
from .table import CLAIMS, SOURCES

WIDTH = 200  # of the drawing of a number, in its own units
RUN = (
    "Budget {budget}, {machine}, torch {torch}, {created}, {seconds:.0f} s, seeds from {seed} on.",
    "预算：{budget}，{machine}，torch {torch}，{created}，{seconds:.0f} 秒，种子从 {seed} 起。",
)

Pair = dict[str, str]


class Drawn(NamedTuple):
    """Where the parts of a number's drawing lie, from 0 to WIDTH."""

    range_from: float
    range_to: float
    low: float
    high: float
    at: float


def drawn(check: CheckResult) -> Drawn | None:
    """None where nothing was measured. A scale that holds the number, its interval and the borders of the range."""
    if check.value is None:
        return None
    ends = [v for v in (check.value, check.low, check.high, check.least, check.most) if v is not None]
    low, high = min(ends), max(ends)
    pad = 0.12 * (high - low) or 0.5 * (abs(high) or 1.0)
    low, high = low - pad, high + pad

    def at(value: float | None, otherwise: float) -> float:
        return round(WIDTH * (otherwise if value is None else (value - low) / (high - low)), 1)

    return Drawn(
        at(check.least, 0.0), at(check.most, 1.0), at(check.low, 0.0), at(check.high, 1.0), at(check.value, 0.5)
    )


def _pair(two: Words) -> Pair:
    return dict(zip(words.LANGUAGES, two, strict=True))


def _asked(of: Any, *values: object) -> Pair:
    """A function of claims' words, in both languages."""
    return {lang: of(*values, lang) for lang in words.LANGUAGES}


def _row(claim: Claim, result: ClaimResult) -> dict[str, Any]:
    known = len(claim.checks) + len(claim.facts)
    checks = []
    for i, check in enumerate(result.checks[:known]):
        where = drawn(check)
        checks.append({
            "what": _pair(words.what_of(claim, i)), "core": check.core, "measured": _asked(words.measured, check), "claimed": _asked(words.claimed_range, check),
            "outcome": _pair(words.OUTCOME[check.outcome]), "drawn": None if where is None else where._asdict(),
        })  # fmt: skip
    flag = {"quick": " --quick", "full": " --full"}.get(result.budget, "")
    return {
        "id": claim.id, "verdict": result.verdict, "source": claim.source, "kind": _pair(words.KIND[claim.kind]), "says": _pair(claim.says), "how": _pair(claim.how),
        "deciding": _asked(words.deciding, claim, result), "literature": _pair(claim.literature) if claim.literature else None,
        "designs": [{"name": name, "about": _pair(DESIGNS[name].about)} for name in claim.designs if name in DESIGNS],
        "checks": checks, "further_seeds": result.further_seeds, "command": f"normlab claims --only {claim.id}{flag}",
    }  # fmt: skip


def view(run: ClaimsRun, title: str = "") -> dict[str, Any]:
    """What the page shows, in the table's order; a claim that this version does not know is left out."""
    results = [r for r in run.results if r.id in CLAIMS]
    machine = run.machine if isinstance(run.machine, dict) else {}
    about = {"machine": machine.get("cpu", "?"), "torch": machine.get("torch", "?"), "created": (run.created or "?")[:10],
             "seconds": run.seconds or 0.0, "seed": run.first_seed}  # fmt: skip
    counts = {verdict: sum(r.verdict == verdict for r in results) for verdict in VERDICTS}
    return {
        "kind": "claims", "title": title,
        "about": {lang: text.format(budget=words.named_budget(run.budget, lang), **about) for lang, text in zip(words.LANGUAGES, RUN, strict=True)},
        "summary": _asked(words.summary_line, results, expected_false(results)),
        "counts": {verdict: n for verdict, n in counts.items() if n}, "verdicts": {verdict: _pair(words.VERDICT[verdict]) for verdict in VERDICTS},
        "sources": {source: _pair(words.SOURCE[source]) for source in SOURCES}, "width": WIDTH, "rows": [_row(CLAIMS[r.id], r) for r in results],
    }  # fmt: skip


def render(run: ClaimsRun) -> str:
    """The page as HTML."""
    return page_of(view(run))


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """By default as report.html in the folder of the run."""
    return save(render(read_claims(folder)), Path(folder) / PAGE if out is None else Path(out))
