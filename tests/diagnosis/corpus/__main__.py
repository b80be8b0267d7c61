"""python -m corpus SET --out FOLDER: make the trainings that are not there yet, diagnose all, score."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import normlab

from .plan import SETS
from .score import score, table, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="corpus", description=__doc__)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", default="", help="cases whose name or kind contains this")
    parser.add_argument(
        "--defaults", action="store_true", help="watch with its defaults, every=10 and max_overhead=0.03"
    )
    parser.add_argument("--part", default="0/1", help="i/n: every n-th case from the i-th on, for several processes")
    parser.add_argument("--write", type=Path, help="put the tables into these docs (a folder with en and zh)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, args.part.split("/"))
    cases = [c for c in SETS[args.set]() if args.only in f"{c.kind}: {c.name}"]
    home = f"{args.set}-defaults" if args.defaults else args.set
    options: dict[str, Any] = (
        {} if args.defaults else {"max_overhead": None}
    )  # as the watch itself advises for short runs
    began = time.perf_counter()
    for number, case in enumerate(cases):
        folder = args.out / home / f"{case.kind}--{case.name}".replace(" ", "-").replace(",", "")
        if number % parts != part or (folder / "label.json").exists():
            continue
        if folder.exists():
            print(f"{folder} is there without a label: an earlier run broke off; remove it", file=sys.stderr)
            return 1
        trial = case.make()
        trial.run(folder, **options)
        label = {"kind": case.kind, "name": case.name, "site": trial.expected_site, "step": trial.expected_step}
        (folder / "label.json").write_text(json.dumps(label), encoding="utf-8")
        found = [f.rule for f in normlab.diagnose(folder).findings]
        account = normlab.Run(folder).info["recording"]
        made = f"{account['recorded']} recorded, {account['lean']} lean"
        print(f"{case.kind}: {case.name}: {', '.join(found) or '-'} ({made})", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    if parts == 1:
        result = score(args.out / home)
        print(table(result))
        if args.write is not None:
            write(result, args.write, args.set)
    return 0


if __name__ == "__main__":
    sys.exit(main())
