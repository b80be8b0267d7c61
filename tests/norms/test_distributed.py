"""Synced statistics over real gloo processes equal one process on the concatenated batch; so does DDP.

Workers are started once per world size and then take jobs, because importing torch costs more than any test here. A
worker that fails hands back its traceback and the whole world is replaced.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

import normlab
from normlab.kernels import cpu

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"
)

PATIENCE = 40  # seconds until a silent worker counts as lost; collectives give up before that
FEATURES = 21
STEPS = 4


# ---- worlds of processes ---------------------------------------------------------------------------------------------


def pack(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def serve(rank: int, size: int, port: int, pipe: Any) -> None:
    """A worker: joins the group, then runs jobs of this module by name until its pipe closes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE / 2))
    while True:
        try:
            job, payload = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, pack(JOBS[job](rank, unpack(payload)))))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """``size`` processes on loopback; ``run`` gives each rank its payload and returns what each sent back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[tuple[Any, Any]] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # Port 0: the system picks a free one, and this process holds it.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.size, self.store.port, there), daemon=True)
            process.start()
            there.close()
            self.workers.append((process, here))

    def run(self, job: str, payloads: list[Any]) -> list[Any]:
        assert len(payloads) == self.size
        if not self.workers:
            self.start()
        for (_, pipe), payload in zip(self.workers, payloads, strict=True):
            pipe.send((job, pack(payload)))
        results, failures = [], []
        for rank, (process, pipe) in enumerate(self.workers):
            try:
                fine, value = pipe.recv() if pipe.poll(PATIENCE) else (False, f"no answer within {PATIENCE} s")
            except EOFError:
                process.join(5)
                fine, value = False, f"died with exit code {process.exitcode}"
            (results if fine else failures).append(unpack(value) if fine else f"rank {rank}: {value}")
        if failures:
            self.stop(kill=True)
            pytest.fail(f"{job}:\n" + "\n".join(failures), pytrace=False)
        return results

    def stop(self, kill: bool = False) -> None:
        for process, pipe in self.workers:
            pipe.close()
            if kill:
                process.kill()
            process.join(10)
            if process.is_alive():
                process.kill()
        self.workers = []


@pytest.fixture(scope="module")
def world() -> Iterator[Callable[[int], World]]:
    worlds: dict[int, World] = {}
    yield lambda size: worlds.setdefault(size, World(size))
    for w in worlds.values():
        w.stop()


# ---- synced layers ---------------------------------------------------------------------------------------------------

BUILD: dict[str, Callable[..., nn.Module]] = {
    "batch": lambda **k: normlab.BatchNorm(FEATURES, momentum=0.3, **k),
    "batch-average": lambda **k: normlab.BatchNorm(FEATURES, momentum=None, **k),
    "batch-image": lambda **k: normlab.BatchNorm(FEATURES, channel_dim=1, **k),
    "batch-offset": lambda **k: normlab.BatchNorm(FEATURES, gain="offset", bias=False, **k),
    "batch-plain": lambda **k: normlab.BatchNorm(FEATURES, affine=False, track_running_stats=False, **k),
    "power-per-batch": lambda **k: normlab.PowerNorm(FEATURES, running=False, **k),
    "power-running": lambda **k: normlab.PowerNorm(
        FEATURES, alpha_forward=0.8, alpha_backward=0.6, warmup_steps=2, **k
    ),
    "power-grouped": lambda **k: normlab.PowerNorm(FEATURES, warmup_steps=1, group_scaling=3, **k),
    "power-image": lambda **k: normlab.PowerNorm(FEATURES, warmup_steps=1, channel_dim=1, **k),
}


def train(layer: nn.Module, batches: list[tuple[Tensor, Tensor | None, Tensor]]) -> dict[str, Any]:
    """One step per batch of (x, mask, upstream): outputs, input gradients, summed parameter gradients, buffers."""
    ys, dxs = [], []
    for x, mask, upstream in batches:
        leaf = x.requires_grad_()
        image = getattr(layer, "channel_dim", -1) == 1
        y = layer(leaf.transpose(1, 2) if image else leaf, mask=mask)
        y = y.transpose(1, 2) if image else y
        y.backward(upstream)
        ys.append(y.detach())
        dxs.append(leaf.grad)
    return {
        "y": ys,
        "dx": dxs,
        "parameters": {name: p.grad for name, p in layer.named_parameters()},
        "buffers": {name: b.clone() for name, b in layer.named_buffers() if b is not None},
    }


def synced_steps(rank: int, payload: dict[str, Any]) -> dict[str, Any]:
    with normlab.use_kernel(payload["kernel"]):
        layer = BUILD[payload["build"]](sync=True).to(getattr(torch, payload["dtype"]))
        layer.load_state_dict(payload["state"])
        return train(layer, payload["batches"])


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 1.5 + 0.3).to(dtype)


def close(actual: Tensor, expected: Tensor, what: str) -> None:
    """float64 to 1e-10, float32 to a few roundings, both relative to the largest value."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    if actual.numel() == 0:
        return
    limit = 1e-10 if actual.dtype == torch.float64 else 64 * torch.finfo(torch.float32).eps
    error = (actual - expected).abs().max().item()
    assert error <= limit * max(1e-30, expected.abs().max().item()), f"{what}: error {error:.3g}"


