"""Compiled, exported, data-parallel, checkpointed, in 16 bits: the model gives what it gives plainly."""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from tiny_models import (
    BATCH,
    DROPPING,
    LENGTH,
    LLAMA,
    LONGEST,
    assert_buffers,
    assert_outcomes,
    example,
    gradients,
    lengths_mask,
    make,
    make_any,
    off,
    outcome,
    words,
)
from torch import Tensor, nn

import normlab
from normlab.models import ARCHITECTURES

COMPILED = [
    ("encoder", {"norm": "rms"}),
    ("encoder", {"placement": "post"}),
    ("encoder", {"placement": "deepnorm"}),
    ("encoder", {"placement": "residual-dual"}),
    ("encoder", {"placement": "b2t"}),
    ("encoder", {"placement": "sub-ln", "num_layers": 1, "num_classes": 5}),
    ("encoder", {"norm": "batch"}),
    ("decoder", {"norm": "rms"}),
    ("decoder", {"placement": "post"}),
    ("decoder", LLAMA),
    ("encoder-decoder", {"norm": "rms", "num_layers": 1}),
    ("encoder-decoder", {"placement": "b2t", "num_layers": 1}),
    ("vision", {"placement": "deepnorm"}),
    ("vision", {"placement": "sub-ln", "norm": "rms"}),
    ("convolution", {"placement": "residual-dual"}),
    ("convolution", {"placement": "pre", "norm": "batch"}),
]


@pytest.fixture
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def named(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [" ".join([a, *(str(v) for v in settings.values())]) for a, settings in cases]


def assert_compiles(architecture: str, settings: Mapping[str, Any], backend: str) -> None:
    eager = make_any(architecture, **settings)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    for arguments in (example(architecture), example(architecture)):
        got = outcome(twin, lambda a=arguments: compiled(*a))
        assert_outcomes(got, outcome(eager, lambda a=arguments: eager(*a)))
        assert_buffers(twin, eager)


@pytest.mark.parametrize(("architecture", "settings"), COMPILED, ids=named(COMPILED))
def test_compiled_models_equal_eager_ones(compiler, architecture, settings):
    assert_compiles(architecture, settings, "aot_eager")


def test_inductor_compiles_a_masked_encoder(compiler):
    assert_compiles("encoder", {"norm": "rms", "num_layers": 1, "num_classes": 5}, "inductor")


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("settings", [{}, LLAMA], ids=["plain", "llama"])
def test_exported_models_take_any_batch_and_length(settings, architecture, masked):
    model = make(architecture=architecture, **settings).eval()
    axes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2, max=LONGEST)}
    arguments = example(architecture)[: 1 + masked]
    program = torch.export.export(model, arguments, dynamic_shapes=(axes, axes)[: 1 + masked])
    for batch, length in ((BATCH, LENGTH), (5, LONGEST)):
        arguments = (words(batch, length), torch.rand(batch, length) < 0.7)[: 1 + masked]
        assert off(program.module()(*arguments), model(*arguments)) <= 1e-6


# ---- DistributedDataParallel -------------------------------------------------------------------------------------------

PARALLEL: dict[str, dict[str, Any]] = {
    "decoder": {"architecture": "decoder"},
    "batch-encoder": {"norm": "batch", "norm_options": {"sync": True}, "num_classes": 5},
}


