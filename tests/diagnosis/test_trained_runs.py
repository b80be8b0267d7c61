"""Diagnosis of models that were really made ill, and of healthy ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from named_findings import named, only
from torch import nn

import normlab
from normlab.diagnosis import diagnose


@cache
def text() -> torch.Tensor:
    return torch.tensor(list("\n".join(topics.topics[k] for k in sorted(topics.topics)).encode()[:100_000]))


def sample(draw: torch.Generator, batch: int, length: int) -> torch.Tensor:
    start = torch.randint(0, len(text()) - length, (batch,), generator=draw)
    return text()[start[:, None] + torch.arange(length)]


class Tagger(nn.Module):
    """An encoder that guesses hidden tokens."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.encoder = normlab.build(architecture="encoder", **settings)
        self.head = nn.Linear(settings["dim"], 256)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens, mask))


def next_token(model: nn.Module, draw: torch.Generator) -> torch.Tensor:
    tokens = sample(draw, 8, 25)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def hidden_token(model: nn.Module, draw: torch.Generator) -> torch.Tensor:
    """About 60 % of the cells are padding."""
    tokens = sample(draw, 16, 24)
    mask = torch.arange(24) < torch.randint(5, 15, (16, 1), generator=draw)
    hidden = (torch.rand(tokens.shape, generator=draw) < 0.2) & mask
    hidden[:, 0] = True
    scores = model(tokens.masked_fill(~mask, 0).masked_fill(hidden, 1), mask)
    return F.cross_entropy(scores[hidden], tokens[hidden])


def noisy_pattern(model: nn.Module, draw: torch.Generator) -> torch.Tensor:
    patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    kind = torch.randint(0, 10, (32,), generator=draw)
    return F.cross_entropy(model(patterns[kind] + torch.randn(32, 1, 8, 8, generator=draw)), kind)


def train(
    folder: Path, model: nn.Module, loss_of: Callable[[nn.Module, torch.Generator], torch.Tensor], *, lr: float,
    steps: int, seed: int = 0, every: int = 2, before: Callable[[int, nn.Module], None] = lambda step, model: None,
) -> Path:  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    with normlab.watch(model, optimizer=optimizer, out=folder, every=every, max_overhead=None) as watch:
        for step in range(1, steps + 1):
            with torch.no_grad():
                before(step, model)
            loss = loss_of(model, draw)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    return folder


