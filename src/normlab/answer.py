"""From a sweep's trials to its answer: every cell at its best rate, with intervals, and what is decided. No torch.

Cells share seeds, so they are compared seed by seed: what a seed does to all cells alike cancels. Each is compared at its own best
rate, as a user would run it. Against a baseline named beforehand, p values are corrected (Holm) for the number of cells
compared; against the best ranked, which the results themselves picked, for the number of pairs it was picked from.

A rate where a seed diverged, collapsed or stayed untrained is never the best one, whatever the other seeds reached: their mean would be a mean of
survivors. Nor is a rate with fewer trained seeds than another. A trial that is missing says nothing about its rate; one that failed
keeps the rate from being called stable, since a program may break because its numbers did.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from . import runs
from .errors import RunUnreadable, unknown
from .intervals import MOST_SEEDS, holm, mean_interval, paired_difference, seeds_needed

SCHEMA, SWEEP_SCHEMA = runs.SUMMARY.schema, runs.SWEEP.schema
OUTCOMES = ("trained", "untrained", "collapsed", "diverged", "failed")
BROKEN = ("collapsed", "diverged")  # untrained is not: its loss still falls
FIELDS = ("name", "cell", "axes", "lr", "seed", "outcome", "steps", "loss", "loss_half_width", "accuracy", "train_loss",
          "first_loss", "curve", "diverged_at", "cause", "error", "seconds", "overhead_seconds", "tokens_per_second",
          "matmul_share", "peak_memory", "parameters", "folder")  # fmt: skip
CELL_COLUMNS = ("cell", "rank", "best_lr", "best_at_edge", "mean", "low", "high", "n", "largest_stable_lr", "stable_up_to_edge",
                "divergence_rate", "steps_to_target", "tokens_per_second", "peak_memory", "tied_with_best",
                *(f"difference_{k}" for k in ("mean", "low", "high", "n", "p", "p_holm", "decided", "seeds_needed")))  # fmt: skip
ALPHA = 0.05
FEWEST = 3  # seeds: the interval of two has one degree of freedom and rests on a single distance
MOST_LOST = 0.05  # of the best rate's gain, as in normlab.rates
SENTENCES = 8
NAMED = 4  # cells named in one sentence; the others are counted

Data = dict[str, Any]
AtBest = Mapping[str, Mapping[int, Data]]  # cell: seed: its trial at the best rate


@dataclass(frozen=True, kw_only=True)
class Answer:
    """summary.json as an object; cells by rank."""

    task: str | None
    unit: str | None
    blind: float | None
    steps: int | None
    created: str | None
    machine: Any
    complete: bool
    baseline: str | None
    target_loss: float | None
    trials: list[Data]
    cells: list[Data]
    refused: list[Data]
    verdict: dict[str, list[str]]

    def to_dict(self) -> Data:
        return {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def __str__(self) -> str:
        return "\n".join(self.verdict["en"])


def cell_name(axes: Mapping[str, Any]) -> str:
    """The values of all axes but lr and seed, joined."""
    return "/".join(plain(v) for v in axes.values()) or "all"


def plain(value: Any) -> str:
    """A value as part of a cell's or a folder's name."""
    short = isinstance(value, float) and float(f"{value:g}") == value
    text = f"{value:g}" if short else value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "._+-" else "_" for c in text)


def same(axes: Mapping[str, Any]) -> str:
    """A text that two cells share if they are one."""
    return json.dumps(axes, sort_keys=True)


@dataclass(frozen=True)
class _Grid:
    """What the sweep set out to do."""

    cells: dict[str, Data]  # name: axes; without the refused
    rates: list[float]  # ascending
    seeds: list[int]
    refused: list[Data]

    @classmethod
    def of(cls, sweep: Mapping[str, Any]) -> _Grid:
        axes, base = sweep["axes"], sweep.get("base") or {}
        for name in ("lr", "seed"):
            if not axes.get(name) and base.get(name) is None:
                raise ValueError(f"a sweep needs {name}, as an axis or in its base")
        outer = [name for name in axes if name not in ("lr", "seed")]
        every = [dict(zip(outer, v, strict=True)) for v in itertools.product(*(axes[name] for name in outer))]
        refused = [{"cell": cell_name(r["axes"]), "axes": dict(r["axes"]), "reason": r["reason"]}
                   for r in sweep.get("refused") or ()]  # fmt: skip
        shut = {same(r["axes"]) for r in refused}
        inner = {name: axes.get(name) or [base[name]] for name in ("lr", "seed")}
        return cls(
            {cell_name(c): c for c in every if same(c) not in shut}, sorted(inner["lr"]), list(inner["seed"]), refused
        )


def answer(
    sweep: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], *, baseline: str | None = None,
    target_loss: float | None = None,
) -> Answer:  # fmt: skip
    """The answer of a sweep, from its sweep.json and its trials' entries; missing trials make it a partial one.

    ``baseline``: a cell's name, instead of the sweep's own. ``target_loss``: for steps_to_target, instead of the baseline's mean.
    """
    grid, base = _Grid.of(sweep), sweep.get("base") or {}
    if baseline is not None and baseline not in grid.cells:
        raise ValueError(unknown("cell", baseline, grid.cells))
    planned = list(itertools.product(grid.cells, grid.rates, grid.seeds))
    known = {(t["cell"], t["lr"], t["seed"]): t for t in map(_entry, trials)}
    ended = [known[key] for key in planned if key in known]
    cells, at_best = [], {}
    for name, axes in grid.cells.items():
        cell, at_best[name] = _cell(name, axes, [t for t in ended if t["cell"] == name], grid.rates)
        cells.append(cell)
    cells.sort(key=lambda c: math.inf if c["mean"] is None else c["mean"])
    by_name = {c["cell"]: c for c in cells}

    given = baseline or next((n for n, axes in grid.cells.items() if axes == sweep.get("baseline")), None)
    chosen = given or (cells[0]["cell"] if cells else None)
    able = [c["cell"] for c in cells if c["mean"] is not None]
    pairs = len(able) * (len(able) - 1) // 2
    against = _against(chosen, able, at_best, None if chosen == given else pairs)
    top = able[0] if able else None
    with_top = against if top == chosen else _against(top, able, at_best, pairs)
    if chosen in with_top:  # one pair, one decision: the baseline's
        with_top[chosen] = against[str(top)]
    if target_loss is None and chosen is not None:
        target_loss = by_name[chosen]["mean"]
    for rank, cell in enumerate(cells, start=1):
        name = cell["cell"]
        cell["rank"] = rank
        cell["difference"] = against.get(name)
        cell["tied_with_best"] = name in with_top and not (with_top[name] or {}).get("decided")
        if target_loss is not None:
            cell["steps_to_target"] = _steps_to(
                _mean_curve([t["curve"] or [] for t in at_best[name].values()]), target_loss
            )

    complete = len(ended) == len(planned) and all(t["outcome"] != "failed" for t in ended)
    found = Answer(
        task=base.get("task"), unit=sweep.get("unit"), blind=_clean(sweep.get("blind")), steps=base.get("steps"),
        created=sweep.get("created"), machine=_clean(sweep.get("machine")), complete=complete, baseline=chosen,
        target_loss=_clean(target_loss), trials=ended, cells=cells, refused=grid.refused, verdict={},
    )  # fmt: skip
    return replace(found, verdict=_verdict(found, grid, at_best, chosen == given))


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _clean(value: Any) -> Any:
    """Without numbers that JSON lacks, also as runs spell them."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v) for v in value]
    spelled = isinstance(value, str) and value in ("nan", "inf", "-inf")
    return None if spelled or (isinstance(value, float) and not math.isfinite(value)) else value


