"""What probes saw inside: traits by hand, and a difference is told where seeds lie apart and nowhere else."""

from __future__ import annotations

import math

import pytest
from planted import answer, check, sweep_of, trials_of

from normlab import runs
from normlab.answer.inside import looking_into, traits, traits_of

BLOCKS = ["stack.layers.0", "stack.layers.1", "stack.layers.2"]


def run_with(
    folder, *, grad=(1.0, 1.0, 1.0), size=(1.0, 1.0, 1.0), angle=(0.1, 0.2, 0.3), gap=None, steps=12, broken=False
):
    """Early readings are wild, late ones as given, with one odd batch."""
    writer = runs.Writer(folder, {"sites": {"norms": {}, "blocks": ["other.0", *BLOCKS]}})
    for step in range(1, steps + 1):
        wild = 50.0 if step <= 6 or step == 9 else 1.0
        values = {
            "stream_grad": {
                b: v * (wild if i == 0 else 1.0) for i, (b, v) in enumerate(zip(BLOCKS, grad, strict=True))
            },
            "stream_rms": dict(zip(BLOCKS, size, strict=True)),
            "angle": dict(zip(BLOCKS, angle, strict=True)),
        }
        if gap is not None:
            values["inference_gap"] = {"norm.a": gap, "norm.b": 3 * gap}
        if broken and step == steps:
            values["stream_grad"][BLOCKS[0]] = math.nan
        writer.write(step, values)
    writer.close("finished")
    return runs.Run(folder)


def test_traits_are_ratios_by_depth_and_means_of_the_last_third(tmp_path):
    found = traits(run_with(tmp_path / "a", grad=(0.2, 9.0, 0.8), size=(2.0, 9.0, 5.0), gap=0.1))
    assert found == {
        "gradient": pytest.approx(0.25), "stream": pytest.approx(2.5), "turn": pytest.approx(36.0), "gap": pytest.approx(0.2)
    }  # fmt: skip
    assert traits(run_with(tmp_path / "b", grad=(0.2, 9.0, 0.8), broken=True))["gradient"] == pytest.approx(0.25)
    assert traits(run_with(tmp_path / "c", steps=2)) == {}
    assert traits(run_with(tmp_path / "d", grad=(1.0, 1.0, 0.0))).keys() == {"stream", "turn"}


def planted(inside, **more):
    """``inside``: cell -> (gradient ratio, its spread over seeds)."""
    grid = sweep_of(norms=("layer",), placements=("pre", "post"))
    trials = trials_of(grid, lambda n, p, lr: 2.3 + 0.2 * (p == "post") + 0.1 * (lr != 1e-3), noise=0.01)

    def look(trial):
        middle, spread = inside[trial.cell]
        return {"gradient": middle + spread * (trial.seed - 1), **more.get(trial.cell, {})}

    return check(answer(grid, trials, look=look))


def test_a_difference_inside_is_told_with_both_numbers():
    found = planted({"layer/pre": (0.9, 0.05), "layer/post": (0.1, 0.01)})
    said = [s for s in found.verdict.en if s.startswith("What the probes show")]
    assert said == ["What the probes show to differ between layer/pre and layer/post: gradient of the stream, first block over last 0.9 "
                    "against 0.1."]  # fmt: skip
    trait = {c.name: c.traits for c in found.cells}["layer/post"]["gradient"]
    assert (trait.mean, trait.low, trait.high, trait.n) == pytest.approx((0.1, 0.09, 0.11, 3))
    assert runs.Summary.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("post", [(0.8, 0.01), (0.5, 0.5)])  # too near; seeds overlap
def test_what_seeds_explain_is_not_told(post):
    found = planted({"layer/pre": (0.9, 0.01), "layer/post": post})
    assert not any("probes" in s for s in found.verdict.en)


def test_a_gap_to_evaluation_is_told_of_the_cell_that_has_one():
    of = {"layer/pre": (0.9, 0.01), "layer/post": (0.9, 0.01)}
    large = planted(of, **{"layer/post": {"gap": 0.31}})
    assert any("from batch to running statistics 0.31 in layer/post" in s for s in large.verdict.en)
    assert not any("probes" in s for s in planted(of, **{"layer/post": {"gap": 0.03}}).verdict.en)


def test_a_run_that_cannot_be_read_has_no_traits(tmp_path):
    run_with(tmp_path / "trials" / "a")
    look = looking_into(tmp_path)
    ok, gone = (runs.TrialResult(cell="x", name=name, folder=f"trials/{name}") for name in ("a", "b"))
    assert look(ok) and look(gone) == {} and traits_of([ok, gone], look)["turn"].n == 1
