"""Who gets further seeds: a pure function of what has ended, the same in every order, and the answer's own rules."""

from __future__ import annotations

import itertools
import random

import pytest
from planted import answer, cells_of, check, sweep_of, trials_of

from normlab.answer.stages import allotted, best_rate, hopeless
from normlab.runs import Result

RATES, SEEDS = (1e-3, 1e-2, 1e-1), (4, 5, 6, 7, 8)
BLIND = 3.3


def result(loss, outcome="trained"):
    return Result(outcome=outcome, loss=loss, first_loss=5.5, blind=BLIND)


def truth(losses, broken=()):
    """{(rate, seed): how it would end}; ``broken``: the keys of those that diverge."""
    return {
        (lr, s): result(None, "diverged") if (lr, s) in broken else result(loss + 0.01 * (s % 3))
        for (lr, loss), s in itertools.product(zip(RATES, losses, strict=True), SEEDS)
    }


def run(world, first, order=None, seeds=SEEDS):
    """All that a cell gets, its trials ending in an order that ``order`` draws."""
    ended: dict = {}
    while True:
        found = allotted(RATES, seeds, first, ended)
        open_ = [key for key in found.due if key not in ended]
        if not open_:
            assert found.later == 0
            return ended
        key = open_[0] if order is None else order.choice(open_)
        ended[key] = world[key]


def test_a_complete_grid_has_everything_at_once():
    found = allotted(RATES, SEEDS, None, {})
    assert found.due == [(lr, s) for s in SEEDS for lr in RATES] and found.later == 0


def test_the_first_seed_of_all_rates_comes_first_and_the_plan_is_an_upper_bound():
    found = allotted(RATES, SEEDS, 3, {})
    assert found.due == [(lr, 4) for lr in RATES] and found.later == 3 * 2 + 2
    world, ended, planned = truth([2.3, 2.2, 2.4]), {}, []
    for _ in range(11):
        found = allotted(RATES, SEEDS, 3, ended)
        open_ = [key for key in found.due if key not in ended]
        planned.append(len(ended) + len(open_) + found.later)
        ended[open_[0]] = world[open_[0]]
    assert planned == [11] * 11
    assert ended.keys() == {(lr, s) for lr in RATES for s in (4, 5, 6)} | {(1e-2, 7), (1e-2, 8)}


@pytest.mark.parametrize("outcome", ["diverged", "collapsed", "untrained"])
def test_a_rate_whose_first_seed_cannot_be_the_best_gets_no_other(outcome):
    world = truth([2.3, 2.2, 2.25])
    world[1e-1, 4] = result(3.29, outcome)
    assert {s for lr, s in run(world, 3) if lr == 1e-1} == {4}
    world[1e-1, 4] = result(None, "failed")
    assert {s for lr, s in run(world, 3) if lr == 1e-1} == {4, 5, 6}, (
        "a program that failed shows nothing about its rate"
    )


def test_half_of_the_gain_is_what_a_rate_must_keep():
    best = 2.3
    half = (BLIND + best) / 2
    opening = {1e-3: result(best), 1e-2: result(half - 1e-9), 1e-1: result(half + 1e-9)}
    assert hopeless(opening) == {1e-1}
    assert hopeless({lr: Result(outcome="trained", loss=t.loss) for lr, t in opening.items()}, BLIND) == {1e-1}
    assert hopeless({lr: Result(outcome="trained", loss=t.loss) for lr, t in opening.items()}) == set(), (
        "no start is known"
    )
    assert hopeless({1e-3: result(3.2, "untrained"), 1e-2: result(None, "diverged")}) == {1e-3, 1e-2}


def test_no_hopeful_rate_ends_the_cell():
    world = truth([2.3, 2.2, 2.25], broken={(lr, 4) for lr in RATES})
    assert run(world, 3).keys() == {(lr, 4) for lr in RATES}


def test_a_rate_that_breaks_at_a_further_seed_gives_way_to_the_next_best():
    got = run(truth([2.3, 2.2, 2.25], broken={(1e-2, 7)}), 3)
    assert {s for lr, s in got if lr == 1e-2} == set(SEEDS), (
        "the same trials in every order: both further seeds were due"
    )
    assert {s for lr, s in got if lr == 1e-1} == set(SEEDS) and {s for lr, s in got if lr == 1e-3} == {4, 5, 6}
    got = run(truth([2.3, 2.2, 2.25], broken={(lr, 8) for lr in RATES}), 3)
    assert got.keys() == set(itertools.product(RATES, SEEDS)), "each in its turn, and then there is none"


