"""python -m fuzz: go through cases, or look at one."""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from pathlib import Path

from . import runner
from .cases import draw
from .faults import FAULTS
from .judge import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="differential fuzz of the native boundary")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--most", type=int, help="cases at most")
    parser.add_argument("--patience", type=float, default=60, help="seconds a case may take")
    parser.add_argument("--case", type=int, help="judge this one, here, without a child process")
    parser.add_argument("--fault", choices=FAULTS, help="put this fault in first")
    parser.add_argument("--drill", action="store_true", help="put each fault in, one after the other: are they found?")
    parser.add_argument("--json", type=Path, help="write the summary here as well")
    args = parser.parse_args()
    if args.case is not None:
        warnings.simplefilter("ignore")
        if args.fault:
            FAULTS[args.fault].install()
        print(draw(args.case), flush=True)
        found = judge(draw(args.case))
        print("\n".join(found) or "nothing found")
        return 1 if found else 0
    if args.drill:
        found = runner.drill(args.most or 2000)
        for name, what in found.items():
            print(f"{'found ' if what else 'MISSED'} {name}: {what}")
        if args.json:
            args.json.write_text(json.dumps(found))
        return 0 if all(found.values()) else 1
    summary = runner.run(args.first, args.seconds, args.most, args.patience, args.fault)
    print(summary)
    if args.json:
        args.json.write_text(json.dumps(asdict(summary)))
    return 1 if summary.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
