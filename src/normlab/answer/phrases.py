"""Facts in two languages: how a number, an interval, a list of cells and a number of seeds read. No full stops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ..intervals import MOST_SEEDS
from ..runs import Cell, Difference, Estimate, Summary
from .metrics import METRICS

NAMED = 4  # cells named in one sentence; the others are counted
LONGEST = 440  # characters of a sentence, Chinese ones counted twice: what is read at one go

Sentence = tuple[str, str]  # English, Chinese: the same facts
UNITS = {"nats per byte": "奈特/字节", "nats per document": "奈特/文档", "nats per image": "奈特/图像",
         "nats per character": "奈特/字符", "own loss": "（自定损失）", "loss": "（损失）"}  # fmt: skip


def with_unit(value: str, answer: Summary) -> Sentence:
    """In the unit of what is ranked."""
    own = METRICS[answer.metric].unit
    if own is not None:
        return f"{value} {own[0]}".rstrip(), f"{value} {own[1]}".rstrip()
    unit = answer.unit or "loss"
    return f"{value} {unit}", f"{value} {UNITS.get(unit, unit)}"


def scored(answer: Summary, cell: Cell) -> Cell | Estimate:
    """What the cell is ranked by, with its interval."""
    return cell if answer.metric == "loss" else cell.figures[answer.metric]


def has_score(answer: Summary, cell: Cell) -> bool:
    return cell.mean is not None and (answer.metric == "loss" or answer.metric in cell.figures)


def ahead(answer: Summary) -> tuple[int, Sentence]:
    """(sign of a difference that is better, the word for it)."""
    return (-1, ("lower", "低")) if METRICS[answer.metric].lower else (1, ("higher", "高"))


def mean_of(cell: Cell | Estimate) -> str:
    """To two digits of the half width of its interval."""
    assert cell.mean is not None
    half = 0.0 if cell.low is None or cell.high is None else (cell.high - cell.low) / 2
    return f"{cell.mean:.{min(max(1 - math.floor(math.log10(half)), 0), 6) if half > 0 else 4}f}"


def interval_of(cell: Cell | Estimate) -> Sentence:
    if cell.low is None or cell.high is None:
        return "1 seed", "1 个种子"
    digits = len(mean_of(cell).partition(".")[2])
    ends = f"{cell.low:.{digits}f}", f"{cell.high:.{digits}f}"
    return (
        f"95 % interval {ends[0]} to {ends[1]}, {cell.n} seeds",
        f"95 % 置信区间 {ends[0]} 到 {ends[1]}，{cell.n} 个种子",
    )


def size_of(of: Difference, sign: int = 1) -> Sentence:
    """The difference and, in brackets, its interval."""
    mean = f"{sign * of.mean:.{of.decimals}f}"
    if of.low is None or of.high is None:
        return mean, mean
    low, high = (f"{v:.{of.decimals}f}" for v in sorted((sign * of.low, sign * of.high)))
    return f"{mean} ({low} to {high})", f"{mean}（{low} 到 {high}）"


def signed(name: str, of: Difference) -> str:
    return f"{name} {of.mean:+.{of.decimals}f}"


def listed(words: Sequence[str]) -> Sentence:
    rest = len(words) - NAMED
    if rest > 0:
        return ", ".join(words[:NAMED]) + f" and {rest} more", "、".join(words[:NAMED]) + f" 及另外 {rest} 个"
    return ", ".join(words), "、".join(words)


def joined(parts: Sequence[Sentence], en: str = "; ", zh: str = "；") -> Sentence:
    return en.join(part[0] for part in parts), zh.join(part[1] for part in parts)


def fits(sentence: Sentence) -> bool:
    return max(len(sentence[0]), 2 * len(sentence[1])) <= LONGEST


def packed(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Of one kind each, as few sentences as hold them: one after the other while they fit. Each begins with a word of ours, no cell's name."""
    held: Sentence | None = None
    for en, zh in sentences:
        if held is not None:
            both = f"{held[0]}; {en[:1].lower()}{en[1:]}", f"{held[1]}；{zh}"
            if fits(both):
                held = both
                continue
            yield held
        held = en, zh
    if held is not None:
        yield held


def seeds_of(of: Difference) -> Sentence:
    """How many would decide, with a range: three seeds say little about the spread."""
    if of.seeds_needed == MOST_SEEDS:
        return f"over {MOST_SEEDS}", f"超过 {MOST_SEEDS} 个"
    if of.seeds_low is None or of.seeds_high is None:
        return f"about {of.seeds_needed}", f"约 {of.seeds_needed} 个"
    over = of.seeds_high == MOST_SEEDS
    return (f"about {of.seeds_needed} ({of.seeds_low} to {'over ' * over}{of.seeds_high})",
            f"约 {of.seeds_needed} 个（{of.seeds_low} 到 {of.seeds_high}{' 以上' * over}）")  # fmt: skip
