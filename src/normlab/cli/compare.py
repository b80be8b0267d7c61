"""normlab compare."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs import EQUAL
from .options import Verb
from .show import OutputFailed, complain, note, say, say_json

if TYPE_CHECKING:
    from ..lab.sweep import Plan, Sweep
from .answers import add_language, add_margin, add_metric, language, show_answer
from .growing import QUESTIONS, TimeSpent, added_values, describe, next_look, seconds_of, seeds_of, stopping_at
from .options import (
    OPTIONS,
    add_experiment,
    check_model_settings,
    check_trust,
    code_options,
    default_folder,
    named_values,
    names_of,
    rates_of,
    settings_of,
    value_of,
    values_of,
)
from .progress import progress_of
from .recipes import RECIPES
from .stopping import SIGTERM_CODE, Terminated, ended_by_sigterm
from .words import LANGUAGES, words_in

# The default comparison: what the folklore is about, about ten minutes on two cores.
NORMS, PLACEMENTS, RATES, SEEDS, STEPS = "layer,rms,batch", "pre,post,deepnorm", "3e-3,1e-2,3e-2", "3+2", 120

WATCH = "standard"  # batch against running statistics, updates, attention: what a diagnosis and a reason need; 6 % of the time

COMPARE = """examples:
  normlab compare                                            the default grid on the text that comes with Python
  normlab compare --norm layer,rms,batch,power --placement pre,post,deepnorm --lr 3e-4,1e-3,3e-3 --seeds 3 --out runs/grid
  normlab compare --steps 100 --task docs --vary num_layers=2,4,8
  normlab compare --resume runs/grid                         go on after an interruption
  normlab compare --resume runs/grid --seeds 8 --lr +1e-1 --norm +power    let it grow; what is finished stays
  normlab compare --norm layer,rms --placement pre --until decided --time-limit 20m
  normlab compare --text mybook.txt --set dim=128
  normlab compare --model my.module:make_model --data my.module:make_loader --norm layer,rms --placement pre
  normlab compare --engine ray --address auto                on a Ray cluster
  normlab compare --recipe warmup                            also: depth, small-batch, affine, placement, rate
