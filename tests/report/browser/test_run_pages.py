"""The pages over runs in a browser, served and as a file: both languages, both themes, wide and narrow, live, and with hostile names."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
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

from normlab import report, runs
from normlab.claims import html as claims_html
from normlab.claims.shipped import best_folder
from normlab.report import explore, pages
from normlab.report.serve import App, Server, bind

BENCH = Path(__file__).parents[3] / "benchmarks" / "results" / "2026-11-16-second.json"
RUN_PAGES = ["run-diagnosis", "run-depth", "run-statistics", "run-geometry"]
TEXT = {language: explore.text_table(language) for language in explore.LANGUAGES}


@dataclass
class Served:
    address: str
    folder: Path
    server: Server


def claims_of(folder: Path) -> dict[str, Any]:
    return claims_html.view(runs.read_claims(folder), folder.name)


def serving(folder: Path) -> Iterator[Served]:
    bound = bind("127.0.0.1", 0)
    server = Server(App(folder, claims=claims_of))
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
    (folder / "bench.json").write_bytes(BENCH.read_bytes())
    (folder / "said").mkdir()
    (folder / "said" / "claims.json").write_bytes((best_folder() / "claims.json").read_bytes())
    yield from serving(folder)


def grave(page: Any) -> list[Any]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(i["id"], [n["html"][:160] for n in i["nodes"][:3]]) for i in found["violations"] if i["impact"] in ("serious", "critical")]  # fmt: skip


SWEEP_PAGES = ["run-compare", "sweep-depth", "sweep-diagnosis"]
PLACES = {
    "list": "#page=run-list",
    **{page: f"#run=full&page={page}" for page in RUN_PAGES},
    "small": "#run=small&page=run-statistics",
    **{page: f"#sweep={quote('比较 a')}&page={page}" for page in SWEEP_PAGES},
    "trial": f"#run={quote('比较 a/trials/layer-post-lr0.001-seed1', safe='')}",
    "damaged": "#run=damaged",
    "kernels": "#kernels=bench.json",
    "claims": "#claims=said&claim=C17",
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
        page.goto(served.address + PLACES["run-compare"])
        page.wait_for_selector(".intervals svg")
        assert page.locator(".whisker").count() == 2 and page.locator(".middle.open").count() == 1
        assert "decided (1)" in page.locator("figcaption").first.inner_text()
        assert page.locator(".squares td").count() == 12 and page.locator(".squares .best").count() == 3
        lines = page.locator("path.line").count()
        page.get_by_label("rms/pre").uncheck()
        assert page.locator("path.line").count() == lines - 1
        page.locator("summary", has_text=TEXT["en"]["compare.trials"].split("{")[0]).first.click()
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


def test_what_comes_between_the_data_and_the_stream_appears(visit, tmp_path):
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=9)

    def meanwhile(route: Any, do: Any) -> None:
        do()
        route.continue_()

    for served in serving(tmp_path):
        with visit(origin=served.address) as v:
            v.page.route("**/events/run*", lambda route: meanwhile(route, lambda: writer.close("finished")))
            v.page.route(
                "**/events/list*", lambda route: meanwhile(route, lambda: run_folders.small_run(tmp_path / "b"))
            )
            v.page.goto(served.address + "#run=a")
            until(v.page, "document.querySelector('.status')?.textContent.includes('finished')")
            assert "running" not in v.page.locator(".status").inner_text()
            v.page.get_by_role("link", name=TEXT["en"]["list.all"]).click()
            until(v.page, "document.querySelectorAll('tbody tr').length === 2")
            assert {"a", "b"} == {link.inner_text() for link in v.page.locator("tbody a").all()}


def test_a_problem_goes_when_what_was_gone_is_back(visit, tmp_path):
    (tmp_path / "bench.json").write_bytes(BENCH.read_bytes())
    for served in serving(tmp_path):
        with visit(origin=served.address) as v:
            v.page.goto(served.address + "#kernels=bench.json")
            v.page.wait_for_selector(".charts svg")
            (tmp_path / "bench.json").rename(tmp_path / "elsewhere")
            v.page.wait_for_selector(".bad")
            (tmp_path / "elsewhere").rename(
                tmp_path / "bench.json"
            )  # the same file: what was shown before is true again
            until(v.page, "document.querySelector('.bad') === null")
            assert v.page.locator("h1").inner_text() == "bench"
            v.said = [text for text in v.said if "404" not in text and "422" not in text]  # Chrome tells of the answers


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


@pytest.fixture(scope="module")
def sweep_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import test_report

    return report.write(test_report.make_sweep(tmp_path_factory.mktemp("sweep") / "grid"))


def test_the_map_says_what_each_square_rests_on_and_a_long_verdict_is_folded(visit, sweep_page, tmp_path):
    import shutil

    grid = Path(shutil.copytree(sweep_page.parent, tmp_path / "grid"))
    summary = json.loads((grid / "summary.json").read_text(encoding="utf-8"))
    rate = next(r for c in summary["cells"] for r in c["rates"] if r["trained"] == 3)
    rate["trained"] = 1
    summary["verdict"] = {"en": [f"Sentence {n}." for n in range(8)], "zh": [f"第 {n} 句。" for n in range(8)]}
    (grid / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    for page_of, rests in ((sweep_page, {}), (report.write(grid), {"seeds: 1": 1, "seeds: 3": 11})):
        with visit(locale="en-GB") as v:
            v.page.goto(page_of.as_uri())
            said = [text for text in v.page.locator(".squares small").all_inner_texts() if text.startswith("seeds")]
            assert {text: said.count(text) for text in said} == rests
            if rests:
                sentences = v.page.locator(".verdict p")
                assert [p.inner_text() for p in sentences.all() if p.is_visible()] == [
                    f"Sentence {n}." for n in range(5)
                ]
                v.page.locator(".verdict summary").click()
                assert [p.inner_text() for p in sentences.all() if p.is_visible()] == [
                    f"Sentence {n}." for n in range(8)
                ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_sweeps_page_is_a_file_with_its_pages(visit, sweep_page, language):
    view = report.view(sweep_page.parent)
    with visit(locale={"en": "en-GB", "zh": "zh-CN"}[language]) as v:
        page = v.page
        page.goto(sweep_page.as_uri())
        said = page.locator(".verdict").inner_text()
        assert all(sentence in said for sentence in view["verdict"][language])
        assert page.locator(".intervals circle").count() == 2 and page.locator(".intervals circle.open").count() == 1
        row = page.locator("tr", has=page.locator("th b", has_text="rms/pre")).first.inner_text()
        entry = next(c for c in view["cells"] if c["cell"] == "rms/pre")
        form = f".{view['decimals']}f"
        assert f"{entry['mean']:{form}} [{entry['low']:{form}}, {entry['high']:{form}}]" in row and "p = 0.012" in row
        assert f"{entry['difference']['mean']:.{entry['difference']['decimals']}f}".replace("-", "−") in row
        table = page.locator("main").inner_text()
        for part in {"en": ("36 of 63", "about 17 seeds (9 to 93) in all", "≥ 0.003", "2 of 3 diverged", "Some CPU", "ab" * 32),
                     "zh": ("63 次试验中已结束 36 次", "共约需 17 个种子", "奈特/字节", "3 个中 2 个发散")}[language]:  # fmt: skip
            assert part in table, part
        assert page.locator("td.square").count() + page.locator("td.none").count() >= 12
        lines = page.locator(".plot path.line").count()
        page.locator(".keys input").first.uncheck()
        assert page.locator(".plot path.line").count() == lines - 1
        page.click("nav a[href='#page=sweep-depth']")
        assert page.locator("figure").count() == 3 and page.locator(".plot path.line").count() == 3 * 3, (
            "unticked there, too"
        )
        assert page.locator(".plot path.band").count() == 9 and all(
            len(t) > 20 for t in page.locator("figcaption").all_inner_texts()
        )
        page.click("nav a[href='#page=sweep-diagnosis']")
        found = page.locator("main").inner_text()
        assert {"en": "vanishing gradient", "zh": "梯度消失"}[language] in found and "第 30 步损失为 inf" in found
        assert "would leak the future" in found and page.locator("details.finding").count() >= 2
        page.locator("details.finding summary").first.click()
        assert TEXT[language]["diagnosis.next"] in page.locator("details.finding").first.inner_text()


def test_what_a_sweeps_page_says_contradicts_nothing(visit, tmp_path):
    """Of sweeps with any effects, spread and gaps: an interval without zero never stands beside "undecided", nor the other way round."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "answer"))
    from test_decisions import BRACKET, denied, leaves_out_zero, random_sweep

    from normlab.answer import answer

    seen = 0
    with visit(locale="en-GB") as v:
        for seed in range(200, 260):
            sweep, trials, margin = random_sweep(seed)
            path = tmp_path / f"{seed}.html"
            found = answer(runs.Grid.from_dict(sweep), [runs.TrialResult.from_dict(t) for t in trials], margin=margin)
            path.write_text(report.render(report.view(found)), encoding="utf-8")
            v.page.goto(path.as_uri())
            for row in v.page.locator("h2 + div table.plain").first.locator("tbody tr").all():
                for text in row.locator("td").all_inner_texts()[2:4]:
                    for low, high in BRACKET.findall(text.replace("−", "-")):
                        seen += 1
                        assert not denied(leaves_out_zero(low, high), text), (seed, text)
    assert seen > 60


