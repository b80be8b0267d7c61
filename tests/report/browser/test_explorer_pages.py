"""The explorer's pages do what they say: sets light up, numbers follow, drawings change, by mouse and by keyboard."""

from __future__ import annotations

import re

from normlab.report import explore

TEXT = explore.text_table("en")


def lit(page) -> int:
    return page.locator(".stage figure").first.locator(".cell:not(.off):not(.padding)").count()


def test_the_shelf_lights_up_sets_and_counts_them(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address + "#page=shelf")
        counts = {"batch": 3 * 3 * 4, "layer, over C, H, W": 4 * 3 * 4, "layer, last axis": 4, "instance": 3 * 4, "group": 2 * 3 * 4, "RMS": 4 * 3 * 4, "Power": 3 * 3 * 4}  # fmt: skip
        for name, count in counts.items():
            page.get_by_text(name, exact=True).click()
            assert f"= {count} characters" in page.locator(".reading").inner_text(), name
            assert lit(page) == count, name
        page.get_by_text("group", exact=True).click()
        page.get_by_label("Groups G").press("End")
        assert "= 12 characters" in page.locator(".reading").inner_text(), "as many groups as pages: single pages"
        page.get_by_text("batch", exact=True).click()
        page.locator(".stage figure").first.locator(".cell").nth(20).hover()
        assert page.locator(".pick output").inner_text() == "2 of 4", "by mouse"
        page.locator(".pick input").press("ArrowRight")
        assert page.locator(".pick output").inner_text() == "3 of 4" and lit(page) == 36, "by keyboard"


def test_padding_counts_or_not(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address + "#page=shelf")
        page.get_by_text("text (B, L, d)").click()
        assert "12 of these 15 cells are real" in page.locator(".reading").inner_text()
        assert lit(page) == 12
        page.get_by_text(TEXT["shelf.mask"]).click()
        assert TEXT["shelf.unmasked"] in page.locator(".reading").inner_text() and lit(page) == 15
        page.get_by_text("layer, last axis").click()
        assert "d = 4 cells" in page.locator(".reading").inner_text()
        page.get_by_text(TEXT["shelf.kind.marks"]).click()
        assert lit(page) == 5, "one subject"
        page.get_by_text(TEXT["shelf.norm.marks.layer"]).click()
        assert lit(page) == 4, "one student"


def test_numbers_are_followed_to_the_answer(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address + "#page=numbers")
        shown = page.locator(".steps output")
        assert shown.nth(1).inner_text() == "3.5" and shown.nth(3).inner_text() == "1.25"
        page.get_by_label("token 1, feature 1", exact=True).fill("10")
        assert shown.nth(1).inner_text() == "5.5", "the mean follows"
        page.get_by_label("gain of feature 1").fill("2")
        page.locator(".value").first.click()
        assert "2 ·" in page.locator(".steps li").last.inner_text()
        for fault in ("padding", "uncentered", "cancel", "eps", "narrow"):
            page.get_by_role("button", name=TEXT[f"numbers.fault.{fault}"]).click()
            assert page.locator(".wrong").count() > 0 and "should be" in page.locator(".reading").inner_text(), fault
        page.get_by_role("button", name=TEXT["numbers.fault.eps"]).click()
        assert abs(float(page.locator(".value").nth(1).inner_text().replace("−", "-"))) > 1
        page.get_by_label("eps").select_option("0.00001")
        assert abs(float(page.locator(".value").nth(1).inner_text().replace("−", "-").replace("×10⁻⁵", "e-5"))) < 0.1
        page.get_by_role("button", name=TEXT["numbers.fault.plain"]).click()
        assert page.locator(".wrong").count() == 0 and page.locator(".reading").inner_text() == TEXT["numbers.exact"]


def test_the_sphere_turns_and_says_its_radius(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address + "#page=sphere")
        caption = page.locator("figcaption")
        assert "lengths from 1.73 to 1.73, means up to 0" in caption.inner_text()
        picture = "document.querySelector('.space').toDataURL().length + document.querySelector('.space').toDataURL().slice(2000, 2600)"
        before = page.evaluate(picture)
        page.locator(".space").press("ArrowRight")
        assert page.evaluate(picture) != before, "by keyboard"
        before = page.evaluate(picture)
        box = page.locator(".space").bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 180, box["y"] + 130, steps=4)
        page.mouse.up()
        assert page.evaluate(picture) != before, "by mouse"
        page.get_by_text("RMSNorm", exact=True).click()
        low, high, mean = (float(n) for n in re.findall(r"[\d.]+\d", caption.inner_text())[:3])
        assert low == high == 1.73 and mean > 0.1, "the mean stays"
        page.get_by_label("γ₁").press("End")
        assert "to 2." in caption.inner_text(), "an ellipsoid"


def test_placements_are_drawn_and_compared(visit, address):
    with visit() as v:
        page = v.page
        page.goto(address + "#page=places")
        shown, other = page.locator("main select").nth(0), page.locator("main select").nth(1)
        for name in explore.page_data()["depth"]["placements"]:
            shown.select_option(name)
            assert page.locator(".residual svg").count() == 1 and other.input_value() != name
            assert page.locator(".charts path.line, .places path.line").count() == 4
        shown.select_option("pre")
        norm = page.locator(".residual .box.drag").first.bounding_box()
        frame = page.locator(".residual svg").bounding_box()
        page.mouse.move(norm["x"] + 10, norm["y"] + 10)
        page.mouse.down()
        page.mouse.move(frame["x"] + 150, frame["y"] + 60, steps=5)
        page.mouse.up()
        assert shown.input_value() == "post", "dragged onto the stream"
        assert TEXT["places.post"] in page.locator("figcaption").nth(1).inner_text()


def test_scaling_shows_what_python_computed(visit, address):
    with visit() as v:
        v.page.goto(address + "#page=scaling")
        captions = v.page.locator(".charts figcaption").all_inner_texts()
        assert len(captions) == 3 and len({re.findall(r"skew ([\d.]+)", c)[0] for c in captions}) == 1
        assert v.page.locator(".bars").count() == 3 and v.page.locator("path.line").count() == 3
