"""Saved, copied, pickled, made without values, started again: a model is what its state says."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import (
    IMAGES,
    Tensors,
    example,
    make,
    make_any,
    off,
)
from torch import nn

from normlab import PLACEMENTS, TransformerConfig, build
from normlab.models import ARCHITECTURES, POSITIONS

# ---- saving, compiling, exporting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_state_dict_makes_another_model_the_same(architecture, norm):
    settings = {"norm": norm, "causal_statistics": "running"}
    arguments = example(architecture)
    one, other = make_any(architecture, **settings), make_any(architecture, **settings)
    one(*arguments)  # moves running statistics, where there are any
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    one, other = one.eval(), other.eval()
    assert off(other(*arguments), one(*arguments)) > 0.01
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(other(*arguments), one(*arguments))


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "swiglu"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_whole_models_can_be_pickled_and_copied(architecture, activation):
    model, arguments = make_any(architecture, activation=activation), example(architecture)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(*arguments), model(*arguments))
        with torch.no_grad():
            next(twin.parameters()).add_(1)
        assert not torch.equal(twin(*arguments), model(*arguments))


def test_tied_embeddings_stay_tied_through_copy_and_load():
    for architecture in ("decoder", "encoder-decoder"):
        model = make(architecture=architecture, tie_embeddings=True)
        twin = copy.deepcopy(model)
        twin.load_state_dict(make(architecture=architecture, tie_embeddings=True).state_dict())
        embedding = twin.embedding if architecture == "decoder" else twin.target
        assert twin.head.weight is embedding.token.weight
        assert twin.head.weight is not model.head.weight


def emptied(model: nn.Module) -> nn.Module:
    """Storage for a model without values; what comes by chance might be right."""
    model.to_empty(device="cpu")
    with torch.no_grad():
        for held in (*model.parameters(), *model.buffers()):
            held.fill_(math.nan if held.is_floating_point() else 13)
    return model


def on_meta(config: TransformerConfig) -> nn.Module:
    with torch.device("meta"):
        return build(config)


WITHOUT_VALUES: dict[str, Callable[[TransformerConfig, Tensors], nn.Module]] = {
    "from meta": lambda config, state: loaded(emptied(on_meta(config)), state),
    "emptied": lambda config, state: loaded(emptied(build(config)), state),
    "assigned": lambda config, state: loaded(on_meta(config), state, assign=True),
    "assigned and moved": lambda config, state: loaded(on_meta(config), state, assign=True).to("cpu"),
    "emptied on meta": lambda config, state: loaded(emptied(build(config).to("meta")), state),
}


def loaded(model: nn.Module, state: Tensors, assign: bool = False) -> nn.Module:
    model.load_state_dict({name: t.clone() for name, t in state.items()}, assign=assign)
    return model


def assert_right_without_values(architecture: str, way: str, **settings: Any) -> None:
    model, arguments = make_any(architecture, **settings), example(architecture)
    model(*arguments)  # moves running statistics, where there are any
    other = WITHOUT_VALUES[way](model.config, model.state_dict())
    assert not any(t.is_meta for t in (*other.parameters(), *other.buffers()))
    for mode in (False, True):
        want, got = model.train(mode)(*arguments), other.train(mode)(*arguments)
        assert torch.isfinite(want).all() and torch.equal(got, want)


@pytest.mark.parametrize("way", WITHOUT_VALUES)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_made_without_values_is_right_once_a_state_is_loaded(architecture, positions, way):
    assert_right_without_values(architecture, way, positions=positions, dim=24)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("norm", ["derf", "batch", "power"])
def test_every_placement_made_without_values_is_right_once_a_state_is_loaded(norm, placement):
    settings = {"norm": norm, "placement": placement, "causal_statistics": "running", "embedding_norm": True}
    assert_right_without_values("encoder-decoder", "from meta", **settings)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_pass_on_meta_leaves_the_tables_of_positions_as_they_were(positions):
    model, (tokens, mask) = make(positions=positions, dim=24), example("encoder")
    want, state = model(tokens, mask), model.state_dict()
    assert model.to("meta")(tokens.to("meta"), mask.to("meta")).is_meta
    loaded(emptied(model), state)
    with torch.inference_mode():
        assert torch.equal(model(tokens, mask), want)
    model(tokens, mask).sum().backward()


STARTS: dict[str, dict[str, Any]] = {
    **{name: {"placement": name} for name in PLACEMENTS},
    "learned, tied": {"positions": "learned", "tie_embeddings": True, "placement": "deepnorm"},
    "swiglu, grouped": {"activation": "swiglu", "positions": "rotary", "num_heads": 6, "num_kv_heads": 2},
}


def assert_starts_again(architecture: str, reset: Callable[[Any], Any], **settings: Any) -> None:
    """Constants bit for bit; what is drawn, with the spread it had. Matrices are large: a spread is known to 10 %."""
    sizes = {"dim": 96, "num_heads": 4, "ffn_dim": 101, "num_layers": 2, "vocab_size": 101, "max_length": 97}
    more = {**IMAGES, "patch_size": 6, "num_classes": 97} if architecture in ("vision", "convolution") else {}
    config = TransformerConfig(architecture=architecture, **{**sizes, "norm": "derf", **more, **settings})
    start, again = build(config).state_dict(), emptied(on_meta(config))
    reset(again)
    for name, value in again.state_dict().items():
        if value.dim() < 2 or name.endswith("head_scale"):
            assert torch.equal(value, start[name]), name
        else:
            parts = 3 if name.endswith("qkv.weight") else 2 if name.endswith("kv.weight") else 1
            for new, old in zip(value.chunk(parts), start[name].chunk(parts), strict=True):
                assert 0.9 < new.std() / old.std() < 1.1 and not torch.equal(new, old), name


@pytest.mark.parametrize("name", STARTS)
def test_a_model_starts_again_as_it_was_made(name):
    assert_starts_again("encoder-decoder", lambda model: model.reset_parameters(), **STARTS[name])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_starts_again_as_it_was_made(architecture):
    norm = {"norm": "batch", "causal_statistics": "running"}
    assert_starts_again(architecture, lambda model: model.reset_parameters(), **norm)


def test_a_model_starts_again_when_every_module_is_asked_from_the_inside_out():
    ask = lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None  # noqa: E731
    assert_starts_again("encoder-decoder", lambda model: model.apply(ask), placement="normformer", positions="learned")
