"""The table of claims: complete, in both languages, and every number that a rule names is measured by something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normlab.claims import CLAIMS, Check, Claim, Fact, chosen
from normlab.claims.designs import DESIGNS, first_budget
from normlab.claims.exact.structure import IN_THE_WILD
from normlab.claims.page import tables
from normlab.claims.shipped import best_shipped
from normlab.claims.sources.s1_placement import TABLE_5
from normlab.runs import BUDGETS

HAN = re.compile(r"[\u4e00-\u9fff]")
ROOT = Path(__file__).resolve().parents[2]


def test_all_98_have_an_entry_and_the_contradictions_follow():
    ids = list(CLAIMS)
    assert ids[:98] == [f"C{n}" for n in range(1, 99)]
    assert ids[98:] == [f"X{n}" for n in range(1, 14)]


def words_of(claim: Claim) -> list[tuple[str, str]]:
    found = [claim.says, claim.how, *(c.what for c in claim.checks), *(f.what for f in claim.facts)]
    return found + [w for w in (claim.untestable, claim.literature) if w is not None]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_both_languages_say_it(claim: Claim):
    for english, chinese in words_of(claim):
        assert english and not HAN.search(english)
        # A formula or a list of names reads the same in both.
        assert chinese and (
            HAN.search(chinese) or not re.search(r"[a-z]{4}", chinese.replace("sqrt", "")) or "Norm" in chinese
        )


@pytest.mark.parametrize("design", DESIGNS.values(), ids=list(DESIGNS))
def test_designs_are_described_and_have_budgets(design):
    assert HAN.search(design.about[1]) and not HAN.search(design.about[0])
    assert design.sizes and set(design.sizes) <= set(BUDGETS)
    assert all(size.seeds >= 3 for size in design.sizes.values()), "an interval needs three"


def test_every_design_serves_a_claim():
    named = {name for claim in CLAIMS.values() for name in claim.designs}
    assert set(DESIGNS) == named, "and no claim waits for one that is not there"


@pytest.mark.parametrize("claim", [c for c in CLAIMS.values() if c.measure], ids=lambda c: c.id)
def test_exact_numbers_are_measured_under_the_names_of_the_rule(claim: Claim):
    assert claim.measure is not None
    found = claim.measure()
    if not claim.designs:
        assert {c.quantity for c in claim.checks} <= set(found)
    assert all(isinstance(v, float) for v in found.values())


def test_a_claim_that_could_not_fail_is_refused():
    check = Check(quantity="a", what=("a", "甲"), most=1.0, core=False)
    with pytest.raises(ValueError, match="nothing of it is core"):
        Claim(id="C0", source="S0", kind="exact", says=("a", "甲"), how=("b", "乙"), checks=(check,), measure=dict)
    with pytest.raises(ValueError, match="needs checks or facts"):
        Claim(id="C0", source="S0", kind="exact", says=("a", "甲"), how=("b", "乙"))
    with pytest.raises(ValueError, match="something that measures"):
        Claim(id="C0", source="S0", kind="exact", says=("a", "甲"), how=("b", "乙"), checks=(Check(quantity="a", what=("a", "甲"), most=1.0),))  # fmt: skip
    with pytest.raises(ValueError, match="needs checks or facts"):
        fact = Fact(what=("a", "甲"), source="b", agrees=True)
        Claim(
            id="C0",
            source="S0",
            kind="definition",
            says=("a", "甲"),
            how=("b", "乙"),
            facts=(fact,),
            untestable=("c", "丙"),
        )


@pytest.mark.parametrize("given", [{}, {"least": 2.0, "most": 1.0}, {"least": 0.0, "most": 1.0, "margin": 0.1}, {"most": 0.0, "margin": -1.0}])  # fmt: skip
def test_a_check_without_a_range_is_refused(given):
    with pytest.raises(ValueError, match="a"):
        Check(quantity="a", what=("a", "甲"), **given)


def test_choosing():
    assert [c.id for c in chosen(["c93", " X1"])] == ["C93", "X1"]
    assert {c.id for c in chosen(source="S4")} >= {f"C{n}" for n in range(84, 99)}
    assert "X2" in {c.id for c in chosen(source="S4")}, "a contradiction belongs to both of its documents"
    with pytest.raises(ValueError, match="C93"):
        chosen(["C9Z3"])
    with pytest.raises(ValueError, match="S4"):
        chosen(source="S9")


def test_counts_of_placements_are_those_of_the_table_in_the_documentation():
    page = (ROOT / "docs" / "en" / "inspect.md").read_text(encoding="utf-8")
    table = page.partition("<!-- table: make zoo -->\n")[2].partition("<!--")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")][2:]
    placements = [row[4] for row in rows]
    assert {"all": len(placements), "post": placements.count("post"), "pre": sum(p in ("pre", "pre, parallel") for p in placements)} == IN_THE_WILD  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_lists_the_designs_with_their_first_budget(lang):
    page = (ROOT / "docs" / lang / "claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (\w+) \|$", page, flags=re.M)
    assert dict(rows) == {d.name: first_budget(d) for d in DESIGNS.values()} and len(rows) == len(DESIGNS)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readmes_numbers_are_those_of_the_shipped_run(page):
    run = best_shipped()
    assert run is not None
    text, found = (ROOT / page).read_text(encoding="utf-8"), run.by_id()
    told = {"C96": (0, 1), "C95": (0,), "C17": (0, 1), "C69": (0, 1), "C86": (0,)}  # which of a claim's numbers
    intervals = {("C17", 0), ("C69", 0), ("C69", 1)}
    for claim, numbers in told.items():
        row = next(line for line in text.splitlines() if line.startswith("|") and claim in line)
        assert found[claim].verdict == "fails"
        for number in numbers:
            check = found[claim].checks[number]
            ends = [check.value, *([check.low, check.high] if (claim, number) in intervals else [])]
            if claim == "C69":  # log10 of a ratio
                ends = [10**value for value in ends]
            for value in ends:
                assert any(f"{abs(value):{form}}" in row for form in (".4g", ".3g", ".1f")), (claim, value)
    assert f"docs/figures/claims/C17.{'zh' if 'zh' in page else 'en'}.svg" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_pages_tables_are_those_of_the_shipped_run(lang):
    run = best_shipped()
    assert run is not None
    page = (ROOT / "docs" / lang / "claims.md").read_text(encoding="utf-8")
    assert tables(run, lang).rstrip() in page, "normlab claims --write docs"


def test_minimax_has_eight_benchmarks_and_one_that_pre_norm_wins():
    assert [name for name, (pre, post) in TABLE_5.items() if pre >= post] == ["WinoGrande"] and len(TABLE_5) == 8
