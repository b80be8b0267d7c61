"""The command line: parses, calls, prints. No logic."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from . import lab
from .show import Parser, table

EXAMPLES = """examples:
  normlab list                      norms and placements with formula, paper and advice
  normlab doctor                    kernels, threads, allocator advice for this machine
  normlab bench --quick             verify, then compare with torch on two shapes
  normlab bench --json bench.json   the full comparison, with torch.compile
  normlab lr-range --placement post the largest stable learning rate, with seeds and an interval
  normlab diagnose runs/a           what is wrong in a run, why, and what to try
  normlab runs list runs            recorded runs in a folder; also: show, export
  normlab compare                   train norms x placements x rates x seeds, rank them, write a report
  normlab train experiment.toml     one experiment, one run directory
  normlab report runs/a             a page from a sweep or a run
  normlab numerics                  largest errors against float64
  normlab completion bash           completion for your shell
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="normlab", description="A normalization workbench for Transformers.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"normlab {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, help: str, example: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}")

    lister = verb("list", "List norms and placements with formula, paper and advice.", "normlab list --json")
    lister.add_argument("--json", action="store_true", help="print JSON")

    doctor = verb("doctor", "Say what runs on this machine and why.", "normlab doctor")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--no-allocator", action="store_true", help="skip the allocator measurement (a few seconds)")

    bench = verb(
        "bench", "Verify, then compare with torch, torch.compile and the memory limit.", "normlab bench --quick"
    )
    bench.add_argument("--quick", action="store_true", help="two shapes, no torch.compile")
    bench.add_argument("--threads", type=int, default=None, help="threads for both sides (default: torch's)")
    bench.add_argument("--seconds", type=float, default=1.0, help="time per comparison (default 1)")
    bench.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")

    limit = verb(
        "lr-range", "Bracket the largest stable learning rate.", "normlab lr-range --norm rms --placement post"
    )
    for name, default, help in (("norm", "layer", "a norm"), ("placement", "pre", "a placement")):
        limit.add_argument(f"--{name}", default=default, help=f"{help} from `normlab list` (default {default})")
    for name, number in (("dim", 64), ("layers", 6), ("steps", 60), ("seeds", 3), ("halvings", 3)):
        limit.add_argument(f"--{name}", type=int, default=number, help=f"(default {number})")
    for name, rate in (("lowest", 1e-5), ("highest", 10.0)):
        limit.add_argument(f"--{name}", type=float, default=rate, help=f"rate to begin / end with (default {rate:g})")
    limit.add_argument("--model", metavar="MODULE:NAME", help="your own: a function that makes the model")
    limit.add_argument("--data", metavar="MODULE:NAME", help="with --model: a function seed -> batches")
    limit.add_argument("--loss", metavar="MODULE:NAME", help="with --model: a function (model, batch) -> loss")
    limit.add_argument("--json", action="store_true", help="print JSON")

    diagnose = verb("diagnose", "Say what is wrong in a run, why, and what to try.", "normlab diagnose runs/a")
    diagnose.add_argument("folder", type=Path, help="a run")
    diagnose.add_argument("--json", action="store_true", help="print JSON")

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

    lab.add_verbs(verb)

    numerics = verb(
        "numerics", "Largest errors against float64, for normlab, torch and onnxruntime.", "normlab numerics"
    )
    numerics.add_argument("--json", action="store_true", help="print JSON; null: the answer was not finite")
    numerics.add_argument("--write", type=Path, metavar="DOCS", help="put the table into DOCS/en and DOCS/zh")
    return parser


def show_list(args: argparse.Namespace) -> int:
    from .. import NORMS, PLACEMENTS

    norms = [
        {"name": n, "layer": f.layer.__name__, "formula": f.formula, "shares": f.shares, "paper": f"arXiv {f.paper}",
         "year": f.year, "advice": f.advice}
        for n, f in NORMS.items()
    ]  # fmt: skip
    placements = [
        {"name": n, "class": f.place.__name__, "formula": f.formula, "paper": f"arXiv {f.paper}", "year": f.year,
         "advice": f.advice}
        for n, f in PLACEMENTS.items()
    ]  # fmt: skip
    if args.json:
        print(json.dumps({"norms": norms, "placements": placements}, indent=1))
        return 0
    for title, rows, columns in (
        ("norms", norms, ["name", "layer", "formula", "statistic over", "paper", "year", "advice"]),
        ("placements (S sub-layer, A attention, F feed-forward, N norm)", placements,
         ["name", "class", "formula", "paper", "year", "advice"]),
    ):  # fmt: skip
        table(title, columns, [[str(v) for v in row.values()] for row in rows])
    return 0


