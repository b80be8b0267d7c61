"""The answer of a sweep: planted effects are found, chance is not, and every way a sweep can go wrong is said."""

from __future__ import annotations

import csv
import json
import math
import random
import statistics

import pytest
from planted import BY_RATE, RATES, answer, cells_of, check, sweep_of, trials_of

from normlab import RunUnreadable, runs
from normlab.answer import numbers as counting
from normlab.answer import read
from normlab.lab.rates import MOST_LOST
from normlab.runs import Refused, Summary, cell_name, plain, read_trials, write_summary

# ---- rates -----------------------------------------------------------------------------------------------------------


def test_a_rate_with_a_broken_seed_is_never_the_best():
    sweep = sweep_of(norms=("layer",), placements=("pre",))
    for outcome in ("diverged", "collapsed", "untrained", "failed"):
        trials = trials_of(sweep)
        trials[4].update(outcome=outcome, loss=9.0)  # rate 1e-3, seed 1
        (cell,) = check(answer(sweep, trials)).cells
        assert cell.best_lr == 3e-3 and cell.mean == pytest.approx(2.35) and cell.best_at_edge == "high"
        (rate,) = (r for r in cell.rates if r.lr == 1e-3)
        assert rate.trained == 2 and rate.count(outcome) == 1 and not rate.stable
        assert rate.n == (3 if outcome in ("collapsed", "untrained") else 2)
        assert cell.divergence_rate == pytest.approx(1 / 9 if outcome in ("diverged", "collapsed") else 0)
        assert cell.tokens_per_second == pytest.approx(1001.0) and cell.peak_memory == 9


def test_failed_trials_are_no_part_of_the_divergence_rate():
    sweep = sweep_of(norms=("layer",), placements=("pre",))
    trials = trials_of(sweep)
    trials[0].update(outcome="failed", loss=None)
    trials[8].update(outcome="diverged", loss=None)
    assert answer(sweep, trials).cells[0].divergence_rate == pytest.approx(1 / 8)


def test_stable_means_giving_away_at_most_a_twentieth_of_the_gain():
    assert counting.MOST_LOST == MOST_LOST
    rates = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    gain = 5.3 - 2.0
    lost = dict(zip(rates, (0.06, 0.0, 0.0499, 0.0501, 0.01), strict=True))  # shares of the gain
    sweep = sweep_of(("layer",), ("pre",), rates)
    (cell,) = check(answer(sweep, trials_of(sweep, lambda n, p, lr: 2.0 + lost[lr] * gain))).cells
    assert [r.stable for r in cell.rates] == [False, True, True, False, True]
    assert cell.best_lr == 3e-4 and cell.largest_stable_lr == 1e-3 and not cell.stable_up_to_edge
    (cell,) = answer(sweep, trials_of(sweep, lambda *_: 2.0)).cells
    assert cell.largest_stable_lr == 1e-2 and cell.stable_up_to_edge and cell.best_at_edge == "low"


def test_the_verdict_says_where_training_breaks_and_where_the_grid_ends():
    def loss(norm, placement, lr):
        if placement == "post":
            return "diverged" if lr > 3e-4 else 2.5
        return "collapsed" if placement == "none" else 2.3 - 10 * lr

    sweep = sweep_of(placements=("pre", "post", "none"))
    found = check(answer(sweep, trials_of(sweep, loss)))
    en = " ".join(found.verdict.en)
    assert (
        "Training breaks above 0.0003: layer/post, rms/post; no rate trained every seed: layer/none, rms/none; best at the edge"
        in en
    )
    assert "widen --lr): lowest rate: layer/post, rms/post; highest rate: layer/pre, rms/pre." in en
    cells = cells_of(found)
    assert cells["layer/post"].largest_stable_lr == 3e-4 and cells["layer/post"].divergence_rate == pytest.approx(2 / 3)
    none = cells["layer/none"]
    assert none.mean is None and none.best_lr is None and none.n == 0 and none.largest_stable_lr is None
    assert none.difference is None and not none.tied_with_best and none.rank >= 5


