"""What a rule finds, and all that the rules of a run found together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .words import rule_in, say

SEVERITIES = ("critical", "warning", "note")
FEW = 12  # readings of a quantity below which no window is drawn: a third of them is four


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where and when, and what to do about it."""

    rule: str
    severity: str  # one of SEVERITIES
    site: str | None  # None: the model as a whole
    steps: tuple[int, int]  # first and last step of the evidence
    verdict: str
    why: str
    try_: tuple[str, ...]
    source: str = ""  # where the threshold or the advice comes from
    language: str = "en"

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "severity": self.severity, "site": self.site, "steps": list(self.steps),
                "verdict": self.verdict, "why": self.why, "try": list(self.try_), "source": self.source}  # fmt: skip

    def __str__(self) -> str:
        first, last = self.steps
        language = self.language
        when = say(language, "step" if first == last else "steps", first=first, last=last)
        heads = [say(language, key) for key in ("why", "try", "evidence")]
        wide = 1 + max(9, *map(len, heads))
        lines = [
            f"{say(language, self.severity)}{say(language, 'colon')}{rule_in(language, self.rule)}",
            f"  {self.verdict}",
            f"  {heads[0]:<{wide}}{self.why}",
        ]
        lines += [f"  {heads[1] if n == 0 else '':<{wide}}{text}" for n, text in enumerate(self.try_)]
        evidence = ", ".join(part for part in (self.site or say(language, "whole-model"), when, self.source) if part)
        return "\n".join([*lines, f"  {heads[2]:<{wide}}{evidence}"])


@dataclass(frozen=True)
class Blind:
    """A rule that could not look: it had so many readings of what it reads, and needs more."""

    rule: str
    quantity: str
    readings: int
    needed: int


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found, the gravest first; true if there is anything. ``blind``: rules that had too few readings to look,
    ``change``: what would give them more."""

    findings: tuple[Finding, ...]
    name: str
    last_step: int
    recorded: int  # steps with readings other than the loss
    quantities: tuple[str, ...]
    language: str = "en"
    blind: tuple[Blind, ...] = ()
    change: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.name, "last_step": self.last_step, "recorded_steps": self.recorded,
                "quantities": list(self.quantities), "findings": [f.to_dict() for f in self.findings],
                "could_not_look": [asdict(b) for b in self.blind], "change": list(self.change)}  # fmt: skip

    def _unseen(self) -> str:
        """Which rules could not look, those with as many readings together, and what to change."""
        language, counts = self.language, dict.fromkeys((b.readings, b.needed) for b in self.blind)
        parts = [
            say(language, "blind-some", readings=had, needed=needed,
                rules=say(language, "comma").join(rule_in(language, b.rule) for b in self.blind if (b.readings, b.needed) == (had, needed)))
            for had, needed in counts
        ]  # fmt: skip
        if not parts:
            return ""
        semicolon, stop = say(language, "semicolon"), say(language, "stop")
        text = say(language, "blind") + semicolon.join(parts) + stop
        return text + (say(language, "change") + semicolon.join(self.change) + stop if self.change else "")

    def __str__(self) -> str:
        language = self.language
        looked = say(
            language,
            "looked",
            name=self.name,
            steps=self.last_step,
            recorded=self.recorded,
            quantities=len(self.quantities),
        )
        few = (say(language, "few", few=FEW) if self.recorded < FEW else "") + self._unseen()
        if not self.findings:
            return f"{looked}{say(language, 'none')}{few}"
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        total = ", ".join(say(language, f"count-{s}-{'one' if n == 1 else 'many'}", count=n) for s, n in counts if n)
        return "\n\n".join([f"{looked}{total}{say(language, 'stop')}{few}", *map(str, self.findings)])
