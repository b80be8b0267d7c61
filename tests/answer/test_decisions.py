"""What an answer decides: planted effects are found, chance is not, and nothing it says anywhere contradicts the rest."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import statistics

import pytest
from planted import BY_RATE, RATES, answer, cells_of, check, sweep_of, trials_of
from scipy import stats

from normlab import report, runs
from normlab.answer import phrases
from normlab.cli.answers import show_answer
from normlab.intervals import MOST_SEEDS, Differences
from normlab.runs import Difference


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
    assert {first.name, second.name} == {"layer/deepnorm", "rms/deepnorm"} and found.best == first.name
    assert not first.tied_with_best and second.tied_with_best and first.behind_best is None
    assert second.behind_best.mean == pytest.approx(second.mean - first.mean)
    use, because, cost, holds, axes, *_ = found.verdict.en
    assert (
        use
        == f"Use {first.name} ({phrases.mean_of(first)} nats per byte at rate 0.001) or {second.name}: not told apart."
    )
    assert (
        f"is lower than layer/pre, the baseline, by {phrases.size_of(first.difference, -1)[0]}, and lower than"
        in because
    )
    assert because.endswith("; 95 % intervals, right for all 15 pairs together.")
    cost, besides = cost.split("; ")
    assert (
        cost
        == f"Cost of {first.name} against layer/pre: 1.00 times its tokens/s, 1.00 times its memory, stable up to 0.001 (it: 0.001)"
    )
    assert re.fullmatch(r"besides, layer/deepnorm against layer/pre: steps to target \d+ \(it: \d+\)\.", besides)
    assert holds == "Holds for task text, 200 steps, rates 0.0003 to 0.003, 5 seeds."
    assert (
        axes.startswith("Averaged over the other axes: ")
        and "placement post is worse than pre by 0.0991 (0.0909 to 0.1074)" in axes
    )


def test_the_difference_is_the_paired_one_at_each_cells_own_best_rate():
    """Two cells make a paired t test: scipy's."""
    best = {"pre": 1e-3, "post": 3e-4}
    sweep = sweep_of(norms=("layer",))
    trials = trials_of(sweep, lambda n, p, lr: 2.0 + (lr != best[p]), noise=0.1, seed=7)
    loss = {(t["cell"], t["lr"], t["seed"]): t["loss"] for t in trials}
    sides = [[loss[cell, lr, s] for s in range(3)] for cell, lr in (("layer/post", 3e-4), ("layer/pre", 1e-3))]
    found = check(answer(sweep, trials))
    difference = cells_of(found)["layer/post"].difference
    assert any(
        s.endswith("; 95 % interval.") for s in found.verdict.en
    )  # there is one pair, and nothing to be right for together
    test = stats.ttest_rel(*sides)
    assert difference.mean == pytest.approx(statistics.fmean(a - b for a, b in zip(*sides, strict=True)))
    assert (difference.low, difference.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert difference.p == pytest.approx(test.pvalue)


def test_every_comparison_is_of_one_procedure_over_all_cells():
    sweep = sweep_of(norms=("a", "b", "c"), rates=(1e-3,), seeds=4)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + 0.1 * (p == "post"), noise=0.03, shared=0.2, seed=5)
    arms = {}
    for t in trials:
        arms.setdefault(t["cell"], {})[t["seed"]] = t["loss"]
    whole, found = Differences(arms), check(answer(sweep, trials))
    for cell in found.cells:
        for reference, seen in ((found.baseline, cell.difference), (found.best, cell.behind_best)):
            if cell.name == reference:
                assert seen is None
            else:
                want = whole.between(cell.name, reference)
                assert (seen.mean, seen.low, seen.high, seen.n, seen.p) == pytest.approx(tuple(want))


# ---- no two statements disagree --------------------------------------------------------------------------------------

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?"
BRACKET = re.compile(rf"\[({NUMBER}), ({NUMBER})\]")


def leaves_out_zero(low: str, high: str) -> bool:
    return float(low) > 0 or float(high) < 0


def denied(clear: bool, text: str) -> bool:
    """An interval without zero beside "undecided", or one with zero that nothing is said of."""
    return "undecided" in text if clear else not ("undecided" in text or "equal within" in text)