def test_a_single_rate_is_no_search():
    found = check(answer(sweep := sweep_of(rates=(1e-3,)), trials_of(sweep, noise=0.01)))
    assert all(c.best_at_edge is None and c.stable_up_to_edge for c in found.cells)
    assert any(s.startswith("One rate only, 0.001:") for s in found.verdict.en)


@pytest.mark.parametrize("target, steps", [(3.0, 100), (2.8, 100), (2.6, 140), (2.3, 200), (2.2, None)])
def test_steps_to_the_target_are_interpolated(target, steps):
    sweep = sweep_of(("layer",), ("pre",))
    (cell,) = answer(sweep, trials_of(sweep), target_loss=target).cells
    assert cell.steps_to_target == (None if steps is None else pytest.approx(steps))


def test_the_target_is_the_baselines_mean_and_the_mean_curve_must_reach_it():
    sweep = sweep_of(norms=("layer",))
    trials = trials_of(sweep, lambda n, p, lr: 2.3 - 0.25 * (p == "post") + BY_RATE[lr])
    found = answer(sweep, trials)
    assert found.target_loss == pytest.approx(2.3)
    assert cells_of(found)["layer/post"].steps_to_target == pytest.approx(150)
    for trial in trials:
        if trial["cell"] == "layer/post" and trial["lr"] == 1e-3 and trial["seed"] == 2:
            trial["curve"] = [[100, 2.9], [200, 3.1]]
    assert cells_of(answer(sweep, trials))["layer/post"].steps_to_target is None
    assert cells_of(answer(sweep, trials))["layer/pre"].steps_to_target == pytest.approx(200), "its own end"


# ---- sweeps that are not whole ---------------------------------------------------------------------------------------


def test_pairs_are_over_the_seeds_both_have():
    sweep = sweep_of(norms=("layer",), rates=(1e-3,), seeds=5)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + 0.2 * (p == "post"), noise=0.01, shared=1.0)
    for trial in trials:
        if (trial["cell"], trial["seed"]) == ("layer/post", 4):
            trial.update(outcome="failed", loss=None, error="MemoryError: 3 GB. ")
    partial = [t for t in trials if (t["cell"], t["seed"]) != ("layer/pre", 0)]
    found = check(answer(sweep, partial))
    difference = cells_of(found)["layer/post"].difference
    loss = {(t["cell"], t["seed"]): t["loss"] for t in trials}
    assert not found.complete and difference.n == 3
    assert difference.mean == pytest.approx(
        statistics.fmean(loss["layer/post", s] - loss["layer/pre", s] for s in (1, 2, 3))
    )
    assert found.verdict.en[0].startswith(
        "Partial answer: 9 of 10 trials have ended, 1 failed (layer-post-lr0.001-seed4: Mem"
    )
    assert not cells_of(found)["layer/post"].rates[0].stable


def test_seeds_apart_leave_no_difference():
    sweep = sweep_of(norms=("layer",), rates=(1e-3,), seeds=4)
    trials = [t for t in trials_of(sweep) if (t["seed"] < 2) == (t["cell"] == "layer/pre")]
    found = check(answer(sweep, trials))
    assert all(c.difference is None and c.n == 2 for c in found.cells) and found.cells[1].tied_with_best


def test_a_rate_with_fewer_seeds_waits_for_the_others():
    sweep = sweep_of(("layer",), ("pre",))
    trials = [t for t in trials_of(sweep) if t["lr"] != 1e-3 or t["seed"] == 0]
    (cell,) = check(answer(sweep, trials)).cells
    assert cell.best_lr == 3e-3 and [r.stable for r in cell.rates] == [False, True, True]


@pytest.mark.parametrize("count", range(0, 36, 5))
def test_any_part_of_a_sweep_has_an_answer(count):
    sweep = sweep_of()
    trials = trials_of(sweep, lambda n, p, lr: "diverged" if (p, lr) == ("post", 3e-3) else 2.3, noise=0.1, seed=count)
    random.Random(count).shuffle(trials)
    found = check(answer(sweep, trials[:count]))
    assert not found.complete and len(found.trials) == count and len(found.cells) == 4
    assert check(answer(sweep, trials)).complete


