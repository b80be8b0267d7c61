"""The verbs of the lab: compare, train, report. They parse, call and print."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .show import OutputFailed, complain, note, say, say_json, table, visible

if TYPE_CHECKING:
    from ..lab.sweep import Plan, Sweep, Trial

# The default comparison: what the folklore is about, about three minutes on two cores.
NORMS, PLACEMENTS, RATES, SEEDS, STEPS = "layer,rms,batch", "pre,post,deepnorm", "3e-3,1e-2,3e-2", 3, 120

COMPARE = """examples:
  normlab compare                                            the default grid on the text that comes with Python
  normlab compare --norm layer,rms,batch,power --placement pre,post,deepnorm --lr 3e-4,1e-3,3e-3 --seeds 3 --out runs/grid
  normlab compare --steps 100 --task docs --vary num_layers=2,4,8
  normlab compare --resume runs/grid                         go on after an interruption
  normlab compare --text mybook.txt --set dim=128
  normlab compare --model my.module:make_model --data my.module:make_loader --norm layer,rms --placement pre
  normlab compare --engine ray --address auto                on a Ray cluster
"""


def add_verbs(verb: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    compare = verb(
        "compare", "Train norms x placements x learning rates x seeds and say which is best.", "normlab compare"
    )
    compare.formatter_class, compare.epilog = argparse.RawDescriptionHelpFormatter, COMPARE
    grid = compare.add_argument_group("the grid (lists are separated by commas)")
    grid.add_argument("--norm", help=f"norms from `normlab list` (default {NORMS})")
    grid.add_argument("--placement", help=f"placements from `normlab list` (default {PLACEMENTS})")
    grid.add_argument("--lr", help=f"learning rates (default {RATES})")
    grid.add_argument("--seeds", type=int, help=f"how many, shared by all cells (default {SEEDS})")
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
    each = compare.add_argument_group("every trial")
    _add_experiment(each)
    where = compare.add_argument_group("where and how it runs")
    where.add_argument("--out", type=Path, help="folder of the sweep (default runs/compare-DATE-TIME)")
    where.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the sweep in this folder")
    where.add_argument("--workers", type=int, help="trials at a time (default: one per core and thread)")
    where.add_argument("--checkpoint-seconds", type=float, default=30.0, help="how often a trial is saved (default 30)")
    where.add_argument("--trial-timeout", type=float, metavar="SECONDS", help="end a trial that takes longer, as failed (default: none)")  # fmt: skip
    where.add_argument("--trust", action="store_true", help="with --resume: run the code that sweep.json names")
    where.add_argument("--engine", choices=("local", "ray"), default="local", help="(default local)")
    where.add_argument("--address", help="of the Ray cluster: auto, or host:port; without it one is started here")
    where.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    where.add_argument("--no-report", action="store_true", help="leave report.html out")
    where.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to standard error")

    train = verb("train", "Train one experiment into one run directory; goes on from a checkpoint if there is one.",
                 "normlab train experiment.toml --out runs/a; torchrun --nproc-per-node 2 -m normlab train ...")  # fmt: skip
    train.add_argument("file", type=Path, nargs="?", help="an experiment as TOML; the options below change it")
    for name in ("norm", "placement"):
        train.add_argument(f"--{name}", help=f"a {name} from `normlab list`")
    train.add_argument("--lr", type=float, help="peak learning rate")
    train.add_argument("--seed", type=int, help="of weights, data order and dropout")
    _add_experiment(train)
    train.add_argument("--out", type=Path, help="the run directory (default runs/train-DATE-TIME)")
    train.add_argument("--checkpoint-seconds", type=float, default=30.0, help="how often it is saved (default 30)")
    train.add_argument("--trust", action="store_true", help="run the code that the file names")
    train.add_argument("--show", action="store_true", help="print the whole experiment as TOML and stop")
    train.add_argument("--json", action="store_true", help="print the result as JSON")

    report = verb("report", "Write the page of a sweep or of a run.", "normlab report runs/grid")
    report.add_argument("folder", type=Path, help="a sweep or a run")
    report.add_argument("--out", type=Path, help="the file (default FOLDER/report.html)")
    report.add_argument("--json", action="store_true", help="print what the page shows as JSON and write nothing")

    completion = verb("completion", "Print a completion script for your shell.", "normlab completion bash >> ~/.bashrc")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _add_experiment(to: Any) -> None:
    to.add_argument("--task", help="text, docs, digits or dates (default text)")
    to.add_argument("--steps", type=int, help="optimizer steps")
    to.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="FILE",
        help="your own text: .txt, .md, .jsonl, .parquet or a datasets folder",
    )
    to.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="your own: a function that makes the model; gets norm and placement if it has such arguments",
    )
    to.add_argument("--data", metavar="MODULE:NAME", help="with --model: a function seed -> batches")
    to.add_argument(
        "--loss", metavar="MODULE:NAME", help="with --model: a function (model, batch) -> loss (default: cross entropy)"
    )
    to.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any field of the experiment (batch_size, warmup, clip, precision, watch, threads, ...) or setting of the model (dim, num_layers, ...)")  # fmt: skip


# ---- reading the options ---------------------------------------------------------------------------------------------


def _value(text: str) -> Any:
    """3 and 1e-3 are numbers, true is true, all else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _values(text: str) -> list[Any]:
    """Values between commas; a comma inside of brackets or quotes belongs to its value."""
    parts, depth, quoted, escaped = [""], 0, False, False
    for c in text:
        if c == "," and depth <= 0 and not quoted:
            parts.append("")
            continue
        parts[-1] += c
        if c == '"' and not escaped:
            quoted = not quoted
        elif not quoted:
            depth += (c in "[{") - (c in "]}")
        escaped = c == "\\" and not escaped
    # A quote or bracket that is never closed is an ordinary character.
    return [_value(part) for part in (text.split(",") if quoted or depth else parts)]


