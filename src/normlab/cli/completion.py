"""normlab completion."""

from __future__ import annotations

import argparse

from .options import Verb
from .show import complain, say


def add(verb: Verb) -> None:
    completion = verb("completion", "Print a completion script for your shell.", "normlab completion bash >> ~/.bashrc")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(args: argparse.Namespace) -> int:
    from ..errors import need
    from . import build_parser

    try:
        shtab = need("a completion script", "completion", "shtab")
    except ImportError as error:
        complain("completion", error)
        return 1
    say(shtab.complete(build_parser(), shell=args.shell))
    return 0
