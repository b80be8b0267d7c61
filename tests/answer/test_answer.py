"""The answer of a sweep: planted effects are found, chance is not, and every way a sweep can go wrong is said."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
import re
import statistics

import pytest

from normlab import RunUnreadable, runs
from normlab.answer import answer as answer_of
from normlab.answer import numbers as counting
from normlab.answer import read
from normlab.lab.rates import MOST_LOST
from normlab.runs import Grid, Refused, Summary, TrialResult, cell_name, plain, read_trials, write_summary

RATES = (3e-4, 1e-3, 3e-3)
BY_RATE = dict(zip(RATES, (0.2, 0.0, 0.05), strict=True))


def sweep_of(norms=("layer", "rms"), placements=("pre", "post"), rates=RATES, seeds=3, **more):
    return {"schema": "normlab.sweep/1", "created": "2024-01-01T00:00:00Z", "base": {"task": "text", "steps": 200},
            "axes": {"norm": list(norms), "placement": list(placements), "lr": list(rates), "seed": list(range(seeds))},
            "baseline": {"norm": norms[0], "placement": placements[0]}, "refused": [], "unit": "nats per byte", "blind": 3.3,
            **more}  # fmt: skip


def trials_of(sweep, loss=lambda norm, placement, lr: 2.3 + BY_RATE.get(lr, 0.0), *, noise=0.0, shared=0.0, seed=0):
    """One entry per trial; ``loss`` gives a number, or the outcome. ``shared``: what a seed does to all cells alike."""
    draw = random.Random(seed)
    effects = {s: draw.gauss(0, shared) for s in sweep["axes"]["seed"]}
    found = []
    for norm, placement, lr, s in itertools.product(*sweep["axes"].values()):
        value, outcome = loss(norm, placement, lr), "trained"
        if isinstance(value, str):
            value, outcome = 4.0 if value in ("collapsed", "untrained") else None, value
        else:
            value += effects[s] + draw.gauss(0, noise)
        found.append({
            "name": f"{norm}-{placement}-lr{lr:g}-seed{s}", "cell": f"{norm}/{placement}",
            "axes": {"norm": norm, "placement": placement}, "lr": lr, "seed": s, "outcome": outcome, "loss": value,
            "first_loss": 5.3, "curve": [] if value is None else [[100, value + 0.5], [200, value]],
            "tokens_per_second": 1000.0 + s, "peak_memory": 7 + s,
        })  # fmt: skip
    return found


def answer(sweep, trials, **how):
    return answer_of(Grid.from_dict(sweep), [TrialResult.from_dict(t) for t in trials], **how)


def cells_of(found):
    return {c.name: c for c in found.cells}


def numbers(sentence):
    """Numbers apart from the names of cells."""
    return sorted(re.findall(r"(?<![\w./])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", sentence))


def check(found):
    """What holds for every answer."""
    json.dumps(found.to_dict(), allow_nan=False)
    en, zh = found.verdict.en, found.verdict.zh
    assert 1 <= len(en) == len(zh) <= 8
    for english, chinese in zip(en, zh, strict=True):
        assert numbers(english) == numbers(chinese), (english, chinese)
        assert english.endswith(".") and chinese.endswith("。") and not re.search("[一-鿿]", english)
        names = [c.name for c in found.cells] + [r.name for r in found.refused]
        assert {n for n in names if n in english} == {n for n in names if n in chinese}
    assert [c.rank for c in found.cells] == list(range(1, len(found.cells) + 1))
    means = [c.mean for c in found.cells]
    assert means == sorted(means, key=lambda m: math.inf if m is None else m)
    return found


# ---- what is decided -------------------------------------------------------------------------------------------------


def test_pairing_decides_what_unpaired_seeds_would_not():
    effect = {"pre": 0.0, "post": 0.1, "deepnorm": -0.12}
    sweep = sweep_of(placements=("pre", "post", "deepnorm"), seeds=5)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + effect[p] + BY_RATE[lr], noise=0.01, shared=0.5, seed=3)
    found = check(answer(sweep, trials))
    cells = cells_of(found)
    for name, cell in cells.items():
        assert cell.best_lr == 1e-3 and cell.n == 5
        planted = effect[name.split("/")[1]]
        if planted:
            assert cell.difference.decided
            assert cell.difference.low < planted < cell.difference.high
            assert cell.difference.seeds_needed is None
            base = cells["layer/pre"]
            assert cell.low < base.high and base.low < cell.high  # the cells' own intervals overlap widely
    assert cells["layer/pre"].difference is None and not cells["rms/pre"].difference.decided
    assert cells["rms/pre"].difference.seeds_needed > 5
    first, second = (found.cells[i] for i in (0, 1))
    assert {first.name, second.name} == {"layer/deepnorm", "rms/deepnorm"}
    assert not first.tied_with_best and second.tied_with_best
    by = -first.difference.mean
    low, high = -first.difference.high, -first.difference.low
    assert found.verdict.en[0] == (
        f"{first.name} beats layer/pre by {by:.4f} nats per byte (95 % interval {low:.4f} to {high:.4f}, 5 seeds), "
        "each at its best rate."
    )
    assert any("Averaged over the other axes: placement post is worse than pre" in s for s in found.verdict.en)


def test_the_difference_is_the_paired_one_at_each_cells_own_best_rate():
    best = {"pre": 1e-3, "post": 3e-4}
    sweep = sweep_of(norms=("layer",))
    trials = trials_of(sweep, lambda n, p, lr: 2.0 + (lr != best[p]), noise=0.1, seed=7)
    loss = {(t["cell"], t["lr"], t["seed"]): t["loss"] for t in trials}
    expected = [loss["layer/post", 3e-4, s] - loss["layer/pre", 1e-3, s] for s in range(3)]
    difference = cells_of(check(answer(sweep, trials)))["layer/post"].difference
    half = 4.302652729749464 * statistics.stdev(expected) / math.sqrt(3)
    assert difference.mean == pytest.approx(statistics.fmean(expected))
    assert difference.high == pytest.approx(statistics.fmean(expected) + half)


@pytest.mark.parametrize("rates, seeds", [((1e-3,), 5), (RATES, 3)])
def test_chance_is_seldom_decided(rates, seeds):
    """Null cells, one family: some false decision in at most ALPHA of the sweeps. Against the best, picked by the results,
    the number of cells would not do as a correction: 12 % of such sweeps call some cell worse than the best."""
    repeats, wrong = 200, {"baseline": 0, "best": 0, "picked": 0}
    sweep = sweep_of(norms=("a", "b", "c", "d", "e"), rates=rates, seeds=seeds)
    unnamed = {**sweep, "baseline": None}
    for repeat in range(repeats):
        trials = trials_of(sweep, lambda *_: 2.3, noise=0.1, shared=0.1, seed=repeat)
        found, picked = answer(sweep, trials), answer(unnamed, trials)
        wrong["baseline"] += any(c.difference and c.difference.decided for c in found.cells)
        wrong["best"] += any(not c.tied_with_best for c in found.cells[1:] if c.name != found.baseline)
        wrong["picked"] += any(c.difference and c.difference.decided for c in picked.cells)
        assert picked.baseline == picked.cells[0].name
    for count in wrong.values():
        assert count <= repeats * 0.05 + 3 * math.sqrt(repeats * 0.05 * 0.95)


@pytest.mark.parametrize("seed", range(6))
def test_seeds_needed_is_the_first_number_that_decides_under_the_same_correction(seed):
    norms = ("a", "b", "c", "d")
    sweep = sweep_of(norms, ("pre",), (1e-3,), seeds=3)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + 0.06 * (n != "a"), noise=0.05, seed=seed)
    loss = {(t["cell"], t["seed"]): t["loss"] for t in trials}

    def decided(n):
        """With n seeds of the same mean and standard deviation of every difference: half of them above it, half below."""
        wide = sweep_of(norms, ("pre",), (1e-3,), seeds=n)
        found = trials_of(wide)
        for trial in found:
            seen = [loss[trial["cell"], s] - loss["a/pre", s] for s in range(3)]
            distance = math.sqrt((n - 1) / n) if n % 2 == 0 else float(trial["seed"] < n - 1)  # odd: one in the middle
            trial["loss"] = 2.3 + statistics.fmean(seen) + (-1) ** trial["seed"] * distance * statistics.stdev(seen)
        return {name for name, c in cells_of(answer(wide, found)).items() if c.difference and c.difference.decided}

    open_ = {n: c.difference for n, c in cells_of(answer(sweep, trials)).items() if c.difference}
    needed = {name: d.seeds_needed for name, d in open_.items() if not d.decided and d.seeds_needed < 300}
    assert needed
    for name, n in needed.items():
        assert n > 3 and name in decided(n) and name not in decided(n - 1)


def test_more_seeds_are_more_than_there_are():
    """The second would be decided alone, and has seeds enough; Holm holds it back behind the first."""
    first = [(0.9, 0.0), (1.1, 0.0), (1.6, 0.0)]
    second = [(0.1 + (-1) ** i * 0.132, 0.0) for i in range(10)]
    found = counting.decide([first, second])
    assert found[0].p < found[1].p < 0.05 < found[0].p_holm == found[1].p_holm
    assert not found[1].decided and found[1].seeds_needed > 10


def test_the_best_and_the_baseline_are_compared_once():
    """Clear enough for a comparison that was named beforehand, not for one picked from all pairs: still one answer."""
    sweep = sweep_of(norms=("a", "b", "c", "d", "e", "f"), placements=("pre",), rates=(1e-3,))
    trials = trials_of(sweep, lambda n, p, lr: 2.3 - 0.2 * (n == "b"), noise=0.3, seed=1)
    for trial in trials:
        if trial["axes"]["norm"] in "ab":
            trial["loss"] = 1.0 - (trial["axes"]["norm"] == "b") * (0.2, 0.21, 0.245)[trial["seed"]]
    found = check(answer(sweep, trials))
    assert found.cells[0].name == "b/pre" and found.cells[0].difference.decided
    assert 0.05 < 15 * found.cells[0].difference.p < 0.15
    assert not cells_of(found)["a/pre"].tied_with_best


def test_two_seeds_decide_nothing_and_say_so():
    sweep = sweep_of(seeds=2)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + (p == "post") + BY_RATE[lr])
    found = check(answer(sweep, trials))
    difference = cells_of(found)["layer/post"].difference
    assert difference.n == 2 and difference.p == 0.0 and difference.low == difference.high
    assert not difference.decided and difference.seeds_needed == 3
    assert any("fewer than 3 seeds decide nothing" in s for s in found.verdict.en)


def test_one_seed_has_no_intervals():
    found = check(answer(sweep := sweep_of(seeds=1), trials_of(sweep, noise=0.1)))
    for cell in found.cells:
        assert cell.n == 1 and cell.low is None and cell.high is None
        if cell.difference:
            assert cell.difference.p is None and cell.difference.seeds_needed is None
            assert not cell.difference.decided
    assert [c.tied_with_best for c in found.cells] == [False, True, True, True]
    assert "With 1 seed nothing is decided: run at least 3 (--seeds)." in found.verdict.en


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
    assert "Training breaks above 0.0003: layer/post, rms/post. No rate trained every seed: layer/none, rms/none." in en
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


def test_a_lower_mean_over_other_seeds_is_not_sold_as_a_lead():
    """layer/post has only the easy seeds: the lowest mean, yet worse wherever both were run."""
    sweep = sweep_of(norms=("layer",), rates=(1e-3,), seeds=6)
    trials = trials_of(sweep, lambda n, p, lr: 2.0)
    for trial in trials:
        trial["loss"] += trial["seed"] + (trial["cell"] == "layer/post") * (0.1 + 0.001 * trial["seed"])
    found = check(answer(sweep, [t for t in trials if t["cell"] == "layer/pre" or t["seed"] < 3]))
    assert found.cells[0].name == "layer/post" and found.cells[0].difference.mean > 0
    text = " ".join(found.verdict.en)
    assert "beats" not in text and "Decidedly worse than layer/pre: layer/post +0.1" in text


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
    assert "No rate trained every seed: layer/post, rms/post (losses still falling: more --steps)." in slow.verdict.en
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
    assert (
        all(c.difference is None for c in broken.cells)
        and "; rms/post has none to compare with" in broken.verdict.en[0]
    )
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


def test_marginal_statements_only_over_a_whole_grid_and_over_seeds_not_cells():
    def loss(norm, placement, lr):
        return 2.3 + 0.2 * (placement == "post") + BY_RATE[lr]

    sweep = sweep_of(norms=("a", "b", "c"), seeds=4)
    trials = trials_of(sweep, loss, noise=0.02, seed=2)
    (said,) = (s for s in check(answer(sweep, trials)).verdict.en if s.startswith("Averaged"))
    assert said.count("4 seeds") == 1 and "placement post is worse than pre by 0.2" in said and "norm" not in said
    for part in (trials[1:], [{**t, "outcome": "diverged"} if t["cell"] == "c/post" else t for t in trials]):
        assert not any(s.startswith("Averaged") for s in check(answer(sweep, part)).verdict.en)
    # An effect of the seed on a placement, the same under every norm: six cells do not make it twelve draws.
    for trial in trials:
        trial["loss"] = (
            2.3 + 0.5 * (trial["axes"]["placement"] == "post") * (-1) ** trial["seed"] + BY_RATE[trial["lr"]]
        )
    assert not any(s.startswith("Averaged") for s in check(answer(sweep, trials)).verdict.en)


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
    expected = answer(sweep, [{**t, "folder": f"trials/{t['name']}"} for t in trials])
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
    assert list(summary) == ["schema", "task", "unit", "blind", "steps", "created", "machine", "complete", "baseline",
                             "target_loss", "trials", "cells", "refused", "verdict"]  # fmt: skip
    assert set(summary["cells"][0]) == {
        "cell", "axes", "rank", "rates", "best_lr", "best_at_edge", "mean", "low", "high", "n", "largest_stable_lr",
        "stable_up_to_edge", "divergence_rate", "steps_to_target", "tokens_per_second", "peak_memory", "difference",
        "tied_with_best"}  # fmt: skip
    assert set(summary["cells"][1]["difference"]) == {
        "mean",
        "low",
        "high",
        "n",
        "p",
        "p_holm",
        "decided",
        "seeds_needed",
    }
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
