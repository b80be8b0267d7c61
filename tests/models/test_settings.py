"""Arguments and settings that are refused, and in which words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import (
    BATCH,
    LENGTH,
    LONGEST,
    SIZES,
    make,
    make_any,
    words,
)
from torch import nn

from normlab import TransformerConfig, build
from normlab.models import Cache

# ---- bad input ---------------------------------------------------------------------------------------------------------


def bad_calls() -> dict[str, tuple[Callable[[], Any], str]]:
    """What is done -> what must be said."""
    tokens = words(BATCH, LENGTH)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    short = torch.ones(BATCH, LENGTH - 1, dtype=torch.bool)

    def run(architecture: str, *arguments: Any) -> Callable[[], Any]:
        return lambda: make_any(architecture)(*arguments)

    def generate(*arguments: Any, **how: Any) -> Callable[[], Any]:
        return lambda: make(architecture="decoder").generate(*arguments, **how)

    def translate(*arguments: Any, **how: Any) -> Callable[[], Any]:
        return lambda: make(architecture="encoder-decoder").generate(*arguments, **how)

    def later_mask() -> None:
        model, cache = make(architecture="decoder"), Cache(LONGEST)
        model(tokens, cache=cache)
        model(tokens[:, :1], mask[:, :1], cache)

    return {
        "mask shape": (run("encoder", tokens, short), r"tokens' shape \(3, 11\).*got torch.bool of shape \(3, 10\)"),
        "mask dtype": (run("encoder", tokens, mask.float()), "mask must be boolean with True = real.*got torch.float32"),
        "mask of ints": (run("decoder", tokens, mask.long()), "mask must be boolean.*got torch.int64"),
        "source mask": (run("encoder-decoder", tokens, tokens, short), r"tokens' shape \(3, 11\)"),
        "target mask": (run("encoder-decoder", tokens, tokens, mask, short), r"tokens' shape \(3, 11\)"),
        "mask and empty cache": (run("decoder", tokens, mask, Cache(LONGEST)), "a mask or a cache, not both"),
        "mask and full cache": (later_mask, "a mask or a cache, not both"),
        "too long": (run("encoder", words(1, 20)), "20 tokens is longer than max_length=19"),
        "target too long": (run("encoder-decoder", tokens, words(3, 20)), "20 tokens is longer than max_length=19"),
        "vectors for tokens": (run("encoder", torch.randn(3, 11)), r"integer ids of shape \(B, L\), got torch.float32"),
        "one text": (run("decoder", words(7)), r"integer ids of shape \(B, L\).*shape \(7,\)"),
        "mask for tokens": (run("decoder", mask), "integer ids.*got torch.bool"),
        "flat images": (run("vision", torch.randn(3, 108)), r"\(B, 3, 6, 6\) as configured, got \(3, 108\)"),
        "image channels": (run("vision", torch.randn(3, 1, 6, 6)), r"\(B, 3, 6, 6\) as configured, got \(3, 1, 6, 6\)"),
        "image size": (run("convolution", torch.randn(3, 3, 6, 8)), r"\(B, 3, 6, 6\).*got \(3, 3, 6, 8\)"),
        "top_k 0": (generate(tokens, 2, temperature=1.0, top_k=0), "top_k must be at least 1, got 0"),
        "temperature": (generate(tokens, 2, temperature=-0.5), "temperature must be at least 0.*got -0.5"),
        "too many steps": (generate(tokens, 9), "9 more tokens make 20; they must fit max_length=19"),
        "negative steps": (generate(tokens, -1), "steps be at least 0"),
        "float prompt": (generate(tokens.float(), 2), "integer ids"),
        "flat prompt": (generate(words(4), 2), r"\(B, L\).*\(4,\)"),
        "empty prompt": (generate(words(2, 0), 2), "at least one"),
        "translate top_k 0": (translate(tokens, tokens, 2, temperature=1.0, top_k=0), "top_k must be at least 1"),
        "translate steps": (translate(tokens, tokens, 9), "must fit max_length=19"),
        "translate flat start": (translate(tokens, words(3), 2), r"\(B, L\).*\(3,\)"),
    }  # fmt: skip


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments_are_refused_in_words(name):
    call, said = bad_calls()[name]
    with pytest.raises((ValueError, TypeError), match=said):
        call()


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"num_heads": 5}, "num_heads=5 does not divide dim=22"),
    "kv heads": ({"dim": 24, "num_heads": 6, "num_kv_heads": 4}, "num_kv_heads=4 does not divide num_heads=6"),
    "odd rotary": ({"positions": "rotary"}, "even width per head, got 11"),
    "norm": ({"norm": "layr"}, "unknown norm 'layr'. Did you mean 'layer'"),
    "placement": ({"placement": "deepnrm"}, "unknown placement 'deepnrm'. Did you mean 'deepnorm'"),
    "architecture": ({"architecture": "decodr"}, "unknown architecture 'decodr'. Did you mean 'decoder'"),
    "positions": ({"positions": "rotery"}, "unknown positions 'rotery'. Did you mean 'rotary'"),
    "activation": ({"activation": "swigl"}, "unknown activation 'swigl'. Did you mean 'swiglu'"),
    "qk_norm": ({"qk_norm": "heads"}, "unknown qk_norm 'heads'. Did you mean 'head'"),
    "statistics": ({"causal_statistics": "positions"}, "unknown causal_statistics.*Did you mean 'position'"),
    "setting": ({"num_layer": 3}, "unknown setting 'num_layer'. Did you mean 'num_layers'"),
    "zero layers": ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
    "dropout": ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    "batch decoder": (
        {"architecture": "decoder", "norm": "batch"},
        "(?s)one channel of all samples and positions.*later ones.*causal_statistics='position' or causal_statistics='running'"
        r".*one token \(layer, rms, scale, dyt, derf\)",
    ),
    "power decoder": (
        {"architecture": "decoder", "norm": "power", "causal_statistics": "position"},
        "Use causal_statistics='running', or a norm",
    ),
    "group translator": (
        {"architecture": "encoder-decoder", "norm": "group", "causal_statistics": "running"},
        "a group of channels of one sample.*Use causal_statistics='position', or a norm",
    ),
    **{
        f"instance {statistics}": (
            {"architecture": "decoder", "norm": "instance", "causal_statistics": statistics},
            r"one channel of one sample.*later ones in training. Use a norm that looks at one token",
        )
        for statistics in (None, "position", "running")
    },
    "qk and hybrid": ({"placement": "hybrid-norm", "qk_norm": "head"}, "already normalizes queries and keys"),
    "hybrid convolution": ({"architecture": "convolution", "placement": "hybrid-norm"}, "a convolution has none"),
    "normformer convolution": ({"architecture": "convolution", "placement": "normformer"}, "a convolution has none"),
    "qk convolution": ({"architecture": "convolution", "qk_norm": "head"}, "qk_norm belongs to attention"),
    "tied encoder": ({"tie_embeddings": True}, "'encoder' has none there"),
    "tied vision": ({"architecture": "vision", "tie_embeddings": True}, "'vision' has none there"),
    "own ends": ({"placement": "peri", "final_norm": False}, "'peri' has its own ends"),
    "patches": ({"architecture": "vision", "image_size": 7}, "patch_size=2 does not divide image_size=7"),
    "many patches": ({"architecture": "vision", "image_size": 10}, "25 patches is longer than max_length=19"),
    "options of a factory": ({"norm": nn.LayerNorm, "norm_options": {"eps": 1e-6}}, "put them into your norm factory"),
    "norm option": ({"norm_options": {"epz": 1}}, "unknown norm option 'epz'. Did you mean 'eps'"),
    "placement option": ({"placement": "mix-ln", "placement_options": {"post_shar": 0.5}}, "Did you mean 'post_share'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_refused_in_words(name):
    settings, said = BAD_SETTINGS[name]
    with pytest.raises((ValueError, TypeError), match=said):
        build(**{**SIZES, **settings})


def test_config_and_settings_make_the_same_model_but_not_together():
    config = TransformerConfig(**SIZES, norm="rms")
    assert repr(build(config)) == repr(build(**SIZES, norm="rms")) != repr(build(**SIZES))
    assert TransformerConfig.from_dict(dataclasses.asdict(config)) == config
    with pytest.raises(ValueError, match="a config or settings, not both; got settings dim"):
        build(config, dim=3)


@pytest.mark.parametrize("architecture", ["vision", "convolution"])
def test_a_norm_on_embedded_images_is_built_or_refused_but_not_forgotten(architecture):
    plain = make_any(architecture)
    try:
        asked = make_any(architecture, embedding_norm=True)
    except ValueError as error:
        assert "embedding_norm" in str(error)
    else:
        assert len(list(asked.parameters())) > len(list(plain.parameters()))


def test_a_convolution_has_no_heads_to_divide_its_width():
    model = build(TransformerConfig(architecture="convolution", dim=7, num_layers=1))
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)