def _entry(trial: Mapping[str, Any]) -> Data:
    """A trial with every field. One without a known outcome, or trained without a loss, cannot be counted as a result."""
    names = {k: trial[k] for k in ("name", "cell", "axes") if k in trial}  # a value may be called "nan"
    entry = {**dict.fromkeys(FIELDS), **_clean(dict(trial)), **names}
    if entry["outcome"] in ("diverged", "failed"):
        entry["loss"] = None
    elif entry["outcome"] not in OUTCOMES or entry["loss"] is None:
        entry["error"] = entry["error"] or f"outcome {entry['outcome']!r} with loss {entry['loss']!r}"
        entry.update(outcome="failed", loss=None)
    entry["curve"] = [point for point in entry["curve"] or [] if None not in point]
    return entry


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _cell(name: str, axes: Data, trials: Sequence[Data], grid_rates: Sequence[float]) -> tuple[Data, dict[int, Data]]:
    """(the cell, its trained trials at the best rate by seed)."""
    rates, trained = [], {}
    for lr in grid_rates:
        here = [t for t in trials if t["lr"] == lr]
        counts = {o: sum(t["outcome"] == o for t in here) for o in OUTCOMES}
        losses = [t["loss"] for t in here if t["loss"] is not None]
        mean, low, high = mean_interval(losses) if losses else (None, None, None)
        trained[lr] = {t["seed"]: t for t in here if t["outcome"] == "trained"}
        rates.append({"lr": lr, "mean": mean, "low": low, "high": high, "n": len(losses), **counts, "stable": False})
    whole = [r for r in rates if r["trained"] and not any(r[o] for o in ("untrained", *BROKEN))]
    most = max((r["trained"] for r in whole), default=0)
    best = min((r for r in whole if r["trained"] == most), key=lambda r: r["mean"], default=None)
    largest = None
    if best is not None:
        for rate in whole:
            rate["stable"] = not rate["failed"] and _keeps(trained[rate["lr"]], trained[best["lr"]])
        upward = rates[rates.index(best) :]
        largest = max((r["lr"] for r in itertools.takewhile(lambda r: r["stable"], upward)), default=None)
    ended = [t["outcome"] for t in trials if t["outcome"] != "failed"]
    speeds = [v for t in trials if t["outcome"] == "trained" and (v := t["tokens_per_second"]) is not None]
    of_best = best or {"lr": None, "mean": None, "low": None, "high": None, "n": 0}
    edges = {grid_rates[0]: "low", grid_rates[-1]: "high"} if len(grid_rates) > 1 else {}
    cell = {
        "cell": name, "axes": axes, "rank": 0, "rates": rates, "best_lr": of_best["lr"], "best_at_edge": edges.get(of_best["lr"]),
        **{key: of_best[key] for key in ("mean", "low", "high", "n")},
        "largest_stable_lr": largest, "stable_up_to_edge": largest == grid_rates[-1],
        "divergence_rate": sum(o in BROKEN for o in ended) / len(ended) if ended else None, "steps_to_target": None,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "peak_memory": max((t["peak_memory"] for t in trials if t["peak_memory"] is not None), default=None),
        "difference": None, "tied_with_best": False,
    }  # fmt: skip
    return cell, trained[best["lr"]] if best else {}