# Samples per rank, and which real tokens each has: None is no mask at all.
SITUATIONS: dict[str, tuple[list[int], list[str] | None]] = {
    "unequal": ([2, 5], None),
    "masked": ([2, 5], ["some", "some"]),
    "no-real-token": ([3, 5], ["none", "some"]),
    "no-sample": ([5, 0], None),
    "one-token": ([2, 3], ["one", "none"]),
    "one-value-each": ([1, 1], ["one", "one"]),
}
THREE = ([2, 3, 5], ["some", "none", "some"])


def situation(
    samples: list[int], kinds: list[str] | None, dtype: torch.dtype
) -> list[list[tuple[Tensor, Tensor | None, Tensor]]]:
    """Batches of every step, for every rank."""
    ranks: list[list[tuple[Tensor, Tensor | None, Tensor]]] = [[] for _ in samples]
    for step in range(STEPS):
        for rank, n in enumerate(samples):
            x = draw(n, 7, FEATURES, dtype=dtype) * (1 + step) + rank
            mask = None
            if kinds is not None:
                mask = torch.rand(n, 7) < 0.6
                if kinds[rank] != "some":
                    mask[:] = False
                if kinds[rank] == "one":
                    mask[0, step] = True
                x[~mask] = torch.nan
            ranks[rank].append((x, mask, draw(n, 7, FEATURES, dtype=dtype)))
    return ranks


def together(ranks: list[list[tuple[Tensor, Tensor | None, Tensor]]]) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    """What one process would see."""
    steps = []
    for parts in zip(*ranks, strict=True):
        masks = [m for _, m, _ in parts if m is not None]
        steps.append(
            (torch.cat([p[0] for p in parts]), torch.cat(masks) if masks else None, torch.cat([p[2] for p in parts]))
        )
    return steps


def assert_synced(world: World, build: str, kernel: str, dtype: torch.dtype, ranks: list[Any]) -> None:
    alone = BUILD[build]().to(dtype)
    with torch.no_grad():
        for p in alone.parameters():
            p.copy_(torch.randn_like(p) * 0.5 + 1)
    state = {name: value.clone() for name, value in alone.state_dict().items()}
    payloads = [
        {
            "build": build,
            "kernel": kernel,
            "dtype": str(dtype).removeprefix("torch."),
            "state": state,
            "batches": batches,
        }
        for batches in ranks
    ]
    results = world.run("synced_steps", payloads)
    with normlab.use_kernel(kernel):
        want = train(alone, together(ranks))
    for step in range(STEPS):
        for what in ("y", "dx"):
            assert want[what][step].isfinite().all() and want[what][step].any()
            close(torch.cat([r[what][step] for r in results]), want[what][step], f"{what} at step {step}")
    for name, gradient in want["parameters"].items():
        close(sum(r["parameters"][name] for r in results), gradient, f"d{name}")
    for name, value in want["buffers"].items():
        for rank, r in enumerate(results):
            assert torch.equal(r["buffers"][name], results[0]["buffers"][name]), (
                f"{name} differs between ranks 0 and {rank}"
            )
            if value.is_floating_point():
                close(r["buffers"][name], value, name)
            else:
                assert torch.equal(r["buffers"][name], value), name


