"""normlab diagnose."""

from __future__ import annotations

import argparse
from pathlib import Path

from .answers import add_language, language
from .options import Verb
from .show import complain, say, say_json


def add(verb: Verb) -> None:
    diagnose = verb("diagnose", "Say what is wrong in a run, why, and what to try.", "normlab diagnose runs/a")
    diagnose.add_argument("folder", type=Path, help="a run")
    add_language(diagnose, "of the diagnosis")
    diagnose.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, diagnosis

    try:
        found = diagnosis.diagnose(args.folder, language=language(args.lang))
    except RunUnreadable as error:
        complain("diagnose", error)
        return 1
    say_json(found.to_dict()) if args.json else say(found)
    return 0
