"""Numbers to words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ..intervals import MOST_SEEDS
from ..runs import OUTCOMES, Cell, Difference, Grid, Summary, Verdict, plain
from .numbers import BROKEN, FEWEST, AtBest, decide, loss_of

SENTENCES = 8
NAMED = 4  # cells named in one sentence; the others are counted


Sentence = tuple[str, str]  # English, Chinese: the same facts, without the full stop
UNITS = {"nats per byte": "奈特/字节", "nats per document": "奈特/文档", "nats per image": "奈特/图像",
         "nats per character": "奈特/字符", "own loss": "（自定损失）", "loss": "（损失）"}  # fmt: skip


def verdict(answer: Summary, grid: Grid, at_best: AtBest, named: bool) -> Verdict:
    able = [c for c in answer.cells if c.mean is not None]
    sentences = [*_of_progress(answer, grid), *(_of_best(answer, grid, able) if able else ())]
    if able and max(c.n for c in able) > 1:
        sentences += [*_of_differences(answer, able)]
    sentences += _of_rates(answer, grid)
    if grid.refused:
        en, zh = _list([r.name for r in grid.refused])
        reason = grid.refused[0].reason.rstrip(".")
        sentences.append((f"Refused: {en} ({reason})", f"拒绝运行：{zh}（{reason}）"))
    elif named and answer.complete and len(able) == len(grid.cells()) and len(sentences) < SENTENCES:
        sentences += _of_axes(answer, grid, at_best)
    return Verdict(en=tuple(en + "." for en, _ in sentences), zh=tuple(zh + "。" for _, zh in sentences))


def _figures(of: Cell | Difference, sign: int = 1) -> tuple[str, str, str]:
    """(mean, and in both languages its interval and seeds), to two digits of the interval's half width."""
    assert of.mean is not None
    if of.low is None or of.high is None:
        return f"{sign * of.mean:.4f}", "1 seed", "1 个种子"
    low, high = sorted((sign * of.low, sign * of.high))
    digits = min(max(1 - math.floor(math.log10((high - low) / 2)), 0), 6) if high > low else 4
    mean, least, most = (f"{v:.{digits}f}" for v in (sign * of.mean, low, high))
    return mean, f"95 % interval {least} to {most}, {of.n} seeds", f"95 % 置信区间 {least} 到 {most}，{of.n} 个种子"


def _list(words: Sequence[str]) -> Sentence:
    rest = len(words) - NAMED
    more = (f" and {rest} more", f" 及另外 {rest} 个") if rest > 0 else ("", "")
    return ", ".join(words[:NAMED]) + more[0], "、".join(words[:NAMED]) + more[1]


def _of_progress(answer: Summary, grid: Grid) -> Iterator[Sentence]:
    ended, planned = answer.trials, grid.planned
    counts = {o: sum(t.outcome == o for t in ended) for o in OUTCOMES}
    if not ended:
        yield "No trial has ended: there is nothing to compare", "还没有试验结束：没有可比的结果"
    elif not answer.complete:
        en = f"Partial answer: {len(ended)} of {planned} trials have ended"
        zh = f"部分结论：{planned} 次试验中已结束 {len(ended)} 次"
        if counts["failed"]:
            first = next(t for t in ended if t.outcome == "failed")
            why = f"{first.name}: {str(first.error)[:120].rstrip('.')}"
            en, zh = f"{en}, {counts['failed']} failed ({why})", f"{zh}，{counts['failed']} 次出错（{why}）"
        yield en, zh
    broke, short = sum(counts[o] for o in BROKEN), counts["untrained"]
    if all(c.mean is None for c in answer.cells) and broke + short:
        advice = [("lower --lr", "请降低 --lr")] * (broke > 0) + [("give more --steps", "请增加 --steps")] * (short > 0)
        yield (f"No cell trained with every seed at any rate: of {len(ended)} trials {broke} diverged or collapsed, {short} were still "
               f"falling; {', '.join(en for en, _ in advice)}",
               f"没有哪个组合在某个学习率下所有种子都训练成功：{len(ended)} 次试验中 {broke} 次发散或坍缩，{short} 次损失还在降；"
               f"{'，'.join(zh for _, zh in advice)}")  # fmt: skip


