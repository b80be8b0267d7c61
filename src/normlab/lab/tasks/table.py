"""The tasks by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import unknown
from .base import DataTask, check_positive
from .builtin import dates_task, digits_task, docs_task, text_task
from .masked import masked_task


class TaskFacts(NamedTuple):
    """A row of the table of tasks."""

    title: str
    about: str
    data: str  # what ships it
    make: Callable[..., DataTask]


TASKS: dict[str, TaskFacts] = {
    "text": TaskFacts("next byte", "a causal decoder predicts the next byte of prose",
                      "Python's help pages; or .txt, .md, .jsonl, .parquet, sources, folders of these or of Hugging Face datasets", text_task),
    "masked": TaskFacts("hidden bytes", "an encoder names the hidden bytes of a padded line",
                        "Python's help pages", masked_task),
    "docs": TaskFacts("package of a docstring", "an encoder names the package a docstring comes from",
                      "the sources of Python's standard library", docs_task),
    "digits": TaskFacts("handwritten digits", "a vision Transformer names the digit in 8 x 8 pixels",
                        'scikit-learn (pip install "normlab[digits]")', digits_task),
    "dates": TaskFacts("dates to ISO 8601", "an encoder-decoder writes an English date as year-month-day",
                       "made from the seed", dates_task),
}  # fmt: skip


def find_task(name: str, *, files: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> DataTask:
    """The task of that name. Its data is read once per process, and again if a file has changed.

    >>> find_task("dates").settings["architecture"]
    'encoder-decoder'
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    if isinstance(files, str):
        raise TypeError(f"files must be a list of paths, got the string {files!r}")
    known, options = inspect.signature(TASKS[name].make).parameters.keys() - {"files"}, options or {}
    for option in options:
        if option not in known:
            raise ValueError(unknown(f"option of task {name!r}", option, known))
    check_positive(**options)  # all of them are sizes
    if files and name != "text":
        raise ValueError(f"task {name!r} has its own data; files belong to task 'text'")
    inside = [p for f in map(Path, files) for p in ([f, *sorted(f.rglob("*"))] if f.exists() else [])]
    stamps = tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in inside)
    return _load(name, tuple(map(str, files)), tuple(sorted(options.items())), stamps)


@functools.lru_cache(maxsize=8)
def _load(name: str, files: tuple[str, ...], options: tuple[tuple[str, Any], ...], stamps: object) -> DataTask:
    return TASKS[name].make(**({"files": files} if files else {}), **dict(options))
