"""Blocks left out and side by side, statistics of the batch in evaluation: against models changed by hand."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from assay_cases import TOKENS, Foreign, assert_unchanged, decoder, next_token_loss, snapshot
from torch import nn

import normlab
from normlab import assays


def shaken(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape)
    return model


def without(model, number):
    """The same model, built without that block."""
    other = copy.deepcopy(model).eval()
    blocks = other.stack.layers if hasattr(other, "stack") else other.h
    del blocks[number]
    return float(next_token_loss(other).detach())


@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm", "sandwich", "residual-dual", "b2t", "none"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_block_left_out_is_a_model_without_it(placement, fused):
    torch.manual_seed(0)
    model = shaken(decoder(placement, fused=fused, dropout=0.1))
    before = snapshot(model)
    found = assays.block_drop(model, next_token_loss)
    assert_unchanged(model, before)
    whole = float(next_token_loss(model.eval()).detach())
    assert [e.block for e in found] == [f"stack.layers.{i}" for i in range(3)]
    for number, effect in enumerate(found):
        assert effect.loss == pytest.approx(without(model, number), rel=1e-5)
        assert effect.increase == pytest.approx(effect.loss - whole, abs=1e-6)
        assert abs(effect.increase) > 1e-4


def test_foreign_blocks_with_tuples_and_named_arguments_too():
    model = shaken(Foreign())
    for number, effect in enumerate(assays.block_drop(model, next_token_loss)):
        assert effect.loss == pytest.approx(without(model, number), rel=1e-5)


@pytest.mark.parametrize("make", [Foreign, decoder, lambda: decoder(fused=False)], ids=["foreign", "fused", "plain"])
def test_neighbours_side_by_side_see_the_same_input(make):
    torch.manual_seed(4)
    model = shaken(make()).eval()
    found = assays.parallel_blocks(model, next_token_loss)
    ours = hasattr(model, "stack")
    names = [b.name for b in normlab.find_blocks(model)]
    assert [e.block for e in found] == [f"{names[0]}+{names[1]}", f"{names[1]}+{names[2]}"]

    def by_hand(pair):
        tokens = TOKENS[:, :-1]
        x = model.embedding(tokens) if ours else model.embed(tokens)
        if ours:

            def run(block, x):
                y = block(x, None, None, True)  # causal
                return y.settle() if hasattr(y, "settle") else y
        else:

            def run(block, x):
                return block(hidden_states=x)[0]

        blocks, number = (model.stack.layers if ours else model.h), 0
        while number < 3:
            if number == pair:
                x = x + (run(blocks[number], x) - x) + (run(blocks[number + 1], x) - x)
                number += 2
            else:
                x = run(blocks[number], x)
                number += 1
        scores = model.head(model.stack.ends.leave(x)) if ours else model.out(x)
        return float(F.cross_entropy(scores.flatten(0, 1), TOKENS[:, 1:].flatten()).detach())

    for pair, effect in enumerate(found):
        assert effect.loss == pytest.approx(by_hand(pair), rel=1e-5)
        assert abs(effect.increase) > 1e-6


def test_a_block_that_changes_the_shape_says_so():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    found = assays.block_drop(model, lambda m: m(torch.ones(3, 4)).sum())
    assert [e.loss is None for e in found] == [True, False, True]
    assert "(3, 4)" in found[0].reason and found[1].reason is None


def test_a_block_that_is_not_called_says_so_too():
    """Its loss would be the model's own, and look like a block that does nothing."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            return self.layers[2](self.layers[0](x))

    model, x = Idle(), torch.randn(2, 3)
    found = assays.block_drop(model, lambda m: m(x).sum())
    assert [e.reason is None for e in found] == [True, False, True] and "layers.1" in found[1].reason
    pairs = assays.parallel_blocks(model, lambda m: m(x).sum())
    assert [p.loss for p in pairs] == [None, None] and "before layers.2" in pairs[1].reason


def test_nothing_to_ask_is_an_error_of_its_own():
    with pytest.raises(assays.NothingToAsk, match="blocks="):
        assays.block_drop(nn.Linear(2, 2), lambda m: 1.0)
    with pytest.raises(assays.NothingToAsk, match="running statistics"):
        assays.statistics_gap(decoder(), next_token_loss)
    (one,) = normlab.find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))[:1]
    with pytest.raises(assays.NothingToAsk, match="neighbouring"):
        assays.parallel_blocks(nn.Sequential(one.module), lambda m: 1.0, blocks=[one])


@pytest.mark.parametrize("foreign", [False, True])
def test_both_kinds_of_statistics_with_everything_else_in_evaluation(foreign):
    """Dropout of a half would move the loss by far more than the tolerance."""
    torch.manual_seed(6)
    norm = nn.BatchNorm1d(5) if foreign else normlab.BatchNorm(5)
    model = nn.Sequential(nn.Linear(5, 5), norm, nn.Dropout(0.5), nn.Linear(5, 1))
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
    x = torch.randn(31, 5) * 2 + 1
    before = snapshot(model)
    found = assays.statistics_gap(model, lambda m: m(x).square().mean())
    assert_unchanged(model, before)
    h = model[0](x)
    for value, (mean, var) in (
        (found.running, (norm.running_mean, norm.running_var)),
        (found.batch, (h.mean(0), h.var(0, correction=0))),
    ):
        y = (h - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
        assert value == pytest.approx(float(model[3](y).square().mean()), rel=1e-4)
    assert found.norms == 1 and found.gap == pytest.approx(found.running - found.batch)
    assert abs(found.gap) > 0.01


def test_a_watch_that_is_suspended_records_nothing_of_it(tmp_path):
    """Without the suspension the assay's forward would be taken for the step's, and its gradients for stale ones."""

    def run(folder, ask):
        model = decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with normlab.watch(
            model, optimizer=optimizer, out=tmp_path / folder, every=1, preset="full", max_overhead=None
        ) as watch:
            for _ in range(3):
                if ask:
                    with watch.suspended():
                        assays.covariate_shift(model, lambda m: 7 * next_token_loss(m), optimizer=optimizer)
                        assays.smoothness(model, lambda m: 7 * next_token_loss(m), lr=0.1, factors=(1.0,))
                        assays.block_drop(model, next_token_loss)
                optimizer.zero_grad()
                for half in (TOKENS[:2], TOKENS[2:]):  # two micro-batches: a step's gradient is their sum
                    loss = F.cross_entropy(model(half[:, :-1]).flatten(0, 1), half[:, 1:].flatten())
                    loss.backward()
                optimizer.step()
                watch.step(loss=loss)
        return model, normlab.Run(tmp_path / folder).table()

    (quiet, expected), (asked, found) = run("quiet", False), run("asked", True)
    for p, q in zip(quiet.parameters(), asked.parameters(), strict=True):
        assert torch.equal(p, q)
    assert found.keys() == expected.keys()
    assert max(found["stale_gradient"]["model"].values) < 1e-5
    for quantity, sites in expected.items():
        for site, series in sites.items():
            assert found[quantity][site] == series, (quantity, site)
