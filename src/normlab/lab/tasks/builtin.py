"""Tasks on data that every machine has: text, docstrings, digits, dates."""

from __future__ import annotations

import ast
import datetime
import functools
import gc
import gzip
import importlib
import importlib.util
import math
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import require
from .. import texts
from .base import SIZES, Batch, DataTask, blind_loss, byte_rows, generator_of, one_in

# ---- text: predict the next byte -------------------------------------------------------------------------------------

BLOCKS = 60  # equal parts of the text; every tenth is held out, so that held-out bytes come from all over it


def text_task(files: Sequence[str] = (), *, length: int = 64) -> DataTask:
    """Windows lie inside a held-out block or between two: no training window touches a held-out byte."""
    read = {path: texts.read(Path(path)) for path in files} or {"pydoc_data.topics": help_pages()}
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
    ends = torch.tensor([end - length for _, end in stretches])  # one after the last start of a window
    up_to = torch.tensor([end - length - start for start, end in stretches]).cumsum(0)  # windows, this stretch included
    # Held-out windows lie side by side: every target counts once.
    starts = torch.tensor([s for i in blocks for s in range(edge[i], edge[i + 1] - length, length)])
    num_training = int(up_to[-1])

    def windows(starts: Tensor) -> Batch:
        window = data[starts[:, None] + torch.arange(length + 1)].long()
        return Batch({"tokens": window[:, :-1]}, window[:, 1:])

    def draw(seed: int, step: int, size: int) -> Batch:
        drawn = torch.randint(num_training, (size,), generator=generator_of("text", seed, step))
        stretch = torch.searchsorted(up_to, drawn, right=True)
        return windows(ends[stretch] + drawn - up_to[stretch])

    seen = torch.stack([torch.bincount(data[start:end], minlength=256) for start, end in stretches]).sum(0)
    return DataTask(
        name="text", unit="nats per byte", batch_size=16,
        settings={"architecture": "decoder", "vocab_size": 256, "max_length": length, **SIZES},
        sources={path: digest for path, (_, digest) in read.items()},
        blind=blind_loss(seen, torch.bincount(windows(starts).targets.flatten(), minlength=256)),
        num_training=num_training, num_held_out=len(starts), draw=draw, pick=lambda numbers: windows(starts[numbers]),
    )  # fmt: skip


def help_pages() -> tuple[bytes, str]:
    """The text of Python's own help, and its sha256."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return text, texts.sha256(text)


# ---- docs and digits: name the class ---------------------------------------------------------------------------------


def _labelled(arguments: dict[str, Tensor], labels: Tensor, is_held_out: Tensor, **described: Any) -> DataTask:
    """Every pass over the training examples has an order of its own, from (seed, pass)."""
    training, testing = (~is_held_out).nonzero()[:, 0], is_held_out.nonzero()[:, 0]
    count, classes = len(training), described["settings"]["num_classes"]

    def examples(numbers: Tensor) -> Batch:
        return Batch({name: values[numbers] for name, values in arguments.items()}, labels[numbers])

    @functools.lru_cache(maxsize=16)
    def order(seed: int, number: int) -> Tensor:
        return training[torch.randperm(count, generator=generator_of(described["name"], seed, number))]

    def draw(seed: int, step: int, size: int) -> Batch:
        first = (step - 1) * size
        passes = range(first // count, (first + size - 1) // count + 1)
        start = first - passes[0] * count
        return examples(torch.cat([order(seed, number) for number in passes])[start : start + size])

    counts = [torch.bincount(labels[part], minlength=classes) for part in (training, testing)]
    return DataTask(blind=blind_loss(*counts), num_training=count, num_held_out=len(testing), draw=draw,
                    pick=lambda numbers: examples(testing[numbers]), **described)  # fmt: skip


# Packages of every CPython with a hundred docstrings and more; asyncio would add a third to the time of reading.
PACKAGES = ("email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
MOST_DOCUMENTS = 200  # of a package: the largest has three times as many as the smallest


def docs_task(*, length: int = 96) -> DataTask:
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
        {"tokens": byte_rows(documents, length), "mask": mask},
        torch.tensor([label for label, p in enumerate(kept) for _ in kept[p]]),
        torch.tensor([one_in(5, text) for text in documents]),
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


def digits_task() -> DataTask:
    # The file that sklearn.datasets.load_digits reads: 0.05 s, while importing that takes 1.0 to 1.6 s (version 1.9.1).
    require("the task digits", "digits", "sklearn")
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    packed = Path(found.origin).with_name("datasets").joinpath("data", "digits.csv.gz").read_bytes()
    rows = [line.split(b",") for line in gzip.decompress(packed).split()]
    values = torch.tensor([[float(value) for value in row] for row in rows])
    images = values[:, :-1].view(-1, 1, 8, 8)
    is_held_out = torch.tensor([one_in(5, b",".join(row[:-1])) for row in rows])
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


def written(day: datetime.date, form: str) -> bytes:
    month = MONTHS[day.month - 1]
    ending = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return form.format(day=day.day, nth=f"{day.day}{ending}", month=month, mon=month[:3], year=day.year,
                       weekday=WEEKDAYS[day.weekday()]).encode()  # fmt: skip


def dates_task() -> DataTask:
    """A day is trained on in all its forms or in none."""
    days = [datetime.date.fromordinal(n) for n in range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)]
    held_out = [day for day in days if one_in(10, day.isoformat().encode())]
    training = sorted(set(days) - set(held_out))
    fixed_forms = torch.randint(len(FORMATS), (len(held_out),), generator=generator_of("dates", "held out"))

    def examples(days: list[datetime.date], forms: Tensor) -> Batch:
        source = byte_rows([written(d, FORMATS[f]) for d, f in zip(days, forms.tolist(), strict=True)], LONGEST)
        targets = byte_rows([d.isoformat().encode() for d in days], 10)
        target = torch.cat((torch.full_like(targets[:, :1], BEGIN), targets[:, :-1]), 1)
        return Batch({"source": source, "target": target, "source_mask": source != 0}, targets)

    def draw(seed: int, step: int, size: int) -> Batch:
        generator = generator_of("dates", seed, step)
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
