"""A run of claims as one page that needs no network: all claims in both languages, by verdict and by document, with their numbers.

Each number is drawn against the range that the claim gives it. Everything in the run is data and is escaped; a content security policy
lets the page's own script run, by its hash, and nothing else.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from ..report.html import PAGE, filled
from ..runs import VERDICTS, CheckResult, ClaimResult, ClaimsRun, read_claims, replace_file
from . import words
from .claim import Claim, Words
from .designs import DESIGNS
from .judge import expected_false
from .table import CLAIMS, SOURCES

WIDTH = 200  # of the drawing of a number, in its own units
SAID: dict[str, Words] = {
    "title": ("Claims about normalization, put to the test", "关于归一化的说法，逐条检验"),
    "run": ("Budget {budget}, {machine}, torch {torch}, {created}, {seconds:.0f} s, seeds from {seed} on.",
            "预算 {budget}，{machine}，torch {torch}，{created}，{seconds:.0f} 秒，种子从 {seed} 起。"),
    "verdict": ("Verdict", "结论"), "source": ("Document", "文档"), "search": ("Search", "搜索"), "all": ("all", "全部"),
    "shown": ("claims are shown", "条说法"), "none": ("No claim fits.", "没有符合的说法。"), "how": ("test", "检验"), "design": ("experiment", "实验"),
    "literature": ("literature", "文献"), "again": ("again", "重新运行"), "number": ("number", "数"), "claimed": ("as claimed", "说法要求"),
    "measured": ("measured", "实测"), "outcome": ("outcome", "结果"), "reach": ("reach", "外延"),
    "seeds": ("About {n} more seeds would decide, if mean and spread held.", "若均值和离散程度不变，再加约 {n} 个种子可有定论。"),
    "read": ("Drawn: the number (diamond) with its interval and, shaded, the range that the claim gives it. A number marked “reach” is what the claim says beyond its core. All intervals of a claim hold together in 95 of 100 runs.",
             "图中：测得的数（菱形）及其区间；阴影是说法给它的范围。标“外延”的数是说法核心之外的部分。一条说法的全部区间在 100 次运行里有 95 次同时成立。"),
    "script": ("Filters need JavaScript; everything else does not.", "筛选需要 JavaScript，其余不需要。"),
}  # fmt: skip


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


class Shown(NamedTuple):
    """A claim with its result, as the page asks for them."""

    claim: Claim
    result: ClaimResult
    checks: list[tuple[CheckResult, Words, Drawn | None]]
    designs: list[tuple[str, Words]]

    @property
    def flag(self) -> str:
        return {"quick": " --quick", "full": " --full"}.get(self.result.budget, "")


def shown(run: ClaimsRun) -> list[Shown]:
    """In the table's order; a claim that this version does not know is left out."""
    found = []
    for result in run.results:
        if (claim := CLAIMS.get(result.id)) is not None:
            known = len(claim.checks) + len(claim.facts)
            checks = [(c, words.what_of(claim, i), drawn(c)) for i, c in enumerate(result.checks[:known])]
            designs = [(name, DESIGNS[name].about) for name in claim.designs if name in DESIGNS]
            found.append(Shown(claim, result, checks, designs))
    return found


def render(run: ClaimsRun) -> str:
    page = resources.files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8")
    machine = run.machine if isinstance(run.machine, dict) else {}
    rows = shown(run)
    results = [row.result for row in rows]
    counts = {verdict: sum(r.verdict == verdict for r in results) for verdict in VERDICTS}

    def said(key: str, **values: object) -> Words:
        return SAID[key][0].format(**values), SAID[key][1].format(**values)

    about = said("run", budget=run.budget, machine=machine.get("cpu", "?"), torch=machine.get("torch", "?"),
                 created=(run.created or "?")[:10], seconds=run.seconds or 0.0, seed=run.first_seed)  # fmt: skip

    def pair(of: object, *values: object) -> Words:
        """A function of claims' words, asked in both languages."""
        return tuple(of(*values, lang) for lang in words.LANGUAGES)  # type: ignore[operator, return-value]

    return filled(
        page, rows=rows, about=about, said=said, pair=pair, words=words, counts={v: n for v, n in counts.items() if n}, sources=SOURCES, width=WIDTH,
        summary=pair(words.summary_line, results, expected_false(results)),
    )  # fmt: skip


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """By default as report.html in the folder of the run."""
    path = Path(out) if out is not None else Path(folder) / PAGE
    text = render(read_claims(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)
    return path
