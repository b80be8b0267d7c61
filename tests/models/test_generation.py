"""Generation, with and without a cache."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import (
    BATCH,
    DROPPING,
    LENGTH,
    LLAMA,
    LONGEST,
    WORDS,
    lengths_mask,
    make,
    off,
    shaken,
    words,
)
from torch import Tensor

from normlab.models import Cache

# ---- generation --------------------------------------------------------------------------------------------------------

GENERATING: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "placement": "post"},
    "rotary": LLAMA,
    "rotary-qk": LLAMA | {"qk_norm": "width", "placement": "sandwich"},
    "one-kv-head": {"num_kv_heads": 1, "positions": "none"},
    "hybrid": {"placement": "hybrid-norm"},
    "residual-dual": {"placement": "residual-dual", "norm": "rms"},
    "b2t": {"placement": "b2t", "fused": False},
    "batch": {"norm": "batch", "causal_statistics": "position"},
}


def likeliest(scores: Callable[[Tensor], Tensor], tokens: Tensor, steps: int) -> Tensor:
    """Greedy decoding, the whole text again at every step."""
    with torch.no_grad():
        for _ in range(steps):
            tokens = torch.cat((tokens, scores(tokens)[:, -1].argmax(-1, keepdim=True)), 1)
    return tokens


@pytest.mark.parametrize("name", GENERATING)
def test_greedy_generation_takes_the_likeliest_token_with_and_without_cache(name):
    model = shaken(make(architecture="decoder", **GENERATING[name]), bias=0.1)
    if name == "batch":
        model(words(5, LENGTH))
    prompt = words(BATCH, 4)
    want = likeliest(copy.deepcopy(model).eval(), prompt, 15)
    assert want.shape == (BATCH, LONGEST) and len(want[:, 4:].unique()) > 1
    for use_cache in (True, False):
        assert torch.equal(model.generate(prompt, 15, use_cache=use_cache), want)


@pytest.mark.parametrize("chunks", [(3, 1, 2), (1, 1, 1, 3), (6,), (1, 5)], ids=str)
@pytest.mark.parametrize("name", GENERATING)
def test_scores_with_a_cache_fed_in_chunks_are_those_of_the_whole_text(name, chunks):
    model = make(architecture="decoder", **GENERATING[name]).double().eval()
    tokens, cache = words(BATCH, 6), Cache(LONGEST)
    with torch.no_grad():
        got = torch.cat([model(part, cache=cache) for part in tokens.split(chunks, 1)], 1)
        assert cache.length == 6
        assert off(got, model(tokens)) <= 1e-12


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rotary", "hybrid", "b2t"])
def test_encoder_decoder_generates_the_same_with_and_without_cache(name):
    model = shaken(make(architecture="encoder-decoder", num_decoder_layers=3, **GENERATING[name]), bias=0.1)
    source, start, mask = words(BATCH, LENGTH), words(BATCH, 2), lengths_mask(LENGTH, 5, LENGTH, 8)
    still = copy.deepcopy(model).eval()
    want = likeliest(lambda tokens: still(source, tokens, mask), start, 9)
    assert len(want[:, 2:].unique()) > 1
    for use_cache in (True, False):
        assert torch.equal(model.generate(source, start, 9, source_mask=mask, use_cache=use_cache), want)
    assert torch.equal(model.generate(torch.where(mask, source, 0), start, 9, source_mask=mask), want)


def test_sampling_repeats_with_the_same_generator_state():
    model, prompt = make(architecture="decoder"), words(BATCH, 4)
    draw = lambda seed, **how: model.generate(  # noqa: E731
        prompt, 9, temperature=1.5, generator=torch.Generator().manual_seed(seed), **how
    )
    assert torch.equal(draw(1), draw(1))
    assert torch.equal(draw(1, use_cache=False), draw(1))
    assert not torch.equal(draw(1), draw(2))
    translator, source = make(architecture="encoder-decoder"), words(BATCH, LENGTH)
    draw = lambda seed: translator.generate(  # noqa: E731
        source, prompt, 9, temperature=1.5, generator=torch.Generator().manual_seed(seed)
    )
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_top_k_of_one_is_greedy():
    model, prompt = make(architecture="decoder"), words(BATCH, 4)
    assert torch.equal(model.generate(prompt, 9, temperature=2.0, top_k=1), model.generate(prompt, 9))
    assert not torch.equal(model.generate(prompt, 9, temperature=2.0, top_k=2), model.generate(prompt, 9))


@pytest.mark.parametrize("top_k", [None, 4, WORDS + 1])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_tokens_are_drawn_with_the_probabilities_of_temperature_and_top_k(temperature, top_k):
    """Each frequency within five standard deviations."""
    model, draws = make(architecture="decoder"), 4000
    prompt = words(1, 4)
    scores = model(prompt)[0, -1].detach().double() / temperature
    if top_k == 4:
        scores[scores.argsort()[:-4]] = -math.inf
    expected = scores.softmax(-1)
    drawn = model.generate(prompt.expand(draws, -1), 1, temperature=temperature, top_k=top_k)[:, -1]
    share = drawn.bincount(minlength=WORDS) / draws
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt()).all()
    assert expected.max() < 0.9


def test_generation_evaluates_and_leaves_every_mode_as_it_was():
    model, prompt = make(architecture="decoder", **DROPPING), words(BATCH, 4)
    want = likeliest(copy.deepcopy(model).eval(), prompt, 9)
    for training in (True, False):
        model.train(training)
        model.stack.layers[0].train(not training)
        modes = [m.training for m in model.modules()]
        assert torch.equal(model.generate(prompt, 9), want)
        assert [m.training for m in model.modules()] == modes
        with pytest.raises(ValueError, match="integer ids"):
            model.generate(prompt.float(), 9)
        assert [m.training for m in model.modules()] == modes


def test_no_steps_give_the_prompt_back():
    prompt = words(BATCH, 4)
    assert torch.equal(make(architecture="decoder").generate(prompt, 0), prompt)