def random_sweep(seed: int):
    """(sweep, trials, margin): any number of cells and seeds, any spread and effect, some trials missing or broken."""
    draw = random.Random(seed)
    sweep = sweep_of([f"n{i}" for i in range(draw.randint(1, 4))], ("pre", "post")[: draw.randint(1, 2)], RATES[: draw.randint(1, 2)],
                     seeds=draw.randint(1, 6))  # fmt: skip
    scale = 10 ** draw.uniform(-5, 0)
    effects = {
        (n, p): draw.gauss(0, draw.choice((0, 1, 5, 30))) * scale
        for n in sweep["axes"]["norm"]
        for p in sweep["axes"]["placement"]
    }
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + effects[n, p], noise=scale, shared=scale, seed=seed)
    for trial in trials:
        if draw.random() < 0.03:
            trial.update(outcome=draw.choice(("diverged", "collapsed", "failed", "untrained")))
    kept = [t for t in trials if draw.random() > draw.choice((0.0, 0.0, 0.15))]
    return sweep, kept, draw.choice((None, 3 * scale, 30 * scale))


def contradictions(found, shown: str, view: dict) -> list[str]:
    """Of JSON, the terminal, the sentences and what the page is given: statements that another denies."""
    wrong, cells = [], cells_of(found)
    for cell in found.cells:
        for d in filter(None, (cell.difference, cell.behind_best)):
            clear = d.low is not None and (d.low > 0 or d.high < 0)
            if (
                d.decided != clear
                or d.decided != (d.p is not None and d.p < 0.05)
                or (d.decided and d.seeds_needed is not None)
            ):
                wrong.append(f"JSON: {cell.name} {d}")
        if cell.behind_best and cell.tied_with_best == cell.behind_best.decided:
            wrong.append(f"JSON: {cell.name} tied {cell.tied_with_best} {cell.behind_best}")
    best, base = (cells.get(name) for name in (found.best, found.baseline))
    if best and base and best.difference and base.behind_best and best.difference.decided != base.behind_best.decided:
        wrong.append("JSON: the best and the baseline")
    for row in re.findall(r"^│[^\n]*$", shown, re.M):
        columns = [c.strip() for c in row.strip("│").split("│")]
        for text in columns[3:]:
            for low, high in BRACKET.findall(text):
                if denied(leaves_out_zero(low, high), text):
                    wrong.append(f"table: {text}")
        if (
            len(columns) == 5
            and columns[0].endswith("=")
            and any(leaves_out_zero(*b) for b in BRACKET.findall(columns[4]))
        ):
            wrong.append(f"table: {row}")
    for row in view["cells"]:
        for d in filter(None, (row["difference"], row["behind_best"])):
            ends = [f"{d[end]:+.{d['decimals']}f}" for end in ("low", "high") if d[end] is not None]
            if d["decided"] != bool(ends and leaves_out_zero(*ends)):
                wrong.append(f"page: {row['cell']} {d}")
        if row["behind_best"] and row["tied"] == row["behind_best"]["decided"]:
            wrong.append(f"page: {row['cell']} tied {row['tied']}")
    for sentence in found.verdict.en:
        for low, high in re.findall(rf"({NUMBER}) to ({NUMBER})\), which is undecided", sentence):
            if leaves_out_zero(low, high):
                wrong.append(sentence)
        for reference, names in re.findall(r"[Uu]ndecided against (\S+): ([^;.]*)", sentence):
            for name in names.split(" and ")[0].split(", "):
                d = cells[name].behind_best if reference == found.best else cells[name].difference
                if d.decided or d.equal:
                    wrong.append(sentence)
        for reference, names in (
            re.findall(r"(?:better|worse) than (\S+): ([^;]*)", sentence) if sentence.startswith("Decidedly") else ()
        ):
            for name in re.findall(r"(\S+) [-+]\d", names):
                d = cells[name].behind_best if reference == found.best else cells[name].difference
                if not d.decided:
                    wrong.append(sentence)
        if sentence.startswith("Use ") and sentence.endswith(": not told apart."):
            named = [n for n in cells if re.search(rf"(?<![\w/]){re.escape(n)}(?![\w/])", sentence)]
            if any(n != found.best and not cells[n].tied_with_best for n in named):
                wrong.append(sentence)
    return wrong