def _keeps(these: Mapping[int, Data], best: Mapping[int, Data]) -> bool:
    """Do these trials of a rate give away at most MOST_LOST of what the same seeds gained at the best one?"""
    seeds = these.keys() & best.keys()
    if not seeds:
        return False
    mean, lowest = (statistics.fmean(side[s]["loss"] for s in seeds) for side in (these, best))
    start = _mean(best[s]["first_loss"] for s in seeds)
    return start is None or mean <= lowest + MOST_LOST * max(0.0, start - lowest)


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """Over the steps at which every seed was evaluated. (Seed by seed, a baseline's worse half would never reach its mean.)"""
    at: dict[float, list[float]] = {}
    for step, loss in itertools.chain.from_iterable(curves):
        at.setdefault(step, []).append(loss)
    return [(step, statistics.fmean(losses)) for step, losses in sorted(at.items()) if len(losses) == len(curves)]


def _steps_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """The step at which the curve reaches the target, on straight lines between evaluations."""
    before: Sequence[float] | None = None
    for step, loss in curve:
        if loss <= target:
            share = 1.0 if before is None else (before[1] - target) / (before[1] - loss)
            return float(step if before is None else before[0] + share * (step - before[0]))
        before = (step, loss)
    return None


def _against(
    reference: str | None, names: Sequence[str], at_best: AtBest, family: int | None
) -> dict[str, Data | None]:
    """{cell: its difference to the reference, paired by seed, or None without a common seed}."""
    if reference is None or reference not in names:
        return {}
    base, pairs = at_best[reference], {}
    for name in names:
        if name != reference:
            shared = sorted(at_best[name].keys() & base.keys())
            pairs[name] = [(at_best[name][seed]["loss"], base[seed]["loss"]) for seed in shared]
    return dict(zip(pairs, _decide(list(pairs.values()), family), strict=True))


