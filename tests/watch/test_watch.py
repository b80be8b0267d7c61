"""A watch changes nothing, misses nothing silently, and goes on where it was cut off."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watch_cases import LENGTHS, HalfUsed, batches, make, sgd, train, watched

import normlab
from normlab import surgery
from normlab.watch.cadence import Cadence


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
        train(model, opt, 1, watch)  # the first recorded step has hooks of its own, which see what flows
        before = [len(m._forward_hooks) for m in model.modules()]
        train(model, opt, 11, watch)
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
