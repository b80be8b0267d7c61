"""Two runs of claims beside each other: which verdicts come out the same. Reads their claims.json alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..runs import DECIDED, ClaimResult, ClaimsRun
from . import words
from .page import between
from .table import CLAIMS

START, END = "<!-- two runs: normlab claims compare --write -->", "<!-- end of two runs -->"
SAID = {
    "run": ("{which} run: seeds from {seed} on, budget {budget}, {machine}, {created}.", "{which}：种子从 {seed} 起，预算 {budget}，{machine}，{created}。"),
    "first": ("First", "第一次运行"),
    "second": ("Second", "第二次运行"),
    "share": ("Of {all} verdicts that experiments decided in the first run, {same} come out the same in the second ({percent:.0f} %); undecided there: {open}, different: {other}.",
              "第一次运行由实验得出定论的 {all} 条里，第二次有 {same} 条相同（{percent:.0f} %），{open} 条尚无定论，{other} 条不同。"),
    "both": ("Where both decide, {same} of {all} are the same ({percent:.0f} %).", "两次都有定论的 {all} 条里，{same} 条相同（{percent:.0f} %）。"),
    "exact": ("Of {all} claims without samples {same} come out the same.", "不涉及抽样的 {all} 条里，{same} 条相同。"),
    "head": ("| claim | says | first run | second run | same |", "| 说法 | 内容 | 第一次运行 | 第二次运行 | 相同 |"),
    "same": ("yes", "是"), "open": ("-", "-"), "other": ("no", "否"),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One claim in both runs."""

    id: str
    first: str  # verdicts
    second: str
    sampled: bool  # by an experiment, in either run

    @property
    def outcome(self) -> str:
        """same; open: decided in one of them alone, or in none; other: both decide, and not alike."""
        if self.first == self.second:
            return "same"
        return "other" if {self.first, self.second} <= set(DECIDED) or not self.sampled else "open"


@dataclass(frozen=True)
class Agreement:
    """How many verdicts come out the same."""

    same: int
    all: int

    @property
    def percent(self) -> float:
        return 100 * self.same / self.all if self.all else 100.0


def rows_of(first: ClaimsRun, second: ClaimsRun) -> list[Row]:
    """Claims that ran in both."""
    one, other = first.by_id(), second.by_id()
    ran = [c for c in CLAIMS if c in one and c in other and "not run" not in (one[c].verdict, other[c].verdict)]
    return [Row(c, one[c].verdict, other[c].verdict, _sampled(one[c]) or _sampled(other[c])) for c in ran]


def _sampled(result: ClaimResult) -> bool:
    return any(c.n for c in result.checks)


def repeated(rows: Iterable[Row]) -> Agreement:
    """Of the verdicts that experiments decided in the first run, those that the second repeats. Undecided there is not the same."""
    decided = [r for r in rows if r.sampled and r.first in DECIDED]
    return Agreement(sum(r.first == r.second for r in decided), len(decided))


def where_both_decide(rows: Iterable[Row]) -> Agreement:
    both = [r for r in rows if r.sampled and r.first in DECIDED and r.second in DECIDED]
    return Agreement(sum(r.first == r.second for r in both), len(both))


def without_samples(rows: Iterable[Row]) -> Agreement:
    exact = [r for r in rows if not r.sampled]
    return Agreement(sum(r.first == r.second for r in exact), len(exact))


def _said(key: str, lang: str, **values: object) -> str:
    return words.pick(SAID[key], lang).format(**values)


def summary(rows: list[Row], lang: str) -> list[str]:
    again, both, exact = repeated(rows), where_both_decide(rows), without_samples(rows)
    others = both.all - both.same
    share = _said(
        "share",
        lang,
        all=again.all,
        same=again.same,
        percent=again.percent,
        open=again.all - again.same - others,
        other=others,
    )
    return [share, _said("both", lang, all=both.all, same=both.same, percent=both.percent), _said("exact", lang, all=exact.all, same=exact.same)]  # fmt: skip


def described(run: ClaimsRun, which: str, lang: str) -> str:
    machine = run.machine.get("cpu", "?") if isinstance(run.machine, dict) else "?"
    return _said("run", lang, which=_said(which, lang), seed=run.first_seed, budget=words.named_budget(run.budget, lang),
                 machine=machine, created=(run.created or "?")[:10])  # fmt: skip


def cells(row: Row, lang: str) -> list[str]:
    """id, says, both verdicts, same or not."""
    verdicts = [words.pick(words.VERDICT[v], lang) for v in (row.first, row.second)]
    return [row.id, words.pick(CLAIMS[row.id].says, lang), *verdicts, _said(row.outcome, lang)]


def write(first: ClaimsRun, second: ClaimsRun, docs: Path) -> list[Path]:
    """Between the markers of docs/en/claims.md and docs/zh/claims.md: the claims that experiments decided in either run."""
    rows = rows_of(first, second)
    shown = [r for r in rows if r.sampled]
    pages = []
    for lang in words.LANGUAGES:
        lines = [described(first, "first", lang), described(second, "second", lang), *summary(rows, lang), "", _said("head", lang), "|---|---|---|---|---|"]  # fmt: skip
        lines += ["| " + " | ".join(words.cell(c) for c in cells(r, lang)) + " |" for r in shown]
        pages.append(between(docs / lang / "claims.md", START, END, "\n".join(lines)))
    return pages
