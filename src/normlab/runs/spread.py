"""How a quantity is spread over the steps and sites of a run, and of several runs in one table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .run import Run


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One quantity of one run: all its readings from a step on, of all sites."""

    run: str
    quantity: str
    count: int  # finite readings
    mean: float
    median: float
    p05: float
    p95: float
    smallest: float
    largest: float
    not_finite: int  # readings left out


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, with a straight line between neighbours, as numpy and torch do it.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread(run: Run, quantity: str, *, name: str | None = None, since: int = 0, sites: str = "") -> Spread:
    """Mean, median, 5th and 95th percentile and extremes of a quantity, from step ``since`` on, over the sites whose name
    contains ``sites``.

    A quantity that the run does not hold is a ValueError that names those it does.
    """
    table = run.table(quantity).get(quantity)
    if table is None:
        known = sorted({probe for _, probe, _, _ in run.readings()})
        raise ValueError(f"{run.folder} holds no readings of {quantity!r}; it has {', '.join(known) or 'none'}")
    found = [
        value
        for site, series in table.items()
        if sites in site
        for step, value in zip(series.steps, series.values, strict=True)
        if step >= since
    ]
    values = sorted(v for v in found if math.isfinite(v))
    if not values:
        raise ValueError(
            f"{run.folder} holds no finite reading of {quantity!r} from step {since} on at a site with {sites!r}"
        )
    return Spread(
        run=run.folder.name if name is None else name, quantity=quantity, count=len(values),
        mean=math.fsum(values) / len(values), median=quantile(values, 0.5), p05=quantile(values, 0.05),
        p95=quantile(values, 0.95), smallest=values[0], largest=values[-1], not_finite=len(found) - len(values),
    )  # fmt: skip


def spreads(runs: Mapping[str, Run], quantities: Sequence[str], *, since: int = 0, sites: str = "") -> list[Spread]:
    """The same for several runs: quantities outermost, so that the runs stand below one another."""
    return [spread(run, q, name=name, since=since, sites=sites) for q in quantities for name, run in runs.items()]


def spread_table(found: Sequence[Spread]) -> str:
    """As text, one line each.

    >>> one = Spread(run="text", quantity="q", count=3, mean=2, median=2, p05=1, p95=3, smallest=1, largest=3, not_finite=0)
    >>> print(spread_table([one]))
    quantity  run   count  mean  median  p05  p95  smallest  largest  not_finite
    q         text  3      2     2       1    3    1         3        0
    """
    names = [f.name for f in fields(Spread)]
    names = ["quantity", "run", *(n for n in names if n not in ("run", "quantity"))]
    rows = [names, *([_shown(getattr(s, n)) for n in names] for s in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
