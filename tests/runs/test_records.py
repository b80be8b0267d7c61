"""Records: what a file may hold and what an object has are one declaration; both ways of it."""

from __future__ import annotations

import json
import random
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from normlab import RunUnreadable, runs
from normlab.runs import (
    Cell,
    Choice,
    Difference,
    Estimate,
    Grid,
    Rate,
    Refused,
    Result,
    Summary,
    Trait,
    TrialFinding,
    TrialResult,
    Verdict,
)
from normlab.runs.sweep import CELLS_TABLE

RECORDS = (
    Choice,
    TrialFinding,
    Estimate,
    Trait,
    Result,
    TrialResult,
    Difference,
    Rate,
    Cell,
    Refused,
    Verdict,
    Summary,
    Grid,
)
NEEDED = {Choice: {"kind": "sync"}, TrialFinding: {"rule": "leak"}, Estimate: {"mean": 0.5}, Trait: {"mean": 0.5, "low": 0.4, "high": 0.6}, TrialResult: {"cell": "a/b"}, Difference: {"mean": 0.5}, Rate: {"lr": 1e-3}, Cell: {"cell": "a/b"},
          Refused: {"axes": {"norm": "a"}, "reason": "no"}, Grid: {"axes": {"lr": [0.1], "seed": [0]}}}  # fmt: skip
FULL = {
    "schema": "normlab.summary/1", "task": "text", "unit": "nats per byte", "blind": 3.3, "steps": 7, "created": "today",
    "machine": {"cpu": "some"}, "complete": False, "planned": 9, "looks": [3, 5], "wrong": 0.0875, "baseline": "layer/pre", "best": "rms/pre", "margin": 0.02, "target_loss": 2.5,
    "trials": [{"name": "t", "cell": "layer/pre", "axes": {"norm": "layer", "placement": "pre"}, "lr": 0.1, "seed": 3,
                "outcome": "trained", "steps": 7, "loss": 2.5, "loss_half_width": 0.1, "accuracy": 0.5, "train_loss": 2.4,
                "first_loss": 5.0, "blind": 3.3, "curve": [[3, 3.0], [7, 2.5]], "diverged_at": None, "cause": None, "error": None,
                "seconds": 1.5, "overhead_seconds": 0.1, "tokens_per_second": 1e3, "matmul_share": 0.4, "peak_memory": 5,
                "parameters": 11, "training_seconds": 1.2, "evaluation_seconds": 0.2, "folder": "trials/t"}],
    "cells": [{"cell": "layer/pre", "axes": {"norm": "layer", "placement": "pre"}, "rank": 1,
               "rates": [{"lr": 0.1, "mean": 2.5, "low": 2.4, "high": 2.6, "n": 3, "trained": 3, "untrained": 1, "collapsed": 2,
                          "diverged": 4, "failed": 5, "lost": 1, "skipped": 2, "stable": True}],
               "best_lr": 0.1, "best_at_edge": "low", "mean": 2.5, "low": 2.4, "high": 2.6, "n": 3, "cross_fitted": 2.51, "largest_stable_lr": 0.1,
               "stable_up_to_edge": True, "divergence_rate": 0.25, "steps_to_target": 6.5, "tokens_per_second": 1e3,
               "peak_memory": 5, "tied_with_best": True,
               "difference": {"mean": -0.1, "low": -0.2, "high": 0.0, "n": 3, "p": 0.04, "decided": True, "equal": False,
                              "seeds_needed": 9, "seeds_low": 4, "seeds_high": 39},
               "behind_best": {"mean": 0.1, "low": -0.1, "high": 0.3, "n": 3, "p": 0.4, "decided": False, "equal": True,
                               "seeds_needed": 9, "seeds_low": 4, "seeds_high": 39}}],
    "refused": [{"cell": "batch/pre", "axes": {"norm": "batch", "placement": "pre"}, "reason": "it would leak"}],
    "verdict": {"en": ["One."], "zh": ["一。"]},
}  # fmt: skip
CHOICE = {"kind": "causal-position", "norm": "batch", "values": 16, "text": "so"}
ABOUT = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 3}
FULL |= {"equal": "samples", "metric": "accuracy", "common_target": 2.6}
FULL["trials"][0] |= {"samples": 112.0, "tokens": 7168.0, "choices": [CHOICE], "cause_zh": "因", "findings": [
    {"rule": "leak", "severity": "critical", "site": "a.b", "en": "It leaks.", "zh": "泄漏。"}]}  # fmt: skip
