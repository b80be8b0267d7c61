"""The page of a run of claims in a real browser: both languages, a desk and a telephone, its filters."""

from __future__ import annotations

import pytest

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
def test_it_fits_speaks_one_language_and_filters(browser, address, width, lang):
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{address}#{lang}")
    shown = page.locator("article:visible")
    everything = shown.count()
    assert everything == int(page.locator("#count").inner_text()) > 60
    heading = page.locator("h1").inner_text()
    assert ("说法" in heading) == (lang == "zh")
    page.locator("article#C93 summary").click()
    assert page.locator("article#C93 table").is_visible() and page.locator("article#C93 svg").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    page.locator("[data-verdict-box=fails]").check()
    fails = shown.count()
    page.select_option("#source", "S4")
    assert 0 < shown.count() < fails < everything
    page.fill("#search", "no such words anywhere")
    assert shown.count() == 0 and page.locator("#none").is_visible()
    page.locator("#switch").click()
    assert page.locator("h1").inner_text() != heading
    assert not said, "no complaint, and nothing that the policy forbids"
    page.close()