def _decide(comparisons: Sequence[Sequence[tuple[float, float]]], family: int | None = None) -> list[Data | None]:
    """Each comparison's pairs -> difference, corrected for all of them, and the seeds that would decide it."""
    seen = [paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None for pairs in comparisons]
    ps = [1.0 if d is None or d.p is None else d.p for d in seen]
    size, corrected = family or len(ps), holm(ps, family)
    decisions: list[Data | None] = [None] * len(seen)
    needed = FEWEST
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        d = seen[index]
        if d is None:
            continue
        clear = d.low is not None and d.high is not None and not d.low <= 0 <= d.high
        decided = clear and d.n >= FEWEST and corrected[index] < ALPHA
        # Holm's own level at this place; and a step-down decides no comparison before the clearer ones.
        want = seeds_needed([a - b for a, b in comparisons[index]], 1 - ALPHA / (size - place))
        needed = max(needed, want or 0)
        decisions[index] = {**d._asdict(), "p_holm": None if d.p is None else corrected[index], "decided": decided,
                            "seeds_needed": None if decided or want is None else max(needed, d.n + 1)}  # fmt: skip
    return decisions


# ---- words -----------------------------------------------------------------------------------------------------------

Sentence = tuple[str, str]  # English, Chinese: the same facts, without the full stop
UNITS = {"nats per byte": "奈特/字节", "nats per document": "奈特/文档", "nats per image": "奈特/图像",
         "nats per character": "奈特/字符", "own loss": "（自定损失）", "loss": "（损失）"}  # fmt: skip


def _verdict(answer: Answer, grid: _Grid, at_best: AtBest, named: bool) -> dict[str, list[str]]:
    able = [c for c in answer.cells if c["mean"] is not None]
    sentences = [*_of_progress(answer, grid), *(_of_best(answer, grid, able) if able else ())]
    if able and max(c["n"] for c in able) > 1:
        sentences += [*_of_differences(answer, able)]
    sentences += _of_rates(answer, grid)
    if grid.refused:
        en, zh = _list([r["cell"] for r in grid.refused])
        reason = str(grid.refused[0]["reason"]).rstrip(".")
        sentences.append((f"Refused: {en} ({reason})", f"拒绝运行：{zh}（{reason}）"))
    elif named and answer.complete and len(able) == len(grid.cells) and len(sentences) < SENTENCES:
        sentences += _of_axes(answer, grid, at_best)
    return {"en": [en + "." for en, _ in sentences], "zh": [zh + "。" for _, zh in sentences]}


def _figures(of: Mapping[str, Any], sign: int = 1) -> tuple[str, str, str]:
    """(mean, and in both languages its interval and seeds), to two digits of the interval's half width."""
    if of["low"] is None:
        return f"{sign * of['mean']:.4f}", "1 seed", "1 个种子"
    low, high = sorted((sign * of["low"], sign * of["high"]))
    digits = min(max(1 - math.floor(math.log10((high - low) / 2)), 0), 6) if high > low else 4
    mean, low, high = (f"{v:.{digits}f}" for v in (sign * of["mean"], low, high))
    return mean, f"95 % interval {low} to {high}, {of['n']} seeds", f"95 % 置信区间 {low} 到 {high}，{of['n']} 个种子"


def _list(words: Sequence[str]) -> Sentence:
    rest = len(words) - NAMED
    more = (f" and {rest} more", f" 及另外 {rest} 个") if rest > 0 else ("", "")
    return ", ".join(words[:NAMED]) + more[0], "、".join(words[:NAMED]) + more[1]