def test_nothing_finished_everything_broken_everything_failed():
    sweep = sweep_of()
    none = check(answer(sweep, []))
    assert none.verdict.en == ("No trial has ended: there is nothing to compare.",) and not none.complete
    assert none.baseline == "layer/pre" and none.target_loss is None and none.cells[0].divergence_rate is None
    broken = check(answer(sweep, trials_of(sweep, lambda *_: "diverged")))
    assert broken.complete and list(broken.verdict.en) == [
        "No cell trained with every seed at any rate: of 36 trials 36 diverged or collapsed, 0 were still falling; lower --lr."
    ]
    short = check(answer(sweep, trials_of(sweep, lambda n, p, lr: "untrained" if lr < 3e-3 else "collapsed")))
    assert short.complete and [c.divergence_rate for c in short.cells] == pytest.approx([1 / 3] * 4)
    assert list(short.verdict.en) == [
        "No cell trained with every seed at any rate: of 36 trials 12 diverged or collapsed, 24 were still falling; lower --lr, "
        "give more --steps."
    ]
    slow = check(answer(sweep, trials_of(sweep, lambda n, p, lr: "untrained" if p == "post" else 2.3)))
    said = " ".join(slow.verdict.en)
    assert "No rate trained every seed: layer/post, rms/post (losses still falling: more --steps); best at" in said
    assert not any("breaks" in s or "failed" in s for s in slow.verdict.en)
    failed = check(answer(sweep, [{**t, "error": "ImportError: x"} for t in trials_of(sweep, lambda *_: "failed")]))
    assert not failed.complete and len(failed.verdict.en) == 1 and "36 failed" in failed.verdict.en[0]


def test_one_cell_is_described_not_compared():
    found = check(answer(sweep := sweep_of(("layer",), ("pre",)), trials_of(sweep, noise=0.01)))
    assert len(found.verdict.en) == 1 and found.verdict.en[0].startswith("layer/pre has a mean of 2.")
    assert found.cells[0].difference is None and not found.cells[0].tied_with_best


def test_the_baseline_may_be_named_missing_broken_or_refused():
    sweep = sweep_of(refused=[{"axes": {"norm": "layer", "placement": "pre"}, "reason": "cannot be built."}])
    trials = [
        t for t in trials_of(sweep, lambda n, p, lr: "diverged" if n == "rms" and p == "post" else 2.3, noise=0.01)
    ]
    found = check(answer(sweep, trials))
    assert {c.name for c in found.cells} == {"layer/post", "rms/pre", "rms/post"} and found.complete
    assert found.baseline == found.cells[0].name and len(found.trials) == 27
    assert found.refused == (Refused(axes={"norm": "layer", "placement": "pre"}, reason="cannot be built."),)
    assert found.refused[0].to_dict()["cell"] == found.refused[0].name == "layer/pre"
    assert "Refused: layer/pre (cannot be built)." in found.verdict.en
    assert check(answer(sweep, trials, baseline="rms/pre")).baseline == "rms/pre"
    broken = check(answer(sweep, trials, baseline="rms/post"))
    assert all(c.difference is None for c in broken.cells)
    assert "rms/post, the baseline, has no mean to compare with." in broken.verdict.en
    assert broken.cells[1].tied_with_best
    with pytest.raises(ValueError, match="Did you mean 'rms/pre'"):
        answer(sweep, trials, baseline="rms/pro")


def test_many_cells_are_summarised():
    sweep = sweep_of(norms=[f"n{i}" for i in range(13)], placements=[f"p{i}" for i in range(7)], rates=RATES, seeds=5)

    def loss(norm, placement, lr):
        if lr == 3e-3 and norm in ("n1", "n2"):
            return "collapsed"
        return 2.3 + BY_RATE[lr] + 0.3 * (placement == "p3") + 0.0001 * int(norm[1:])

    found = check(answer(sweep, trials_of(sweep, loss, noise=0.01)))
    assert max(len(s) for s in found.verdict.en) < 450
    assert any("Undecided" in s and " more;" in s for s in found.verdict.en)


