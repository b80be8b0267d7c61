"""A sweep or a run as plain data for display: numbers and names, no words, no HTML, no torch.

The table, the map and the held-out curves come from summary.json alone. Training curves, depth and findings need
readings, and a sweep may hold thousands of runs; so only runs at a cell's shown rate are opened, one seed of every cell
before the second of any, until RUNS or BYTES are spent. Each curve says how many seeds it rests on.

The shown rate is the best one. A cell without a best rate (nothing trained) is shown at its lowest, the one most likely
to say how it broke. Non-finite numbers never leave this module: a curve ends in front of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from .. import answer
from ..diagnosis import EVIDENCE, FEW, Finding, diagnose
from ..errors import RunUnreadable
from ..runs import (
    INFO,
    SUMMARY,
    Cell,
    Grid,
    HeldRun,
    Result,
    Run,
    Series,
    Summary,
    TrialResult,
    holds_summary,
    holds_sweep,
    present,
    read_grid,
    read_summary,
    read_trials,
    trial_folder,
)
from . import kernels
from .recorded import recorded, snapshots
from .shared_settings import common_settings, flat
from .theory import bands

POINTS = 200  # of a curve
RUNS = 240  # run folders opened for one page
BYTES = 200_000_000  # of readings; about two seconds to parse
CELLS = 60  # whose runs are opened, the best first
ROWS = 200  # of the list of failures
TRIALS_LISTED = 2000
DEPTH = ("stream_rms", "stream_grad", "param_grad", "angle")  # by block, in the order they are shown
WRONG = ("failed", "diverged", "collapsed", "untrained")  # outcomes other than trained, the gravest first

Data = dict[str, Any]


def view(of: str | Path | Run | Summary) -> Data:
    """What there is to show: in a folder a sweep (summary.json) or a single run (run.json), in a file what was timed (normlab bench --json).
    Of an answer by itself: what needs no run.
    """
    if isinstance(of, Summary):
        return _of_summary(of, None, None)
    folder = of.folder if isinstance(of, Run) else Path(of)
    if kernels.holds_kernels(folder):
        return kernels.view(folder)
    if holds_summary(folder) or holds_sweep(folder):
        return _of_summary(_summary(folder), read_grid(folder) if holds_sweep(folder) else None, folder)
    if present(folder / INFO):
        return _of_run(folder)
    raise RunUnreadable(
        f"{folder} holds nothing to report: neither {SUMMARY.file} (a sweep) nor {INFO} (a run) is in it"
    )


# ---- a sweep ---------------------------------------------------------------------------------------------------------


def _of_summary(summary: Summary, grid: Grid | None, folder: Path | None) -> Data:
    trials, baseline = summary.trials, summary.baseline
    cells = sorted(summary.cells, key=lambda c: c.rank or math.inf)
    best = summary.best or next(
        (c.name for c in cells if c.rank == 1 and c.mean is not None), None
    )  # older files name none
    shown = {c.name: c.best_lr or min((r.lr for r in c.rates), default=None) for c in cells}
    at_rate: dict[str, list[TrialResult]] = {name: [] for name in shown}
    for trial in sorted(trials, key=lambda t: t.seed or 0):
        if trial.cell in shown and trial.lr == shown[trial.cell]:
            at_rate[trial.cell].append(trial)
    opened = sorted(shown, key=lambda name: name != baseline)[:CELLS]  # the baseline, then by rank
    read, unreadable = _open(folder, {name: at_rate[name] for name in opened}) if folder is not None else ({}, [])
    failures = _failures(trials)
    return {
        "kind": "sweep", "title": "normlab" if folder is None else folder.resolve().name, "task": summary.task, "unit": summary.unit, "blind": summary.blind,
        "target_loss": summary.target_loss, "baseline": baseline, "best": best, "margin": summary.margin, "complete": summary.complete, "ended": len(trials),
        "planned": summary.planned or (None if grid is None else grid.planned), "failed": sum(t.outcome == "failed" for t in trials),
        "verdict": summary.verdict.to_dict(), "why": [{"en": en, "zh": zh} for en, zh in answer.why(summary)], "metric": summary.metric, "compared": _compared(summary.metric), "common_target": summary.common_target,
        "choices": [{"cells": names, "en": en, "zh": zh} for names, (en, zh) in answer.choices(summary)],
        "cells": [_row(c, baseline, best, shown[c.name]) for c in cells], "decimals": _decimals(cells), "metrics": _metrics(cells), "map": _map(cells, summary.blind),
        "curves": {
            "train": [c for n in shown if (c := _curve(n, shown[n], [r["loss"] for r in read.get(n, [])]))],
            "heldout": [c for n in shown if (c := _curve(n, shown[n], [_points(t.curve) for t in at_rate[n]]))],
        },
        "depth": _depth({n: (shown[n], read.get(n, [])) for n in shown}),
        "findings": [{"cell": n, "lr": shown[n], **read[n][0]["found"]} for n in shown if read.get(n)],
        "not_opened": max(0, len(cells) - CELLS), "unreadable": unreadable,
        "trials": [{k: getattr(t, k) for k in ("name", "cell", "lr", "seed", "outcome", "loss", "folder")} for t in trials[:TRIALS_LISTED]],
        "refused": [{**r.to_dict(), "reason": {"en": r.reason, "zh": r.reason_zh or r.reason}} for r in summary.refused], "failures": failures[:ROWS], "failures_left_out": max(0, len(failures) - ROWS),
        "ran": {
            **{k: getattr(summary, k) for k in ("task", "unit", "baseline", "blind", "target_loss", "created")},
            "steps": _span([c.steps for c in cells if c.steps is not None]) or summary.steps,
            "seeds": sorted({t.seed for t in trials if t.seed is not None}), "trials": len(trials),
            "parameters": _span([t.parameters for t in trials if t.parameters is not None]), "equal": summary.equal,
            **_origin(summary.machine, next((r[0]["info"] for r in read.values() if r), {}), {} if folder is None else common_settings(folder, grid, trials)),
        },
    }  # fmt: skip


def _summary(folder: Path) -> Summary:
    """The answer that was written; one made now where there is none yet, or more trials have ended since."""
    written = read_summary(folder) if holds_summary(folder) else Summary()
    if holds_sweep(folder):
        grid, trials = read_trials(folder)
        if len(trials) > len(written.trials) or not holds_summary(folder):
            return answer.answer(grid, trials, margin=written.margin)
    return written


def _compared(metric: str) -> Data:
    """What differences are differences of, and its unit (None: that of the loss)."""
    found = answer.METRICS[metric] if metric in answer.METRICS else answer.METRICS["loss"]
    return {
        key: None if pair is None else {"en": pair[0], "zh": pair[1]}
        for key, pair in (("title", found.title), ("unit", found.unit))
    }


def _metrics(cells: Sequence[Cell]) -> list[Data]:
    """Those beside the loss that any cell has."""
    names = [name for name in answer.METRICS if name != "loss" and any(name in c.figures for c in cells)]
    return [{"name": name, **_compared(name)} for name in names]


def _decimals(cells: Sequence[Cell]) -> int:
    """Of losses in the tables: two digits of the narrowest interval, so that ranks can be followed."""
    halves = [(c.high - c.low) / 2 for c in cells if c.low is not None and c.high is not None and c.high > c.low]
    return max(2, min(5, 1 - math.floor(math.log10(min(halves))))) if halves else 3


def _row(cell: Cell, baseline: str | None, best: str | None, shown: float | None) -> Data:
    def count(*outcomes: str) -> int:
        return sum(rate.count(*outcomes) for rate in cell.rates)

    kept = {
        k: v for k, v in cell.to_dict().items() if k not in ("axes", "rates", "tied_with_best", "choices", "traits")
    }
    kept["figures"] = {name: {**of.to_dict(), "decimals": of.decimals} for name, of in cell.figures.items()}
    for name, of in (("difference", cell.difference), ("behind_best", cell.behind_best)):
        if of is not None:
            kept[name] = {**of.to_dict(), "decimals": of.decimals}
    return {**kept, "chosen": bool(cell.choices), "is_baseline": cell.name == baseline, "shown_lr": shown, "is_best": cell.name == best, "tied": cell.tied_with_best and cell.name != best,
            "trials": count("trained", *WRONG), "failed": count("failed"), "broken": count("diverged", "collapsed", "lost")}  # fmt: skip


def _map(cells: Sequence[Cell], blind: float | None) -> Data:
    """Learning rate x cell. Colors end at the blind predictor: what lies above has learned nothing, however far."""
    rates = sorted({r.lr for c in cells for r in c.rates})
    rows: list[Data] = []
    for cell in cells:
        at = {r.lr: r for r in cell.rates}
        squares = [
            {**at[lr].to_dict(), "tried": at[lr].count("trained", *WRONG), "best": lr == cell.best_lr}
            if lr in at
            else None
            for lr in rates
        ]
        rows.append({"cell": cell.name, "squares": squares})
    means = [s["mean"] for row in rows for s in row["squares"] if s and s["mean"] is not None]
    low, high = min(means, default=0.0), max(means, default=0.0)
    cut = blind is not None and low < blind < high
    tried = {s["tried"] for row in rows for s in row["squares"] if s}
    return {"rates": rates, "rows": rows, "low": low if means else None, "high": blind if cut else high, "cut": cut,
            "uneven": len(tried) > 1}  # fmt: skip


def _failures(trials: Iterable[TrialResult]) -> list[Data]:
    """Trials that did not train; seeds of one cell and rate whose causes differ in numbers alone share a row."""
    alike: dict[tuple[Any, ...], Data] = {}
    for t in trials:
        if t.outcome in WRONG:
            cause = t.error or t.cause
            chinese = cause if t.error else t.cause_zh or cause
            kind = re.sub(r"\d[\d.e+-]*", "0", cause or "")
            row = alike.setdefault((t.outcome, t.cell, t.lr, kind), {
                "outcome": t.outcome, "cell": t.cell, "lr": t.lr, "cause": None if cause is None else {"en": cause, "zh": chinese}, "seeds": [], "steps": [],
                "findings": [{"rule": f.rule, "en": f.en or f.rule, "zh": f.zh or f.en or f.rule} for f in t.findings],
            })  # fmt: skip
            row["seeds"].append(t.seed)
            row["steps"] += [t.diverged_at] if t.diverged_at is not None else []
    return sorted(alike.values(), key=lambda r: (WRONG.index(r["outcome"]), r["cell"], r["lr"] or 0.0))


def _origin(machine: Any, info: Data, settings: Any) -> Data:
    """What a reader needs to judge or repeat it. Versions and hashes of the data stand in the runs."""
    data = info.get("data") or _dict(info.get("task")).get("sources")
    machine, versions = flat(machine or info.get("machine")), flat(info.get("versions"))
    return {"settings": flat(settings), "data": flat(data), "machine": machine,
            "versions": {k: v for k, v in versions.items() if k not in machine}}  # fmt: skip


def _span(values: Sequence[float]) -> str | None:
    """As one number, or as the lowest and the highest."""
    if not values:
        return None
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} – {high}"


def _dict(value: Any) -> Data:
    return value if isinstance(value, dict) else {}


# ---- runs ------------------------------------------------------------------------------------------------------------


def _open(folder: Path, wanted: Mapping[str, Sequence[TrialResult]]) -> tuple[dict[str, list[Data]], list[Data]]:
    """What the runs of each cell hold, within RUNS and BYTES, and which could not be read."""
    read: dict[str, list[Data]] = {name: [] for name in wanted}
    unreadable: list[Data] = []
    count = size = 0
    for turn in range(max(map(len, wanted.values()), default=0)):
        for name, trials in wanted.items():
            # one of each cell is always opened: a cell without any would look as if nothing had been recorded
            if turn >= len(trials) or (read[name] and (count >= RUNS or size >= BYTES)):
                continue
            trial, steps = trials[turn], int(max(t.steps or 0 for t in trials))
            where = folder / trial.folder if trial.folder else trial_folder(folder, str(trial.name))
            try:
                run = HeldRun(where)
                count, size = count + 1, size + sum(f.stat().st_size for f in run.folder.glob("*.jsonl"))
                digest = _digest(run, steps)
                read[name].append(digest if read[name] else {**digest, "found": _found(run, trial.seed, digest)})
            except (RunUnreadable, OSError) as error:
                unreadable.append(
                    {"trial": str(where.relative_to(folder)), "reason": str(error).replace(str(folder), folder.name)}
                )
    return read, unreadable


def _digest(run: Run, steps: int = 0) -> Data:
    """What is kept of a run: readings of thousands of steps would not fit for hundreds of runs at once."""
    table = run.table("loss", "held_out_loss", *DEPTH)
    loss, heldout = (next(iter(table.get(q, {}).values()), Series([], [])) for q in ("loss", "held_out_loss"))
    ends = {q: end for q, sites in table.items() if q in DEPTH and (end := _end(run, sites))}
    recorded = max((len(series) for q in DEPTH for series in table.get(q, {}).values()), default=None)
    return {"loss": _binned(loss, steps), "heldout": list(zip(heldout.steps, heldout.values, strict=True)),
            "depth": ends, "recorded": recorded, "info": run.info}  # fmt: skip


def _found(run: Run, seed: int | None, digest: Data) -> Data:
    diagnosis, chinese = diagnose(run), diagnose(run, language="zh")
    # readings of one quantity: rules count these, and steps that only evaluated are none
    recorded = diagnosis.recorded if digest["recorded"] is None else digest["recorded"]
    return {"seed": seed, "recorded": recorded, "enough": recorded >= FEW,
            "findings": [_finding(en, zh) for en, zh in zip(diagnosis.findings, chinese.findings, strict=True)]}  # fmt: skip


def _finding(en: Finding, zh: Finding) -> Data:
    """With its words in both languages."""
    words = {key: {"en": getattr(en, key), "zh": getattr(zh, key)} for key in ("verdict", "why")}
    tries = [{"en": a, "zh": b} for a, b in zip(en.try_, zh.try_, strict=True)]
    return {**en.to_dict(), **words, "try": tries, "evidence": list(EVIDENCE[en.rule])}


def _of_run(folder: Path) -> Data:
    run = HeldRun(folder)
    read, info = _digest(run), run.info
    table = run.table()
    last = max((series.steps[-1] for sites in table.values() for series in sites.values()), default=0)
    result, task, settings = (_dict(info.get(k)) for k in ("result", "task", "experiment"))
    ended = Result.from_dict(result)
    settings = settings or _dict(info.get("config"))
    name, rate = folder.resolve().name, settings.get("lr")
    known = {**info, **task, "task": task.get("name"), **{k: v for k, v in result.items() if v is not None}}
    keys = ("task", "unit", "status", "outcome", "steps", "seed", "loss", "accuracy", "blind", "cause", "error",
            "created", "seconds")  # fmt: skip
    heldout = _points(ended.curve or read["heldout"])
    quantities = recorded(run, table)
    return {
        "kind": "run", "title": name, "unit": task.get("unit"), "blind": task.get("blind"),
        "cells": [{"cell": name, "shown_lr": rate}],
        "curves": {key: [c for c in [_curve(name, rate, [line])] if c]
                   for key, line in (("train", read["loss"]), ("heldout", heldout))},
        "depth": _depth({name: (rate, [read])}), "quantities": quantities, "theory": bands(_dict(info.get("structure")), quantities), "snapshots": snapshots(run.events()), "last_step": last, "token_bytes": task.get("unit") == "nats per byte",
        "findings": [{"cell": name, "lr": rate, **_found(run, info.get("seed"), read)}], "not_opened": 0, "unreadable": [],
        "ran": {**{k: known.get(k) for k in keys}, **_origin(None, info, settings)},
    }  # fmt: skip


# ---- curves ----------------------------------------------------------------------------------------------------------

Curve = tuple[dict[int, float], int | None]  # of one seed: step -> value, and the step of the first non-finite one


def _binned(series: Series, steps: int = 0) -> Curve:
    """At most POINTS means over equally many steps, placed at the last of them.

    ``steps`` is the length of the longest run beside it, so that the bins of one that broke early agree with the others'.
    """
    width = -(-(total := max(steps, *series.steps, 1)) // POINTS)
    bins: dict[int, list[float]] = {}
    pairs = list(zip(series.steps, series.values, strict=True))
    for step, value in takewhile(lambda pair: math.isfinite(pair[1]), pairs):
        bins.setdefault(min(-(-step // width) * width, total), []).append(value)
    broken = next((step for step, value in pairs if not math.isfinite(value)), None)
    return {k: math.fsum(v) / len(v) for k, v in bins.items()}, broken


def _points(pairs: Sequence[Sequence[Any]] | None) -> Curve:
    """At most POINTS of the evaluations as they are, the last one among them."""
    kept = [(int(s), float(v)) for s, v in pairs or [] if v is not None and math.isfinite(v)]
    stride = -(-len(kept) // POINTS) or 1
    return dict(kept[(len(kept) - 1) % stride :: stride]), None


def _curve(cell: str, lr: float | None, seeds: Sequence[Curve]) -> Data | None:
    """Mean, lowest and highest over the seeds that have a value at a step, and how many those are."""
    lines = [line for line, _ in seeds if line]
    steps = sorted({s for line in lines for s in line})
    if not steps:
        return None
    at = [[line[s] for line in lines if s in line] for s in steps]
    return {"cell": cell, "lr": lr, "n": len(lines), "steps": steps, "mean": [math.fsum(v) / len(v) for v in at],
            "low": list(map(min, at)), "high": list(map(max, at)), "counts": list(map(len, at)),
            "lost": [[end, line[max(line)]] for line, end in seeds if line and end is not None]}  # fmt: skip


def _depth(cells: Mapping[str, tuple[float | None, Sequence[Data]]]) -> list[Data]:
    """By quantity: one line per cell over its blocks, at each run's last step with finite values at all of them."""
    found = []
    for quantity in DEPTH:
        lines = []
        for cell, (lr, read) in cells.items():
            ends = [r["depth"][quantity] for r in read if quantity in r["depth"]]
            ends = [e for e in ends if e[1].keys() == ends[0][1].keys()]  # one architecture; others would mix depths
            if ends:
                sites = list(ends[0][1])
                at = [[values[s] for _, values in ends] for s in sites]
                steps = [step for step, _ in ends]
                lines.append({"cell": cell, "lr": lr, "n": len(ends), "step": [min(steps), max(steps)], "sites": sites,
                              "stacks": [s.rpartition(".")[0] for s in sites],
                              "mean": [math.fsum(v) / len(v) for v in at], "low": list(map(min, at)),
                              "high": list(map(max, at))})  # fmt: skip
        if lines:
            found.append({"quantity": quantity, "lines": lines})
    return found


def _end(run: Run, sites: Mapping[str, Series]) -> tuple[int, dict[str, float]] | None:
    blocks = (run.info.get("sites") or {}).get("blocks") or [s for s in sites if s not in ("", "model")]
    columns = {b: dict(zip(sites[b].steps, sites[b].values, strict=True)) for b in blocks if b in sites}
    steps = set.intersection(*(set(c) for c in columns.values())) if columns else set()
    whole = [s for s in steps if all(math.isfinite(c[s]) for c in columns.values())]
    return (max(whole), {b: c[max(whole)] for b, c in columns.items()}) if whole else None
