"""What watching costs: a 6-layer decoder of width 256, trained with and without it, steps of all sides interleaved.

Each side is its own model; a round is one block of steps of every side in turn, and a ratio is the median over rounds of
(its time / the unwatched time). Beside the presets: the same cadence with no limit, hooks as one writes them by hand
(mean and deviation of every norm's output, read to the host each step), and W&B's watch (offline) if it is installed.

    python benchmarks/watch_overhead.py --json out.json
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import normlab
from normlab import machine

SIZES = {"architecture": "decoder", "dim": 256, "num_layers": 6, "num_heads": 4, "max_length": 128, "norm": "rms"}


class Side:
    """A model, its optimizer and whatever is attached to it."""

    def __init__(self, attach=lambda model, optimizer: None):
        torch.manual_seed(0)
        self.model = normlab.build(**SIZES)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.draw = torch.Generator().manual_seed(1)
        self.watch = attach(self.model, self.optimizer)

    def steps(self, count):
        started = time.perf_counter()
        for _ in range(count):
            tokens = torch.randint(0, 256, (8, 129), generator=self.draw)
            loss = F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.watch is not None:
                self.watch.step(loss=loss)
        return time.perf_counter() - started


def naive(model, optimizer):
    def hook(module, inputs, output):
        output = output[1] if isinstance(output, tuple) else output
        float(output.mean()), float(output.std())

    for _, module in model.named_modules():
        if isinstance(module, (normlab.RMSNorm, normlab.Residual)):
            module.register_forward_hook(hook)


def wandb_watch(folder):
    def attach(model, optimizer):
        import wandb

        run = wandb.init(project="normlab", mode="offline", dir=folder)
        wandb.watch(model, log="all", log_freq=10)

        class Log:
            def step(self, loss):
                run.log({"loss": float(loss.detach())})

        return Log()

    return attach


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--block", type=int, default=10, help="steps of one side before the next has its turn")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.update({"WANDB_SILENT": "true", "WANDB_MODE": "offline"})
    folder = Path(tempfile.mkdtemp())

    def watched(name, **options):
        return lambda model, optimizer: normlab.watch(model, optimizer=optimizer, out=folder / name, **options)

    attach = {
        "unwatched": lambda model, optimizer: None,
        "lite, at most 1 %": watched("lite", preset="lite", max_overhead=0.01),
        "standard (default), at most 3 %": watched("standard"),
        "full, at most 3 %": watched("full", preset="full"),
        "standard, every 10 steps without a limit": watched("free", max_overhead=None),
        "hooks by hand": naive,
    }
    try:
        import wandb  # noqa: F401

        attach["wandb.watch, every 10 steps"] = wandb_watch(str(folder))
    except ImportError:
        print("wandb is not installed: left out", file=sys.stderr)
    sides = {name: Side(make) for name, make in attach.items()}
    times = {name: [] for name in sides}
    for side in sides.values():
        side.steps(2)
    for round_ in range(args.rounds):
        for name, side in sides.items():
            times[name].append(side.steps(args.block))
        print(f"... round {round_ + 1} of {args.rounds}", file=sys.stderr, flush=True)
    base = times["unwatched"]
    rows = []
    for name, own in times.items():
        ratios = [a / b for a, b in zip(own, base, strict=True)]
        watch = sides[name].watch
        recorded = getattr(watch, "recorded", None)
        own_count = watch.overhead() if recorded is not None else None
        rows.append({"side": name, "overhead": statistics.median(ratios) - 1, "lowest": min(ratios) - 1,
                     "highest": max(ratios) - 1, "of_total_time": sum(own) / sum(base) - 1, "recorded": recorded,
                     "own_count": own_count, "steps": 2 + args.rounds * args.block})  # fmt: skip
        print(f"{name:42s} {rows[-1]['overhead']:+7.1%} (rounds {rows[-1]['lowest']:+.1%} to {rows[-1]['highest']:+.1%}, "
              f"total {rows[-1]['of_total_time']:+.1%})"
              + ("" if recorded is None else f", recorded {recorded}, its own count {own_count:.1%}"))  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps({"machine": machine.facts(), "sizes": SIZES, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
