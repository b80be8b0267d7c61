"""The page of a run of claims in a real browser: both languages, a desk and a telephone, its filters."""

from __future__ import annotations

import pytest
from test_run_pages import grave

from normlab.claims import html
from normlab.claims.shipped import best_shipped


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    run = best_shipped()
    assert run is not None
    path = tmp_path_factory.mktemp("claims") / "report.html"
    path.write_text(html.render(run), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_speaks_one_language_and_filters(visit, axe, address, width, lang, theme):
    with visit(width=width, theme=theme) as v:
        page = v.page
        page.goto(f"{address}#lang={lang}")
        page.evaluate(axe)
        shown = page.locator("article:visible")
        everything = shown.count()
        assert everything > 60 and str(everything) in page.locator("#count").inner_text()
        heading = page.locator("h1").inner_text()
        assert ("说法" in heading) == (lang == "zh")
        page.locator("article#C93 summary").click()
        assert page.locator("article#C93 table").is_visible() and page.locator("article#C93 svg").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
        assert not grave(page)
        page.locator("fieldset.keys input").nth(2).check()
        fails = shown.count()
        page.locator("select").select_option("S4")
        assert 0 < shown.count() < fails < everything
        page.locator("input[type=text]").fill("no such words anywhere")
        assert shown.count() == 0 and page.locator("#count").is_visible()
        page.locator("#language").click()
        assert page.locator("h1").inner_text() != heading and shown.count() == 0, "what was searched stays"


def test_a_claim_in_the_address_is_open(visit, address):
    with visit() as v:
        v.page.goto(f"{address}#claim=C17")
        assert v.page.locator("article#C17 table").is_visible() and v.page.locator("article table").count() == 1