def show_doctor(args: argparse.Namespace) -> int:
    from .. import doctor

    facts = doctor.examine(measure_allocator=not args.no_allocator)
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    isas = ", ".join(f"{name}{'' if has else ' (not on this machine)'}" for name, has in facts["isas"].items())
    pools = len(facts["thread_pools"])
    lines = [
        ("device", facts["device"]),
        ("torch", f"{facts['torch']}, Python {facts['python']}"),
        ("native kernels", f"yes, instruction set {facts['isa']}" if facts["native"] else f"NO: {facts['native_missing']}; every op runs on the reference formulas"),
        ("in this build", isas or "none"),
        ("threads", f"{facts['threads']}" + ("" if facts["openmp"] or not facts["native"] else " (kernels were built without OpenMP: they use one)")),
        ("thread pools", "one, shared with torch" if pools == 1 else f"{pools}: {', '.join(facts['thread_pools'])}"),
        ("kernel request", facts["request"]),
        ("16-bit products", facts["bfloat16_products"]["note"]),
        ("huge pages", f"{'asked for' if facts['huge_pages']['asked_for'] else 'not asked for'}: {facts['huge_pages']['reason']}"),
    ]  # fmt: skip
    table("normlab doctor", ["", ""], [list(line) for line in lines])
    table("kernel per op", ["op", "kernel", "why"], [[op, *choice] for op, choice in facts["kernels"].items()])
    if facts["allocator"]:
        rows = [
            [t["setting"], "-" if t["fresh_over_reused"] is None else f"{t['fresh_over_reused']:.2f}x", t["note"]]
            for t in facts["allocator"]
        ]
        table("128 MiB written to fresh memory, relative to reused memory", ["setting", "cost", ""], rows)
    print(facts["allocator_advice"])
    if facts["huge_pages"]["milliseconds"]:
        print(facts["huge_pages"]["advice"])
    return 0


def run_bench(args: argparse.Namespace) -> int:
    import torch

    from .. import bench

    if args.threads is not None:
        if args.threads < 1:
            print(f"normlab bench: --threads must be at least 1, got {args.threads}", file=sys.stderr)
            return 2
        torch.set_num_threads(args.threads)
    try:
        result = bench.run(
            args.quick,
            args.seconds,
            not args.no_compile,
            progress=lambda text: print(f"... {text}", file=sys.stderr, flush=True),
        )
    except RuntimeError as error:
        print(f"normlab bench: {error}", file=sys.stderr)
        return 1
    facts = result["machine"]
    print(
        f"{facts['cpu']}, {facts['isa']}, {facts['threads']} threads, torch {facts['torch']}, normlab {facts['normlab']}"
    )
    rows = []
    for r in result["rows"]:
        ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in r.ratios.items())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in (r.share_of_limit or r.share_of_step).items())
        ours = f"{r.sides['ours'] * 1e6:.0f} us" if "ours" in r.sides else ""
        rows.append([r.family, r.case, "x".join(map(str, r.shape)), r.dtype, ours, ratios, shares])
    table("time of the other side / ours (more than 1x: ours is faster)",
           ["norm", "what", "shape", "dtype", "ours", "ratio", "share of the copy limit, or of the step"], rows)  # fmt: skip
    verified = result["verified"]
    print(
        f"verified first: {len(verified)} norm x dtype pairs, worst {max(v[2] / v[3] for v in verified):.0%} of the error allowed"
    )
    goals = [
        [
            g.what,
            f"{g.measured:.3g}{g.unit}",
            f"{'<=' if g.at_most else '>='} {g.target:.3g}{g.unit}",
            "yes" if g.met else "NO",
        ]
        for g in result["goals"]
    ]
    table("goals" + (" (quick run: fewer shapes)" if args.quick else ""), ["what", "measured", "reach", "met"], goals)
    if args.json:
        bench.write_json(result, args.json)
        print(f"written to {args.json}")
    return 0