def everything(sweep, trials, margin, folder, capsys):
    found = check(answer(sweep, trials, margin=margin))
    capsys.readouterr()
    show_answer(found)
    shown = capsys.readouterr().out
    runs.write_summary(folder, found)
    return found, shown, report.view(folder)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(1000, 1400), marks=pytest.mark.nightly)])
def test_nothing_an_answer_says_contradicts_the_rest(seeds, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # a row on one line
    seen = set()
    for seed in seeds:
        found, shown, view = everything(*random_sweep(seed), tmp_path, capsys)
        assert contradictions(found, shown, view) == [], seed
        seen |= {d.decided for c in found.cells for d in (c.difference, c.behind_best) if d}
    assert seen == {True, False}


def test_a_contradiction_would_be_seen(tmp_path, capsys, monkeypatch):
    """The test of the test: one flag the other way round, in each place."""
    monkeypatch.setenv("COLUMNS", "400")
    sweep = sweep_of(("a", "b"), ("pre",), (1e-3,))
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + (n == "b"), noise=0.01)
    found, shown, view = everything(sweep, trials, None, tmp_path, capsys)
    assert contradictions(found, shown, view) == []
    _, worse, _ = everything(sweep, trials_of(sweep, noise=0.01), None, tmp_path, capsys)
    assert "undecided" in worse and contradictions(found, worse.replace("[-", "[+"), view)
    bad = copy.deepcopy(view)
    next(c for c in bad["cells"] if c["difference"])["difference"]["decided"] ^= True
    assert contradictions(found, shown, bad)
    data = found.to_dict()
    data["cells"][1]["tied_with_best"] = True
    assert contradictions(runs.Summary.from_dict(data), shown, view)


@pytest.mark.parametrize(
    ("low", "high", "decimals"), [(0.1, 0.3, 2), (-0.1, 0.3, 2), (0.0004, 0.3, 5), (-2.1, -0.00031, 5), (1.0, 1.0, 4)]
)
def test_a_decided_end_never_reads_as_zero(low, high, decimals):
    d = Difference(mean=(low + high) / 2, low=low, high=high, n=3, decided=low > 0 or high < 0)
    assert d.decimals == decimals
    if d.decided:
        assert all(float(f"{end:.{d.decimals}f}") for end in (low, high))


# ---- planted truth ---------------------------------------------------------------------------------------------------


def null_sweeps(repeats: int, norms: int, rates, seeds: int) -> dict[str, float]:
    """Shares of sweeps of equal cells with some false decision: against a named baseline, the best, and a baseline picked by the results."""
    wrong = {"baseline": 0, "best": 0, "picked": 0}
    sweep = sweep_of(norms=[f"n{i}" for i in range(norms)], rates=rates, seeds=seeds)
    for repeat in range(repeats):
        trials = trials_of(sweep, lambda *_: 2.3, noise=0.1, shared=0.1, seed=repeat)
        found, picked = answer(sweep, trials), answer({**sweep, "baseline": None}, trials)
        wrong["baseline"] += any(c.difference and c.difference.decided for c in found.cells)
        wrong["best"] += any(not c.tied_with_best for c in found.cells[1:])
        wrong["picked"] += any(c.difference and c.difference.decided for c in picked.cells)
        assert picked.baseline == picked.best == picked.cells[0].name
    return {key: count / repeats for key, count in wrong.items()}


def tied_in(repeats: int, noise, seeds: int = 3) -> float:
    """The share of sweeps of nine cells in which one that is ten deviations behind is called tied with the best."""
    tied = 0
    sweep = sweep_of(("a", "b", "c"), ("pre", "post", "deepnorm"), (1e-3,), seeds=seeds)
    for repeat in range(repeats):
        trials = trials_of(
            sweep, lambda n, p, lr: 2.3 + 0.1 * (n + p == "cdeepnorm"), noise=0.01, shared=0.1, seed=repeat
        )
        draw = random.Random(repeat)
        for trial in trials:
            trial["loss"] += draw.gauss(0, noise) if trial["axes"]["norm"] == "b" else 0.0
        tied += cells_of(answer(sweep, trials))["c/deepnorm"].tied_with_best
    return tied / repeats


def test_chance_is_seldom_decided():
    """60 sweeps: a true rate of 5 % shows more than 13 % once in 500 runs."""
    assert max(null_sweeps(60, 3, (1e-3,), 3).values()) <= 0.13


