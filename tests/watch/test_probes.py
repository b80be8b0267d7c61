"""Probes measure what they say, and a watch changes nothing, misses nothing silently and survives what training does."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import normlab
from normlab import surgery
from normlab.watch import OCCASIONS, PRICES, PROBES, AttentionFrame, NormFrame, presets, quantities
from normlab.watch.cadence import Cadence

LENGTHS = torch.tensor([11, 7, 3, 2, 9, 5])


def make(norm="layer", placement="pre", seed=0, **settings):
    torch.manual_seed(seed)
    return normlab.build(
        **{"architecture": "encoder", "dim": 24, "num_layers": 3, "num_heads": 3, "num_classes": 5, "vocab_size": 31,
           "max_length": 16, "norm": norm, "placement": placement, **settings}
    )  # fmt: skip


def batches(count, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randint(0, 31, (6, 11), generator=draw), torch.arange(11) < LENGTHS[:, None]


def train(model, optimizer, steps, watch=None, call=None, after=None):
    for step, (tokens, mask) in enumerate(batches(steps), start=1):
        loss = F.cross_entropy((model if call is None else call)(tokens, mask), tokens[:, 0] % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if watch is not None:
            watch.step(loss=loss)
        if after is not None:
            after(step)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def watched(tmp_path, model, steps=3, optimizer=None, **options):
    optimizer = optimizer or sgd(model)
    options = {"every": 1, "max_overhead": None, "preset": "full", **options}
    with normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", **options) as watch:
        train(model, optimizer, steps, watch)
        coverage = watch.coverage()
    return normlab.Run(tmp_path / "run"), coverage


# ---- manners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("norm", ["layer", "batch", "power"])
def test_weights_are_bit_identical_with_and_without_a_watch(tmp_path, optimizer, norm):
    results = []
    for use in (False, True):
        model = make(norm, dropout=0.1, attention_dropout=0.1)
        opt = optimizer(model.parameters(), lr=1e-2)
        if use:
            with normlab.watch(
                model, optimizer=opt, out=tmp_path / "run", preset="full", every=2, max_overhead=None
            ) as watch:
                train(model, opt, 50, watch)
        else:
            train(model, opt, 50)
        results.append((model.state_dict(), torch.get_rng_state()))
    (plain, state), (seen, seen_state) = results
    assert all(torch.equal(plain[name], seen[name]) for name in plain)
    assert torch.equal(state, seen_state)


def test_after_closing_no_hook_is_left(tmp_path):
    model = make()
    opt = sgd(model)
    watched(tmp_path, model, optimizer=opt)
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert not opt._optimizer_step_pre_hooks and not opt._optimizer_step_post_hooks


def test_idle_steps_record_the_loss_only_and_hooks_are_registered_once(tmp_path):
    model = make()
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=5, max_overhead=None) as watch:
        before = [len(m._forward_hooks) for m in model.modules()]
        train(model, opt, 12, watch)
        assert [len(m._forward_hooks) for m in model.modules()] == before
    run = normlab.Run(tmp_path / "run")
    assert run.series("loss")["model"].steps == list(range(1, 13))
    assert run.series("grad_norm")["model"].steps == [1, 5, 10]


@pytest.mark.parametrize(("every", "due"), [(4, [1, 4, 8, 12]), ("log", [1, 2, 5, 10, 20]), (1, list(range(1, 21)))])
def test_cadence_by_steps(every, due):
    cadence = Cadence(every)
    limit = 12 if every == 4 else 20
    assert [s for s in range(1, limit + 1) if cadence.due(s, 0.0)] == due


def test_cadence_by_seconds():
    cadence = Cadence("5s")
    assert cadence.due(1, 0.0) and not cadence.due(2, 4.9) and cadence.due(3, 5.0)


@pytest.mark.parametrize("every", [0, -1, "often", "s", "-2s", 2.5])
def test_other_cadences_are_refused(every):
    with pytest.raises(ValueError, match="every must be"):
        Cadence(every)


def test_the_overhead_limit_holds_back_recorded_steps(tmp_path):
    """With a limit of nearly nothing only the first step is recorded; without one all are."""
    counts = {}
    for limit in (1e-6, None):
        model = make()
        opt = sgd(model)
        with normlab.watch(model, optimizer=opt, out=tmp_path / str(limit), every=1, max_overhead=limit) as watch:
            train(model, opt, 10, watch)
            counts[limit] = watch.recorded
    assert counts == {1e-6: 1, None: 10}


def test_a_failing_probe_is_switched_off_and_training_goes_on(tmp_path):
    class Broken(normlab.Probe):
        on = "norm"

        def measure(self, frame):
            raise ArithmeticError("no")

    model = make()
    with pytest.warns(UserWarning, match="Broken failed and is switched off"):
        run, _ = watched(tmp_path, model, probes=[Broken()])
    assert [e["probe"] for e in run.events()] == ["Broken"]
    assert len(run.series("length")) == 7 and len(run.series("loss")["model"]) == 3


def test_ones_own_probe_takes_ten_lines(tmp_path):
    class Zeros(normlab.Probe):
        on = "norm"

        def measure(self, frame):
            return {"zeros": (frame.y_rows == 0).float().mean()}

    run, _ = watched(tmp_path, make(), probes=[Zeros()])
    assert set(run.series("zeros")) == set(run.series("length"))


def test_bad_arguments_are_refused(tmp_path):
    model = make()
    with pytest.raises(ValueError, match="Did you mean 'standard'"):
        normlab.watch(model, out=tmp_path / "a", preset="standart")
    with pytest.raises(ValueError, match="max_overhead"):
        normlab.watch(model, out=tmp_path / "b", max_overhead=3)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{}")
    with pytest.raises(FileExistsError):
        normlab.watch(model, out=tmp_path / "c")


def test_a_failed_loop_is_recorded_as_failed(tmp_path):
    model = make()
    opt = sgd(model)
    with pytest.raises(KeyError), normlab.watch(model, optimizer=opt, out=tmp_path / "run") as watch:
        train(model, opt, 2, watch)
        raise KeyError("the loop")
    assert normlab.Run(tmp_path / "run").info["status"] == "failed"


def test_a_watch_that_recorded_nothing_says_so(tmp_path):
    with pytest.warns(UserWarning, match="nothing was recorded"):
        normlab.watch(make(), out=tmp_path / "run").close()


# ---- coverage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", list(normlab.PLACEMENTS))
@pytest.mark.parametrize("fused", [True, False])
def test_every_norm_of_every_placement_fires_fused_or_not(tmp_path, placement, fused):
    run, coverage = watched(tmp_path, make(placement=placement, fused=fused), steps=2)
    info = run.info["coverage"]
    assert info["fired"] == info["norms"] == len(run.info["sites"]["norms"])
    assert "skipped" not in coverage
    with_grad = set(run.series("grad_through_var"))
    assert with_grad == set(run.info["sites"]["norms"])


def test_a_fused_norm_gives_the_same_readings_as_an_unfused_one(tmp_path):
    fused, _ = watched(tmp_path / "a", make(fused=True))
    plain, _ = watched(tmp_path / "b", make(fused=False))
    a, b = fused.table(), plain.table()
    assert a.keys() == b.keys()
    for quantity in a:
        assert a[quantity].keys() == b[quantity].keys(), quantity
        for site in a[quantity]:
            assert a[quantity][site].values == pytest.approx(b[quantity][site].values, rel=2e-3, abs=1e-4), (
                quantity,
                site,
            )


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused, self.out = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.used(x))


def test_a_silent_norm_is_named(tmp_path):
    model = HalfUsed()
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1) as watch:
        model(torch.randn(3, 4)).sum().backward()
        opt.step()
        watch.step(loss=1.0)
        assert watch.coverage().startswith("1 of 2 norms fired; 1 skipped: unused (")


def test_an_evaluation_before_the_training_forward_is_not_the_step(tmp_path):
    model = make(dropout=0.1)
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, preset="full", max_overhead=None) as watch:
        for tokens, mask in batches(2):
            model.eval()
            with torch.no_grad():
                model(tokens[:2, :3])
            model.train()
            loss = F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5)
            opt.zero_grad()
            loss.backward()
            opt.step()
            watch.step(loss=loss)
    run = normlab.Run(tmp_path / "run")
    assert len(run.series("grad_through_var")) == 7 and len(run.series("max_logit")) == 3
    assert all(
        s.values == pytest.approx([1 - float(LENGTHS.sum()) / 66] * 2) for s in run.series("padding_share").values()
    )


def test_the_fast_path_of_torchs_encoder_layer_is_detected(tmp_path):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with normlab.watch(model, out=tmp_path / "run", every=1) as watch, torch.no_grad():
        model(torch.randn(2, 5, 8))
        watch.step(loss=1.0)
        said = watch.coverage()
    # A hook on a norm turns the fast path off, so norms fire; if a future torch does not, the reason is given.
    assert said == "4 of 4 norms fired" or "fused path" in said


def test_norms_are_found_by_what_they_do():
    class Strange(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.g = kind, nn.Parameter(torch.rand(6) + 0.5)

        def forward(self, x):
            if self.kind == "layer":
                x = x - x.mean(-1, keepdim=True)
            gain = 1 + self.g if self.kind == "offset" else self.g
            return gain * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    class Scale(Strange):
        def forward(self, x):
            return self.g * x

    model = nn.ModuleDict({k: Strange(k) for k in ("layer", "rms", "offset")} | {"scale": Scale("scale")})
    found = {s.name: (s.kind, s.gain, s.eps) for s in surgery.find_norms(model)}
    assert found == {
        "layer": ("layer", "direct", 1e-6),
        "rms": ("rms", "direct", 1e-6),
        "offset": ("rms", "offset", 1e-6),
    }


def test_hugging_face_models_are_covered(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=31, hidden_size=24, intermediate_size=32, num_hidden_layers=3,
                                      num_attention_heads=3, num_key_value_heads=3, max_position_embeddings=16)  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        for tokens, mask in batches(2):
            loss = model(input_ids=tokens, attention_mask=mask.long(), labels=tokens).loss
            opt.zero_grad()
            loss.backward()
            opt.step()
            watch.step(loss=loss)
        assert watch.coverage() == "7 of 7 norms fired"
    run = normlab.Run(tmp_path / "run")
    assert set(run.info["sites"]["norms"].values()) == {"rms"}
    assert len(run.series("stream_rms")) == len(run.series("max_logit")) == 3
    share = 1 - float(LENGTHS.sum()) / 66
    assert all(s.last() == pytest.approx(share, abs=1e-6) for s in run.series("padding_share").values())


# ---- what training does ----------------------------------------------------------------------------------------------


def test_gradient_accumulation_reads_the_whole_gradient(tmp_path):
    model = make()
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        for tokens, mask in batches(3):
            F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5).backward()
        expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        opt.step()
        opt.zero_grad()
        watch.step(loss=1.0)
    run = normlab.Run(tmp_path / "run")
    assert run.series("grad_norm")["model"].values == pytest.approx([expected], rel=1e-5)
    assert run.info["coverage"]["fired"] == 7
    assert len(run.series("max_logit")) == 3  # of the first micro-batch only


@pytest.mark.parametrize("by_name", [False, True])
def test_an_optimizer_with_a_closure_is_read_after_it(tmp_path, by_name):
    model = make()
    opt = sgd(model)
    expected, now = [], []

    def closure():
        opt.zero_grad()
        tokens, mask = now
        loss = F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5)
        loss.backward()
        expected.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters())))
        return loss

    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        for batch in batches(3):
            now[:] = batch
            loss = opt.step(closure=closure) if by_name else opt.step(closure)
            watch.step(loss=loss)
    table = normlab.Run(tmp_path / "run").table()
    assert table["grad_norm"]["model"].values == pytest.approx(expected, rel=1e-5)
    assert all(v > 0 for s in table["update_ratio"].values() for v in s.values)


def test_activation_checkpointing_fires_once_and_reads_the_same(tmp_path):
    plain, _ = watched(tmp_path / "a", make())
    again, coverage = watched(tmp_path / "b", make(checkpoint=True))
    assert coverage == "7 of 7 norms fired"
    a, b = plain.table(), again.table()
    assert a.keys() == b.keys()
    for quantity in ("length", "stream_rms", "stream_grad", "grad_through_var", "max_logit"):
        for site in a[quantity]:
            assert a[quantity][site].values == pytest.approx(b[quantity][site].values, rel=1e-4), (quantity, site)


def test_reentrant_checkpointing_still_gives_gradients(tmp_path):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=True)

    model = Outer()
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, preset="full", max_overhead=None) as watch:
        (model(torch.randn(5, 6, requires_grad=True)) * torch.randn(5, 6)).sum().backward()
        opt.step()
        watch.step(loss=1.0)
    assert set(normlab.Run(tmp_path / "run").series("grad_through_var")) == {"inner.1"}


def test_a_compiled_model_is_measured_through_its_eager_module(tmp_path):
    model = make()
    compiled = torch.compile(model)
    opt = sgd(model)
    with normlab.watch(compiled, optimizer=opt, out=tmp_path / "run", every=3, max_overhead=None) as watch:
        train(model, opt, 5, watch, call=compiled)
        assert watch.coverage() == "7 of 7 norms fired"
        assert not any(m._forward_hooks for m in model.modules())
    run = normlab.Run(tmp_path / "run")
    assert run.series("length")["stack.ends.norm"].steps == [1, 3]
    tokens, mask = next(batches(1))
    assert compiled(tokens, mask).shape == (6, 5)


def test_a_gradient_scaler_is_taken_out(tmp_path):
    readings = []
    for factor in (1.0, 1024.0):
        model = make()
        opt = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=factor)
        with normlab.watch(
            model, optimizer=opt, out=tmp_path / str(factor), every=1, max_overhead=None, scaler=scaler
        ) as watch:
            for tokens, mask in batches(1):
                loss = F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                watch.step(loss=loss)
        table = normlab.Run(tmp_path / str(factor)).table()
        readings.append(
            [table[q][s].last() for q in ("stream_grad", "param_grad", "grad_norm") for s in sorted(table[q])]
        )
    assert readings[0] == pytest.approx(readings[1], rel=1e-4)


def test_a_nonfinite_value_is_traced_to_its_block_and_step(tmp_path):
    model = make(num_layers=5)
    opt = sgd(model)

    def poison(step):
        if step == 39:
            with torch.no_grad():
                model.stack.layers[3].feedforward.down.weight[0, 0] = math.nan

    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=50, max_overhead=None) as watch:
        train(model, opt, 42, watch, after=poison)
    (event,) = [e for e in normlab.Run(tmp_path / "run").events() if e["event"] == "nonfinite"]
    assert (event["step"], event["site"]) == (40, "stack.layers.3")
    frames = event["frames"]
    assert [f["step"] for f in frames] == list(range(25, 41))
    assert all(isinstance(v, float) for f in frames[:-1] for v in f["largest"].values())


def test_losses_of_idle_steps_stay_bounded_in_memory(tmp_path):
    model = HalfUsed()
    with normlab.watch(model, out=tmp_path / "run", every=10_000, max_overhead=None, trace=False) as watch:
        for _ in range(2500):
            watch.step(loss=1.0)
            assert len(watch._losses.waiting) <= 1000
    assert len(normlab.Run(tmp_path / "run").series("loss")["model"]) == 2500


KILLED = """
import sys, torch, normlab
torch.manual_seed(0)
model = normlab.build(architecture="encoder", dim=8, num_layers=2, num_heads=2, num_classes=3, vocab_size=11, max_length=8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
watch = normlab.watch(model, optimizer=opt, out=sys.argv[1], every=1, max_overhead=None)
step = 0
while True:
    step += 1
    tokens = torch.randint(0, 11, (4, 8))
    loss = torch.nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 3)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.step(loss=loss)
    print(step, flush=True)
