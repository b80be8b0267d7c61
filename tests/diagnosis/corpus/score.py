"""Recall and precision over a folder of labelled runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from normlab.diagnosis import RULES, diagnose

from .plants import KINDS


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