def test_ten_deviations_are_never_tied():
    assert tied_in(25, 0.0) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("norms, rates, seeds", [(5, (1e-3,), 5), (5, RATES, 3), (4, (1e-3,), 3), (8, (1e-3,), 3)])
def test_false_decisions_stay_within_seven_percent(norms, rates, seeds, capsys):
    found = null_sweeps(600, norms, rates, seeds)
    with capsys.disabled():
        print(f"\n{2 * norms} cells, {len(rates)} rates, {seeds} seeds: false decisions {found}")
    assert max(found.values()) <= 0.07 + 2 * math.sqrt(0.07 * 0.93 / 600)


@pytest.mark.nightly
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_ten_deviations_are_tied_in_at_most_three_percent(noise):
    assert tied_in(400, noise) <= 0.03


# ---- how many seeds --------------------------------------------------------------------------------------------------


def test_seeds_needed_is_said_with_its_range():
    sweep = sweep_of(("a", "b", "c", "d"), ("pre",), (1e-3,), seeds=4)
    found = check(answer(sweep, trials_of(sweep, lambda n, p, lr: 2.3 + 0.08 * (n != "a"), noise=0.08, seed=1)))
    open_ = [d for c in found.cells for d in (c.difference, c.behind_best) if d and not d.decided]
    assert open_
    for d in open_:
        assert 4 < d.seeds_low <= d.seeds_needed <= d.seeds_high <= MOST_SEEDS
    said = next(s for s in found.verdict.en if s.startswith("Undecided against"))
    assert re.search(r"seeds in all that would decide: (about \d+ \(\d+ to (over )?\d+\)|over 1000) for ", said)


@pytest.mark.parametrize(
    ("about", "low", "high", "en", "zh"),
    [(7, 4, 39, "about 7 (4 to 39)", "约 7 个（4 到 39）"), (90, 4, MOST_SEEDS, "about 90 (4 to over 1000)", "约 90 个（4 到 1000 以上）"),
     (MOST_SEEDS, 40, MOST_SEEDS, "over 1000", "超过 1000 个"), (7, None, None, "about 7", "约 7 个")],
)  # fmt: skip
def test_the_words_for_seeds(about, low, high, en, zh):
    assert phrases.seeds_of(Difference(mean=0.1, seeds_needed=about, seeds_low=low, seeds_high=high)) == (en, zh)


def test_two_seeds_decide_nothing_and_say_so():
    sweep = sweep_of(seeds=2)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + (p == "post") + BY_RATE[lr])
    found = check(answer(sweep, trials))
    difference = cells_of(found)["layer/post"].difference
    assert (
        difference.n == 2 and difference.p is None and difference.low is None and difference.mean == pytest.approx(1.0)
    )
    assert not difference.decided and difference.seeds_needed == 3
    assert "With 2 seeds nothing is decided: run at least 3 (--seeds)." in found.verdict.en
    assert not any(s.startswith("Use ") for s in found.verdict.en)


def test_one_seed_has_no_intervals():
    found = check(answer(sweep := sweep_of(seeds=1), trials_of(sweep, noise=0.1)))
    for cell in found.cells:
        assert cell.n == 1 and cell.low is None and cell.high is None and cell.cross_fitted is None
        if cell.difference:
            assert cell.difference.p is None and cell.difference.seeds_needed is None
            assert not cell.difference.decided
    assert [c.tied_with_best for c in found.cells] == [False, True, True, True]
    assert "With 1 seed nothing is decided: run at least 3 (--seeds)." in found.verdict.en


# ---- equal within a margin -------------------------------------------------------------------------------------------


def test_equal_means_that_the_whole_interval_lies_within_the_margin():
    sweep = sweep_of(("a", "b"), ("pre",), (1e-3,), seeds=5)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + 0.001 * (n == "b"), noise=0.004, shared=0.1, seed=2)
    plain = check(answer(sweep, trials))
    d = cells_of(plain)["b/pre"].difference or cells_of(plain)["a/pre"].difference
    reach = max(abs(d.low), abs(d.high))
    assert plain.margin is None and not d.equal and not any(s.startswith("Equal") for s in plain.verdict.en)
    for margin, equal in ((reach * 1.001, True), (reach * 0.999, False)):
        found = check(answer(sweep, trials, margin=margin))
        assert found.margin == margin
        assert any(c.difference and c.difference.equal for c in found.cells) == equal
        assert any(s.startswith("Equal to ") and f"within {margin:g}: " in s for s in found.verdict.en) == equal
        assert any(s.startswith("Undecided") for s in found.verdict.en) == (not equal)
    for margin in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="a margin must be a finite number above 0"):
            answer(sweep, trials, margin=margin)


