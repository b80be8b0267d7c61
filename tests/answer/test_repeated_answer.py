"""Two runs of one comparison with other seeds: what is decided in both, on sweeps whose truth is planted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from planted import answer, sweep_of, trials_of

from normlab.runs import Writer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "repeated_answer.py"
SPEC = importlib.util.spec_from_file_location("repeated_answer", SCRIPT)
script = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = script  # dataclasses look their module up
SPEC.loader.exec_module(script)

NORMS, PLACEMENTS = ("layer", "rms", "batch"), ("pre", "post", "deepnorm")
EFFECTS = {"pre": 0.0, "deepnorm": 0.0, "post": 0.12}


def planted(seeds, *, draw, effects=EFFECTS, noise=0.012):
    """(sweep, trials) with these seeds: the effects of the default comparison, with its noise."""
    sweep = sweep_of(NORMS, PLACEMENTS, (1e-2,), seeds=len(seeds))
    sweep["axes"]["seed"] = list(seeds)
    loss = lambda norm, placement, lr: 2.4 + effects[placement] + 0.09 * (norm == "batch")  # noqa: E731
    return sweep, trials_of(sweep, loss, noise=noise, shared=0.03, seed=draw)


def written(folder, sweep, trials):
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps(sweep))
    for t in trials:
        info = {"experiment": {"lr": t["lr"], "seed": t["seed"], **t["axes"]}, "task": {"blind": 3.3}}
        result = {k: v for k, v in t.items() if k in ("outcome", "loss", "first_loss", "curve", "tokens_per_second")}
        Writer(folder / "trials" / t["name"], info).close("finished", result=result)
    return folder


def test_planted_effects_are_decided_again_and_none_flips():
    """Ten pairs of sweeps: of what is clear nearly everything comes again; chance alone is rarely decided, and hardly ever twice."""
    shares, flips = [], 0
    for draw in range(10):
        one, two = (script.differences(answer(*planted(range(a, a + 5), draw=2 * draw + a))) for a in (0, 100))
        for result in (script.repeated(one, two), script.repeated(two, one)):
            assert len(result.decided) >= 15
            shares.append(result.share)
            flips += len(result.flipped)
    assert flips == 0 and min(shares) >= script.AGAIN


def test_a_flipped_sign_and_a_lost_decision_are_counted():
    of = {p: script.differences(answer(*planted(range(3), draw=1, effects=e, noise=0.002)))
          for p, e in {"worse": EFFECTS, "better": {**EFFECTS, "post": -0.2}, "same": {**EFFECTS, "post": 0.0}}.items()}  # fmt: skip
    pair = ("layer/post", "layer/pre")
    assert pair in (flipped := script.repeated(of["worse"], of["better"])).flipped and flipped.share < 1
    lost = script.repeated(of["worse"], of["same"])
    assert pair in lost.decided and pair not in lost.again and pair not in lost.flipped
    assert script.repeated(of["worse"], of["worse"], among={pair}) == script.Repeated((pair,), (pair,), ())
    assert script.Repeated((), (), ()).share == 1.0


def test_looks_before_make_a_statement_harder():
    found = answer(*planted(range(4), draw=3, noise=0.05))
    first, later = script.differences(found), script.differences(found, 0.25)
    assert {p for p, d in later.items() if d.decided} < {p for p, d in first.items() if d.decided}


def test_the_script_says_it_and_ends_with_a_code(tmp_path, capsys):
    one = written(tmp_path / "one", *planted(range(5), draw=1))
    two = written(tmp_path / "two", *planted(range(100, 105), draw=2))
    assert script.main([str(one), str(two)]) == 0
    out = capsys.readouterr().out
    assert "0 with the other sign" in out and "first sentence: Use " in out and "flipped" not in out
    other = written(tmp_path / "other", *planted(range(200, 205), draw=3, effects={**EFFECTS, "post": -0.3}))
    assert script.main([str(one), str(other)]) == 1
    assert "  flipped: layer/post against layer/pre: +0.1" in capsys.readouterr().out


@pytest.mark.parametrize("case", ["no sweep", "same seeds", "other cells", "other steps"])
def test_what_cannot_be_compared_is_one_line_and_code_2(tmp_path, capsys, case):
    one = written(tmp_path / "one", *planted(range(3), draw=1))
    sweep, _ = planted(range(50, 53), draw=2)
    if case == "same seeds":
        sweep["axes"]["seed"] = [2, 3, 4]
    if case == "other cells":
        sweep["axes"]["norm"] = ["layer", "rms", "scale"]
    if case == "other steps":
        sweep["base"]["steps"] = 300
    two = tmp_path / "nothing" if case == "no sweep" else written(tmp_path / "two", sweep, [])
    assert script.main([str(one), str(two)]) == 2
    said = capsys.readouterr()
    words = {"no sweep": "holds no sweep", "same seeds": "the seeds 2: give the second --first-seed 3", "other cells": "other cells or rates",
             "other steps": "other steps"}[case]  # fmt: skip
    assert not said.out and said.err.count("\n") == 1 and words in said.err
