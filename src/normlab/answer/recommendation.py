"""What to use, why, at what cost, and what that depends on: the sentences a verdict opens with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..intervals import FEWEST
from ..runs import Cell, Grid, Summary
from .metrics import METRICS
from .pairs import Pairs
from .phrases import (
    NAMED,
    Sentence,
    ahead,
    has_score,
    interval_of,
    joined,
    listed,
    mean_of,
    packed,
    scored,
    size_of,
    with_unit,
)

SIZES = ("dim", "num_layers", "num_heads", "batch_size")


def recommendation(answer: Summary, grid: Grid, pairs: Pairs) -> Iterator[Sentence]:
    able = [c for c in answer.cells if has_score(answer, c)]
    best = next((c for c in able if c.name == answer.best), None)
    if best is None:
        return
    n = max(scored(answer, c).n for c in able)
    few = n < FEWEST
    if answer.metric != "loss":
        title = METRICS[answer.metric].title
        yield (f"Ranked by {title[0]}, each cell at the rate that is best for its loss",
               f"按{title[1]}排名，每个组合取损失最低的学习率")  # fmt: skip
    yield _use(answer, grid, able, best, few)
    if few and len(grid.cells()) > 1:
        yield (f"With {n} seed{'s' * (n > 1)} nothing is decided: run at least {FEWEST} (--seeds)",
               f"只有 {n} 个种子，得不出定论：请至少用 {FEWEST} 个（--seeds）")  # fmt: skip
    if len(able) > 1 and not few:
        yield from _because(answer, able, best, pairs)
        yield from packed([*_cost(answer, able, best), *_besides(answer, able, best)])
    if len(grid.cells()) > 1:
        yield _depends(answer, grid)


def _use(answer: Summary, grid: Grid, able: list[Cell], best: Cell, few: bool) -> Sentence:
    x, rate, loss = best.name, f"{best.best_lr:g}", with_unit(mean_of(scored(answer, best)), answer)
    tied = [c.name for c in able if c.tied_with_best]
    if few or len(grid.cells()) == 1 or (len(able) == 1 and not answer.complete):
        (en, zh), end = interval_of(scored(answer, best)), _end(answer)
        lowest = (f"has the {end[0]} mean,", f"均值{end[1]}，为") if len(able) > 1 else ("has a mean of", "均值为")
        return f"{x} {lowest[0]} {loss[0]} ({en}) at rate {rate}", f"{x} {lowest[1]} {loss[1]}（{zh}），学习率 {rate}"
    if len(able) == 1:
        return (f"Use {x}: {loss[0]} at rate {rate}; no other cell trained with every seed at any rate",
                f"用 {x}：{loss[1]}，学习率 {rate}；其他组合没有一个学习率能让所有种子训练成功")  # fmt: skip
    if not tied:
        return (f"Use {x}: {loss[0]} at rate {rate}, told apart from every other cell",
                f"用 {x}：{loss[1]}，学习率 {rate}，与其他组合都分得出高下")  # fmt: skip
    if len(tied) == len(able) - 1 > 1:
        return (f"Use the cheapest of the {len(able)} cells: none is told apart from the {_end(answer)[0]}, {x}, {loss[0]} at rate {rate}",
                f"{len(able)} 个组合里用最省的：与{_end(answer)[1]}的 {x}（{loss[1]}，学习率 {rate}）都分不出高下")  # fmt: skip
    *names, last = tied[:NAMED] + ([f"{len(tied) - NAMED} more"] if len(tied) > NAMED else [])
    en, zh = "".join(f", {name}" for name in names) + f" or {last}", listed(tied)[1]
    how = "not told apart", "分不出高下"
    if all(c.behind_best is not None and c.behind_best.equal for c in able if c.tied_with_best):
        how = f"equal within {answer.margin:g}", f"相差不超过 {answer.margin:g}"
    return (f"Use {x} ({loss[0]} at rate {rate}){en}: {how[0]}",
            f"用 {x}（{loss[1]}，学习率 {rate}）或 {zh}：{how[1]}")  # fmt: skip


def _because(answer: Summary, able: list[Cell], best: Cell, pairs: Pairs) -> Iterator[Sentence]:
    """Against the baseline, and against the nearest cell that is told apart."""
    parts, x, base = [], best.name, answer.baseline
    lead, (sign, word) = best.difference, ahead(answer)
    if lead is not None and lead.low is not None:
        en, zh = size_of(lead, sign)
        if lead.decided:
            parts.append((f"{word[0]} than {base}, the baseline, by {en}", f"比基线 {base} {word[1]} {zh}"))
        else:
            parts.append(
                (f"ahead of {base}, the baseline, by {en}, which is undecided", f"领先基线 {base} {zh}，尚无定论")
            )
    apart = [
        c
        for c in able
        if c.name not in (x, base) and c.behind_best and c.behind_best.decided and c.behind_best.mean * sign < 0
    ]
    if apart:
        nearest = apart[0]
        assert nearest.behind_best is not None
        en, zh = size_of(nearest.behind_best, -sign)
        parts.append(
            (
                f"{word[0]} than {nearest.name}, the nearest cell told apart, by {en}",
                f"比分得出高下的最近者 {nearest.name} {word[1]} {zh}",
            )
        )
    if parts:
        en, zh = joined(parts, ", and ", "，")
        if pairs.count == 1:
            yield f"{x} is {en}; 95 % interval", f"{x} {zh}；95 % 置信区间"
        else:
            yield (f"{x} is {en}; 95 % intervals, right for all {pairs.count} pairs together",
                   f"{x} {zh}；95 % 置信区间对全部 {pairs.count} 对同时成立")  # fmt: skip
    if base not in [c.name for c in able]:
        yield f"{base}, the baseline, has no mean to compare with", f"基线 {base} 没有可比的均值"


BESIDES = {"accuracy": ".3f", "gap": "+.3f", "steps_to_target": ".0f"}  # what is told of the best cell beside its loss


def _besides(answer: Summary, able: list[Cell], best: Cell) -> Iterator[Sentence]:
    """Accuracy, the gap between training and held-out loss and the steps to a common target, beside the baseline's where that is another."""
    base = next((c for c in able if c.name == answer.baseline and c.name != best.name), None)
    parts: list[Sentence] = []
    for name, form in BESIDES.items():
        if name == answer.metric or name not in best.figures:
            continue
        own, title = f"{best.figures[name].mean:{form}}", METRICS[name].title
        its = f"{base.figures[name].mean:{form}}" if base is not None and name in base.figures else None
        en, zh = (own, own) if its is None else (f"{own} (it: {its})", f"{own}（它是 {its}）")
        parts.append((f"{title[0]} {en}", f"{title[1]} {zh}"))
    if parts:
        en, zh = joined(parts, ", ", "，")
        whom = ("", "") if base is None else (f" against {base.name}", f"，与 {base.name} 相比")
        yield f"Besides, {best.name}{whom[0]}: {en}", f"此外，{best.name}{whom[1]}：{zh}"


