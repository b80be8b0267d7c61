"""Designs at next to no size: what they give has the names that rules ask for."""

from __future__ import annotations

import dataclasses

import pytest

from normlab.claims import CLAIMS
from normlab.claims.designs import DESIGNS, Measured
from normlab.claims.designs.base import Trials
from normlab.lab import checked
from normlab.lab.train import attempt
from normlab.runs import Evidence, read_trials, trial_folder, write_grid

SMALL = {"dim": 8, "num_heads": 2, "num_layers": 2}


def small(design, seeds: int = 1):
    """The smallest of its sizes, made smaller still."""
    first = next(iter(design.sizes.values()))
    depths = {"gradients": (1, 2), "updates": (1, 2), "warm-up": (2, 1)}.get(design.name, ())
    return dataclasses.replace(first, seeds=seeds, steps=16, layers=2, depths=depths, rates=first.rates[:2])


def evidence(design, folder) -> Evidence:
    """Trained in this process, with tiny models; arms and settings as the design has them."""
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
        found[name] = Trials(at, grid.blind, trials)
    return design.read(found)


def names(of: Evidence) -> set[str]:
    return {*of.numbers, *of.by_seed, *(arm for arms in of.arms.values() for arm in arms)}


@pytest.mark.parametrize(("name", "given"), [
    ("effective-depth", {"effective depth, pre", "angle of last over first, post", "drop of deep over first, pre"}),
    ("landscape", {"shift, layer", "shift, none", "loss range, layer over none", "noisy layer", "no norm"}),
    ("recurrent", {"recurrent, layer", "recurrent, batch", "recurrent, none"}),
    ("equivalence", {"layer", "rms", "layer without affine", "layer, statistics detached"}),
])  # fmt: skip
def test_runs_are_read_into_named_numbers(name, given, tmp_path):
    assert given <= names(evidence(DESIGNS[name], tmp_path))


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