FULL["cells"][0] |= {"steps": 7.0, "choices": [CHOICE], "figures": {"accuracy": ABOUT}, "traits": {"turn": ABOUT}}
FULL["refused"][0] |= {"reason_zh": "会泄漏"}


def test_a_summary_comes_back_as_it_was_with_every_field():
    found = Summary.from_dict(json.loads(json.dumps(FULL)))
    assert found.to_dict() == FULL and Summary.from_dict(found.to_dict()) == found
    assert found.cells[0].rates[0].count("collapsed", "diverged") == 6 and str(found) == "One."
    assert isinstance(found.trials[0], Result) and found.trials[0].curve == ((3, 3.0), (7, 2.5))


@pytest.mark.parametrize("kind", RECORDS)
def test_what_is_not_needed_may_be_missing_or_null_and_unknown_names_are_passed_over(kind):
    least = NEEDED.get(kind, {})
    found = kind.from_dict(dict(least))
    null = {key: None for key in found.to_dict() if key not in ("schema", *least)}
    assert kind.from_dict({**null, **least, "of a later version": [1]}) == found
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
    for name in least:
        with pytest.raises(ValueError, match=rf"at\.{name} is missing"):
            kind.from_dict({k: v for k, v in least.items() if k != name}, "at")
        with pytest.raises(ValueError, match=rf"^{name} must be"):
            kind.from_dict({**least, name: None})


@pytest.mark.parametrize("kind", RECORDS)
def test_no_record_can_be_changed(kind):
    found = kind.from_dict(NEEDED.get(kind, {}))
    with pytest.raises(FrozenInstanceError):
        setattr(found, fields(found)[0].name, None)


def wrong_values(value):
    """Of another type than this one."""
    kinds = ([[]], {"a": []}, "text", True, 1.5)
    return [k for k in kinds if type(k) is not type(value) and not (type(value) is int and type(k) is float)]


