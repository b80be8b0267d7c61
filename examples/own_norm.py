"""A norm of your own beside the others, under equal conditions: same seeds, same data, each at its own best rate.

python examples/own_norm.py                        a tiny grid, to show how
cd examples && normlab compare --model own_norm:make_model --data own_norm:make_data --norm layer,rms,mine --placement pre
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import normlab
from normlab import lab
from normlab.lab.tasks import find_task


class Mine(nn.Module):
    """RMSNorm with the absolute mean in place of the root mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + 1e-5)


def make_model(norm: str, placement: str, dim: int = 32, num_layers: int = 2) -> nn.Module:
    """Called by the lab with the cell's norm and placement; a name of yours stands for whatever you build."""
    return normlab.build(architecture="decoder", dim=dim, num_layers=num_layers, num_heads=2, max_length=64,
                         norm=Mine if norm == "mine" else norm, placement=placement)  # fmt: skip


def make_data(seed: int, split: str = "train"):
    """Pairs (inputs, targets), decided by the seed: here the lab's own text, eight windows at a time."""
    task = find_task("text")
    if split == "held-out":
        yield from ((b.arguments, b.targets) for b in task.held_out(8, 64))
        return
    step = 0
    while True:
        step += 1
        batch = task.batch(seed, step, 8)
        yield batch.arguments, batch.targets


def main() -> None:
    os.chdir(Path(__file__).parent)  # the lab finds own_norm:make_model in the working folder
    base = lab.Experiment(
        task="own", make_model="own_norm:make_model", make_data="own_norm:make_data", steps=24, evaluations=2
    )
    sweep = lab.Sweep(base=base, axes={"norm": ["layer", "mine"], "placement": ["pre"], "lr": [1e-2], "seed": [0, 1]})
    with tempfile.TemporaryDirectory() as folder:
        planned = lab.plan(lab.checked(sweep), folder + "/sweep", workers=2)
        print(planned)
        lab.run(planned, lab.Pool(2), lambda kind, trial, message: None)
        found = normlab.answer.read(folder + "/sweep")
        for cell in found.cells:
            print(f"{cell.rank}. {cell.name}: loss {cell.mean:.3f} over {cell.n} seeds")


if __name__ == "__main__":
    main()
