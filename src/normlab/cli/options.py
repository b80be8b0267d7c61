"""Options that compare and train share, and how their values are read."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# verb(name, help, example) makes the parser of a verb.
Verb = Callable[[str, str, str], argparse.ArgumentParser]


def add_experiment(to: Any) -> None:
    to.add_argument("--task", help="text, masked, docs, digits or dates (default text)")
    to.add_argument("--steps", type=int, help="optimizer steps")
    to.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="PATH",
        help="your own text: .txt, .md, .jsonl, .parquet, sources of programs, a folder of these or a datasets folder",
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
    to.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any field of the experiment (batch_size, optimizer, warmup, clip, precision, watch, threads, ...), option of the task (length) or setting of the model (dim, num_layers, ...)")  # fmt: skip


def value_of(text: str) -> Any:
    """3 and 1e-3 are numbers, true is true, all else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def values_of(text: str) -> list[Any]:
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
    return [value_of(part) for part in (text.split(",") if quoted or depth else parts)]


def named_values(options: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{option} needs NAME=VALUE, got {text!r}")
        if name in found:
            raise ValueError(f"{option} names {name} twice")
        found[name] = value
    return found


def names_of(text: str | None, default: str) -> list[str]:
    return [name.strip() for name in (default if text is None else text).split(",")]


def rates_of(text: str) -> list[float]:
    try:
        return [float(rate) for rate in text.split(",")]
    except ValueError:
        raise ValueError(f"--lr needs numbers separated by commas, got {text!r}") from None


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say of every trial, as fields and model settings."""
    given: dict[str, Any] = {k: value_of(v) for k, v in named_values(args.set, "--set").items()}
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


def check_model_settings(given: Mapping[str, Sequence[Any]]) -> None:
    """{name: values}: a misspelt --set or --vary must not pass as a setting of the model, nor a word as a number."""
    from dataclasses import fields

    from ..errors import unknown
    from ..lab import Experiment
    from ..lab.experiment import TASK_OPTIONS
    from ..models import TransformerConfig

    defaults = {f.name: f.default for f in fields(TransformerConfig)}
    for name, values in given.items():
        if name not in (known := {*defaults, *TASK_OPTIONS, *(f.name for f in fields(Experiment))}):
            raise ValueError(unknown("setting", name, known))
        for value in values:
            if isinstance(defaults.get(name), (int, float)) and not isinstance(value, (int, float)):
                raise ValueError(f"{name} must be a number, true or false, got {value!r}")


def default_folder(verb: str) -> Path:
    return Path("runs") / f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}"


OPTIONS = {"make_model": "--model", "make_data": "--data", "make_loss": "--loss"}


def code_options(code: Mapping[str, set[str]]) -> str:
    """What --resume needs of a sweep with code of the user's."""
    if any(len(names) > 1 for names in code.values()):
        return "--trust"
    return " ".join(f"{OPTIONS[name]} {''.join(names)}" for name, names in code.items())


def check_trust(args: argparse.Namespace, code: Mapping[str, set[str]], file: Path) -> None:
    """Code that a file names is not run because it stands there: the command line names it too, or trusts the file."""
    if code and not args.trust:
        held = ", ".join(f"{name} = {' and '.join(sorted(names))}" for name, names in code.items())
        raise ValueError(
            f"{file} names code, {held}, and nothing was run. If you trust it: {code_options(code)}, or --trust"
        )
