"""What tests of the diagnosis ask of a run: its findings by rule, or the one that must stand alone."""

from __future__ import annotations

from typing import Any

from normlab.diagnosis import Finding, diagnose


def named(run: Any, **options: Any) -> dict[str, Finding]:
    return {f.rule: f for f in diagnose(run, **options).findings}


def only(run: Any, rule: str) -> Finding:
    found = named(run)
    assert list(found) == [rule], str(diagnose(run))
    return found[rule]
