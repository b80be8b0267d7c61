"""Probes measure what they say: each against a direct computation on tensors whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watch_cases import batches, make, train

import normlab
from normlab import surgery
from normlab.watch import OCCASIONS, PRICES, PROBES, AttentionFrame, NormFrame, presets, quantities


def frame_of(kind, x, y=None, mask=None, grad=None, module=None, channel_dim=-1, running=None):
    module = module or normlab.make_norm(kind, x.shape[channel_dim])
    (site,) = surgery.find_norms(nn.ModuleDict({"n": module}))
    return NormFrame(site, x, x if y is None else y, mask, grad, running=running)


@pytest.mark.parametrize("norm", ["batch", "power"])
def test_running_statistics_are_those_before_the_batch(tmp_path, norm):
    """At momentum 1 they are the last batch's: the distance is that between two batches, and not zero."""
    options = {"momentum": 1.0} if norm == "batch" else {"alpha_forward": 0.0, "running": False}
    model = make(norm, norm_options=options)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        train(model, opt, 3, watch)
    run = normlab.Run(tmp_path / "run")
    assert all(v > 0.01 for s in run.series("inference_gap").values() for v in s.values[1:])
    assert all(v > 0.01 for s in run.series("batch_mean_distance").values() for v in s.values[1:])


def test_both_stacks_of_an_encoder_decoder_get_their_own_mask(tmp_path):
    model = normlab.build(architecture="encoder-decoder", dim=8, num_layers=2, num_heads=2, vocab_size=11, max_length=8)
    source, target = torch.arange(6) < torch.tensor([[6], [3]]), torch.arange(6) < torch.tensor([[5], [1]])
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        model(torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 6)), source, target).sum().backward()
        watch.step(loss=1.0)
    run = normlab.Run(tmp_path / "run")
    share = {site: s.last() for site, s in run.series("padding_share").items()}
    assert {site.split(".")[0]: round(v, 6) for site, v in share.items()} == {"encoder": 0.25, "decoder": 0.5}
    assert set(run.series("effective_depth")) == {"encoder.layers", "decoder.layers"}


@pytest.mark.parametrize("kind", ["layer", "rms", "batch"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_terms_of_the_gradient_add_up_to_autograds(kind, masked):
    x = (torch.randn(5, 7, 13, dtype=torch.float64) * 2 + 1).requires_grad_()
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 5, 6])[:, None] if masked else None
    norm = normlab.make_norm(kind, 13, eps=1e-3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(13) + 0.5)
    up = torch.randn(5, 7, 13, dtype=torch.float64)
    norm(x, mask=mask).backward(up)
    rows = (lambda t: t.flatten(0, 1)) if mask is None else (lambda t: t[mask])
    terms = quantities.gradient_terms(rows(x.detach()), rows(up), norm.weight.detach(), 0 if kind == "batch" else -1,
                                      kind != "rms", 1e-3)  # fmt: skip
    torch.testing.assert_close(sum(terms), rows(x.grad), rtol=1e-10, atol=1e-12)
    frame = frame_of(kind, x.detach(), mask=mask, grad=up, module=norm)
    found = quantities.GradientThroughStatistics().measure(frame)
    size = terms[0].square().mean().sqrt()
    expected = terms[2].square().mean().sqrt() / size
    assert float(found["grad_through_var"]) == pytest.approx(float(expected), rel=1e-4)
    assert ("grad_through_mean" in found) == (kind != "rms")


def test_batch_drift_is_the_distance_to_the_running_average():
    probe = quantities.BatchDrift()
    first, second = (torch.randn(4, 5, 3) * s + m for s, m in ((1.0, 0.0), (2.0, 3.0)))
    assert probe.measure(frame_of("layer", first)) == {}
    found = probe.measure(frame_of("layer", second))
    a, b = first.flatten(0, 1).double(), second.flatten(0, 1).double()
    mean = ((a.mean(0) - b.mean(0)).abs() / b.std(0, correction=0)).mean()
    var = (a.std(0, correction=0) / b.std(0, correction=0) - 1).abs().mean()
    assert float(found["batch_mean_distance"]) == pytest.approx(float(mean), rel=1e-4)
    assert float(found["batch_var_distance"]) == pytest.approx(float(var), rel=1e-4)


def test_padding_has_a_number_of_its_own():
    """Zeros in half the cells, of a feature with mean 5: the real statistics stand still, the padded ones move."""
    probe = quantities.BatchDrift()
    found = {}
    for share in (7, 2):
        x = torch.randn(6, 8, 3) + 5
        mask = torch.arange(8)[None, :].expand(6, 8) < share
        found = probe.measure(frame_of("layer", torch.where(mask[..., None], x, 0), mask=mask))
    assert float(found["padding_share"]) == 0.75
    assert float(found["batch_mean_distance"]) < 0.6
    assert float(found["batch_mean_distance_padded"]) > 1


