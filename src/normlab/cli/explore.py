"""normlab explore."""

from __future__ import annotations

import argparse
import tempfile
import webbrowser
from pathlib import Path

from .options import Verb
from .show import complain, note, say

PAGE = "normlab-explore.html"


def add(verb: Verb) -> None:
    explore = verb(
        "explore",
        "Open the playground and the explorer, or write them as one offline page.",
        "normlab explore -o explore.html",
    )
    explore.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the page here and open nothing")


def run(args: argparse.Namespace) -> int:
    from ..report import explore

    try:
        path = explore.write(args.out or Path(tempfile.mkdtemp(prefix="normlab-")) / PAGE)
    except OSError as error:
        complain("explore", f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error)
        return 1
    say(path)
    if args.out is None and not webbrowser.open(path.resolve().as_uri()):
        note("normlab explore: no browser was found here. Open the file above, or write it elsewhere with -o FILE")
    return 0
