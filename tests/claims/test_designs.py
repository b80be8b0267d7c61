"""Designs at next to no size: what they give has the names that rules ask for."""

from __future__ import annotations

import dataclasses

import pytest

from normlab.claims import CLAIMS
from normlab.claims.designs import DESIGNS, Measured, Size
from normlab.claims.designs.base import Trials
from normlab.claims.designs.tokens import hidden_bytes_experiment, padded_over_real
from normlab.lab import checked
from normlab.lab.train import attempt
from normlab.runs import Evidence, TrialResult, read_trials, trial_folder, write_grid

SMALL = {"dim": 8, "num_heads": 2, "num_layers": 2}


def small(design, seeds: int = 1):
    """The smallest of its sizes, made smaller still."""
    first = next(iter(design.sizes.values()))
    depths = {"gradients": (1, 2), "updates": (1, 2), "warm-up": (2, 1)}.get(design.name, ())
    return dataclasses.replace(first, seeds=seeds, steps=16, layers=2, depths=depths, rates=first.rates[:2])


def evidence(design, folder, blind: float | None = None) -> Evidence:
    """Trained in this process, with tiny models; arms and settings as the design has them. ``blind``: another loss to count failures as."""
    size = small(design)
    if isinstance(design, Measured):
        return design.measure(size, [0])
    found = {}
    for name, sweep in design.sweeps(size, [0]).items():
        base = sweep.base.changed(**SMALL, batch_size=4, held_out=4, steps=16)
        tiny = checked(dataclasses.replace(sweep, base=base))
        at = folder / name.replace(", ", "-")
        write_grid(at, tiny.grid())
        for trial in tiny.trials():
            assert attempt(trial.experiment, trial_folder(at, trial.name)).outcome != "failed"
        grid, trials = read_trials(at)
        found[name] = Trials(at, grid.blind if blind is None else blind, trials)
    return design.read(found)


def names(of: Evidence) -> set[str]:
    return {*of.numbers, *of.by_seed, *(arm for arms in of.arms.values() for arm in arms)}


@pytest.mark.parametrize(("name", "given"), [
    ("effective-depth", {"effective depth, pre", "angle of last over first, post", "drop of deep over first, pre"}),
    ("landscape", {"shift, layer", "shift, none", "loss range, layer over none", "noisy layer", "no norm"}),
    ("recurrent", {"recurrent, layer", "recurrent, batch", "recurrent, none"}),
    ("equivalence", {"layer", "rms", "layer without affine", "layer, statistics detached"}),
    ("inside", {"within two, mean norm", "within two, lowest norm", "identity left, pre", "parallel blocks, post", "neighbours kept"}),
    ("hidden-bytes", {"hidden bytes, layer", "hidden bytes, batch", "hidden bytes, power", "padding counted", "padding masked"}),
    ("position", {"position, layer", "position, batch", "position kept, batch", "docs, layer", "docs, batch"}),
    ("batch-statistics", {"drift against batch size", "drift, padded over real"}),
    ("rates", {"largest rate, adam", "layer, best rate", "none, best rate", "steps to target, layer over none"}),
])  # fmt: skip
def test_runs_are_read_into_named_numbers(name, given, tmp_path):
    assert given <= names(evidence(DESIGNS[name], tmp_path))


def test_without_padding_all_cells_drift_as_the_real_ones_do(tmp_path):
    """Both averages must be of the same steps. Recorded every twentieth step, the ratio of such a run was 1.5."""
    experiment = hidden_bytes_experiment(
        Size(seeds=1, steps=200), options={"length": 8}, norm="batch", watch="standard", watch_every=1, held_out=4, **SMALL
    )  # fmt: skip
    attempt(experiment, trial_folder(tmp_path, "x"))
    trial = TrialResult(name="x", cell="x", outcome="trained")
    found = Trials(tmp_path, 3.0, [trial])
    assert padded_over_real(found, trial) == pytest.approx(0.0, abs=1e-4)
    sweeps = DESIGNS["batch-statistics"].sweeps(small(DESIGNS["batch-statistics"]), [0])
    assert {s.base.watch_every for s in sweeps.values()} == {1}


def test_digits_designs_give_their_numbers(tmp_path):
    pytest.importorskip("sklearn")
    given = {
        "convolution": {"convolution, layer", "convolution, batch", "convolution, none"},
        "inference-gap": {"running statistics", "batch statistics", "digits, running statistics", "digits, batch statistics"},
        "gradients-of-statistics": {"outliers of gradients, text over digits", "outliers of gradients, text"},
        "pre-or-deepnorm": {"text loss, pre", "text accuracy, deepnorm", "digits loss, deepnorm", "digits accuracy, pre"},
    }  # fmt: skip
    assert {
        name: names(evidence(DESIGNS[name], tmp_path / name)) >= wanted for name, wanted in given.items()
    } == dict.fromkeys(given, True)


@pytest.mark.nightly
def test_every_number_that_a_rule_names_is_measured(tmp_path):
    pytest.importorskip("sklearn")
    known = {name: names(evidence(design, tmp_path / name)) for name, design in DESIGNS.items()}
    asked = {c.id: {n for check in c.checks for n in (check.quantity, check.against) if n} for c in CLAIMS.values()}
    missing = {}
    for claim in CLAIMS.values():
        if claim.designs and set(claim.designs) <= set(DESIGNS):
            measured = set(claim.measure()) if claim.measure else set()
            if lacking := asked[claim.id] - measured.union(*(known[d] for d in claim.designs)):
                missing[claim.id] = lacking
    assert not missing
