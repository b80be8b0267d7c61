"""The data of :mod:`normlab.report.views` as one page that needs no network. A sweep's is made here: Plotly and everything else are in the file.

Both languages are in it; the page shows one. Data is escaped wherever it enters, and a content security policy lets the
page's two scripts run, by their hashes, and nothing else: no name in a run can become code.
"""

from __future__ import annotations

import base64
import hashlib
import math
from importlib import resources
from pathlib import Path
from typing import Any

from ..answer import METRICS
from ..diagnosis import FEW
from ..errors import require
from ..intervals import MOST_SEEDS
from ..runs import Difference, replace_file
from . import pages, views
from .figures import Data, figures, styles, unit
from .words import both, known

SCALE = ("#fee838", "#c3b369", "#a59c74", "#8a8678", "#707173", "#575d6d", "#3b496c", "#123570", "#00224e")  # cividis
AT_ONCE = 8  # cells drawn before the reader picks others
NEEDS = ("jinja2", "plotly")
PAGE = "report.html"


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of a sweep or a run, by default as report.html in its folder. An older one is replaced as a whole."""
    path = Path(out) if out is not None else Path(folder) / PAGE
    text = render(views.view(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)
    return path


def render(view: Data) -> str:
    """The page of a view: a run's by the modules of ``web/``, which need no extra; a sweep's by a template, with Plotly."""
    return pages.run_page(view) if view["kind"] == "run" else _of_sweep(view)


def _of_sweep(view: Data) -> str:
    require("a page", "lab", *NEEDS)
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    page = resources.files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8")
    return filled(
        page, v=view, both=both, known=known, unit=unit(view), few=FEW, most_seeds=MOST_SEEDS, decimals=decimals(view),
        places=lambda difference: Difference.from_dict(difference).decimals,
        figures=figures(view), styles=styles(view), scale=SCALE, square=lambda value: square(value, view["map"]),
        at_once=AT_ONCE, plotly=get_plotlyjs(), metrics=METRICS, shown_figures=shown_figures(view), estimate=estimate,
    )  # fmt: skip


def filled(page: str, **values: Any) -> str:
    """A template with these values in it, all of them escaped. Filters: number, digest (of a script, for the policy)."""
    require("a page", "lab", "jinja2")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False}
    environment.filters |= {"number": number, "digest": digest}
    return environment.from_string(page).render(**values)


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def decimals(view: Data) -> int:
    """Of losses in the tables: two digits of the narrowest interval, so that ranks can be followed."""
    ends = [(c["low"], c["high"]) for c in view["cells"] if c.get("low") is not None and c.get("high") is not None]
    halves = [(high - low) / 2 for low, high in ends if high > low]
    return max(2, min(5, 1 - math.floor(math.log10(min(halves))))) if halves else 3


def shown_figures(view: Data) -> list[str]:
    """Names of the metrics, other than loss, that any cell has."""
    return [name for name in METRICS if name != "loss" and any(name in c.get("figures", {}) for c in view["cells"])]


def estimate(of: Data | None) -> str:
    """A mean and its interval, each to three digits or as a whole number."""
    if of is None:
        return "–"
    form = ",.0f" if abs(of["mean"]) >= 100 else ".3f"
    ends = "" if of["low"] is None or of["high"] is None else f" [{of['low']:{form}}, {of['high']:{form}}]"
    return f"{of['mean']:{form}}{ends}"


def digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def square(mean: float | None, scale: Data) -> str:
    """CSS of a square of the map; browsers that cannot mix take the nearest color."""
    if mean is None:
        return ""
    share = (mean - scale["low"]) / (scale["high"] - scale["low"]) if scale["high"] > scale["low"] else 0.0
    part, at = math.modf(min(1.0, share) * (len(SCALE) - 1))
    ends = SCALE[int(at)], SCALE[min(int(at) + 1, len(SCALE) - 1)]
    mix = f"color-mix(in srgb, {ends[1]} {100 * part:.0f}%, {ends[0]})"
    return f"background: {ends[round(part)]}; background: {mix}; color: {'#000' if at + part < 3.5 else '#fff'}"
