"""Spread of a quantity over steps and sites."""

from __future__ import annotations

import math

import pytest
import torch

from normlab.runs import Run, Writer, spread, spread_table, spreads


def write(folder, values):
    writer = Writer(folder)
    for step, sites in values:
        writer.write(step, {"q": sites, "loss": {"model": 1.0}})
    writer.close()
    return Run(folder)


def test_quantiles_are_torchs(tmp_path):
    draws = torch.randn(37, 3, dtype=torch.float64).tolist()
    run = write(tmp_path / "a", [(i + 1, {"n.0": a, "n.1": b, "other": c}) for i, (a, b, c) in enumerate(draws)])
    found = spread(run, "q", since=11, sites="n.")
    expected = torch.tensor([row[:2] for row in draws[10:]], dtype=torch.float64).flatten()
    assert found.count == 54 and found.run == "a" and found.not_finite == 0
    for name, value in (("mean", expected.mean()), ("median", expected.quantile(0.5)), ("p05", expected.quantile(0.05)),
                        ("p95", expected.quantile(0.95)), ("smallest", expected.min()), ("largest", expected.max())):  # fmt: skip
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-12), name


def test_text_and_images_stand_in_one_table(tmp_path):
    runs = {
        "text": write(tmp_path / "a", [(1, {"x": 2.0}), (2, {"x": math.inf})]),
        "digits": write(tmp_path / "b", [(1, {"y": 1.0})]),
    }
    found = spreads(runs, ["q", "loss"])
    assert [(s.quantity, s.run, s.count, s.mean) for s in found] == [
        ("q", "text", 1, 2.0), ("q", "digits", 1, 1.0), ("loss", "text", 2, 1.0), ("loss", "digits", 1, 1.0)
    ]  # fmt: skip
    assert found[0].not_finite == 1
    lines = spread_table(found).splitlines()
    assert len(lines) == 5 and lines[1].split()[:4] == ["q", "text", "1", "2"]


def test_what_is_not_there_is_named(tmp_path):
    run = write(tmp_path / "a", [(1, {"x": math.nan})])
    with pytest.raises(ValueError, match="no readings of 'p'; it has loss, q"):
        spread(run, "p")
    with pytest.raises(ValueError, match="no finite reading"):
        spread(run, "q")
    with pytest.raises(ValueError, match="from step 5"):
        spread(run, "loss", since=5)
