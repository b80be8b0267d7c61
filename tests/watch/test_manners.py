"""A watch never raises into training and never changes a result, whatever the model does: fast paths, empty outputs, failing hooks."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import normlab
from normlab.watch import Watch
from normlab.watch.hooks import Hooks


def encoder(batch_first=True, seed=0, dropout=0.1):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sequence-first has no nested tensors
        return nn.TransformerEncoder(layer, 2)


PADDING = torch.arange(7) >= torch.tensor([[7], [3], [5], [1], [6]])


def loop(model, watch, optimizer, steps, evaluate):
    """Trains, and evaluates in the middle of every step, after the training forward as well as before it."""
    answers = []
    for step in range(steps):
        torch.manual_seed(100 + step)
        x = torch.randn(5, 7, 8)
        answers.append(evaluate(model, x))
        out = model(x, src_key_padding_mask=PADDING)
        answers.append(evaluate(model, x))
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        if watch is not None:
            watch.step(loss=1.0)
        answers.append(evaluate(model, x))
    return answers


def with_the_whole_model(model, x):
    model.eval()
    with torch.no_grad():
        out = model(x, src_key_padding_mask=PADDING)
    model.train()
    return out


def by_a_layer_of_its_own(model, x):
    model.eval()
    with torch.no_grad():
        out = model.layers[0](x, src_key_padding_mask=PADDING)
    model.train()
    return out


def with_inference_mode(model, x):
    model.eval()
    with torch.inference_mode():
        out = model(x, src_key_padding_mask=PADDING)
    model.train()
    return out.clone()


@pytest.mark.parametrize("evaluate", [with_the_whole_model, with_inference_mode, by_a_layer_of_its_own])
@pytest.mark.parametrize("preset", ["lite", "full"])
@pytest.mark.parametrize("every", [1, 100])
def test_evaluation_in_the_middle_of_training_runs_torchs_fast_path_untouched(tmp_path, evaluate, preset, every):
    """nn.TransformerEncoder with a padding mask goes through nested tensors, bit for bit as without a watch."""
    results = []
    for use in (False, True):
        model = encoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = None
        if use:
            watch = normlab.watch(
                model, optimizer=optimizer, out=tmp_path / "run", every=every, max_overhead=None, preset=preset
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch on nested tensors, which are a prototype
            answers = loop(model, watch, optimizer, 3, evaluate)
        if watch is not None:
            watch.close()
        results.append((answers, model.state_dict()))
    (plain, weights), (seen, seen_weights) = results
    if evaluate is not by_a_layer_of_its_own:
        assert not plain[0][1, 3:].any()  # the fast path leaves zeros at padding; without it there would be numbers
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert all(torch.equal(weights[name], seen_weights[name]) for name in weights)
    run = normlab.Run(tmp_path / "run")
    assert not list(run.events()) and run.info["coverage"]["fired"] == 4
    assert len(run.series("stream_rms")["layers.0"].steps) == (3 if every == 1 else 1)


def test_nothing_hangs_on_a_norm_before_the_blocks_while_nothing_is_trained(tmp_path):
    """Blocks take the hooks off when they are entered, which is too late for what comes before them."""

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.stack, self.hanging = nn.LayerNorm(8), encoder(), []

        def forward(self, x):
            self.hanging.append(len(self.norm._forward_hooks) + len(self.norm._forward_pre_hooks))
            return self.stack(self.norm(x))

    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None, preset="full")
    x = torch.randn(5, 7, 8)
    for _ in range(2):
        out = model(x)
        with torch.no_grad():
            model(x)
        out.square().mean().backward()
        optimizer.step()
        watch.step(loss=1.0)
    watch.close()
    assert model.hanging[1::2] == [0, 0] and all(model.hanging[::2])


def test_a_block_without_output_stops_nothing(tmp_path):
    """An expert that no token was sent to."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) for _ in range(3))

        def forward(self, x):
            parts = (x[:0], x[:4], x[4:])
            return torch.cat([e(p) for e, p in zip(self.experts, parts, strict=True)])

    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with normlab.watch(
            model, optimizer=optimizer, out=tmp_path / "run", every=1, preset="full", max_overhead=None
        ) as watch:
            for _ in range(2):
                loss = model(torch.randn(9, 6)).square().mean()
                loss.backward()
                optimizer.step()
                watch.step(loss=loss)
    run = normlab.Run(tmp_path / "run")
    assert set(run.series("stream_rms")) == {"experts.1", "experts.2"} and not list(run.events())


