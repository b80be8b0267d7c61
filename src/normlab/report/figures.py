"""The figures of a page, as plain dictionaries for Plotly.

Where a text stands, they hold a pair {en, zh}, from which the page takes the language shown. Names out of data are
escaped: Plotly reads a few tags in its texts. Colors are those of Okabe and Ito, told apart with any color vision;
symbols and dashes say the same again.
"""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from statistics import median
from typing import Any

from .words import both, joined, known

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "triangle-down": "▼"}  # 5 and 7: 35 pairs
DASHES = {"solid": "none", "dash": "6 3", "dot": "2 2", "dashdot": "6 2 2 2"}

Data = dict[str, Any]
Pair = dict[str, str]


def unit(view: Data) -> Pair:
    return known(view["unit"]) if view.get("unit") else both("no_unit")


def styles(view: Data) -> dict[str, Data]:
    """How each cell is drawn, in every figure."""
    found = {}
    for i, cell in enumerate(view["cells"]):
        symbol, dash = list(SYMBOLS)[i % len(SYMBOLS)], list(DASHES)[i // len(COLORS) % len(DASHES)]
        found[cell["cell"]] = {"index": i, "color": COLORS[i % len(COLORS)], "symbol": symbol, "dash": dash,
                               "glyph": SYMBOLS[symbol], "dasharray": DASHES[dash]}  # fmt: skip
    return found


def figures(view: Data) -> list[Data]:
    style = styles(view)
    found = [f for key in ("difference", "behind_best") if (f := _differences(key, view, style))]
    found += [_curves(key, lines, style, view) for key, lines in view["curves"].items() if lines]
    return found + [_depth(d["quantity"], d["lines"], style) for d in view["depth"]]


def _seeds(lines: list[Data]) -> Pair:
    low, high = min(c["n"] for c in lines), max(c["n"] for c in lines)
    return both("seeds", n=low) if low == high else both("seeds_range", low=low, high=high)


def _trace(cell: str, s: Data, **more: Any) -> Data:
    return {"type": "scatter", "mode": "lines+markers", "name": escape(cell), "meta": s["index"],
            "line": {"color": s["color"], "dash": s["dash"], "width": 2},
            "marker": {"color": s["color"], "symbol": s["symbol"], "size": 7, "maxdisplayed": 8}, **more}  # fmt: skip


def _curves(key: str, lines: list[Data], style: dict[str, Data], view: Data) -> Data:
    # A loss that explodes would press all others flat; twice what a blind predictor has is far enough.
    top = max(2 * (view.get("blind") or 0.0), 1.2 * median(c["mean"][0] for c in lines))
    low, high = min(min(c["low"]) for c in lines), max(max(c["high"]) for c in lines)
    cut = low < top < high
    bands, means, lost = [], [], []
    for c in lines:
        cell, s, back = c["cell"], style[c["cell"]], slice(None, None, -1)
        if c["n"] > 1:
            bands.append(_trace(cell, s, mode="lines", x=c["steps"] + c["steps"][back], y=c["high"] + c["low"][back],
                                fill="toself", fillcolor=s["color"] + "2e", line={"width": 0}, hoverinfo="skip"))  # fmt: skip
        spread = list(zip(c["low"], c["high"], c["counts"], strict=True))
        means.append(_trace(cell, s, x=c["steps"], y=c["mean"], customdata=spread, hovertemplate=both("hover_curve")))
        if c["lost"]:
            x, y = zip(*((step, min(last, top) if cut else last) for step, last in c["lost"]), strict=True)
            marker = {"symbol": "x", "size": 11, "color": s["color"]}
            lost.append(_trace(cell, s, mode="markers", x=x, y=y, marker=marker, hovertemplate=both("hover_lost")))
    axis: Data = {"title": {"text": {k: escape(v) for k, v in both("loss_axis", unit=unit(view)).items()}}}
    layout: Data = {"xaxis": {"title": {"text": both("step")}}, "yaxis": axis}
    read = [both("mean_read", n=_seeds(lines))]
    width = max((b - a for c in lines for a, b in pairwise(c["steps"])), default=1)
    read += [both("point_read", width=width)] if key == "train" and width > 1 else []
    read += [both("lost_read")] if lost else []
    if cut:
        axis["range"] = [low - 0.05 * (top - low), top]
        read.append(both("cut", top=f"{top:.3g}"))
    if key == "heldout" and view.get("blind") is not None:
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": view["blind"], "y1": view["blind"]}
        layout["shapes"] = [{**line, "line": {"dash": "dot", "width": 1.5, "color": "#888888"}}]
        read.append(both("blind_read"))
    return {"id": key, "title": both(key), "read": joined(*read), "data": bands + means + lost, "layout": layout}


def _differences(key: str, view: Data, style: dict[str, Data]) -> Data | None:
    """Differences and their intervals, a row for each cell; hollow where zero lies inside."""
    rows = [(c["cell"], c[key]) for c in view["cells"] if c.get(key)]
    if not rows:
        return None
    zero = view["baseline"] if key == "difference" else view["best"]
    data = []
    for place, (cell, d) in enumerate(rows):
        s, ends = style[cell], (d["low"], d["high"])
        bars = (
            {}
            if None in ends
            else {
                "type": "data",
                "array": [ends[1] - d["mean"]],
                "arrayminus": [d["mean"] - ends[0]],
                "color": s["color"],
                "thickness": 2,
                "width": 5,
            }
        )
        marker = {
            "color": s["color"],
            "symbol": "circle" if d["decided"] else "circle-open",
            "size": 10,
            "line": {"width": 2},
        }
        data.append(
            _trace(
                cell,
                s,
                mode="markers",
                x=[d["mean"]],
                y=[place],
                error_x=bars,
                marker=marker,
                customdata=[ends],
                hovertemplate=both("hover_difference"),
            )
        )
    names = {
        "tickvals": list(range(len(rows))),
        "ticktext": [escape(cell) for cell, _ in rows],
        "range": [len(rows) - 0.4, -0.6],
    }
    axis = {
        k: escape(v)
        for k, v in both(
            "difference_axis", what=view["compared"]["title"], unit=view["compared"]["unit"] or unit(view)
        ).items()
    }
    line = {
        "type": "line",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": 0,
        "x1": 0,
        "line": {"width": 1.5, "color": "#888888"},
    }
    layout: Data = {"xaxis": {"title": {"text": axis}}, "yaxis": names, "shapes": [line]}
    return {
        "id": key,
        "title": both(f"{key}_title", cell=zero),
        "read": both("interval_read"),
        "data": data,
        "layout": layout,
    }


def _depth(quantity: str, lines: list[Data], style: dict[str, Data]) -> Data:
    data = []
    for c in lines:
        rows = [[i, m, h - m, m - lo, (escape(site), lo, h)] for i, (site, m, lo, h) in
                enumerate(zip(c["sites"], c["mean"], c["low"], c["high"], strict=True), start=1)]  # fmt: skip
        for i in range(len(rows) - 1, 0, -1):
            if c["stacks"][i] != c["stacks"][i - 1]:
                rows.insert(i, [None] * 5)  # a gap: no path leads from one stack into the next
        x, mean, above, below, custom = (list(column) for column in zip(*rows, strict=True))
        s = style[c["cell"]]
        bars = {"type": "data", "array": above, "arrayminus": below, "thickness": 1.2, "width": 3, "color": s["color"]}
        data.append(_trace(c["cell"], s, x=x, y=mean, customdata=custom, error_y=bars if c["n"] > 1 else {},
                           hovertemplate=both("hover_block")))  # fmt: skip
    low, high = min(c["step"][0] for c in lines), max(c["step"][1] for c in lines)
    read = [both("depth_read", n=_seeds(lines))]
    read.append(both("depth_step", low=low) if low == high else both("depth_steps", low=low, high=high))
    blocks = max(len(c["sites"]) for c in lines)
    layout: Data = {"xaxis": {"title": {"text": both("block")}, "tick0": 1, "dtick": -(-blocks // 12)},
                    "yaxis": {"title": {"text": both(f"{quantity}_axis")}, "rangemode": "tozero"}}  # fmt: skip
    positive = [v for c in lines for v in (*c["low"], *c["high"]) if v > 0]
    if quantity != "angle" and positive:  # an angle is a share; the others span magnitudes
        bottom, top = math.log10(min(positive)), math.log10(max(positive))
        pad = max(0.06 * (top - bottom), (1 - (top - bottom)) / 2)  # at least a decade: equal values are to look equal
        layout["yaxis"] |= {"type": "log", "range": [bottom - pad, top + pad]}
        read.append(both("logarithmic"))
    return {"id": quantity, "title": both(quantity), "read": joined(*read), "data": data, "layout": layout}
