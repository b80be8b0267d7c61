"""Every page of the explorer in a browser: both languages, both themes, wide and narrow, by mouse and by keyboard."""

from __future__ import annotations

import re
import time

import network_cases
import pytest
from page_script import numbers, script

from normlab.report import explore

PAGES = [key.split(".")[1] for key in explore.text_table("en") if re.fullmatch(r"page\.\w+", key)]

# Elements whose right edge lies outside of the window, those aside that scroll inside of a parent.
CUT = """() => [...document.querySelectorAll("main *, header *, footer *")].filter((e) => {
  const box = e.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 1 && box.left >= -1) return false;
  for (let p = e; p; p = p.parentElement) {
    const style = getComputedStyle(p);
    if (["auto", "scroll"].includes(style.overflowX) || style.clipPath !== "none" || p.classList.contains("skip") || p.type === "radio") return false;
  }
  return true;
}).map((e) => e.tagName + "." + e.className + " " + (e.textContent || "").slice(0, 40))"""


@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_fits_and_is_accessible(visit, address, axe, language, theme, width):
    with visit(width=width, theme=theme, locale={"en": "en-GB", "zh": "zh-CN"}[language]) as v:
        v.page.goto(address)
        v.page.evaluate(axe)
        for name in PAGES:
            v.page.click(f"nav a[href='#page={name}']")
            title = explore.text_table(language)[f"page.{name}"]
            assert v.page.title() == f"{title} · normlab" and v.page.locator("h1").count() == 1
            assert v.page.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
            assert v.page.evaluate("document.documentElement.dataset.theme") == theme
            assert v.page.evaluate("document.documentElement.scrollWidth") <= width
            assert v.page.evaluate(CUT) == [], name
            found = v.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            grave = [(i["id"], [n["html"][:120] for n in i["nodes"][:3]]) for i in found["violations"] if i["impact"] in ("serious", "critical")]  # fmt: skip
            assert not grave, (name, grave)


def test_no_text_stands_outside_of_the_tables(visit, tmp_path):
    """With every text replaced by a mark, no letter is seen outside of marks, but for names, units and formulas."""
    marked = {
        language: {
            key: "⟦" + " ".join(re.findall(r"{\w+}", text)) + "⟧" for key, text in explore.text_table(language).items()
        }
        for language in explore.LANGUAGES
    }
    path = tmp_path / "marked.html"
    path.write_text(explore.render(marked), encoding="utf-8")
    seen = """() => [...document.querySelectorAll("body *:not(script):not(style)")].flatMap((e) => e.closest("[translate=no]") ? [] : [
        ...[...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data), e.getAttribute("aria-label"), e.title].filter(Boolean))"""
    with visit() as v:
        for name in PAGES:
            v.page.goto(f"{path.as_uri()}#page={name}")
            v.page.reload()
            texts = v.page.evaluate(seen)
            assert len([t for t in texts if "⟦" in t]) > 10, name
            bare = [re.sub(r"⟦[^⟧]*⟧|\b(NaN|[ABNCHWdLGB])\b", "", text) for text in texts]
            assert not [t for t in bare if re.search(r"[A-Za-z\u4e00-\u9fff]{2,}", t)], name


def test_language_and_theme_are_switched_and_remembered(visit, address):
    with visit(locale="en-US") as v:
        v.page.goto(address)
        assert v.page.locator("h1").inner_text() == explore.text_table("en")["playground.title"]
        v.page.click("#language")
        assert (
            "lang=zh" in v.page.url
            and v.page.locator("h1").inner_text() == explore.text_table("zh")["playground.title"]
        )
        assert v.page.evaluate("document.activeElement.id") == "language"
        v.page.click("#theme")
        assert "theme=dark" in v.page.url and v.page.evaluate("document.documentElement.dataset.theme") == "dark"
        v.page.reload()
        assert v.page.evaluate("document.documentElement.lang") == "zh-CN"
        assert v.page.evaluate("document.documentElement.dataset.theme") == "dark"
    with visit(locale="zh-CN") as v:
        v.page.goto(address + "#lang=en")
        assert v.page.evaluate("document.documentElement.lang") == "en", "the address outweighs the browser"
        v.page.goto(address + "#lang=<b>&page=nowhere&theme=pink")
        assert v.page.evaluate("document.documentElement.lang") == "zh-CN" and v.page.locator("h1").count() == 1


