"""The tables of docs/en/claims.md and docs/zh/claims.md, written from a run of claims between two marker lines.

One line per claim, then a paragraph for each that an experiment decided. Nothing here knows a verdict: all comes from the run.
"""

from __future__ import annotations

from pathlib import Path

from ..runs import ClaimResult, ClaimsRun
from . import words
from .claim import Claim
from .figures import has_figure, name_of
from .judge import expected_false
from .table import CLAIMS

START, END = "<!-- table: normlab claims --write -->", "<!-- end of table -->"
FIGURES = "../figures/claims"  # from docs/en and docs/zh
SAID = {
    "head": ("| claim | says | verdict | what decides |", "| 说法 | 内容 | 结论 | 起决定作用的数 |"),
    "run": ("Run at budget {budget} on {machine}, {workers} trials at a time, torch {torch}, {created}: {seconds:.0f} s.",
            "预算 {budget}，{machine}，同时 {workers} 个试验，torch {torch}，{created}：{seconds:.0f} 秒。"),
    "experiments": ("### What experiments decided", "### 由实验决定的"),
    "paragraph": ("**{id}** ({source}), *{says}*: **{verdict}** at budget {budget}. {how}.", "**{id}**（{source}），*{says}*：**{verdict}**，预算 {budget}。{how}。"),
    "check": ("{what}: {measured}; claimed {claimed}: {outcome}.", "{what}：{measured}；说法要求 {claimed}：{outcome}。"),
    "seeds": ("About {n} more seeds would decide.", "再加约 {n} 个种子可有定论。"),
    "again": ("Again: `normlab claims --only {id}{flag}`.", "重新运行：`normlab claims --only {id}{flag}`。"),
}  # fmt: skip


def _said(key: str, lang: str, **values: object) -> str:
    return words.pick(SAID[key], lang).format(**values)


def tables(run: ClaimsRun, lang: str) -> str:
    """What stands between the markers."""
    by_id = run.by_id()
    known = [(claim, by_id[claim.id]) for claim in CLAIMS.values() if claim.id in by_id]
    machine = run.machine if isinstance(run.machine, dict) else {}
    lines = [
        _said("run", lang, budget=words.named_budget(run.budget, lang), machine=machine.get("cpu", "?"), workers=run.workers,
              torch=machine.get("torch", "?"), created=(run.created or "?")[:10], seconds=run.seconds or 0.0),
        words.summary_line(run.results, expected_false(run.results), lang), "", _said("head", lang), "|---|---|---|---|",
    ]  # fmt: skip
    for claim, result in known:
        verdict = words.pick(words.VERDICT[result.verdict], lang)
        lines.append(
            f"| {claim.id} | {words.cell(words.pick(claim.says, lang))} | {verdict} | {words.cell(words.deciding(claim, result, lang))} |"
        )
    lines += ["", _said("experiments", lang), ""]
    for claim, result in known:
        if has_figure(result):
            lines += [_paragraph(claim, result, lang), "", f"![{claim.id}]({FIGURES}/{name_of(claim.id, lang)})", ""]
    return "\n".join(lines)


def _paragraph(claim: Claim, result: ClaimResult, lang: str) -> str:
    space = words.pick((" ", ""), lang)
    parts = [_said("paragraph", lang, id=claim.id, source=claim.source, says=words.pick(claim.says, lang).replace("*", "\\*"),
                   verdict=words.pick(words.VERDICT[result.verdict], lang), budget=words.named_budget(result.budget, lang),
                   how=words.pick(claim.how, lang))]  # fmt: skip
    for number, check in enumerate(result.checks):
        if check.value is not None:
            parts.append(_said("check", lang, what=_sentence(words.pick(words.what_of(claim, number), lang)), measured=words.measured(check, lang),
                               claimed=words.claimed_range(check, lang), outcome=words.pick(words.OUTCOME[check.outcome], lang)))  # fmt: skip
    if result.further_seeds is not None:
        parts.append(_said("seeds", lang, n=result.further_seeds))
    if claim.literature is not None:
        parts.append(words.pick(claim.literature, lang))
    flag = {"quick": " --quick", "full": " --full"}.get(result.budget, "")
    parts.append(_said("again", lang, id=claim.id, flag=flag))
    return space.join(parts)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def write(run: ClaimsRun, docs: Path) -> list[Path]:
    """Between the markers of both pages; ValueError where a page has none."""
    return [between(docs / lang / "claims.md", START, END, tables(run, lang).rstrip()) for lang in words.LANGUAGES]


def between(page: Path, start: str, end: str, text: str) -> Path:
    """The page with this text between two of its lines."""
    before, found, rest = page.read_text(encoding="utf-8").partition(start + "\n")
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page} has no lines {start} and {end}")
    page.write_text(before + start + "\n" + text + "\n" + end + after, encoding="utf-8")
    return page
