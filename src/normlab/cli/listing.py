"""normlab list."""

from __future__ import annotations

import argparse

from .options import Verb
from .show import say_json, table


def add(verb: Verb) -> None:
    lister = verb("list", "List norms and placements with formula, paper and advice.", "normlab list --json")
    lister.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from .. import NORMS, PLACEMENTS

    norms = [
        {"name": n, "layer": f.layer.__name__, "formula": f.formula, "shares": f.shares, "paper": f"arXiv {f.paper}",
         "year": f.year, "advice": f.advice}
        for n, f in NORMS.items()
    ]  # fmt: skip
    placements = [
        {"name": n, "class": f.placement.__name__, "formula": f.formula, "paper": f"arXiv {f.paper}", "year": f.year,
         "advice": f.advice}
        for n, f in PLACEMENTS.items()
    ]  # fmt: skip
    if args.json:
        say_json({"norms": norms, "placements": placements})
        return 0
    for title, rows, columns in (
        ("norms", norms, ["name", "layer", "formula", "statistic over", "paper", "year", "advice"]),
        ("placements (S sub-layer, A attention, F feed-forward, N norm)", placements,
         ["name", "class", "formula", "paper", "year", "advice"]),
    ):  # fmt: skip
        table(title, columns, [[str(v) for v in row.values()] for row in rows])
    return 0