@pytest.mark.parametrize("seed", range(30))
def test_neither_the_order_nor_interruptions_change_what_runs(seed):
    draw = random.Random(seed)
    losses = [draw.uniform(2.2, 3.2) for _ in RATES]
    broken = {key for key in itertools.product(RATES, SEEDS) if draw.random() < 0.2}
    world, first = truth(losses, broken), draw.choice([1, 2, 3, 5])
    whole = run(world, first)
    for _ in range(4):
        assert run(world, first, draw).keys() == whole.keys()
    had = {key: whole[key] for key in whole if draw.random() < 0.5}  # a folder from which the rest was lost
    due = allotted(RATES, SEEDS, first, had)
    assert set(due.due) <= whole.keys() | had.keys()


def test_the_best_rate_is_the_answers():
    """Selection on the first seeds alone: the further ones cannot change it, however they turn out."""
    sweep = {**sweep_of(seeds=5), "first_seeds": 3}
    trials = [t for t in trials_of(sweep, noise=0.01, shared=0.05) if t["seed"] < 3 or t["lr"] == 1e-3]
    for t in trials:
        if t["seed"] >= 3:
            t["loss"] += 0.5  # 1e-3 is now the worst on its own mean
    found = check(answer(sweep, trials))
    assert found.complete and found.planned == len(trials) == 4 * (9 + 2)
    assert {c.best_lr for c in found.cells} == {1e-3} and {c.n for c in found.cells} == {5}
    assert all(c.difference.n == 5 for c in found.cells if c.difference), "tested on all seeds"
    known = {1e-3: {0: result(2.0), 1: result(9.0)}, 1e-2: {0: result(2.5), 1: result(2.5)}}
    assert best_rate(known, [0]) == 1e-3 and best_rate(known, [0, 1]) == 1e-2


def test_a_rate_that_breaks_at_a_further_seed_is_not_the_answers_best():
    sweep = {**sweep_of(norms=("layer",), placements=("pre",), seeds=5), "first_seeds": 3}
    trials = [t for t in trials_of(sweep) if t["seed"] < 3 or t["lr"] >= 1e-3]
    for t in trials:
        if (t["lr"], t["seed"]) == (1e-3, 4):
            t.update(outcome="diverged", loss=None)
    found = check(answer(sweep, trials))
    (cell,) = found.cells
    assert found.complete and cell.best_lr == 3e-3 and cell.n == 5, (
        "1e-3 was the best on the first seeds, and broke with the fifth"
    )


def test_a_rate_without_further_seeds_counts_as_broken_with_all_of_them():
    sweep = {**sweep_of(norms=("layer", "rms"), placements=("pre",), seeds=5), "first_seeds": 3}

    def loss(norm, placement, lr):
        return ("diverged" if norm == "rms" else 3.0) if lr == 3e-3 else 2.3 + (lr == 3e-4) * 0.2

    trials = [
        t for t in trials_of(sweep, loss) if t["seed"] == 0 or (t["lr"] != 3e-3 and (t["seed"] < 3 or t["lr"] == 1e-3))
    ]
    found = check(answer(sweep, trials))
    assert found.complete and found.planned == len(trials) == 2 * (1 + 3 + 5)
    for cell, what in (("layer/pre", "lost"), ("rms/pre", "diverged")):
        low, best, high = cells_of(found)[cell].rates
        assert (low.skipped, best.skipped, high.skipped) == (0, 0, 2) and high.count(what) == 1
        assert not high.stable and low.n == 3 and best.n == 5
        assert cells_of(found)[cell].divergence_rate == pytest.approx(3 / 11), (
            "one trial that broke, two that were spared"
        )
    assert "Training breaks above 0.001: layer/pre, rms/pre." in " ".join(found.verdict.en)
    assert "3 seeds at every rate, 5 at the best" in " ".join(found.verdict.en)


def test_what_is_still_missing_makes_the_answer_partial():
    sweep = {**sweep_of(norms=("layer",), placements=("pre",), seeds=5), "first_seeds": 3}
    every = trials_of(sweep, noise=0.01)
    some = [t for t in every if t["seed"] == 0]
    found = check(answer(sweep, some))
    assert not found.complete and found.planned == 9 + 2 and "3 of 11 trials have ended" in found.verdict.en[0]
    first = [t for t in every if t["seed"] < 3]
    assert answer(sweep, first).planned == 11 and not answer(sweep, first).complete
