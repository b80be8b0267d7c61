"""What is shown of a run of claims: figures, the page, two runs beside each other; on planted numbers."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from normlab import cli
from normlab.claims import CLAIMS, compare, figures, html, words
from normlab.claims.page import tables
from normlab.claims.run import judge_one
from normlab.claims.shipped import best_folder, best_shipped
from normlab.runs import CheckResult, ClaimResult, ClaimsRun, Evidence, read_claims, write_claims, write_evidence

ROOT = Path(__file__).resolve().parents[2]
MOST = 15_000  # bytes of a figure
POST, PRE = {0: 3.1, 1: 3.2, 2: 3.3}, {0: 2.1, 1: 2.2, 2: 2.4}
WARM = Evidence(arms={"warm-up": {
    "post, no warm-up": POST, "pre, no warm-up": PRE, "post, warm-up": {0: 2.2, 1: 2.3, 2: 2.35}, "pre, warm-up": {0: 2.21, 1: 2.31, 2: 2.33},
}})  # fmt: skip


@pytest.fixture
def planted(tmp_path) -> Path:
    """A run with a claim from samples, an exact one, one that cannot be tested and one that did not run."""
    exact = {"C93": Evidence(numbers=dict(CLAIMS["C93"].measure()))}
    results = [
        judge_one(CLAIMS[c], exact.get(c, Evidence()), {"warm-up": WARM}, "default")
        for c in ("C17", "C82", "C93", "C26")
    ]
    write_evidence(tmp_path, "warm-up", WARM)
    write_claims(tmp_path, ClaimsRun(budget="default", machine={"cpu": "<b>bold</b>"}, results=tuple(results)))
    return tmp_path


# ---- figures ---------------------------------------------------------------------------------------------------------


def texts(svg: str) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_a_figure_has_arms_seeds_and_the_words_of_its_numbers(planted):
    pytest.importorskip("matplotlib")
    paths = figures.write(planted, planted / "figures")
    assert [p.name for p in paths] == ["C17.en.svg", "C17.zh.svg"], "one per claim from samples and language"
    english, chinese = (p.read_text(encoding="utf-8") for p in paths)
    assert {"post, no warm-up", "pre, no warm-up", "without warm-up, post minus pre, nats per byte, 3 seeds"} <= set(
        texts(english)
    )
    assert "不预热，后置减前置，奈特/字节，3 个种子" in texts(chinese)
    # Two rows; of each, three seeds in both arms and three differences.
    assert english.count('class="d"') == 2 * (2 * 3 + 3)
    assert len(english.encode()) < MOST and "<script" not in english
    again = figures.svg(CLAIMS["C17"], read_claims(planted).results[0], WARM, "en")
    assert again == english, "the same numbers give the same bytes"


def test_what_is_judged_is_the_difference_seed_by_seed():
    check = CheckResult(quantity="post, no warm-up", against="pre, no warm-up", outcome="true", n=3)
    assert figures.judged_values(check, WARM) == pytest.approx({0: 1.0, 1: 1.0, 2: 0.9})
    alone = CheckResult(quantity="drawn", outcome="true", n=2)
    assert figures.judged_values(alone, Evidence(by_seed={"drawn": {0: 0.5, 1: 0.7}})) == {0: 0.5, 1: 0.7}
    assert figures.judged_values(check, Evidence()) == {} and figures.arms_of(alone, WARM) is None


def test_words_are_wrapped_by_width():
    assert figures.wrapped("one two three", 8) == ["one two", "three"]
    assert figures.wrapped("不预热后置减前置", 8) == ["不预热后", "置减前置"]


def test_figures_of_claims_as_files(planted, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["report", str(planted), "--figures", "svg", "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "C17.zh.svg").exists()
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", str(tmp_path / "empty"), "--figures", "svg"]) == 1
    write_claims(tmp_path / "exact", ClaimsRun(budget="quick", results=read_claims(planted).results[1:3]))
    assert cli.main(["report", str(tmp_path / "exact"), "--figures", "svg"]) == 1
    assert "nothing to draw" in capsys.readouterr().err


def test_the_figures_of_the_pages_are_there():
    run, folder = best_shipped(), best_folder()
    assert run is not None and folder is not None
    for lang in ("en", "zh"):
        for link in re.findall(r"!\[C\d+\]\(([^)]*)\)", tables(run, lang)):
            path = (ROOT / "docs" / lang / link).resolve()
            assert path.exists() and path.stat().st_size < MOST, "normlab claims --write docs"


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_every_claim_with_its_numbers_in_both_languages(planted, capsys):
    assert cli.main(["report", str(planted)]) == 0
    page = (planted / "report.html").read_text(encoding="utf-8")
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    data = json.loads(held)["view"]
    assert [(row["id"], row["verdict"]) for row in data["rows"]] == [
        ("C17", "fails"),
        ("C82", "untestable"),
        ("C93", "fails"),
        ("C26", "not run"),
    ]
    for row in data["rows"]:
        assert tuple(row["says"][lang] for lang in ("en", "zh")) == CLAIMS[row["id"]].says
    assert "0.9667" in held and "3 个种子" in held and "its experiment has not finished" in held
    assert "http://" not in held and "https://" not in held and "<b>bold" not in page and "<" not in held
    assert len(re.findall(r"<script>", page)) == 1 and "script-src 'sha256-" in page


def test_the_page_as_data(planted, capsys):
    assert cli.main(["report", str(planted), "--json"]) == 0
    assert '"schema": "normlab.claims/1"' in capsys.readouterr().out and not (planted / "report.html").exists()


def test_a_number_is_drawn_against_its_range():
    found = html.drawn(CheckResult(quantity="a", least=0.0, value=1.0, low=0.5, high=1.5, outcome="true", n=3))
    assert found is not None
    assert 0 < found.range_from < found.low < found.at < found.high < found.range_to == html.WIDTH
    assert html.drawn(CheckResult(quantity="a", least=0.0, outcome="undecided")) is None
    exact = html.drawn(CheckResult(quantity="a", least=2.0, most=2.0, value=2.0, low=2.0, high=2.0, outcome="true"))
    assert exact is not None and exact.at == exact.low == exact.range_from == html.WIDTH / 2


# ---- two runs --------------------------------------------------------------------------------------------------------


def run_of(**verdicts: str) -> ClaimsRun:
    """All from samples but C93 and C96."""
    results = [ClaimResult(id=c, verdict=v, budget="default", checks=(CheckResult(quantity="a", outcome="true", n=0 if c in ("C93", "C96") else 3),))
               for c, v in verdicts.items()]  # fmt: skip
    return ClaimsRun(budget="default", results=tuple(results))


FIRST = run_of(
    C1="holds", C2="fails", C4="holds", C9="conditions", C10="undecided", C12="holds", C93="fails", C96="fails"
)
SECOND = run_of(
    C1="holds", C2="holds", C4="undecided", C9="conditions", C10="holds", C12="not run", C93="fails", C96="holds"
)


def test_what_two_runs_agree_on():
    rows = compare.rows_of(FIRST, SECOND)
    assert {r.id: r.outcome for r in rows} == {
        "C1": "same",
        "C2": "other",
        "C4": "open",
        "C9": "same",
        "C10": "open",
        "C93": "same",
        "C96": "other",
    }
    assert compare.repeated(rows) == compare.Agreement(2, 4), (
        "of four that the first decides; undecided is not the same"
    )
    assert compare.where_both_decide(rows) == compare.Agreement(2, 3) and compare.without_samples(
        rows
    ) == compare.Agreement(1, 2)
    assert compare.repeated(rows).percent == 50 and compare.Agreement(0, 0).percent == 100


def test_comparing_on_the_terminal(tmp_path, capsys):
    write_claims(tmp_path / "a", FIRST)
    write_claims(tmp_path / "b", SECOND)
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert cli.main(["claims", "compare", *both, "--lang", "en"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "Of 4 verdicts that experiments decided in the first run, 2 come out the same in the second (50 %); undecided there: 1, different: 1"
        in out
    )
    assert cli.main(["claims", "compare", *both, "--json"]) == 0
    assert '"repeated": 2' in capsys.readouterr().out
    assert (
        cli.main(["claims", "compare", both[0]]) == 2 and cli.main(["claims", "compare", both[0], str(tmp_path)]) == 1
    )
    assert capsys.readouterr().err.count("\n") == 2


def test_the_table_of_two_runs_goes_into_the_pages(tmp_path, capsys):
    for lang in ("en", "zh"):
        (tmp_path / lang).mkdir()
        (tmp_path / lang / "claims.md").write_text(
            f"before\n{compare.START}\nold\n{compare.END}\nafter\n", encoding="utf-8"
        )
    write_claims(tmp_path / "a", FIRST)
    write_claims(tmp_path / "b", SECOND)
    assert cli.main(["claims", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--write", str(tmp_path)]) == 0
    page = (tmp_path / "zh" / "claims.md").read_text(encoding="utf-8")
    assert page.startswith("before\n") and page.endswith(f"{compare.END}\nafter\n") and "old" not in page
    assert "| C2 |" in page and "| C93 |" not in page, "identities are no news"
    (tmp_path / "en" / "claims.md").write_text("nothing", encoding="utf-8")
    assert cli.main(["claims", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--write", str(tmp_path)]) == 1
    for lang in ("en", "zh"):
        assert compare.START in (ROOT / "docs" / lang / "claims.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_run_of_another_version_is_told_as_far_as_it_is_known(lang):
    """Its claims may have more numbers, none at all, or reasons that are not known here."""
    claim = CLAIMS["X6"]
    known = len(claim.checks) + len(claim.facts)
    check = CheckResult(quantity="a", outcome="true", value=1.0, n=3)
    more = ClaimResult(id="X6", verdict="holds", budget="quick", checks=(check,) * known + (CheckResult(quantity="b", outcome="false"),))  # fmt: skip
    assert words.deciding(claim, more, lang).startswith(words.pick(words.what_of(claim, 0), lang))
    assert words.deciding(claim, ClaimResult(id="X6", verdict="holds", budget="quick"), lang) == "-"
    novel = ClaimResult(id="X6", verdict="not run", budget="quick", reason="novel")
    assert words.deciding(claim, novel, lang) == "novel"
    view = html.view(ClaimsRun(budget="quick", results=(more, novel)))
    assert [len(row["checks"]) for row in view["rows"]] == [known, 0]


def test_the_budget_has_a_word():
    later = ClaimResult(id="X6", verdict="not run", budget="quick", reason="budget default")
    assert "默认" in words.deciding(CLAIMS["X6"], later, "zh") and "default" in words.deciding(
        CLAIMS["X6"], later, "en"
    )
    assert "预算：默认" in html.view(ClaimsRun(budget="default"))["about"]["zh"]
