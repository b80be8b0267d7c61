"""Recall and precision over a folder of labelled runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from normlab import machine
from normlab.diagnosis import RULES, diagnose

from .plants import KINDS

END = "<!-- end of table -->"


def mark(name: str) -> str:
    """Where the table of a set begins in the pages."""
    return f"<!-- table: make corpus SET={name} -->\n"


@dataclass
class Score:
    sick: int = 0
    named: int = 0
    healthy: int = 0
    silent: int = 0
    right: dict[str, int] = field(default_factory=dict)  # rule -> findings
    wrong: dict[str, int] = field(default_factory=dict)
    planted: dict[str, list[int]] = field(default_factory=dict)  # kind -> [named, runs]
    told: list[str] = field(default_factory=list)  # each miss and each wrong finding, in words

    @property
    def precision(self) -> float:
        right, wrong = sum(self.right.values()), sum(self.wrong.values())
        return right / max(1, right + wrong)

    @property
    def recall(self) -> float:
        return self.named / max(1, self.sick)


def score(folder: Path) -> Score:
    result = Score()
    for path in sorted(folder.glob("*/label.json")):
        label = json.loads(path.read_text(encoding="utf-8"))
        findings = diagnose(path.parent).findings
        kind = KINDS.get(label["kind"])
        named = False
        for finding in findings:
            right = kind is not None and finding.rule in (*kind.names, *kind.also)
            if kind is not None and finding.rule in kind.names and label["site"] is not None:
                right = finding.site == label["site"]
            if kind is not None and finding.rule in kind.names and right:
                if label["step"] is None or (
                    finding.steps[0] <= label["step"] + 5 and finding.steps[1] >= label["step"] - 5
                ):
                    named = True
                else:
                    right = False
            table = result.right if right else result.wrong
            table[finding.rule] = table.get(finding.rule, 0) + 1
            if not right:
                result.told.append(
                    f"wrong: {finding.rule} at {finding.site}, {finding.steps}, in {label['kind']}: {label['name']}"
                )
        if kind is None:
            result.healthy += 1
            result.silent += not findings
        else:
            result.sick += 1
            result.named += named
            counts = result.planted.setdefault(label["kind"], [0, 0])
            counts[0] += named
            counts[1] += 1
            if not named:
                result.told.append(f"missed: {label['kind']}: {label['name']}; said {[f.rule for f in findings]}")
    return result


def table(result: Score) -> str:
    """In words and rows."""
    right, wrong = sum(result.right.values()), sum(result.wrong.values())
    rows = [
        f"sick {result.sick}, named {result.named} ({result.recall:.1%}); healthy {result.healthy}, silent {result.silent}; "
        f"findings {right + wrong}, right {right} ({result.precision:.1%})",
        *(f"  {rule:<28} {result.right.get(rule, 0):>3} right {result.wrong.get(rule, 0):>3} wrong"
          for rule in RULES if rule in result.right or rule in result.wrong),
        *(f"  {kind:<40} {named} of {runs}" for kind, (named, runs) in result.planted.items()),
        *result.told,
    ]  # fmt: skip
    return "\n".join(rows)


WORDS = {
    "en": ("{sick} sick runs of {kinds} kinds, {named} named: recall {recall:.1%}. {healthy} healthy runs, {silent} without a finding. "
           "{findings} findings, {right} right: precision {precision:.1%}. torch {torch}, {cpu}.",
           "| planted | named | of |", "| rule | right | wrong |", "What went wrong:", "Nothing went wrong."),
    "zh": ("有病的运行 {sick} 份，{kinds} 种，说中 {named} 份：召回率 {recall:.1%}。健康的运行 {healthy} 份，没有诊断结果的 {silent} 份。"
           "诊断结果共 {findings} 条，正确 {right} 条：精确率 {precision:.1%}。torch {torch}，{cpu}。",
           "| 埋下的毛病 | 说中 | 总数 |", "| 规则 | 正确 | 错误 |", "出错的有：", "没有出错的。"),
}  # fmt: skip


def write(result: Score, docs: Path, name: str) -> None:
    """Into the page of each language, between the marks."""
    right, wrong = sum(result.right.values()), sum(result.wrong.values())
    for language, (head, planted, rules, told, fine) in WORDS.items():
        lines = [
            head.format(sick=result.sick, kinds=len(result.planted), named=result.named, recall=result.recall, healthy=result.healthy,
                        silent=result.silent, findings=right + wrong, right=right, precision=result.precision,
                        torch=torch.__version__, cpu=machine.description()["cpu"]),
            "", planted, "|---|---|---|", *(f"| {kind} | {n} | {of} |" for kind, (n, of) in sorted(result.planted.items())),
            "", rules, "|---|---|---|",
            *(f"| {r} | {result.right.get(r, 0)} | {result.wrong.get(r, 0)} |" for r in RULES if r in result.right or r in result.wrong),
            "", told if result.told else fine, "", *(f"- `{line}`" for line in result.told),
        ]  # fmt: skip
        page = docs / language / "diagnosis.md"
        before, found, rest = page.read_text(encoding="utf-8").partition(mark(name))
        if not found:
            raise SystemExit(f"{page} has no place for the set {name}: {mark(name).strip()}")
        page.write_text(
            before + mark(name) + "\n".join(lines).rstrip() + "\n" + END + rest.partition(END)[2], encoding="utf-8"
        )
