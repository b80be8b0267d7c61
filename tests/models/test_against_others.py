"""Whole models equal torch's and Hugging Face's with the same weights, and attention written out.

The oracles are implementations that others wrote. Their parameters are translated to our names once, by a function that
serves both ways: on weights it fills our model, on gradients it gives what ours must be.

How close is close: an error is measured against the largest value of its tensor. A result passes through about ten sums
of at most a hundred terms, each of which adds a few roundings of 2^-24 to each side, and the norms on the way back
amplify what came before: up to 1e-5 in float32 here, so 3e-5 is allowed; in float64 the same comes to 3e-14, and 1e-12 is
allowed, where nothing but a wrong formula is larger.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    BATCH,
    CLOSE,
    DIM,
    FFN,
    HEADS,
    LENGTH,
    LONGEST,
    WORDS,
    Tensors,
    assert_same,
    gradients,
    lengths_mask,
    make,
    make_any,
    off,
    outcome,
    shaken,
    words,
)
from torch import Tensor, nn

# ---- torch.nn ----------------------------------------------------------------------------------------------------------

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
