"""The report: numbers against the folder they came from, both languages, nothing that runs or loads, and a real browser."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from normlab import RunUnreadable, diagnosis, intervals, report, runs
from normlab.report import bundle, pages, views, words

RATES, SEEDS, STEPS = [3e-4, 1e-3, 3e-3], [0, 1, 2], 211
CELLS = {"rms/pre": 2.31, "layer/pre": 2.43, "layer/post": 2.44, "batch/post": math.nan}  # loss each tends to
BLOCKS = [f"stack.layers.{i}" for i in range(5)]
WIDE = 4.302653  # Student t, 2 degrees of freedom, 95 %


# ---- a sweep as `normlab compare` leaves it --------------------------------------------------------------------------


def losses(cell: str, lr: float, seed: int, steps: int = STEPS) -> list[float]:
    """Of every step; the third rate breaks post-norm, and nothing helps batch/post."""
    draw = random.Random(f"{cell} {lr} {seed}")
    end = CELLS[cell] + 0.08 * abs(math.log10(lr / 1e-3)) + 0.012 * draw.gauss(0, 1)
    values = [end + 3.2 * math.exp(-step / (2e-2 / lr)) + 0.05 * draw.gauss(0, 1) for step in range(1, steps + 1)]
    if cell == "batch/post":
        values = [5.6 + 0.02 * step + 0.1 * draw.gauss(0, 1) for step in range(1, 30 + 7 * seed)] + [math.inf]
    if cell == "layer/post" and lr == 3e-3:
        values = values[: 50 + seed] + [math.nan] if seed else [5.8 + 0.05 * draw.gauss(0, 1) for _ in range(steps)]
    return values


def trial(cell: str, lr: float, seed: int) -> dict[str, Any]:
    norm, placement = cell.split("/")
    name = f"{norm}-{placement}-lr{lr:g}-seed{seed}"
    values = losses(cell, lr, seed)
    outcome = "diverged" if not math.isfinite(values[-1]) else "collapsed" if values[-1] > 5 else "trained"
    known = outcome != "diverged"
    at = (*range(20, len(values), 20), len(values))
    curve = [[s, statistics.fmean(values[max(0, s - 10) : s]) + 0.03] for s in at]
    return {
        "name": name, "cell": cell, "axes": {"norm": norm, "placement": placement}, "lr": lr, "seed": seed,
        "outcome": outcome, "steps": len(values), "loss": curve[-1][1] if known else None,
        "loss_half_width": 0.03 if known else None, "accuracy": None, "train_loss": values[-1] if known else None,
        "first_loss": values[0], "curve": curve if known else curve[:-1],
        "diverged_at": None if known else len(values),
        "cause": None if known else f"第 {len(values)} 步损失为 inf，首先出现在 stack.layers.3 之后" if cell == "batch/post"
        else f"the training loss is nan at step {len(values)}",
        "error": None, "seconds": 6.2, "overhead_seconds": 0.12, "tokens_per_second": 51234.0 - 700 * seed,
        "matmul_share": 0.41, "peak_memory": 31457280, "parameters": 123456, "folder": f"trials/{name}",
    }  # fmt: skip


def interval(values: list[float]) -> tuple[float, float, float]:
    mean, half = statistics.fmean(values), WIDE * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def cell_entry(cell: str, trials: list[dict[str, Any]], baseline: dict[int, float] | None) -> dict[str, Any]:
    rates = []
    for lr in RATES:
        here = [t for t in trials if t["lr"] == lr]
        known = [t["loss"] for t in here if t["loss"] is not None]
        mean, low, high = interval(known) if len(known) > 1 else (known[0] if known else None, None, None)
        counts = {k: sum(t["outcome"] == k for t in here) for k in ("trained", "collapsed", "diverged", "failed")}
        rates.append({"lr": lr, "mean": mean, "low": low, "high": high, "n": len(known), **counts,
                      "stable": counts["trained"] == len(here)})  # fmt: skip
    good = [r for r in rates if r["stable"]]
    best = min(good, key=lambda r: r["mean"]) if good else None
    entry: dict[str, Any] = {
        "cell": cell, "axes": trials[0]["axes"], "rank": None, "rates": rates, "best_lr": best and best["lr"],
        "best_at_edge": None, **{k: best and best[k] for k in ("mean", "low", "high")}, "n": best["n"] if best else 0,
        "largest_stable_lr": good[-1]["lr"] if good else None, "stable_up_to_edge": len(good) == len(rates),
        "divergence_rate": sum(t["outcome"] in ("diverged", "collapsed") for t in trials) / len(trials),
        "steps_to_target": 180.0 if cell != "batch/post" else None, "tokens_per_second": 50534.0,
        "peak_memory": 31457280, "difference": None, "tied_with_best": False,
    }  # fmt: skip
    if baseline and best:
        pairs = [t["loss"] - baseline[t["seed"]] for t in trials if t["lr"] == best["lr"]]
        mean, low, high = interval(pairs)
        decided = low > 0 or high < 0
        entry["difference"] = {"mean": mean, "low": low, "high": high, "n": 3, "p": 0.012 if decided else 0.41, "decided": decided,
                               "equal": False, **dict(zip(("seeds_needed", "seeds_low", "seeds_high"), (None,) * 3 if decided else (17, 9, 93), strict=True))}  # fmt: skip
    return entry


def write_run(folder: Path, t: dict[str, Any]) -> None:
    draw = random.Random(t["name"])
    pre = t["cell"].endswith("pre")
    writer = runs.Writer(folder / t["folder"], {
        "experiment": {"task": "text", "lr": t["lr"], "seed": t["seed"], "norm": t["axes"]["norm"]}, "seed": t["seed"],
        "task": {"name": "text", "unit": "nats per byte", "blind": 3.27, "sources": {"topics": "ab" * 32}},
        "versions": {"normlab": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "machine": "Linux x86_64, 1 threads", "sites": {"norms": {}, "blocks": BLOCKS},
    })  # fmt: skip
    for step, loss in enumerate(losses(t["cell"], t["lr"], t["seed"]), start=1):
        writer.write(step, {"loss": {"model": loss}})
        if step % 10 in (0, 1):
            about = [math.exp(0.05 * draw.gauss(0, 1)) for _ in BLOCKS]
            writer.write(step, {
                "stream_rms": {b: a * (1 + 0.7 * i if pre else 1.0) for i, (b, a) in enumerate(zip(BLOCKS, about, strict=True))},
                "stream_grad": {b: a * (0.02 if pre else 0.3 ** (5 - i)) for i, (b, a) in enumerate(zip(BLOCKS, about, strict=True))},
                "angle": {b: 0.2 * a / (1 + 0.3 * i) for i, (b, a) in enumerate(zip(BLOCKS, about, strict=True))},
                "grad_norm": {"model": 1.0},
            })  # fmt: skip
    writer.close(
        "finished", result={k: v for k, v in t.items() if k not in ("name", "cell", "axes", "lr", "seed", "folder")}
    )


def make_sweep(folder: Path) -> Path:
    trials = [trial(cell, lr, seed) for cell in CELLS for lr in RATES for seed in SEEDS]
    of = {cell: [t for t in trials if t["cell"] == cell] for cell in CELLS}
    base = cell_entry("layer/pre", of["layer/pre"], None)
    paired = {t["seed"]: t["loss"] for t in of["layer/pre"] if t["lr"] == base["best_lr"]}
    cells = [cell_entry(c, of[c], None if c == "layer/pre" else paired) for c in CELLS]
    for rank, entry in enumerate(sorted((c for c in cells if c["mean"] is not None), key=lambda c: c["mean"]), start=1):
        entry["rank"] = rank
    for entry in cells:
        entry["tied_with_best"] = entry["rank"] in (1, 2)  # whoever they are: the page only shows it
    reason = 'norm "instance" looks at the whole sequence and would leak the future in a causal stack'
    refused = [{"axes": {"norm": "instance", "placement": "pre"}, "reason": reason}]
    machine = {"cpu": "Some CPU", "isa": "avx2", "threads": 1, "torch": "2.13.0", "normlab": "0.1.0",
               "python": "3.11.2"}  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({
        "schema": "normlab.sweep/1", "created": "2026-11-16T01:00:00Z",
        "base": {"task": "text", "dim": 64, "num_layers": 5, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}},
        "axes": {"norm": ["layer", "rms", "batch", "instance"], "placement": ["pre", "post"], "lr": RATES, "seed": SEEDS},
        "baseline": {"norm": "layer", "placement": "pre"}, "refused": refused,
    }))  # fmt: skip
    (folder / "summary.json").write_text(json.dumps({
        "schema": "normlab.summary/1", "task": "text", "unit": "nats per byte", "blind": 3.27, "steps": STEPS,
        "created": "2026-11-16T01:10:00Z", "machine": machine, "complete": False, "baseline": "layer/pre",
        "target_loss": 2.46, "trials": trials, "cells": cells, "refused": [{"cell": "instance/pre", **r} for r in refused],
        "verdict": {"en": ["rms/pre is best: 2.34 nats per byte, 0.12 below layer/pre.", "layer/post is undecided."],
                    "zh": ["rms/pre 最好：2.34 奈特/字节，比 layer/pre 低 0.12。", "layer/post 尚无定论。"]},
    }, allow_nan=False))  # fmt: skip
    best = {c["cell"]: c["best_lr"] or RATES[0] for c in cells}
    for t in trials:
        if t["lr"] == best[t["cell"]]:
            write_run(folder, t)
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("report") / "比较 a")


def changed(sweep: Path, to: Path, change: Any) -> Path:
    """A copy of the sweep with another summary."""
    shutil.copytree(sweep, to)
    summary = json.loads((to / "summary.json").read_text())
    change(summary)
    (to / "summary.json").write_text(json.dumps(summary))
    return to


# ---- the numbers -----------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def test_rows_follow_the_rank_and_repeat_the_summary(sweep):
    rows, cells = report.view(sweep)["cells"], {c["cell"]: c for c in read(sweep)["cells"]}
    assert [r["rank"] for r in rows] == [1, 2, 3, None] and rows[3]["cell"] == "batch/post"
    for row in rows:
        entry = cells[row["cell"]]
        assert all(row[k] == entry[k] for k in ("mean", "low", "high", "n", "best_lr", "peak_memory"))
        kept = {k: v for k, v in (row["difference"] or {}).items() if k != "decimals"}
        assert kept == (entry["difference"] or {})
        assert row["trials"] == 9 and row["broken"] == round(9 * entry["divergence_rate"])
        assert row["tied"] == (row["rank"] == 2) and row["is_baseline"] == (row["cell"] == "layer/pre")


def test_held_out_curves_are_means_over_the_seeds_at_the_best_rate(sweep):
    curves = {c["cell"]: c for c in report.view(sweep)["curves"]["heldout"]}
    best = {c["cell"]: c["best_lr"] for c in read(sweep)["cells"]}
    for cell in ("rms/pre", "layer/pre", "layer/post"):
        seeds = [dict(t["curve"]) for t in read(sweep)["trials"] if t["cell"] == cell and t["lr"] == best[cell]]
        curve = curves[cell]
        assert (
            curve["lr"] == best[cell]
            and curve["n"] == len(seeds) == 3
            and curve["steps"] == [*range(20, 201, 20), STEPS]
        )
        for i, step in enumerate(curve["steps"]):
            values = [s[step] for s in seeds]
            assert curve["mean"][i] == pytest.approx(statistics.fmean(values), rel=1e-12)
            assert (curve["low"][i], curve["high"][i], curve["counts"][i]) == (min(values), max(values), 3)


def test_training_curves_are_means_over_steps_then_seeds(sweep):
    curve = next(c for c in report.view(sweep)["curves"]["train"] if c["cell"] == "rms/pre")
    width = math.ceil(STEPS / views.POINTS)
    assert (
        width == 2 and len(curve["steps"]) == math.ceil(STEPS / width) <= views.POINTS and curve["steps"][-1] == STEPS
    )
    seeds = [losses("rms/pre", curve["lr"], seed) for seed in SEEDS]
    for i in (0, 7, len(curve["steps"]) - 1):
        values = [statistics.fmean(s[i * width : (i + 1) * width]) for s in seeds]
        assert curve["mean"][i] == pytest.approx(statistics.fmean(values), rel=1e-12)
        assert curve["high"][i] == pytest.approx(max(values), rel=1e-12)
    assert curve["lost"] == []


def test_seeds_that_diverge_leave_the_mean_and_are_marked(sweep):
    curve = next(c for c in report.view(sweep)["curves"]["train"] if c["cell"] == "batch/post")
    ends = [len(losses("batch/post", RATES[0], seed)) for seed in SEEDS]  # the last of them is infinite
    assert curve["lr"] == RATES[0], "nothing trained: the lowest rate"
    assert [step for step, _ in curve["lost"]] == ends == [30, 37, 44]
    # all seeds at first, then those that are left
    assert curve["counts"] == [sum(step < end for end in ends) for step in range(1, 44)] and curve["counts"][-1] == 1


def test_bins_of_a_run_that_broke_early_agree_with_those_of_a_long_one():
    steps = 1009
    long = runs.Series(list(range(1, steps + 1)), [float(s) for s in range(1, steps + 1)])
    short = runs.Series(list(range(1, 38)), [*(float(s) for s in range(1, 37)), math.nan])
    whole, end = views._binned(long, steps)
    part, broken = views._binned(short, steps)
    assert len(whole) <= views.POINTS and max(whole) == steps and end is None and broken == 37
    assert part == {k: v for k, v in whole.items() if k <= 36}
    assert whole[6] == statistics.fmean(range(1, 7))


def test_thinned_evaluations_keep_the_last():
    for count in (1, 199, 200, 201, 997):
        line, _ = views._points([[s, s / 7] for s in range(1, count + 1)])
        assert max(line) == count and len(line) <= views.POINTS and all(v == s / 7 for s, v in line.items())
    assert views._points([[1, None], [2, math.inf], [3, 1.5]]) == ({3: 1.5}, None)
    assert views._points(None) == ({}, None)


def test_depth_is_the_last_recorded_step_by_block(sweep):
    depth = {d["quantity"]: {line["cell"]: line for line in d["lines"]} for d in report.view(sweep)["depth"]}
    assert list(depth) == ["stream_rms", "stream_grad", "angle"], "param_grad was not recorded"
    for quantity in depth:
        for cell in ("layer/post", "batch/post"):
            line = depth[quantity][cell]
            ends = []
            for seed in SEEDS:
                norm, placement = cell.split("/")
                series = runs.Run(sweep / f"trials/{norm}-{placement}-lr{line['lr']:g}-seed{seed}").series(quantity)
                ends.append([series[b].last() for b in BLOCKS])
            assert line["sites"] == BLOCKS and line["n"] == 3
            assert line["mean"] == pytest.approx([statistics.fmean(v) for v in zip(*ends, strict=True)], rel=1e-12)
            assert line["low"] == [min(v) for v in zip(*ends, strict=True)]
    assert depth["angle"]["rms/pre"]["step"] == [STEPS, STEPS] and depth["angle"]["batch/post"]["step"] == [30, 41]


def test_depth_skips_a_step_with_a_value_that_is_not_finite(tmp_path):
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": {}, "blocks": ["encoder.0", "encoder.1", "decoder.0"]}})
    for step, last in ((1, 3.0), (5, 4.0), (9, math.inf)):
        writer.write(step, {"stream_rms": {"decoder.0": 7.0, "encoder.0": 1.0, "encoder.1": last}, "loss": {"": 2.0}})
    writer.close()
    (depth,) = report.view(tmp_path / "a")["depth"]
    (line,) = depth["lines"]
    assert line["step"] == [5, 5] and line["mean"] == [1.0, 4.0, 7.0]
    assert line["stacks"] == ["encoder", "encoder", "decoder"], "no line is drawn from one stack into the next"


def test_the_map_counts_what_did_not_train_and_ends_at_the_blind_loss(sweep):
    found = report.view(sweep)["map"]
    assert found["rates"] == RATES and [r["cell"] for r in found["rows"]] == [
        "rms/pre",
        "layer/pre",
        "layer/post",
        "batch/post",
    ]
    broken = found["rows"][2]["squares"][2]
    assert (broken["diverged"], broken["collapsed"], broken["trained"], broken["n"]) == (2, 1, 0, 1)
    assert all(s["mean"] is None and s["diverged"] == 3 for s in found["rows"][3]["squares"])
    assert [s["best"] for s in found["rows"][0]["squares"]] == [False, True, False]
    means = [t["loss"] for t in read(sweep)["trials"] if t["cell"] == "rms/pre" and t["lr"] == 1e-3]
    assert found["low"] == pytest.approx(statistics.fmean(means)) and found["high"] == 3.27 and found["cut"]


def test_findings_are_those_of_diagnose(sweep):
    for found in report.view(sweep)["findings"]:
        run = diagnosis.diagnose(sweep / f"trials/{found['cell'].replace('/', '-')}-lr{found['lr']:g}-seed0")
        english = [
            {
                **{k: v for k, v in f.items() if k != "evidence"},
                **{k: f[k]["en"] for k in ("verdict", "why")},
                "try": [t["en"] for t in f["try"]],
            }
            for f in found["findings"]
        ]
        assert found["seed"] == 0 and english == [f.to_dict() for f in run.findings]
        assert found["enough"] == (run.recorded >= diagnosis.FEW) == (found["cell"] != "batch/post")
    assert {f["cell"] for f in report.view(sweep)["findings"] if f["findings"]} == {"layer/post", "batch/post"}


def test_evaluations_are_not_counted_as_recorded_steps(tmp_path):
    """Rules need readings of one quantity; a page that counted evaluations would call their silence an answer."""
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": {}, "blocks": BLOCKS[:2]}})
    for step in range(1, 41):
        writer.write(step, {"loss": {"model": 2.0}, "held_out_loss": {"model": 2.0}})
        if step in (1, 2, 5, 10, 20):
            writer.write(step, {"stream_rms": dict.fromkeys(BLOCKS[:2], 1.0)})
    writer.close()
    (found,) = report.view(tmp_path / "a")["findings"]
    assert found["recorded"] == 5 and not found["enough"] and found["findings"] == []


def test_failures_share_a_row_if_only_numbers_differ(sweep):
    view = report.view(sweep)
    rows = {(f["cell"], f["lr"], f["outcome"]): f for f in view["failures"]}
    assert len(rows) == len(view["failures"]) == 5 and view["failures_left_out"] == 0
    row = rows["batch/post", 1e-3, "diverged"]
    assert row["seeds"] == SEEDS and row["steps"] == [30, 37, 44] and row["cause"]["en"].startswith("第 30 步")
    assert sum(len(f["seeds"]) for f in view["failures"]) == sum(
        t["outcome"] != "trained" for t in read(sweep)["trials"]
    )


def test_what_ran_and_plan(sweep):
    view = report.view(sweep)
    assert view["planned"] == (4 * 2 - 1) * 9 and view["ended"] == 36 and not view["complete"]
    ran = view["ran"]
    assert ran["seeds"] == SEEDS and ran["trials"] == 36 and ran["data"] == {"topics": "ab" * 32}
    assert ran["settings"]["optimizer.betas"] == [0.9, 0.95] and ran["machine"]["cpu"] == "Some CPU"
    assert view["refused"][0]["cell"] == "instance/pre"


def test_what_is_opened_is_bounded_and_every_cell_comes_first(sweep, monkeypatch):
    monkeypatch.setattr(views, "RUNS", 5)
    counts = {c["cell"]: c["n"] for c in report.view(sweep)["curves"]["train"]}
    assert counts == {"rms/pre": 1, "layer/pre": 2, "layer/post": 1, "batch/post": 1}, "the baseline is opened first"
    monkeypatch.setattr(views, "BYTES", 1)
    assert {c["n"] for c in report.view(sweep)["curves"]["train"]} == {1}
    monkeypatch.setattr(views, "CELLS", 2)
    view = report.view(sweep)
    assert {c["cell"] for c in view["curves"]["train"]} == {"layer/pre", "rms/pre"} and view["not_opened"] == 2
    assert len(view["curves"]["heldout"]) == 4, "they need no run"


# ---- the page --------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags with attributes, the text of each script, and the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.tags.append(("/" + tag, {}))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        elif not self.tags or self.tags[-1][0] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def text(sweep) -> str:
    return report.write(sweep).read_text(encoding="utf-8")


def embedded(page: Page) -> Any:
    return json.loads(page.scripts[0], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_page_loads_nothing(text):
    page = Page(text)
    assert len(page.scripts) == 2 and not {"link", "img", "iframe", "object", "embed", "base"} & {
        t for t, _ in page.tags
    }
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "data", "style"} & set(attributes), tag
        assert all(not name.startswith("on") for name in attributes), tag
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src" not in policy
    assert bundle._digest(page.scripts[1]) in policy, "the hash of the script as it stands"
    assert len(text) < 400_000, "no library in it"


def test_the_page_holds_what_there_is(text, sweep):
    held = embedded(Page(text))
    assert held["view"] == json.loads(json.dumps(report.view(sweep)))
    assert set(held) == {"texts", "view", "words", "few", "most_seeds"}
    assert held["words"]["vanishing-gradient"] == {"en": "vanishing gradient", "zh": "梯度消失"}


def test_digits_shown_are_chosen_once(sweep):
    """So that an end of a decided interval never reads as zero, in the table, the sentence and the page."""
    view, cells = report.view(sweep), {c.name: c for c in runs.read_summary(sweep).cells}
    halves = [(c.high - c.low) / 2 for c in cells.values() if c.low is not None]
    assert view["decimals"] == 1 - math.floor(math.log10(min(halves)))
    for row in view["cells"]:
        of = cells[row["cell"]].difference
        assert (row["difference"] or {}).get("decimals") == (of and of.decimals)
        if of is not None and of.decided:
            assert float(f"{of.low:.{of.decimals}f}") * float(f"{of.high:.{of.decimals}f}") > 0


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;b&gt;{{ 7 * 7 }}{0}%{x}"


def renamed(summary: dict[str, Any]) -> None:
    text = json.dumps(summary).replace("rms/pre", json.dumps(NASTY)[1:-1])
    summary.clear()
    summary.update(json.loads(text))
    summary["unit"] = summary["machine"]["cpu"] = summary["refused"][0]["reason"] = NASTY
    summary["verdict"] = {"en": [NASTY], "zh": [NASTY]}
    summary["trials"][-1]["cause"] = NASTY


def test_names_out_of_data_are_text(sweep, tmp_path):
    page = Page(report.render(report.view(changed(sweep, tmp_path / "<i>a</i>", renamed))))
    assert len(page.scripts) == 2 and not {"img", "i", "b"} & {t for t, _ in page.tags}
    assert embedded(page)["view"]["unit"] == NASTY and "<" not in page.scripts[0]


def test_missing_pieces_leave_a_page(sweep, tmp_path):
    """Everything that may be null is, no sweep.json, and the runs are gone or torn."""

    def empty(summary: dict[str, Any]) -> None:
        for key in ("blind", "unit", "target_loss", "machine", "verdict", "created", "baseline"):
            summary[key] = None
        del summary["refused"]
        for cell in summary["cells"]:
            for key in ("low", "high", "difference", "steps_to_target", "tokens_per_second", "peak_memory", "rank"):
                cell[key] = None
            del cell["tied_with_best"]
        for t in summary["trials"]:
            del t["curve"]

    folder = changed(sweep, tmp_path / "a", empty)
    (folder / "sweep.json").unlink()
    kept = sorted((folder / "trials").iterdir())
    for gone in kept[1:-1]:
        shutil.rmtree(gone)
    lines = (kept[0] / "readings.jsonl").read_text().splitlines()
    (kept[0] / "readings.jsonl").write_text("\n".join([*lines[:5], "{torn", *lines[5:]]) + "\n")
    view = report.view(folder)
    assert view["curves"]["heldout"] == [] and len(view["curves"]["train"]) == 1 and view["planned"] is None
    assert len(view["unreadable"]) == len(kept) - 1 and any("line 6" in u["reason"] for u in view["unreadable"])
    assert str(tmp_path) not in json.dumps(view), "no path of this machine in a page that is passed on"
    assert embedded(Page(report.render(view)))["view"]["unit"] is None


def test_a_sweep_in_which_nothing_ran(sweep, tmp_path):
    folder = changed(sweep, tmp_path / "a", lambda s: s.update(trials=[], cells=[], complete=False))
    shutil.rmtree(folder / "trials")
    view = report.view(folder)
    assert view["cells"] == [] and view["metrics"] == [] and (view["ended"], view["planned"]) == (0, 63)
    assert embedded(Page(report.render(view)))["view"]["complete"] is False


def test_failures_in_a_sweep_that_has_ended(sweep, tmp_path):
    """All trials are there, some broke, one was cut short; the page must not say that it still runs."""

    def end(summary: dict[str, Any]) -> None:
        summary["trials"][0].update(outcome="failed", error="MemoryError", loss=None)
        summary["trials"][1].update(outcome="untrained", cause="still falling")
        summary["cells"][2]["difference"]["seeds_needed"] = intervals.MOST_SEEDS
        summary["cells"][0]["difference"].update(decided=False, seeds_needed=19, seeds_low=9, seeds_high=1000)
        summary["cells"][0]["rates"][0].update(trained=1, failed=1, untrained=1)

    folder = changed(sweep, tmp_path / "a", end)
    plan = json.loads((folder / "sweep.json").read_text())
    plan["axes"] = {"norm": ["a", "b", "c", "d", "e"], "lr": RATES, "seed": SEEDS}  # 4 cells and the refused one
    (folder / "sweep.json").write_text(json.dumps(plan))
    view = report.view(folder)
    assert view["failures"][0]["outcome"] == "failed" and view["failures"][-1]["outcome"] == "untrained"
    assert not view["complete"] and view["ended"] == view["planned"] == 36 and view["failed"] == 1
    needed = {c["cell"]: c["difference"] for c in view["cells"] if c["difference"]}
    assert needed["layer/post"]["seeds_needed"] == intervals.MOST_SEEDS and needed["rms/pre"]["seeds_high"] == 1000
    square = view["map"]["rows"][0]["squares"][0]
    assert (square["trained"], square["failed"], square["untrained"]) == (1, 1, 1)


def test_numbers_that_json_lacks_do_not_reach_the_page(sweep, tmp_path):
    """summary.json must not hold them; Python would read them all the same."""
    folder = changed(
        sweep, tmp_path / "a", lambda s: s["cells"][0].update(steps_to_target=math.nan, tokens_per_second=math.inf)
    )
    assert "NaN" in (folder / "summary.json").read_text()
    row = report.view(folder)["cells"][0]
    assert row["steps_to_target"] is None and row["tokens_per_second"] is None


def test_a_single_run(sweep, tmp_path):
    folder = sweep / "trials" / "layer-post-lr0.001-seed1"
    view = report.view(folder)
    assert view["kind"] == "run" and view["curves"]["train"][0]["n"] == 1
    assert view["curves"]["heldout"][0]["mean"] == [v for _, v in trial("layer/post", 1e-3, 1)["curve"]]
    assert view["ran"]["outcome"] == "trained" and view["ran"]["data"] == {"topics": "ab" * 32}
    path = report.write(folder, tmp_path / "new" / "page.html")
    assert [p.name for p in path.parent.iterdir()] == ["page.html"], "nothing half written beside it"
    page = Page(path.read_text())
    assert embedded(page)["view"] == json.loads(json.dumps(view))
    assert view["findings"][0]["findings"][0]["rule"] == "vanishing-gradient" and len(page.scripts) == 2


def test_a_folder_without_anything_is_refused(tmp_path, sweep):
    with pytest.raises(RunUnreadable, match="nothing to report"):
        report.view(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunUnreadable, match="schema None"):
        report.view(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunUnreadable, match="not valid JSON"):
        report.view(tmp_path)
    with pytest.raises(RunUnreadable, match=r"schema 'normlab\.summary/2'"):
        report.view(changed(sweep, tmp_path / "a", lambda s: s.update(schema="normlab.summary/2")))


def test_a_report_needs_no_torch(sweep):
    code = "import sys; from normlab import report; report.view(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(sweep)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


# ---- words -----------------------------------------------------------------------------------------------------------

HAN = re.compile(r"[\u4e00-\u9fff]")


def test_every_word_is_there_in_both_languages():
    for key, (english, chinese) in words.WORDS.items():
        assert english and not HAN.search(english) and HAN.search(chinese), key


def test_every_name_the_page_may_meet_is_translated_and_no_other():
    names = {*diagnosis.RULES, *diagnosis.SEVERITIES, *runs.OUTCOMES, *runs.STATUSES, *runs.EQUAL}
    tasks = "".join(
        p.read_text(encoding="utf-8") for p in (Path(pages.__file__).parents[1] / "lab" / "tasks").glob("*.py")
    )
    units = {*re.findall(r'unit(?:: str)? ?= ?"([^"]+)"', tasks), "own loss"}
    bench = "".join(p.read_text(encoding="utf-8") for p in (Path(pages.__file__).parents[1] / "bench").glob("*.py"))
    timed = {
        *re.findall(r'case="([^"]+)"', bench),
        *re.findall(r'family="([^"A-Z]+)"', bench),
    }  # norms keep their names
    rivals = {name for name in words.WORDS if f'"{name}":' in bench}
    assert "unfused" in rivals and "training step" in timed
    names |= timed | rivals | {runs.BUDGETS[1]}
    assert "nats per byte" in units and names | units <= set(words.WORDS)
    idle = set(words.WORDS) - names - units
    assert all(name.startswith("nats per") for name in idle), idle


# ---- in a notebook ---------------------------------------------------------------------------------------------------


def test_a_notebook_is_given_a_frame(sweep):
    folder = sweep / "trials" / "layer-post-lr0.001-seed1"
    for of in (sweep, str(folder), runs.Run(folder), runs.read_summary(sweep)):
        frame = Page(report.plot(of)._repr_html_())
        assert [tag for tag, _ in frame.tags] == ["iframe", "/iframe"] and not frame.scripts
        (inner,) = [a["srcdoc"] for t, a in frame.tags if t == "iframe"]
        assert embedded(Page(inner))["view"]["kind"] == (
            "run" if of in (str(folder),) or isinstance(of, runs.Run) else "sweep"
        )
    (attributes,) = [
        a for t, a in Page(report.plot(sweep, "depth", language="zh", height=500)._repr_html_()).tags if t == "iframe"
    ]
    assert attributes["sandbox"] == "allow-scripts", "no origin: the notebook is out of reach"
    assert (
        "500px" in attributes["style"] and embedded(Page(attributes["srcdoc"]))["address"] == "page=sweep-depth&lang=zh"
    )
    with pytest.raises(ValueError, match="geometry"):
        report.plot(sweep / "trials" / "layer-post-lr0.001-seed1", "geometri")
    with pytest.raises(ValueError, match="language"):
        report.plot(sweep, language="de")


def test_an_answer_by_itself_shows_what_needs_no_run(sweep):
    view, whole = report.view(runs.read_summary(sweep)), report.view(sweep)
    assert all(view[k] == whole[k] for k in ("cells", "map", "verdict", "failures", "decimals"))
    assert view["curves"]["heldout"] == whole["curves"]["heldout"] and view["curves"]["train"] == view["depth"] == []
