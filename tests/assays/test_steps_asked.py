"""Internal covariate shift and smoothness along a step, against the definitions written out."""

from __future__ import annotations

import copy

import pytest
import torch
from assay_cases import Foreign, assert_unchanged, decoder, next_token_loss, snapshot
from torch import nn

from normlab import assays


def trained(model, steps=3, lr=1e-2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        next_token_loss(model).backward()
        optimizer.step()
    return optimizer


def flat(tensors):
    return torch.cat([t.detach().double().flatten() for t in tensors])


@pytest.mark.parametrize("make", [decoder, Foreign], ids=["ours", "foreign"])
@pytest.mark.parametrize("plain", [True, False], ids=["gradient step", "optimizer"])
def test_covariate_shift_is_the_definition(make, plain):
    """G' of block l by hand: a copy of the model in which embedding and lower blocks have moved and nothing else has."""
    torch.manual_seed(1)
    model = make()
    optimizer = trained(model)
    blocks = model.stack.layers if make is decoder else model.h
    prefix = "stack.layers." if make is decoder else "h."
    first = "embedding." if make is decoder else "embed."
    found = assays.covariate_shift(model, next_token_loss, **({"lr": 0.05} if plain else {"optimizer": optimizer}))
    assert [s.layer for s in found] == [f"{prefix}{i}" for i in range(3)]

    moved, its_optimizer = copy.deepcopy((model, optimizer))
    its_optimizer.zero_grad()
    next_token_loss(moved).backward()
    before = {n: p.grad.clone() for n, p in moved.named_parameters()}
    if plain:
        with torch.no_grad():
            for p in moved.parameters():
                p -= 0.05 * p.grad
    else:
        its_optimizer.step()
    new = dict(moved.named_parameters())
    for level, shift in enumerate(found):
        mixed = copy.deepcopy(model)
        below = (first, *(f"{prefix}{i}." for i in range(level)))
        with torch.no_grad():
            for name, p in mixed.named_parameters():
                if name.startswith(below):
                    p.copy_(new[name])
        mixed.zero_grad(set_to_none=True)
        next_token_loss(mixed).backward()
        own = [f"{prefix}{level}.{n}" for n, _ in blocks[level].named_parameters()]
        after = dict(mixed.named_parameters())
        g, h = flat(before[n] for n in own), flat(after[n].grad for n in own)
        assert shift.distance == pytest.approx(float((h - g).norm()), rel=1e-4)
        assert shift.gradient == pytest.approx(float(g.norm()), rel=1e-5)
        assert shift.cosine == pytest.approx(float(g @ h / g.norm() / h.norm()), rel=1e-5)
        assert shift.relative == pytest.approx(shift.distance / shift.gradient)
        assert shift.distance > 1e-4


def test_the_lowest_layer_of_a_stack_without_an_embedding_does_not_shift():
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(3)))
    x, up = torch.randn(7, 5), torch.randn(7, 5)
    found = assays.covariate_shift(model, lambda m: (m(x) * up).square().sum(), lr=1e-3)
    assert found[0].distance == 0 and found[0].cosine == pytest.approx(1)
    assert all(s.distance > 0 for s in found[1:])


def test_layers_may_be_named_in_any_order():
    model = Foreign()
    layers = {"out": model.out, "middle": model.h[1], "embed": model.embed}
    found = assays.covariate_shift(model, next_token_loss, lr=0.1, layers=layers)
    assert [s.layer for s in found] == ["embed", "middle", "out"]


@pytest.mark.parametrize("redraw", [False, True])
def test_noise_is_the_same_on_both_sides_unless_redrawn(redraw):
    """At rate zero nothing moves: what is left is noise."""
    model = decoder(norm_noise={"shift": 0.5, "scale": 1.25}, dropout=0.2)
    found = assays.covariate_shift(model, next_token_loss, lr=0.0, redraw=redraw)
    assert all((s.distance > 1e-2) if redraw else (s.distance == 0) for s in found)


def test_smoothness_walks_along_the_step():
    torch.manual_seed(2)
    model = decoder("post")
    optimizer = trained(model)
    found = assays.smoothness(model, next_token_loss, lr=0.3, factors=(0.5, 2.0))
    parameters = list(model.parameters())
    value = next_token_loss(model)
    g = torch.autograd.grad(value, parameters)
    assert found.loss == pytest.approx(float(value.detach())) and found.gradient == pytest.approx(
        float(flat(g).norm()), rel=1e-5
    )
    assert found.step == pytest.approx(0.3 * found.gradient, rel=1e-5)
    for factor, loss, change in zip(found.factors, found.losses, found.changes, strict=True):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for p, d in zip(other.parameters(), g, strict=True):
                p -= factor * 0.3 * d
        there = next_token_loss(other)
        moved = flat(torch.autograd.grad(there, list(other.parameters()))) - flat(g)
        assert loss == pytest.approx(float(there.detach()), rel=1e-5)
        assert change == pytest.approx(float(moved.norm()), rel=1e-3)
    assert found.loss_range == pytest.approx(abs(found.losses[0] - found.losses[1]))
    assert found.gradient_change == max(found.changes)
    by_optimizer = assays.smoothness(model, next_token_loss, optimizer=optimizer)
    assert by_optimizer.step == pytest.approx(1e-2 * len(flat(g)) ** 0.5, rel=0.5)  # AdamW: about the rate per weight


