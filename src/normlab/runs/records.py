"""What the lab finds, as data: results of trials, rates, cells, differences, a verdict. summary.json is a :class:`Summary`.

A field is declared once, with its type for Python and its shape for the reader: ``mean: Annotated[float | None, figure] = None``. From
that follow what a file may hold, what stands in it, and what may be missing: a field with a default, for which null stands too. Names
that are not declared are passed over, so that a file of a later version can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from .axes import Axes, cell_name
from .shapes import Kind, Shape, anything, figure, flag, inside, list_of, number, one_of, table_of, text, whole, wrong

OUTCOMES = ("trained", "untrained", "collapsed", "diverged", "failed")

R = TypeVar("R", bound="Record")


class _Field(NamedTuple):
    key: str  # its name in a file
    shape: Shape
    needed: bool


@cache
def _fields(cls: type[Record]) -> dict[str, _Field]:
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for f in fields(cls):  # type: ignore[arg-type]
        shape, *key = hints[f.name].__metadata__
        needed = f.default is MISSING and f.default_factory is MISSING
        found[f.name] = _Field(key[0] if key else f.name, shape, needed)
    return found


class Record:
    """A frozen dataclass that JSON can hold."""

    SCHEMA: ClassVar[str | None] = None  # of those that are a file of their own

    @classmethod
    def from_dict(cls: type[R], value: Any, where: str = "") -> R:
        """From plain values. ValueError says which is wrong, and where it stands."""
        if type(value) is not dict:
            raise wrong(where or "what it holds", "an object", value)
        dot = f"{where}." if where else ""
        given = {}
        for name, (key, shape, needed) in _fields(cls).items():  # type: ignore[arg-type]
            if value.get(key) is not None or (needed and key in value):
                given[name] = shape(value[key], dot + key)
            elif needed:
                raise ValueError(f"{dot}{key} is missing")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; every field stands in it."""
        schema = {} if self.SCHEMA is None else {"schema": self.SCHEMA}
        return schema | {f.key: _plain(getattr(self, name)) for name, f in _fields(type(self)).items()}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def tuple_of(shape: Shape) -> Shape:
    checked = list_of(shape)
    return lambda value, where: tuple(checked(value, where))


def _point(value: Any, where: str) -> tuple[float, float | None]:
    if type(value) is not list or len(value) != 2 or type(value[0]) not in (int, float):
        raise wrong(where, "a step and a number", value)
    return number(value[0], where), figure(value[1], where)


