"""The command line: parses, calls, prints. No logic."""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from . import lab
from .show import OutputFailed, Parser, complain, note, say, say_json, table

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
        say_json({"norms": norms, "placements": placements})
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
        say_json(facts)
        return 0
    isas = ", ".join(f"{name}{'' if has else ' (not on this machine)'}" for name, has in facts["isas"].items())
    pools = len(facts["thread_pools"])
    lines = [
        ("device", facts["device"]),
        ("other devices", facts["other_devices"]),
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
    say(facts["allocator_advice"])
    if facts["huge_pages"]["milliseconds"]:
        say(facts["huge_pages"]["advice"])
    return 0


def run_bench(args: argparse.Namespace) -> int:
    import torch

    from .. import bench

    if args.threads is not None:
        if args.threads < 1:
            complain("bench", f"--threads must be at least 1, got {args.threads}")
            return 2
        torch.set_num_threads(args.threads)
    try:
        result = bench.run(
            args.quick,
            args.seconds,
            not args.no_compile,
            progress=lambda text: note(f"... {text}"),
        )
    except RuntimeError as error:
        complain("bench", error)
        return 1
    facts = result["machine"]
    say(
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
    say(
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
        say(f"written to {args.json}")
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
            progress=lambda text: note(f"... {text}"),
        )  # fmt: skip
    except ValueError as error:
        complain("lr-range", error)
        return 2
    say_json(found.to_dict()) if args.json else say(found)
    return 0


def show_diagnosis(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, diagnosis

    try:
        found = diagnosis.diagnose(args.folder)
    except RunUnreadable as error:
        complain("diagnose", error)
        return 1
    say_json(found.to_dict()) if args.json else say(found)
    return 0


def show_runs(args: argparse.Namespace) -> int:
    from .. import RunUnreadable, runs

    try:
        if args.what == "export":
            if args.file.suffix not in (".csv", ".parquet"):
                complain("runs export", f"the file must end in .csv or .parquet, got {args.file.name}")
                return 2
            export = runs.export_csv if args.file.suffix == ".csv" else runs.export_parquet
            say(f"{export(runs.Run(args.folder), args.file)} readings written to {args.file}")
            return 0
        if args.what == "show":
            found = [runs.Run(args.folder).summary()]
        else:
            found, unreadable = _summaries(runs.find(args.folder))
            for reason in unreadable:
                complain("runs list", reason)
    except (RunUnreadable, ImportError, OSError) as error:
        complain("runs", error)
        return 1
    if args.json:
        say_json(found if args.what == "list" else found[0])
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


def _summaries(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """(of the runs that can be read, why the others cannot)."""
    from .. import RunUnreadable, runs

    found, unreadable = [], []
    for folder in folders:
        try:
            found.append(runs.Run(folder).summary())
        except RunUnreadable as error:
            unreadable.append(str(error))
    return found, unreadable


def run_numerics(args: argparse.Namespace) -> int:
    from .. import numerics

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
    _give_streams()
    try:
        try:
            args = build_parser().parse_args(argv)
            return VERBS[args.verb](args)
        finally:
            sys.stdout.flush()  # what fails at the exit is a traceback
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, OutputFailed) as error:
        reader_left = isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError)
        return _without_output(None if reader_left else error)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        return _without_output(error)


def _give_streams() -> None:
    """Closed ones (``>&-``) are None in Python; and no character may be too much for the encoding of the terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _without_output(error: BaseException | None) -> int:
    """The reader, such as head, has seen enough, or there is no room. Nothing more may be written, at the exit neither."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error is not None:
        with contextlib.suppress(OSError, OutputFailed):
            note(f"normlab: standard output cannot be written: {error}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
