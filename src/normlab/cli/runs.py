"""normlab runs: list, show, export."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .options import Verb
from .show import complain, say, say_json, table


def add(verb: Verb) -> None:
    runs = verb("runs", "List, show or export recorded runs.", "normlab runs show runs/a")
    what = runs.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, help, example in (
        ("list", "The runs in a folder.", "normlab runs list runs"),
        ("show", "What one run holds.", "normlab runs show runs/a"),
        ("export", "All readings as CSV or Parquet.", "normlab runs export runs/a a.csv"),
    ):
        action = what.add_parser(name, help=help, description=help, epilog=f"example: {example}")
        action.add_argument("folder", type=Path, help="a run" if name != "list" else "where to look")
        if name == "export":
            action.add_argument("file", type=Path, help="ends in .csv or .parquet")
        else:
            action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, runs

    try:
        if args.what == "export":
            if args.file.suffix not in (".csv", ".parquet"):
                complain("runs export", f"the file must end in .csv or .parquet, got {args.file.name}")
                return 2
            export = runs.export_csv if args.file.suffix == ".csv" else runs.export_parquet
            say(f"{export(runs.Run(args.folder), args.file)} readings written to {args.file}")
            return 0
        if args.what == "show":
            found = [runs.Run(args.folder).summary()]
        else:
            found, unreadable = _summaries(runs.find(args.folder))
            for reason in unreadable:
                complain("runs list", reason)
    except (RunUnreadable, ImportError, OSError) as error:
        complain("runs", error)
        return 1
    if args.json:
        say_json(found if args.what == "list" else found[0])
    elif args.what == "list":
        table(f"{len(found)} runs", ["run", "status", "created", "last step", "recorded", "readings", "loss"],
               [[r["folder"], r["status"], str(r["created"]), str(r["last_step"]), str(r["recorded_steps"]),
                 str(r["readings"]), str(r["last"].get("loss", ""))] for r in found])  # fmt: skip
    else:
        (run,) = found
        coverage = run["coverage"] or {}
        rows = [("status", run["status"]), ("created", str(run["created"])), ("last step", str(run["last_step"])),
                 ("readings", str(run["readings"])), ("last loss", str(run["last"].get("loss", ""))),
                 ("norms", f"{coverage.get('norms', 0)}, not watched" if coverage.get("fired", 0) is None
                  else f"{coverage.get('fired', 0)} of {coverage.get('norms', 0)} fired"),
                 ("overhead", "" if run["overhead"] is None else f"{run['overhead']:.1%}"),
                 *((f"event at step {e['step']}", f"{e['event']} {e.get('site') or ''}") for e in run["events"])]  # fmt: skip
        table(run["folder"], ["", ""], [list(row) for row in rows])
        table("quantities", ["name", "sites"], [[name, str(n)] for name, n in run["probes"].items()])
    return 0


def _summaries(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """(of the runs that can be read, why the others cannot)."""
    from .. import RunUnreadable, runs

    found, unreadable = [], []
    for folder in folders:
        try:
            found.append(runs.Run(folder).summary())
        except RunUnreadable as error:
            unreadable.append(str(error))
    return found, unreadable
