"""What to use, why, at what cost, and what that depends on: the sentences a verdict opens with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..intervals import FEWEST
from ..runs import Cell, Grid, Summary
from .pairs import Pairs
from .phrases import NAMED, Sentence, interval_of, joined, listed, mean_of, size_of, with_unit

SIZES = ("dim", "num_layers", "num_heads", "batch_size")


def recommendation(answer: Summary, grid: Grid, pairs: Pairs) -> Iterator[Sentence]:
    able = [c for c in answer.cells if c.mean is not None]
    best = next((c for c in able if c.name == answer.best), None)
    if best is None:
        return
    few = max(c.n for c in able) < FEWEST
    yield _use(answer, grid, able, best, few)
    if few and len(grid.cells()) > 1:
        n = max(c.n for c in able)
        yield (f"With {n} seed{'s' * (n > 1)} nothing is decided: run at least {FEWEST} (--seeds)",
               f"只有 {n} 个种子，得不出定论：请至少用 {FEWEST} 个（--seeds）")  # fmt: skip
    if len(able) > 1 and not few:
        yield from _because(answer, able, best, pairs)
        yield from _cost(answer, able, best)
    if len(grid.cells()) > 1:
        yield _depends(answer, grid)


def _use(answer: Summary, grid: Grid, able: list[Cell], best: Cell, few: bool) -> Sentence:
    x, rate, loss = best.name, f"{best.best_lr:g}", with_unit(mean_of(best), answer.unit)
    tied = [c.name for c in able if c.tied_with_best]
    if few or len(grid.cells()) == 1 or (len(able) == 1 and not answer.complete):
        en, zh = interval_of(best)
        lowest = ("has the lowest mean,", "均值最低，为") if len(able) > 1 else ("has a mean of", "均值为")
        return f"{x} {lowest[0]} {loss[0]} ({en}) at rate {rate}", f"{x} {lowest[1]} {loss[1]}（{zh}），学习率 {rate}"
    if len(able) == 1:
        return (f"Use {x}: {loss[0]} at rate {rate}; no other cell trained with every seed at any rate",
                f"用 {x}：{loss[1]}，学习率 {rate}；其他组合没有一个学习率能让所有种子训练成功")  # fmt: skip
    if not tied:
        return (f"Use {x}: {loss[0]} at rate {rate}, told apart from every other cell",
                f"用 {x}：{loss[1]}，学习率 {rate}，与其他组合都分得出高下")  # fmt: skip
    if len(tied) == len(able) - 1 > 1:
        return (f"Use the cheapest of the {len(able)} cells: none is told apart from the lowest, {x}, {loss[0]} at rate {rate}",
                f"{len(able)} 个组合里用最省的：与最低的 {x}（{loss[1]}，学习率 {rate}）都分不出高下")  # fmt: skip
    *names, last = tied[:NAMED] + ([f"{len(tied) - NAMED} more"] if len(tied) > NAMED else [])
    en, zh = "".join(f", {name}" for name in names) + f" or {last}", listed(tied)[1]
    return (f"Use {x} ({loss[0]} at rate {rate}){en}: not told apart",
            f"用 {x}（{loss[1]}，学习率 {rate}）或 {zh}：分不出高下")  # fmt: skip


def _because(answer: Summary, able: list[Cell], best: Cell, pairs: Pairs) -> Iterator[Sentence]:
    """Against the baseline, and against the nearest cell that is told apart."""
    parts, x, base = [], best.name, answer.baseline
    lead = best.difference
    if lead is not None and lead.low is not None:
        en, zh = size_of(lead, -1)
        if lead.decided:
            parts.append((f"lower than {base}, the baseline, by {en}", f"比基线 {base} 低 {zh}"))
        else:
            parts.append(
                (f"ahead of {base}, the baseline, by {en}, which is undecided", f"领先基线 {base} {zh}，尚无定论")
            )
    apart = [
        c
        for c in able
        if c.name not in (x, base) and c.behind_best and c.behind_best.decided and c.behind_best.mean > 0
    ]
    if apart:
        nearest = apart[0]
        assert nearest.behind_best is not None
        en, zh = size_of(nearest.behind_best)
        parts.append(
            (
                f"lower than {nearest.name}, the nearest cell told apart, by {en}",
                f"比分得出高下的最近者 {nearest.name} 低 {zh}",
            )
        )
    if parts:
        en, zh = joined(parts, ", and ", "，")
        yield (f"{x} is {en}; 95 % intervals, right for all {pairs.count} pairs together",
               f"{x} {zh}；95 % 置信区间对全部 {pairs.count} 对同时成立")  # fmt: skip
    if base not in [c.name for c in able]:
        yield f"{base}, the baseline, has no mean to compare with", f"基线 {base} 没有可比的均值"


def _cost(answer: Summary, able: list[Cell], best: Cell) -> Iterator[Sentence]:
    """Speed, memory and the stable range, relative to the baseline where that is another cell."""
    base = next((c for c in able if c.name == answer.baseline and c.name != best.name), None)
    parts: list[Sentence] = []
    if best.tokens_per_second is not None:
        if base is not None and base.tokens_per_second:
            share = f"{best.tokens_per_second / base.tokens_per_second:.2f}"
            parts.append((f"{share} times its tokens/s", f"词元/秒是它的 {share} 倍"))
        elif base is None:
            speed = f"{best.tokens_per_second:.0f}"
            parts.append((f"{speed} tokens/s", f"每秒 {speed} 个词元"))
    if best.peak_memory is not None:
        if base is not None and base.peak_memory:
            share = f"{best.peak_memory / base.peak_memory:.2f}"
            parts.append((f"{share} times its memory", f"内存是它的 {share} 倍"))
        elif base is None:
            memory = f"{best.peak_memory / 2**20:.0f}"
            parts.append((f"{memory} MiB", f"内存 {memory} MiB"))
    if best.largest_stable_lr is not None:
        own = _stable(best)
        if base is not None and base.largest_stable_lr is not None:
            its = _stable(base)
            parts.append((f"stable up to {own[0]} (it: {its[0]})", f"稳定上限 {own[1]}（它是 {its[1]}）"))
        else:
            parts.append((f"stable up to {own[0]}", f"稳定上限 {own[1]}"))
    if parts:
        en, zh = joined(parts, ", ", "，")
        if base is None:
            yield f"Cost of {best.name}: {en}", f"{best.name} 的代价：{zh}"
        else:
            yield f"Cost of {best.name} against {base.name}: {en}", f"{best.name} 的代价，与 {base.name} 相比：{zh}"


def _stable(cell: Cell) -> Sentence:
    rate = f"{cell.largest_stable_lr:g}"
    return (f"{rate} or more", f"{rate} 或更高") if cell.stable_up_to_edge else (rate, rate)


def _depends(answer: Summary, grid: Grid) -> Sentence:
    """What was held fixed: elsewhere the order may differ."""
    model = grid.base.get("model")
    settings = {**(model if isinstance(model, Mapping) else {}), **grid.base}
    facts: list[Sentence] = []
    if answer.task:
        facts.append((f"task {answer.task}", f"任务 {answer.task}"))
    if answer.steps is not None:
        facts.append((f"{answer.steps:g} steps", f"{answer.steps:g} 步"))
    for name in SIZES:
        if name not in grid.axes and isinstance(settings.get(name), int):
            facts.append((f"{name} {settings[name]}",) * 2)
    low, high = f"{grid.rates[0]:g}", f"{grid.rates[-1]:g}"
    facts.append(
        (f"rate {low}", f"学习率 {low}") if low == high else (f"rates {low} to {high}", f"学习率 {low} 到 {high}")
    )
    n, first = len(grid.seeds), grid.first_seeds
    if first is None or first == n or low == high:
        facts.append((f"{n} seed{'s' * (n > 1)}", f"{n} 个种子"))
    else:
        facts.append(
            (
                f"{first} seed{'s' * (first > 1)} at every rate, {n} at the best",
                f"每个学习率 {first} 个种子，最佳者 {n} 个",
            )
        )
    en, zh = joined(facts, ", ", "，")
    return f"Holds for {en}", f"适用范围：{zh}"
