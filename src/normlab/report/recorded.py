"""What probes recorded in one run, by quantity: what the pages over a run draw, step by step.

Values are those of the file, to six digits; nothing is averaged. Where a run holds more than a page can carry, steps are left out
evenly, the first and the last kept, and the page says how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..diagnosis import EVIDENCE
from ..runs import Run, Series

STEPS = 200  # recorded steps that are kept
SITES = 200  # of a quantity
NUMBERS = 300_000  # in all; about 2 MB
SNAPSHOTS = 12  # of tokens around norms
TOKENS = 64  # of a snapshot

BY_BLOCK = ("stream_rms", "stream_grad", "param_grad", "update_ratio", "branch_share", "angle")
STATISTICS = (
    "batch_mean_distance",
    "batch_var_distance",
    "batch_mean_distance_padded",
    "batch_var_distance_padded",
    "padding_share",
    "grad_through_mean",
    "grad_through_var",
    "inference_gap",
    "running_statistics_loss",
    "batch_statistics_loss",
    "eps_share",
)
GEOMETRY = ("length", "length_spread", "mean_angle", "anisotropy", "neighbours_kept", "kurtosis_in", "kurtosis_out")
OF_MODEL = ("effective_depth", "grad_norm", "lr")
SHOWN = tuple(dict.fromkeys((*BY_BLOCK, *STATISTICS, *GEOMETRY, *OF_MODEL, *(q for qs in EVIDENCE.values() for q in qs))))  # fmt: skip
BINNED = ("loss", "held_out_loss")  # curves of their own

Data = dict[str, Any]


@dataclass(frozen=True)
class Quantity:
    """Readings of one quantity: a row per site, a column per kept step."""

    quantity: str
    sites: list[str]
    steps: list[int]
    values: list[list[float | None]]  # None: not recorded there, or not finite
    recorded: int  # steps in all, kept or not
    left_out: int  # sites
    broken: int | None  # the first step with a value that is not finite


@dataclass(frozen=True)
class Snapshot:
    """Some tokens around a norm, as the assay of token similarity left them: where they lie and who is near whom."""

    step: int
    site: str
    tokens: list[int] | None
    before: Data
    plain: Data
    after: Data


def recorded(run: Run, table: Mapping[str, Mapping[str, Series]]) -> list[Data]:
    """Every quantity that a page shows and this run holds, in the order of the pages."""
    blocks = (run.info.get("sites") or {}).get("blocks") or []
    found = [(q, _sites(table[q], blocks)) for q in SHOWN if q not in BINNED and table.get(q)]
    rows = sum(min(len(sites), SITES) for _, sites in found)
    most = max(2, min(STEPS, NUMBERS // max(rows, 1)))
    return [asdict(_quantity(q, table[q], sites, most)) for q, sites in found]


def _sites(of: Mapping[str, Series], blocks: list[str]) -> list[str]:
    """Blocks as the model orders them, others as they were recorded."""
    place = {name: i for i, name in enumerate(blocks)}
    return sorted(of, key=lambda site: place.get(site, len(place)))


def _quantity(name: str, of: Mapping[str, Series], sites: list[str], most: int) -> Quantity:
    every, shown = of[sites[0]].steps, sites[:SITES]
    if any(of[site].steps != every for site in sites):
        every = sorted({step for site in sites for step in of[site].steps})
    steps = evenly(every, most)
    kept = set(steps)
    columns = [{s: v for s, v in zip(of[site].steps, of[site].values, strict=True) if s in kept} for site in shown]
    broken = [of[site] for site in sites if not all(map(math.isfinite, of[site].values))]
    bad = [s for series in broken for s, v in zip(series.steps, series.values, strict=True) if not math.isfinite(v)]
    return Quantity(
        name, shown, steps, [[short(column.get(step)) for step in steps] for column in columns],
        len(every), len(sites) - len(shown), min(bad, default=None),
    )  # fmt: skip


def evenly(values: list[int], most: int) -> list[int]:
    """At most so many of them, the first and the last among them.

    >>> evenly([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def short(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def snapshots(events: Iterable[Mapping[str, Any]]) -> list[Data]:
    """The first and the last of each norm, as many norms as fit."""
    by_site: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == "token similarity":
            by_site.setdefault(event["site"], []).append(event)
    kept = [e for es in by_site.values() for e in ([es[0], es[-1]] if len(es) > 1 else es)]
    return [asdict(_snapshot(e)) for e in kept[:SNAPSHOTS]]


def _snapshot(event: Mapping[str, Any]) -> Snapshot:
    """Neighbours that are no tokens of it, which only a damaged file has, are left out."""
    count = min([TOKENS, *(len(event[form]["coordinates"]) for form in ("before", "plain", "after"))])

    def cloud(form: Mapping[str, Any]) -> Data:
        points = [
            [short(float(v)) or 0.0 for v in (*point[:3], 0.0, 0.0, 0.0)[:3]] for point in form["coordinates"][:count]
        ]
        near = [[n for n in row[:5] if n < count] for row in (*form["neighbours"], *([[]] * count))[:count]]
        return {
            "points": points,
            "near": near,
            "explained": form.get("explained"),
            "mean_cosine": form.get("mean_cosine"),
        }

    tokens = event.get("tokens")
    return Snapshot(
        event["step"], event["site"], tokens[:count] if tokens and len(tokens) >= count else None,
        *(cloud(event[form]) for form in ("before", "plain", "after")),
    )  # fmt: skip