# ---- averages over axes ----------------------------------------------------------------------------------------------


def averaged(found):
    return [s for s in found.verdict.en if s.startswith("Averaged")]


def test_averages_are_over_seeds_not_cells():
    def loss(norm, placement, lr):
        return 2.3 + 0.2 * (placement == "post") + BY_RATE[lr]

    sweep = sweep_of(norms=("a", "b", "c"), seeds=4)
    trials = trials_of(sweep, loss, noise=0.02, seed=2)
    (said,) = averaged(check(answer(sweep, trials)))
    assert (
        "placement post is worse than pre by 0.2" in said
        and "norm" not in said
        and "over" in said
        and " of 6" not in said
    )
    assert said.endswith("; 95 % for all values of an axis together.")
    # An effect of the seed on a placement, the same under every norm: six cells do not make it twelve draws.
    for trial in trials:
        trial["loss"] = (
            2.3 + 0.5 * (trial["axes"]["placement"] == "post") * (-1) ** trial["seed"] + BY_RATE[trial["lr"]]
        )
    assert not averaged(check(answer(sweep, trials)))


def test_averages_are_shown_over_the_whole_part_of_a_grid():
    """c/post is missing, broken or refused: the other norms still say what the placement does, and it is said which."""

    def loss(norm, placement, lr):
        return 2.3 + 0.2 * (placement == "post") + 1.0 * (norm == "c") + BY_RATE[lr]

    sweep = sweep_of(norms=("a", "b", "c"), seeds=4)
    trials = trials_of(sweep, loss, noise=0.02, seed=2)
    without = [t for t in trials if t["cell"] != "c/post"]
    shut = {**sweep, "refused": [{"axes": {"norm": "c", "placement": "post"}, "reason": "no."}]}
    broken = [{**t, "outcome": "diverged"} if t["cell"] == "c/post" else t for t in trials]
    for grid, part in ((sweep, without), (shut, without), (sweep, broken)):
        (said,) = averaged(check(answer(grid, part)))
        assert "placement (over 4 of 6 cells): post is worse than pre by 0.2" in said
        assert "norm (over 3 of 6 cells): c is worse than a by 1.0" in said, "norms at pre, which has them all"
    # Mean and interval are those of the seeds' means over a and b.
    at = {(t["cell"], t["seed"]): t["loss"] for t in trials if t["lr"] == 1e-3}
    means = {p: {s: (at[f"a/{p}", s] + at[f"b/{p}", s]) / 2 for s in range(4)} for p in ("pre", "post")}
    d = Differences(means).between("post", "pre")
    assert f"by {phrases.size_of(Difference(mean=d.mean, low=d.low, high=d.high, decided=True))[0]}" in said


def test_a_lower_mean_over_other_seeds_is_not_sold_as_a_lead():
    """layer/post has only the easy seeds: the lowest mean, yet worse wherever both were run."""
    sweep = sweep_of(norms=("layer",), rates=(1e-3,), seeds=6)
    trials = trials_of(sweep, lambda n, p, lr: 2.0)
    for trial in trials:
        trial["loss"] += trial["seed"] + (trial["cell"] == "layer/post") * (0.1 + 0.001 * trial["seed"])
    found = check(answer(sweep, [t for t in trials if t["cell"] == "layer/pre" or t["seed"] < 3]))
    assert found.cells[0].name == "layer/post" and found.cells[0].difference.mean > 0 and found.best == "layer/pre"
    text = " ".join(found.verdict.en)
    assert "Use layer/pre:" in text and "Decidedly worse than layer/pre: layer/post +0.1" in text


# ---- the rate chosen on other seeds ----------------------------------------------------------------------------------


