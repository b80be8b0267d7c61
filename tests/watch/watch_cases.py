"""Models, batches and a loop for the tests of a watch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import normlab

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


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused, self.out = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.used(x))
