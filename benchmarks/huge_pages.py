"""What huge pages under large outputs bring and cost: one LayerNorm forward, with, without, and torch's, in turn.

Huge pages save page faults, but the system may have to move memory about to find them, and the call that asks waits for it. So
each side is timed call by call, without a pause and after pauses in which other processes and the host of a virtual machine take
memory back, and judged by mean and 99th percentile as well as by the median. Output is in milliseconds: by the clock, and the time
all threads of the process ran, which other processes on the same machine disturb less.

    python benchmarks/huge_pages.py --json out.json
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import normlab
from normlab import machine
from normlab.kernels import cpu

SYSTEM = Path("/sys/kernel/mm/transparent_hugepage")


def summary(times):
    ordered = sorted(1e3 * t for t in times)
    return {"calls": len(ordered), "median": statistics.median(ordered), "mean": statistics.fmean(ordered),
            "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], "most": ordered[-1]}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs="+", default=[4, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=100, help="without a pause")
    parser.add_argument("--pauses", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a pause")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    x = torch.randn(args.shape)
    ours, theirs = normlab.LayerNorm(x.shape[-1]), torch.nn.LayerNorm(x.shape[-1])

    def side(norm, huge):
        def call():
            cpu.native.use_huge_pages(huge)
            start, ran = time.perf_counter(), time.process_time()
            y = norm(x)
            taken = time.perf_counter() - start, time.process_time() - ran
            del y
            return taken

        return call

    sides = {"huge pages": side(ours, True), "ordinary pages": side(ours, False), "torch": side(theirs, False)}
    found = {}
    with torch.no_grad():
        for call in sides.values():
            call(), call()
        for series, rounds, pause in (
            ("without a pause", args.rounds, 0.0),
            (f"after {args.seconds:g} s", args.pauses, args.seconds),
        ):
            times = {name: [] for name in sides}
            for _ in range(rounds):
                for name, call in sides.items():
                    time.sleep(pause)
                    times[name].append(call())
            found[series] = {
                name: dict(zip(("clock", "ran"), map(summary, zip(*t, strict=True)), strict=True))
                for name, t in times.items()
            }
            for name, by in found[series].items():
                for kind, s in by.items():
                    print(f"{series:16s} {name:15s} {kind:6s} median {s['median']:6.1f}  mean {s['mean']:6.1f}  p99 {s['p99']:6.1f}  most {s['most']:6.1f}", flush=True)  # fmt: skip
    state = {name: (SYSTEM / name).read_text().strip() for name in ("enabled", "defrag") if (SYSTEM / name).exists()}
    print(state)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine.description(), "shape": args.shape, "pages": state, "milliseconds": found}, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