def test_numbers_that_json_lacks_and_results_that_are_none():
    sweep = sweep_of(("layer",), ("pre",), (1e-3,), seeds=4, blind=math.inf)
    trials = trials_of(sweep)
    trials[0].update(loss=math.nan, train_loss=math.inf)
    trials[1].update(outcome="exploded")
    trials[2].update(train_loss="nan", curve=[[100, math.nan], [200, 2.3]])
    found = check(answer(sweep, [*trials, {**trials[0], "cell": "of/another/sweep"}]))
    assert [t.outcome for t in found.trials] == ["failed", "failed", "trained", "trained"] and found.blind is None
    assert found.trials[2].train_loss is None and found.trials[2].curve == ((200, 2.3),) and found.cells[0].n == 2


# ---- on disk ---------------------------------------------------------------------------------------------------------


def on_disk(folder, sweep, trials):
    """As training leaves it; an axis the experiment has no field for is a setting of its model."""
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(sweep))
    for trial in trials:
        experiment = {"lr": trial["lr"], "seed": trial["seed"], "model": {"dim": 16}}
        for axis, value in trial["axes"].items():
            (experiment if axis in ("norm", "placement") else experiment["model"])[axis] = value
        result = {k: v for k, v in trial.items() if k not in ("name", "cell", "axes", "lr", "seed", "folder")}
        writer = runs.Writer(folder / "trials" / trial["name"], {
            "experiment": experiment, "result": None, "task": {"name": "text", "unit": "nats per byte", "blind": 3.3}})  # fmt: skip
        result["name"] = "what the folder is called counts"
        writer.close("failed" if trial["outcome"] == "failed" else "finished", result=result)
    return folder


