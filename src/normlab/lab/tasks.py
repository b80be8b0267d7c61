"""What a lab trains on: real data that every machine already has (nothing is downloaded), or the user's own.

A task knows its data, its held-out part and the loss of the best predictor that never sees the input, without which a
loss says little. Training batches are functions of (seed, step, size), not of a state that moves, so that a resumed
trial and one in another process see the same bits: every draw comes from a generator seeded with a digest of those
numbers. Splits follow digests of the content or fixed places in it, never Python's ``hash``, which differs between
processes. The held-out part is the same for all seeds. What was read is named with its sha256: another Python ships
other pages.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import functools
import gc
import gzip
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import math
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import unknown
from . import texts

UNASKED = -100  # torch's own choice for cross entropy
SIZES = {"dim": 64, "num_layers": 4, "num_heads": 4}  # proposals; an experiment may say otherwise


class Batch(NamedTuple):
    """What a model is given, by the names of its ``forward``, and what it should say."""

    arguments: dict[str, Tensor]
    targets: Tensor  # (B,) classes or (B, L) tokens; UNASKED where nothing is asked


class Scores(NamedTuple):
    """Per example: mean loss over its targets (float64; 0 where it has none), number of targets, number right."""

    losses: Tensor
    counts: Tensor
    correct: Tensor | None  # None: the loss is the user's own and does not say what is right


def _answers(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """float32 scores (..., classes) and targets (...) of a Batch, or of a pair (inputs, targets)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise TypeError(
            f"cross entropy needs batches (inputs, targets), got {_outline(batch)}; give a loss of your own"
        )
    inputs, targets = batch
    scores = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    if not isinstance(scores, Tensor):
        raise TypeError(f"cross entropy needs a tensor from the model, got {_outline(scores)}; give a loss of your own")
    if scores.shape[:-1] != targets.shape:
        raise ValueError(
            f"scores of shape {tuple(scores.shape)} do not answer targets of shape {tuple(targets.shape)}: they must "
            "have the targets' shape and one more dimension, the classes"
        )
    return scores.float(), targets


