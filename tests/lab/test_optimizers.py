"""SGD with momentum against its formula; the optimizer in the run, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from training_cases import SIZES, readings, small

import normlab
from normlab.lab import parts, train
from normlab.lab import tasks as lab_tasks
from normlab.runs import Run


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_by_hand_gives_the_same_losses(tmp_path, momentum):
    experiment = small(task="docs", optimizer="sgd", momentum=momentum, lr=0.3, weight_decay=0.2, schedule="linear", clip=0.7,
                       seed=3, options={"length": 24}, steps=10)  # fmt: skip
    train(experiment, tmp_path / "a")
    task = lab_tasks.find_task("docs", options={"length": 24})
    torch.manual_seed(3)
    model = normlab.build(**{**task.settings, **SIZES, "norm": "layer", "placement": "pre"})
    velocity = {p: torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()}
    losses = []
    for step in range(1, 11):
        batch = task.batch(3, step, 6)
        model.zero_grad()
        loss = F.cross_entropy(model(**batch.arguments), batch.targets)
        loss.backward()
        losses.append(loss.item())
        size = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        rate = 0.3 * (step / 3 if step <= 3 else 1 - 0.9 * (step - 3) / 7)
        with torch.no_grad():
            for p, v in velocity.items():
                decayed = p.grad.double() * min(1.0, 0.7 / size) + (0.2 * p.double() if p.dim() > 1 else 0.0)
                v.mul_(momentum).add_(decayed)
                p.copy_(p.double() - rate * v)
    found = [v for _, probe, _, v in readings(tmp_path / "a") if probe == "loss"]
    assert found == pytest.approx(losses, rel=2e-5)


def test_the_optimizer_stands_in_the_run(tmp_path):
    train(small(optimizer="sgd", momentum=0.7, steps=2), tmp_path / "a")
    info = Run(tmp_path / "a").info
    assert (info["experiment"]["optimizer"], info["experiment"]["momentum"]) == ("sgd", 0.7)
    assert info["optimizer"]["class"] == "SGD"


def test_a_parameter_whose_gradient_comes_late_has_a_momentum_of_its_own():
    late = torch.nn.Linear(3, 3)
    optimizer = parts.make_optimizer(small(optimizer="sgd", weight_decay=0.0), late)
    late.weight.grad = torch.ones(3, 3)
    optimizer.step()
    before = late.bias.detach().clone()
    late.bias.grad, late.weight.grad = torch.full((3,), 2.0), torch.ones(3, 3)
    optimizer.step()
    torch.testing.assert_close(late.bias.detach(), before - 1e-2 * 2.0)
    torch.testing.assert_close(optimizer.state[late.weight]["momentum_buffer"], torch.full((3, 3), 1.9))
