"""normlab train."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..lab import Experiment

from .options import (
    Verb,
    add_experiment,
    check_model_settings,
    check_trust,
    default_folder,
    named_values,
    settings_of,
    value_of,
)
from .progress import ending
from .show import complain, note, say, say_json
from .stopping import SIGTERM_CODE, Terminated, ended_by_sigterm

EVERY = 2.0  # seconds between two lines


class Pace:
    """Lines about a training that runs: loss, rate, speed since the last line, time left at that speed."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.at: tuple[int, float] | None = None  # step and moment of the last line; the first step is not timed

    def step(self, step: int, loss: float) -> None:
        from ..lab.told import duration

        now, steps = time.monotonic(), self.experiment.steps
        if self.at is None:
            self.at = step, now
        before, then = self.at
        if step < steps and now - then < EVERY:
            return
        self.at = step, now
        line = f"step {step}/{steps}, loss {loss:.4f}, rate {self.experiment.learning_rate(step):.3g}"
        if step > before and now > then:
            speed = (step - before) / (now - then)
            line += f", {speed:.3g} steps/s"
            line += f", {duration((steps - step) / speed)} left" if step < steps else ""
        note(line)


def add(verb: Verb) -> None:
    train = verb("train", "Train one experiment into one run directory; goes on from a checkpoint if there is one.",
                 "normlab train experiment.toml --out runs/a; torchrun --nproc-per-node 2 -m normlab train ...")  # fmt: skip
    train.add_argument("file", type=Path, nargs="?", help="an experiment as TOML; the options below change it")
    for name in ("norm", "placement"):
        train.add_argument(f"--{name}", help=f"a {name} from `normlab list`")
    train.add_argument("--lr", type=float, help="peak learning rate")
    train.add_argument("--seed", type=int, help="of weights, data order and dropout")
    add_experiment(train)
    train.add_argument("-o", "--out", type=Path, help="the run directory (default runs/train-DATE-TIME)")
    train.add_argument("--checkpoint-seconds", type=float, default=30.0, help="how often it is saved (default 30)")
    train.add_argument("--trust", action="store_true", help="run the code that the file names")
    train.add_argument(
        "--show", action="store_true", help="print the experiment as TOML, with every field that has a value, and stop"
    )
    train.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from ..errors import require
    from ..lab import Experiment, FolderInUse, Stopped
    from ..lab.checkpoint import FILE as CHECKPOINT
    from ..lab.checkpoint import NEEDS
    from ..lab.experiment import CODE
    from ..lab.sweep import check_buildable
    from ..lab.train import process_group, train, under_torchrun
    from ..machine import keep_freed_memory

    out = args.out or default_folder("train")
    folder = out.absolute()  # a factory may change the working folder
    at, asked = 0, 0  # the last step; the signal that asks to stop

    def ask(number: int) -> bool:
        """To stop between two steps, where it can be saved. Several processes would not stop at the same one."""
        nonlocal asked
        if at == 0 or under_torchrun():
            return False
        asked = number
        note("stopping after this step, to save it; once more stops at once")
        return True

    try:
        base = Experiment() if args.file is None else Experiment.read(args.file)
        chosen = {n: v for n in ("norm", "placement", "lr", "seed") if (v := getattr(args, n)) is not None}
        if base.make_model is None and args.model is None:
            given_here = {name: [value_of(text)] for name, text in named_values(args.set, "--set").items()}
            check_model_settings({**{name: [value] for name, value in base.model.items()}, **given_here})
        given = settings_of(args)
        experiment = base.changed(**{**given, **chosen})
        if args.show:
            check_buildable(experiment)
            say(experiment.to_toml().rstrip("\n"))
            return 0
        check_trust(
            args, {n: {v} for n in CODE if (v := getattr(experiment, n)) is not None and n not in given}, args.file
        )
        require("normlab train", "lab", *NEEDS)
        check_buildable(experiment)  # a misspelt name leaves no folder behind
        keep_freed_memory()
        with process_group() as rank, ended_by_sigterm(ask):
            said = Pace(experiment)

            def on_step(step: int, loss: float) -> None:
                nonlocal at
                at = step
                if asked and step < experiment.steps:
                    raise Stopped  # saves first
                if rank == 0:
                    said.step(step, loss)

            result = train(
                experiment, folder, on_step=on_step, checkpoint_seconds=args.checkpoint_seconds, keep_weights=True
            )
    except (KeyboardInterrupt, Stopped) as error:
        if isinstance(error, KeyboardInterrupt):
            note("")
        saved = f"saved at step {at}" if isinstance(error, Stopped) else "the last checkpoint stays"
        then = "goes on from there"
        if not (folder / CHECKPOINT).is_file():
            saved, then = "no checkpoint was due yet, so nothing is saved", "begins anew"
        complain("train", f"stopped, {saved}; the same command with --out {out} {then}")
        by_keyboard = asked == signal.SIGINT if isinstance(error, Stopped) else not isinstance(error, Terminated)
        return 130 if by_keyboard else SIGTERM_CODE
    except (ValueError, TypeError) as error:
        complain("train", error)
        return 2
    except (OSError, FolderInUse, ImportError) as error:
        complain("train", error)
        return 1
    if rank == 0:
        say_json(result.to_dict()) if args.json else say(f"{ending(result)}\nrun: {out}")
    return 0