def _of_progress(answer: Answer, grid: _Grid) -> Iterator[Sentence]:
    ended, planned = answer.trials, len(grid.cells) * len(grid.rates) * len(grid.seeds)
    counts = {o: sum(t["outcome"] == o for t in ended) for o in OUTCOMES}
    if not ended:
        yield "No trial has ended: there is nothing to compare", "还没有试验结束：没有可比的结果"
    elif not answer.complete:
        en = f"Partial answer: {len(ended)} of {planned} trials have ended"
        zh = f"部分结论：{planned} 次试验中已结束 {len(ended)} 次"
        if counts["failed"]:
            first = next(t for t in ended if t["outcome"] == "failed")
            why = f"{first['name']}: {str(first['error'])[:120].rstrip('.')}"
            en, zh = f"{en}, {counts['failed']} failed ({why})", f"{zh}，{counts['failed']} 次出错（{why}）"
        yield en, zh
    broke, short = sum(counts[o] for o in BROKEN), counts["untrained"]
    if all(c["mean"] is None for c in answer.cells) and broke + short:
        advice = [("lower --lr", "请降低 --lr")] * (broke > 0) + [("give more --steps", "请增加 --steps")] * (short > 0)
        yield (f"No cell trained with every seed at any rate: of {len(ended)} trials {broke} diverged or collapsed, {short} were still "
               f"falling; {', '.join(en for en, _ in advice)}",
               f"没有哪个组合在某个学习率下所有种子都训练成功：{len(ended)} 次试验中 {broke} 次发散或坍缩，{short} 次损失还在降；"
               f"{'，'.join(zh for _, zh in advice)}")  # fmt: skip


def _of_best(answer: Answer, grid: _Grid, able: Sequence[Data]) -> Iterator[Sentence]:
    top, baseline, unit = able[0], answer.baseline, answer.unit or "loss"
    name, rate, lead = top["cell"], f"{top['best_lr']:g}", top["difference"]
    if lead and lead["decided"] and lead["mean"] < 0:
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
        if lead and lead["n"] > 1 and not lead["decided"]:
            by, by_en, by_zh = _figures(lead, -1)
            en += f"; its lead over {baseline}, {by} ({by_en}), is not decided"
            zh += f"；它比 {baseline} 领先 {by}（{by_zh}），尚无定论"
        elif baseline not in [c["cell"] for c in able]:
            en, zh = f"{en}; {baseline} has none to compare with", f"{zh}；{baseline} 没有可比的均值"
        yield en, zh
    if len(grid.cells) > 1 and max(c["n"] for c in able) == 1:
        yield (f"With 1 seed nothing is decided: run at least {FEWEST} (--seeds)",
               f"只有 1 个种子，得不出定论：请至少用 {FEWEST} 个（--seeds）")  # fmt: skip


def _of_differences(answer: Answer, able: Sequence[Data]) -> Iterator[Sentence]:
    top, baseline = able[0]["cell"], answer.baseline
    tied = [c["cell"] for c in able if c["tied_with_best"] and c["cell"] != baseline]
    if tied and top != baseline:
        en, zh = _list(tied)
        yield f"Not told apart from {top}: {en}", f"与 {top} 分不出高下：{zh}"
    found = {c["cell"]: c["difference"] for c in able if c["difference"]}
    decided = {n: f"{n} {'+' if d['mean'] > 0 else ''}{_figures(d)[0]}" for n, d in found.items() if d["decided"]}
    parts = []
    for sign, words in ((-1, ("better", "更好")), (1, ("worse", "更差"))):
        if those := [text for n, text in decided.items() if found[n]["mean"] * sign > 0 and (n, sign) != (top, -1)]:
            en, zh = _list(those)
            parts.append((f"{words[0]} than {baseline}: {en}", f"比 {baseline} {words[1]}：{zh}"))
    if parts:
        yield "Decidedly " + "; ".join(en for en, _ in parts), "有定论：" + "；".join(zh for _, zh in parts)
    open_ = {n: d for n, d in found.items() if not d["decided"]}
    if open_:
        en, zh = _list(list(open_))
        en, zh = f"Undecided against {baseline}: {en}", f"与 {baseline} 相比尚无定论：{zh}"
        if max(d["n"] for d in open_.values()) < FEWEST:
            en, zh = f"{en} (fewer than {FEWEST} seeds decide nothing)", f"{zh}（少于 {FEWEST} 个种子不下定论）"
        more = sorted((d["seeds_needed"] - d["n"], n) for n, d in open_.items() if d["seeds_needed"])
        if more:
            ends = more if len(more) < 3 else (more[0], more[-1])
            amounts = []
            for m, n in ends:
                about = ("over", "超过") if open_[n]["seeds_needed"] == MOST_SEEDS else ("about", "约")
                amounts.append((f"{about[0]} {m} for {n}", f"{n} {about[1]} {m} 个"))
            en += "; more seeds to decide: " + ", ".join(en for en, _ in amounts)
            zh += "；要有定论还需种子：" + "，".join(zh for _, zh in amounts)
        yield en, zh


