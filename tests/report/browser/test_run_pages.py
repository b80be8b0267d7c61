"""The pages over runs in a browser, served and as a file: both languages, both themes, wide and narrow, live, and with hostile names."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import run_folders
from run_folders import SCRIPT
from test_pages import CUT, until

from normlab import report
from normlab.report import explore, pages
from normlab.report.serve import App, Server, bind

RUN_PAGES = ["run-diagnosis", "run-depth", "run-statistics", "run-geometry"]
TEXT = {language: explore.text_table(language) for language in explore.LANGUAGES}


@dataclass
class Served:
    address: str
    folder: Path
    server: Server


def serving(folder: Path) -> Iterator[Served]:
    bound = bind("127.0.0.1", 0)
    server = Server(App(folder))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound.socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(bound.address, folder, server)
    server.handle_exit(signal.SIGINT, None)
    thread.join(10)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    import test_report

    folder = tmp_path_factory.mktemp("served") / "runs"
    run_folders.full_run(folder / "full")
    run_folders.small_run(folder / "small")
    run_folders.hostile_run(folder / SCRIPT)
    run_folders.damaged_run(folder / "damaged")
    test_report.make_sweep(folder / "比较 a")
    yield from serving(folder)


def grave(page: Any) -> list[Any]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(i["id"], [n["html"][:160] for n in i["nodes"][:3]]) for i in found["violations"] if i["impact"] in ("serious", "critical")]  # fmt: skip


PLACES = {
    "list": "#page=run-list",
    **{page: f"#run=full&page={page}" for page in RUN_PAGES},
    "small": "#run=small&page=run-statistics",
    "compare": f"#sweep={quote('比较 a')}",
    "trial": f"#run={quote('比较 a/trials/layer-post-lr0.001-seed1', safe='')}",
    "damaged": "#run=damaged",
}


@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_fits_and_is_accessible(visit, served, axe, language, theme, width):
    locale = {"en": "en-GB", "zh": "zh-CN"}[language]
    with visit(width=width, theme=theme, locale=locale, origin=served.address) as v:
        for name, place in PLACES.items():
            v.page.goto("about:blank")
            v.page.goto(served.address + place)
            until(
                v.page,
                "document.querySelector('h1') !== null && !document.title.match(/^(Loading|载入中)/) || document.querySelector('.bad') !== null",
            )
            v.page.evaluate(axe)
            assert v.page.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
            assert v.page.evaluate("document.documentElement.dataset.theme") == theme
            assert v.page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert v.page.evaluate(CUT) == [], name
            assert not grave(v.page), name
        v.said = [text for text in v.said if "422" not in text]  # the damaged run's answer; Chrome tells of it


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_runs_page_is_a_file_with_the_same_pages(visit, tmp_path, language):
    run_folders.full_run(tmp_path / "full")
    path = report.write(tmp_path / "full")
    with visit(locale={"en": "en-GB", "zh": "zh-CN"}[language]) as v:
        v.page.goto(path.as_uri())
        assert v.page.locator("h1").inner_text() == "full" and v.page.locator(".finding").count() >= 2
        assert v.page.locator(".finding rect.span").count() >= 2, "the evidence is drawn"
        assert TEXT[language]["diagnosis.next"] in v.page.locator(".finding").first.inner_text()
        for name, figures in zip(RUN_PAGES[1:], (7, 6, 7), strict=True):
            v.page.click(f"nav a[href='#page={name}']")
            assert v.page.title() == f"{TEXT[language][f'page.{name}']} · normlab"
            assert v.page.locator("figure").count() == figures, name
            drawn = v.page.locator(".plot svg path.line").count()
            assert drawn >= 6, name
            assert all(len(text) > 20 for text in v.page.locator("figcaption").all_inner_texts()), (
                "each says what it shows"
            )


def test_depth_walks_over_the_recorded_steps(visit, served):
    view = report.view(served.folder / "full")
    stream = next(q for q in view["quantities"] if q["quantity"] == "stream_rms")
    with visit(origin=served.address) as v:
        page = v.page
        page.goto(served.address + PLACES["run-depth"])
        page.wait_for_selector(".plot svg")
        caption = page.locator("figcaption").first
        assert f"Step {stream['steps'][-1]}:" in caption.inner_text()
        slider = page.get_by_role("slider", name=TEXT["en"]["depth.step"])
        slider.press("Home")
        assert caption.inner_text().startswith("Step 1:")
        slider.press("ArrowRight")
        assert caption.inner_text().startswith(f"Step {stream['steps'][1]}:")
        first = f"{stream['values'][0][1]:.3g}"
        assert f"{first} at the lowest block" in caption.inner_text()
        page.locator("details.numbers summary").first.click()
        cells = page.locator("details.numbers td").all_inner_texts()
        assert len(cells) >= 6 and any(first in c for c in cells), "the same numbers as a table"
        lines = page.locator(".plot").first.locator("path.line").count()
        page.get_by_label(TEXT["en"]["depth.first"]).uncheck()
        assert page.locator(".plot").first.locator("path.line").count() == lines - 1
        page.locator(".plot").first.hover()
        assert "step" in page.locator(".under").inner_text(), "values under the pointer"


def test_norms_and_tokens_are_chosen(visit, served):
    with visit(origin=served.address) as v:
        page = v.page
        page.goto(served.address + PLACES["run-geometry"])
        page.locator("main select").first.select_option(run_folders.NORMS[0])
        assert run_folders.NORMS[0] in page.locator("figcaption").first.inner_text()
        before = page.locator(".reading").inner_text()
        page.get_by_role("slider").press("ArrowRight")
        after = page.locator(".reading").inner_text()
        assert before != after and "“b”" in after and page.locator(".token.near").count() == 5
        page.get_by_text(TEXT["en"]["geometry.form.before"]).first.click()
        assert page.locator(".split h3").first.inner_text() == TEXT["en"]["geometry.form.before"]


def test_compare_draws_the_differences(visit, served):
    with visit(origin=served.address) as v:
        page = v.page
        page.goto(served.address + PLACES["compare"])
        page.wait_for_selector(".intervals svg")
        assert page.locator(".whisker").count() == 2 and page.locator(".middle.open").count() == 1
        assert "decided (1)" in page.locator("figcaption").first.inner_text()
        assert page.locator(".squares td").count() == 12 and page.locator(".squares .best").count() == 3
        lines = page.locator("path.line").count()
        page.get_by_label("rms/pre").uncheck()
        assert page.locator("path.line").count() == lines - 1
        page.locator("summary", has_text=TEXT["en"]["compare.trials"].split("{")[0]).click()
        page.get_by_role("link", name="layer-post-lr0.001-seed1").click()
        page.wait_for_selector(".finding")
        assert page.locator("h1").inner_text() == "layer-post-lr0.001-seed1"
        page.get_by_role("link", name="比较 a", exact=True).click()
        page.wait_for_selector(".intervals svg")
        page.get_by_role("link", name=TEXT["en"]["list.all"]).click()
        page.wait_for_selector("table")
        page.get_by_label(TEXT["en"]["list.search"]).fill("full")
        assert page.locator("tbody tr").count() == 1


def test_new_lines_appear_by_themselves(visit, tmp_path):
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=40)
    draw = random.Random(9)
    for served in serving(tmp_path):
        with visit(origin=served.address) as v:
            page = v.page
            page.goto(served.address + "#run=a")
            page.wait_for_selector(".plot svg")
            assert (
                "step 40" in page.locator(".status").inner_text() and "running" in page.locator(".status").inner_text()
            )
            for step in range(41, 50):
                run_folders.write_step(writer, step, draw)
            until(page, "document.querySelector('.status').textContent.includes('step 49')")
            page.click("nav a[href='#page=run-depth']")
            until(page, "document.querySelector('figcaption').textContent.startsWith('Step 49:')")
            slider = page.get_by_role("slider", name=TEXT["en"]["depth.step"])
            slider.press("Home")
            for step in range(50, 62):
                run_folders.write_step(writer, step, draw)
            page.wait_for_timeout(1500)
            assert page.locator("figcaption").first.inner_text().startswith("Step 1:"), "not under somebody's hand"
            assert page.evaluate("document.activeElement.type") == "range"
            page.click("nav a[href='#page=run-diagnosis']")
            writer.close("finished")
            until(page, "document.querySelector('.status').textContent.includes('finished')")
            run_folders.small_run(tmp_path / "b")
            page.get_by_role("link", name=TEXT["en"]["list.all"]).click()
            page.wait_for_selector("table")
            until(page, "document.querySelectorAll('tbody tr').length === 2")


def test_names_of_runs_are_text(visit, served):
    with visit(origin=served.address) as v:
        page = v.page
        page.on("dialog", lambda d: (v.said.append(d.message), d.dismiss()))
        page.goto(served.address)
        page.wait_for_selector("table")
        page.get_by_role("link", name=SCRIPT).click()
        page.wait_for_selector(".finding")
        assert page.locator("h1").inner_text() == SCRIPT and page.locator("main img, main b:not(.under b)").count() == 0
        for name in RUN_PAGES:
            page.click(f"nav a[href='#page={name}']")
            assert page.locator("main img, main script").count() == 0
        for address in ("#run=%E0%A4%A", "#run=%3Cimg%20src=x%20onerror=alert(1)%3E", "#sweep=full", "#run=&page=<b>"):
            page.goto("about:blank")
            page.goto(served.address + address)
            page.wait_for_selector(".bad")
        v.said = [text for text in v.said if "404" not in text]  # Chrome tells of answers


def test_no_text_stands_outside_of_the_tables(visit, tmp_path):
    """As in the explorer's test; what stands in data, and names, are marked as not to be translated."""
    run_folders.full_run(tmp_path / "a")
    view = report.view(tmp_path / "a")
    marked = {language: {key: "⟦" + " ".join(re.findall(r"{\w+}", text)) + "⟧" for key, text in TEXT[language].items()} for language in TEXT}  # fmt: skip
    view["findings"][0]["findings"] = []
    path = tmp_path / "marked.html"
    path.write_text(pages.run_page(view, marked), encoding="utf-8")
    seen = """() => [...document.querySelectorAll("body *:not(script):not(style)")].flatMap((e) => e.closest("[translate=no], option, .numbers, details") ? [] : [
        ...[...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data), e.getAttribute("aria-label"), e.title].filter(Boolean))"""
    with visit() as v:
        for name in RUN_PAGES:
            v.page.goto(f"{path.as_uri()}#page={name}")
            v.page.reload()
            texts = v.page.evaluate(seen)
            assert len([t for t in texts if "⟦" in t]) > 10, name
            bare = [re.sub(r"⟦[^⟧]*⟧|\b(NaN|[AB])\b", "", text) for text in texts]
            assert not [t for t in bare if re.search(r"[A-Za-z\u4e00-\u9fff]{2,}", t)], name
