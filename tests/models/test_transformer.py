"""Whole models: equal to torch's and Hugging Face's with the same weights, and usable as users expect of a module.

The oracles are implementations that others wrote. Their parameters are translated to our names once, by a function that
serves both ways: on weights it fills our model, on gradients it gives what ours must be. Every parameter is random, the
norms' gains and biases too, and so is the upstream gradient; sizes are primes where heads let them be.

How close is close: an error is measured against the largest value of its tensor. A result passes through about ten sums
of at most a hundred terms, each of which adds a few roundings of 2^-24 to each side, and the norms on the way back
amplify what came before: up to 1e-5 in float32 here, so 3e-5 is allowed; in float64 the same comes to 3e-14, and 1e-12 is
allowed, where nothing but a wrong formula is larger.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import os
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

import normlab
from normlab import NORMS, PLACEMENTS, TransformerConfig, build
from normlab.models import ARCHITECTURES, POSITIONS, Cache

CLOSE = {torch.float32: 3e-5, torch.float64: 1e-12}
BATCH, LENGTH, DIM, HEADS, FFN, WORDS, LONGEST = 3, 11, 22, 2, 29, 17, 19
SIZES: dict[str, Any] = {
    "dim": DIM, "num_heads": HEADS, "ffn_dim": FFN, "num_layers": 2, "vocab_size": WORDS, "max_length": LONGEST,
}  # fmt: skip
IMAGES: dict[str, Any] = {"image_size": 6, "patch_size": 2, "channels": 3, "num_classes": 5}


# ---- tools -----------------------------------------------------------------------------------------------------------


def shaken(module: Any, bias: float = 0.5) -> Any:
    """The module with random parameters: matrices that keep variance, gains around 1, biases around 0."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.dim() >= 2 and not name.endswith("head_scale"):
                p.normal_(std=p[0].numel() ** -0.5)
            elif name.endswith("bias"):
                p.normal_(std=bias)
            else:
                p.uniform_(0.5, 1.5)
    return module


def make(**settings: Any) -> Any:
    return shaken(build(TransformerConfig(**{**SIZES, **settings})))


def words(*shape: int) -> Tensor:
    return torch.randint(WORDS, shape)


