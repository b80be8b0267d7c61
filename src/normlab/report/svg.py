"""The figures of a sweep's or a run's page as SVG files, for a paper: same data, same words. Needs matplotlib.

Text stays text, so that files are small, any script can be shown, and a paper's own font can be used.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import RunUnreadable, require
from ..runs import replace_file
from .bundle import LANGUAGES, text_table
from .views import Data, view
from .words import named

INK, QUIET = "#30363c", "#8a939b"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")  # Okabe and Ito
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
SIZE = (5.2, 3.0)  # inches: one and a half columns
FOLDER = "figures"
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "normlab", "text.parse_math": False, "font.family": "sans-serif", "font.size": 8, "axes.edgecolor": QUIET,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip

Draw = Callable[[Any], None]


def rendered(size: tuple[float, float], draw: Draw, fitted: bool = False) -> str:
    """What ``draw`` puts on a figure of this size (inches), the same bytes each time. ``fitted``: as large as names and legend need."""
    require("figures", "figures", "matplotlib")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # text is kept as text, and the reader's fonts have them
        figure = Figure(figsize=size)
        draw(figure)
        text = io.StringIO()
        figure.savefig(
            text,
            format="svg",
            bbox_inches="tight" if fitted else None,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return text.getvalue()


def write(folder: str | Path, out: Path) -> list[Path]:
    """All figures of what lies in ``folder``, in both languages."""
    require("figures", "figures", "matplotlib")
    shown, paths = view(folder), []
    if shown["kind"] == "kernels":
        raise RunUnreadable(f"{folder} is a benchmark: no figures of it are written as files")
    for lang in LANGUAGES:
        for name, size, draw in figures(shown, lang):
            out.mkdir(parents=True, exist_ok=True)
            paths.append(out / f"{name}.{lang}.svg")
            replace_file(paths[-1], rendered(size, draw, fitted=True))
    if not paths:
        raise RunUnreadable(f"{folder} holds no curve, no difference and no reading by block: nothing to draw")
    return paths


def figures(shown: Data, lang: str) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    """(name of the file, size, what draws it)."""
    words = Words(shown, lang)
    if shown["kind"] == "sweep":
        for key in ("difference", "behind_best"):
            if rows := [c for c in shown["cells"] if c.get(key)]:
                yield key, (SIZE[0], 0.7 + 0.24 * len(rows)), partial(_differences, words=words, key=key, rows=rows)
    for key in ("train", "heldout"):
        if lines := shown["curves"][key]:
            yield f"loss-{key}", SIZE, partial(_curves, words=words, key=key, lines=lines)
    for one in shown["depth"]:
        yield (
            f"depth-{one['quantity']}",
            SIZE,
            partial(_depth, words=words, quantity=one["quantity"], lines=one["lines"]),
        )


class Words:
    """The texts of the pages, and how each cell is drawn."""

    def __init__(self, shown: Data, lang: str) -> None:
        self.view, self.lang, self._texts = shown, lang, text_table(lang)
        self.order = {c["cell"]: i for i, c in enumerate(shown["cells"])}

    def __call__(self, key: str, **values: object) -> str:
        return self._texts[key].format(**values)

    @property
    def unit(self) -> str:
        unit = self.view["unit"]
        return self("run.no_unit") if not unit else named(unit, self.lang)

    def look(self, cell: str) -> dict[str, Any]:
        at = self.order[cell]
        return {"color": COLORS[at % len(COLORS)], "ls": DASHES[at // len(COLORS) % len(DASHES)]}


def _axes(figure: Any, title: str, x: str, y: str) -> Any:
    axes = figure.add_axes((0.11, 0.17, 0.64, 0.7))  # the legend stands beside it, over no curve
    axes.set_title(title, loc="left", size=8.5)
    axes.set_xlabel(x, size=8)
    axes.set_ylabel(y, size=8)
    axes.tick_params(labelsize=7, color=QUIET)
    return axes


def _legend(axes: Any, lines: dict[str, Any]) -> None:
    """Of these lines by their names. (Labels of the lines themselves would vanish where a name begins with an underscore.)"""
    if len(lines) > 1:
        axes.legend(
            list(lines.values()),
            list(lines),
            frameon=False,
            fontsize=6.5,
            handlelength=2.4,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.03),
        )


def _differences(figure: Any, words: Words, key: str, rows: list[Data]) -> None:
    compared, zero = words.view["compared"], words.view["baseline" if key == "difference" else "best"]
    unit = compared["unit"][words.lang] if compared["unit"] else words.unit
    axis = words("compare.axis", what=compared["title"][words.lang], unit=unit)
    high = figure.get_size_inches()[1]
    axes = figure.add_axes((0.24, 0.42 / high, 0.74, (high - 0.7) / high))
    axes.set_title(words(f"compare.{key}", cell=zero), loc="left", size=8.5)
    axes.axvline(0, color=INK, lw=0.8)
    for place, cell in enumerate(rows):
        d, color = cell[key], words.look(cell["cell"])["color"]
        if d["low"] is not None and d["high"] is not None:
            axes.plot([d["low"], d["high"]], [place, place], color=color, lw=1.6, solid_capstyle="butt")
        axes.plot([d["mean"]], [place], "o", ms=5, mec=color, mfc=color if d["decided"] else "white", mew=1.4)
    axes.set_yticks(range(len(rows)), [c["cell"] for c in rows], size=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(axis, size=8)
    axes.tick_params(labelsize=7, color=QUIET)


def _curves(figure: Any, words: Words, key: str, lines: list[Data]) -> None:
    axes = _axes(figure, words(f"run.{key}"), words("step"), words("run.loss.axis", unit=words.unit))
    named = {}
    for line in lines:
        look = words.look(line["cell"])
        if line["n"] > 1:
            axes.fill_between(line["steps"], line["low"], line["high"], color=look["color"], alpha=0.15, lw=0)
        (named[line["cell"]],) = axes.plot(line["steps"], line["mean"], lw=1.4, **look)
        for step, last in line["lost"]:
            axes.plot([step], [last], "x", color=look["color"], ms=6)
    blind = words.view.get("blind")
    if blind is not None:
        axes.axhline(blind, color=QUIET, lw=0.8, ls=":")
        ends = [line["mean"][-1] for line in lines]
        if min(ends) < blind:  # what lies above has learned nothing, however far
            lowest = min(min(line["low"]) for line in lines)
            axes.set_ylim(lowest - 0.05 * (blind - lowest), min(axes.get_ylim()[1], 1.1 * blind))
    _legend(axes, named)


def _depth(figure: Any, words: Words, quantity: str, lines: list[Data]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = _axes(figure, words(f"quantity.{quantity}"), words("block"), words(f"quantity.{quantity}.axis"))
    named = {}
    for line in lines:
        look = words.look(line["cell"])
        for stack in dict.fromkeys(line["stacks"]):  # no path leads from one stack into the next
            at = [i for i, name in enumerate(line["stacks"]) if name == stack]
            blocks = [i + 1 for i in at]
            if line["n"] > 1:
                axes.fill_between(
                    blocks,
                    [line["low"][i] for i in at],
                    [line["high"][i] for i in at],
                    color=look["color"],
                    alpha=0.15,
                    lw=0,
                )
            (named[line["cell"]],) = axes.plot(
                blocks, [line["mean"][i] for i in at], lw=1.4, marker="o", ms=2.5, **look
            )
    if quantity != "angle":  # a share; the others span magnitudes
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, named)
