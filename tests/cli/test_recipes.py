"""Recipes: each is a sweep that can be built, as its command line says; options beside it win."""

from __future__ import annotations

import argparse

import pytest

from normlab import cli
from normlab.cli import compare
from normlab.cli.recipes import RECIPES
from normlab.lab import Sweep
from normlab.report.pages import PAGE
from normlab.runs import read_summary


def asked(*words) -> tuple[argparse.Namespace, object]:
    args = cli.build_parser().parse_args(["compare", *words])
    if args.recipe:
        compare._follow(args)
    _, sweep, _ = compare._asked(args)
    return args, sweep


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_the_command_line_it_stands_for(name, tmp_path, capsys):
    _, by_name = asked("--recipe", name, "--out", str(tmp_path / "a"))
    _, by_hand = asked(*RECIPES[name].options, "--out", str(tmp_path / "a"))
    assert by_name.to_dict() == by_hand.to_dict() and not by_name.refused
    assert RECIPES[name].question[0] in capsys.readouterr().out
    assert 2 <= len(by_name.cells()) <= 8
    assert len(by_name.cells()) * (3 * len(by_name.axes["lr"]) + 2) <= 75  # a few minutes, with 3+2 seeds


TOY = [
    "--seeds", "2+1", "--set", "dim=16", "--set", "num_heads=2", "--set", "held_out=40", "--set", "evaluations=2",
    "--workers", "1",
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_to_its_end(name, tmp_path, capsys):
    """Smaller, with fewer seeds; the cells, the rates and the steps are the recipe's own."""
    folder = tmp_path / "a"
    assert cli.main(["compare", "--recipe", name, *TOY, "--out", str(folder)]) == 0
    said, sweep = capsys.readouterr().out, Sweep.read(folder)
    _, own = asked("--recipe", name, "--out", str(tmp_path / "b"))
    assert sweep.axes["lr"] == own.axes["lr"] and sweep.cells() == own.cells()
    found = read_summary(folder)
    assert (
        found.complete and not any(t.outcome == "failed" for t in found.trials) and len(found.cells) == len(own.cells())
    )
    assert found.baseline == RECIPES[name].options[-1] and 1 <= len(found.verdict.en) <= 14
    if sweep.base.task == "text":  # hidden bytes take more steps than these
        assert any(c.mean is not None for c in found.cells) and found.verdict.en[0].startswith("Use ")
    assert (folder / PAGE).stat().st_size > 10_000 and f"report: {folder / PAGE}" in said


def test_options_beside_a_recipe_replace_its_own(tmp_path):
    args, sweep = asked("--recipe", "small-batch", "--seeds", "1", "--vary", "batch_size=8,32", "--set", "dim=32", "--norm", "batch",
                        "--out", str(tmp_path / "a"))  # fmt: skip
    assert sweep.axes["batch_size"] == [8, 32] and sweep.axes["norm"] == ["batch"] and sweep.base.model == {"dim": 32}
    assert sweep.base.task == "masked" and sweep.equal == "samples" and args.baseline is None
    _, fixed = asked("--recipe", "depth", "--set", "num_layers=3", "--out", str(tmp_path / "b"))
    assert "num_layers" not in fixed.axes and fixed.base.model["num_layers"] == 3 and fixed.base.model["dim"] == 32


def test_help_lists_every_question(capsys):
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for name, recipe in RECIPES.items():
        assert name in out and recipe.question[0].split()[0] in out
    assert cli.main(["compare", "--recipe", "warmup", "--resume", "nowhere"]) == 2


def test_tables_of_options_have_names_one_can_read():
    _, sweep = asked("--recipe", "affine", "--out", "nowhere-at-all")
    assert {t.cell for t in sweep.trials()} >= {
        "layer/pre/default",
        "layer/post/bias-false",
        "layer/pre/elementwise_affine-false",
    }
