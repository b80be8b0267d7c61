"""Small models for the tests of assays, ours and others', and what must not change."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

import normlab

TOKENS = torch.randint(0, 13, (6, 9), generator=torch.Generator().manual_seed(5))


def decoder(placement="pre", seed=0, **settings):
    torch.manual_seed(seed)
    return normlab.build(
        **{"architecture": "decoder", "dim": 12, "num_layers": 3, "num_heads": 2, "vocab_size": 13, "max_length": 16,
           "placement": placement, **settings}
    )  # fmt: skip


def next_token_loss(model):
    scores = model(TOKENS[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), TOKENS[:, 1:].flatten())


class ForeignBlock(nn.Module):
    """Takes its stream by name and hands it on in a tuple."""

    def __init__(self, width):
        super().__init__()
        self.ln, self.mlp = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)),
        )

    def forward(self, hidden_states=None, scale=1.0):
        return hidden_states + scale * self.mlp(self.ln(hidden_states)), "cache"


class Foreign(nn.Module):
    def __init__(self, width=8, layers=3):
        super().__init__()
        self.embed = nn.Embedding(13, width)
        self.h = nn.ModuleList(ForeignBlock(width) for _ in range(layers))
        self.out = nn.Linear(width, 13)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.h:
            x, cache = block(hidden_states=x)
            assert cache == "cache"
        return self.out(x)


def snapshot(model, optimizer=None):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    held = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
    return state, grads, [m.training for m in model.modules()], torch.get_rng_state(), held


def assert_unchanged(model, before, optimizer=None):
    state, grads, modes, random, held = before
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for p, g in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) == (g is None) and (g is None or torch.equal(p.grad, g))
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    if optimizer is not None:
        now = optimizer.state_dict()
        assert now["param_groups"] == held["param_groups"] and now["state"].keys() == held["state"].keys()
        for key, values in held["state"].items():
            for name, value in values.items():
                assert torch.equal(torch.as_tensor(now["state"][key][name]), torch.as_tensor(value))