def _curve(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    """Points without a finite number are left out."""
    return tuple(point for point in tuple_of(_point)(value, where) if point[1] is not None)


# ---- trials ----------------------------------------------------------------------------------------------------------

Figure = Annotated[float | None, figure]  # a number that may be unknown
Text = Annotated[str | None, text]
Count = Annotated[int, whole]
Flag = Annotated[bool, flag]
AxisValues = Annotated[Axes, table_of(anything)]


@dataclass(frozen=True, kw_only=True)
class Choice(Record):
    """What was chosen for the user and changes what a norm computes: an entry of ``choices`` in run.json."""

    kind: Annotated[str, text]  # "causal-position", "causal-running", "causal-token", "sync", "own-model"
    norm: Text = None  # or, for a model of the user's, what it has no argument for
    values: Annotated[int | None, whole] = None  # that share a statistic at most; for sync, processes
    text: Text = None  # the same in words, for who reads the file


@dataclass(frozen=True, kw_only=True)
class TrialFinding(Record):
    """What the diagnosis says of a trial that did not train: its verdict in both languages."""

    rule: Annotated[str, text]
    severity: Text = None
    site: Text = None  # None: the model as a whole
    en: Text = None
    zh: Text = None


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """How one training ended: ``result`` in its run.json."""

    outcome: Text = None  # one of OUTCOMES
    steps: Figure = None
    samples: Figure = None  # seen in training, each time counted; of one's own data unknown
    tokens: Figure = None  # the same of real tokens
    loss: Figure = None  # held-out, at the end
    loss_half_width: Figure = None  # of its 95 % interval over examples
    accuracy: Figure = None
    train_loss: Figure = None  # mean over the last tenth of the steps
    first_loss: Figure = None
    blind: Figure = None  # held-out loss of the best predictor that never sees its input; read from the run's task
    curve: Annotated[tuple[tuple[float, float], ...], _curve] = ()  # (step, held-out loss)
    diverged_at: Figure = None  # step
    cause: Text = None  # of an outcome other than trained
    cause_zh: Text = None  # the same in Chinese
    findings: Annotated[tuple[TrialFinding, ...], tuple_of(TrialFinding.from_dict)] = ()  # of one that did not train
    error: Text = None  # of a program that broke
    seconds: Figure = None
    overhead_seconds: Figure = None  # outside steps and evaluations
    tokens_per_second: Figure = None
    matmul_share: Figure = None  # of what the machine's matrix product reaches
    peak_memory: Figure = None  # bytes
    parameters: Figure = None
    training_seconds: Figure = None
    evaluation_seconds: Figure = None


@dataclass(frozen=True, kw_only=True)
class TrialResult(Result):
    """A result and the trial that gave it: an entry of ``trials`` in summary.json, a row of trials.csv."""

    name: Annotated[str | None, inside] = None  # of its folder below the sweep's trials, unless ``folder`` says another
    cell: Annotated[str, text]
    axes: AxisValues = field(default_factory=dict)  # those that name the cell
    lr: Figure = None
    seed: Annotated[int | None, whole] = None
    choices: Annotated[tuple[Choice, ...], tuple_of(Choice.from_dict)] = ()
    folder: Annotated[str | None, inside] = None  # below the sweep's

    def to_dict(self) -> dict[str, Any]:
        """Whose it is comes first, where it lies comes last."""
        found = super().to_dict()
        first = {key: found.pop(key) for key in ("name", "cell", "axes", "lr", "seed")}
        return {**first, **found, "folder": found.pop("folder")}


# ---- what they say together ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """A cell minus another, paired by seed; negative is better. Interval and p hold for all pairs of cells together."""

    mean: Annotated[float, number]
    low: Figure = None
    high: Figure = None
    n: Count = 0  # pairs
    p: Figure = None
    decided: Flag = False  # the interval leaves out zero
    equal: Flag = False  # the interval lies within the margin asked for
    seeds_needed: Annotated[int | None, whole] = None  # in all, if mean and spread held
    seeds_low: Annotated[int | None, whole] = None  # the same at the ends of an 80 % interval of mean and spread
    seeds_high: Annotated[int | None, whole] = None

    @property
    def decimals(self) -> int:
        """Of the numbers shown: two digits of the half width, and as many as it takes that no decided end reads as zero."""
        if self.low is None or self.high is None or self.high <= self.low:
            return 4
        nearest = (min(abs(self.low), abs(self.high)) if self.decided else 0.0) or math.inf  # a file may say anything
        return min(max(1 - math.floor(math.log10(min((self.high - self.low) / 2, 2 * nearest))), 0), 12)


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """A mean over seeds and its 95 % interval (Student t)."""

    mean: Annotated[float, number]
    low: Figure = None
    high: Figure = None
    n: Count = 0

    @property
    def decimals(self) -> int:
        """Of the numbers shown: two digits of the half width; without an interval, three of the mean."""
        known = self.low is not None and self.high is not None and self.high > self.low
        size = (self.high - self.low) / 2 if known else abs(self.mean) / 10  # type: ignore[operator]
        return min(max(1 - math.floor(math.log10(size)), 0), 12) if size > 0 else 0


@dataclass(frozen=True, kw_only=True)
class Trait(Record):
    """What probes saw inside a cell's trials at its best rate: mean, lowest and highest over seeds."""

    mean: Annotated[float, number]
    low: Annotated[float, number]
    high: Annotated[float, number]
    n: Count = 0


@dataclass(frozen=True, kw_only=True)
class Rate(Record):
    """A cell at one learning rate: mean and interval over seeds with a loss, and how all of them ended."""

    lr: Annotated[float, number]
    mean: Figure = None
    low: Figure = None
    high: Figure = None
    n: Count = 0
    trained: Count = 0
    untrained: Count = 0
    collapsed: Count = 0
    diverged: Count = 0
    failed: Count = 0
    lost: Count = 0  # ended with less than half of the best rate's gain, at a higher rate; some of those that trained
    skipped: Count = 0  # seeds it was not given, since its first was hopeless
    stable: Flag = False

    def count(self, *outcomes: str) -> int:
        return sum(getattr(self, outcome) for outcome in outcomes)


@dataclass(frozen=True, kw_only=True)
class Cell(Record):
    """One combination of the grid, at its best rate."""

    name: Annotated[str, text, "cell"]
    axes: AxisValues = field(default_factory=dict)
    rank: Annotated[int | None, whole] = None
    steps: Figure = None  # of a trial
    choices: Annotated[tuple[Choice, ...], tuple_of(Choice.from_dict)] = ()
    rates: Annotated[tuple[Rate, ...], tuple_of(Rate.from_dict)] = ()
    best_lr: Figure = None
    best_at_edge: Annotated[str | None, one_of("low", "high")] = None
    mean: Figure = None
    low: Figure = None
    high: Figure = None
    n: Count = 0
    cross_fitted: Figure = None  # mean over seeds, each at the rate that the other seeds choose
    largest_stable_lr: Figure = None
    stable_up_to_edge: Flag = False
    divergence_rate: Figure = None  # share of its trials that broke: diverged, collapsed or lost
    steps_to_target: Figure = None
    tokens_per_second: Figure = None
    peak_memory: Figure = None
    tied_with_best: Flag = False  # another than the best, and not decided against it
    difference: Annotated[Difference | None, Difference.from_dict] = None  # from the baseline
    behind_best: Annotated[Difference | None, Difference.from_dict] = None
    figures: Annotated[Mapping[str, Estimate], table_of(Estimate.from_dict)] = field(default_factory=dict)  # by metric
    traits: Annotated[Mapping[str, Trait], table_of(Trait.from_dict)] = field(
        default_factory=dict
    )  # see normlab.answer.inside


@dataclass(frozen=True, kw_only=True)
class Refused(Record):
    """A combination that cannot be built."""

    axes: AxisValues
    reason: Annotated[str, text]
    reason_zh: Text = None  # the same in Chinese

    @property
    def name(self) -> str:
        return cell_name(self.axes)

    def to_dict(self) -> dict[str, Any]:
        return {"cell": self.name, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """The same sentences in both languages."""

    en: Annotated[tuple[str, ...], tuple_of(text)] = ()
    zh: Annotated[tuple[str, ...], tuple_of(text)] = ()


@dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """summary.json: the answer of a sweep; cells by rank."""

    SCHEMA: ClassVar[str] = "normlab.summary/1"

    task: Text = None
    unit: Text = None
    blind: Figure = None  # held-out loss of the best predictor that never sees its input
    steps: Figure = None
    equal: Text = None  # what all cells were given alike
    created: Text = None
    machine: Annotated[Any, anything] = None
    complete: Flag = True
    planned: Count = 0  # trials, ended or not; at most, where rates may still turn out hopeless
    looks: Annotated[tuple[int, ...], tuple_of(whole)] = ()  # at earlier answers: seeds in all
    wrong: Figure = None  # in what share of sweeps, at most, any of all looks decides something falsely
    baseline: Text = None  # a cell's name
    best: Text = None  # another's, or the same
    metric: Annotated[str, text] = "loss"  # what is ranked and compared
    margin: Figure = None  # differences within it count as none
    target_loss: Figure = None
    common_target: Figure = (
        None  # of the figures "to target": one that every compared trial reaches, unless another was asked for
    )
    trials: Annotated[tuple[TrialResult, ...], tuple_of(TrialResult.from_dict)] = ()
    cells: Annotated[tuple[Cell, ...], tuple_of(Cell.from_dict)] = ()
    refused: Annotated[tuple[Refused, ...], tuple_of(Refused.from_dict)] = ()
    verdict: Annotated[Verdict, Verdict.from_dict] = Verdict()

    def __str__(self) -> str:
        return "\n".join(self.verdict.en)


SUMMARY = Kind("summary", "summary.json", Summary.SCHEMA, Summary.from_dict, 512 * 2**20)
