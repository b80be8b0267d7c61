"""Small trainings for the tests of the lab: experiments, a user's own factories, child processes, and what two runs must share.

Processes that are killed come from a fork server that has imported torch once: they are real, and start in a tenth of a second.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normlab.lab import Experiment, Stopped, train
from normlab.lab import checkpoint as checkpoints
from normlab.runs import INFO, Run

pytest.importorskip("safetensors")
training = sys.modules["normlab.lab.train"]  # the attribute of that name is the function

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["normlab.lab.train", "torch._dynamo", "pytest"])  # an optimizer imports _dynamo
PATIENCE = 60  # seconds until a child process counts as lost
SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 24}
TIMES = ("seconds", "overhead_seconds", "training_seconds", "evaluation_seconds", "tokens_per_second", "matmul_share",
         "peak_memory")  # fmt: skip
HERE = __name__


def small(model=None, **values):
    """A few milliseconds a step."""
    return Experiment(**{"steps": 12, "batch_size": 6, "held_out": 20, "evaluations": 4, "lr": 1e-2, "warmup": 0.3,
                         "model": {**SIZES, **(model or {})}, **values})  # fmt: skip


def readings(folder):
    return list(Run(folder).readings())


def lasting(result):
    """What must be the same in every repetition."""
    return {name: value for name, value in result.items() if name not in TIMES}


def weights(folder):
    """As numbers that compare bit for bit; the file's header has no fixed order."""
    held = checkpoints._library().load_file(folder / checkpoints.WEIGHTS)
    return {name: (t.shape, t.reshape(-1).view(torch.uint8).tolist()) for name, t in held.items()}


def events(folder, name):
    return [event for event in Run(folder).events() if event["event"] == name]


def assert_same_run(one, other):
    assert readings(one) == readings(other)
    assert lasting(Run(one).info["result"]) == lasting(Run(other).info["result"])
    assert weights(one) == weights(other)
    assert Run(one).info["status"] == Run(other).info["status"] == "finished"


def assert_every_step_once(folder, steps):
    counts = Counter((step, probe, site) for step, probe, site, _ in readings(folder))
    assert set(counts.values()) == {1}
    assert [step for step, probe, _, _ in readings(folder) if probe == "loss"] == list(range(1, steps + 1))


DAMAGED = small(model={"dropout": 0.1, "num_layers": 1})


def strict(folder):
    """run.json, which may hold no number that JSON lacks."""
    text = (folder / INFO).read_text()
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {INFO}"))


# ---- the user's own, found as MODULE:NAME in this module -------------------------------------------------------------


def own_model(norm="layer", width=12):
    made = {"layer": nn.LayerNorm, "none": lambda _: nn.Identity()}[norm](width)
    return nn.Sequential(nn.Linear(5, width), made, nn.Dropout(0.2), nn.Linear(width, 3))


def plain_model():
    return nn.Linear(5, 3)


def own_data(seed, split):
    draw = torch.Generator().manual_seed(11 if split == "train" else 12)
    x = torch.randn(21, 5, generator=draw)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=4, shuffle=True)  # torch's global numbers


def seeded_data(seed):
    torch.manual_seed(seed)
    while True:
        x = torch.randn(4, 5)
        yield x, x[:, :3].argmax(1)


def short_data(seed, split):
    x = torch.arange(15.0).view(3, 5) / 7
    return [(x + n, torch.tensor([0, 1, 2])) for n in range(5)]


def empty_data(seed):
    return []


def used_up_data(seed, split):
    return USED_UP


USED_UP = iter([(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))])


def numbers(seed):
    return 7


def raising_model():
    raise ZeroDivisionError("from the user's factory")


def no_model():
    return "a string"


def list_loss(model, batch):
    return [1.0]


def nan_loss(model, batch):
    nan_loss.calls += model.training
    return F.cross_entropy(model(batch[0]), batch[1]) * (math.nan if nan_loss.calls == 7 and model.training else 1)


nan_loss.calls = 0


def own(model="own_model", data="own_data", loss=None, **values):
    return Experiment(**{"task": "own", "make_model": f"{HERE}:{model}", "make_data": f"{HERE}:{data}", "steps": 12,
                         "make_loss": loss and f"{HERE}:{loss}", "evaluations": 3, "lr": 1e-2, **values})  # fmt: skip


# ---- child processes -------------------------------------------------------------------------------------------------


def train_in_child(values, folder, kill_at=None, keep_at=None, limit=None, prepared=False):
    """Train; die at a step; copy the checkpoint of an earlier one; with files that may not grow beyond a limit."""
    if prepared:
        training._prepare_16_bit_once = dict
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    def on_step(step, loss):
        if step == keep_at:
            shutil.copy(folder / checkpoints.FILE, folder / "kept")
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        train(Experiment.from_dict(values), folder, on_step=on_step, checkpoint_seconds=0.0, keep_weights=True)
    except OSError as error:
        folder.with_suffix(".said").write_text(str(error)[:500])


def parallel(rank, store, jobs):
    """One of two processes: trains each experiment; in the file of its rank, what came of it."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for values, folder, stop_at in jobs:

        def on_step(step, loss, stop_at=stop_at):
            if step == stop_at:
                raise Stopped

        try:
            result = train(Experiment.from_dict(values), folder, on_step=on_step, keep_weights=True)
        except (Stopped, ValueError) as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        folder.with_suffix(f".{rank}.json").write_text(
            json.dumps(result if isinstance(result, dict) else result.to_dict())
        )
    dist.destroy_process_group()


def child(job, *args):
    process = PROCESSES.Process(target=job, args=args, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(PATIENCE)
    code = process.exitcode
    if code is None:
        process.kill()
    return code
