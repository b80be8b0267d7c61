"""The playground's network once more, in plain torch, and the cases in which both are compared."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

NORMS, PLACEMENTS, OPTIMIZERS = (
    ("none", "batch", "layer", "rms"),
    ("pre", "post", "deepnorm", "sandwich"),
    ("sgd", "adam"),
)
STEPS, RATE = 5, {"sgd": 0.1, "adam": 0.01}
RELATIVE = 1e-6  # of the largest value of a tensor; both sides compute in float64


def cases() -> list[dict[str, Any]]:
    """Every combination, with prime sizes; depths, eps and batches vary with them, two points with BatchNorm included."""
    found = []
    turns = itertools.cycle([(3, 7, 1e-5, 11), (1, 5, 0.1, 2), (5, 3, 1e-3, 13), (2, 11, 1e-8, 5)])
    for (norm, placement, optimizer), (depth, width, eps, rows) in zip(
        itertools.product(NORMS, PLACEMENTS, OPTIMIZERS), turns, strict=False
    ):
        found.append(question(norm, placement, optimizer, depth=depth, width=width, eps=eps, rows=rows))
    found.append(question("batch", "post", "adam", depth=2, width=5, eps=1e-5, rows=2))
    found.append(question("layer", "deepnorm", "adam", depth=31, width=13, eps=1e-5, rows=7))
    return found


def question(norm, placement, optimizer, *, depth, width, eps, rows) -> dict[str, Any]:
    shape = {"norm": norm, "placement": placement, "depth": depth, "width": width, "classes": 3, "eps": eps}
    draw = torch.Generator().manual_seed(depth * width + rows)
    gains = {
        name: (torch.rand(size, generator=draw, dtype=torch.float64) + 0.5 * name.endswith("weight")).tolist()
        for name, size in one_dimensional(shape).items()
    }
    points = torch.randn(rows, 2, generator=draw, dtype=torch.float64)
    return {
        "ask": "trained", "shape": shape, "seed": 5, "gains": gains, "optimizer": optimizer, "rate": RATE[optimizer], "steps": STEPS,
        "points": points.flatten().tolist(), "labels": torch.randint(0, 3, (rows,), generator=draw).tolist(),
        "evaluated": torch.randn(7, 2, generator=draw, dtype=torch.float64).flatten().tolist(),
    }  # fmt: skip


def one_dimensional(shape: dict[str, Any]) -> dict[str, int]:
    """Gains and biases, all of which are drawn: ones and zeros would hide whether they are used."""
    width, found = shape["width"], {"input.bias": shape["width"], "output.bias": shape["classes"]}
    places = [f"blocks.{i}.norm" for i in range(shape["depth"])]
    places += [f"blocks.{i}.after" for i in range(shape["depth"])] if shape["placement"] == "sandwich" else []
    places += ["final"] if shape["placement"] in ("pre", "sandwich") else []
    for place in places if shape["norm"] != "none" else ():
        found[f"{place}.weight"] = width
        if shape["norm"] != "rms":
            found[f"{place}.bias"] = width
    for i in range(shape["depth"]):
        found |= {f"blocks.{i}.first.bias": width, f"blocks.{i}.second.bias": width}
    return found


class Oracle:
    """The network in torch's own functions, with autograd and torch's optimizers."""

    def __init__(self, question: dict[str, Any], weights: dict[str, Any]) -> None:
        self.shape = question["shape"]
        self.weights = {
            name: torch.tensor(w["value"], dtype=torch.float64).reshape(w["shape"]).requires_grad_()
            for name, w in weights.items()
        }
        self.running: dict[str, tuple[Tensor, Tensor]] = {}
        self.alpha = self.shape["depth"] ** 0.25 if self.shape["placement"] == "deepnorm" else 1.0
        self.streams: list[Tensor] = []

    def norm(self, name: str, x: Tensor, training: bool) -> Tensor:
        kind, eps, width = self.shape["norm"], self.shape["eps"], self.shape["width"]
        if kind == "none":
            return x
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if kind == "layer":
            return F.layer_norm(x, (width,), weight, bias, eps)
        if kind == "rms":
            return F.rms_norm(x, (width,), weight, eps)
        mean, var = self.running.setdefault(
            name, (torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64))
        )
        return F.batch_norm(x, mean if self.moving or not training else mean.clone(), var if self.moving or not training else var.clone(), weight, bias, training, 0.1, eps)  # fmt: skip

    def __call__(self, points: Tensor, training: bool, moving: bool = False) -> Tensor:
        self.moving, w, place = moving, self.weights, self.shape["placement"]
        x = F.linear(points, w["input.weight"], w["input.bias"])
        self.streams = [x]
        for i in range(self.shape["depth"]):
            name = f"blocks.{i}"
            inner = self.norm(f"{name}.norm", x, training) if place in ("pre", "sandwich") else x
            hidden = F.relu(F.linear(inner, w[f"{name}.first.weight"], w[f"{name}.first.bias"]))
            branch = F.linear(hidden, w[f"{name}.second.weight"], w[f"{name}.second.bias"])
            if place == "sandwich":
                branch = self.norm(f"{name}.after", branch, training)
            x = self.alpha * x + branch
            if place in ("post", "deepnorm"):
                x = self.norm(f"{name}.norm", x, training)
            self.streams.append(x)
        if place in ("pre", "sandwich"):
            x = self.norm("final", x, training)
        return F.linear(x, w["output.weight"], w["output.bias"])


def far(ours: Any, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest value (at least 1e-3, for what is zero up to rounding)."""
    theirs = theirs.detach()
    mine = torch.tensor(ours, dtype=torch.float64).reshape(theirs.shape)
    return float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3))


def assert_agrees(question: dict[str, Any], answer: dict[str, Any]) -> None:
    """Forward, gradients, five steps of the optimizer, running statistics and evaluation."""
    net = Oracle(question, answer["before"])
    points = torch.tensor(question["points"], dtype=torch.float64).reshape(-1, 2)
    labels = torch.tensor(question["labels"])
    logits = net(points, training=True)
    assert far(answer["logits"], logits) < RELATIVE
    for stream in net.streams:
        stream.retain_grad()
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    assert abs(answer["loss"] - loss.item()) < RELATIVE
    for name, weight in net.weights.items():
        assert far(answer["first"][name]["grad"], weight.grad) < RELATIVE, name
    assert far(answer["gradients"], torch.stack([s.grad.norm() for s in net.streams])) < RELATIVE

    make = torch.optim.SGD if question["optimizer"] == "sgd" else torch.optim.Adam
    optimizer, losses = make(net.weights.values(), lr=question["rate"]), []
    for _ in range(question["steps"]):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(points, training=True, moving=True), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert far(answer["losses"], torch.tensor(losses, dtype=torch.float64)) < RELATIVE
    for name, weight in net.weights.items():
        assert far(answer["after"][name]["value"], weight) < RELATIVE, name
    if question["shape"]["norm"] == "batch":
        assert len(answer["running"]) == len(net.running)
        order = sorted(net.running, key=lambda n: (n == "final", int(n.split(".")[1]) if "." in n else 0, "after" in n))
        for (mean, var), name in zip(answer["running"], order, strict=True):
            assert far(mean, net.running[name][0]) < RELATIVE and far(var, net.running[name][1]) < RELATIVE, name
    evaluated = torch.tensor(question["evaluated"], dtype=torch.float64).reshape(-1, 2)
    assert far(answer["evaluated"], net(evaluated, training=False)) < RELATIVE
