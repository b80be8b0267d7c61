"""Assays on models of another library: blocks of any form left out and side by side, norms of any name looked into."""

from __future__ import annotations

import copy

import pytest
import torch
from assay_cases import assert_unchanged, snapshot

import normlab
from normlab import assays

transformers = pytest.importorskip("transformers")
TOKENS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(3))
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 16}  # fmt: skip


def make(name):
    torch.manual_seed(0)
    model = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2, use_cache=False)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, use_cache=False)),
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    }[name]()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape)
    return model


def loss(model):
    return model(input_ids=TOKENS, labels=TOKENS).loss


def blocks_of(model):
    return next(m for n, m in model.named_modules() if n in ("transformer.h", "model.layers", "bert.encoder.layer"))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_block_left_out_is_a_model_without_it(name):
    model = make(name)
    before = snapshot(model)
    found = assays.block_drop(model, loss)
    pairs = assays.parallel_blocks(model, loss)
    shifts = assays.covariate_shift(model, loss, lr=1e-3)
    assert_unchanged(model, before)
    model.eval()
    for number, effect in enumerate(found):
        other = copy.deepcopy(model)
        del blocks_of(other)[number]
        for config in (other.config, *(m.config for m in other.modules() if hasattr(m, "config"))):
            for key in ("num_hidden_layers", "n_layer"):
                if hasattr(config, key):
                    setattr(config, key, 2)
        with torch.no_grad():
            assert effect.loss == pytest.approx(float(loss(other)), rel=1e-5)
        assert abs(effect.increase) > 1e-4
    assert len(pairs) == 2 and all(p.reason is None and abs(p.increase) > 1e-6 for p in pairs)
    assert [s.layer for s in shifts] == [e.block for e in found] and all(s.distance > 0 for s in shifts)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_states_of_every_norm_are_seen(name):
    model = make(name)
    states = assays.norm_states(model, loss)
    assert set(states) == {site.name for site in normlab.find_norms(model)}
    for s in states.values():
        torch.testing.assert_close(s.y, s.site.module(s.x).detach())
    snapshots = assays.token_similarity(model, loss)
    assert len(snapshots) == 3 and all(len(s.places) <= 64 for s in snapshots)