"""


def add(verb: Verb) -> None:
    compare = verb(
        "compare", "Train norms x placements x learning rates x seeds and say which is best.", "normlab compare"
    )
    compare.formatter_class, compare.epilog = argparse.RawDescriptionHelpFormatter, COMPARE
    grid = compare.add_argument_group("the grid (lists are separated by commas)")
    grid.add_argument(
        "--recipe", choices=list(RECIPES), help="a sweep of a few minutes for a question people ask; options beside it replace its own. "
        + " ".join(f"{name}: {recipe.question[0]}" for name, recipe in RECIPES.items())
    )  # fmt: skip
    grid.add_argument("--norm", help=f"norms from `normlab list` (default {NORMS}); with --resume: +NAME adds one")
    grid.add_argument(
        "--placement", help=f"placements from `normlab list` (default {PLACEMENTS}); with --resume: +NAME adds one"
    )
    grid.add_argument("--lr", help=f"learning rates (default {RATES}); with --resume: +RATE adds one")
    grid.add_argument(
        "--seeds",
        metavar="N|N+M",
        help=f"3+2: three for every rate, two more for the best rate of each cell; 3: three for every rate, come what may (default {SEEDS}); "
        "with --resume: how many in all, or +M",
    )
    grid.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the others follow it (default 0)")
    grid.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help="one more axis: a field of the experiment or a setting of the model",
    )
    grid.add_argument(
        "--baseline", metavar="CELL", help="what the others are compared with, such as layer/pre (default: the first)"
    )
    grid.add_argument(
        "--equal", choices=EQUAL, help="what all cells are given alike: --steps, or what that many steps of the base see or take (default steps); "
        "seconds depend on this machine at this moment"
    )  # fmt: skip
    said = compare.add_argument_group("the answer")
    add_metric(said)
    add_margin(said)
    add_language(said)
    each = compare.add_argument_group("every trial")
    add_experiment(each)
    where = compare.add_argument_group("where and how it runs")
    where.add_argument("-o", "--out", type=Path, help="folder of the sweep (default runs/compare-DATE-TIME)")
    where.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the sweep in this folder")
    where.add_argument(
        "--until",
        choices=tuple(QUESTIONS),
        help="add seeds round by round until every cell is told apart from the best (decided) or from the baseline, or equal within --margin; "
        "needs --time-limit",
    )
    where.add_argument("--time-limit", metavar="TIME", help="stop after this long, such as 20m; what runs is saved")
    where.add_argument("--workers", type=int, help="trials at a time (default: one per core and thread)")
    where.add_argument("--checkpoint-seconds", type=float, default=30.0, help="how often a trial is saved (default 30)")
    where.add_argument("--trial-timeout", type=float, metavar="SECONDS", help="end a trial that takes longer, as failed (default: none)")  # fmt: skip
    where.add_argument("--trust", action="store_true", help="with --resume: run the code that sweep.json names")
    where.add_argument("--engine", choices=("local", "ray"), default="local", help="(default local)")
    where.add_argument("--address", help="of the Ray cluster: auto, or host:port; without it one is started here")
    where.add_argument("--dry-run", action="store_true", help="print the plan with its cells and stop")
    where.add_argument("--no-report", action="store_true", help="leave report.html out")
    where.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to standard error")


def _sweep(args: argparse.Namespace) -> Sweep:
    from ..lab import Experiment, Sweep
    from ..runs import LR, SEED, cell_name

    varied = {name: values_of(text) for name, text in named_values(args.vary, "--vary").items()}
    fixed = named_values(args.set, "--set")
    for option, given in (("--vary", varied), ("--set", fixed)):
        for name, instead in (("norm", "--norm"), ("placement", "--placement"), (LR, "--lr"), (SEED, "--seeds")):
            if name in given:
                raise ValueError(f"{option} {name}: that is what {instead} is for")
    if both := sorted(varied.keys() & fixed.keys()):
        raise ValueError(f"{', '.join(both)}: either --set or --vary")
    if "task" in varied:
        raise ValueError("--vary task: losses of different tasks cannot be compared; make one sweep of each")
    base = Experiment(steps=STEPS, watch=WATCH).changed(**settings_of(args))
    if base.make_model is None:
        check_model_settings({**{name: [value_of(text)] for name, text in fixed.items()}, **varied})
    seeds, first = seeds_of(SEEDS if args.seeds is None else args.seeds, args.first_seed)
    axes: dict[str, Any] = {
        "norm": names_of(args.norm, NORMS), "placement": names_of(args.placement, PLACEMENTS), **varied,
        LR: rates_of(RATES if args.lr is None else args.lr), SEED: seeds,
    }  # fmt: skip
    if base.make_model is not None:
        axes = _axes_of_own(base.make_model, axes, args)
    baseline = None
    if args.baseline is not None:
        sweep = Sweep(base=base, axes=axes)
        named = {cell_name(cell): cell for cell in sweep.cells()}
        if args.baseline not in named:
            raise ValueError(f"--baseline {args.baseline!r} is none of the cells: {', '.join(named)}")
        baseline = named[args.baseline]
    sequential = args.until is not None
    return Sweep(base=base, axes=axes, baseline=baseline, first_seeds=first, sequential=sequential)


def _axes_of_own(make_model: str, axes: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """A factory without such an argument cannot vary norms or placements: asked for, that is an error; by default it is left out."""
    import inspect

    from ..lab.parts import named

    accepted = inspect.signature(named(make_model)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return axes
    for name, asked in (("norm", args.norm), ("placement", args.placement)):
        if name not in accepted:
            if asked:
                raise ValueError(
                    f"{make_model} has no argument {name!r}, so --{name} cannot change its model; it takes: {', '.join(accepted) or 'nothing'}"
                )
            axes = {k: v for k, v in axes.items() if k != name}
    return axes


def _follow(args: argparse.Namespace) -> None:
    """The recipe's options, where the command line does not say otherwise."""
    from . import build_parser

    recipe = RECIPES[args.recipe]
    plain, meant = (vars(build_parser().parse_args(["compare", *options])) for options in ((), recipe.options))
    for name, value in meant.items():
        if value == plain[name]:
            continue
        if isinstance(value, list):  # --vary and --set: by the name before the equals sign
            own = getattr(args, name)
            named = {text.partition("=")[0] for text in (*args.vary, *args.set)}
            setattr(args, name, [text for text in value if text.partition("=")[0] not in named] + own)
        elif getattr(args, name) == plain[name]:
            setattr(args, name, value)
    if args.baseline is not None and args.baseline == meant["baseline"] and _changed(args, meant):
        args.baseline = None  # it names a cell of the recipe as it stands
    words = recipe.question[LANGUAGES.index(language(args.lang))]
    (note if args.json else say)(f"{args.recipe}: {words}")


def _changed(args: argparse.Namespace, meant: Mapping[str, Any]) -> bool:
    return any(getattr(args, name) != meant[name] for name in ("norm", "placement", "vary"))


