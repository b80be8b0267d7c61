"""normlab answer."""

from __future__ import annotations

import argparse
from pathlib import Path

from .answers import add_language, add_margin, add_metric, language, show_answer
from .options import Verb
from .show import complain, say_json


def add(verb: Verb) -> None:
    answer = verb("answer", "Print what a sweep says, finished or not; writes nothing.", "normlab answer runs/grid")
    answer.add_argument("folder", type=Path, help="a sweep")
    answer.add_argument(
        "--baseline", metavar="CELL", help="what the others are compared with (default: the sweep's own)"
    )
    add_metric(answer)
    add_margin(answer)
    add_language(answer)
    answer.add_argument("--json", action="store_true", help="print it as JSON, as summary.json holds it")


def run(args: argparse.Namespace) -> int:
    from .. import answer
    from ..errors import RunUnreadable

    try:
        found = answer.read(args.folder, baseline=args.baseline, margin=args.margin, metric=args.metric)
    except (RunUnreadable, OSError) as error:
        complain("answer", error)
        return 1
    except ValueError as error:
        complain("answer", error)
        return 2
    if args.json:
        say_json(found.to_dict())
    else:
        show_answer(found, language(args.lang))
    return 0
