"""What probes saw inside the trials of a cell, and in what the best cell differs from another there.

Each trait is one number per trial, from the last third of its recorded steps (medians, so that one odd batch says nothing):

    gradient   |dL/d stream| behind the first block / behind the last: 1 is even, far below 1 vanishes on its way down
    stream     rms of the stream behind the last block / behind the first: 1 keeps its size
    turn       mean over blocks of the angle by which a block turns the stream, in degrees
    gap        rms(y - y with running statistics) / rms(y), mean over norms that have them: how different evaluation is

Two cells differ in a trait if the ranges of their seeds lie apart, by more than the factor (or degrees) in APART. What differs is seen
beside the difference in loss; that it is its cause is not shown by it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import RunUnreadable
from ..runs import Cell, Run, Series, Summary, Trait, TrialResult, trial_folder
from .phrases import Sentence, joined

QUANTITIES = ("stream_grad", "stream_rms", "angle", "inference_gap")
FEWEST = 3  # recorded steps, for a third of them
MOST_RUNS = 240  # opened for one answer, one seed of every cell before the second of any
APART = {"gradient": 1.5, "stream": 1.5, "turn": 4.0, "gap": 1.5}  # a factor; of turn, degrees
LARGE_GAP = 0.1  # of evaluation: told even where the other cell has no running statistics

Look = Callable[[TrialResult], Mapping[str, float]]  # a trial's traits; nothing where they are not known


def looking_into(folder: Path) -> Look:
    """Traits from the readings of the sweep in this folder, read when they are asked for."""
    opened = 0

    def look(trial: TrialResult) -> Mapping[str, float]:
        nonlocal opened
        opened += 1
        if opened > MOST_RUNS:
            return {}
        try:
            return traits(Run(folder / trial.folder if trial.folder else trial_folder(folder, str(trial.name))))
        except (RunUnreadable, OSError):
            return {}

    return look


def traits(run: Run) -> dict[str, float]:
    """Those that this run's readings give."""
    table = run.table(*QUANTITIES)
    sites = run.info.get("sites")
    blocks = [b for b in sites.get("blocks") or () if isinstance(b, str)] if isinstance(sites, Mapping) else []
    found: dict[str, float | None] = {}
    if len(blocks) > 1:
        stack = [
            b for b in blocks if b.rpartition(".")[0] == blocks[-1].rpartition(".")[0]
        ]  # the one next to the answer
        first, last = stack[0], stack[-1]
        found["gradient"] = _late(_ratio(table.get("stream_grad", {}), first, last))
        found["stream"] = _late(_ratio(table.get("stream_rms", {}), last, first))
        turns = [_late(_values(series)) for site, series in table.get("angle", {}).items() if site in stack]
        found["turn"] = (
            None if None in turns or not turns else 180 * statistics.fmean(t for t in turns if t is not None)
        )
    gaps = [g for series in table.get("inference_gap", {}).values() if (g := _late(_values(series))) is not None]
    found["gap"] = statistics.fmean(gaps) if gaps else None
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def _values(series: Series) -> list[float]:
    return [v for v in series.values if math.isfinite(v)]


def _ratio(sites: Mapping[str, Series], over: str, under: str) -> list[float]:
    """At the steps that both have."""
    if over not in sites or under not in sites:
        return []
    below = dict(zip(sites[under].steps, sites[under].values, strict=True))
    pairs = zip(sites[over].steps, sites[over].values, strict=True)
    ratios = [v / below[step] for step, v in pairs if below.get(step, 0.0) > 0]
    return [r for r in ratios if math.isfinite(r)]


def _late(values: Sequence[float]) -> float | None:
    return statistics.median(values[-(len(values) // 3) :]) if len(values) >= FEWEST else None


def traits_of(trials: Iterable[TrialResult], look: Look) -> dict[str, Trait]:
    """Mean, lowest and highest over the trials of a cell."""
    each = [look(trial) for trial in trials]
    names = dict.fromkeys(name for found in each for name in found)
    found = {}
    for name in names:
        values = [f[name] for f in each if name in f]
        found[name] = Trait(mean=statistics.fmean(values), low=min(values), high=max(values), n=len(values))
    return found


# ---- in words --------------------------------------------------------------------------------------------------------


def why(answer: Summary) -> Iterator[Sentence]:
    """What differs inside between the best cell and the baseline, and between it and the farthest cell that is decidedly worse."""
    cells = {c.name: c for c in answer.cells}
    best = cells.get(str(answer.best))
    if best is None:
        return
    behind = [c for c in answer.cells if c.behind_best and c.behind_best.decided and c.name != best.name]
    wanted = [cells.get(str(answer.baseline)), behind[-1] if behind else None]
    others = {c.name: c for c in wanted if c is not None and c.name != best.name}
    told = {name: dict(_differing(name, best, others.values())) for name in SAID}
    named = [cell for cell in others if any(cell in those for those in told.values())]
    if named:
        en, zh = joined([_of_trait(name, best, those, named) for name, those in told.items() if those])
        yield (f"What the probes show to differ between {best.name} and {' or '.join(named)}: {en}",
               f"探针看到 {best.name} 与 {'、'.join(named)} 的不同：{zh}")  # fmt: skip


def _differing(name: str, best: Cell, others: Iterable[Cell]) -> Iterator[tuple[str, Trait]]:
    """(cell, its trait) of those that differ from the best in it. One without running statistics differs from a cell in which they matter."""
    a = best.traits.get(name)
    for other in others:
        b = other.traits.get(name)
        if b is None:
            continue
        if (name == "gap" and b.mean >= LARGE_GAP) if a is None else _apart(name, a, b):
            yield other.name, b


def _of_trait(name: str, best: Cell, those: Mapping[str, Trait], named: Sequence[str]) -> Sentence:
    """The best cell's number against those of the others, which are named again where not all of them differ in it."""
    en, zh, form = SAID[name]
    numbers = [f"{trait.mean:{form}}" for trait in those.values()]
    all_differ = list(those) == list(named) and name in best.traits
    where = ("", "") if all_differ else (f" in {' and '.join(those)}", f"（{'、'.join(those)}）")
    their = " and ".join(numbers) + where[0], "、".join(numbers) + where[1]
    if name not in best.traits:
        return f"{en} {their[0]}", f"{zh} {their[1]}"
    own = f"{best.traits[name].mean:{form}}"
    return f"{en} {own} against {their[0]}", f"{zh} {own} 对 {their[1]}"


SAID = {
    "gradient": ("gradient of the stream, first block over last", "残差流的梯度，首块比末块", ".2g"),
    "stream": ("size of the stream, last block over first", "残差流的大小，末块比首块", ".2g"),
    "turn": ("turn of the stream per block in degrees", "每块转动残差流的角度（度）", ".2g"),
    "gap": (
        "change of a norm's output from batch to running statistics",
        "归一化输出从批统计量换成运行统计量的变化",
        ".2g",
    ),
}


def _apart(name: str, a: Trait, b: Trait) -> bool:
    low, high = (a, b) if a.mean < b.mean else (b, a)
    if low.high >= high.low:
        return False
    if name == "turn":
        return high.mean - low.mean >= APART[name]
    return low.mean > 0 and high.mean / low.mean >= APART[name]