def test_smoothness_of_a_quadratic_is_its_curvature():
    """L = w'Aw / 2: the gradient changes by A d over a distance |d|."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    holder = nn.ParameterList([weight])
    curvature = torch.tensor([3.0, 7.0], dtype=torch.float64)
    found = assays.smoothness(holder, lambda m: (curvature * m[0] ** 2).sum() / 2, lr=0.1)
    d = curvature * torch.tensor([1.0, -2.0])
    assert found.beta == pytest.approx(float((curvature * d).norm() / d.norm()))


@pytest.mark.parametrize("norm", ["layer", "batch", "power"])
def test_model_optimizer_and_random_numbers_leave_as_they_came(norm):
    torch.manual_seed(3)
    form = {"causal_statistics": "running"} if norm != "layer" else {}
    model = decoder(norm=norm, dropout=0.1, norm_noise={}, **form)
    optimizer = trained(model)
    next_token_loss(model).backward()  # gradients of the caller's
    model.stack.layers[1].eval()
    before = snapshot(model, optimizer)
    assays.covariate_shift(model, next_token_loss, optimizer=optimizer)
    assert_unchanged(model, before, optimizer)
    assays.smoothness(model, next_token_loss, optimizer=optimizer)
    assert_unchanged(model, before, optimizer)


def test_an_optimizer_may_have_parameters_that_are_not_the_models():
    model, elsewhere = decoder(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *elsewhere.parameters()], lr=0.1)
    elsewhere.weight.grad = torch.ones(2, 2)
    before = elsewhere.weight.detach().clone()
    assays.smoothness(model, next_token_loss, optimizer=optimizer)
    assert torch.equal(elsewhere.weight, before) and torch.equal(elsewhere.weight.grad, torch.ones(2, 2))


class MasterWeights(torch.optim.Optimizer):
    """Keeps averages of 16-bit weights in float32, as optimizers for mixed precision do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "steps": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros(p.shape))
                average.mul_(0.9).add_(p.grad.float(), alpha=1 / 3)
                p.data.add_(average.to(p.dtype), alpha=-group["lr"])


def test_float32_averages_of_16_bit_weights_stay_float32():
    model = nn.Linear(3, 2).bfloat16()
    optimizer, x = MasterWeights(model.parameters()), torch.randn(5, 3).bfloat16()
    model(x).square().mean().backward()
    optimizer.step()
    before = {p: s["average"].clone() for p, s in optimizer.state.items()}
    assert any(not torch.equal(a, a.bfloat16().float()) for a in before.values())  # 16 bits would not hold them
    assays.smoothness(model, lambda m: m(x).square().mean(), optimizer=optimizer)
    assert optimizer.param_groups[0]["steps"] == 1 and optimizer.state.keys() == before.keys()
    for p, average in before.items():
        assert optimizer.state[p]["average"].dtype == torch.float32
        assert torch.equal(optimizer.state[p]["average"], average)


class Replaces(nn.Module):
    """Puts a new tensor in a buffer's place, as many write running averages."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average


def test_a_buffer_that_is_replaced_is_the_old_one_again():
    model = Replaces()
    model(torch.randn(5, 3))
    held, value = model.average, model.average.clone()
    with assays.untouched(model):
        model(torch.randn(5, 3))
        assert model.average is not held
    assert model.average is held and torch.equal(held, value)


def test_a_backward_inside_does_not_reach_the_callers_gradients():
    model = decoder()
    next_token_loss(model).backward()
    before = snapshot(model)
    with assays.untouched(model):
        next_token_loss(model).backward()
    assert_unchanged(model, before)


def test_also_when_the_loss_fails():
    model = decoder()
    calls = []

    def breaks(m):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("third call")
        return next_token_loss(m)

    before = snapshot(model)
    with pytest.raises(RuntimeError, match="third call"):
        assays.covariate_shift(model, breaks, lr=0.1)
    assert_unchanged(model, before)


def test_wrong_questions_are_refused():
    model = decoder()
    for wrong in ({}, {"lr": 0.1, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}):
        with pytest.raises(ValueError, match="one of the two"):
            assays.smoothness(model, next_token_loss, **wrong)
    with pytest.raises(TypeError, match="one value and a gradient"):
        assays.smoothness(model, lambda m: 1.0, lr=0.1)
    with pytest.raises(ValueError, match="above 0"):
        assays.smoothness(model, next_token_loss, lr=0.1, factors=(0.0,))
    with pytest.raises(assays.NothingToAsk, match="no blocks"):
        assays.covariate_shift(nn.Linear(2, 2), lambda m: m(torch.ones(1, 2)).sum(), lr=0.1)
    with pytest.raises(ValueError, match="requires a gradient"):
        assays.smoothness(model.requires_grad_(False), next_token_loss, lr=0.1)