def _of_rates(answer: Answer, grid: _Grid) -> Iterator[Sentence]:
    above: dict[float, list[str]] = {}
    never = [
        c
        for c in answer.cells
        if c["mean"] is None and any(r["untrained"] or any(r[o] for o in BROKEN) for r in c["rates"])
    ]
    for cell in answer.cells:
        higher = [
            r["lr"]
            for r in cell["rates"]
            if cell["best_lr"] is not None and r["lr"] > cell["best_lr"] and any(r[o] for o in BROKEN)
        ]
        if higher:
            above.setdefault(grid.rates[grid.rates.index(higher[0]) - 1], []).append(cell["cell"])
    parts = [(f"above {lr:g}: {_list(above[lr])[0]}", f"高于 {lr:g}：{_list(above[lr])[1]}") for lr in sorted(above)]
    clauses = []
    if parts:
        clauses.append(
            ("Training breaks " + "; ".join(en for en, _ in parts), "训练失稳：" + "；".join(zh for _, zh in parts))
        )
    if never and len(never) < len(answer.cells):
        en, zh = _list([c["cell"] for c in never])
        falling = any(r["untrained"] for c in never for r in c["rates"])
        more = (" (losses still falling: more --steps)", "（损失还在降：请增加 --steps）") if falling else ("", "")
        clauses.append((f"No rate trained every seed: {en}{more[0]}", f"没有学习率能让所有种子训练成功：{zh}{more[1]}"))
    if clauses:
        yield ". ".join(en for en, _ in clauses), "。".join(zh for _, zh in clauses)
    if len(grid.rates) == 1 and sum(c["mean"] is not None for c in answer.cells) > 1:
        yield (f"One rate only, {grid.rates[0]:g}: at others the order may differ (--lr)",
               f"只有一个学习率 {grid.rates[0]:g}：换成别的学习率，名次可能不同（--lr）")  # fmt: skip
    edges = {words: [c["cell"] for c in answer.cells if c["best_at_edge"] == edge]
             for edge, words in (("low", ("lowest", "最低")), ("high", ("highest", "最高")))}  # fmt: skip
    if any(edges.values()):
        en = "; ".join(f"{w[0]} rate: {_list(names)[0]}" for w, names in edges.items() if names)
        zh = "；".join(f"{w[1]}学习率：{_list(names)[1]}" for w, names in edges.items() if names)
        yield (f"Best at the edge of the grid, the true best may lie outside (widen --lr): {en}",
               f"最佳学习率在网格边缘，真正的最佳可能在网格之外（请扩大 --lr）：{zh}")  # fmt: skip


def _of_axes(answer: Answer, grid: _Grid, at_best: AtBest) -> Iterator[Sentence]:
    """What one axis does on average over the others, where decided.

    Seed by seed, after the mean over the other axes: the cells of one seed are no independent draws.
    """
    base = grid.cells[str(answer.baseline)]
    values = {axis: list({plain(c[axis]): c[axis] for c in grid.cells.values()}.values()) for axis in base}
    if sum(len(v) > 1 for v in values.values()) < 2:
        return
    keys = [(axis, value) for axis in base for value in values[axis] if value != base[axis]]

    def side(axis: str, value: Any) -> list[float]:
        names = [n for n, c in grid.cells.items() if c[axis] == value]
        return [statistics.fmean(at_best[n][seed]["loss"] for n in names) for seed in grid.seeds]

    parts = []
    found = _decide([list(zip(side(axis, value), side(axis, base[axis]), strict=True)) for axis, value in keys])
    for (axis, value), d in zip(keys, found, strict=True):
        if d and d["decided"]:
            sign = 1 if d["mean"] > 0 else -1
            (by, en, zh), words = _figures(d, sign), ("worse", "差") if sign > 0 else ("better", "好")
            parts.append((f"{axis} {plain(value)} is {words[0]} than {plain(base[axis])} by {by} ({en})",
                          f"{axis} {plain(value)} 比 {plain(base[axis])} {words[1]} {by}（{zh}）"))  # fmt: skip
    if parts:
        yield ("Averaged over the other axes: " + "; ".join(en for en, _ in parts[:NAMED]),
               "对其余各轴取平均：" + "；".join(zh for _, zh in parts[:NAMED]))  # fmt: skip


