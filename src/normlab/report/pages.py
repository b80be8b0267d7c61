"""The pages over runs: of one run as a file with its data in it, or of a server that brings the data.

Names out of data that have a word in both languages (rules, outcomes, units) come as a table beside the texts.
"""

from __future__ import annotations

from ..diagnosis import FEW, RULES, SEVERITIES
from ..runs import EQUAL, OUTCOMES, STATUSES
from .bundle import Texts, page
from .views import Data
from .words import WORDS, both

ENTRY = "runs.js"
NAMED = (*RULES, *SEVERITIES, *OUTCOMES, *STATUSES, *EQUAL)


def words() -> dict[str, dict[str, str]]:
    units = [key for key in WORDS if key.startswith("nats per ")]
    return {name: both(name) for name in (*NAMED, *units, "own loss") if name in WORDS}


def run_page(view: Data, texts: Texts | None = None) -> str:
    """The page of a run, by itself."""
    return page(ENTRY, {"view": view, "words": words(), "few": FEW}, texts)[0]


def served() -> tuple[bytes, str]:
    """(the page of a server, its policy)."""
    html, policy = page(ENTRY, {"view": None, "words": words(), "few": FEW}, connect=True)
    return html.encode(), policy + "; frame-ancestors 'none'"