def _end(answer: Summary) -> Sentence:
    return ("lowest", "最低") if METRICS[answer.metric].lower else ("highest", "最高")


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


EQUALS = {"samples": "样本", "tokens": "词元", "seconds": "训练时间"}  # what cells are given alike, other than steps


def _steps(answer: Summary, grid: Grid) -> Sentence | None:
    found = [c.steps for c in answer.cells if c.steps is not None]
    if not found:
        return None
    low, high = f"{min(found):g}", f"{max(found):g}"
    en, zh = (f"{low} steps", f"{low} 步") if low == high else (f"{low} to {high} steps", f"{low} 到 {high} 步")
    if grid.equal in EQUALS and grid.steps:
        return f"equal {grid.equal} ({en})", f"{EQUALS[grid.equal]}相等（{zh}）"
    return en, zh


def _depends(answer: Summary, grid: Grid) -> Sentence:
    """What was held fixed: elsewhere the order may differ."""
    model = grid.base.get("model")
    settings = {**(model if isinstance(model, Mapping) else {}), **grid.base}
    facts: list[Sentence] = []
    if answer.task:
        facts.append((f"task {answer.task}", f"任务 {answer.task}"))
    if (steps := _steps(answer, grid)) is not None:
        facts.append(steps)
    if sizes := [t.parameters for t in answer.trials if t.parameters is not None]:
        low, high = f"{min(sizes):,.0f}", f"{max(sizes):,.0f}"
        span = (low, low) if low == high else (f"{low} to {high}", f"{low} 到 {high}")
        facts.append((f"{span[0]} parameters", f"{span[1]} 个参数"))
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
