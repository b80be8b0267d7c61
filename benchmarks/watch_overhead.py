"""What watching costs: a 6-layer decoder of width 256, trained with and without it, steps of all sides interleaved.

Each side is a model with a watch, and is compared with itself: a round is one watched step and one with every hook taken off, in an order
drawn anew, sides in an order drawn anew. (Two models, though alike, differ by up to a percent the whole process long: where their memory lies.) Given is
the mean over rounds of (its time - the time without hooks), over the mean time without. A scheduler's slice falls on either
now and then, so the mean is also taken without a tenth at either end, of recorded and of idle steps by themselves (a plain trimmed
mean would throw the recorded ones away), each with its standard error. A model with nothing attached shows what is noise. Beside it
stands the watch's own count of the time spent in its hooks. Other sides: the same cadence with no limit, hooks as one writes them by
hand (mean and deviation of every norm's output, read to the host each step), and W&B's watch (offline; against the model with nothing attached).

    python benchmarks/watch_overhead.py --json out.json
    python benchmarks/watch_overhead.py --rounds 998 --sides lite,default    # over the 1000 steps that the limit is held over
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

import normlab
from normlab import machine
from normlab.watch import budget
from normlab.watch.watch import Watch

SIZES = {"architecture": "decoder", "dim": 256, "num_layers": 6, "num_heads": 4, "max_length": 128, "norm": "rms"}
SMALL = {**SIZES, "dim": 64, "num_layers": 2, "max_length": 32}
NOTHING = "nothing attached"
clock = time.perf_counter


class Side:
    """A model, its optimizer and whatever is attached to it."""

    def __init__(self, sizes, attach=lambda model, optimizer: None):
        torch.manual_seed(0)
        self.model, self.length = normlab.build(**sizes), sizes["max_length"]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.draw = torch.Generator().manual_seed(1)
        self.watch = attach(self.model, self.optimizer)
        self.left = clock()

    def step(self):
        """With whatever is attached."""
        started = self._others_had_their_turn()
        loss = self._train()
        if hasattr(self.watch, "step"):
            self.watch.step(loss=loss)
        self.left = clock()
        return self.left - started

    def bare_step(self):
        """With every hook taken off."""
        self._others_had_their_turn()
        with without(self.watch):
            started = clock()
            self._train()
            spent = clock() - started
        self.left = clock()
        return spent

    def _others_had_their_turn(self):
        now = clock()
        if hasattr(self.watch, "pause"):
            self.watch.pause(now - self.left)
        return now

    def _train(self):
        tokens = torch.randint(0, 256, (8, self.length + 1), generator=self.draw)
        loss = F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@contextmanager
def without(watch):
    """The optimizer's two hooks stay: on an idle step each tests one flag."""
    if isinstance(watch, Watch):
        parameter, handle = watch._gradients.parameter, watch._gradients._handle
        with watch.suspended():
            watch.hooks.unregister()
            watch._gradients.close()
            yield
        watch.hooks.register()
        if handle is not None:
            watch._gradients._handle = parameter.register_hook(watch._gradients._see)
    elif isinstance(watch, ByHand):
        watch.remove()
        yield
        watch.register()
    else:
        yield


class ByHand:
    """Mean and deviation of every norm's output, as one writes it."""

    def __init__(self, model, optimizer):
        self.norms = [m for m in model.modules() if isinstance(m, (normlab.RMSNorm, normlab.placements.Residual))]
        self.register()

    def register(self):
        self.handles = [m.register_forward_hook(self.hook) for m in self.norms]

    def remove(self):
        for handle in self.handles:
            handle.remove()

    @staticmethod
    def hook(module, inputs, output):
        output = output[1] if isinstance(output, tuple) else output
        float(output.detach().mean()), float(output.detach().std())


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