def _outline(value: Any) -> str:
    inner = f" of {', '.join(type(v).__name__ for v in value)}" if isinstance(value, (tuple, list)) else ""
    return type(value).__name__ + inner


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross entropy over the targets asked, in float32."""
    scores, targets = _answers(model, batch)
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=UNASKED)


@torch.no_grad()
def score(model: nn.Module, batch: Any) -> Scores:
    """The same per example; the model stays in the mode it is in."""
    scores, targets = _answers(model, batch)
    each = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=UNASKED, reduction="none")
    asked = (targets != UNASKED).view(len(targets), -1)
    right = (scores.argmax(-1) == targets).view(len(targets), -1) & asked
    return Scores(each.view(len(targets), -1).double().sum(1) / asked.sum(1).clamp(min=1), asked.sum(1), right.sum(1))


class Task(ABC):
    """Training batches, a fixed held-out part, and what a model needs to know of them."""

    name: str
    unit: str  # of the loss
    batch_size: int  # a proposal
    settings: dict[str, Any]  # of normlab.TransformerConfig: what the data imposes, and sizes as a proposal
    sources: dict[str, str]  # what was read -> sha256
    blind: float | None  # held-out loss of the best predictor that never sees the input; None: unknown
    num_training: int  # different examples; 0: unknown
    num_held_out: int

    @abstractmethod
    def batch(self, seed: int, step: int, size: int) -> Any:
        """The training batch of step 1, 2, ...: the same arguments give the same bits in any process."""

    @abstractmethod
    def held_out(self, size: int, limit: int | None = None) -> list[Any]:
        """The held-out examples in batches; ``limit`` of them, evenly spread over all, if given."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch)

    def score(self, model: nn.Module, batch: Any) -> Scores:
        return score(model, batch)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DataTask(Task):
    """A task whose examples can be told apart."""

    name: str
    unit: str
    batch_size: int
    settings: dict[str, Any]
    sources: dict[str, str]
    blind: float
    num_training: int
    num_held_out: int
    draw: Callable[[int, int, int], Batch]  # seed, step, size
    pick: Callable[[Tensor], Batch]  # by numbers of held-out examples

    def batch(self, seed: int, step: int, size: int) -> Batch:
        _check_positive(step=step, size=size)
        return self.draw(seed, step, size)

    def held_out(self, size: int, limit: int | None = None) -> list[Batch]:
        count = self.num_held_out if limit is None else min(limit, self.num_held_out)
        _check_positive(size=size, limit=count)
        return [self.pick(part) for part in (torch.arange(count) * self.num_held_out // count).split(size)]


def _check_positive(**numbers: Any) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {number!r}")


def _generator(*key: object) -> torch.Generator:
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _one_in(parts: int, content: bytes) -> bool:
    """True for one of ``parts`` contents, the same ones everywhere."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % parts == 0


def _blind(training: Tensor, held_out: Tensor) -> float:
    """Mean of -log(frequency in training) over held-out targets, from how often each occurs. Training counts one more
    of each, so that a target that occurs only held out costs much and not infinitely much."""
    known = training.double() + 1
    return float(-(held_out.double() * (known / known.sum()).log()).sum() / held_out.sum())


def _bytes(rows: Sequence[bytes], length: int) -> Tensor:
    """(rows, length) ids, zero behind the end."""
    joined = bytearray().join(row.ljust(length, b"\0") for row in rows)
    return torch.frombuffer(joined, dtype=torch.uint8).view(len(rows), length).long()


# ---- text: predict the next byte -------------------------------------------------------------------------------------

BLOCKS = 60  # equal parts of the text; every tenth is held out, so that held-out bytes come from all over it


def _text(files: Sequence[str] = (), *, length: int = 64) -> DataTask:
    """Windows lie inside a held-out block or between two: no training window touches a held-out byte."""
    read = {path: texts.read(Path(path)) for path in files} or {"pydoc_data.topics": _help_pages()}
    content = b"\n".join(text for text, _ in read.values())
    if len(content) < BLOCKS * (length + 1):
        raise ValueError(
            f"{', '.join(read)}: {len(content)} bytes are too few. They are cut into {BLOCKS} blocks, and each must "
            f"hold length + 1 = {length + 1} bytes: give at least {BLOCKS * (length + 1)} bytes, or a smaller length"
        )
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    edge = [len(content) * i // BLOCKS for i in range(BLOCKS + 1)]
    blocks = range(5, BLOCKS, 10)
    stretches = list(zip([0, *(edge[i + 1] for i in blocks)], [*(edge[i] for i in blocks), len(content)], strict=True))
    ends = torch.tensor([end - length for _, end in stretches])  # behind the last start of a window
    up_to = torch.tensor([end - length - start for start, end in stretches]).cumsum(0)  # windows, this stretch included
    # Held-out windows lie side by side: every target counts once.
    starts = torch.tensor([s for i in blocks for s in range(edge[i], edge[i + 1] - length, length)])
    num_training = int(up_to[-1])

    def windows(starts: Tensor) -> Batch:
        window = data[starts[:, None] + torch.arange(length + 1)].long()
        return Batch({"tokens": window[:, :-1]}, window[:, 1:])

    def draw(seed: int, step: int, size: int) -> Batch:
        drawn = torch.randint(num_training, (size,), generator=_generator("text", seed, step))
        stretch = torch.searchsorted(up_to, drawn, right=True)
        return windows(ends[stretch] + drawn - up_to[stretch])

    seen = torch.stack([torch.bincount(data[start:end], minlength=256) for start, end in stretches]).sum(0)
    return DataTask(
        name="text", unit="nats per byte", batch_size=16,
        settings={"architecture": "decoder", "vocab_size": 256, "max_length": length, **SIZES},
        sources={path: digest for path, (_, digest) in read.items()},
        blind=_blind(seen, torch.bincount(windows(starts).targets.flatten(), minlength=256)),
        num_training=num_training, num_held_out=len(starts), draw=draw, pick=lambda numbers: windows(starts[numbers]),
    )  # fmt: skip


def _help_pages() -> tuple[bytes, str]:
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return text, texts.sha256(text)


# ---- docs and digits: name the class ---------------------------------------------------------------------------------


def _labelled(arguments: dict[str, Tensor], labels: Tensor, is_held_out: Tensor, **facts: Any) -> DataTask:
    """Every pass over the training examples has an order of its own, from (seed, pass)."""
    training, testing = (~is_held_out).nonzero()[:, 0], is_held_out.nonzero()[:, 0]
    count, classes = len(training), facts["settings"]["num_classes"]

    def examples(numbers: Tensor) -> Batch:
        return Batch({name: values[numbers] for name, values in arguments.items()}, labels[numbers])

    @functools.lru_cache(maxsize=16)
    def order(seed: int, number: int) -> Tensor:
        return training[torch.randperm(count, generator=_generator(facts["name"], seed, number))]

    def draw(seed: int, step: int, size: int) -> Batch:
        first = (step - 1) * size
        passes = range(first // count, (first + size - 1) // count + 1)
        start = first - passes[0] * count
        return examples(torch.cat([order(seed, number) for number in passes])[start : start + size])

    counts = [torch.bincount(labels[part], minlength=classes) for part in (training, testing)]
    return DataTask(blind=_blind(*counts), num_training=count, num_held_out=len(testing), draw=draw,
                    pick=lambda numbers: examples(testing[numbers]), **facts)  # fmt: skip


# Packages of every CPython with a hundred docstrings and more; asyncio would add a third to the time of reading.
PACKAGES = ("email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
MOST_DOCUMENTS = 200  # of a package: the largest has three times as many as the smallest


def _docs(*, length: int = 96) -> DataTask:
    home = Path(sysconfig.get_paths()["stdlib"])
    packages_of: dict[bytes, set[str]] = {}  # by what a model would see of a docstring
    for package, text in _docstrings(home):
        packages_of.setdefault(text.encode(errors="replace")[:length], set()).add(package)
    # A text of two packages has no right answer. In the order of digests a cap keeps a mixture, the same everywhere.
    mixed = sorted((text for text, packages in packages_of.items() if text and len(packages) == 1), key=texts.sha256)
    kept = {p: [text for text in mixed if p in packages_of[text]][:MOST_DOCUMENTS] for p in PACKAGES}
    kept = {p: found for p, found in kept.items() if found}
    if len(kept) < 2:
        raise ValueError(f"{home} holds no sources of {', '.join(PACKAGES)}: this Python was installed without them")
    documents = [text for p in kept for text in kept[p]]
    mask = torch.arange(length) < torch.tensor([len(text) for text in documents])[:, None]
    return _labelled(
        {"tokens": _bytes(documents, length), "mask": mask},
        torch.tensor([label for label, p in enumerate(kept) for _ in kept[p]]),
        torch.tensor([_one_in(5, text) for text in documents]),
        name="docs", unit="nats per document", batch_size=32,
        settings={"architecture": "encoder", "vocab_size": 256, "max_length": length, "num_classes": len(kept), **SIZES,
                  "num_layers": 2},
        sources={f"docstrings of {p}": texts.sha256(b"\0".join(kept[p])) for p in kept},
    )  # fmt: skip


def _docstrings(home: Path) -> Iterator[tuple[str, str]]:
    """(package, docstring) of modules, classes and functions; sources are parsed, never imported."""
    collecting = gc.isenabled()
    gc.disable()  # looking for cycles among a million nodes that have none takes half the time
    try:
        for package in PACKAGES:
            for path in sorted((home / package).rglob("*.py")):
                todo: list[Any] = (
                    [] if {"test", "tests"} & set(path.relative_to(home).parts) else [ast.parse(path.read_bytes())]
                )
                while todo:
                    node = todo.pop()
                    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield package, ast.get_docstring(node) or ""
                    for block in ("body", "orelse", "handlers", "finalbody"):  # expressions hold no definitions
                        inner = getattr(node, block, ())
                        todo.extend(inner if isinstance(inner, list) else ())
    finally:
        if collecting:
            gc.enable()


def _digits() -> DataTask:
    # The file that sklearn.datasets.load_digits reads: 0.05 s, while importing that takes 1.0 to 1.6 s (version 1.9.1).
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ImportError("the digits come with scikit-learn: pip install 'normlab[digits]'")
    packed = Path(found.origin).with_name("datasets").joinpath("data", "digits.csv.gz").read_bytes()
    rows = [line.split(b",") for line in gzip.decompress(packed).split()]
    values = torch.tensor([[float(value) for value in row] for row in rows])
    images = values[:, :-1].view(-1, 1, 8, 8)
    is_held_out = torch.tensor([_one_in(5, b",".join(row[:-1])) for row in rows])
    seen = images[~is_held_out]
    return _labelled(
        {"images": (images - seen.mean()) / seen.std()}, values[:, -1].long(), is_held_out,
        name="digits", unit="nats per image", batch_size=64,
        settings={"architecture": "vision", "image_size": 8, "patch_size": 2, "channels": 1, "num_classes": 10,
                  "max_length": 64, **SIZES},
        sources={"sklearn/datasets/data/digits.csv.gz": texts.sha256(packed)},
    )  # fmt: skip


# ---- dates: write one as year-month-day ------------------------------------------------------------------------------

# Names of our own: strftime's change with the locale. Forms of digits alone (3/5/21) are left out: they are ambiguous.
FORMATS = (
    "{day} {month} {year}", "{month} {day}, {year}", "{mon} {nth}, {year}", "{day}-{mon}-{year}", "{year} {mon} {day}",
    "the {nth} of {month}, {year}", "{weekday} {day} {month} {year}", "{weekday}, {month} {nth}, {year}",
)  # fmt: skip
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_DAY, LAST_DAY = datetime.date(1970, 1, 1), datetime.date(2069, 12, 31)
BEGIN = 2  # before the first character of the target; ASCII's start of text
LONGEST = 31  # Wednesday, September 23rd, 2020


def _written(day: datetime.date, form: str) -> bytes:
    month = MONTHS[day.month - 1]
    ending = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return form.format(day=day.day, nth=f"{day.day}{ending}", month=month, mon=month[:3], year=day.year,
                       weekday=WEEKDAYS[day.weekday()]).encode()  # fmt: skip


def _dates() -> DataTask:
    """A day is trained on in all its forms or in none."""
    days = [datetime.date.fromordinal(n) for n in range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)]
    held_out = [day for day in days if _one_in(10, day.isoformat().encode())]
    training = sorted(set(days) - set(held_out))
    fixed_forms = torch.randint(len(FORMATS), (len(held_out),), generator=_generator("dates", "held out"))

    def examples(days: list[datetime.date], forms: Tensor) -> Batch:
        source = _bytes([_written(d, FORMATS[f]) for d, f in zip(days, forms.tolist(), strict=True)], LONGEST)
        targets = _bytes([d.isoformat().encode() for d in days], 10)
        target = torch.cat((torch.full_like(targets[:, :1], BEGIN), targets[:, :-1]), 1)
        return Batch({"source": source, "target": target, "source_mask": source != 0}, targets)

    def draw(seed: int, step: int, size: int) -> Batch:
        generator = _generator("dates", seed, step)
        chosen = torch.randint(len(training), (size,), generator=generator).tolist()
        return examples([training[i] for i in chosen], torch.randint(len(FORMATS), (size,), generator=generator))

    return DataTask(
        name="dates", unit="nats per character", batch_size=32,
        settings={"architecture": "encoder-decoder", "vocab_size": 128, "max_length": LONGEST, **SIZES,
                  "num_layers": 2},
        sources={"normlab.lab.tasks.FORMATS": texts.sha256(repr((FORMATS, MONTHS, WEEKDAYS, FIRST_DAY, LAST_DAY)).encode())},
        # The decoder is given the target so far, so frequencies of characters would be too easy to beat. To one that is
        # blind to the source but knows the calendar all days are alike: the chain rule over the ten characters.
        blind=math.log(len(days)) / 10,
        num_training=len(training) * len(FORMATS), num_held_out=len(held_out), draw=draw,
        pick=lambda numbers: examples([held_out[i] for i in numbers.tolist()], fixed_forms[numbers]),
    )  # fmt: skip


# ---- the user's own --------------------------------------------------------------------------------------------------

HELD_OUT_SEED = 2**31 - 1  # for data that knows no splits; no trial may use it
MOST_HELD_OUT = 64  # batches, for data that never ends


@final
class OwnTask(Task):
    """Batches from ``make_data(seed)``; the loss from ``make_loss(model, batch)`` or, for pairs, cross entropy.

    If ``make_data`` has a parameter ``split``, it is given "train" or "held-out"; otherwise the held-out batches are
    those of HELD_OUT_SEED. The seed must decide the data, or trials cannot be compared. Sizes are the data's own; what
    ``held_out`` limits and ``score`` judges is a batch. A pass that ends is followed by another ``make_data(seed)``.

    A loader that draws from torch's global random numbers (as a shuffling DataLoader does) draws from a stream of its own, started
    from the seed: dropout and the data cannot disturb each other, and a resumed run finds the order it had.
    """

    name, unit, batch_size, blind = "own", "own loss", 1, None
    num_training = num_held_out = 0

    def __init__(
        self, make_data: Callable[..., Iterable[Any]], make_loss: Callable[[nn.Module, Any], Tensor] | None = None
    ) -> None:
        self.make_data, self.make_loss = make_data, make_loss
        self.settings, self.sources = {}, {}
        for function in (make_data, make_loss):
            if function is not None and not callable(function):
                raise TypeError(f"make_data and make_loss must be functions, got {type(function).__name__}")
            if inspect.isfunction(function):
                with contextlib.suppress(OSError):  # what was typed at a prompt has no source
                    digest = texts.sha256(inspect.getsource(function).encode())
                    self.sources[f"{function.__module__}:{function.__qualname__}"] = digest
        self._at: dict[int, tuple[int, Any, Iterator[Any]]] = {}  # seed -> last step, its batch, those behind it
        self._held_out: dict[int, list[Any]] = {}
        self._random: dict[int, Tensor] = {}  # seed -> state of torch's random numbers as its loader left them

    @contextlib.contextmanager
    def _own_random(self, seed: int) -> Iterator[None]:
        before = torch.get_rng_state()
        own = self._random.get(seed)
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state() if own is None else own)
        try:
            yield
        finally:
            self._random[seed] = torch.get_rng_state()
            torch.set_rng_state(before)

    def _pass(self, seed: int, split: str) -> Iterator[Any]:
        takes_split = "split" in inspect.signature(self.make_data).parameters
        batches = self.make_data(seed, split=split) if takes_split else self.make_data(seed)
        if not isinstance(batches, Iterable):
            raise TypeError(f"make_data must return something to iterate over, got {type(batches).__name__}")
        return iter(batches)

    def _endless(self, seed: int) -> Iterator[Any]:
        for number in itertools.count(1):
            empty = True
            for batch in self._pass(seed, "train"):
                empty = False
                yield batch
            if empty:
                raise ValueError(
                    f"pass {number} of make_data({seed}) yielded no batch; each call must return fresh data, not an "
                    "iterator that an earlier call returned and that is used up"
                )

    def batch(self, seed: int, step: int, size: int) -> Any:
        _check_positive(step=step)
        if seed == HELD_OUT_SEED:
            raise ValueError(f"seed {seed} is kept for held-out data; use another")
        at, batch, batches = self._at.pop(seed, (0, None, iter(())))  # popped: what breaks starts again
        if at == 0 or step < at:
            at, batches = 0, self._endless(seed)
            self._random.pop(seed, None)
        with self._own_random(seed):
            for _ in range(step - at):  # a resumed trial passes over what it has seen
                batch = next(batches)
        self._at[seed] = (step, batch, batches)
        return batch

    def held_out(self, size: int, limit: int | None = None) -> list[Any]:
        """The first ``limit`` batches, at most 64; drawn once, so that data which ignores its seed stays fixed."""
        count = MOST_HELD_OUT if limit is None else min(limit, MOST_HELD_OUT)
        _check_positive(limit=count)
        if count not in self._held_out:
            self._random.pop(HELD_OUT_SEED, None)
            with self._own_random(HELD_OUT_SEED):
                self._held_out[count] = list(itertools.islice(self._pass(HELD_OUT_SEED, "held-out"), count))
        if not self._held_out[count]:
            raise ValueError("make_data yielded no held-out batch")
        return self._held_out[count]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.make_loss is None:
            return loss(model, batch)
        value = self.make_loss(model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError(f"make_loss must return a tensor with one value, got {_outline(value)}")
        return value.reshape(())

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Any) -> Scores:
        return Scores(self.loss(model, batch).double()[None], torch.ones(1, dtype=torch.long), None)


# ---- by name ---------------------------------------------------------------------------------------------------------


class TaskFacts(NamedTuple):
    """A row of the table of tasks."""

    title: str
    about: str
    data: str  # what ships it
    make: Callable[..., DataTask]


TASKS: dict[str, TaskFacts] = {
    "text": TaskFacts("next byte", "a causal decoder predicts the next byte of prose",
                      "Python's help pages; or .txt, .md, .jsonl, .parquet, a folder of Hugging Face datasets", _text),
    "docs": TaskFacts("package of a docstring", "an encoder names the package a docstring comes from",
                      "the sources of Python's standard library", _docs),
    "digits": TaskFacts("handwritten digits", "a vision Transformer names the digit in 8 x 8 pixels",
                        'scikit-learn (pip install "normlab[digits]")', _digits),
    "dates": TaskFacts("dates to ISO 8601", "an encoder-decoder writes an English date as year-month-day",
                       "made from the seed", _dates),
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
    _check_positive(**options)  # all of them are sizes
    if files and name != "text":
        raise ValueError(f"task {name!r} has its own data; files belong to task 'text'")
    inside = [p for f in map(Path, files) for p in ([f, *sorted(f.rglob("*"))] if f.exists() else [])]
    stamps = tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in inside)
    return _load(name, tuple(map(str, files)), tuple(sorted(options.items())), stamps)


@functools.lru_cache(maxsize=8)
def _load(name: str, files: tuple[str, ...], options: tuple[tuple[str, Any], ...], stamps: object) -> DataTask:
    return TASKS[name].make(**({"files": files} if files else {}), **dict(options))
