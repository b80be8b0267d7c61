"""normlab inspect."""

from __future__ import annotations

import argparse
import contextlib
import sys

from .options import Verb
from .show import complain, say, say_json


def add(verb: Verb) -> None:
    inspect = verb(
        "inspect",
        "Show the norms, blocks and placement inside any model.",
        "normlab inspect my.module:make_model --json",
    )
    inspect.add_argument(
        "factory",
        metavar="MODULE:NAME",
        help="a function without arguments that returns the model, or (model, example inputs); or the model itself",
    )
    inspect.add_argument(
        "--graph", action="store_true", help="read autograd's graph, as a watch does, instead of operators"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from torch import nn

    from ..lab.parts import named
    from ..surgery import inspect

    try:
        # With --json standard output is for the JSON; what the user's code prints is not it.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            try:
                made = named(args.factory)
            except ValueError as error:  # a mistake in the command, not in what it names
                complain("inspect", error)
                return 2
            if not isinstance(made, nn.Module) and callable(made):
                made = made()
            model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
            found = inspect(model, inputs, capture="graph" if args.graph else "operators")
    except Exception as error:  # the factory and the model are the user's code: whatever they raise is one line here
        complain("inspect", f"{args.factory}: {type(error).__name__}: {error}")
        return 1
    say_json(found.to_dict()) if args.json else say(found)
    return 0
