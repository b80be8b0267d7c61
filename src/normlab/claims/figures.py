"""Figures of claims as small SVG files: one row per number that came from samples. Drawn from claims.json and measured/ alone; needs matplotlib.

Left, of a difference: both arms, a dot per seed, seeds joined. Right: the number that is judged, a dot per seed, its mean with the
interval that decided, the range that the claim gives it (shaded) and, dotted, how far from its border a difference begins to matter.
Text stays text, so that files are small and any script can be shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RunUnreadable, require
from ..report.svg import INK, QUIET, rendered
from ..runs import CheckResult, ClaimResult, ClaimsRun, Evidence, read_all_evidence, read_claims, replace_file
from . import words
from .claim import Claim
from .table import CLAIMS

RANGE, DOT, BAR = "#dcebdc", "#7aa6d6", "#0b4f8a"
DOTS: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 3.5, "mfc": DOT, "mec": "none"}
WIDE, ROW, TOP = 6.6, 1.25, 0.05  # inches: the figure, a row, above the first
COLUMNS = 92  # of a row's heading, a Chinese character counts as two


def name_of(claim_id: str, lang: str) -> str:
    return f"{claim_id}.{lang}.svg"


def has_figure(result: ClaimResult) -> bool:
    return any(c.n for c in result.checks)


def write(folder: Path, out: Path) -> list[Path]:
    """All figures of the run of claims in ``folder``, in both languages."""
    require("figures", "figures", "matplotlib")
    run: ClaimsRun = read_claims(folder)
    known = read_all_evidence(folder)
    paths = []
    for result in run.results:
        if result.id in CLAIMS and has_figure(result):
            claim = CLAIMS[result.id]
            evidence = Evidence()
            for design in claim.designs:
                evidence = evidence | known.get(design, Evidence())
            for lang in words.LANGUAGES:
                out.mkdir(parents=True, exist_ok=True)
                replace_file(out / name_of(claim.id, lang), svg(claim, result, evidence, lang))
                paths.append(out / name_of(claim.id, lang))
    if not paths:
        raise RunUnreadable(f"{folder} holds no claim that samples decided: nothing to draw")
    return paths


def svg(claim: Claim, result: ClaimResult, evidence: Evidence, lang: str) -> str:
    """One figure."""
    rows = [(i, c) for i, c in enumerate(result.checks) if c.n]
    high = TOP + ROW * len(rows)

    def draw(figure: Any) -> None:
        for place, (number, check) in enumerate(rows):
            bottom = high - TOP - ROW * (place + 1)
            _row(figure, high, bottom, check, words.pick(words.what_of(claim, number), lang), evidence, lang)

    return _slim(rendered((WIDE, high), draw))


def _row(
    figure: Any, high: float, bottom: float, check: CheckResult, heading: str, evidence: Evidence, lang: str
) -> None:
    seeds = words.pick((f", {check.n} seeds", f"，{check.n} 个种子"), lang)
    lines = wrapped(heading + seeds, COLUMNS)
    for i, line in enumerate(lines[:2]):
        figure.text(0.012, (bottom + ROW - 0.13 - 0.13 * i) / high, line, va="center", size=8)
    box = (bottom + 0.27) / high, (ROW - 0.6) / high  # bottom, height of both axes
    arms = arms_of(check, evidence)
    if arms is not None:
        left = figure.add_axes((0.24, box[0], 0.26, box[1]))
        _draw_arms(left, check, *arms)
    right = figure.add_axes((0.58, box[0], 0.40, box[1]))
    _draw_judged(right, check, judged_values(check, evidence))


def arms_of(check: CheckResult, evidence: Evidence) -> tuple[Mapping[int, float], Mapping[int, float]] | None:
    """Both sides of a difference, by seed."""
    if check.against is None:
        return None
    for arms in evidence.arms.values():
        if check.quantity in arms and check.against in arms:
            return arms[check.quantity], arms[check.against]
    return None


def judged_values(check: CheckResult, evidence: Evidence) -> dict[int, float]:
    """What is judged, by seed; nothing where the measurement is not at hand."""
    if check.against is None:
        return dict(evidence.by_seed.get(check.quantity, {}))
    arms = arms_of(check, evidence)
    return {} if arms is None else {s: v - arms[1][s] for s, v in arms[0].items() if s in arms[1]}


def _draw_arms(axes: Any, check: CheckResult, one: Mapping[int, float], other: Mapping[int, float]) -> None:
    seeds = sorted(one.keys() & other.keys())
    ends = [v for s in seeds for v in (one[s], other[s], float("nan"))]  # one line with gaps: a third of the bytes
    axes.plot(ends, [1, 0, 0] * len(seeds), color=QUIET, lw=0.6)
    axes.plot([v for v in ends if v == v], [1, 0] * len(seeds), **DOTS)
    axes.set_yticks([1, 0], [check.quantity, check.against], size=7)
    axes.set_ylim(-0.5, 1.5)
    _ticks(axes)


def _draw_judged(axes: Any, check: CheckResult, values: Mapping[int, float]) -> None:
    ends = [v for v in (check.low, check.high, check.value, *values.values()) if v is not None]
    borders = [v for v in (check.least, check.most) if v is not None]
    low, high = min(ends + borders), max(ends + borders)
    pad = 0.08 * (high - low) or 0.1 * max(1.0, abs(high))
    low, high = low - pad, high + pad
    axes.axvspan(
        low if check.least is None else check.least, high if check.most is None else check.most, color=RANGE, lw=0
    )
    if check.margin is not None and borders:
        axes.axvline(
            borders[0] + (check.margin if check.least is not None else -check.margin), color=QUIET, lw=0.8, ls=":"
        )
    axes.plot(list(values.values()), [0.35] * len(values), **DOTS)
    inside = [v for v in (check.low, check.high) if v is not None]
    if len(inside) == 2:
        axes.plot(inside, [0, 0], color=BAR, lw=2, solid_capstyle="butt")
    axes.plot([check.value], [0], marker="D", ms=4.5, color=BAR)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.4, 0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    _ticks(axes)


def _ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=7, length=0)


def wrapped(text: str, columns: int) -> list[str]:
    """At spaces, and between Chinese characters; both count by how wide they are."""
    lines, line, wide = [], "", 0
    for piece in re.findall(r"[\u3000-\u9fff\uff00-\uffef]|[^\s\u3000-\u9fff\uff00-\uffef]+\s*|\s+", text):
        size = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in piece.rstrip())
        if line and wide + size > columns:
            lines.append(line.rstrip())
            line, wide = "", 0
        line += piece
        wide += sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in piece)
    return [*lines, line.rstrip()]


def _slim(text: str) -> str:
    """A third of it: two decimals of a point are enough for any screen, the font is said once, what has no meaning goes."""
    for pattern, rest in (
        (r"<\?xml.*?\?>|<!--.*?-->|<!DOCTYPE.*?>|<metadata>.*?</metadata>", ""),
        (r"\s*<clipPath.*?</clipPath>| clip-path=\"[^\"]*\"", ""),  # nothing is drawn outside its axes
        (r" transform=\"rotate\(-?0 [^\"]*\"| id=\"(?:figure|axes|patch|text|line2d|[xy]tick|matplotlib|FillBetween)[^\"]*\"", ""),
        (r"font-family: [^;]*; |; stroke: #000000; stroke-opacity: 0| style=\"stroke: #000000; stroke-opacity: 0\"", ""),
        (r"<path id=\"m[0-9a-f]+\" d=\"M 0 0 \nL -?[0-9.]+ -?[0-9.]+ \n\"[^>]*/>|<use [^>]*stroke-width: 0\.8\"/>", ""),  # ticks without length
        (r"(?<=stroke-linecap: butt\})", f"text{{font:7px sans-serif;fill:{INK}}}.h{{font-size:8px}}.m{{text-anchor:middle}}.e{{text-anchor:end}}.d{{fill:{DOT}}}"),
        (f' style="font-size: 7px; text-anchor: middle; fill: {INK}"', ' class="m"'), (f' style="font-size: 7px; text-anchor: end; fill: {INK}"', ' class="e"'),
        (rf' style="font-size: 8px; text-anchor: start; fill: {INK}"', ' class="h"'), (f' style="fill: {DOT}"', ' class="d"'), (r"<g/>|<g>\s*</g>", ""),
        (r"<g>\s*(<(?:use|path|text)[^>]*?(?:/>|>[^<]*</text>))\s*</g>", r"\1"),
        (r"<g>\s*(<(?:use|path|text)[^>]*?(?:/>|>[^<]*</text>))\s*</g>", r"\1"),
        (r"<defs>\s*</defs>", ""),
        (r"\s*\n\s*", "\n"), (r" ?\n(?=[A-Zz] |[z\"])", ""),
    ):  # fmt: skip
        text = re.sub(pattern, rest, text, flags=re.S)
    text = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), text)
    return text.strip() + "\n"
