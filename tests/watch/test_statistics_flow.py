"""Gradients of the statistics, values within two, what is left of the first state: against direct computations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watch_cases import make, train

import normlab
from normlab import surgery
from normlab.watch import NormFrame
from normlab.watch.statistics_flow import IdentityWeight, StatisticGradients, WithinTwo


def frame_of(norm, x, y=None, mask=None, grad=None, training=True):
    (site,) = surgery.find_norms(nn.ModuleDict({"n": norm}))
    return NormFrame(site, x, x if y is None else y, mask, grad, training)


def shaken(kind, width=13, **options):
    norm = normlab.make_norm(kind, width, **options)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    return norm


@pytest.mark.parametrize("kind", ["layer", "rms", "batch", "scale"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradients_of_mean_and_variance_are_autograds(kind, masked):
    """y = (x - m) s gain with m and s as leaves: g_mean = -dL/dm / s / n, g_var = dL/dlog(s) / n."""
    norm = shaken(kind) if kind == "scale" else shaken(kind, eps=1e-3)
    x, up = torch.randn(5, 7, 13, dtype=torch.float64) * 2 + 1, torch.randn(5, 7, 13, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 5, 6])[:, None] if masked else None
    rows, grad = (t[mask] if masked else t.flatten(0, 1) for t in (x, up))
    axis = 0 if kind == "batch" else 1
    count = rows.shape[axis]
    centered = kind in ("layer", "batch")
    mean = rows.mean(axis, keepdim=True) * centered
    eps = 0.0 if kind == "scale" else 1e-3
    log_scale = (-0.5 * ((rows - mean).pow(2).mean(axis, keepdim=True) + eps).log()).requires_grad_()
    mean = mean.detach().requires_grad_()
    gain = norm.weight.detach().double() / (math.sqrt(13) if kind == "scale" else 1)
    y = (rows - mean) * log_scale.exp() * gain
    d_mean, d_log = torch.autograd.grad((y * grad).sum(), [mean, log_scale])
    expected = {"var_grad": (d_log / count).abs().flatten()}
    if centered:
        expected["mean_grad"] = (d_mean / log_scale.exp() / count).abs().flatten()
    found = StatisticGradients().measure(frame_of(norm, x.float(), mask=mask, grad=up.float()))
    assert len(found) == 4 * len(expected)
    for name, sizes in expected.items():
        for end, value in (
            ("norm", sizes.norm()),
            ("median", sizes.quantile(0.5)),
            ("p95", sizes.quantile(0.95)),
            ("max", sizes.max()),
        ):
            assert float(found[f"{name}_{end}"]) == pytest.approx(float(value.detach()), rel=1e-4), (name, end)


def test_one_outlier_shows_in_the_largest_and_not_in_the_median():
    norm, x, up = normlab.BatchNorm(21), torch.randn(40, 21), torch.randn(40, 21)
    calm = StatisticGradients().measure(frame_of(norm, x, grad=up))
    up[:, 3] += 50
    wild = StatisticGradients().measure(frame_of(norm, x, grad=up))
    assert float(wild["mean_grad_max"]) > 20 * float(calm["mean_grad_max"])
    assert float(wild["mean_grad_median"]) < 1.5 * float(calm["mean_grad_median"])


def test_kinds_without_a_shared_statistic_stay_silent():
    for kind in ("dyt", "instance"):
        options = {"affine": True} if kind == "instance" else {}
        frame = frame_of(normlab.make_norm(kind, 6, **options), torch.randn(2, 5, 6), grad=torch.randn(2, 5, 6))
        assert StatisticGradients().measure(frame) == {}
    frozen = frame_of(normlab.BatchNorm(6), torch.randn(9, 6), grad=torch.randn(9, 6), training=False)
    assert StatisticGradients().measure(frozen) == {} and set(WithinTwo().measure(frozen)) == {"within_two"}


def test_share_within_two():
    x = torch.randn(4000, 50) * 3 + 5
    norm = nn.LayerNorm(50)
    with torch.no_grad():
        norm.weight.fill_(2.0)
    found = WithinTwo().measure(frame_of(norm, x, norm(x).detach()))
    assert float(found["within_two_plain"]) == pytest.approx(0.9545, abs=0.005)  # of normal values
    one = (F.layer_norm(x, (50,)).abs() <= 1).float().mean()  # a gain of two: within one deviation
    assert float(found["within_two"]) == pytest.approx(float(one), abs=1e-4) and 0.66 < one < 0.69
    edge = torch.tensor([[2.0, -2.0, 2.1, 0.0]])
    assert float(WithinTwo().measure(frame_of(normlab.DyT(4), edge, edge))["within_two"]) == 0.75


def test_identity_weight_of_a_known_stack(tmp_path):
    """Each block halves the stream and adds something at a right angle to where it began."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return 0.5 * x + torch.tensor([0.0, 0.0, 3.0]) + 0 * self.p

    model = nn.Sequential(Half(), Half(), Half())
    x = torch.randn(4, 6, 3) * torch.tensor([1.0, 1.0, 0.0])
    with normlab.watch(model, out=tmp_path / "run", every=1, preset="full", max_overhead=None) as watch:
        for _ in range(2):
            (model(x) * torch.randn(4, 6, 3)).sum().backward()
            watch.step(loss=1.0)
    found = normlab.Run(tmp_path / "run").series("identity_weight")
    for depth in range(3):
        assert found[str(depth)].values == pytest.approx([0.5 ** (depth + 1)] * 2, rel=1e-5)
    share = normlab.Run(tmp_path / "run").series("identity_share")["0"].last()
    y = 0.5 * x + torch.tensor([0.0, 0.0, 3.0])
    assert share == pytest.approx(float((x * y).sum() / x.norm() / y.norm()), rel=1e-5)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_identity_weight_of_models_is_a_regression(tmp_path, placement):
    model = make(placement=placement, fused=placement == "pre")
    kept = {}
    for name in ("0", "1", "2"):
        model.stack.layers[int(name)].register_forward_hook(
            lambda m, args, out, name=name: kept.update({name: [surgery.stream_of(v).detach() for v in (args[0], out)]})
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with normlab.watch(
        model, optimizer=optimizer, out=tmp_path / "run", every=1, preset="full", max_overhead=None
    ) as watch:
        train(model, optimizer, 1, watch)
    mask = torch.arange(11) < torch.tensor([11, 7, 3, 2, 9, 5])[:, None]
    first = kept["0"][0][mask].double()
    for depth in range(3):
        y = kept[str(depth)][1][mask].double()
        expected = torch.linalg.lstsq(first.reshape(-1, 1), y.reshape(-1, 1)).solution
        found = normlab.Run(tmp_path / "run").series("identity_weight")[f"stack.layers.{depth}"].last()
        assert found == pytest.approx(float(expected), rel=1e-4)


def test_post_norm_halves_the_identity_with_independent_branches():
    """x <- (x + branch) / sqrt(2) twice per block: 1/2 after a block of two sub-layers, whatever the branch."""
    from normlab.surgery import BlockSite
    from normlab.watch import BlockFrame

    torch.manual_seed(0)
    probe, x = IdentityWeight(), torch.randn(400, 64)
    stream = x
    for depth in range(3):
        entered = stream
        for _ in range(2):
            stream = (stream + torch.randn(400, 64)) / math.sqrt(2)
        found = probe.measure(BlockFrame(BlockSite(f"b{depth}", nn.Identity(), depth, "b"), entered, stream))
        assert float(found["identity_weight"]) == pytest.approx(0.5 ** (depth + 1), abs=0.02)