def decoder(seed: int, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    return normlab.build(**{"architecture": "decoder", "dim": 16, "num_layers": 4, "max_length": 32, **settings})


@pytest.fixture(autouse=True)
def _one_thread(threads):
    threads(1)


@pytest.mark.parametrize("seed", (0, 1))
def test_deep_post_norm_without_warmup_is_named(tmp_path, seed):
    model = decoder(seed, num_layers=18, placement="post")
    found = named(train(tmp_path / "a", model, next_token, lr=3e-3, steps=72, seed=seed, every=3))
    assert found["vanishing-gradient"].site == "stack.layers.0"
    assert found["vanishing-gradient"].steps[1] == 72
    assert any('"deepnorm"' in t for t in found["vanishing-gradient"].try_)


def test_the_same_depth_with_deepnorm_is_healthy(tmp_path):
    model = decoder(0, num_layers=18, placement="deepnorm")
    run = train(tmp_path / "a", model, next_token, lr=3e-3, steps=72, every=3)
    assert not diagnose(run), str(diagnose(run))


@pytest.mark.parametrize("seed", (0, 1))
def test_pre_norm_without_a_final_norm_is_named(tmp_path, seed):
    model = decoder(seed, final_norm=False)
    found = only(train(tmp_path / "a", model, next_token, lr=2e-3, steps=40, seed=seed), "missing-final-norm")
    assert found.site == "stack.layers.3" and found.steps[1] == 40


class Maskless(nn.Module):
    """BatchNorm that is not given the mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = normlab.BatchNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("seed", (0, 1))
def test_batch_norm_over_padding_is_named_and_masked_is_not(tmp_path, seed):
    settings = {"dim": 16, "num_layers": 2, "max_length": 32}
    torch.manual_seed(seed)
    maskless = Tagger(norm=Maskless, **settings)
    found = only(train(tmp_path / "a", maskless, hidden_token, lr=2e-3, steps=60, seed=seed), "padding-contamination")
    assert found.site is not None and found.site.endswith("norm.inner") and found.steps[1] == 60
    masked = Tagger(norm="batch", **settings)
    run = train(tmp_path / "b", masked, hidden_token, lr=2e-3, steps=60, seed=seed)
    assert not diagnose(run), str(diagnose(run))


@pytest.mark.parametrize("every", (1, 2))
def test_a_gain_blown_up_by_hand_is_named_with_its_step(tmp_path, every):
    def blow_up(step: int, model: Any) -> None:
        if step == 20:
            model.stack.layers[2].feedforward_place.norm.weight *= 100

    run = train(tmp_path / "a", decoder(0), next_token, lr=2e-3, steps=40, every=every, before=blow_up)
    found = diagnose(run).findings[0]
    assert found.rule == "gain-explosion" and found.site == "stack.layers.2.feedforward_place.norm"
    assert found.steps == (20 - every, 20)


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_a_learning_rate_ten_times_too_high_is_named(tmp_path, seed):
    run = train(tmp_path / "a", decoder(seed), next_token, lr=1e-1, steps=60, seed=seed)
    found = diagnose(run).findings[0]
    assert found.rule == "learning-rate-high" and found.steps[0] == 1


def test_a_learning_rate_far_too_low_is_named(tmp_path):
    run = train(tmp_path / "a", decoder(0, num_layers=2), next_token, lr=1e-7, steps=60)
    assert only(run, "learning-rate-low").steps == (1, 60)


def test_a_nan_in_the_weights_is_named_with_block_and_step(tmp_path):
    def break_weight(step: int, model: Any) -> None:
        if step == 40:
            model.stack.layers[3].feedforward.up.weight[0, 0] = math.nan

    run = train(tmp_path / "a", decoder(0), next_token, lr=2e-3, steps=44, every=3, before=break_weight)
    found = only(run, "nonfinite")
    assert found.site == "stack.layers.3" and found.steps[1] == 40 and "Nothing had grown" in found.why


def test_a_network_without_norms_explodes(tmp_path):
    found = named(train(tmp_path / "a", decoder(0, num_layers=8, placement="none"), next_token, lr=1e-3, steps=40))
    assert found["exploding-gradient"].site == "stack.layers.0"
    assert "attention-logit-growth" in found["exploding-gradient"].why


def test_batch_norm_with_a_handful_of_cells_is_unsteady(tmp_path):
    def one_image(model: nn.Module, draw: torch.Generator) -> torch.Tensor:
        kind = torch.randint(0, 10, (1,), generator=draw)
        return F.cross_entropy(model(torch.randn(1, 1, 8, 8, generator=draw) * (1 + kind)), kind)

    torch.manual_seed(0)
    model = normlab.build(architecture="vision", norm="batch", dim=16, num_layers=2, patch_size=4)
    found = named(train(tmp_path / "a", model, one_image, lr=1e-3, steps=90))
    assert {"unstable-batch-statistics", "train-inference-gap"} <= set(found)


@pytest.mark.parametrize("seed", (0, 1, 2))
@pytest.mark.parametrize("norm", ("layer", "rms"))
def test_a_healthy_decoder_has_no_finding(tmp_path, norm, seed):
    run = train(tmp_path / "a", decoder(seed, norm=norm), next_token, lr=2e-3, steps=60, seed=seed)
    assert not diagnose(run), str(diagnose(run))


@pytest.mark.parametrize("seed", (0, 1))
def test_a_healthy_image_model_with_batch_norm_has_no_finding(tmp_path, seed):
    torch.manual_seed(seed)
    model = normlab.build(architecture="vision", norm="batch", dim=16, num_layers=3)
    run = train(tmp_path / "a", model, noisy_pattern, lr=2e-3, steps=60, seed=seed)
    assert not diagnose(run), str(diagnose(run))


class Foreign(nn.Module):
    """A decoder of torch's own layers."""

    def __init__(self, final_norm: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(
            layer, 4, nn.LayerNorm(16) if final_norm else None, enable_nested_tensor=False
        )
        self.head = nn.Linear(16, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.embedding(tokens), mask=causal, is_causal=True))


@pytest.mark.parametrize("final_norm", (True, False))
def test_a_model_of_other_makers_is_diagnosed_alike(tmp_path, final_norm):
    torch.manual_seed(0)
    run = train(tmp_path / "a", Foreign(final_norm), next_token, lr=2e-3, steps=40)
    if final_norm:
        assert not diagnose(run), str(diagnose(run))
    else:
        assert only(run, "missing-final-norm").site == "body.layers.3"
