"""Running claims: what is finished stays, what is measured is kept, arms are read as designs say."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from normlab.claims import CLAIMS, Check, Claim, Request, run
from normlab.claims import designs as rooms
from normlab.claims.designs import DESIGNS, Measured, Size, Trained, size_at
from normlab.claims.designs.base import Trials, arms_of, at_best_rate, text_experiment
from normlab.claims.designs.rates import largest_rates, steps_to_target
from normlab.claims.run import needed, sweeps_of
from normlab.claims.shipped import Change, changes
from normlab.errors import RunUnreadable
from normlab.lab import Message, Sweep
from normlab.lab.train import attempt
from normlab.runs import (
    ClaimResult,
    ClaimsRun,
    Evidence,
    TrialResult,
    Writer,
    read_claims,
    read_evidence,
    trial_folder,
    write_claims,
)

WHAT = ("a", "甲")
ON_DIGITS = (
    "text-and-images",
    "small-batches",
    "accuracy",
    "matched-gap",
    "convolution",
    "inference-gap",
    "gradients-of-statistics",
    "pre-or-deepnorm",
)


class InProcess:
    """An engine without processes. It counts what it trains."""

    trained: list[str]

    def __init__(self, trained: list[str], stop_after: int | None = None) -> None:
        self.trained, self.stop_after = trained, stop_after

    def run(self, folder, trials, notify):
        for trial in trials:
            if self.stop_after is not None and len(self.trained) >= self.stop_after:
                raise KeyboardInterrupt
            result = attempt(trial.experiment, trial_folder(folder, trial.name))
            self.trained.append(trial.name)
            notify("ended", trial, Message(result=result))


def tiny_sweeps(size, seeds):
    base = text_experiment(size, num_layers=1, dim=8, num_heads=2, batch_size=2, held_out=2, evaluations=1)
    return {"one": Sweep(base=base, axes={"norm": ["layer", "rms"], "seed": list(seeds)})}


@pytest.fixture
def tiny(monkeypatch):
    """A trained and a measured design of next to nothing, and a claim that needs both."""
    measured: list[int] = []

    def measure(size, seeds):
        measured.append(len(seeds))
        return Evidence(by_seed={"drawn": {s: 1.0 + 0.001 * s for s in seeds}})

    trained = Trained(name="tiny", about=WHAT, sizes={"quick": Size(seeds=3, steps=2)}, sweeps=tiny_sweeps,
                      read=lambda found: Evidence(arms={"tiny": arms_of(found["one"], lambda t: str(t.axes["norm"]))}))  # fmt: skip
    monkeypatch.setitem(DESIGNS, "tiny", trained)
    monkeypatch.setitem(
        DESIGNS, "drawn", Measured(name="drawn", about=WHAT, sizes={"quick": Size(seeds=3)}, measure=measure)
    )
    checks = (
        Check(quantity="layer", against="rms", least=-50.0, most=50.0, what=WHAT),
        Check(quantity="drawn", least=0.9, most=1.1, what=WHAT),
    )
    claim = Claim(id="C0", source="S0", kind="empirical", says=WHAT, how=WHAT, designs=("drawn", "tiny"), checks=checks)
    return claim, measured


def request(claim, folder, trained, stop_after=None, **given) -> Request:
    return Request(
        claims=[claim], budget="quick", folder=folder, workers=1, engine_of=lambda plan: InProcess(trained, stop_after), **given
    )  # fmt: skip


def test_from_training_to_a_verdict_and_nothing_twice(tiny, tmp_path):
    claim, measured = tiny
    trained: list[str] = []
    heard = []
    found = run(
        request(claim, tmp_path, trained, notify=lambda kind, p: heard.append((kind, p.design, p.ended, p.trials)))
    )
    (result,) = found.results
    assert result.verdict == "holds" and [c.n for c in result.checks] == [3, 3] and result.level == pytest.approx(0.975)
    assert len(trained) == 6 and measured == [3]
    assert heard[0] == ("design", "tiny", 0, 6) and heard[-2:] == [("trial", "tiny", 6, 6), ("design", "drawn", 6, 6)]
    again = run(request(claim, tmp_path, trained))
    assert again.results == found.results and len(trained) == 6 and measured == [3]
    assert read_claims(tmp_path).results == found.results
    assert read_evidence(tmp_path, "tiny").arms["tiny"].keys() == {"layer", "rms"}


def test_an_interruption_keeps_what_is_finished(tiny, tmp_path):
    claim, _ = tiny
    trained: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(request(claim, tmp_path, trained, stop_after=2))
    partly = read_claims(tmp_path)
    assert partly.results[0].verdict == "not run" and partly.results[0].reason == "unfinished"
    assert run(request(claim, tmp_path, trained)).results[0].verdict == "holds" and len(trained) == 6


def test_the_time_of_interrupted_parts_is_part_of_the_whole(tiny, tmp_path):
    claim, _ = tiny
    with pytest.raises(KeyboardInterrupt):
        run(request(claim, tmp_path, [], stop_after=2))
    part = read_claims(tmp_path)
    write_claims(tmp_path, dataclasses.replace(part, seconds=1000.0))
    assert 1000.0 <= run(request(claim, tmp_path, [])).seconds < 2000.0
    (tmp_path / "claims.json").write_text("{")
    assert run(request(claim, tmp_path, [])).seconds < 1000.0
    write_claims(tmp_path, dataclasses.replace(part, seconds=1000.0, budget="full"))
    assert run(request(claim, tmp_path, [])).seconds < 1000.0


def test_other_seeds_are_another_measurement(tiny, tmp_path):
    claim, measured = tiny
    run(request(claim, tmp_path / "a", []))
    run(request(claim, tmp_path / "a", [], first_seed=0))
    assert measured == [3]
    with pytest.raises(ValueError, match="another sweep"):
        run(request(claim, tmp_path / "a", [], first_seed=7))
    found = run(request(claim, tmp_path / "b", [], first_seed=7))
    assert found.first_seed == 7 and sorted(read_evidence(tmp_path / "b", "drawn").by_seed["drawn"]) == [7, 8, 9]


def test_a_failed_trial_is_no_evidence(tiny, tmp_path, monkeypatch):
    claim, _ = tiny

    class Breaks(InProcess):
        def run(self, folder, trials, notify):
            super().run(folder, [trials[0]], notify)
            at = trial_folder(folder, trials[0].name) / "run.json"
            info = json.loads(at.read_text())
            info["result"] = {**info["result"], "outcome": "failed", "loss": None, "error": "out of luck"}
            at.write_text(json.dumps(info))

    with pytest.raises(RuntimeError, match="out of luck"):
        run(dataclasses.replace(request(claim, tmp_path, []), engine_of=lambda plan: Breaks([])))


def test_a_damaged_measurement_is_made_again(tiny, tmp_path):
    claim, measured = tiny
    run(request(claim, tmp_path, []))
    (tmp_path / "measured" / "drawn.json").write_text("{")
    run(request(claim, tmp_path, []))
    assert measured == [3, 3]
    (tmp_path / "claims.json").write_text('{"schema": "normlab.claims/1", "budget": "never"}')
    with pytest.raises(RunUnreadable, match="budget"):
        read_claims(tmp_path)


# ---- reading ---------------------------------------------------------------------------------------------------------


def trial(arm: str, seed: int, lr: float, loss: float | None, outcome: str = "trained") -> TrialResult:
    return TrialResult(
        name=f"{arm}{seed}{lr}", cell=arm, axes={"placement": arm}, seed=seed, lr=lr, loss=loss, outcome=outcome
    )


def test_a_run_that_broke_counts_as_a_blind_predictor(tmp_path):
    trials = [
        trial("pre", 0, 1e-3, 2.0),
        trial("pre", 1, 1e-3, None, "diverged"),
        trial("pre", 2, 1e-3, 99.0, "collapsed"),
    ]
    assert arms_of(Trials(tmp_path, 3.2, trials), lambda t: t.cell) == {"pre": {0: 2.0, 1: 3.2, 2: 3.2}}


def test_the_rate_is_chosen_on_the_other_seeds(tmp_path):
    losses = {1e-3: (2.0, 2.0, 2.0), 1e-2: (1.0, 2.5, 2.5)}  # the second looks best on seed 0 alone
    trials = [trial("a", s, lr, v) for lr, values in losses.items() for s, v in enumerate(values)]
    found = Trials(tmp_path, 9.0, trials)
    assert at_best_rate(trials, found.loss, lambda t: t.cell) == {"a": {0: 2.0, 1: 2.5, 2: 2.5}}
    assert at_best_rate(trials, found.loss, lambda t: t.cell, max)["a"][0] == 1.0
    rates = at_best_rate(trials, lambda t: t.lr, lambda t: t.cell, judged_by=found.loss)
    assert rates == {"a": {0: 1e-3, 1: 1e-2, 2: 1e-2}}, "the loss chooses, whatever is reported"


def test_the_largest_rate_is_the_last_that_learns_from_the_best_one_on(tmp_path):
    layer = {1e-3: 2.5, 1e-2: 2.2, 1e-1: 2.9, 1.0: 2.5}  # blind 3.0: at 0.1 it no longer learns, what follows is luck
    none = {1e-3: 2.4, 1e-2: 3.5, 1e-1: 3.5, 1.0: 3.5}
    trials = [trial("pre", 0, lr, v) for lr, v in layer.items()] + [trial("none", 0, lr, v) for lr, v in none.items()]
    found = largest_rates(Trials(tmp_path, 3.0, trials))
    assert found["layer"][0] == pytest.approx(math.log10(1e-2)) and found["none"][0] == pytest.approx(-3)
    nowhere = [trial("none", 0, lr, 2.85) for lr in none]  # 0.15 below the blind one at best
    assert largest_rates(Trials(tmp_path, 3.0, [*trials[:4], *nowhere])).keys() == {"layer"}, "no rate learns"


def test_steps_are_counted_to_a_smoothed_training_loss(tmp_path):
    runs = {"fast": [3.0] * 20 + [2.0] * 20, "slow": [3.0] * 30 + [2.0] * 10, "never": [3.0, 2.0] * 20}
    for name, losses in runs.items():
        writer = Writer(trial_folder(tmp_path, name))
        for step, loss in enumerate(losses, start=1):
            writer.write(step, {"loss": {"model": loss}})
        writer.close()
    trials = {name: TrialResult(name=name, cell=name, steps=len(v)) for name, v in runs.items()}
    found = Trials(tmp_path, 3.0, list(trials.values()))
    # Ten losses average below 2.5 once six of them are 2.
    assert {n: steps_to_target(found, t) for n, t in trials.items()} == {"fast": 26, "slow": 36, "never": 40}


# ---- designs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", [d for d in DESIGNS.values() if isinstance(d, Trained)], ids=lambda d: d.name)
def test_sweeps_can_be_built_at_every_budget(design, tmp_path):
    if design.name in ON_DIGITS:
        pytest.importorskip("sklearn")
    for budget in design.sizes:
        asked = Request(
            claims=[], budget=budget, folder=tmp_path, workers=1, engine_of=lambda plan: InProcess([]), first_seed=3
        )
        sweeps = sweeps_of(design, asked)
        size = size_at(design, budget)
        for _, sweep in sweeps.values():
            assert not sweep.refused, sweep.refused
            assert sorted({t.experiment.seed for t in sweep.trials()}) == list(range(3, 3 + size.seeds))


def test_smaller_batches_see_as_many_images():
    pytest.importorskip("sklearn")
    size = DESIGNS["small-batches"].sizes["default"]
    sweeps = DESIGNS["small-batches"].sweeps(size, [0])
    seen = {t.experiment.steps * t.experiment.batch_size for s in sweeps.values() for t in s.trials()}
    assert len(seen) == 1 and len(sweeps) == 3


def test_a_budget_takes_the_largest_size_up_to_it():
    final, warm = DESIGNS["final-quality"], DESIGNS["warm-up"]
    assert size_at(final, "default") is None and size_at(final, "full") is not None
    assert size_at(warm, "quick") != size_at(warm, "default") == size_at(warm, "full")
    assert rooms.first_budget(final) == "full"
    names = [d.name for d in needed([CLAIMS["C19"]], "default")]
    assert names == ["warm-up"], "what runs at this budget, and no more"


def test_gradients_at_the_start_fall_with_depth_under_pre_norm_alone():
    found = DESIGNS["gradients"].measure(Size(seeds=1, depths=(4, 16)), [0]).by_seed
    assert found["slope, pre"][0] < -0.25 < found["slope, post"][0]
    assert found["last over first, pre"][0] < 0


def test_post_norms_update_outgrows_deepnorms():
    found = DESIGNS["updates"].measure(Size(seeds=1, depths=(2, 8)), [0]).by_seed
    assert found["post over deepnorm"][0] > 0.3
    assert found["slope of updates, post"][0] > found["slope of updates, deepnorm"][0]


# ---- expectations ----------------------------------------------------------------------------------------------------


def of(**verdicts: str) -> ClaimsRun:
    return ClaimsRun(
        budget="quick", results=tuple(ClaimResult(id=k, verdict=v, budget="quick") for k, v in verdicts.items())
    )


def test_what_counts_as_another_verdict(tmp_path):
    assert changes(of(C1="holds", C2="fails"), of(C1="holds", C2="holds")) == [Change("C2", "holds", "fails")]
    assert changes(of(C1="not run"), of(C1="holds")) == [] and changes(of(C5="holds"), of(C1="fails")) == []
    assert changes(of(C1="undecided"), of(C1="holds")) == [Change("C1", "holds", "undecided")], "exact: no excuse"
    write_claims(tmp_path, of(C1="holds"))
    assert read_claims(tmp_path).by_id()["C1"].verdict == "holds"
