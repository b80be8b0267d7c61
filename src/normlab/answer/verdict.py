"""Numbers to words: what to use, averages over axes, what is decided, what is not and what would decide it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from ..intervals import FEWEST
from ..runs import OUTCOMES, Difference, Grid, Summary, TrialResult, Verdict, in_chinese, plain, same
from .chosen import sentences as chosen
from .inside import why
from .pairs import Pairs
from .phrases import NAMED, Sentence, ahead, fits, joined, listed, packed, seeds_of, signed, size_of
from .recommendation import recommendation
from .stages import BROKEN


def verdict(answer: Summary, grid: Grid, pairs: Pairs) -> Verdict:
    sentences = [*_of_progress(answer, grid), *recommendation(answer, grid, pairs)]
    sentences += [*_of_axes(answer, grid, pairs), *why(answer), *packed(_of_decided(answer))]
    sentences += [*packed([*_of_open(answer), *_of_equal(answer)]), *packed(_of_rates(answer, grid))]
    sentences += [*_of_findings(answer), *packed(_of_choices(answer)), *_of_looks(answer, grid)]
    if grid.refused:
        en, zh = listed([r.name for r in grid.refused])
        first = grid.refused[0]
        reason = first.reason.rstrip("."), (first.reason_zh or first.reason).rstrip(".。")
        sentences.append((f"Refused: {en} ({reason[0]})", f"拒绝运行：{zh}（{reason[1]}）"))
    return Verdict(en=tuple(en + "." for en, _ in sentences), zh=tuple(zh + "。" for _, zh in sentences))


def _of_progress(answer: Summary, grid: Grid) -> Iterator[Sentence]:
    ended, planned = answer.trials, answer.planned
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


def _against(answer: Summary) -> Iterator[tuple[str, Mapping[str, Difference]]]:
    """(a cell, the differences from it): the best, then the baseline if that is another."""
    if answer.best is not None:
        yield answer.best, {c.name: c.behind_best for c in answer.cells if c.behind_best}
    if answer.baseline is not None and answer.baseline != answer.best:
        its = {c.name: c.difference for c in answer.cells if c.difference and c.name != answer.best}
        yield answer.baseline, its  # with the best it was compared above


def _of_decided(answer: Summary) -> Iterator[Sentence]:
    for reference, found in _against(answer):
        parts = []
        good, _ = ahead(answer)
        for sign, (en, zh) in ((good, ("better", "更好")), (-good, ("worse", "更差"))):
            if those := [signed(n, d) for n, d in found.items() if d.decided and d.mean * sign > 0]:
                names = listed(those)
                parts.append((f"{en} than {reference}: {names[0]}", f"比 {reference} {zh}：{names[1]}"))
        if parts:
            en, zh = joined(parts)
            yield f"Decidedly {en}", f"有定论：{zh}"


def _of_open(answer: Summary) -> Iterator[Sentence]:
    for reference, found in _against(answer):
        open_ = {n: d for n, d in found.items() if not d.decided and not d.equal and d.n >= FEWEST}
        if not open_:
            continue
        en, zh = listed(list(open_))
        en, zh = f"Undecided against {reference}: {en}", f"与 {reference} 相比尚无定论：{zh}"
        wanting = sorted((d.seeds_needed, n) for n, d in open_.items() if d.seeds_needed)
        if wanting:
            ends = wanting if len(wanting) < 3 else (wanting[0], wanting[-1])
            amounts = [(f"{seeds_of(open_[n])[0]} for {n}", f"{n} {seeds_of(open_[n])[1]}") for _, n in ends]
            more = joined(amounts, ", ", "，")
            en, zh = f"{en}; seeds in all that would decide: {more[0]}", f"{zh}；要有定论共需种子：{more[1]}"
        yield en, zh


def _of_equal(answer: Summary) -> Iterator[Sentence]:
    parts = []
    for reference, found in _against(answer):
        if equal := [n for n, d in found.items() if d.equal]:
            en, zh = listed(equal)
            parts.append(
                (f"to {reference} within {answer.margin:g}: {en}", f"与 {reference} 相差不超过 {answer.margin:g}：{zh}")
            )
    if parts:
        en, zh = joined(parts)
        yield f"Equal {en}", zh


def _of_findings(answer: Summary) -> Iterator[Sentence]:
    """What the diagnosis says of trials that did not train: each rule with how many it found, and the cells."""
    alike: dict[str, list[TrialResult]] = {}
    sick = [t for t in answer.trials if t.outcome in ("untrained", *BROKEN)]
    for trial in sick:
        for rule in dict.fromkeys(f.rule for f in trial.findings):
            alike.setdefault(rule, []).append(trial)
    if not alike:
        return
    parts = []
    for rule, those in sorted(alike.items(), key=lambda item: -len(item[1]))[:NAMED]:
        cells = listed(list(dict.fromkeys(t.cell for t in those)))
        parts.append((f"{rule} in {len(those)} ({cells[0]})", f"{in_chinese(rule)} {len(those)} 次：{cells[1]}"))
    en, zh = joined(parts)
    yield (
        f"The diagnosis of the {len(sick)} trials that did not train: {en}",
        f"对 {len(sick)} 次没有训练成功的试验的诊断：{zh}",
    )


def _of_choices(answer: Summary) -> Iterator[Sentence]:
    for cells, words in chosen(answer):
        names = listed(cells)
        yield f"In {names[0]}, {words[0]}", f"{names[1]}：{words[1]}"


def _of_rates(answer: Summary, grid: Grid) -> Iterator[Sentence]:
    above: dict[float, list[str]] = {}
    never = [c for c in answer.cells if c.mean is None and any(r.untrained or r.count(*BROKEN) for r in c.rates)]
    for cell in answer.cells:
        higher = [
            r.lr for r in cell.rates if cell.best_lr is not None and r.lr > cell.best_lr and r.count(*BROKEN, "lost")
        ]
        if higher:
            above.setdefault(grid.rates[grid.rates.index(higher[0]) - 1], []).append(cell.name)
    parts = [(f"above {lr:g}: {listed(above[lr])[0]}", f"高于 {lr:g}：{listed(above[lr])[1]}") for lr in sorted(above)]
    if parts:
        en, zh = joined(parts)
        yield f"Training breaks {en}", f"训练失稳：{zh}"
    if never and len(never) < len(answer.cells):
        en, zh = listed([c.name for c in never])
        falling = any(r.untrained for c in never for r in c.rates)
        more = (" (losses still falling: more --steps)", "（损失还在降：请增加 --steps）") if falling else ("", "")
        yield f"No rate trained every seed: {en}{more[0]}", f"没有学习率能让所有种子训练成功：{zh}{more[1]}"
    if len(grid.rates) == 1 and sum(c.mean is not None for c in answer.cells) > 1:
        yield (f"One rate only, {grid.rates[0]:g}: at others the order may differ (--lr)",
               f"只有一个学习率 {grid.rates[0]:g}：换成别的学习率，名次可能不同（--lr）")  # fmt: skip
    edges = {words: [c.name for c in answer.cells if c.best_at_edge == edge]
             for edge, words in (("low", ("lowest", "最低")), ("high", ("highest", "最高")))}  # fmt: skip
    if any(edges.values()):
        en = "; ".join(f"{w[0]} rate: {listed(names)[0]}" for w, names in edges.items() if names)
        zh = "；".join(f"{w[1]}学习率：{listed(names)[1]}" for w, names in edges.items() if names)
        yield (f"Best at the edge of the grid, the true best may lie outside (widen --lr): {en}",
               f"最佳学习率在网格边缘，真正的最佳可能在网格之外（请扩大 --lr）：{zh}")  # fmt: skip


def _of_looks(answer: Summary, grid: Grid) -> Iterator[Sentence]:
    """A sweep that grew after it was looked at has had more than one chance to decide something falsely."""
    if not answer.looks and not grid.sequential:
        return
    wrong, each = f"{100 * (answer.wrong or 0.0):.3g} %", f"{100 * (1 - 0.05 * grid.share):.4g} %"
    look = len(answer.looks) + 1
    at = ", ".join(map(str, answer.looks))
    before = (
        (f", after {look - 1} with {at} seeds", f"，此前 {look - 1} 次用了 {at} 个种子") if answer.looks else ("", "")
    )
    yield (f"Look {look} at this sweep{before[0]}: its intervals are {each} ones, so that all looks together decide something falsely in at "
           f"most {wrong} of sweeps",
           f"这是第 {look} 次查看这轮比较{before[1]}：置信区间放宽到 {each}，所有各次合起来误判的概率至多 {wrong}")  # fmt: skip


def _of_axes(answer: Summary, grid: Grid, pairs: Pairs) -> Iterator[Sentence]:
    """What one axis does on average over the others, where decided: its values are the arms, in one family for each axis.

    Seed by seed, after the mean over the other axes: the cells of one seed are no independent draws. Where cells are refused or have no
    rate, over the values of the other axes at which every value of this axis has one.
    """
    cells = grid.cells()
    if answer.baseline not in cells:
        return
    base = cells[str(answer.baseline)]
    varied = [axis for axis in base if len({same({axis: c[axis]}) for c in grid.combinations()}) > 1]
    if len(varied) < 2:
        return
    parts: list[Sentence] = []
    for axis in varied:
        rows = _rows(axis, {n: cells[n] for n in pairs.names})
        used = [name for row in rows for name in row.values()]
        if not rows or plain(base[axis]) not in rows[0] or len(rows[0]) < 2:
            continue
        seeds = set.intersection(*(set(pairs.all.values[name]) for name in used))
        if len(seeds) < FEWEST:
            continue
        means = {
            value: {s: statistics.fmean(pairs.all.values[row[value]][s] for row in rows) for s in seeds}
            for value in rows[0]
        }
        arms, whole = Pairs(means, share=pairs.share, lower=pairs.lower), len(grid.combinations())
        opening = (f"{axis} ", f"{axis} ")
        if len(used) < whole:  # said once for the axis
            opening = (
                f"{axis} (over {len(used)} of {whole} cells): ",
                f"{axis}（{whole} 个组合中的 {len(used)} 个）：",
            )
        for value in means:
            d = arms.between(value, plain(base[axis]))
            if d is not None and d.decided:
                sign = 1 if d.mean > 0 else -1
                (en, zh), word = size_of(d, sign), ("worse", "差") if sign * ahead(answer)[0] < 0 else ("better", "好")
                parts.append((f"{opening[0]}{value} is {word[0]} than {plain(base[axis])} by {en}",
                              f"{opening[1]}{value} 比 {plain(base[axis])} {word[1]} {zh}"))  # fmt: skip
                opening = (f"{axis} ", f"{axis} ")
    for count in range(min(NAMED, len(parts)), 0, -1):  # as many as one sentence holds
        rest = len(parts) - count
        more = (f"; {rest} more are decided", f"；另有 {rest} 个也有定论") if rest else ("", "")
        en, zh = joined(parts[:count])
        said = (f"Averaged over the other axes: {en}{more[0]}; 95 % for all values of an axis together",
                f"对其余各轴取平均：{zh}{more[1]}；95 % 对一个轴的所有值同时成立")  # fmt: skip
        if count == 1 or fits(said):
            yield said
            return


def _rows(axis: str, cells: Mapping[str, Mapping[str, object]]) -> Sequence[Mapping[str, str]]:
    """Of each combination of the other axes that has them all: {value of this axis: cell}. A value without any cell is left out."""
    values = {plain(axes[axis]) for axes in cells.values()}
    rows: dict[str, dict[str, str]] = {}
    for name, axes in cells.items():
        others = same({k: v for k, v in axes.items() if k != axis})
        rows.setdefault(others, {})[plain(axes[axis])] = name
    return [row for row in rows.values() if row.keys() == values]