# ---- on disk ---------------------------------------------------------------------------------------------------------


def read_sweep(folder: str | Path) -> Data:
    """What sweep.json says was to be compared."""
    found = runs.read(folder, runs.SWEEP)
    try:
        _Grid.of(found)
    except ValueError as error:
        raise RunUnreadable(f"{Path(folder) / runs.SWEEP.file}: {error}") from error
    return found


def read_trial(place: Path, outer: Sequence[str]) -> tuple[Data, Data]:
    """(the entry of a trial that ended, its run.json). ``outer``: the axes that name cells."""
    info = runs.Run(place).info
    of, result = info.get("experiment"), info.get("result")
    if not isinstance(of, dict) or not isinstance(result, dict):
        raise RunUnreadable(f"{place} holds a run without a result")
    settings = {**model, **of} if isinstance(model := of.get("model"), dict) else of
    if lacking := [name for name in (*outer, "lr", "seed") if name not in settings]:
        raise RunUnreadable(f"{place / runs.INFO}: experiment.{lacking[0]} is missing")
    axes = {name: settings[name] for name in outer}
    identity = {"name": place.name, "cell": cell_name(axes), "axes": axes, "lr": of["lr"], "seed": of["seed"],
                "folder": f"trials/{place.name}"}  # fmt: skip
    return {**dict.fromkeys(FIELDS), **result, **identity}, info


def collect(folder: str | Path) -> tuple[Data, list[Data]]:
    """(sweep.json, the entries of the trials that ended). A run that cannot be read, or has no result, is a missing one.

    What the sweep does not say about its task and machine is taken from the first run that does.
    """
    sweep = read_sweep(folder)
    outer = [name for name in sweep["axes"] if name not in ("lr", "seed")]
    trials = []
    for place in sorted((Path(folder) / "trials").glob("*")):
        try:
            entry, info = read_trial(place, outer)
        except RunUnreadable:
            continue
        trials.append(entry)
        task = info["task"] if isinstance(info.get("task"), dict) else {}
        for key, value in (("unit", task.get("unit")), ("blind", task.get("blind")), ("machine", info.get("machine"))):
            if sweep.get(key) is None and value is not None:
                sweep[key] = value
    return sweep, trials


def read(folder: str | Path, *, baseline: str | None = None, target_loss: float | None = None) -> Answer:
    return answer(*collect(folder), baseline=baseline, target_loss=target_loss)


def write(folder: str | Path, answer: Answer) -> None:
    """summary.json, trials.csv, cells.csv; each replaced as a whole."""
    text = json.dumps(answer.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    trials = _csv(answer.trials, [f for f in FIELDS if f not in ("axes", "curve")])
    for name, content in (
        ("trials.csv", trials),
        ("cells.csv", _csv(answer.cells, CELL_COLUMNS)),
        ("summary.json", text),
    ):
        runs.replace_file(Path(folder) / name, content)


def _csv(rows: Sequence[Data], columns: Sequence[str]) -> str:
    """One line each; the axes are columns of their own behind the cell's name."""
    after = columns.index("cell") + 1
    axes = [a for a in (rows[0]["axes"] if rows else {}) if a not in columns]
    file = io.StringIO()
    writer = csv.DictWriter(
        file, [*columns[:after], *axes, *columns[after:]], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        difference = {f"difference_{k}": v for k, v in (row.get("difference") or {}).items()}
        writer.writerow({**row["axes"], **difference, **row})
    return file.getvalue()