@pytest.mark.parametrize("method", ["_see_norm", "_see_block", "_see_gradient", "_see_attention", "_enter"])
def test_a_failing_hook_is_switched_off_and_training_goes_on(tmp_path, monkeypatch, method):
    plain = encoder(dropout=0.0)
    x = torch.randn(5, 7, 8)
    expected = plain(x, src_key_padding_mask=PADDING)
    expected.square().mean().backward()

    def broken(self, *args, **kwargs):
        raise ArithmeticError("broken on purpose")

    monkeypatch.setattr(Hooks, method, broken)
    model = encoder(dropout=0.0)
    with pytest.warns(UserWarning, match="failed and is switched off"):
        watch = normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None)
        out = model(x, src_key_padding_mask=PADDING)
        out.square().mean().backward()
        watch.step(loss=1.0)
    watch.close()
    assert torch.equal(out, expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    events = [e for e in normlab.Run(tmp_path / "run").events() if e["event"] == "hook failed"]
    assert events and all("broken on purpose" in e["error"] for e in events)
    assert len({e["hook"] for e in events}) == len(events)  # once each
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_failing_optimizer_hook_is_switched_off(tmp_path, monkeypatch):
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(Watch, "_before_step", lambda self: 1 / 0)
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None)
    with pytest.warns(UserWarning, match="before step failed and is switched off"):
        for _ in range(2):
            model(torch.randn(5, 7, 8)).sum().backward()
            optimizer.step()
            watch.step(loss=1.0)
    watch.close()
    assert len(normlab.Run(tmp_path / "run").series("loss")["model"]) == 2


# ---- what is not seen is said ----------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def test_gradients_of_the_stream_survive_checkpoints_that_reenter(tmp_path):
    found = {}
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        model = Checkpointed(reentrant)
        with normlab.watch(model, out=tmp_path / str(reentrant), every=1, max_overhead=None, preset="lite") as watch:
            (model(torch.randn(5, 6, requires_grad=True)) * torch.randn(5, 6)).sum().backward()
            watch.step(loss=1.0)
        run = normlab.Run(tmp_path / str(reentrant))
        found[reentrant] = {site: s.last() for site, s in run.series("stream_grad").items()}
        assert run.info["coverage"]["without_gradient"] == []
    assert len(found[None]) == 3
    assert found[True] == pytest.approx(found[None], rel=1e-5) == found[False]


def test_a_gradient_that_did_not_come_by_is_named(tmp_path):
    model = Checkpointed(None)
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        model.blocks[1].register_forward_hook(lambda m, a, out: out.detach())
        model(torch.randn(5, 6)).sum().backward()
        watch.step(loss=1.0)
        assert "no gradient seen after blocks.0" in watch.coverage()


@pytest.mark.parametrize("preset", ["lite", "standard"])
def test_silent_norms_and_blocks_and_the_names_of_attention_are_in_every_run(tmp_path, preset):
    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = encoder()

        def forward(self, x):
            return self.stack.layers[1](x)

    model = Skipping()
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None, preset=preset) as watch:
        model(torch.randn(5, 7, 8)).sum().backward()
        watch.step(loss=1.0)
        said = watch.coverage()
    info = normlab.Run(tmp_path / "run").info
    assert info["coverage"]["fired"] == 2 and set(info["coverage"]["skipped"]) == {
        "stack.layers.0.norm1",
        "stack.layers.0.norm2",
    }
    assert info["coverage"]["blocks_skipped"] == ["stack.layers.0"] and "1 of 2 blocks silent: stack.layers.0" in said
    assert info["sites"]["attention"] == ["stack.layers.1.attention"]


# ---- placement, from the graph of the first recorded step ------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("evaluated", [False, True])
def test_the_run_knows_where_the_norms_stand(tmp_path, norm_first, evaluated):
    """An evaluation in front of the first step puts it off to the next; weights are those without a watch either way."""
    weights = []
    for use in (False, True):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=norm_first)
        model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = (
            normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None) if use else None
        )
        for step in range(2):
            x = torch.randn(5, 7, 8)
            if evaluated and step == 0:
                with_the_whole_model(model, x)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if watch is not None:
                watch.step(loss=1.0)
        if watch is not None:
            watch.close()
        weights.append(model.state_dict())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    structure = normlab.Run(tmp_path / "run").info["structure"]
    assert structure["placement"] == ("pre" if norm_first else "post") and structure["capture"] == "graph"
    assert {n["name"]: n["kind"] for n in structure["norms"]} == normlab.Run(tmp_path / "run").info["sites"]["norms"]
    assert [s["final_norms"] for s in structure["stacks"]] == [["norm"]]


def test_a_capture_that_fails_is_switched_off(tmp_path, monkeypatch):
    def broken(*_):
        raise ArithmeticError("broken on purpose")

    monkeypatch.setattr(normlab.surgery.GraphCapture, "_enter", broken)
    model = encoder()
    with pytest.warns(UserWarning, match="placement failed and is switched off"):
        watch = normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None)
        for _ in range(2):
            model(torch.randn(5, 7, 8)).sum().backward()
            watch.step(loss=1.0)
    watch.close()
    run = normlab.Run(tmp_path / "run")
    assert "structure" not in run.info and [e["hook"] for e in run.events()] == ["placement"]
    assert run.info["coverage"]["fired"] == 4
