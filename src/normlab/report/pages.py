"""The pages over runs, by the modules of ``web/``: of one run or sweep as a file with its data in it, or of a server that brings the data.

Names out of data that have a word in both languages (rules, outcomes, units) come as a table beside the texts. Everything out of data
becomes text in the page, never markup, and its policy lets its own script run, by its hash, and nothing else.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..diagnosis import FEW
from ..errors import unknown
from ..intervals import MOST_SEEDS
from ..runs import Run, Summary
from .bundle import LANGUAGES, Texts, page, save
from .kernels import holds_kernels
from .views import Data, view
from .words import WORDS

ENTRY = "runs.js"
PAGE = "report.html"
PARTS = {
    "run": {"diagnosis": "run-diagnosis", "depth": "run-depth", "statistics": "run-statistics", "geometry": "run-geometry"},
    "sweep": {"compare": "run-compare", "depth": "sweep-depth", "diagnosis": "sweep-diagnosis"},
    "kernels": {"kernels": "run-kernels"},
}  # fmt: skip


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of a sweep or a run, by default as report.html in its folder; of a file, beside it. An older one is replaced as a whole."""
    default = Path(folder).with_suffix(".html") if holds_kernels(Path(folder)) else Path(folder) / PAGE
    return save(render(view(folder)), default if out is None else Path(out))


def render(view: Data, texts: Texts | None = None) -> str:
    """The page of a view, by itself; with other texts only in tests."""
    return page(ENTRY, {"view": view, **known()}, texts)[0]


class Shown:
    """A page that a notebook displays where it is the value of a cell, in a frame of its own: neither disturbs the other."""

    def __init__(self, html: str, height: int) -> None:
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        # Scripts may run in it, its own by its policy; it has no origin, so nothing of the notebook is within its reach.
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="normlab" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def plot(
    of: str | Path | Run | Summary, part: str | None = None, *, language: str | None = None, height: int = 760
) -> Shown:
    """The figures of a run, a sweep (its folder) or an answer, in a notebook.

    ``part``: of a run "diagnosis", "depth", "statistics" or "geometry"; of a sweep or an answer "compare", "depth" or "diagnosis".
    ``language``: "en" or "zh"; else the browser's.
    """
    shown = view(of)
    parts = PARTS[shown["kind"]]
    if part is not None and part not in parts:
        raise ValueError(unknown(f"part of a {shown['kind']}", part, parts))
    if language is not None and language not in LANGUAGES:
        raise ValueError(unknown("language", language, LANGUAGES))
    asked = {"page": part and parts[part], "lang": language}
    address = "&".join(f"{key}={value}" for key, value in asked.items() if value)
    return Shown(page(ENTRY, {"view": shown, "address": address, **known()})[0], height)


def served() -> tuple[bytes, str]:
    """(the page of a server, its policy)."""
    html, policy = page(ENTRY, {"view": None, **known()}, connect=True)
    return html.encode(), policy + "; frame-ancestors 'none'"


def known() -> Data:
    """What every page knows: words for names, and limits that its sentences name."""
    words = {name: {"en": en, "zh": zh} for name, (en, zh) in WORDS.items()}
    return {"words": words, "few": FEW, "most_seeds": MOST_SEEDS}
