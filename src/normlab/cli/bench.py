"""normlab bench."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Verb
from .show import complain, note, say, table


def add(verb: Verb) -> None:
    bench = verb(
        "bench", "Verify, then compare with torch, torch.compile and the memory limit.", "normlab bench --quick"
    )
    bench.add_argument("--quick", action="store_true", help="two shapes, no torch.compile")
    bench.add_argument("--threads", type=int, default=None, help="threads for both sides (default: torch's)")
    bench.add_argument("--seconds", type=float, default=1.0, help="time per comparison (default 1)")
    bench.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    import torch

    from ..bench import speed

    if args.threads is not None:
        if args.threads < 1:
            complain("bench", f"--threads must be at least 1, got {args.threads}")
            return 2
        torch.set_num_threads(args.threads)
    try:
        result = speed.run(
            args.quick,
            args.seconds,
            not args.no_compile,
            progress=lambda text: note(f"... {text}"),
        )
    except RuntimeError as error:
        complain("bench", error)
        return 1
    machine = result["machine"]
    say(
        f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads, torch {machine['torch']}, normlab {machine['normlab']}"
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
        speed.write_json(result, args.json)
        say(f"written to {args.json}")
    return 0
