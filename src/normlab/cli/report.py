"""normlab report."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Verb
from .show import complain, say, say_json


def add(verb: Verb) -> None:
    report = verb(
        "report",
        "Write the page of a sweep, of a run, of a run of claims or of a benchmark.",
        "normlab report runs/grid",
    )
    report.add_argument(
        "folder", type=Path, help="a sweep, a run or a run of claims; or the file of normlab bench --json"
    )
    report.add_argument(
        "-o",
        "--out",
        type=Path,
        help="the file (default FOLDER/report.html, of a benchmark FILE with .html); of figures, the folder (FOLDER/figures)",
    )
    report.add_argument(
        "--figures",
        choices=("svg",),
        help="the figures as files, for a paper; of claims, one for each that samples decide",
    )
    report.add_argument("--json", action="store_true", help="print what the page shows as JSON and write nothing")


def run(args: argparse.Namespace) -> int:
    from .. import report
    from ..errors import RunUnreadable
    from ..runs import holds_claims

    try:
        if holds_claims(args.folder):
            return _claims(args)
        if args.json:
            say_json(report.view(args.folder))
        elif args.figures:
            from ..report import svg

            for path in svg.write(args.folder, args.out or args.folder / svg.FOLDER):
                say(path)
        else:
            say(report.write(args.folder, args.out))
    except (RunUnreadable, OSError, ImportError, ValueError) as error:
        complain("report", error)
        return 1
    return 0


def _claims(args: argparse.Namespace) -> int:
    from ..claims import figures, html
    from ..report.svg import FOLDER
    from ..runs import read_claims

    if args.json:
        say_json(read_claims(args.folder).to_dict())
    elif args.figures:
        for path in figures.write(args.folder, args.out or args.folder / FOLDER):
            say(path)
    else:
        say(html.write(args.folder, args.out))
    return 0