def run_lr_range(args: argparse.Namespace) -> int:
    from .. import rates
    from ..lab import Experiment
    from ..lab.train import named, parts_of

    try:
        own = [args.model, args.loss, args.data]
        if any(own) and not all(own):
            raise ValueError("your own model needs all of --model, --data and --loss")
        sizes = {"dim": args.dim, "num_layers": args.layers, "ffn_dim": 4 * args.dim}
        parts = (
            tuple(map(named, own))
            if all(own)
            else parts_of(Experiment(norm=args.norm, placement=args.placement, model=sizes))
        )
        found = rates.lr_range(
            *parts, lowest=args.lowest, highest=args.highest, steps=args.steps, seeds=args.seeds, halvings=args.halvings,
            progress=lambda text: print(f"... {text}", file=sys.stderr, flush=True),
        )  # fmt: skip
    except ValueError as error:
        print(f"normlab lr-range: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict(), indent=1) if args.json else found)
    return 0


def show_diagnosis(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, diagnosis

    try:
        found = diagnosis.diagnose(args.folder)
    except RunUnreadable as error:
        print(f"normlab diagnose: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.to_dict(), indent=1) if args.json else found)
    return 0


def show_runs(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, runs

    try:
        if args.what == "export":
            if args.file.suffix not in (".csv", ".parquet"):
                print(
                    f"normlab runs export: the file must end in .csv or .parquet, got {args.file.name}", file=sys.stderr
                )
                return 2
            export = runs.export_csv if args.file.suffix == ".csv" else runs.export_parquet
            print(f"{export(runs.Run(args.folder), args.file)} readings written to {args.file}")
            return 0
        found = [runs.Run(f).summary() for f in (runs.find(args.folder) if args.what == "list" else [args.folder])]
    except (RunUnreadable, ImportError, OSError) as error:
        print(f"normlab runs: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(found if args.what == "list" else found[0], indent=1))
    elif args.what == "list":
        table(f"{len(found)} runs", ["run", "status", "created", "last step", "recorded", "readings", "loss"],
               [[r["folder"], r["status"], str(r["created"]), str(r["last_step"]), str(r["recorded_steps"]),
                 str(r["readings"]), str(r["last"].get("loss", ""))] for r in found])  # fmt: skip
    else:
        (run,) = found
        coverage = run["coverage"] or {}
        facts = [("status", run["status"]), ("created", str(run["created"])), ("last step", str(run["last_step"])),
                 ("readings", str(run["readings"])), ("last loss", str(run["last"].get("loss", ""))),
                 ("norms", f"{coverage.get('norms', 0)}, not watched" if coverage.get("fired", 0) is None
                  else f"{coverage.get('fired', 0)} of {coverage.get('norms', 0)} fired"),
                 ("overhead", "" if run["overhead"] is None else f"{run['overhead']:.1%}"),
                 *((f"event at step {e['step']}", f"{e['event']} {e.get('site') or ''}") for e in run["events"])]  # fmt: skip
        table(run["folder"], ["", ""], [list(f) for f in facts])
        table("quantities", ["name", "sites"], [[name, str(n)] for name, n in run["probes"].items()])
    return 0


def run_numerics(args: argparse.Namespace) -> int:
    from .. import numerics

    lines = numerics.table()
    if args.json:
        finite = [{n: e if math.isfinite(e) else None for n, e in line.errors.items()} for line in lines]
        print(
            json.dumps(
                [{"case": line.case, "norm": line.norm, "errors": e} for line, e in zip(lines, finite, strict=True)]
            )
        )
        return 0
    if args.write is None:
        print(numerics.markdown(lines))
        return 0
    for language, header in (("en", ("input", "norm")), ("zh", ("输入", "归一化"))):
        page = args.write / language / "numerics.md"
        text = page.read_text(encoding="utf-8")
        begin, end = "<!-- table: make numerics -->\n", "<!-- end of table -->"
        before, rest = text.split(begin)
        page.write_text(
            before + begin + numerics.markdown(lines, header) + "\n" + end + rest.split(end)[1], encoding="utf-8"
        )
        print(f"wrote {page}")
    return 0


VERBS: dict[str, Any] = {
    "list": show_list,
    "doctor": show_doctor,
    "bench": run_bench,
    "lr-range": run_lr_range,
    "diagnose": show_diagnosis,
    "runs": show_runs,
    "numerics": run_numerics,
    **lab.VERBS,
}


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return VERBS[args.verb](args)
    except KeyboardInterrupt:
        return 130
    except (
        BrokenPipeError
    ):  # the reader, such as head, has seen enough; nothing more may be written, at the exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
