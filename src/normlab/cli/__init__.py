"""The command line: parses, calls, prints. No logic. One file per verb, with ``add`` for its options and ``run``."""

# ruff: noqa: E402 (signals are heeded before anything else is imported)

from __future__ import annotations

from .stopping import SIGTERM_CODE, STOPPED, Terminated, heed_signals

heed_signals()

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import BadSetting
from . import (
    answer,
    bench,
    claims,
    compare,
    completion,
    diagnose,
    doctor,
    explore,
    inspect,
    listing,
    lr_range,
    numerics,
    report,
    runs,
    serve,
    train,
)
from .show import OutputFailed, Parser, note, to_nowhere

EXAMPLES = """examples:
  normlab list                      norms and placements with formula, paper and advice
  normlab doctor                    kernels, threads, allocator advice for this machine
  normlab bench --quick             verify, then compare with torch on two shapes
  normlab bench --json bench.json   the full comparison, with torch.compile
  normlab lr-range --placement post the largest stable learning rate, with seeds and an interval
  normlab diagnose runs/a           what is wrong in a run, why, and what to try
  normlab inspect my.module:model   norms, blocks and placement inside any model
  normlab runs list runs            recorded runs in a folder; also: show, export
  normlab compare                   train norms x placements x rates x seeds, rank them, write a report
  normlab answer runs/grid          what a sweep says, finished or not
  normlab claims --quick            the folklore on trial: what holds, what does not, with numbers
  normlab train experiment.toml     one experiment, one run directory
  normlab report runs/a             a page from a sweep or a run
  normlab serve runs                the same, live, for every run and sweep in a folder
  normlab explore                   play with norms and placements in a browser
  normlab numerics                  largest errors against float64
  normlab completion bash           completion for your shell
"""


VERBS: dict[str, Any] = {
    "list": listing.run,
    "doctor": doctor.run,
    "bench": bench.run,
    "lr-range": lr_range.run,
    "diagnose": diagnose.run,
    "inspect": inspect.run,
    "runs": runs.run,
    "compare": compare.run,
    "answer": answer.run,
    "claims": claims.run,
    "train": train.run,
    "report": report.run,
    "serve": serve.run,
    "explore": explore.run,
    "completion": completion.run,
    "numerics": numerics.run,
}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="normlab", description="A normalization workbench for Transformers.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"normlab {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, help: str, example: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}")

    for each in (
        listing,
        doctor,
        bench,
        lr_range,
        diagnose,
        inspect,
        runs,
        compare,
        answer,
        claims,
        train,
        report,
        serve,
        explore,
        completion,
        numerics,
    ):
        each.add(verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    try:
        _give_streams()
        try:
            args = build_parser().parse_args(argv)
            return VERBS[args.verb](args)
        finally:
            sys.stdout.flush()  # what fails at the exit is a traceback
    except KeyboardInterrupt as error:
        note(STOPPED)
        return SIGTERM_CODE if isinstance(error, Terminated) else 130
    except BadSetting as error:
        note(f"normlab: {error}")
        return 2
    except (BrokenPipeError, OutputFailed) as error:
        reader_left = isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError)
        return _without_output(None if reader_left else error)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        return _without_output(error)


def _give_streams() -> None:
    """Closed ones (``>&-``) are None in Python; and no character may be too much for the encoding of the terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _without_output(error: BaseException | None) -> int:
    """The reader, such as head, has seen enough, or there is no room. Nothing more may be written, at the exit neither."""
    to_nowhere(sys.stdout)
    if error is not None:
        note(f"normlab: standard output cannot be written: {error}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