def _pairs(options: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{option} needs NAME=VALUE, got {text!r}")
        if name in found:
            raise ValueError(f"{option} names {name} twice")
        found[name] = value
    return found


def _names(text: str | None, default: str) -> list[str]:
    return [name.strip() for name in (default if text is None else text).split(",")]


def _rates(text: str) -> list[float]:
    try:
        return [float(rate) for rate in text.split(",")]
    except ValueError:
        raise ValueError(f"--lr needs numbers separated by commas, got {text!r}") from None


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say of every trial, as fields and model settings."""
    given: dict[str, Any] = {k: _value(v) for k, v in _pairs(args.set, "--set").items()}
    for name, value in (("task", args.task), ("steps", args.steps)):
        if value is not None:
            given[name] = value
    if args.text:
        given["files"] = tuple(os.path.abspath(path) for path in args.text)
    own = {"make_model": args.model, "make_data": args.data, "make_loss": args.loss}
    if any(own.values()):
        if not (args.model and args.data):
            raise ValueError("a model of your own needs both --model and --data")
        given.update({"task": "own", **own})
    for name in ("betas",):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    return given


def _check_model_settings(given: Mapping[str, Sequence[Any]]) -> None:
    """{name: values}: a misspelt --set or --vary must not pass as a setting of the model, nor a word as a number."""
    from dataclasses import fields

    from ..errors import unknown
    from ..lab import Experiment
    from ..transformer import TransformerConfig

    defaults = {f.name: f.default for f in fields(TransformerConfig)}
    for name, values in given.items():
        if name not in (known := {*defaults, *(f.name for f in fields(Experiment))}):
            raise ValueError(unknown("setting", name, known))
        for value in values:
            if isinstance(defaults.get(name), (int, float)) and not isinstance(value, (int, float)):
                raise ValueError(f"{name} must be a number, true or false, got {value!r}")


def _sweep(args: argparse.Namespace) -> Sweep:
    from ..lab import Experiment, Sweep

    varied = {name: _values(text) for name, text in _pairs(args.vary, "--vary").items()}
    fixed = _pairs(args.set, "--set")
    for option, given in (("--vary", varied), ("--set", fixed)):
        for name, instead in (("norm", "--norm"), ("placement", "--placement"), ("lr", "--lr"), ("seed", "--seeds")):
            if name in given:
                raise ValueError(f"{option} {name}: that is what {instead} is for")
    if both := sorted(varied.keys() & fixed.keys()):
        raise ValueError(f"{', '.join(both)}: either --set or --vary")
    if "task" in varied:
        raise ValueError("--vary task: losses of different tasks cannot be compared; make one sweep of each")
    base = Experiment(steps=STEPS).changed(**_settings(args))
    if base.make_model is None:
        _check_model_settings({**{name: [_value(text)] for name, text in fixed.items()}, **varied})
    seeds = SEEDS if args.seeds is None else args.seeds
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    axes: dict[str, Any] = {
        "norm": _names(args.norm, NORMS), "placement": _names(args.placement, PLACEMENTS), **varied,
        "lr": _rates(RATES if args.lr is None else args.lr), "seed": list(range(seeds)),
    }  # fmt: skip
    if base.make_model is not None:
        axes = _axes_of_own(base.make_model, axes, args)
    baseline = None
    if args.baseline is not None:
        from ..answer import cell_name

        sweep = Sweep(base=base, axes=axes)
        named = {cell_name(cell): cell for cell in sweep.cells()}
        if args.baseline not in named:
            raise ValueError(f"--baseline {args.baseline!r} is none of the cells: {', '.join(named)}")
        baseline = named[args.baseline]
    return Sweep(base=base, axes=axes, baseline=baseline)


def _axes_of_own(make_model: str, axes: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """A factory without such an argument cannot vary norms or placements: asked for, that is an error; by default it is left out."""
    import inspect

    from ..lab.train import named

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


def _default_folder(verb: str) -> Path:
    return Path("runs") / f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}"


# ---- compare ---------------------------------------------------------------------------------------------------------


def run_compare(args: argparse.Namespace) -> int:
    try:
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
    from ..errors import require
    from ..lab import Sweep, checked
    from ..lab.checkpoint import NEEDS
    from ..lab.sweep import check_folder
    from ..report import html

    require("normlab compare", "lab", *NEEDS, *html.NEEDS)
    if args.engine == "ray":
        require("--engine ray", "ray", "ray")
    if args.workers is not None and args.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {args.workers}")
    if not args.checkpoint_seconds >= 0:
        raise ValueError(f"--checkpoint-seconds must be at least 0, got {args.checkpoint_seconds:g}")
    if args.trial_timeout is not None and not args.trial_timeout > 0:
        raise ValueError(f"--trial-timeout must be above 0, got {args.trial_timeout:g}")
    if args.trial_timeout is not None and args.engine != "local":
        raise ValueError("--trial-timeout belongs to --engine local; Ray has its own limits")
    if args.address and args.engine != "ray":
        raise ValueError("--address belongs to --engine ray")
    if args.resume is not None:
        unused = [f"--{n}" for n in ("norm", "placement", "lr", "seeds", "vary", "baseline", "task", "steps", "text", "set",
                                     "out") if getattr(args, n) not in (None, [])]  # fmt: skip
        if unused:
            raise ValueError(f"--resume goes on with the sweep as it is; leave {', '.join(unused)} out")
        folder, sweep = args.resume, Sweep.read(args.resume)
        file = folder / "sweep.json"
        _check_trust(args, _unnamed(args, sweep, file), file)
    else:
        folder, sweep = args.out or _default_folder("compare"), checked(_sweep(args))
        check_folder(sweep, folder)
    return folder, sweep, args.workers or max(1, _cores() // sweep.base.threads)


def _check_trust(args: argparse.Namespace, code: Mapping[str, set[str]], file: Path) -> None:
    """Code that a file names is not run because it stands there: the command line names it too, or trusts the file."""
    if code and not args.trust:
        held = ", ".join(f"{name} = {' and '.join(sorted(names))}" for name, names in code.items())
        raise ValueError(
            f"{file} names code, {held}, and nothing was run. If you trust it: {_code_options(code)}, or --trust"
        )


def _unnamed(args: argparse.Namespace, sweep: Sweep, file: Path) -> dict[str, set[str]]:
    """The sweep's code that the command line does not name."""
    code, given = sweep.code(), {"make_model": args.model, "make_data": args.data, "make_loss": args.loss}
    for name, value in given.items():
        if value is not None and code.get(name) != {value}:
            held = ", ".join(sorted(code.get(name, ()))) or "none"
            raise ValueError(f"{OPTIONS[name]} {value}: {file} names {held}; --resume goes on with the sweep as it is")
    return {name: names for name, names in code.items() if given[name] is None}


OPTIONS = {"make_model": "--model", "make_data": "--data", "make_loss": "--loss"}


def _code_options(code: Mapping[str, set[str]]) -> str:
    """What --resume needs of a sweep with code of the user's."""
    if any(len(names) > 1 for names in code.values()):
        return "--trust"
    return " ".join(f"{OPTIONS[name]} {''.join(names)}" for name, names in code.items())


def _cores() -> int:
    """Those this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compare(args: argparse.Namespace, folder: Path, sweep: Sweep, workers: int) -> int:
    from ..lab import FolderInUse, StorageFailed, plan, run
    from ..lab.folders import sole_writer, storage_failed
    from ..lab.pool import WorkerFailed

    tell = note if args.json else say
    go_on = f"normlab compare --resume {folder} {_code_options(sweep.code())}".rstrip()
    if args.dry_run:
        tell(str(plan(sweep, folder, workers, write=False)))
        return 0
    try:
        with _ended_by_sigterm():
            with sole_writer(folder):
                pass  # refused here, before anything is measured
            planned = plan(sweep, folder, workers)
            tell(str(planned))
            tell(f"folder: {folder}")
            engine = _engine(args, planned)
            with _progress(planned, tell) as progress:
                run(planned, engine, progress)
    except (FolderInUse, ImportError) as error:
        complain("compare", error)
        return 1
    except WorkerFailed as error:
        complain("compare", f"{error}. Then: {go_on}")
        return 1
    except OutputFailed as error:
        with contextlib.suppress(OutputFailed):
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
        if (folder / "sweep.json").exists():
            note(f"What is finished is safe. Make room, then: {go_on}")
        return 1
    except KeyboardInterrupt as error:
        note("")
        complain("compare", f"stopped. {_saved(folder, sweep)} Go on with: {go_on}")
        return SIGTERM_CODE if isinstance(error, _Terminated) else 130
    return _conclude(args, folder, sweep, go_on)


SIGTERM_CODE = 128 + 15


class _Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


@contextlib.contextmanager
def _ended_by_sigterm(ask: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """SIGTERM raises here, unless ``ask`` says that it will be heeded soon; a second one always raises."""
    asked = False

    def end(*_: object) -> None:
        nonlocal asked
        if asked or not ask():
            raise _Terminated
        asked = True

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: signals are another's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _saved(folder: Path, sweep: Sweep) -> str:
    """What a sweep that was stopped has, in words."""
    from ..lab.checkpoint import FILE
    from ..lab.sweep import TRIALS, finished

    done, missing = finished(folder, sweep.trials())
    begun = sum((folder / TRIALS / trial.name / FILE).is_file() for trial in missing)
    return f"{len(done)} of {len(done) + len(missing)} trials are finished, {begun} more are saved part-way."


def _conclude(args: argparse.Namespace, folder: Path, sweep: Sweep, go_on: str) -> int:
    """Show the answer, then write it: a disk without room for the page takes nothing from what is known."""
    from .. import answer
    from ..errors import RunUnreadable

    try:
        found = answer.read(folder)
    except RunUnreadable as error:
        complain("compare", error)
        return 1
    summary = found.to_dict()
    if args.json:
        say_json(summary)
    else:
        show_answer(summary)
    broken = [t for t in summary["trials"] if t["outcome"] == "failed"]
    for trial in broken[:5]:
        where = folder / trial["folder"] / "run.json"
        note(f"failed: {trial['name']}: {' '.join(str(trial['error']).split())} (traceback in {where})")
    if len(broken) > 5:
        note(f"... and {len(broken) - 5} more")
    missing = len(sweep.trials()) - len(summary["trials"])
    if missing:
        note(f"{missing} trials have no result; try again: {go_on}")
    try:
        answer.write(folder, found)
        if not args.no_report:
            from ..report import write

            (note if args.json else say)(f"report: {write(folder)}")
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


class _Lines:
    """Progress as plain lines: one per trial that ended. Also what every form of progress shares: the count and the time left."""

    def __init__(self, planned: Plan, tell: Callable[[str], None]) -> None:
        self.planned, self.tell = planned, tell
        self.total, self.ended = len(planned.missing), 0
        self.seconds: list[float] = []  # of the trials that ended with a result
        self.shares: dict[str, float] = {}  # how far the running ones are

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def left(self) -> float | None:
        """Seconds, from what trials took themselves: the start of the workers, which comes once, must not count for each."""
        todo = self.total - self.ended - sum(self.shares.values())
        if not self.seconds:
            return None if self.planned.seconds is None else self.planned.seconds * todo / self.total
        return sum(self.seconds) / len(self.seconds) * todo / min(self.planned.workers, max(1, self.total - self.ended))

    def note(self) -> str:
        from ..lab.sweep import duration

        left = self.left()
        return "" if left is None or self.ended == self.total else f"{duration(left)} left"

    def hear(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        if kind == "step":
            self.shares[trial.name] = detail["step"] / trial.experiment.steps
        elif kind in ("ended", "lost"):
            self.shares.pop(trial.name, None)
        if kind == "ended":
            self.ended += 1
            if (seconds := detail["result"].get("seconds")) is not None:
                self.seconds.append(seconds)

    def __call__(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        self.hear(kind, trial, detail)
        if kind == "ended":
            note = self.note()
            self.tell(
                f"{self.ended}/{self.total} {trial.name}: {_ending(detail['result'])}" + (f"; {note}" if note else "")
            )
        elif kind in ("lost", "quiet"):
            self.tell(f"{trial.name}: {detail['reason']}")


class _Bars(_Lines):
    """The same as bars that move: one for the sweep, one for each running trial."""

    def __enter__(self) -> _Bars:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.progress = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                                 TextColumn("{task.fields[note]}", markup=False))  # fmt: skip
        self.progress.start()
        self.whole = self.progress.add_task("trials", total=self.total, note=self.note())
        self.running: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self.running.values():  # stopped: what stays on the screen is how far the sweep came
            self.progress.remove_task(bar)
        self.progress.stop()

    def __call__(self, kind: str, trial: Trial, detail: dict[str, Any]) -> None:
        self.hear(kind, trial, detail)
        if kind == "started":
            self.running[trial.name] = self.progress.add_task(trial.name, total=trial.experiment.steps, note="")
        elif kind == "step":
            self.progress.update(self.running[trial.name], completed=detail["step"], note=f"loss {detail['loss']:.3f}")
        elif kind in ("ended", "lost", "quiet"):
            if kind != "quiet":
                self.progress.remove_task(self.running.pop(trial.name))
            if kind != "ended" or detail["result"]["outcome"] != "trained":
                text = f"{trial.name}: {_ending(detail['result']) if kind == 'ended' else detail['reason']}"
                self.progress.console.print(visible(text), highlight=False, markup=False)
        self.progress.update(self.whole, completed=self.ended, note=self.note())


def _progress(planned: Plan, tell: Callable[[str], None]) -> _Lines:
    return (_Bars if sys.stdout.isatty() and tell is say else _Lines)(planned, tell)


def _ending(result: Mapping[str, Any]) -> str:
    if result["outcome"] == "failed":
        return f"FAILED: {result['error']}"
    if result["outcome"] == "trained":
        return f"loss {result['loss']:.4f} ({result['seconds']:.1f} s)"
    return f"{result['outcome']}: {result['cause']}"


def _number(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def show_answer(summary: Mapping[str, Any]) -> None:
    """The ranked table and the verdict."""
    rows = []
    for cell in summary["cells"]:
        mean, low, high = (cell[k] for k in ("mean", "low", "high"))
        difference = cell["difference"]
        against = "baseline" if cell["cell"] == summary["baseline"] else "-"
        if difference is not None:
            half = "" if difference["low"] is None else f" [{difference['low']:+.3f}, {difference['high']:+.3f}]"
            p = "" if difference["p_holm"] is None else f" p {difference['p_holm']:.2g}"
            against = f"{difference['mean']:+.3f}{half}{p}" + ("" if difference["decided"] else " undecided")
        edge = {"low": " (lowest tried)", "high": " (highest tried)", None: ""}[cell["best_at_edge"]]
        stable = _number(cell["largest_stable_lr"], "g") + (" or more" if cell["stable_up_to_edge"] else "")
        rows.append([
            f"{cell['rank']}{'=' if cell.get('tied_with_best') and cell['rank'] > 1 else ''}", cell["cell"],
            _number(mean, ".4f") + ("" if low is None else f" [{low:.4f}, {high:.4f}]"), against,
            _number(cell["best_lr"], "g") + edge, stable, _number(cell["divergence_rate"], ".0%"), _number(cell["steps_to_target"], ".0f"),
            _number(cell["tokens_per_second"], ",.0f"), "-" if cell["peak_memory"] is None else f"{cell['peak_memory'] / 2**20:.0f} MiB",
        ])  # fmt: skip
    table(f"held-out loss, {summary['unit']}, at each cell's best rate (95 % intervals over seeds; = not told apart from the best)",
          ["", "cell", "loss", f"against {summary['baseline']}", "best rate", "stable up to", "broke", "steps to target",
           "tokens/s", "memory"], rows)  # fmt: skip
    shares = [t["matmul_share"] for t in summary["trials"] if t.get("matmul_share")]
    if shares:
        say(
            f"training ran at {sorted(shares)[len(shares) // 2]:.0%} of this machine's matrix-product rate (median trial)"
        )
    for sentence in summary["verdict"]["en"]:
        say(f"- {sentence}")


# ---- train, report, completion ---------------------------------------------------------------------------------------


def run_train(args: argparse.Namespace) -> int:
    from ..errors import require
    from ..lab import Experiment, FolderInUse, Stopped
    from ..lab.checkpoint import FILE as CHECKPOINT
    from ..lab.checkpoint import NEEDS
    from ..lab.experiment import CODE
    from ..lab.train import process_group, train, under_torchrun
    from ..machine import keep_freed_memory

    out = args.out or _default_folder("train")
    folder = out.absolute()  # a factory may change the working folder
    at, asked = 0, False

    def ask() -> bool:
        """To stop between two steps, where it can be saved. Several processes would not stop at the same one."""
        nonlocal asked
        asked = at > 0 and not under_torchrun()
        return asked

    try:
        base = Experiment() if args.file is None else Experiment.read(args.file)
        chosen = {n: v for n in ("norm", "placement", "lr", "seed") if (v := getattr(args, n)) is not None}
        if base.make_model is None and args.model is None:
            _check_model_settings({name: [_value(text)] for name, text in _pairs(args.set, "--set").items()})
        given = _settings(args)
        experiment = base.changed(**{**given, **chosen})
        if args.show:
            say(experiment.to_toml().rstrip("\n"))
            return 0
        _check_trust(
            args, {n: {v} for n in CODE if (v := getattr(experiment, n)) is not None and n not in given}, args.file
        )
        require("normlab train", "lab", *NEEDS)
        keep_freed_memory()
        with process_group() as rank, _ended_by_sigterm(ask):
            last = time.monotonic()

            def on_step(step: int, loss: float) -> None:
                nonlocal last, at
                if asked:
                    raise Stopped  # saves first
                at = step
                if rank == 0 and (time.monotonic() - last >= 2 or step == experiment.steps):
                    last = time.monotonic()
                    note(f"step {step}/{experiment.steps}, loss {loss:.4f}")

            result = train(
                experiment, folder, on_step=on_step, checkpoint_seconds=args.checkpoint_seconds, keep_weights=True
            )
    except (KeyboardInterrupt, Stopped) as error:
        if isinstance(error, KeyboardInterrupt):
            note("")
        saved = f"saved at step {at + 1}" if isinstance(error, Stopped) else (
            "the last checkpoint stays" if (folder / CHECKPOINT).is_file() else "no checkpoint was due yet, so nothing is saved")  # fmt: skip
        complain("train", f"stopped, {saved}; the same command with --out {out} goes on from there")
        return 130 if isinstance(error, KeyboardInterrupt) and not isinstance(error, _Terminated) else SIGTERM_CODE
    except (ValueError, TypeError) as error:
        complain("train", error)
        return 2
    except (OSError, FolderInUse, ImportError) as error:
        complain("train", error)
        return 1
    if rank == 0:
        say_json(result) if args.json else say(f"{_ending(result)}\nrun: {out}")
    return 0


def run_report(args: argparse.Namespace) -> int:
    from .. import report
    from ..errors import RunUnreadable

    try:
        if args.json:
            say_json(report.view(args.folder))
        else:
            say(report.write(args.folder, args.out))
    except (RunUnreadable, OSError, ImportError, ValueError) as error:
        complain("report", error)
        return 1
    return 0


def show_completion(args: argparse.Namespace) -> int:
    from . import build_parser

    try:
        import shtab
    except ImportError as error:
        complain("completion", f"needs shtab: pip install 'normlab[completion]' ({error})")
        return 1
    say(shtab.complete(build_parser(), shell=args.shell))
    return 0


VERBS: dict[str, Any] = {
    "compare": run_compare,
    "train": run_train,
    "report": run_report,
    "completion": show_completion,
}
