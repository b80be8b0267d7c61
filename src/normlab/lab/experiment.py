"""One training run as data: an :class:`Experiment` says everything that decides its numbers, and nothing else.

The same experiment gives the same loss curve bit for bit on the same machine and versions. What does not touch the numbers
(where it runs, how often it is saved) is an argument of :func:`normlab.lab.train`. Experiments come from Python or from a TOML file,
and go into the run as plain values. No torch here: plans of thousands of trials are made without it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from ..errors import RunUnreadable, unknown
from ..runs import INFO, Run, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("float32", "bfloat16")
TASK_OPTIONS = ("length",)  # of the lab's tasks; a test holds them to what the tasks take
CODE = ("make_model", "make_data", "make_loss")  # the fields that name code
MOST_THREADS = 4096  # torch starts as many as it is told
TOML = 2**20  # bytes of a file
WATCHES = ("none", "lite", "standard", "full")
ASSAYS = (
    "covariate_shift",
    "smoothness",
    "block_drop",
    "parallel_blocks",
    "statistics_gap",
    "token_similarity",
    "position",
)
ASSAYS_AT = ("end", "evaluations")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What one trial trains, on what, and how.

    >>> Experiment(norm="rms", lr=3e-3).learning_rate(1) < 3e-3
    True
    """

    task: str = "text"  # a name from TASKS, or "own" with make_model and make_data
    norm: str = "layer"
    placement: str = "pre"
    lr: float = 1e-3  # peak rate
    seed: int = 0  # of the weights, the order of the data and dropout
    steps: int = 200
    batch_size: int | None = None  # examples per step, over all processes and micro-batches; None: the task's
    model: Mapping[str, Any] = field(default_factory=dict)  # settings of TransformerConfig beyond norm and placement
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task, such as length
    files: tuple[str, ...] = ()  # the user's own text, for the task text
    make_model: str | None = (
        None  # MODULE:NAME; gets those of norm, placement and model's settings that it has arguments for
    )
    make_data: str | None = None  # MODULE:NAME, (seed) or (seed, split) -> batches
    make_loss: str | None = None  # MODULE:NAME, (model, batch) -> loss; None: cross entropy of (inputs, targets)
    warmup: float = 0.1  # share of the steps over which the rate rises from 0
    schedule: str = "cosine"  # what follows: "cosine" or "linear" to a tenth of the peak, or "constant"
    optimizer: str = "adamw"  # or "sgd", with momentum
    weight_decay: float = (
        0.01  # on matrices; gains and biases have none. AdamW's is decoupled, SGD's part of the gradient
    )
    betas: tuple[float, float] = (0.9, 0.98)  # AdamW's
    momentum: float = 0.9  # SGD's; 0: none
    clip: float = 1.0  # largest norm of the gradient; 0: as it comes
    accumulate: int = 1  # micro-batches per step
    precision: str = "float32"  # "bfloat16": autocast
    evaluations: int = 8  # over the run, evenly; the last is at the end
    held_out: int = 256  # examples per evaluation, spread over the held-out set; 0: all of it
    watch: str = "lite"  # preset, or "none"
    watch_every: int | None = None  # steps between recorded ones; None: about 12 recorded steps over the run
    assays: tuple[str, ...] = ()  # what is asked of the model between steps and written into the run: names from ASSAYS
    assays_at: str = "end"  # after the last step, or at all "evaluations"
    threads: int = 1  # more can change the last bits: sums are cut differently

    def __post_init__(self) -> None:
        for name, value, known in (("schedule", self.schedule, SCHEDULES), ("precision", self.precision, PRECISIONS),
                                   ("watch", self.watch, WATCHES), ("optimizer", self.optimizer, OPTIMIZERS),
                                   ("assays_at", self.assays_at, ASSAYS_AT)):  # fmt: skip
            if value not in known:
                raise ValueError(unknown(name, value, known))
        for name in ("seed", "steps", "accumulate", "evaluations", "threads", "batch_size", "held_out"):
            value, least = getattr(self, name), 0 if name in ("seed", "held_out") else 1
            if value is None and name == "batch_size":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.watch_every is not None and (
            not isinstance(self.watch_every, int) or isinstance(self.watch_every, bool) or self.watch_every < 1
        ):
            raise ValueError(f"watch_every must be a whole number of at least 1, got {self.watch_every!r}")
        if not _list_of(self.assays, str):
            raise ValueError(f'assays must be a list of names such as ["block_drop"], got {self.assays!r}')
        for assay in self.assays:
            if assay not in ASSAYS:
                raise ValueError(unknown("assay", assay, ASSAYS))
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        for name, low, high in (
            ("lr", 0.0, None),
            ("warmup", 0.0, 1.0),
            ("weight_decay", 0.0, None),
            ("clip", 0.0, None),
            ("momentum", 0.0, 1.0),
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < low or (high is not None and value > high):
                span = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
                raise ValueError(f"{name} must be a finite number of {span}, got {value!r}")
        if self.momentum == 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum!r}: it would never forget a gradient")
        if self.lr == 0:
            raise ValueError(f"lr must be above 0, got {self.lr!r}")
        if not _list_of(self.betas, (int, float)) or len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas must be two numbers of at least 0 and below 1, got {self.betas!r}")
        for name in ("norm", "placement", "task"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a name, got {getattr(self, name)!r}")
        if not _list_of(self.files, str):
            raise ValueError(f"files must be a list of paths, got {self.files!r}")
        for name in ("model", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} must be a table of settings, got {value!r}")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} goes into the run as JSON, which cannot hold {value!r}: {error}") from error
        for name in CODE:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a name as MODULE:NAME, got {value!r}")
        own = (self.make_model, self.make_data)
        if (self.task == "own") != all(own) or (any((*own, self.make_loss)) and self.task != "own"):
            raise ValueError('a model of your own needs task="own" and both make_model and make_data (MODULE:NAME)')
        if self.files and self.task != "text":
            raise ValueError(f'files belong to the task "text", not to {self.task!r}')
        if self.batch_size is not None and self.batch_size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} does not divide batch_size={self.batch_size}")

    def learning_rate(self, step: int) -> float:
        """The rate of step 1, 2, ..., steps."""
        rising = max(1, round(self.warmup * self.steps)) if self.warmup > 0 else 0
        if step <= rising:
            return self.lr * step / rising
        if self.schedule == "constant":
            return self.lr
        gone = (step - rising) / max(1, self.steps - rising)
        share = 0.5 * (1 + math.cos(math.pi * gone)) if self.schedule == "cosine" else 1 - gone
        return self.lr * (0.1 + 0.9 * share)

    def evaluates(self, step: int) -> bool:
        """Evenly over the run, the last step always."""
        count = min(self.evaluations, self.steps)
        return step * count // self.steps > (step - 1) * count // self.steps

    def changed(self, **values: Any) -> Experiment:
        """With other values; a name that is no field of an experiment is an option of its task or a setting of its model."""
        known = {f.name for f in fields(self)}
        own = {k: v for k, v in values.items() if k in known}
        rest = {k: v for k, v in values.items() if k not in known}
        of_task = TASK_OPTIONS if own.get("task", self.task) != "own" else ()
        for place, chosen in (("options", {k: v for k, v in rest.items() if k in of_task}),
                              ("model", {k: v for k, v in rest.items() if k not in of_task})):  # fmt: skip
            if chosen:
                own[place] = {**own.get(place, getattr(self, place)), **chosen}
        return replace(self, **own)

    def value(self, name: str) -> Any:
        """A field, an option of the task, or a setting of the model."""
        if name in {f.name for f in fields(self)}:
            return getattr(self, name)
        return self.options[name] if name in self.options else self.model.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON and TOML hold them."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        if not isinstance(values, Mapping):
            raise TypeError(f"an experiment is a table of settings, got {values!r}")
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(unknown("setting of an experiment", name, known))
        given = dict(values)
        for name in ("files", "betas", "assays"):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        return cls(**given)

    @classmethod
    def of_run(cls, run: Run) -> Experiment:
        """The experiment that made a run; RunUnreadable if none did."""
        if "experiment" not in run.info:
            raise RunUnreadable(f"{run.folder} holds a run that no experiment made; choose another folder")
        try:
            return cls.from_dict(run.info["experiment"])
        except (TypeError, ValueError) as error:
            raise RunUnreadable(f"{run.folder / INFO}: experiment: {error}") from error

    @classmethod
    def read(cls, path: str | Path) -> Experiment:
        """From a TOML file: the fields at the top, [model] and [options] as tables."""
        return cls.from_dict(read_toml(path))

    def to_toml(self) -> str:
        """As :meth:`read` reads it. What is None is left out, and None is its default."""
        return tomli_w.dumps(_without_null({k: v for k, v in self.to_dict().items() if v != {}}))

    def differences(self, other: Experiment) -> list[str]:
        """Names of the fields in which two experiments differ."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [name for name in mine if mine[name] != theirs[name]]


def _list_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def _without_null(value: Any) -> Any:
    """TOML has no null: what is None is left out of a table, and has no place in a list."""
    if isinstance(value, Mapping):
        return {k: _without_null(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        if None in value:
            raise ValueError("TOML has no null, so a list with one cannot be written")
        return [_without_null(v) for v in value]
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(Path(path), TOML))
    except RunUnreadable:
        raise
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:  # the parser's own, and Python's of a number with thousands of digits
        raise ValueError(f"{path} is not valid TOML: {error}") from error
