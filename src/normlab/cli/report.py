"""normlab report."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Verb
from .show import complain, say, say_json


def add(verb: Verb) -> None:
    report = verb("report", "Write the page of a sweep or of a run.", "normlab report runs/grid")
    report.add_argument("folder", type=Path, help="a sweep or a run")
    report.add_argument("--out", type=Path, help="the file (default FOLDER/report.html)")
    report.add_argument("--json", action="store_true", help="print what the page shows as JSON and write nothing")


def run(args: argparse.Namespace) -> int:
    from .. import report
    from ..errors import RunUnreadable

    try:
        if args.json:
            say_json(report.view(args.folder))
        else:
            say(report.write(args.folder, args.out))
    except (RunUnreadable, OSError, ImportError, ValueError) as error:
        complain("report", error)
        return 1
    return 0