def test_a_sweep_is_read_from_its_folder(tmp_path):
    sweep = sweep_of()
    trials = trials_of(sweep, noise=0.05)
    trials[0] = {**trials[0], "outcome": "failed", "loss": None, "error": "OSError: gone"}
    stored = {k: v for k, v in sweep.items() if k not in ("unit", "blind")}
    found = check(read(on_disk(tmp_path / "sweep", stored, trials)))
    expected = answer(sweep, [{**t, "blind": 3.3, "folder": f"trials/{t['name']}"} for t in trials])
    assert found.to_dict() == expected.to_dict() and found.unit == "nats per byte" and found.blind == 3.3
    assert Summary.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_what_cannot_be_read_is_missing(tmp_path):
    sweep = sweep_of()
    folder = on_disk(tmp_path / "sweep", sweep, trials := trials_of(sweep))
    names = [t["name"] for t in trials]
    info = [folder / "trials" / n / "run.json" for n in names]
    info[0].write_text(info[0].read_text()[:100])
    info[1].write_bytes(b"\xff\xfe\x00")
    info[2].unlink()
    info[3].write_text(json.dumps({"schema": "normlab.run/9"}))
    for path, change in ((info[4], {"result": None}), (info[5], {"result": [1]}), (info[6], {"experiment": {}}),
                         (info[7], {"experiment": None})):  # fmt: skip
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (folder / "trials" / "stray.txt").write_text("not a run")
    found = check(read(folder))
    assert [t.name for t in found.trials] == names[8:] and not found.complete


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(RunUnreadable, match="holds no sweep"):
        read_trials(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunUnreadable, match="not valid JSON"):
        read_trials(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": "normlab.sweep/2"}))
    with pytest.raises(RunUnreadable, match=r"has schema 'normlab.sweep/2', this version reads 'normlab.sweep/1'"):
        read_trials(tmp_path)


def test_further_axes_and_the_names_of_cells(tmp_path):
    assert cell_name({"norm": "rms", "eps": 1e-6, "num_layers": 4, "bias": True}) == "rms/1e-06/4/true"
    assert cell_name({}) == "all"
    sweep = {**sweep_of(), "axes": {"norm": ["layer"], "num_layers": [2, 4], "lr": [1e-3], "seed": [0, 1, 2]},
             "baseline": {"num_layers": 2, "norm": "layer"}}  # fmt: skip
    trials = [
        {"name": f"t{n}{s}", "cell": f"layer/{n}", "axes": {"norm": "layer", "num_layers": n}, "lr": 1e-3, "seed": s,
         "outcome": "trained", "loss": 2.0 + 0.1 * n + 0.01 * s * n}
        for n in (2, 4) for s in range(3)
    ]  # fmt: skip
    found = check(read(on_disk(tmp_path / "sweep", sweep, trials)))
    assert found.baseline == "layer/2" and cells_of(found)["layer/4"].difference.mean == pytest.approx(0.22)
    alone = {**sweep, "base": {"lr": 1e-3, "seed": 0}, "axes": {}, "baseline": {}}
    (cell,) = check(answer(alone, [{**trials[0], "cell": "all", "axes": {}}])).cells
    assert cell.name == "all" and cell.mean == pytest.approx(2.2)


def test_what_is_written_is_the_answer(tmp_path):
    sweep = sweep_of()
    trials = trials_of(sweep, lambda n, p, lr: "diverged" if n + p == "rmspost" else 2.3 + BY_RATE[lr], noise=0.02)
    found = answer(sweep, trials)
    for _ in range(2):  # the second replaces the first
        write_summary(tmp_path, found)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.csv", "summary.json", "trials.csv"]
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary == found.to_dict() and "\\u" not in (tmp_path / "summary.json").read_text(encoding="utf-8")
    assert list(summary) == ["schema", "task", "unit", "blind", "steps", "equal", "created", "machine", "complete", "planned", "looks",
                             "wrong", "baseline", "best", "metric", "margin", "target_loss", "common_target", "trials", "cells",
                             "refused", "verdict"]  # fmt: skip
    assert set(summary["cells"][0]) == {
        "cell", "axes", "rank", "steps", "choices", "figures", "traits", "rates", "best_lr", "best_at_edge", "mean", "low", "high", "n", "cross_fitted", "largest_stable_lr",
        "stable_up_to_edge", "divergence_rate", "steps_to_target", "tokens_per_second", "peak_memory", "difference",
        "behind_best", "tied_with_best"}  # fmt: skip
    fields = {"mean", "low", "high", "n", "p", "decided", "equal", "seeds_needed", "seeds_low", "seeds_high"}
    assert set(summary["cells"][1]["behind_best"]) == fields
    tables = {}
    for name in ("trials", "cells"):
        with open(tmp_path / f"{name}.csv", newline="", encoding="utf-8") as file:
            tables[name] = list(csv.DictReader(file))
        assert not any("{" in value or "[" in value for row in tables[name] for value in row.values())
    assert len(tables["trials"]) == 36 and len(tables["cells"]) == 4
    for row, trial in zip(tables["trials"], found.trials, strict=True):
        assert row["norm"] == trial.axes["norm"] and row["name"] == trial.name and "curve" not in row
        assert row["loss"] == ("" if trial.loss is None else str(trial.loss))
    for row, cell in zip(tables["cells"], found.cells, strict=True):
        assert row["placement"] == cell.axes["placement"] and int(row["rank"]) == cell.rank and "rates" not in row
        assert row["difference_p"] == (str(cell.difference.p) if cell.difference else "")
        assert row["behind_best_low"] == (str(cell.behind_best.low) if cell.behind_best else "")
        assert row["cross_fitted"] == ("" if cell.cross_fitted is None else str(cell.cross_fitted))
    write_summary(tmp_path, answer(sweep, []))
    assert (tmp_path / "trials.csv").read_text().startswith("name,cell,lr,seed,outcome,")


def test_a_value_may_be_called_nan():
    """Numbers that are none become null in the summary; a name that is spelt like one must not."""
    sweep = sweep_of(norms=("nan", "layer"))
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + BY_RATE[lr])
    found = answer(sweep, trials)
    assert found.complete and cells_of(found)["nan/pre"].n == cells_of(found)["layer/pre"].n > 0
    assert found.trials[0].axes["norm"] == "nan"


def test_close_numbers_have_names_of_their_own():
    assert plain(0.1) == "0.1" and plain(1e-3) == "0.001" and plain(2) == "2" and plain("pre") == "pre"
    assert plain(0.1234567) != plain(0.12345671)