def test_names_in_a_sweep_are_text(visit, sweep_page, tmp_path):
    import test_report

    nasty = report.write(test_report.changed(sweep_page.parent, tmp_path / "<i>a</i>", test_report.renamed))
    with visit() as v:
        v.page.on("dialog", lambda d: (v.said.append(d.message), d.dismiss()))
        v.page.goto(nasty.as_uri())
        for name in SWEEP_PAGES:
            v.page.click(f"nav a[href='#page={name}']")
            assert v.page.locator("main img, main script, main i").count() == 0
            assert test_report.NASTY in v.page.locator("main").inner_text(), name


def test_a_sweep_with_pieces_missing(visit, tmp_path):
    """Nothing ended, everything that may be null is, a loss that explodes, failures in a sweep that has ended."""
    import test_report

    grid = test_report.make_sweep(tmp_path / "grid")

    def bare(summary: dict[str, Any]) -> None:
        for key in ("blind", "unit", "target_loss", "machine", "verdict", "created", "baseline"):
            summary[key] = None
        for cell in summary["cells"]:
            for key in ("low", "high", "difference", "rank", "tokens_per_second"):
                cell[key] = None

    def explode(summary: dict[str, Any]) -> None:
        for one in summary["trials"]:
            if one["cell"] == "layer/post":
                one["curve"] = [[20, 4.0], [40, 1e9], [60, 2.5]]

    def end(summary: dict[str, Any]) -> None:
        summary["trials"][0].update(outcome="failed", error="MemoryError", loss=None)
        summary["cells"][2]["difference"]["seeds_needed"] = 1000
        summary["cells"][0]["difference"].update(decided=False, seeds_needed=19, seeds_low=9, seeds_high=1000)

    folders = {
        change.__name__: test_report.changed(grid, tmp_path / change.__name__, change)
        for change in (bare, explode, end)
    }
    empty = test_report.changed(grid, tmp_path / "none", lambda s: s.update(trials=[], cells=[], complete=False))
    plan = json.loads((folders["end"] / "sweep.json").read_text())
    plan["axes"] = {"norm": ["a", "b", "c", "d", "e"], "lr": test_report.RATES, "seed": test_report.SEEDS}
    (folders["end"] / "sweep.json").write_text(json.dumps(plan))
    expected = {
        "bare": ("no unit",), "explode": ("are cut off",), "none": ("0 of 63 trials",),
        "end": ("All trials have ended, but 1 failed", "about 19 seeds (9 to over 1000) in all", "1000 seeds or more"),
    }  # fmt: skip
    with visit(width=375) as v:
        for name, folder in {**folders, "none": empty}.items():
            path = report.write(folder)
            for part in SWEEP_PAGES:
                v.page.goto("about:blank")
                v.page.goto(f"{path.as_uri()}#page={part}&lang=en")
                assert (
                    v.page.locator("h1").count() == 1 and v.page.evaluate("document.documentElement.scrollWidth") <= 375
                )
                if part == "run-compare":
                    said = v.page.locator("main").inner_text()
                    assert all(words in said for words in expected[name]), name