def test_the_inference_gap_is_that_of_an_evaluation():
    norm = normlab.BatchNorm(5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(6, 7, 5) * 2 + 1
    evaluation = norm.eval()(x)
    running = (norm.running_mean.clone(), norm.running_var.clone())
    training = norm.train()(x)
    found = quantities.InferenceGap().measure(frame_of("batch", x, training.detach(), module=norm, running=running))
    expected = ((training - evaluation).square().mean().sqrt() / training.square().mean().sqrt()).detach()
    assert float(found["inference_gap"]) == pytest.approx(float(expected), rel=1e-4)


def test_torchs_batch_norm_on_images_is_read_along_its_channels(tmp_path):
    norm = nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5) * torch.tensor([1.0, 2.0, 3.0])[None, :, None, None]
    running = (norm.running_mean.clone(), norm.running_var.clone())
    evaluation = norm.eval()(x)
    y = norm.train()(x)
    found = quantities.InferenceGap().measure(
        frame_of("batch", x, y.detach(), module=norm, channel_dim=1, running=running)
    )
    expected = ((y - evaluation).square().mean().sqrt() / y.square().mean().sqrt()).detach()
    assert float(found["inference_gap"]) == pytest.approx(float(expected), rel=1e-4)


def test_layer_norm_without_gain_lies_on_the_sphere_without_mean():
    x = torch.randn(50, 64) + 3
    y = F.layer_norm(x, (64,))
    found = {k: float(v) for k, v in quantities.Geometry().measure(frame_of("layer", x, y)).items()}
    assert found["length"] == pytest.approx(1, abs=1e-4) and found["length_spread"] < 1e-4
    assert found["mean_angle"] < 1e-3
    plain = {k: float(v) for k, v in quantities.Geometry().measure(frame_of("rms", x, F.rms_norm(x, (64,)))).items()}
    assert plain["mean_angle"] > 60  # the mean of 3 dominates: 3 / sqrt(10) is the sine
    assert plain["mean_angle"] == pytest.approx(math.degrees(math.asin(3 / math.sqrt(10))), abs=2)


def test_outlier_features_and_outlier_tokens_are_told_apart():
    base = torch.randn(100, 40)
    feature, token = base.clone(), base.clone()
    feature[:, 3] *= 50
    token[7] *= 50
    by_feature, by_token = (quantities.Geometry().measure(frame_of("layer", x)) for x in (feature, token))
    assert float(by_feature["outlier_features"]) == pytest.approx(1 / 40) and float(by_feature["outlier_tokens"]) == 0
    assert float(by_token["outlier_tokens"]) == pytest.approx(1 / 100) and float(by_token["outlier_features"]) == 0
    assert (
        float(by_feature["kurtosis_in"])
        > 10
        > 4
        > float(quantities.Geometry().measure(frame_of("layer", base))["kurtosis_in"])
    )


def test_anisotropy_is_the_mean_cosine_between_tokens():
    y = torch.randn(30, 8) + 0.7
    expected = F.cosine_similarity(y[:, None], y[None], dim=-1)
    expected = (expected.sum() - 30) / (30 * 29)
    assert float(quantities.Geometry().measure(frame_of("layer", y))["anisotropy"]) == pytest.approx(
        float(expected), rel=1e-4
    )


def test_stream_quantities_of_a_known_rotation(tmp_path):
    class Turn(nn.Module):
        def __init__(self, degrees):
            super().__init__()
            a = math.radians(degrees)
            self.turn = nn.Parameter(torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]))

        def forward(self, x):
            return x @ self.turn.T

    model = nn.Sequential(Turn(90), Turn(30), Turn(30))
    with normlab.watch(model, out=tmp_path / "run", every=1) as watch:
        (model(torch.randn(4, 5, 2)) * torch.randn(4, 5, 2)).sum().backward()
        watch.step(loss=1.0)
    run = normlab.Run(tmp_path / "run")
    angle = {s: v.last() for s, v in run.series("angle").items()}
    assert angle == {
        "0": pytest.approx(0.5, abs=1e-4),
        "1": pytest.approx(1 / 6, abs=1e-3),
        "2": pytest.approx(1 / 6, abs=1e-3),
    }
    assert run.series("effective_depth")["model"].last() == pytest.approx((5 / 6) ** 2 / (1 / 4 + 2 / 36), rel=1e-3)
    assert run.series("stream_growth")["model"].last() == pytest.approx(1, rel=1e-4)
    assert run.series("branch_share")["0"].last() == pytest.approx(math.sqrt(2), rel=1e-4)