def _of_best(answer: Summary, grid: Grid, able: Sequence[Cell]) -> Iterator[Sentence]:
    top, baseline, unit = able[0], answer.baseline, answer.unit or "loss"
    name, rate, lead = top.name, f"{top.best_lr:g}", top.difference
    if lead and lead.decided and lead.mean < 0:
        by, en, zh = _figures(lead, -1)
        at = ("each at its best rate", "各取自己的最佳学习率")
        if len(grid.rates) == 1:
            at = (f"at rate {rate}", f"学习率 {rate}")
        yield (f"{name} beats {baseline} by {by} {unit} ({en}), {at[0]}",
               f"{name} 优于 {baseline}，低 {by} {UNITS.get(unit, unit)}（{zh}），{at[1]}")  # fmt: skip
    else:
        mean, en, zh = _figures(top)
        lowest = ("has the lowest mean,", "均值最低，为") if len(able) > 1 else ("has a mean of", "均值为")
        en = f"{name} {lowest[0]} {mean} {unit} ({en}) at rate {rate}"
        zh = f"{name} {lowest[1]} {mean} {UNITS.get(unit, unit)}（{zh}），学习率 {rate}"
        if lead and lead.n > 1 and not lead.decided:
            by, by_en, by_zh = _figures(lead, -1)
            en += f"; its lead over {baseline}, {by} ({by_en}), is not decided"
            zh += f"；它比 {baseline} 领先 {by}（{by_zh}），尚无定论"
        elif baseline not in [c.name for c in able]:
            en, zh = f"{en}; {baseline} has none to compare with", f"{zh}；{baseline} 没有可比的均值"
        yield en, zh
    if len(grid.cells()) > 1 and max(c.n for c in able) == 1:
        yield (f"With 1 seed nothing is decided: run at least {FEWEST} (--seeds)",
               f"只有 1 个种子，得不出定论：请至少用 {FEWEST} 个（--seeds）")  # fmt: skip


def _of_differences(answer: Summary, able: Sequence[Cell]) -> Iterator[Sentence]:
    top, baseline = able[0].name, answer.baseline
    tied = [c.name for c in able if c.tied_with_best and c.name != baseline]
    if tied and top != baseline:
        en, zh = _list(tied)
        yield f"Not told apart from {top}: {en}", f"与 {top} 分不出高下：{zh}"
    found = {c.name: c.difference for c in able if c.difference}
    decided = {n: f"{n} {'+' if d.mean > 0 else ''}{_figures(d)[0]}" for n, d in found.items() if d.decided}
    parts = []
    for sign, words in ((-1, ("better", "更好")), (1, ("worse", "更差"))):
        if those := [text for n, text in decided.items() if found[n].mean * sign > 0 and (n, sign) != (top, -1)]:
            en, zh = _list(those)
            parts.append((f"{words[0]} than {baseline}: {en}", f"比 {baseline} {words[1]}：{zh}"))
    if parts:
        yield "Decidedly " + "; ".join(en for en, _ in parts), "有定论：" + "；".join(zh for _, zh in parts)
    open_ = {n: d for n, d in found.items() if not d.decided}
    if open_:
        en, zh = _list(list(open_))
        en, zh = f"Undecided against {baseline}: {en}", f"与 {baseline} 相比尚无定论：{zh}"
        if max(d.n for d in open_.values()) < FEWEST:
            en, zh = f"{en} (fewer than {FEWEST} seeds decide nothing)", f"{zh}（少于 {FEWEST} 个种子不下定论）"
        more = sorted((d.seeds_needed - d.n, n) for n, d in open_.items() if d.seeds_needed)
        if more:
            ends = more if len(more) < 3 else (more[0], more[-1])
            amounts = []
            for m, n in ends:
                about = ("over", "超过") if open_[n].seeds_needed == MOST_SEEDS else ("about", "约")
                amounts.append((f"{about[0]} {m} for {n}", f"{n} {about[1]} {m} 个"))
            en += "; more seeds to decide: " + ", ".join(en for en, _ in amounts)
            zh += "；要有定论还需种子：" + "，".join(zh for _, zh in amounts)
        yield en, zh


