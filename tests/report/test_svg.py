"""Figures for a paper: the same numbers as the page, as text that can be read, in both languages."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import test_report
from run_folders import full_run

from normlab import cli, report
from normlab.report import svg

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return test_report.make_sweep(tmp_path_factory.mktemp("svg") / "grid")


def words_of(path) -> list[str]:
    return [part.text or "" for part in ElementTree.parse(path).iter() if part.tag.endswith("}text")]


def test_every_figure_of_a_sweep_in_both_languages(sweep, tmp_path, capsys):
    assert cli.main(["report", str(sweep), "--figures", "svg", "--out", str(tmp_path / "f")]) == 0
    names = {path.name for path in (tmp_path / "f").iterdir()}
    drawn = ["difference", "loss-train", "loss-heldout", "depth-stream_rms", "depth-stream_grad", "depth-angle"]
    assert names == {f"{name}.{lang}.svg" for name in drawn for lang in ("en", "zh")}
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "f" / f"{name}.{lang}.svg") for lang in ("en", "zh") for name in drawn
    ]
    assert "held-out loss" in words_of(tmp_path / "f" / "loss-heldout.en.svg")
    assert "留出损失" in words_of(tmp_path / "f" / "loss-heldout.zh.svg")
    assert {"rms/pre", "layer/post"} <= set(words_of(tmp_path / "f" / "difference.en.svg"))
    again = svg.write(sweep, tmp_path / "g")
    assert all(path.read_bytes() == (tmp_path / "f" / path.name).read_bytes() for path in again), "the same bytes"


def test_points_lie_where_the_numbers_are(sweep):
    """Zero, means and ends of the intervals are on one straight scale."""
    view = report.view(sweep)
    rows = [c for c in view["cells"] if c["difference"]]
    found = {}

    def draw(figure):
        svg._differences(figure, svg.Words(view, "en"), "difference", rows)
        for line in figure.axes[0].lines:
            found.setdefault(len(line.get_xdata()), []).append(list(line.get_xdata()))

    svg.rendered((5, 2), draw)
    assert found[1] == [[c["difference"]["mean"]] for c in rows]
    assert found[2][1:] == [[c["difference"]["low"], c["difference"]["high"]] for c in rows]


def test_a_run_and_what_cannot_be_drawn(tmp_path, capsys):
    full_run(tmp_path / "full")
    assert cli.main(["report", str(tmp_path / "full"), "--figures", "svg"]) == 0
    made = {path.name for path in (tmp_path / "full" / "figures").iterdir()}
    assert {"loss-train.en.svg", "depth-stream_rms.zh.svg"} <= made and "difference.en.svg" not in made
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text(re.sub(r'"status": "\w+"', '"status": "running"', (tmp_path / "full" / "run.json").read_text()))  # fmt: skip
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path / "empty"), "--figures", "svg"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and len(said.splitlines()) == 1


LONG = ("instance/layernorm-scaling", "_mine/pre", "$\\badmacro$/post", "a" * 60)


def extents(path):
    """(left, top, right, bottom) of the picture."""
    root = ElementTree.parse(path).getroot()
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    return left, top, left + width, top + height


def test_names_of_any_kind_and_length_are_whole(sweep, tmp_path):
    """Long ones, one that begins with an underscore, one that looks like a formula: in the legend, and within the picture."""
    view = report.view(sweep)
    names = [f"{name}/{i}" for i in range(6) for name in LONG]
    (line, *_), (cell, *_) = view["curves"]["heldout"], [c for c in view["cells"] if c["difference"]]
    view["cells"] = [{**cell, "cell": name} for name in names]
    words = svg.Words(view, "en")
    seen = {}

    def draw(figure):
        svg._curves(figure, words, "heldout", [{**line, "cell": name} for name in names])
        seen["figure"] = figure

    (tmp_path / "a.svg").write_text(svg.rendered(svg.SIZE, draw, fitted=True))
    assert set(names) <= set(words_of(tmp_path / "a.svg"))
    box = seen["figure"].axes[0].get_legend().get_window_extent()
    left, top, right, bottom = extents(tmp_path / "a.svg")
    assert right - left >= 72 * svg.SIZE[0] and bottom - top >= box.height * 72 / seen["figure"].dpi > 72 * svg.SIZE[1]

    def draw_differences(figure):
        svg._differences(figure, words, "difference", view["cells"])

    (tmp_path / "b.svg").write_text(svg.rendered((5, 6), draw_differences, fitted=True))
    assert set(names) <= set(words_of(tmp_path / "b.svg"))
    left, _, right, _ = extents(tmp_path / "b.svg")
    assert right - left > 72 * 5.5, "labels of sixty letters take more than the margin"