def test_a_frame_in_a_notebook(visit, sweep_page, tmp_path):
    """Without an address of its own and without an origin."""
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!doctype html><h1>mine</h1>{report.plot(sweep_page.parent, 'depth', language='zh')._repr_html_()}",
        encoding="utf-8",
    )
    with visit() as v:
        v.page.goto(path.as_uri())
        frame = v.page.frame_locator("iframe")
        assert frame.locator("h1").inner_text() == TEXT["zh"]["depth.title"] and frame.locator("path.line").count() > 3
        frame.locator("#language").click()
        assert frame.locator("h1").inner_text() == TEXT["en"]["depth.title"]
        frame.locator("nav a").first.click()
        assert (
            frame.locator("h1").inner_text() == sweep_page.parent.name and v.page.locator("h1").inner_text() == "mine"
        )


def test_no_text_of_a_sweep_stands_outside_of_the_tables(visit, sweep_page, tmp_path):
    view = report.view(sweep_page.parent)
    view["verdict"] = {"en": [], "zh": []}
    view["findings"] = [{**f, "findings": []} for f in view["findings"]]
    view["unit"] = None
    view["failures"], view["refused"], view["compared"] = [], [], {"title": {"en": "⟦⟧", "zh": "⟦⟧"}, "unit": None}
    assert_marked(visit, tmp_path, view, SWEEP_PAGES)


