"""The playground's arithmetic, as node runs it, against torch and the reference; its settings and its data."""

from __future__ import annotations

import itertools
import math

import network_cases
import pytest
import torch
from page_script import MISSING, NODE, in_node

from normlab.kernels import reference
from normlab.placements import deepnorm_scales

pytestmark = pytest.mark.skipif(NODE is None, reason=MISSING)

CASES = network_cases.cases()


@pytest.fixture(scope="module")
def answers():
    return in_node(CASES)


def test_every_combination_is_a_case():
    made = {(c["shape"]["norm"], c["shape"]["placement"], c["optimizer"]) for c in CASES}
    assert len(made) == 4 * 4 * 2


@pytest.mark.parametrize("i", range(len(CASES)), ids=["-".join((c["shape"]["norm"], c["shape"]["placement"], c["optimizer"], str(c["shape"]["depth"]))) for c in CASES])  # fmt: skip
def test_forward_backward_and_five_steps_agree_with_torch(answers, i):
    network_cases.assert_agrees(CASES[i], answers[i])


def test_the_comparison_sees_a_wrong_network(answers):
    """A gain, an eps, a placement or a step too many: each is found."""
    i = next(i for i, c in enumerate(CASES) if c["shape"]["norm"] == "layer" and c["shape"]["placement"] == "pre")
    for change in ({"eps": 2e-5 + CASES[i]["shape"]["eps"]}, {"placement": "post"}, {"norm": "batch"}):
        wrong = {**CASES[i], "shape": {**CASES[i]["shape"], **change}}
        with pytest.raises((AssertionError, KeyError)):
            network_cases.assert_agrees(wrong, answers[i])
    with pytest.raises(AssertionError):
        network_cases.assert_agrees({**CASES[i], "rate": 1.0001 * CASES[i]["rate"]}, answers[i])


