"""A watch survives what training does: accumulation, closures, checkpoints, compilation, scalers, kills, several processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from watch_cases import HalfUsed, batches, make, sgd, train, watched

import normlab


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