def test_the_cross_fitted_mean_takes_each_seed_at_the_rate_of_the_others():
    sweep, several = sweep_of(("layer",), ("pre",), RATES, seeds=4), 0
    for draw in range(8):
        trials = trials_of(sweep, lambda *_: 2.3, noise=0.1, seed=draw)
        (cell,) = check(answer(sweep, trials)).cells
        at = {(t["lr"], t["seed"]): t["loss"] for t in trials}
        rest = {lr: sum(at[lr, s] for s in range(4)) for lr in RATES}
        chosen = [min(RATES, key=lambda lr, s=s: rest[lr] - at[lr, s]) for s in range(4)]
        assert cell.cross_fitted == pytest.approx(statistics.fmean(at[lr, s] for s, lr in enumerate(chosen)))
        several += len(set(chosen)) > 1
    assert several, "else it would be the mean"
    (cell,) = answer(one := sweep_of(("layer",), ("pre",), (1e-3,)), trials_of(one, noise=0.1)).cells
    assert cell.cross_fitted == pytest.approx(cell.mean)


def test_the_cross_fitted_mean_is_free_of_the_choice():
    """Four equal rates: their lowest mean is low by about 1.03 standard errors, the cross-fitted mean by nothing."""
    mean, fitted = [], []
    sweep = sweep_of(("layer",), ("pre",), (1e-4, 3e-4, 1e-3, 3e-3))
    for seed in range(150):
        (cell,) = answer(sweep, trials_of(sweep, lambda *_: 2.3, noise=0.1, seed=seed)).cells
        mean.append(cell.mean - 2.3)
        fitted.append(cell.cross_fitted - 2.3)
    error = 0.1 / math.sqrt(3)
    assert statistics.fmean(mean) < -0.8 * error
    assert abs(statistics.fmean(fitted)) < 4 * error / math.sqrt(150)


def test_a_broken_rate_is_no_choice_of_any_seed():
    sweep = sweep_of(("layer",), ("pre",), RATES)
    trials = trials_of(sweep, lambda n, p, lr: 2.3 + BY_RATE[lr], noise=0.001)
    for trial in trials:
        if trial["lr"] == 1e-3 and trial["seed"] == 0:
            trial.update(outcome="diverged", loss=None)
    (cell,) = answer(sweep, trials).cells
    assert cell.best_lr == 3e-3 and cell.cross_fitted == pytest.approx(2.35, abs=0.01)


# ---- what broke ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("high", "lost"), [(2.9, 0), (2.92, 3), (3.176, 3), (3.3, 3)])
def test_a_rate_that_kept_less_than_half_of_the_gain_broke(high, lost):
    """Blind 3.3, best 2.5: half of the gain ends at 2.9."""
    sweep = sweep_of(("layer",), ("pre",), RATES)
    (cell,) = check(
        found := answer(sweep, trials_of(sweep, lambda n, p, lr: high if lr == 3e-3 else 2.5 + (lr < 1e-3)))
    ).cells
    assert [r.lost for r in cell.rates] == [0, 0, lost], "below the best rate a small gain is slow, not broken"
    assert cell.divergence_rate == pytest.approx(lost / 9) and cell.largest_stable_lr == 1e-3
    assert any(s.startswith("Training breaks above 0.001: layer/pre") for s in found.verdict.en) == bool(lost)
    unknown = {**sweep, "blind": None}
    (cell,) = answer(unknown, trials_of(unknown, lambda n, p, lr: high if lr == 3e-3 else 2.5)).cells
    assert not any(r.lost for r in cell.rates), "from the first loss, 5.3, half of the gain ends at 3.9"


def test_one_lost_seed_of_three_breaks_a_rate():
    sweep = sweep_of(("layer",), ("pre",), RATES)
    trials = trials_of(sweep, lambda n, p, lr: 2.5)
    trials[-1]["loss"] = 3.1
    (cell,) = answer(sweep, trials).cells
    assert [(r.lost, r.stable) for r in cell.rates] == [(0, True), (0, True), (1, False)]
    page = json.dumps(cell.to_dict())
    assert '"lost": 1' in page


def test_lists_name_a_few_and_count_the_rest():
    names = [f"c{i}" for i in range(7)]
    assert phrases.listed(names) == ("c0, c1, c2, c3 and 3 more", "c0、c1、c2、c3 及另外 3 个")
    assert phrases.listed(names[:2]) == ("c0, c1", "c0、c1")
