"""Sweeps that give further seeds to the best rates, and sweeps that grow: what runs, what is kept, what is remembered."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest

from normlab import answer, report
from normlab.lab import Experiment, Message, Sweep, checked, plan, run
from normlab.lab.growth import extended, grown, more_seeds, next_round
from normlab.lab.sweep import Agenda, finished
from normlab.runs import Result, Writer, write_summary

TINY = Experiment(
    steps=7, batch_size=3, held_out=5, evaluations=2, watch="none", model={"dim": 16, "num_layers": 1, "num_heads": 2}
)
AXES = {"norm": ["layer", "rms"], "placement": ["pre"], "lr": [1e-3, 1e-2, 1e-1], "seed": [0, 1, 2, 3, 4]}
BY_RATE = {1e-4: 2.6, 1e-3: 2.4, 1e-2: 2.3, 3e-2: 2.25, 1e-1: "diverged"}


class Planted:
    """An engine that ends trials at once, with planted losses; a few run at a time and end in a drawn order. It may be killed."""

    def __init__(self, loss=lambda e: BY_RATE[e.lr], dies_after=None, seed=0):
        self.loss, self.dies_after, self.draw = loss, dies_after, random.Random(seed)
        self.ran = []

    def run(self, folder, trials, notify):
        running = []
        while trials or running:
            while trials and len(running) < 3:
                running.append(trials.popleft())
            if len(self.ran) == self.dies_after:
                raise KeyboardInterrupt
            trial = running.pop(self.draw.randrange(len(running)))
            self.ran.append(trial.name)
            loss, e = self.loss(trial.experiment), trial.experiment
            noise = random.Random(f"{trial.cell} {e.lr} {e.seed}").gauss(0, 0.01)
            result = (
                {"outcome": loss}
                if isinstance(loss, str)
                else {"outcome": "trained", "loss": loss + noise, "seconds": 0.1}
            )
            info = {"experiment": e.to_dict(), "task": {"blind": 3.3, "unit": "nats per byte"}}
            Writer(folder / "trials" / trial.name, info, again=True).close("finished", result=result)
            notify("ended", trial, Message(result=Result.from_dict(result)))


def go(sweep, folder, engine=None, hear=lambda *_: None):
    engine = engine or Planted()
    run(plan(sweep, folder, 1, estimate=False), engine, hear)
    return engine


def names(sweep, keep):
    return {t.name for t in sweep.trials() if keep(t.experiment.lr, t.experiment.seed)}


def expected(lr, seed):
    """Of 3+2 with BY_RATE: 0.1 breaks with its first seed, 0.01 is the best."""
    return (seed < 3 and lr != 1e-1) or seed == 0 or lr == 1e-2


def test_further_seeds_go_to_the_best_rates_and_none_to_hopeless_ones(tmp_path):
    sweep = Sweep(base=TINY, axes=AXES, first_seeds=3)
    left = []
    planned = plan(sweep, tmp_path, 1, estimate=False)
    assert len(planned.missing) == 6 and planned.later == 2 * (6 + 2)
    assert "2 cells x 3 rates x 3+2 seeds = at most 22 trials" in str(planned) and "5 at the best rate" in str(planned)
    engine = go(sweep, tmp_path, hear=lambda kind, trial, message: left.append(message.left))
    assert Counter(engine.ran) == Counter(names(sweep, expected)) and len(engine.ran) == 2 * 9
    assert left[0] == 21 and left[-1] == 0 and all(a > b for a, b in itertools.pairwise(left))
    found = answer.read(tmp_path)
    assert found.complete and {(c.best_lr, c.n) for c in found.cells} == {(1e-2, 5)}
    assert go(sweep, tmp_path).ran == []


@pytest.mark.parametrize("seed", range(12))
def test_kills_at_any_moment_lead_to_the_same_trials_each_run_once(tmp_path, seed):
    sweep, draw, ran = Sweep(base=TINY, axes=AXES, first_seeds=3), random.Random(seed), []
    while True:
        engine = Planted(dies_after=draw.randrange(1, 6), seed=draw.random())
        try:
            go(sweep, tmp_path, engine)
        except KeyboardInterrupt:
            ran += engine.ran
            answer.read(tmp_path)  # at any moment
            continue
        ran += engine.ran
        break
    assert Counter(ran) == Counter(names(sweep, expected))


def test_a_failed_trial_holds_nothing_up_and_is_tried_again(tmp_path):
    sweep = Sweep(base=TINY, axes=AXES, first_seeds=3)

    class Fails(Planted):
        def run(self, folder, trials, notify):
            while trials:
                trial = trials.popleft()
                self.ran.append(trial.name)
                fails = trial.name == "rms-pre-lr0.01-seed1"
                result = (
                    Result(outcome="failed", error="no")
                    if fails
                    else Result(
                        outcome="trained",
                        loss=BY_RATE.get(trial.experiment.lr, 2) if trial.experiment.lr != 1e-1 else 2.9,
                    )
                )
                info = {"experiment": trial.experiment.to_dict(), "task": {"blind": 3.3}}
                Writer(folder / "trials" / trial.name, info, again=True).close(
                    "failed" if fails else "finished", result=result.to_dict()
                )
                notify("ended", trial, Message(result=result))

    engine = go(sweep, tmp_path, Fails())
    assert {n for n in engine.ran if "seed4" in n} == {"layer-pre-lr0.01-seed4", "rms-pre-lr0.001-seed4"}
    assert not answer.read(tmp_path).complete
    again = go(sweep, tmp_path)
    assert set(again.ran) == {"rms-pre-lr0.01-seed1", "rms-pre-lr0.01-seed3", "rms-pre-lr0.01-seed4"}
    found = answer.read(tmp_path)
    assert found.complete and {(c.best_lr, c.n) for c in found.cells} == {(1e-2, 5)}


def test_a_sweep_that_runs_has_an_answer_and_a_page(tmp_path):
    """Before summary.json is written, and after more trials have ended than it holds."""
    sweep = Sweep(base=TINY, axes=AXES, first_seeds=3)
    plan(sweep, tmp_path, 1, estimate=False)
    assert report.view(tmp_path)["ended"] == 0 and "No trial has ended" in report.view(tmp_path)["verdict"]["en"][0]
    for ended in (4, 11):
        with pytest.raises(KeyboardInterrupt):
            go(sweep, tmp_path, Planted(dies_after=ended - report.view(tmp_path)["ended"]))
        view = report.view(tmp_path)
        assert view["ended"] == ended and not view["complete"] and view["planned"] > ended
        assert view["verdict"]["en"][0].startswith(f"Partial answer: {ended} of {view['planned']} trials have ended")
        write_summary(tmp_path, answer.read(tmp_path))  # out of date as soon as the next trial ends
    go(sweep, tmp_path)
    view = report.view(tmp_path)
    assert view["complete"] and view["ended"] == view["planned"] == 18 and view["map"]["uneven"]
    tried = [square["tried"] for row in view["map"]["rows"] for square in row["squares"]]
    assert sorted(tried) == [1, 1, 3, 3, 5, 5], "the map says what each square rests on"


# ---- growing ---------------------------------------------------------------------------------------------------------


def test_a_sweep_grows_by_seeds_rates_and_cells_and_keeps_what_is_finished(tmp_path):
    small = checked(Sweep(base=TINY, axes={**AXES, "lr": [1e-3, 1e-2], "seed": [0, 1, 2]}))
    go(small, tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / "trials").rglob("run.json")}
    created = json.loads((tmp_path / "sweep.json").read_text())["created"]
    larger = extended(tmp_path, {"seed": more_seeds(small, 5)})
    assert (larger.first_seeds, larger.looks, larger.axes["seed"]) == (3, (3,), [0, 1, 2, 3, 4])
    assert sorted(go(larger, tmp_path).ran) == sorted(names(larger, lambda lr, seed: lr == 1e-2 and seed > 2))
    wider = extended(tmp_path, {"lr": [3e-2], "norm": ["scale"]})
    assert (
        wider.looks == (3, 5)
        and wider.axes["norm"] == ["layer", "rms", "scale"]
        and wider.axes["lr"] == [1e-3, 1e-2, 3e-2]
    )
    ran = go(wider, tmp_path).ran
    assert {n for n in ran if not n.startswith("scale")} == names(larger, lambda *_: False) | {
        f"{norm}-pre-lr0.03-seed{s}" for norm in ("layer", "rms") for s in range(5)
    }, "the new rate is the best, and gets the further seeds too"
    assert {p: p.read_bytes() for p in before} == before, "what was finished stays as it was"
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert stored["created"] == created and stored["baseline"] == {"norm": "layer", "placement": "pre"}
    found = answer.read(tmp_path)
    assert found.complete and {(c.best_lr, c.n) for c in found.cells} == {(3e-2, 5)} and found.looks == (3, 5)
    assert "Look 3 at this sweep, after 2 with 3, 5 seeds: its intervals are 99.38 % ones" in found.verdict.en[-1]


def test_the_same_growth_again_changes_nothing(tmp_path):
    sweep = checked(Sweep(base=TINY, axes={**AXES, "seed": [0, 1, 2]}, first_seeds=3))
    go(sweep, tmp_path)
    values = {"seed": more_seeds(sweep, 5), "lr": [3e-2], "norm": ["scale"]}
    once = extended(tmp_path, values)
    text = (tmp_path / "sweep.json").read_text()
    assert extended(tmp_path, values).to_dict() == once.to_dict() and (tmp_path / "sweep.json").read_text() == text
    assert extended(tmp_path, {"seed": more_seeds(once, 7)}, write=False).looks == (3,), (
        "nobody saw an answer in between"
    )
    assert (tmp_path / "sweep.json").read_text() == text
    go(once, tmp_path)
    write_summary(tmp_path, answer.read(tmp_path))
    assert extended(tmp_path, {"seed": more_seeds(once, 7)}, write=False).looks == (3, 5)
    assert extended(tmp_path, {"norm": ["batch"]}, write=False).looks == (3,), (
        "new cells are no new look at the old ones"
    )


def test_growth_that_cannot_be_is_refused(tmp_path):
    sweep = Sweep(base=TINY, axes=AXES)
    with pytest.raises(ValueError, match="can only grow"):
        more_seeds(sweep, 4)
    with pytest.raises(ValueError, match="num_layers is no axis of this sweep, which varies norm, placement, lr, seed"):
        grown(sweep, {"num_layers": [2]}, looked=False)
    plan(checked(sweep), tmp_path, 1, estimate=False)
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(ValueError, match=r"unknown norm 'lyaer'. Did you mean 'layer'"):
        extended(tmp_path, {"norm": ["lyaer"]})
    assert (tmp_path / "sweep.json").read_bytes() == before


def test_rounds_add_half_as_many_again():
    counts = [3]
    while counts[-1] < 40:
        counts.append(next_round(counts[-1]))
    assert counts == [3, 5, 7, 10, 15, 22, 33, 49]


def test_looks_spend_a_series_and_a_full_first_look_comes_on_top():
    def spent(looks, sequential):
        grid = Sweep(base=TINY, axes=AXES, looks=looks, sequential=sequential).grid()
        return grid.share, grid.wrong

    assert spent((), False) == (1.0, 0.08)
    assert spent((3,), False) == (0.25, 0.08)
    assert spent((3, 5), False) == (0.125, 0.08)
    assert spent((), True) == (0.5, 0.05)
    assert spent((3, 5, 7), True) == (0.0625, 0.05)


def test_an_agenda_of_everything_ended_is_empty(tmp_path):
    sweep = Sweep(base=TINY, axes=AXES, first_seeds=3)
    go(sweep, tmp_path)
    agenda = Agenda(sweep, finished(tmp_path, sweep.trials())[0])
    assert not agenda.queue and agenda.later == 0
