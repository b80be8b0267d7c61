"""normlab completion."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .options import Verb
from .show import complain, say

if TYPE_CHECKING:
    pass


def add(verb: Verb) -> None:
    completion = verb("completion", "Print a completion script for your shell.", "normlab completion bash >> ~/.bashrc")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(args: argparse.Namespace) -> int:
    from . import build_parser

    try:
        import shtab
    except ImportError as error:
        complain("completion", f"needs shtab: pip install 'normlab[completion]' ({error})")
        return 1
    say(shtab.complete(build_parser(), shell=args.shell))
    return 0