def test_every_field_of_a_file_is_checked_and_named():
    """A value of a wrong type, in each place of a whole summary in turn: refused, with its place."""
    free = ("machine", "axes", "cpu", "of a later version")

    def places(value, path=()):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from () if key in free else places(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from places(inner, (*path, index))
        if path and path[-1] not in ("schema", "cell"):
            yield path, value

    draw, seen = random.Random(7), 0
    for path, value in list(places(FULL)):
        if path[0] == "refused" and path[-1] == "cell":
            continue  # made from its axes
        changed = json.loads(json.dumps(FULL))
        at = changed
        for key in path[:-1]:
            at = at[key]
        if value is None:
            continue
        options = wrong_values(value)
        at[path[-1]] = draw.choice([o for o in options if not (isinstance(value, float) and o == 1.5)])
        with pytest.raises(ValueError, match=r"must be") as caught:
            Summary.from_dict(changed)
        assert str(path[0]) in str(caught.value), (path, caught.value)
        seen += 1
    assert seen > 55


def test_numbers_that_json_lacks_are_unknown():
    found = Result.from_dict({"loss": float("nan"), "accuracy": "inf", "curve": [[1, 2.0], [2, None], [3, "nan"]]})
    assert found.loss is None and found.accuracy is None and found.curve == ((1, 2.0),)


def test_a_result_of_an_earlier_version_is_read(tmp_path):
    """It held a failed trial's outcome and error alone."""
    info = {"experiment": {"norm": "layer", "lr": 0.1, "seed": 2, "model": {"dim": 8}}}
    runs.Writer(tmp_path / "a", info).close("failed", result={"outcome": "failed", "error": "no"})
    found, _ = runs.read_trial(tmp_path / "a", ["norm", "dim"])
    assert found == TrialResult(
        name="a", cell="layer/8", axes={"norm": "layer", "dim": 8}, lr=0.1, seed=2, outcome="failed", error="no",
        folder="trials/a",
    )  # fmt: skip


# ---- the grid --------------------------------------------------------------------------------------------------------


def test_a_grid_counts_its_trials_and_leaves_the_refused_out():
    grid = Grid.from_dict({"base": {"seed": 4, "steps": 7}, "axes": {"norm": ["a", "b", "c"], "dim": [8, 16], "lr": [0.3, 0.1]},
                           "refused": [{"axes": {"dim": 16, "norm": "b"}, "reason": "no"}]})  # fmt: skip
    assert list(grid.cells()) == ["a/8", "a/16", "b/8", "c/8", "c/16"] and len(grid.combinations()) == 6
    assert grid.rates == [0.1, 0.3] and grid.seeds == [4] and grid.planned == 10
    assert grid.to_dict().keys() == {"schema", "base", "axes", "baseline", "refused"}
    assert replace(grid, created="now").to_dict()["created"] == "now"


@pytest.mark.parametrize("name", runs.WITHIN_CELLS)
def test_a_grid_without_rate_or_seed_is_refused(tmp_path, name):
    base = {"lr": 0.1, "seed": 0}
    del base[name]
    (tmp_path / runs.SWEEP.file).write_text(json.dumps({"schema": Grid.SCHEMA, "base": base, "axes": {"norm": ["a"]}}))
    with pytest.raises(RunUnreadable, match=rf"sweep\.json: a sweep needs {name}"):
        runs.read_grid(tmp_path)


def test_the_trial_of_another_has_no_result(tmp_path):
    info = {"experiment": {"norm": "layer", "lr": 0.1, "seed": 2, "model": {"betas": [0.9, 0.95]}}}
    runs.Writer(tmp_path / "a", info).close(result={"outcome": "trained", "loss": 2.0})
    axes = {"norm": "layer", "betas": (0.9, 0.95)}
    assert runs.finished_result(tmp_path / "a", axes, 0.1, 2) == Result(outcome="trained", loss=2.0)
    assert runs.finished_result(tmp_path / "a", axes, 0.1, 3) is None
    assert runs.finished_result(tmp_path / "a", {**axes, "norm": "rms"}, 0.1, 2) is None
    assert runs.finished_result(tmp_path / "b", axes, 0.1, 2) is None


def test_an_axis_may_be_called_like_a_column(tmp_path):
    """The column says what it always says; the axis stands in the cell's name."""
    found = Summary.from_dict(json.loads(json.dumps(FULL)))
    cells = [replace(found.cells[0], axes={"rank": 8, "norm": "layer"})]
    runs.write_summary(tmp_path, replace(found, cells=tuple(cells)))
    header, row = (tmp_path / CELLS_TABLE).read_text().splitlines()
    assert header.startswith("cell,norm,rank,steps,best_lr,") and row.startswith("layer/pre,layer,1,7.0,0.1,")
    pairs = [f"{name}_{k}" for name in ("difference", "behind_best") for k in FULL["cells"][0]["difference"]]
    assert header.endswith("tied_with_best," + ",".join(pairs))


def test_a_summary_with_the_corrected_p_of_an_earlier_version_is_read():
    old = json.loads(json.dumps(FULL))
    del (
        old["best"],
        old["margin"],
        old["cells"][0]["behind_best"],
        old["cells"][0]["cross_fitted"],
        old["cells"][0]["rates"][0]["lost"],
    )
    old["cells"][0]["difference"] = {
        "mean": -0.1,
        "low": -0.2,
        "high": 0.0,
        "n": 3,
        "p": 0.04,
        "p_holm": 0.08,
        "decided": True,
        "seeds_needed": 9,
    }
    found = Summary.from_dict(old)
    assert found.best is None and found.cells[0].behind_best is None and found.cells[0].difference.p == 0.04


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.3), (-0.3, 0.0), (0.0, 1e-300)])
def test_a_decided_difference_that_touches_zero_can_be_shown(low, high):
    """No procedure of ours gives one; a file may hold it."""
    assert 0 <= runs.Difference(mean=0.1, low=low, high=high, n=3, decided=True).decimals <= 12
