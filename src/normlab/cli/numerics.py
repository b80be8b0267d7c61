"""normlab numerics."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from .options import Verb
from .show import say, say_json


def add(verb: Verb) -> None:
    numerics = verb(
        "numerics", "Largest errors against float64, for normlab, torch and onnxruntime.", "normlab numerics"
    )
    numerics.add_argument("--json", action="store_true", help="print JSON; null: the answer was not finite")
    numerics.add_argument("--write", type=Path, metavar="DOCS", help="put the table into DOCS/en and DOCS/zh")


def run(args: argparse.Namespace) -> int:
    from ..bench import numerics

    lines = numerics.table()
    if args.json:
        finite = [{n: e if math.isfinite(e) else None for n, e in line.errors.items()} for line in lines]
        say_json([{"case": line.case, "norm": line.norm, "errors": e} for line, e in zip(lines, finite, strict=True)])
        return 0
    if args.write is None:
        say(numerics.markdown(lines))
        return 0
    for language, header in (("en", ("input", "norm")), ("zh", ("输入", "归一化"))):
        page = args.write / language / "numerics.md"
        text = page.read_text(encoding="utf-8")
        begin, end = "<!-- table: make numerics -->\n", "<!-- end of table -->"
        before, rest = text.split(begin)
        page.write_text(
            before + begin + numerics.markdown(lines, header) + "\n" + end + rest.split(end)[1], encoding="utf-8"
        )
        say(f"wrote {page}")
    return 0