"""


def test_a_killed_run_is_readable(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    done = 0
    while done < 5:
        done = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run = normlab.Run(tmp_path / "run")
    assert run.info["status"] == "running"
    assert run.series("grad_norm")["model"].steps[:5] == [1, 2, 3, 4, 5]


RANK = """
import os, sys, torch, normlab
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
torch.manual_seed(0)
model = normlab.build(architecture="encoder", dim=8, num_layers=2, num_heads=2, num_classes=3, vocab_size=11, max_length=8)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(5)
with normlab.watch(wrapped, optimizer=opt, out=sys.argv[1], every=2, max_overhead=0.5) as watch:
    for step in range(6):
        tokens = torch.randint(0, 11, (8, 8), generator=draw)[int(sys.argv[3]) * 4 :][:4]
        loss = torch.nn.functional.cross_entropy(wrapped(tokens), tokens[:, 0] % 3)
        opt.zero_grad(); loss.backward(); opt.step()
        watch.step(loss=loss)
dist.destroy_process_group()
"""


def test_two_processes_reduce_and_one_writes(tmp_path):
    command = [sys.executable, "-c", RANK, str(tmp_path / "run"), str(tmp_path / "meet")]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    run = normlab.Run(tmp_path / "run")
    assert run.info["processes"] == 2 and run.info["coverage"]["fired"] == 5
    torch.manual_seed(0)
    model = normlab.build(
        architecture="encoder", dim=8, num_layers=2, num_heads=2, num_classes=3, vocab_size=11, max_length=8
    )
    tokens = torch.randint(0, 11, (8, 8), generator=torch.Generator().manual_seed(5))
    lengths = []
    for half in (tokens[:4], tokens[4:]):
        y = model.stack(model.embedding(half))
        lengths.append(float(y.detach().flatten(0, 1).norm(dim=1).mean()) / math.sqrt(8))
    assert run.series("length")["stack.ends.norm"].values[0] == pytest.approx(sum(lengths) / 2, rel=1e-4)


# ---- quantities ------------------------------------------------------------------------------------------------------


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


def test_no_warning_in_an_ordinary_run(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(tmp_path, make(), preset="full")
    assert normlab.Run(tmp_path / "run").info["status"] == "finished"


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize("steps", [600, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_memory_stays_bounded_over_many_recorded_steps(tmp_path, steps):
    model = make(num_layers=2)
    opt = sgd(model)
    with normlab.watch(model, optimizer=opt, out=tmp_path / "run", every=1, preset="full", max_overhead=None) as watch:
        train(model, opt, steps // 3, watch)
        before = resident()
        train(model, opt, steps - steps // 3, watch)
        grown = resident() - before
        assert watch.recorded == steps
    assert grown < 8 << 20, f"{grown / 2**20:.1f} MiB more after {steps} recorded steps"


# ---- a run that is somebody else's, or goes on -----------------------------------------------------------------------


def test_a_writer_of_ones_own_stays_open_and_keeps_its_facts(tmp_path):
    writer = normlab.runs.Writer(tmp_path / "run", {"seed": 77, "mine": "kept"})
    model = make()
    optimizer = sgd(model)
    with normlab.watch(model, optimizer=optimizer, out=writer, every=2, max_overhead=None, preset="lite") as watch:
        writer.write(0, {"own": {"model": 1.0}})
        train(model, optimizer, 4, watch)
    assert writer.info["seed"] == 77 and writer.info["mine"] == "kept" and writer.info["preset"] == "lite"
    assert writer.info["status"] == "running" and writer.info["steps"] == 4
    writer.write(5, {"own": {"model": 2.0}})
    writer.close("failed")
    run = normlab.Run(tmp_path / "run")
    assert run.info["status"] == "failed" and run.series("own")["model"].steps == [0, 5]
    assert run.series("loss")["model"].steps == [1, 2, 3, 4] and run.series("grad_norm")["model"].steps == [1, 2, 4]


def test_flush_writes_the_losses_that_wait(tmp_path):
    model = make()
    optimizer = sgd(model)
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=100, max_overhead=None)
    train(model, optimizer, 5, watch)
    assert normlab.Run(tmp_path / "run").series("loss")["model"].steps == [1]
    watch.flush()
    watch.flush()
    assert normlab.Run(tmp_path / "run").series("loss")["model"].steps == [1, 2, 3, 4, 5]
    watch.close()
    assert normlab.Run(tmp_path / "run").series("loss")["model"].steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("every", ["log", 3])
@pytest.mark.parametrize("preset", ["lite", "full"])
def test_a_watch_goes_on_where_an_earlier_one_was_cut_off(tmp_path, every, preset):
    """The same readings as of one watch over all steps, those of probes with a memory among them."""
    how = {"every": every, "max_overhead": None, "preset": preset}
    data = list(batches(12))

    def steps(model, optimizer, watch, numbers):
        for n in numbers:
            tokens, mask = data[n - 1]
            F.cross_entropy(model(tokens, mask), tokens[:, 0] % 5).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss=float(n))

    def begin():
        model = make("batch")
        return model, sgd(model)

    model, optimizer = begin()
    with normlab.watch(model, optimizer=optimizer, out=tmp_path / "whole", **how) as watch:
        steps(model, optimizer, watch, range(1, 13))

    model, optimizer = begin()
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "cut", **how)
    steps(model, optimizer, watch, range(1, 7))
    saved = {name: t.clone() for name, t in model.state_dict().items()}
    state = {name: t.clone() for name, t in watch.state().items()}
    steps(model, optimizer, watch, range(7, 11))  # lost: the run goes on from step 6
    watch.close("interrupted")
    model, optimizer = begin()
    model.load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "cut", after=6, **how)
        watch.load_state(state)
        steps(model, optimizer, watch, range(7, 13))
        watch.close()
    whole, cut = (list(normlab.Run(tmp_path / name).readings()) for name in ("whole", "cut"))
    assert sorted(map(str, cut)) == sorted(map(str, whole))
    drifts = [value for step, probe, _, value in cut if probe == "gain_drift" and step > 6]
    assert drifts and all(value > 0 for value in drifts)
    assert state and normlab.Run(tmp_path / "cut").info["steps"] == 12


def test_a_resumed_watch_whose_last_steps_are_idle_does_not_complain(tmp_path):
    model = make()
    optimizer = sgd(model)
    watched(tmp_path, model, steps=2, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every="log", after=2)
        train(model, optimizer, 1, watch)
        watch.close()
    assert normlab.Run(tmp_path / "run").series("loss")["model"].steps == [1, 2, 3]
