"""normlab completion."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

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
    parser = build_parser()
    _offer(parser, _names())
    say(shtab.complete(parser, shell=args.shell))
    return 0


def _names() -> dict[str, Iterable[str]]:
    """{option: the names it takes}, as they are now: a script made today knows nothing of tomorrow's."""
    from ..lab import TASKS
    from ..norms import NORMS
    from ..placements import PLACEMENTS

    return {"--norm": NORMS, "--placement": PLACEMENTS, "--task": TASKS}


def _offer(parser: argparse.ArgumentParser, names: Mapping[str, Iterable[str]]) -> None:
    """Let these options of all verbs complete their names, in lists between commas too. Not as choices: those would refuse lists."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in dict.fromkeys(action.choices.values()):
                _offer(verb, names)
        for option in action.option_strings:
            if option in names:
                action.complete = _pattern(option.lstrip("-"), sorted(names[option]))  # type: ignore[attr-defined]


def _pattern(name: str, words: Iterable[str]) -> dict[str, object]:
    """As shtab takes it."""
    listed, function = " ".join(words), f"_normlab_{name}"
    bash = f"""
{function}() {{
  local last="${{1##*[,+]}}"  # what is before it stays: a list, or the + of an addition
  compgen -P "${{1%"$last"}}" -W "{listed}" -- "$last"
}}"""
    return {
        "bash": function,
        "zsh": f"_values -s , {name} {listed}",
        "tcsh": f"({listed})",
        "preamble": {"bash": bash},
    }