def run(args: argparse.Namespace) -> int:
    try:
        if args.recipe is not None and args.resume is None:
            _follow(args)
        # With --json standard output is for the summary; what a module of the user's prints when loaded is not it.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            folder, sweep, workers = _asked(args)
    except (ValueError, TypeError, OSError) as error:
        complain("compare", error)
        return 2
    except ImportError as error:
        complain("compare", error)
        return 1
    return _compare(args, folder, sweep, workers)


def _asked(args: argparse.Namespace) -> tuple[Path, Sweep, int]:
    """(folder, sweep, workers); every mistake in the options is found here, before anything is written."""
    from ..answer import METRICS
    from ..errors import require
    from ..lab import Sweep, checked
    from ..lab.checkpoint import NEEDS
    from ..lab.equal import equalized
    from ..lab.growth import grown
    from ..lab.sweep import check_folder, check_own, finished
    from ..runs import SWEEP

    require("normlab compare", "lab", *NEEDS)
    if args.engine == "ray":
        require("--engine ray", "ray", "ray")
    if args.workers is not None and args.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {args.workers}")
    if args.margin is not None and not 0 < args.margin < float("inf"):
        raise ValueError(f"--margin must be a finite number above 0, got {args.margin:g}")
    METRICS[args.metric]  # a misspelt one is known before anything is trained
    if not args.checkpoint_seconds >= 0:
        raise ValueError(f"--checkpoint-seconds must be at least 0, got {args.checkpoint_seconds:g}")
    if args.trial_timeout is not None and not args.trial_timeout > 0:
        raise ValueError(f"--trial-timeout must be above 0, got {args.trial_timeout:g}")
    if args.trial_timeout is not None and args.engine != "local":
        raise ValueError("--trial-timeout belongs to --engine local; Ray has its own limits")
    if args.address and args.engine != "ray":
        raise ValueError("--address belongs to --engine ray")
    if args.time_limit is not None:
        seconds_of(args.time_limit)
    elif args.until is not None:
        raise ValueError("--until needs --time-limit, such as 20m: some questions are never decided")
    if args.resume is not None:
        unused = [f"--{n}" for n in ("recipe", "equal", "baseline", "task", "steps", "text", "set", "out")
                  if getattr(args, n) not in (None, [])]  # fmt: skip
        unused += ["--first-seed"] if args.first_seed else []
        if unused:
            raise ValueError(f"--resume goes on with the sweep as it is; leave {', '.join(unused)} out")
        folder, sweep = args.resume, Sweep.read(args.resume)
        file = folder / SWEEP.file
        check_trust(args, _unnamed(args, sweep, file), file)
        check_own(folder, finished(folder, sweep.trials())[1])
        if more := added_values(args, sweep):
            checked(grown(sweep, more, looked=False))  # a mistake is found before anything is written
    else:
        folder, sweep = args.out or default_folder("compare"), equalized(checked(_sweep(args)), args.equal or "steps")
        check_folder(sweep, folder)
    return folder, sweep, args.workers or max(1, cores() // sweep.base.threads)


def _unnamed(args: argparse.Namespace, sweep: Sweep, file: Path) -> dict[str, set[str]]:
    """The sweep's code that the command line does not name."""
    code, given = sweep.code(), {"make_model": args.model, "make_data": args.data, "make_loss": args.loss}
    for name, value in given.items():
        if value is not None and code.get(name) != {value}:
            held = ", ".join(sorted(code.get(name, ()))) or "none"
            raise ValueError(f"{OPTIONS[name]} {value}: {file} names {held}; --resume goes on with the sweep as it is")
    return {name: names for name, names in code.items() if given[name] is None}


def cores() -> int:
    """Those this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compare(args: argparse.Namespace, folder: Path, sweep: Sweep, workers: int) -> int:
    from .. import answer
    from ..lab import FolderInUse, StorageFailed, plan, run
    from ..lab.folders import sole_writer, storage_failed
    from ..lab.growth import extended
    from ..lab.pool import WorkerFailed
    from ..lab.told import told
    from ..runs import LinkedElsewhere, holds_sweep

    tell, lang = note if args.json else say, language(args.lang)
    words = words_in(lang)
    go_on = f"normlab compare --resume {folder} {code_options(sweep.code())}".rstrip()
    go_on += f" --until {args.until} --time-limit {args.time_limit}" if args.until is not None else ""
    more = {} if args.resume is None else added_values(args, sweep)
    if args.dry_run:
        larger = extended(folder, more, write=False) if more else sweep
        planned = plan(larger, folder, workers, write=False)
        tell(f"{told(planned, lang)}\n{describe(planned, words)}")
        return 0
    began = time.monotonic()
    deadline = None if args.time_limit is None else began + seconds_of(args.time_limit)
    try:
        with ended_by_sigterm():
            with sole_writer(folder):
                pass  # refused here, before anything is measured
            grows: Sweep | None = extended(folder, more) if more else sweep
            while grows is not None:
                sweep = grows
                planned = plan(sweep, folder, workers)
                tell(told(planned, lang))
                tell(words("folder", folder=folder))
                engine = _engine(args, planned)
                with progress_of(planned, tell, lang) as progress:
                    run(planned, engine, stopping_at(deadline, progress))
                grows = None
                if args.until is not None and deadline is not None:
                    found, left = (
                        answer.read(folder, margin=args.margin, metric=args.metric),
                        deadline - time.monotonic(),
                    )
                    grows = next_look(folder, sweep, found, args.until, left, workers, tell, lang)
    except TimeSpent:
        note(words("time_over", limit=args.time_limit, saved=_saved(folder, sweep, lang), go_on=go_on))
    except (FolderInUse, ImportError) as error:
        complain("compare", error)
        return 1
    except LinkedElsewhere as error:
        complain("compare", error)
        return 2
    except WorkerFailed as error:
        complain("compare", f"{error}. Then: {go_on}")
        return 1
    except OutputFailed as error:
        why = (
            "nobody reads the output"
            if isinstance(error.__cause__, BrokenPipeError)
            else f"the output cannot be written: {error}"
        )
        complain("compare", f"stopped, {why}. {_saved(folder, sweep)} Go on with: {go_on}")
        raise
    except (StorageFailed, OSError) as error:
        if isinstance(error, FileNotFoundError) and not storage_failed(error, folder):  # a text file, for example
            complain("compare", error)
            return 1
        what = error if isinstance(error, StorageFailed) else f"{folder} cannot be written: {error}"
        complain("compare", f"stopped, {what}")
        if holds_sweep(folder):
            note(f"What is finished is safe. Make room, then: {go_on}")
        return 1
    except KeyboardInterrupt as error:
        note("")
        complain("compare", f"stopped. {_saved(folder, sweep)} Go on with: {go_on}")
        return SIGTERM_CODE if isinstance(error, Terminated) else 130
    return _conclude(args, folder, go_on)


def _saved(folder: Path, sweep: Sweep, lang: str = "en") -> str:
    """What a sweep that was stopped has, in words."""
    from ..lab.checkpoint import FILE
    from ..lab.sweep import Agenda, finished
    from ..runs import trial_folder

    done, missing = finished(folder, sweep.trials())
    agenda = Agenda(sweep, done)
    begun = sum((trial_folder(folder, trial.name) / FILE).is_file() for trial in missing)
    words, count = words_in(lang), len(done) + len(agenda.queue) + agenda.later
    return words("saved", done=len(done), of=words("at_most", count=count) if agenda.later else count, begun=begun)


def _conclude(args: argparse.Namespace, folder: Path, go_on: str) -> int:
    """Show the answer, then write it: a disk without room for the page takes nothing from what is known."""
    from .. import answer, runs
    from ..errors import RunUnreadable

    try:
        found = answer.read(folder, margin=args.margin, metric=args.metric)
    except ValueError as error:
        complain("compare", error)
        return 1
    if args.json:
        say_json(found.to_dict())
    else:
        show_answer(found, language(args.lang))
    words = words_in(language(args.lang))
    broken = [t for t in found.trials if t.outcome == "failed"]
    for trial in broken[:5]:
        where = runs.trial_folder(folder, str(trial.name)) / runs.INFO
        note(words("broken", name=trial.name, error=" ".join(str(trial.error).split()), where=where))
    if len(broken) > 5:
        note(words("more", count=len(broken) - 5))
    missing = found.planned - len(found.trials)
    if missing:
        note(words("without_result", count=missing, go_on=go_on))
    try:
        runs.write_summary(folder, found)
        if not args.no_report:
            from ..report import write

            (note if args.json else say)(words("report", file=write(folder)))
    except (OSError, RunUnreadable, ImportError) as error:
        complain(
            "compare", f"the answer above could not be written: {error}. The trials are whole; make room, then: {go_on}"
        )
        return 1
    return 1 if broken or missing else 0


def _engine(args: argparse.Namespace, planned: Plan) -> Any:
    from ..lab.pool import Pool

    if args.engine == "local":
        return Pool(planned.workers, args.checkpoint_seconds, planned.work, args.trial_timeout)
    from ..lab.cluster import Cluster

    return Cluster(address=args.address, workers=args.workers, work=planned.work)