def trimmed(values, share=0.1):
    """(mean without that share at either end, its standard error by the winsorized deviation)."""
    values, cut = sorted(values), int(share * len(values))
    if len(values) - 2 * cut < 3:
        return statistics.fmean(values), statistics.pstdev(values) / max(1, len(values) - 1) ** 0.5
    kept = values[cut : len(values) - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    return statistics.fmean(kept), statistics.stdev(winsorized) / ((1 - 2 * cut / len(values)) * len(values) ** 0.5)


def by_stratum(differences, recorded):
    """(mean, standard error), idle and recorded steps trimmed apart and weighed by how many they are."""
    mean = variance = 0.0
    for which in (False, True):
        values = [d for d, r in zip(differences, recorded, strict=True) if r == which]
        if values:
            part, error = trimmed(values)
            weight = len(values) / len(differences)
            mean, variance = mean + weight * part, variance + (weight * error) ** 2
    return mean, variance**0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--sides", default="", help="only sides that contain one of these words, separated by commas")
    parser.add_argument("--dim", type=int, help="another width than 256")
    parser.add_argument("--length", type=int, help="another number of tokens than 128")
    parser.add_argument("--small", action="store_true", help="2 layers of width 64, 8 x 32 tokens")
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread, the watch's own clock too: for a busy machine"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.processor_time:
        global clock
        clock = time.process_time
        torch.set_num_threads(1)
        budget.time = SimpleNamespace(perf_counter=clock)
    os.environ.update({"WANDB_SILENT": "true", "WANDB_MODE": "offline"})
    folder = Path(tempfile.mkdtemp())

    def watched(name, **options):
        return lambda model, optimizer: normlab.watch(model, optimizer=optimizer, out=folder / name, **options)

    attach = {
        NOTHING: lambda model, optimizer: None,
        "lite, at most 1 %": watched("lite", preset="lite", max_overhead=0.01),
        "standard (default), at most 3 %": watched("standard"),
        "full, at most 3 %": watched("full", preset="full"),
        "standard, every 10 steps without a limit": watched("free", max_overhead=None),
        "hooks by hand": ByHand,
    }
    try:
        import wandb  # noqa: F401

        attach["wandb.watch, every 10 steps"] = wandb_watch(str(folder))
    except ImportError:
        print("wandb is not installed: left out", file=sys.stderr)
    words = (NOTHING, *args.sides.split(",")) if args.sides else ("",)
    attach = {name: make for name, make in attach.items() if any(word in name for word in words)}
    sizes = dict(SMALL if args.small else SIZES)
    sizes |= {k: v for k, v in (("dim", args.dim), ("max_length", args.length)) if v is not None}
    sides = {name: Side(sizes, make) for name, make in attach.items()}
    times, bare = {name: [] for name in sides}, {name: [] for name in sides}
    recorded = {name: [] for name in sides}  # was that step?
    for side in sides.values():
        side.step(), side.step()
    order, draw = list(sides), random.Random(0)
    for round_ in range(args.rounds):
        draw.shuffle(order)
        for name in order:
            side = sides[name]
            before = getattr(side.watch, "recorded", 0)
            turns = [(times, side.step), (bare, side.bare_step)]
            draw.shuffle(turns)
            for into, turn in turns:
                into[name].append(turn())
            recorded[name].append(getattr(side.watch, "recorded", 0) > before)
        if (round_ + 1) % 20 == 0:
            print(f"... {round_ + 1} of {args.rounds} rounds", file=sys.stderr, flush=True)
    rows = []
    for name, own in times.items():
        watch = sides[name].watch
        base = bare[NOTHING if "wandb" in name else name]  # whose hooks cannot be put back
        unit = statistics.fmean(base)
        difference = [(a - b) / unit for a, b in zip(own, base, strict=True)]
        mean, error = by_stratum(difference, recorded[name])
        count = getattr(watch, "recorded", None)
        rows.append({"side": name, "overhead": mean, "standard_error": error, "plain_mean": statistics.fmean(difference),
                     "plain_standard_error": statistics.stdev(difference) / len(difference) ** 0.5, "recorded": count,
                     "own_count": watch.overhead() if count is not None else None, "steps": 2 + args.rounds})  # fmt: skip
        r = rows[-1]
        print(f"{name:42s} {mean:+7.2%} +- {error:.2%} (plain mean {r['plain_mean']:+.2%} +- {r['plain_standard_error']:.2%})"
              + ("" if count is None else f", recorded {count} steps, its own count {r['own_count']:.2%}"))  # fmt: skip
    if args.json:
        args.json.write_text(
            json.dumps(
                {"machine": machine.description(), "sizes": sizes, "processor_time": args.processor_time, "rows": rows},
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
