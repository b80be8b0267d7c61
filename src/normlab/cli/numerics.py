"""normlab numerics."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from .options import Verb
from .show import complain, say, say_json

HEADERS = {"en": ("input", "norm"), "zh": ("输入", "归一化")}


def add(verb: Verb) -> None:
    numerics = verb(
        "numerics", "Largest errors against float64, for normlab, torch and onnxruntime.", "normlab numerics"
    )
    numerics.add_argument("--json", action="store_true", help="print JSON; null: the answer was not finite")
    numerics.add_argument("--write", type=Path, metavar="DOCS", help="put the table into DOCS/en and DOCS/zh")


def run(args: argparse.Namespace) -> int:
    from ..bench import numerics

    begin, end = "<!-- table: make numerics -->\n", "<!-- end of table -->"
    pages = {} if args.write is None else {language: args.write / language / "numerics.md" for language in HEADERS}
    for page in pages.values():  # before minutes of work
        if not page.is_file() or begin not in page.read_text(encoding="utf-8"):
            complain("numerics", f"{page} is no page with a place for the table: {begin.strip()}")
            return 2
    lines = numerics.table()
    if args.json:
        finite = [{n: e if math.isfinite(e) else None for n, e in line.errors.items()} for line in lines]
        say_json([{"case": line.case, "norm": line.norm, "errors": e} for line, e in zip(lines, finite, strict=True)])
        return 0
    if args.write is None:
        say(numerics.markdown(lines))
        return 0
    for language, page in pages.items():
        before, rest = page.read_text(encoding="utf-8").split(begin)
        page.write_text(
            before + begin + numerics.markdown(lines, HEADERS[language]) + "\n" + end + rest.split(end)[1],
            encoding="utf-8",
        )
        say(f"wrote {page}")
    return 0