def learn(model: Any, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """A loss that is a mean over samples, so that equal shares have equal weights."""
    if labels.dim() == 2:
        return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    return F.cross_entropy(model(tokens, mask), labels)


def parallel_rank(rank: int, folder: str) -> None:
    """A process: the gradients that DDP leaves it with, for its half of every batch."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=40))
    found = {}
    for name, (state, batch) in torch.load(f"{folder}/work.pt", weights_only=True).items():
        model = make(**PARALLEL[name]).double()
        model.load_state_dict(state)
        parallel = nn.parallel.DistributedDataParallel(model)
        learn(parallel, *(t.chunk(2)[rank] for t in batch)).backward()
        found[name] = (gradients(model), dict(model.named_buffers()))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_data_parallel_processes_learn_as_one(tmp_path):
    """Ranks hold different numbers of real tokens; every gradient and running statistic is that of the whole batch."""
    work, models = {}, {}
    for name, settings in PARALLEL.items():
        models[name] = make(**settings).double()
        labels = words(4, LENGTH) if name == "decoder" else torch.tensor([1, 4, 0, 2])
        batch = (words(4, LENGTH), lengths_mask(LENGTH, 3, 5, LENGTH, 8), labels)
        work[name] = ({n: t.clone() for n, t in models[name].state_dict().items()}, batch)
    torch.save(work, tmp_path / "work.pt")
    multiprocessing.spawn(parallel_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for name, model in models.items():
        loss = learn(model, *work[name][1])
        loss.backward()
        for found, buffers in (r[name] for r in ranks):
            assert_outcomes({"output": loss[None], **found}, {"output": loss[None], **gradients(model)}, 1e-10)
            for key, value in model.named_buffers():
                torch.testing.assert_close(buffers[key], value, rtol=1e-10, atol=1e-12)
        halves = copy.deepcopy(model)
        halves.zero_grad()
        learn(halves, *(t.chunk(2)[0] for t in work[name][1])).backward()
        token = next(n for n, _ in model.named_parameters())
        assert off(gradients(halves)[token], gradients(model)[token]) > 0.01, "half the batch would have done as well"


# ---- activation checkpointing ------------------------------------------------------------------------------------------

CHECKPOINTED = [
    ("encoder", {}),
    ("encoder", {"norm": "batch"}),
    ("encoder", {"norm": "batch", "norm_options": {"ghost_size": 2}}),
    ("encoder", {"norm": "power", "norm_options": {"running": False}}),
    ("encoder", {"placement": "residual-dual", "norm": "rms"}),
    ("encoder", {"placement": "b2t", "fused": False}),
    ("decoder", LLAMA),
    ("decoder", {"placement": "post", "norm": "batch", "causal_statistics": "position"}),
    ("encoder-decoder", {"placement": "deepnorm"}),
    ("vision", {"placement": "peri"}),
    ("convolution", {"norm": "group"}),
]


@pytest.mark.parametrize("dropping", [{}, DROPPING], ids=["dense", "dropout"])
@pytest.mark.parametrize(("architecture", "settings"), CHECKPOINTED, ids=named(CHECKPOINTED))
def test_checkpointing_recomputes_layers_and_changes_no_number(architecture, settings, dropping):
    model = make_any(architecture, **settings, **dropping)
    twin = make_any(architecture, **settings, **dropping, checkpoint=True)
    twin.load_state_dict(model.state_dict())
    arguments, calls = example(architecture), Counter()
    for m in (model, twin):
        for name, module in m.named_modules():
            if name.endswith("layers.1"):
                module.register_forward_pre_hook(lambda *_, m=m, name=name: calls.update([(m is twin, name)]))
    found = []
    for m in (model, twin):
        torch.manual_seed(3)
        found.append(outcome(m, lambda m=m: m(*arguments)))
    assert set(calls.values()) == {1, 2} and all(count == 1 + again for (again, _), count in calls.items())
    assert_outcomes(found[1], found[0], 1e-6)
    assert_buffers(twin, model, 1e-6)
    if dropping:
        torch.manual_seed(4)
        assert off(model(*arguments), found[0]["output"]) > 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "power"},
        {"norm": "batch", "norm_options": {"renorm": (3.0, 5.0)}},
        {"architecture": "decoder", "norm": "batch", "causal_statistics": "running"},
        {"architecture": "decoder", "norm": "power", "causal_statistics": "running"},
    ],
    ids=["power", "renorm", "batch-running", "power-running"],
)
def test_checkpointing_a_norm_that_divides_by_what_it_moves_is_refused(settings):
    """A second forward would see other statistics than the first, and gradients would be wrong without a word."""
    with pytest.raises((normlab.TransformUnsupported, ValueError), match="checkpoint"):
        make(**settings, checkpoint=True)(*example("encoder")).sum().backward()


# ---- 16 bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, LLAMA | {"qk_norm": "head"}], ids=["plain", "llama"])
@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm"])
def test_autocast_is_float32_to_bfloat16s_rounding(placement, settings):
    """bfloat16 has 8 bits; a dozen roundings of 2^-9 that do not all point one way."""
    model = make(architecture="decoder", placement=placement, **settings)
    tokens, mask = example("decoder")
    exact = outcome(model, lambda: model(tokens, mask))
    with torch.autocast("cpu", torch.bfloat16):
        y = model(tokens, mask)
        generated = model.generate(tokens[:, :4], 3)
    assert y.dtype == torch.bfloat16
    assert 1e-6 < off(y.float(), exact["output"]) < 0.05
    rough = outcome(model, lambda: y)
    rough["output"] = rough["output"].float()
    assert_outcomes(rough, exact, 0.2)
    assert generated.shape == (BATCH, 7)


@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm", "residual-dual"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_run_in_pure_bfloat16(architecture, placement):
    model = make_any(architecture, placement=placement)
    arguments = example(architecture)
    exact = model(*arguments).detach()
    model.bfloat16()
    y = model(*(a.bfloat16() if a.is_floating_point() else a for a in arguments))
    assert y.dtype == torch.bfloat16
    assert off(y.float(), exact) < 0.1
    y.backward(torch.randn_like(y))
    assert all(g.dtype == torch.bfloat16 and g.isfinite().all() for g in gradients(model).values())
    if architecture == "decoder":
        assert model.generate(arguments[0][:, :4], 3).shape == (BATCH, 7)
