"""Numbers in the READMEs that the code knows better."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normlab.diagnosis import RULES

ROOT = Path(__file__).resolve().parents[2]


def quantities() -> list[str]:
    """Those of the table in watch.md, which another test holds against the probes."""
    page = (ROOT / "docs" / "en" / "watch.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| quantity .*?\n\n", page, flags=re.M | re.S)
    return [name for row in table.split("\n")[2:-2] for name in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("page", "rules", "recorded"),
    [("README.md", r"(\d+) rules", r"(\d+) quantities"), ("README.zh.md", r"(\d+) 条规则", r"(\d+) 项指标")],
)
def test_rules_and_quantities_are_counted_right(page, rules, recorded):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(rules, text)] == [len(RULES)]
    assert [int(n) for n in re.findall(recorded, text)] == [len(quantities())]