def lengths_mask(length: int, *lengths: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def example(architecture: str) -> tuple[Tensor, ...]:
    """Arguments of a model's forward, with the masks it takes."""
    source, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    if architecture in ("vision", "convolution"):
        return (torch.randn(BATCH, 3, 6, 6),)
    return (source, words(BATCH, 5), mask) if architecture == "encoder-decoder" else (source, mask)


def make_any(architecture: str, **settings: Any) -> Any:
    return make(
        architecture=architecture, **{**(IMAGES if architecture in ("vision", "convolution") else {}), **settings}
    )


def off(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert got.shape == want.shape, f"{tuple(got.shape)} and {tuple(want.shape)}"
    assert torch.isfinite(got).all() and torch.isfinite(want).all()
    assert want.any(), "nothing but zeros to compare with"
    return ((got - want).abs().max() / want.abs().max()).item()


def assert_same(got: Mapping[str, Tensor], want: Mapping[str, Tensor], limit: float) -> None:
    assert got.keys() == want.keys()
    wrong = {name: error for name in want if not (error := off(got[name].detach(), want[name].detach())) <= limit}
    assert not wrong, f"more than {limit} apart: {wrong}"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def outcome(model: nn.Module, call: Callable[[], Tensor], upstream: Tensor | None = None) -> dict[str, Tensor]:
    """The output and every parameter's gradient, for a fixed upstream gradient."""
    model.zero_grad()
    y = call()
    if upstream is None:
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    y.backward(upstream)
    found = {name: g.clone() for name, g in gradients(model).items()}
    assert found.keys() == dict(model.named_parameters()).keys(), "a parameter without a gradient"
    return {"output": y.detach(), **found}


# ---- torch.nn ----------------------------------------------------------------------------------------------------------

Tensors = Mapping[str, Tensor]
ENCODER_LAYER = {
    "attention.qkv": "self_attn.in_proj",
    "attention.out": "self_attn.out_proj",
    "attention_place.norm": "norm1",
    "feedforward.up": "linear1",
    "feedforward.down": "linear2",
    "feedforward_place.norm": "norm2",
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "cross.out": "multihead_attn.out_proj",
    "cross_place.norm": "norm2",
    "feedforward_place.norm": "norm3",
}


def moved(theirs: Tensors, names: Mapping[str, str], source: str, target: str) -> dict[str, Tensor]:
    """Weights and biases of modules under our names; ``names`` is ours -> theirs."""
    return {
        f"{target}{a}.{kind}": theirs[f"{source}{b}.{kind}"]
        for a, b in names.items()
        for kind in ("weight", "bias")
        if f"{source}{b}.{kind}" in theirs
    }


def from_torch_stack(theirs: Tensors, source: str, target: str, layer: Mapping[str, str]) -> dict[str, Tensor]:
    """An nn.TransformerEncoder or nn.TransformerDecoder under the names of our Stack."""
    theirs = {name.replace("in_proj_", "in_proj."): t for name, t in theirs.items()}
    found = moved(theirs, {"ends.norm": "norm"}, source, target)
    for i in range(
        1 + max(int(n.removeprefix(source).split(".")[1]) for n in theirs if n.startswith(f"{source}layers"))
    ):
        a, b = f"{target}layers.{i}.", f"{source}layers.{i}."
        found |= moved(theirs, layer, b, a)
        if layer is DECODER_LAYER:
            for kind in ("weight", "bias"):
                whole = theirs[f"{b}multihead_attn.in_proj.{kind}"]
                found |= {f"{a}cross.q.{kind}": whole[:DIM], f"{a}cross.kv.{kind}": whole[DIM:]}
    return found


def torch_layer(norm_first: bool, activation: str, **sizes: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        DIM, HEADS, FFN, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first, **sizes
    )


def torch_encoder(norm_first: bool, final: bool, activation: str, num_layers: int = 2) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(
        torch_layer(norm_first, activation),
        num_layers,
        norm=nn.LayerNorm(DIM) if final else None,
        enable_nested_tensor=not norm_first,
    )


def assert_stacks_agree(ours: Any, theirs: nn.Module, ours_of: Callable[[Tensors], Tensors], x: Tensor, mask: Tensor | None,
                   call: Mapping[str, Any] = MappingProxyType({})) -> None:  # fmt: skip
    """A Stack and torch's encoder, on real positions."""
    limit = CLOSE[x.dtype]
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    upstream = torch.randn_like(x) * real[..., None]
    ours.load_state_dict(ours_of(dict(theirs.named_parameters())))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    padding = None if mask is None else ~mask
    want = outcome(theirs, lambda: theirs(b, src_key_padding_mask=padding, **call), upstream)
    got = outcome(ours, lambda: ours(a, mask), upstream)
    assert off(got.pop("output")[real], want.pop("output")[real]) <= limit
    assert_same(got, ours_of(want), limit)
    assert off(a.grad[real], b.grad[real]) <= limit
    if not theirs.training:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces its nested tensors
            fast = theirs(x, src_key_padding_mask=padding, **call)
        assert off(ours(x, mask)[real], fast[real]) <= limit


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("final", [False, True], ids=["bare", "final-norm"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_encoder_stack_equals_torchs(placement, final, activation, training, padded, dtype):
    theirs = shaken(torch_encoder(placement == "pre", final, activation)).to(dtype).train(training)
    ours = make(placement=placement, final_norm=final, activation=activation).stack.to(dtype).train(training)
    x = torch.randn(BATCH, LENGTH, DIM, dtype=dtype)
    mask = lengths_mask(LENGTH, 7, LENGTH, 4) if padded else None
    assert_stacks_agree(ours, theirs, lambda t: from_torch_stack(t, "", "", ENCODER_LAYER), x, mask)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_one_layer_equals_torchs_encoder_layer(placement, dtype):
    theirs = shaken(torch_layer(placement == "pre", "gelu")).to(dtype)
    ours = make(placement=placement, final_norm=False, num_layers=1).stack.to(dtype)
    assert_stacks_agree(
        ours,
        theirs,
        lambda t: from_torch_stack({f"layers.0.{n}": v for n, v in t.items()}, "", "", ENCODER_LAYER),
        torch.randn(BATCH, LENGTH, DIM, dtype=dtype),
        lengths_mask(LENGTH, LENGTH, 2, 5),
    )


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_decoder_stack_equals_torchs_encoder_under_a_causal_mask(placement, training, padded, dtype):
    theirs = shaken(torch_encoder(placement == "pre", placement == "pre", "relu")).to(dtype).train(training)
    ours = make(architecture="decoder", placement=placement, activation="relu").stack.to(dtype).train(training)
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert_stacks_agree(
        ours,
        theirs,
        lambda t: from_torch_stack(t, "", "", ENCODER_LAYER),
        torch.randn(BATCH, LENGTH, DIM, dtype=dtype),
        lengths_mask(LENGTH, 7, LENGTH, 4) if padded else None,
        {"mask": future, "is_causal": True},
    )


def sinusoids(length: int, dim: int) -> Tensor:
    """As the Transformer paper writes them, number by number."""
    angle = lambda p, i: p / 10000 ** (2 * (i // 2) / dim)  # noqa: E731
    return torch.tensor(
        [[math.cos(angle(p, i)) if i % 2 else math.sin(angle(p, i)) for i in range(dim)] for p in range(length)],
        dtype=torch.float64,
    ).float()


class TorchTranslator(nn.Module):
    """nn.Transformer with what it leaves to its user: embeddings, sinusoidal positions and the output matrix."""

    def __init__(self, norm_first: bool, activation: str) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, DIM), nn.Embedding(WORDS, DIM)
        self.transformer = nn.Transformer(
            DIM, HEADS, 2, 1, FFN, 0.0, activation=activation, batch_first=True, norm_first=norm_first
        )
        self.head = nn.Linear(DIM, WORDS, bias=False)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        embedded = []
        for table, tokens in ((self.source, source), (self.target, target)):
            x = table(tokens) * math.sqrt(DIM)
            embedded.append(x + sinusoids(tokens.shape[1], DIM).to(x.dtype))
        negated = [None if m is None else ~m for m in (source_mask, target_mask)]
        y = self.transformer(
            *embedded,
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=negated[0],
            memory_key_padding_mask=negated[0],
            tgt_key_padding_mask=negated[1],
        )
        return self.head(y)


def from_translator(theirs: Tensors) -> dict[str, Tensor]:
    return {
        "source.token.weight": theirs["source.weight"],
        "target.token.weight": theirs["target.weight"],
        "head.weight": theirs["head.weight"],
        **from_torch_stack(theirs, "transformer.encoder.", "encoder.", ENCODER_LAYER),
        **from_torch_stack(theirs, "transformer.decoder.", "decoder.", DECODER_LAYER),
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_encoder_decoder_equals_torchs_transformer_from_tokens_to_scores(placement, activation, padded, dtype):
    theirs = shaken(TorchTranslator(placement == "pre", activation)).to(dtype)
    ours = make(
        architecture="encoder-decoder",
        placement=placement,
        activation=activation,
        final_norm=True,
        num_decoder_layers=1,
    ).to(dtype)
    ours.load_state_dict(from_translator(dict(theirs.named_parameters())))
    source, target = words(BATCH, LENGTH), words(BATCH, 7)
    masks = (lengths_mask(LENGTH, 5, LENGTH, 8), lengths_mask(7, 7, 3, 5)) if padded else (None, None)
    real = torch.ones(BATCH, 7, dtype=torch.bool) if masks[1] is None else masks[1]
    upstream = torch.randn(BATCH, 7, WORDS, dtype=dtype) * real[..., None]
    want = outcome(theirs, lambda: theirs(source, target, *masks), upstream)
    got = outcome(ours, lambda: ours(source, target, *masks), upstream)
    assert off(got.pop("output")[real], want.pop("output")[real]) <= CLOSE[dtype]
    assert_same(got, from_translator(want), CLOSE[dtype])


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_vision_equals_a_strided_convolution_and_torchs_encoder(placement):
    ours = make_any("vision", placement=placement, positions="learned").double()
    stack = torch_encoder(placement == "pre", placement == "pre", "gelu").double()
    patches = nn.Conv2d(3, DIM, 2, stride=2).double()
    names = from_torch_stack(dict(stack.named_parameters()), "", "stack.", ENCODER_LAYER)
    with torch.no_grad():
        for name, p in names.items():
            p.copy_(ours.state_dict()[name])
        patches.weight.copy_(ours.patch.weight.view_as(patches.weight))
        patches.bias.copy_(ours.patch.bias)
    images = torch.randn(BATCH, 3, 6, 6, dtype=torch.float64)
    got = outcome(ours, lambda: ours(images))
    x = patches(images).flatten(2).transpose(1, 2) + ours.position.weight[:9].detach()
    scores = F.linear(stack(x).mean(1), ours.head.weight.detach(), ours.head.bias.detach())
    assert off(got["output"], scores.detach()) <= 1e-12
    scores.backward(torch.randn(scores.shape, generator=torch.Generator().manual_seed(7)).double())
    want = from_torch_stack(gradients(stack), "", "stack.", ENCODER_LAYER)
    want["patch.weight"], want["patch.bias"] = patches.weight.grad.flatten(1), patches.bias.grad
    assert_same({name: got[name] for name in want}, want, 1e-12)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_convolution_net_equals_its_formula_on_channels_first(placement):
    ours = make_any("convolution", placement=placement, norm="group").double()
    images = torch.randn(BATCH, 3, 6, 6, dtype=torch.float64)
    p = dict(ours.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        return F.group_norm(x, math.gcd(DIM, 32), p[f"{name}.weight"], p[f"{name}.bias"])

    def matrix(x: Tensor, name: str) -> Tensor:
        return F.conv2d(x, p[f"{name}.weight"][:, :, None, None], p[f"{name}.bias"])

    def formula() -> Tensor:
        x = F.conv2d(images, p["stem.weight"], p["stem.bias"], padding=1)
        for i in range(2):
            at = f"stack.layers.{i}."
            convolve = lambda h, at=at: matrix(  # noqa: E731
                F.gelu(F.conv2d(h, p[f"{at}attention.conv.weight"], p[f"{at}attention.conv.bias"], padding=1)),
                f"{at}attention.out",
            )
            feed = lambda h, at=at: matrix(F.gelu(matrix(h, f"{at}feedforward.up")), f"{at}feedforward.down")  # noqa: E731
            for sublayer, place in ((convolve, "attention_place"), (feed, "feedforward_place")):
                if placement == "pre":
                    x = x + sublayer(norm(x, f"{at}{place}.norm"))
                else:
                    x = norm(x + sublayer(x), f"{at}{place}.norm")
        x = norm(x, "stack.ends.norm") if placement == "pre" else x
        return F.linear(x.mean((2, 3)), p["head.weight"], p["head.bias"])

    assert_same(outcome(ours, lambda: ours(images)), outcome(ours, formula), 1e-12)


# ---- Hugging Face ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def huggingface() -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def joined(theirs: Tensors, source: str, parts: tuple[str, ...], kind: str) -> Tensor:
    return torch.cat([theirs[f"{source}{part}.{kind}"] for part in parts])


def from_llama(theirs: Tensors) -> dict[str, Tensor]:
    found = {
        "embedding.token.weight": theirs["model.embed_tokens.weight"],
        "head.weight": theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"]),
        "stack.ends.norm.weight": theirs["model.norm.weight"],
    }
    for i in range(2):
        a, b = f"stack.layers.{i}.", f"model.layers.{i}."
        found |= {
            f"{a}attention.qkv.weight": joined(theirs, f"{b}self_attn.", ("q_proj", "k_proj", "v_proj"), "weight"),
            f"{a}attention.out.weight": theirs[f"{b}self_attn.o_proj.weight"],
            f"{a}attention_place.norm.weight": theirs[f"{b}input_layernorm.weight"],
            f"{a}feedforward.up.weight": joined(theirs, f"{b}mlp.", ("gate_proj", "up_proj"), "weight"),
            f"{a}feedforward.down.weight": theirs[f"{b}mlp.down_proj.weight"],
            f"{a}feedforward_place.norm.weight": theirs[f"{b}post_attention_layernorm.weight"],
        }
    return found


def from_gpt2(theirs: Tensors) -> dict[str, Tensor]:
    """GPT-2 keeps its matrices the other way round."""
    theirs = {n: t.T if ".c_" in n and n.endswith("weight") else t for n, t in theirs.items()}
    found = {
        "embedding.token.weight": theirs["transformer.wte.weight"],
        "embedding.position.weight": theirs["transformer.wpe.weight"],
        "head.weight": theirs["transformer.wte.weight"],
        **moved(theirs, {"ends.norm": "ln_f"}, "transformer.", "stack."),
    }
    names = {
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "attention_place.norm": "ln_1",
        "feedforward.up": "mlp.c_fc",
        "feedforward.down": "mlp.c_proj",
        "feedforward_place.norm": "ln_2",
    }
    for i in range(2):
        found |= moved(theirs, names, f"transformer.h.{i}.", f"stack.layers.{i}.")
    return found


def from_bert(theirs: Tensors) -> dict[str, Tensor]:
    """Without the token types, which the positions take in."""
    found = {
        "embedding.token.weight": theirs["embeddings.word_embeddings.weight"],
        "embedding.position.weight": theirs["embeddings.position_embeddings.weight"],
        **moved(theirs, {"norm": "LayerNorm"}, "embeddings.", "embedding."),
    }
    names = {
        "attention.out": "attention.output.dense",
        "attention_place.norm": "attention.output.LayerNorm",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_place.norm": "output.LayerNorm",
    }
    for i in range(2):
        a, b = f"stack.layers.{i}.", f"encoder.layer.{i}."
        found |= moved(theirs, names, b, a)
        for kind in ("weight", "bias"):
            found[f"{a}attention.qkv.{kind}"] = joined(theirs, f"{b}attention.self.", ("query", "key", "value"), kind)
    return found


def assert_agrees_with_huggingface(ours: Any, theirs: Any, ours_of: Callable[[Tensors], dict[str, Tensor]], padded: bool,
                             limit: float, types: bool = False) -> None:  # fmt: skip
    """Scores (or the last hidden state) at real positions, and all gradients."""
    tied = getattr(ours.config, "tie_embeddings", False)
    state = ours_of(dict(theirs.named_parameters()))
    if types:
        kinds = theirs.embeddings.token_type_embeddings.weight
        state["embedding.position.weight"] = state["embedding.position.weight"] + kinds[0]
    ours.load_state_dict(state)
    tokens = words(BATCH, LENGTH)
    mask = lengths_mask(LENGTH, 7, LENGTH, 4) if padded else None
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else mask

    def reference() -> Tensor:
        found = theirs(input_ids=tokens, attention_mask=None if mask is None else mask.long())
        return found.logits if hasattr(found, "logits") else found.last_hidden_state

    shape = (BATCH, LENGTH, DIM if types else WORDS)
    upstream = torch.randn(shape, dtype=next(ours.parameters()).dtype) * real[..., None]
    want = outcome(theirs, reference, upstream)
    got = outcome(ours, lambda: ours(tokens, mask), upstream)
    assert off(got.pop("output")[real], want.pop("output")[real]) <= limit
    expected = ours_of(want)
    if tied:
        del expected["head.weight"]
    assert_same(got, expected, limit)


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_decoder_is_llama(huggingface, kv_heads, eps, tied, padded):
    """float32 only: Llama's norm computes in float32 whatever comes in."""
    dim = 6 * 4
    config = huggingface.LlamaConfig(
        vocab_size=WORDS, hidden_size=dim, intermediate_size=FFN, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=kv_heads, max_position_embeddings=LONGEST, rms_norm_eps=eps, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, attn_implementation="eager", bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    theirs = shaken(huggingface.LlamaForCausalLM(config))
    ours = make(
        architecture="decoder", dim=dim, num_heads=6, num_kv_heads=kv_heads, norm="rms", norm_options={"eps": eps},
        activation="swiglu", bias=False, positions="rotary", rotary_base=500.0, embedding_scale=1.0,
        tie_embeddings=tied,
    )  # fmt: skip
    assert_agrees_with_huggingface(ours, theirs, from_llama, padded, CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_decoder_is_gpt2(huggingface, padded, dtype):
    config = huggingface.GPT2Config(
        vocab_size=WORDS, n_positions=LONGEST, n_embd=DIM, n_layer=2, n_head=HEADS, n_inner=FFN, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new", attn_implementation="eager", bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    theirs = shaken(huggingface.GPT2LMHeadModel(config)).to(dtype)
    ours = make(
        architecture="decoder", activation="gelu-tanh", positions="learned", embedding_scale=1.0, tie_embeddings=True
    ).to(dtype)
    assert_agrees_with_huggingface(ours, theirs, from_gpt2, padded, CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_encoder_is_bert(huggingface, padded, dtype):
    config = huggingface.BertConfig(
        vocab_size=WORDS, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=FFN,
        max_position_embeddings=LONGEST, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, hidden_act="gelu",
        layer_norm_eps=1e-12, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    theirs = shaken(huggingface.BertModel(config, add_pooling_layer=False))
    theirs.embeddings.word_embeddings.padding_idx = None  # or word 0 would have no gradient
    ours = make(
        placement="post", norm_options={"eps": 1e-12}, positions="learned", embedding_scale=1.0, embedding_norm=True
    )
    assert_agrees_with_huggingface(ours.to(dtype), theirs.to(dtype), from_bert, padded, CLOSE[dtype], types=True)


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


def assert_outcomes(got: Mapping[str, Tensor], want: Mapping[str, Tensor], limit: float = 3e-5) -> None:
    """As assert_same, but a gradient that is zero in exact arithmetic (a bias that a norm removes) may be noise."""
    assert got.keys() == want.keys()
    assert torch.isfinite(got["output"]).all() and off(got["output"], want["output"]) <= limit
    floor = 1e-3 * max(g.abs().max().item() for name, g in want.items() if name != "output")
    wrong = {}
    for name in want.keys() - {"output"}:
        error = (got[name] - want[name]).abs().max().item() / max(floor, want[name].abs().max().item())
        if not error <= limit:
            wrong[name] = error
    assert not wrong, f"more than {limit} apart: {wrong}"


def assert_buffers(got: nn.Module, want: nn.Module, limit: float = 1e-5) -> None:
    pairs = list(zip(got.named_buffers(), want.named_buffers(), strict=True))
    for (name, a), (_, b) in pairs:
        torch.testing.assert_close(a, b, rtol=limit, atol=limit, msg=lambda m, n=name: f"{n}: {m}")


LLAMA = {"norm": "rms", "activation": "swiglu", "positions": "rotary", "dim": 24, "num_heads": 6, "num_kv_heads": 2}
COMPILED = [
    ("encoder", {"norm": "rms"}),
    ("encoder", {"placement": "post"}),
    ("encoder", {"placement": "deepnorm"}),
    ("encoder", {"placement": "residual-dual"}),
    ("encoder", {"placement": "b2t"}),
    ("encoder", {"placement": "sub-ln", "num_layers": 1, "num_classes": 5}),
    ("encoder", {"norm": "batch"}),
    ("decoder", {"norm": "rms"}),
    ("decoder", {"placement": "post"}),
    ("decoder", LLAMA),
    ("encoder-decoder", {"norm": "rms", "num_layers": 1}),
    ("encoder-decoder", {"placement": "b2t", "num_layers": 1}),
    ("vision", {"placement": "deepnorm"}),
    ("vision", {"placement": "sub-ln", "norm": "rms"}),
    ("convolution", {"placement": "residual-dual"}),
    ("convolution", {"placement": "pre", "norm": "batch"}),
]


@pytest.fixture
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def named(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [" ".join([a, *(str(v) for v in settings.values())]) for a, settings in cases]


def assert_compiles(architecture: str, settings: Mapping[str, Any], backend: str) -> None:
    eager = make_any(architecture, **settings)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    for arguments in (example(architecture), example(architecture)):
        got = outcome(twin, lambda a=arguments: compiled(*a))
        assert_outcomes(got, outcome(eager, lambda a=arguments: eager(*a)))
        assert_buffers(twin, eager)


@pytest.mark.parametrize(("architecture", "settings"), COMPILED, ids=named(COMPILED))
def test_compiled_models_equal_eager_ones(compiler, architecture, settings):
    assert_compiles(architecture, settings, "aot_eager")


def test_inductor_compiles_a_masked_encoder(compiler):
    assert_compiles("encoder", {"norm": "rms", "num_layers": 1, "num_classes": 5}, "inductor")


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("settings", [{}, LLAMA], ids=["plain", "llama"])
def test_exported_models_take_any_batch_and_length(settings, architecture, masked):
    model = make(architecture=architecture, **settings).eval()
    axes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2, max=LONGEST)}
    arguments = example(architecture)[: 1 + masked]
    program = torch.export.export(model, arguments, dynamic_shapes=(axes, axes)[: 1 + masked])
    for batch, length in ((BATCH, LENGTH), (5, LONGEST)):
        arguments = (words(batch, length), torch.rand(batch, length) < 0.7)[: 1 + masked]
        assert off(program.module()(*arguments), model(*arguments)) <= 1e-6


# ---- DistributedDataParallel -------------------------------------------------------------------------------------------

PARALLEL: dict[str, dict[str, Any]] = {
    "decoder": {"architecture": "decoder"},
    "batch-encoder": {"norm": "batch", "norm_options": {"sync": True}, "num_classes": 5},
}


def learn(model: Any, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """A loss that is a mean over samples, so that equal shares have equal weights."""
    if labels.dim() == 2:
        return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    return F.cross_entropy(model(tokens, mask), labels)


def parallel_rank(rank: int, folder: str) -> None:
    """A process: the gradients that DDP leaves it with, for its half of every batch."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=40))
    found = {}
    for name, (state, batch) in torch.load(f"{folder}/work.pt", weights_only=True).items():
        model = make(**PARALLEL[name]).double()
        model.load_state_dict(state)
        parallel = nn.parallel.DistributedDataParallel(model)
        learn(parallel, *(t.chunk(2)[rank] for t in batch)).backward()
        found[name] = (gradients(model), dict(model.named_buffers()))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_data_parallel_processes_learn_as_one(tmp_path):
    """Ranks hold different numbers of real tokens; every gradient and running statistic is that of the whole batch."""
    work, models = {}, {}
    for name, settings in PARALLEL.items():
        models[name] = make(**settings).double()
        labels = words(4, LENGTH) if name == "decoder" else torch.tensor([1, 4, 0, 2])
        batch = (words(4, LENGTH), lengths_mask(LENGTH, 3, 5, LENGTH, 8), labels)
        work[name] = ({n: t.clone() for n, t in models[name].state_dict().items()}, batch)
    torch.save(work, tmp_path / "work.pt")
    multiprocessing.spawn(parallel_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for name, model in models.items():
        loss = learn(model, *work[name][1])
        loss.backward()
        for found, buffers in (r[name] for r in ranks):
            assert_outcomes({"output": loss[None], **found}, {"output": loss[None], **gradients(model)}, 1e-10)
            for key, value in model.named_buffers():
                torch.testing.assert_close(buffers[key], value, rtol=1e-10, atol=1e-12)
        halves = copy.deepcopy(model)
        halves.zero_grad()
        learn(halves, *(t.chunk(2)[0] for t in work[name][1])).backward()
        token = next(n for n, _ in model.named_parameters())
        assert off(gradients(halves)[token], gradients(model)[token]) > 0.01, "half the batch would have done as well"


# ---- activation checkpointing ------------------------------------------------------------------------------------------

DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
CHECKPOINTED = [
    ("encoder", {}),
    ("encoder", {"norm": "batch"}),
    ("encoder", {"norm": "batch", "norm_options": {"ghost_size": 2}}),
    ("encoder", {"norm": "power", "norm_options": {"running": False}}),
    ("encoder", {"placement": "residual-dual", "norm": "rms"}),
    ("encoder", {"placement": "b2t", "fused": False}),
    ("decoder", LLAMA),
    ("decoder", {"placement": "post", "norm": "batch", "causal_statistics": "position"}),
    ("encoder-decoder", {"placement": "deepnorm"}),
    ("vision", {"placement": "peri"}),
    ("convolution", {"norm": "group"}),
]


@pytest.mark.parametrize("dropping", [{}, DROPPING], ids=["dense", "dropout"])
@pytest.mark.parametrize(("architecture", "settings"), CHECKPOINTED, ids=named(CHECKPOINTED))
def test_checkpointing_recomputes_layers_and_changes_no_number(architecture, settings, dropping):
    model = make_any(architecture, **settings, **dropping)
    twin = make_any(architecture, **settings, **dropping, checkpoint=True)
    twin.load_state_dict(model.state_dict())
    arguments, calls = example(architecture), Counter()
    for m in (model, twin):
        for name, module in m.named_modules():
            if name.endswith("layers.1"):
                module.register_forward_pre_hook(lambda *_, m=m, name=name: calls.update([(m is twin, name)]))
    found = []
    for m in (model, twin):
        torch.manual_seed(3)
        found.append(outcome(m, lambda m=m: m(*arguments)))
    assert set(calls.values()) == {1, 2} and all(count == 1 + again for (again, _), count in calls.items())
    assert_outcomes(found[1], found[0], 1e-6)
    assert_buffers(twin, model, 1e-6)
    if dropping:
        torch.manual_seed(4)
        assert off(model(*arguments), found[0]["output"]) > 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "power"},
        {"norm": "batch", "norm_options": {"renorm": (3.0, 5.0)}},
        {"architecture": "decoder", "norm": "batch", "causal_statistics": "running"},
        {"architecture": "decoder", "norm": "power", "causal_statistics": "running"},
    ],
    ids=["power", "renorm", "batch-running", "power-running"],
)
def test_checkpointing_a_norm_that_divides_by_what_it_moves_is_refused(settings):
    """A second forward would see other statistics than the first, and gradients would be wrong without a word."""
    with pytest.raises((normlab.TransformUnsupported, ValueError), match="checkpoint"):
        make(**settings, checkpoint=True)(*example("encoder")).sum().backward()


# ---- 16 bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, LLAMA | {"qk_norm": "head"}], ids=["plain", "llama"])
@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm"])
def test_autocast_is_float32_to_bfloat16s_rounding(placement, settings):
    """bfloat16 has 8 bits; a dozen roundings of 2^-9 that do not all point one way."""
    model = make(architecture="decoder", placement=placement, **settings)
    tokens, mask = example("decoder")
    exact = outcome(model, lambda: model(tokens, mask))
    with torch.autocast("cpu", torch.bfloat16):
        y = model(tokens, mask)
        generated = model.generate(tokens[:, :4], 3)
    assert y.dtype == torch.bfloat16
    assert 1e-6 < off(y.float(), exact["output"]) < 0.05
    rough = outcome(model, lambda: y)
    rough["output"] = rough["output"].float()
    assert_outcomes(rough, exact, 0.2)
    assert generated.shape == (BATCH, 7)


@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm", "residual-dual"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_run_in_pure_bfloat16(architecture, placement):
    model = make_any(architecture, placement=placement)
    arguments = example(architecture)
    exact = model(*arguments).detach()
    model.bfloat16()
    y = model(*(a.bfloat16() if a.is_floating_point() else a for a in arguments))
    assert y.dtype == torch.bfloat16
    assert off(y.float(), exact) < 0.1
    y.backward(torch.randn_like(y))
    assert all(g.dtype == torch.bfloat16 and g.isfinite().all() for g in gradients(model).values())
    if architecture == "decoder":
        assert model.generate(arguments[0][:, :4], 3).shape == (BATCH, 7)


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


# ---- fused and unfused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "dtype", "limit"),
    [
        ("encoder", torch.float32, 3e-5),
        ("encoder-decoder", torch.float64, 1e-12),
        ("convolution", torch.float64, 1e-12),
    ],
    ids=["encoder", "encoder-decoder", "convolution"],
)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_fused_sums_and_norms_equal_the_two_steps(monkeypatch, placement, norm, architecture, dtype, limit):
    if architecture == "convolution" and placement in ("normformer", "hybrid-norm"):
        pytest.skip("reaches into attention")
    fused = make_any(architecture, placement=placement, norm=norm, num_layers=3).to(dtype)
    plain = make_any(architecture, placement=placement, norm=norm, num_layers=3, fused=False).to(dtype)
    plain.load_state_dict(fused.state_dict())
    calls = []
    real = normlab.functional.residual_norm
    monkeypatch.setattr(normlab.functional, "residual_norm", lambda *a, **k: calls.append(k["alpha"]) or real(*a, **k))
    arguments = tuple(a.to(dtype) if a.is_floating_point() else a for a in example(architecture))
    want = outcome(plain, lambda: plain(*arguments))
    assert not calls
    got = outcome(fused, lambda: fused(*arguments))
    assert bool(calls) == (placement not in ("none", "rezero"))
    assert (placement == "deepnorm") == any(alpha != 1 for alpha in calls)
    assert_outcomes(got, want, limit)


# ---- padding -----------------------------------------------------------------------------------------------------------

PADDED: dict[str, dict[str, Any]] = {
    **{name: {"norm": name} for name in NORMS},
    "power-running": {"norm": "power", "norm_options": {"warmup_steps": 0}},
    "instance-affine": {"norm": "instance", "norm_options": {"affine": True, "track_running_stats": True}},
}


@pytest.mark.parametrize("placement", ["pre", "post", "sub-ln", "hybrid-norm", "residual-dual"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing_real(name, training, placement):
    """More of it, or other words in it: the same outputs at real positions, gradients and running statistics."""
    model = make(placement=placement, **PADDED[name]).double().train(training)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH - 1, 4)
    mask[1, 3] = False
    other = torch.where(mask, tokens, (tokens + 5) % WORDS)
    longer, longer_mask = F.pad(other, (0, 3), value=2), F.pad(mask, (0, 3))
    upstream = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64) * mask[..., None]
    twins = [copy.deepcopy(model) for _ in range(2)]
    want = outcome(model, lambda: model(tokens, mask), upstream)
    changed = outcome(twins[0], lambda: twins[0](other, mask), upstream)
    padded = outcome(twins[1], lambda: twins[1](longer, longer_mask)[:, :LENGTH], upstream)
    for twin, got in zip(twins, (changed, padded), strict=True):
        assert off(got.pop("output")[mask], want["output"][mask]) <= 1e-11
        assert_outcomes({"output": want["output"], **got}, want, 1e-11)
        assert_buffers(twin, model, 1e-11)


@pytest.mark.parametrize("name", PADDED)
def test_without_its_mask_padding_does_change_what_norms_over_tokens_see(name):
    """So that the test above says something."""
    model = make(placement="post", positions="none", **PADDED[name]).double()
    twin = copy.deepcopy(model)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    with torch.no_grad():
        with_mask, without = model(tokens, mask)[mask], twin(tokens)[mask]
    assert off(without, with_mask) > 1e-3


@pytest.mark.parametrize("placement", ["pre", "post", "sub-ln", "hybrid-norm"])
@pytest.mark.parametrize("name", PADDED)
def test_a_sample_of_nothing_but_padding_stays_finite_and_touches_no_other(name, placement):
    # The mean over tokens of an InstanceNorm is zero, so with that norm class scores are refused.
    classes = None if PADDED[name]["norm"] == "instance" else 5
    model = make(placement=placement, num_classes=classes, **PADDED[name]).double()
    twin = copy.deepcopy(model)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, 0, LENGTH)
    real = torch.tensor([0, 2])
    y = model(tokens, mask)
    assert y.isfinite().all()
    rows = (y[real], twin(tokens[real], mask[real]))
    assert off(*(rows if classes else (r[mask[real]] for r in rows))) <= 1e-11
    y.backward(torch.randn_like(y))
    assert all(g.isfinite().all() for g in gradients(model).values())


def test_a_source_of_nothing_but_padding_stays_finite():
    model = make(architecture="encoder-decoder").double()
    source, target, mask = words(BATCH, LENGTH), words(BATCH, 5), lengths_mask(LENGTH, 7, 0, LENGTH)
    y = model(source, target, mask)
    real = torch.tensor([0, 2])
    assert y.isfinite().all()
    assert off(y[real], model(source[real], target[real], mask[real])) <= 1e-12
    y.backward(torch.randn_like(y))
    assert all(g.isfinite().all() for g in gradients(model).values())


def test_padding_may_stand_anywhere_in_a_decoders_text():
    """Left, right or between: real positions see the real ones before them, and no row is empty."""
    model = make(architecture="decoder", **LLAMA).double()
    tokens, mask = words(BATCH, LENGTH), torch.rand(BATCH, LENGTH) < 0.6
    mask[0, :4] = False
    mask[1] = False
    y, other = model(tokens, mask), model(torch.where(mask, tokens, (tokens + 5) % WORDS), mask)
    assert y.isfinite().all()
    assert off(other[mask], y[mask]) <= 1e-12
    assert off(model(tokens)[mask], y[mask]) > 1e-3


def test_class_scores_come_from_the_mean_of_real_tokens():
    model = make(num_classes=5)
    tokens, mask = words(BATCH, LENGTH), lengths_mask(LENGTH, 7, LENGTH, 4)
    vectors = model.stack(model.embedding(tokens, mask), mask)
    mean = torch.stack([vectors[0, :7].mean(0), vectors[1].mean(0), vectors[2, :4].mean(0)])
    assert off(model(tokens, mask), F.linear(mean, model.head.weight, model.head.bias)) <= 1e-5


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


# ---- norms on queries and keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("kind", ["head", "width"])
def test_qk_norm_equals_attention_written_out(kind, norm, kv_heads):
    """Norm, then rotation, then logits. For a norm over tokens RMSNorm stands in."""
    heads, width = 6, 4
    model = make(dim=heads * width, num_heads=heads, num_kv_heads=kv_heads, num_layers=1, norm=norm, qk_norm=kind)
    attention = model.stack.layers[0].attention.double()
    x = torch.randn(BATCH, LENGTH, heads * width, dtype=torch.float64)
    turns = torch.outer(torch.arange(LENGTH).double(), torch.tensor([1.0, 0.1]).double())
    p = dict(attention.named_parameters())

    def normalized(t: Tensor, name: str, count: int) -> Tensor:
        t = t.view(BATCH, LENGTH, count, width) if kind == "head" else t
        gain = p[f"norm_{name}.weight"]
        if norm == "layer":
            t = (t - t.mean(-1, keepdim=True)) / (t.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
            t = t * gain + p[f"norm_{name}.bias"]
        else:
            t = t / (t.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).eps).sqrt() * gain
        t = t.view(BATCH, LENGTH, count, width)
        turned = torch.view_as_complex(torch.stack(t.chunk(2, -1), -1)) * torch.exp(1j * turns)[:, None]
        return torch.cat((turned.real, turned.imag), -1)

    def formula() -> Tensor:
        rows = x @ p["qkv.weight"].T + p["qkv.bias"]
        q, k, v = rows.split((heads * width, kv_heads * width, kv_heads * width), -1)
        q, k = normalized(q, "q", heads), normalized(k, "k", kv_heads)
        v = v.view(BATCH, LENGTH, kv_heads, width)
        out = []
        for h in range(heads):
            shared = h // (heads // kv_heads)
            logits = q[:, :, h] @ k[:, :, shared].transpose(1, 2) / math.sqrt(width)
            logits = logits.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -math.inf)
            out.append(logits.softmax(-1) @ v[:, :, shared])
        return torch.cat(out, -1) @ p["out.weight"].T + p["out.bias"]

    angles = (turns.cos().repeat(1, 2), turns.sin().repeat(1, 2))
    got = outcome(attention, lambda: attention(x, causal=True, angles=angles))
    assert_same(got, outcome(attention, formula), 1e-12)
    assert got["norm_k.weight"].shape == ((width,) if kind == "head" else (kv_heads * width,))