@pytest.mark.parametrize("norm", ["batch", "layer", "rms"])
def test_norms_agree_with_the_reference(norm):
    rows, width, eps = 7, 5, 3e-3
    x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    g = torch.randn(rows, width, dtype=torch.float64)
    axes = reference.axes_of(norm, 2)
    xhat, mean, square, _ = reference.normalize(x, axes, eps, centered=norm != "rms")
    (dx,) = torch.autograd.grad(xhat, x, g)
    (found,) = in_node([{"ask": "normed", "norm": norm, "rows": rows, "width": width, "eps": eps,
                         "x": x.flatten().tolist(), "g": g.flatten().tolist()}])  # fmt: skip
    for name, theirs in {"xhat": xhat, "dx": dx, "mean": mean, "square": square}.items():
        torch.testing.assert_close(
            torch.tensor(found[name], dtype=torch.float64), theirs.detach().flatten(), rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("centered", [True, False], ids=["layer", "rms"])
def test_step_by_step_agrees_with_the_reference(centered):
    x, gain, bias = torch.randn(3, 6, dtype=torch.float64).unbind()
    xhat, mean, square, _ = reference.normalize(x, (0,), 1e-3, centered=centered)
    y = reference.affine(xhat, gain, bias, dtype=torch.float64)
    how = {"centered": centered, "eps": 1e-3, "gain": gain.tolist(), "bias": bias.tolist()}
    (found,) = in_node([{"ask": "steps", "values": x.tolist(), "how": how}])
    assert found["count"] == 6 and found["mean"] == pytest.approx(float(mean), abs=1e-14)
    assert found["variance"] == pytest.approx(float(square), rel=1e-12)
    assert found["normalized"] == pytest.approx(xhat.tolist(), rel=1e-10) and found["out"] == pytest.approx(
        y.tolist(), rel=1e-10
    )


def test_wrong_variances_are_wrong_in_the_way_they_are_shown():
    """Around 10,000 the mean of squares minus the squared mean cancels in float32; without the mean it is not a variance."""
    values = (10_000 + torch.tensor([-1.5, -0.5, 0.25, 0.5, 0.75, 0.5])).tolist()
    true = float(torch.tensor(values, dtype=torch.float64).var(correction=0))
    rules = ("two-pass", "one-pass", "uncentered")
    two, one, raw = in_node([{"ask": "steps", "values": values, "how": {"centered": True, "eps": 0, "rule": r, "precision": "float32"}} for r in rules])  # fmt: skip
    assert two["variance"] == pytest.approx(true, rel=1e-3)
    assert abs(one["variance"] - true) > 0.5 * true
    assert raw["variance"] == pytest.approx(1e8, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_rounding_is_that_of_torch(precision):
    dtype = getattr(torch, precision)
    around = torch.tensor([2.0**k for k in range(-30, 20)], dtype=torch.float64)
    values = torch.cat([around, around * (1 - 2**-11), around * (1 - 2**-12), around * (1 + 2**-8), around * (1 + 2**-9 + 2**-30),
                        torch.randn(400, dtype=torch.float64) * 10.0 ** torch.randint(-9, 6, (400,)),
                        torch.tensor([0.0, -0.0, 65504.0, 65519.99, 65520.0, -70000.0, 6e-8, 2.9e-8, 3e38, 3.5e38, math.inf, math.nan], dtype=torch.float64)])  # fmt: skip
    values = values.float().double()  # torch rounds float64 to float32 first, and then again
    (found,) = in_node([{"ask": "rounded", "precision": precision, "values": [float(v) if math.isfinite(v) else 0.0 for v in values]}])  # fmt: skip
    expected = torch.where(values.isfinite(), values, 0.0).to(dtype).double()
    for text, value, theirs in zip(found, values.tolist(), expected.tolist(), strict=True):
        assert float(text) == theirs, (value, text, theirs)


def test_deepnorms_factors_are_those_of_the_package():
    """A layer of the paper has two sub-layers, a block of the playground one."""
    (found,) = in_node([{"ask": "scales", "depths": [2, 8, 16, 64]}])
    for depth, scales in zip([2, 8, 16, 64], found, strict=True):
        assert (scales["alpha"], scales["beta"]) == pytest.approx(deepnorm_scales(depth // 2))


def test_what_is_measured_by_depth():
    side = {"norm": "batch", "placement": "pre", "depth": 5, "width": 8, "rate": 0.01, "batch": 16, "optimizer": "adam", "warmup": 50, "eps": 1e-5}  # fmt: skip
    (found,) = in_node(
        [{"ask": "training", "side": side, "common": {"data": "spiral3", "noise": 0.02, "seed": 3}, "steps": 20}]
    )
    streams = [torch.tensor(s, dtype=torch.float64).reshape(16, 8) for s in found["streams"]]
    depths = found["depths"]
    assert depths["stream"] == pytest.approx([float(s.square().mean().sqrt()) for s in streams])
    angles = [
        float((torch.nn.functional.cosine_similarity(a, b).clamp(-1, 1).acos() / math.pi).mean())
        for a, b in itertools.pairwise(streams)
    ]
    assert depths["angle"] == pytest.approx(angles, rel=1e-6)
    assert depths["effective"] == pytest.approx(sum(angles) ** 2 / sum(a * a for a in angles), rel=1e-6)
    assert len(depths["meanDistance"]) == 6
    for (mean, square, of_batch, its_square), far, wide in zip(found["norms"], depths["meanDistance"], depths["deviationDistance"], strict=True):  # fmt: skip
        mean, square, of_batch, its_square = (torch.tensor(v, dtype=torch.float64) for v in (mean, square, of_batch, its_square))  # fmt: skip
        before = (
            (mean - 0.1 * of_batch) / 0.9,
            (square - 0.1 * its_square * 16 / 15) / 0.9,
        )  # the batch has moved them since
        spread = (its_square + 1e-5).sqrt()
        assert far == pytest.approx(float(((before[0] - of_batch).abs() / spread).mean()), rel=1e-6)
        assert wide == pytest.approx(float((((before[1] + 1e-5).sqrt() / spread) - 1).abs().mean()), rel=1e-6)
    assert found["rates"] == pytest.approx([0.01 * min(1, (i + 1) / 50) for i in range(20)])
    assert [e["step"] for e in found["heldOut"]] == [0, 10, 20]


def test_a_network_learns_and_a_hopeless_one_diverges():
    side = {"norm": "layer", "placement": "pre", "depth": 4, "width": 16, "rate": 0.01, "batch": 32, "optimizer": "adam", "warmup": 0, "eps": 1e-5}  # fmt: skip
    common = {"data": "rings", "noise": 0.02, "seed": 2}
    wild = {**side, "norm": "none", "depth": 16, "optimizer": "sgd", "rate": 3}
    learned, lost = in_node([{"ask": "training", "side": s, "common": common, "steps": 150} for s in (side, wild)])
    assert learned["heldOut"][-1]["accuracy"] > 0.97 and learned["divergedAt"] is None
    assert lost["divergedAt"] is not None and lost["step"] == lost["divergedAt"] - 1
    assert all(math.isfinite(loss) for loss in lost["losses"])


def test_data_is_drawn_from_its_seed_and_held_out_points_are_others():
    names = in_node([{"ask": "choices"}])[0]["data"]
    again, other, *sets = in_node([{"ask": "data", "name": n, "noise": 0.0, "seed": s} for n, s in [(names[0], 1), (names[0], 2)] + [(n, 1) for n in names]])  # fmt: skip
    assert again == sets[0] and other != sets[0]
    for found in sets:
        assert max(map(abs, found["train"])) < 1.1
        assert not set(zip(found["train"][::2], found["train"][1::2], strict=True)) & set(zip(found["heldOut"][::2], found["heldOut"][1::2], strict=True))  # fmt: skip
        assert set(found["labels"]) == set(range(found["classes"]))


def test_an_address_repeats_an_experiment_and_takes_nothing_from_strangers():
    presets, choices = in_node([{"ask": "presets"}, {"ask": "choices"}])
    for preset in presets.values():
        assert all(value in choices[name] for side in ("a", "b") for name, value in preset[side].items())
    texts = in_node([{"ask": "written", "experiment": preset} for preset in presets.values()])
    read = in_node([{"ask": "address", "text": "&".join(f"{k}={v}" for k, v in text.items())} for text in texts])
    assert read == list(presets.values())
    hostile = "a=norm:<script>,depth:1e9,depth:65,rate:-1,__proto__:1,constructor:2,eps:0.001&b=&run=seed:0,data:../x"
    (found,) = in_node([{"ask": "address", "text": hostile}])
    default = presets["deepnorm"]
    assert found == {**default, "a": {**default["a"], "eps": 0.001}}
