"""normlab lr-range."""

from __future__ import annotations

import argparse

from .options import Verb
from .show import complain, note, say, say_json


def add(verb: Verb) -> None:
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


def run(args: argparse.Namespace) -> int:
    from ..lab import Experiment, rates
    from ..lab.parts import named, parts_of

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