def until(page, condition: str, seconds: float = 30) -> None:
    """wait_for_function would evaluate text inside of the page, which its policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def step_of(page, side: str) -> int:
    return int(re.findall(r"step (\d+)", page.locator(f".side.{side} .status").inner_text())[0])


def test_the_playground_plays_pauses_steps_and_resets(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address)
        page.get_by_role("button", name="Play", exact=True).click()
        until(page, "Number(document.querySelector('.side.a .status').textContent.match(/step (\\d+)/)[1]) > 20")
        page.get_by_role("button", name="Pause", exact=True).click()
        at = step_of(page, "a")
        assert at == step_of(page, "b"), "both sides walk together"
        page.wait_for_timeout(200)
        assert step_of(page, "a") == at
        page.get_by_role("button", name="One step").click()
        assert step_of(page, "a") == step_of(page, "b") == at + 1
        assert page.locator(".charts path.line").count() >= 8
        assert "effective depth" in page.locator(".charts").inner_text()
        page.click("#language")
        assert f"第 {at + 1} 步" in page.locator(".side.a .status").inner_text(), "the trainings outlive the language"
        page.click("#language")
        page.get_by_role("button", name="Reset").click()
        assert step_of(page, "a") == 0


def test_a_link_repeats_the_experiment(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address)
        page.locator(".side.a select").first.select_option("rms")
        page.locator(".side.b .slider input").first.focus()
        page.keyboard.press("ArrowRight")
        link = page.url
        assert "norm:rms" in link and "depth:33" in link
        for _ in range(3):
            page.get_by_role("button", name="One step").click()
        seen = [page.locator(f".side.{side} .status").inner_text() for side in "ab"] + [
            page.locator("figcaption").nth(1).inner_text()
        ]
    with visit() as v:
        v.page.goto(link)
        for _ in range(3):
            v.page.get_by_role("button", name="One step").click()
        assert seen == [v.page.locator(f".side.{side} .status").inner_text() for side in "ab"] + [
            v.page.locator("figcaption").nth(1).inner_text()
        ]
        assert v.page.locator(".side.a select").first.input_value() == "rms"


def test_a_divergence_is_said(visit, address):
    with visit() as v:
        v.page.goto(address + "#a=norm:none,depth:32,rate:3,optimizer:sgd&b=norm:none,depth:32,rate:3,optimizer:sgd")
        v.page.get_by_role("button", name="Play", exact=True).click()
        v.page.wait_for_selector(".side.a .status.bad")
        assert v.page.locator(".side.a .status").inner_text().startswith("diverged at step")
        v.page.wait_for_selector("button:has-text('Play')")  # nothing is left to train


def test_presets_start_their_claim(visit, address):
    with visit() as v:
        v.page.goto(address)
        for button in v.page.locator(".presets button").all():
            button.click()
            assert button.get_attribute("aria-pressed") == "true"
            until(
                v.page,
                "Number((document.querySelector('.side.b .status').textContent.match(/step (\\d+)/) ?? [0, 9])[1]) > 1",
            )
        assert v.page.locator(".presets [aria-pressed=true]").count() == 1


def test_the_arithmetic_in_this_browser_agrees_with_torch(visit):
    cases = network_cases.cases()
    with visit() as v:
        v.page.goto("about:blank")
        v.asked.clear()
        found = v.page.evaluate(f"(questions) => {{ {script()}; return exported.answers(questions); }}", cases)
    for case, answer in zip(cases, numbers(found), strict=True):
        network_cases.assert_agrees(case, answer)