@pytest.fixture(params=["cpu", "reference"])
def kernel(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and cpu.missing:
        pytest.skip(cpu.missing)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("build", BUILD)
def test_two_processes_are_one(
    world: Callable[[int], World], kernel: str, build: str, name: str, dtype: torch.dtype
) -> None:
    if build.startswith("batch") and (name == "one-token" or (name == "one-value-each" and dtype == torch.float32)):
        pytest.skip(
            "one or two real cells in all: terms cancel in BatchNorm's gradient and little but rounding is left"
        )
    torch.manual_seed(len(build) * 101 + len(name))
    assert_synced(world(2), build, kernel, dtype, situation(*SITUATIONS[name], dtype))


@pytest.mark.parametrize("build", ["batch", "power-per-batch", "power-running"])
def test_three_processes_are_one(world: Callable[[int], World], kernel: str, build: str) -> None:
    """The one in the middle has nothing but padding."""
    torch.manual_seed(5)
    assert_synced(world(3), build, kernel, torch.float64, situation(*THREE, torch.float64))


def subgroup_steps(rank: int, payload: dict[str, Any]) -> dict[str, Any]:
    """Ranks 0 and 2 pool their statistics; rank 1 is on its own."""
    group = dist.new_group([0, 2])
    options = {"sync": True, "process_group": group} if rank != 1 else {}
    layer = normlab.BatchNorm(FEATURES, dtype=torch.float64, **options)
    return train(layer, payload["batches"])


def test_process_group_chooses_who_is_pooled(world: Callable[[int], World]) -> None:
    torch.manual_seed(6)
    batches = [
        [(draw(n, 7, FEATURES, dtype=torch.float64), None, draw(n, 7, FEATURES, dtype=torch.float64))]
        for n in (2, 3, 5)
    ]
    results = world(3).run("subgroup_steps", [{"batches": b} for b in batches])
    pair = train(normlab.BatchNorm(FEATURES, dtype=torch.float64), together([batches[0], batches[2]]))
    alone = train(normlab.BatchNorm(FEATURES, dtype=torch.float64), batches[1])
    for what in ("y", "dx"):
        close(torch.cat([results[0][what][0], results[2][what][0]]), pair[what][0], what)
        close(results[1][what][0], alone[what][0], what)
    for name in ("running_mean", "running_var"):
        close(results[0]["buffers"][name], pair["buffers"][name], name)
        close(results[1]["buffers"][name], alone["buffers"][name], name)
        assert not torch.allclose(results[0]["buffers"][name], results[1]["buffers"][name])


def evaluated(rank: int, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 evaluates alone: evaluation must not wait for anybody. A second derivative is refused in words."""
    found: dict[str, Any] = {"said": []}
    for build in ("batch", "power-running", "power-per-batch"):
        layer = BUILD[build](sync=True)
        layer.load_state_dict(payload[build])
        if rank == 0:
            found[build] = layer.eval()(payload["x"]).detach()
        x = payload["x"].clone().requires_grad_()
        y = layer.train()(x)
        try:
            torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        except normlab.TransformUnsupported as error:
            found["said"].append(str(error))
    dist.barrier()
    return found


def test_evaluation_does_not_wait_and_second_derivatives_are_refused(world: Callable[[int], World]) -> None:
    torch.manual_seed(7)
    x = draw(3, 7, FEATURES, dtype=torch.float32)
    states, want = {}, {}
    for build in ("batch", "power-running", "power-per-batch"):
        layer = BUILD[build]()
        layer(draw(3, 7, FEATURES, dtype=torch.float32) * 3)
        states[build] = {name: value.clone() for name, value in layer.state_dict().items()}
        want[build] = layer.eval()(x).detach()
    results = world(2).run("evaluated", [{"x": x, **states}] * 2)
    for build, y in want.items():
        assert torch.equal(results[0][build], y), build
    for r in results:
        assert len(r["said"]) == 3 and all("second derivative" in words for words in r["said"]), r["said"]


@pytest.mark.parametrize("build", ["batch", "power-running"])
def test_sync_without_a_process_group_is_no_sync(build: str) -> None:
    assert not dist.is_initialized()
    torch.manual_seed(8)
    batches = [(draw(3, 7, FEATURES, dtype=torch.float32), None, draw(3, 7, FEATURES, dtype=torch.float32))]
    one, other = train(BUILD[build](sync=True), batches), train(BUILD[build](), batches)
    for what in ("y", "dx"):
        assert torch.equal(one[what][0], other[what][0])
    assert one["buffers"].keys() == other["buffers"].keys()
    for name, value in one["buffers"].items():
        assert torch.equal(value, other["buffers"][name]), name


# ---- DistributedDataParallel -----------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, last: str, sync: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(7, 13)
        self.layer = normlab.LayerNorm(13)
        self.middle = nn.Linear(13, FEATURES)
        self.rms = normlab.RMSNorm(FEATURES)
        self.mix = nn.Linear(FEATURES, FEATURES, bias=False)  # BatchNorm would remove it
        self.last = BUILD[last](sync=sync)
        self.leave = nn.Linear(FEATURES, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.layer(self.enter(x), mask=mask)))
        return self.leave(self.last(self.mix(self.rms(x, mask=mask)), mask=mask))


def descend(
    model: nn.Module, batches: list[tuple[Tensor, Tensor, Tensor]], counts: Tensor, ranks: int
) -> dict[str, Tensor]:
    """Plain gradient descent on the mean squared error over all real tokens; DDP averages, hence the factor."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for (x, mask, target), count in zip(batches, counts, strict=True):
        optimizer.zero_grad()
        error = (model(x, mask) - target)[mask].square().sum() / count
        (ranks * error).backward()
        optimizer.step()
        losses.append(error.detach())
    inner = model.module if hasattr(model, "module") else model
    return {
        "losses": torch.stack(losses),
        **{name: value.detach().clone() for name, value in inner.state_dict().items()},
    }


def parallel_descent(rank: int, payload: dict[str, Any]) -> dict[str, Tensor]:
    model = Model(payload["last"], sync=True).double()
    model.load_state_dict(payload["state"])
    parallel = nn.parallel.DistributedDataParallel(model)
    return descend(parallel, payload["batches"], payload["counts"], dist.get_world_size())


@pytest.mark.parametrize("last", ["batch", "power-running"])
def test_data_parallel_training_is_single_process_training(world: Callable[[int], World], last: str) -> None:
    torch.manual_seed(9)
    model = Model(last, sync=False).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "." in name and name.split(".")[0] in ("layer", "rms", "last"):
                p.copy_(torch.randn_like(p) * 0.5 + 1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    ranks: list[list[tuple[Tensor, Tensor, Tensor]]] = [[], []]
    for step in range(STEPS):
        for rank, n in enumerate((2, 5)):
            mask = torch.rand(n, 11) < 0.7
            if step == 2 and rank == 0:
                mask[:] = False  # nothing to learn from on this rank
            x = draw(n, 11, 7, dtype=torch.float64)
            ranks[rank].append((x, mask, draw(n, 11, 5, dtype=torch.float64)))
    whole = [tuple(torch.cat(t) for t in zip(*parts, strict=True)) for parts in zip(*ranks, strict=True)]
    counts = torch.stack([mask.sum() for _, mask, _ in whole])
    payload = {"last": last, "state": state, "counts": counts}
    results = world(2).run("parallel_descent", [{**payload, "batches": b} for b in ranks])
    want = descend(model, whole, counts, 1)
    close(results[0].pop("losses") + results[1].pop("losses"), want.pop("losses"), "losses")
    for name, value in want.items():
        if value.is_floating_point():
            moved = (value - state[name]).abs().max()
            assert moved > 1e-6, f"{name} did not move: this test says nothing about it"
        for r in results:
            if value.is_floating_point():
                # nu is a running mean of gradients, and every rank's loss was doubled for the sake of DDP's average.
                close(r[name] / 2 if name.endswith("running_nu") else r[name], value, name)
            else:
                assert torch.equal(r[name], value), name


def failing(rank: int, payload: dict[str, Any]) -> None:
    if rank == 1:
        raise RuntimeError("on purpose, in a worker")


def test_a_workers_traceback_reaches_the_report(world: Callable[[int], World]) -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        world(2).run("failing", [{}, {}])
    assert "rank 1" in str(caught.value) and "on purpose, in a worker" in str(caught.value)


JOBS: dict[str, Callable[[int, Any], Any]] = {
    job.__name__: job for job in (synced_steps, subgroup_steps, evaluated, parallel_descent, failing)
}
