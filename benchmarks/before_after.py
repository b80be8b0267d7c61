"""Two builds of normlab on this machine: every norm forward and backward, the fused residual, and what importing costs.

Each build is a process of its own, since both are called normlab; they work in turn, in shuffled order, one waiting while the other
is timed, so that drift of the machine hits both. Given is the median over rounds of (before / after), above 1 where the second is
faster, with the interval that holds the median of such rounds in 95 of 100 (order statistics). A second process of the first build
may take part as a control: what two processes with the same code differ by is noise, whatever its cause.

    pip install --no-deps --target before OLD_SOURCES;  pip install --no-deps --target after .
    python benchmarks/before_after.py before after --control --json out.json

The Python that runs it must hold no editable normlab, which would be found first; both folders need their bytecode (pip compiles it).
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

SHAPES = ((4, 32, 256), (8, 512, 768))
NORMS = (
    "LayerNorm",
    "RMSNorm",
    "ScaleNorm",
    "PowerNorm",
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "DyT",
    "ResidualNorm",
)
DTYPES = ("float32", "bfloat16")
MACHINE = "import json; from normlab import machine; print(json.dumps(machine.description()))"
SLICE = 8e-3  # seconds of calls in one turn
# Freed memory stays with the process: else 0 to 1,200 page faults per call, by the luck of its heap, decide at the larger shape.
KEPT = {"MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}


def cases():
    return [(norm, dtype, shape) for shape in SHAPES for dtype in DTYPES for norm in NORMS]


def work():
    """One build: a line in is the number of a case, a line out the seconds per call."""
    import torch

    import normlab

    torch.manual_seed(0)
    steps, calls = {}, {}

    def prepare(number):
        norm, dtype, shape = cases()[number]
        kind, dim = getattr(torch, dtype), shape[-1]
        sizes = (8, dim) if norm == "GroupNorm" else (dim,)
        last = {"channel_dim": -1} if norm in ("BatchNorm", "GroupNorm", "InstanceNorm") else {}
        layer = getattr(normlab, norm)(*sizes, **last, dtype=kind)
        x = torch.randn(shape).to(kind).requires_grad_()
        branch = torch.randn(shape).to(kind).requires_grad_()
        grad = torch.randn(shape).to(kind)
        parameters = list(layer.parameters())

        def step():
            y = layer(x, branch) if norm == "ResidualNorm" else layer(x)
            y.backward(grad)
            for p in (x, branch, *parameters):
                p.grad = None

        for _ in range(3):
            step()
        started = time.perf_counter()
        for _ in range(5):
            step()
        steps[number] = step
        return max(1, min(400, int(SLICE * 5 / (time.perf_counter() - started))))

    print(normlab.__file__, flush=True)
    for line in sys.stdin:
        number, count = map(int, line.split())
        if number not in steps:
            calls[number] = prepare(number)
        count = count or calls[number]
        step = steps[number]
        step()
        started = time.perf_counter()
        for _ in range(count):
            step()
        print(count, (time.perf_counter() - started) / count, flush=True)


def found_first(folder, **more):
    """An environment in which this build of normlab is the one that is imported."""
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", **more}


class Build:
    def __init__(self, folder, threads):
        environment = found_first(folder, **KEPT, OMP_NUM_THREADS=str(threads))
        self.process = subprocess.Popen([sys.executable, __file__, "--work"], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        found = self.process.stdout.readline().strip()
        if not Path(found).is_relative_to(Path(folder).resolve()):
            raise SystemExit(f"{folder} holds no normlab that can be imported: {found or 'it failed'} was loaded")

    def time(self, number, count):
        self.process.stdin.write(f"{number} {count}\n")
        self.process.stdin.flush()
        count, seconds = self.process.stdout.readline().split()
        return int(count), float(seconds)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def interval(ratios):
    """Of the median, from the order of the values alone."""
    ratios, n = sorted(ratios), len(ratios)
    away = math.ceil(0.98 * math.sqrt(n))  # 1.96 deviations of a binomial with a half
    return ratios[max(0, n // 2 - away)], ratios[min(n - 1, n // 2 + away)]


def printed(folder, program):
    """What a program prints that finds this build."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=found_first(folder), capture_output=True, text=True, check=True).stdout.strip()


def import_times(folder, rounds):
    """Seconds of ``import normlab; normlab.LayerNorm`` once torch is there."""
    program = (
        "import torch, time; b = time.perf_counter(); import normlab; normlab.LayerNorm; print(time.perf_counter() - b)"
    )
    return [float(printed(folder, program)) for _ in range(rounds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a folder to put on the path, with a built normlab in it")
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--control", action="store_true", help="a second process of the first build takes part")
    parser.add_argument(
        "--threads", type=int, default=1, help="of each (1: idle threads of one would spin beside the other)"
    )
    parser.add_argument("--only", default="", help="cases that contain this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    builds = {"before": Build(args.before, args.threads), "after": Build(args.after, args.threads)}
    if args.control:
        builds["control"] = Build(args.before, args.threads)
    chosen = [i for i, case in enumerate(cases()) if args.only in str(case)]
    counts = {i: min(b.time(i, 0)[0] for b in builds.values()) for i in chosen}  # the same for all
    times = {i: {name: [] for name in builds} for i in chosen}
    draw = random.Random(0)
    for round_ in range(args.rounds):
        for i in draw.sample(chosen, len(chosen)):
            for name in draw.sample(sorted(builds), len(builds)):
                times[i][name].append(builds[name].time(i, counts[i])[1])
        print(f"... {round_ + 1} of {args.rounds} rounds", file=sys.stderr, end="\r", flush=True)
    for build in builds.values():
        build.end()
    rows = []
    for i in chosen:
        norm, dtype, shape = cases()[i]
        row = {
            "norm": norm,
            "dtype": dtype,
            "shape": shape,
            "microseconds": {n: min(t) * 1e6 for n, t in times[i].items()},
        }
        for name in [n for n in builds if n != "before"]:
            ratios = [a / b for a, b in zip(times[i]["before"], times[i][name], strict=True)]
            row[name] = {"ratio": statistics.median(ratios), "interval": interval(ratios),
                         "fastest": min(times[i]["before"]) / min(times[i][name])}  # fmt: skip
        rows.append(row)
        shown = "   ".join(
            f"{name} {row[name]['ratio']:.3f} ({row[name]['interval'][0]:.3f} to {row[name]['interval'][1]:.3f}), fastest {row[name]['fastest']:.3f}"
            for name in builds if name != "before"
        )  # fmt: skip
        print(f"{norm:13s} {dtype:9s} {shape!s:16s} {shown}")
    for name in [n for n in builds if n != "before"]:
        print(f"all, {name}: {statistics.geometric_mean(row[name]['ratio'] for row in rows):.3f}")
    imports = {n: sorted(import_times(f, 15)) for n, f in (("before", args.before), ("after", args.after))}
    for name, seconds in imports.items():
        print(f"import, {name}: median {statistics.median(seconds) * 1e3:.1f} ms, fastest {seconds[0] * 1e3:.1f} ms")
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "machine": json.loads(printed(args.after, MACHINE)),
                    "rounds": args.rounds,
                    "threads": args.threads,
                    "rows": rows,
                    "import_seconds": imports,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