def test_gradients_by_depth_and_updates_are_those_of_autograd(tmp_path):
    model = make("layer", "post", num_layers=2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, mask = next(batches(1))
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, preset="full") as watch:
        kept = []
        handle = model.stack.layers[0].register_forward_hook(
            lambda m, a, out: kept.append(out.x) or out.x.retain_grad()
        )
        F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5).backward()
        handle.remove()
        block = list(model.stack.layers[1].parameters())
        grad = math.sqrt(sum(float(p.grad.double().square().sum()) for p in block))
        size = math.sqrt(sum(float(p.detach().double().square().sum()) for p in block))
        gain = model.stack.layers[0].attention_place.norm.weight.grad.clone()
        opt.step()
        watch.step(loss=1.0)
    table = {q: {s: v.last() for s, v in sites_.items()} for q, sites_ in normlab.Run(tmp_path / "run").table().items()}
    assert table["param_grad"]["stack.layers.1"] == pytest.approx(grad, rel=1e-5)
    assert table["update_ratio"]["stack.layers.1"] == pytest.approx(0.1 * grad / size, rel=1e-4)
    assert table["stream_grad"]["stack.layers.0"] == pytest.approx(float(kept[0].grad.norm()), rel=1e-5)
    assert table["gain_grad"]["stack.layers.0.attention_place.norm"] == pytest.approx(float(gain.norm()), rel=1e-5)


def test_gain_drift_is_relative_to_the_start(tmp_path):
    model = make()
    opt = torch.optim.SGD(model.parameters(), lr=0.0)

    def grow(step):
        with torch.no_grad():
            model.stack.ends.norm.weight.mul_(2)

    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        train(model, opt, 3, watch, after=grow)
    table = normlab.Run(tmp_path / "run").table()
    assert table["gain_drift"]["stack.ends.norm"].values == pytest.approx([0, 1, 3])
    assert table["gain_max"]["stack.ends.norm"].values == pytest.approx([1, 2, 4])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_readings_equal_a_direct_computation(causal):
    q, k = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    allowed = torch.rand(2, 1, 1, 9) > 0.3
    allowed[..., 0] = True
    frame = AttentionFrame("a", q, k, None if causal else allowed, causal, 0.7)
    found = quantities.AttentionLogits().measure(frame)
    mask = torch.ones(9, 9).tril().bool() if causal else allowed.expand(2, 3, 9, 9)
    logits = (0.7 * q @ k.transpose(-1, -2)).masked_fill(~mask, -math.inf)
    assert float(found["max_logit"]) == pytest.approx(float(logits.max()), rel=1e-5)
    share = logits.softmax(-1)
    entropy = torch.special.entr(share).sum(-1)
    visible = mask.expand(2, 3, 9, 9).sum(-1)
    ratio = (entropy / visible.double().log())[visible > 1]
    assert float(found["attention_entropy"]) == pytest.approx(float(ratio.mean()), rel=1e-4)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_attention_is_seen_with_its_masks(tmp_path, batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(3, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        model(x if batch_first else x.transpose(0, 1), mask=future, src_key_padding_mask=padding).sum().backward()
        watch.step(loss=1.0)
    table = normlab.Run(tmp_path / "run").table()
    assert set(table["max_logit"]) == {"layers.0.attention", "layers.1.attention"}
    attention = model.layers[0].self_attn
    q, k, _ = (
        F.linear(x, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    )
    hidden = (future | padding[:, None, None, :]).expand(3, 2, 5, 5)
    logits = (q @ k.transpose(-1, -2) / 2).masked_fill(hidden, -math.inf)
    assert table["max_logit"]["layers.0.attention"].last() == pytest.approx(float(logits.detach().max()), rel=1e-4)


def test_presets_grow_with_their_price():
    counts = [len(presets(name)) for name in PRICES]
    assert counts == sorted(counts) and counts[0] >= 3
    assert all(inspect_doc(p) for p in PROBES)


def inspect_doc(probe) -> bool:
    return bool(probe.__doc__) and probe.on in OCCASIONS and probe.price in PRICES


def test_what_a_model_writes_into_a_norms_output_is_not_what_the_norm_gave(tmp_path):
    """Small norms are measured when the step is over."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6, elementwise_affine=False)
            self.out = nn.Linear(6, 2)

        def forward(self, x):
            return self.out(self.norm(x).mul_(7.0))

    model = Model()
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        model(torch.randn(5, 6, requires_grad=True)).square().mean().backward()
        watch.step(loss=1.0)
    assert normlab.Run(tmp_path / "run").series("length")["norm"].last() == pytest.approx(1.0, abs=1e-3)