def _of_rates(answer: Summary, grid: Grid) -> Iterator[Sentence]:
    above: dict[float, list[str]] = {}
    never = [c for c in answer.cells if c.mean is None and any(r.untrained or r.count(*BROKEN) for r in c.rates)]
    for cell in answer.cells:
        higher = [r.lr for r in cell.rates if cell.best_lr is not None and r.lr > cell.best_lr and r.count(*BROKEN)]
        if higher:
            above.setdefault(grid.rates[grid.rates.index(higher[0]) - 1], []).append(cell.name)
    parts = [(f"above {lr:g}: {_list(above[lr])[0]}", f"高于 {lr:g}：{_list(above[lr])[1]}") for lr in sorted(above)]
    clauses = []
    if parts:
        clauses.append(
            ("Training breaks " + "; ".join(en for en, _ in parts), "训练失稳：" + "；".join(zh for _, zh in parts))
        )
    if never and len(never) < len(answer.cells):
        en, zh = _list([c.name for c in never])
        falling = any(r.untrained for c in never for r in c.rates)
        more = (" (losses still falling: more --steps)", "（损失还在降：请增加 --steps）") if falling else ("", "")
        clauses.append((f"No rate trained every seed: {en}{more[0]}", f"没有学习率能让所有种子训练成功：{zh}{more[1]}"))
    if clauses:
        yield ". ".join(en for en, _ in clauses), "。".join(zh for _, zh in clauses)
    if len(grid.rates) == 1 and sum(c.mean is not None for c in answer.cells) > 1:
        yield (f"One rate only, {grid.rates[0]:g}: at others the order may differ (--lr)",
               f"只有一个学习率 {grid.rates[0]:g}：换成别的学习率，名次可能不同（--lr）")  # fmt: skip
    edges = {words: [c.name for c in answer.cells if c.best_at_edge == edge]
             for edge, words in (("low", ("lowest", "最低")), ("high", ("highest", "最高")))}  # fmt: skip
    if any(edges.values()):
        en = "; ".join(f"{w[0]} rate: {_list(names)[0]}" for w, names in edges.items() if names)
        zh = "；".join(f"{w[1]}学习率：{_list(names)[1]}" for w, names in edges.items() if names)
        yield (f"Best at the edge of the grid, the true best may lie outside (widen --lr): {en}",
               f"最佳学习率在网格边缘，真正的最佳可能在网格之外（请扩大 --lr）：{zh}")  # fmt: skip


def _of_axes(answer: Summary, grid: Grid, at_best: AtBest) -> Iterator[Sentence]:
    """What one axis does on average over the others, where decided.

    Seed by seed, after the mean over the other axes: the cells of one seed are no independent draws.
    """
    cells = grid.cells()
    base = cells[str(answer.baseline)]
    values = {axis: list({plain(c[axis]): c[axis] for c in cells.values()}.values()) for axis in base}
    if sum(len(v) > 1 for v in values.values()) < 2:
        return
    keys = [(axis, value) for axis in base for value in values[axis] if value != base[axis]]

    def side(axis: str, value: Any) -> list[float]:
        names = [n for n, c in cells.items() if c[axis] == value]
        return [statistics.fmean(loss_of(at_best[n][seed]) for n in names) for seed in grid.seeds]

    parts = []
    found = decide([list(zip(side(axis, value), side(axis, base[axis]), strict=True)) for axis, value in keys])
    for (axis, value), d in zip(keys, found, strict=True):
        if d and d.decided:
            sign = 1 if d.mean > 0 else -1
            (by, en, zh), words = _figures(d, sign), ("worse", "差") if sign > 0 else ("better", "好")
            parts.append((f"{axis} {plain(value)} is {words[0]} than {plain(base[axis])} by {by} ({en})",
                          f"{axis} {plain(value)} 比 {plain(base[axis])} {words[1]} {by}（{zh}）"))  # fmt: skip
    if parts:
        yield ("Averaged over the other axes: " + "; ".join(en for en, _ in parts[:NAMED]),
               "对其余各轴取平均：" + "；".join(zh for _, zh in parts[:NAMED]))  # fmt: skip