def test_no_text_stands_outside_of_the_tables(visit, tmp_path):
    """As in the explorer's test; what stands in data, and names, are marked as not to be translated."""
    run_folders.full_run(tmp_path / "a")
    view = report.view(tmp_path / "a")
    view["findings"][0]["findings"] = []
    assert_marked(visit, tmp_path, view, RUN_PAGES)


def assert_marked(visit: Any, tmp_path: Path, view: dict[str, Any], names: list[str]) -> None:
    marked = {language: {key: "⟦" + " ".join(re.findall(r"{\w+}", text)) + "⟧" for key, text in TEXT[language].items()} for language in TEXT}  # fmt: skip
    path = tmp_path / "marked.html"
    path.write_text(pages.render(view, marked), encoding="utf-8")
    seen = """() => [...document.querySelectorAll("body *:not(script):not(style)")].flatMap((e) => e.closest("[translate=no], option, .numbers, details") ? [] : [
        ...[...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data), e.getAttribute("aria-label"), e.title].filter(Boolean))"""
    with visit() as v:
        for name in names:
            v.page.goto(f"{path.as_uri()}#page={name}")
            v.page.reload()
            texts = v.page.evaluate(seen)
            assert len([t for t in texts if "⟦" in t]) > 10, name
            bare = [
                re.sub(r"⟦[^⟦⟧]*⟧|\b(NaN|[AB])\b", "", re.sub(r"⟦[^⟦⟧]*⟧", "", text)) for text in texts
            ]  # one in another
            assert not [t for t in bare if re.search(r"[A-Za-z\u4e00-\u9fff]{2,}", t)], name


@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_of_a_benchmark(visit, axe, tmp_path, language, width):
    path, view = report.write(BENCH, tmp_path / "bench.html"), report.view(BENCH)
    with visit(width=width, locale={"en": "en-GB", "zh": "zh-CN"}[language]) as v:
        v.page.goto(path.as_uri())
        v.page.evaluate(axe)
        assert v.page.locator("figure").count() == len(view["figures"]) <= 12
        marks = sum(len(line["values"]) for f in view["figures"] for line in f["lines"])
        keys = sum(len(f["rivals"]) for f in view["figures"])
        assert v.page.locator("figure svg .dot").count() == marks + keys
        assert v.page.locator("line.zero").count() == len(view["figures"]), "equal speed, or the limit"
        assert (
            v.page.evaluate("document.documentElement.scrollWidth") <= width
            and v.page.evaluate(CUT) == []
            and not grave(v.page)
        )
        met = [row.inner_text() for row in v.page.locator("table").last.locator("tbody b").all()]
        assert met == [TEXT[language]["kernels.yes" if g["met"] else "kernels.no"] for g in view["goals"]]
