"""Architectures that are not ours, tiny: each maker gives a model and how to call it with tokens and the padding mask MASK."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"
B, L, V = 3, 5, 23
MASK = torch.arange(L) < torch.tensor([[5], [2], [4]])


def hugging(name, head="ForCausalLM", implementation="eager", **settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        **{"vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **settings}
    )
    config._attn_implementation = implementation
    return getattr(transformers, f"{name}{head}")(config)


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}


def text(model, **more):
    def call(tokens):
        return model(input_ids=tokens, attention_mask=MASK.long(), **more).logits

    return call


def seq2seq(model):
    return lambda tokens: model(input_ids=tokens, attention_mask=MASK.long(), decoder_input_ids=tokens.flip(0),
                                decoder_attention_mask=MASK.long()).logits  # fmt: skip


def gpt2(how):
    m = hugging(
        "GPT2",
        "LMHeadModel",
        how,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return m, text(m)


def llama(how):
    m = hugging("Llama", implementation=how, **{k: v for k, v in GROUPED.items()})
    return m, text(m)


def qwen3(how):
    m = hugging("Qwen3", implementation=how, **GROUPED)
    return m, text(m)


def gemma2(how):
    m = hugging("Gemma2", implementation=how, **GROUPED)
    return m, text(m)


def bert(how):
    m = hugging("Bert", "ForMaskedLM", how, **SIZES, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return m, text(m)


def opt(how):
    m = hugging("OPT", implementation=how, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16,
                max_position_embeddings=16, dropout=0)  # fmt: skip
    return m, text(m)


def bloom(how):
    m = hugging("Bloom", implementation=how, hidden_size=16, n_layer=2, n_head=2)
    return m, text(m)


def xlnet(how):
    m = hugging("XLNet", "LMHeadModel", how, d_model=16, n_layer=2, n_head=2, d_inner=24, dropout=0)
    return m, text(m)


def t5(how):
    m = hugging(
        "T5", "ForConditionalGeneration", how, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0
    )
    return m, seq2seq(m)


def neox(how):
    m = hugging("GPTNeoX", implementation=how, **SIZES)
    return m, text(m)


def vit(how):
    m = hugging("ViT", "ForImageClassification", how, **{**SIZES, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.0,
                                                         "attention_probs_dropout_prob": 0.0})  # fmt: skip
    return m, lambda tokens: m(pixel_values=tokens[:, :3, None, None] * torch.linspace(-1, 1, 64).view(8, 8)).logits


def phi(how):
    m = hugging("Phi", implementation=how, **SIZES, resid_pdrop=0, embd_pdrop=0)
    return m, text(m)


def mpnet(how):
    m = hugging("MPNet", "ForMaskedLM", how, **SIZES, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return m, text(m)


class Torchs(nn.Module):
    def __init__(self, batch_first, norm_first):
        super().__init__()
        self.embedding = nn.Embedding(V, 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=batch_first, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, tokens, padding_mask):
        x = self.embedding(tokens)
        return self.encoder(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=~padding_mask)


def torch_post(how):
    m = Torchs(True, False)
    return m, lambda tokens: m(tokens, MASK)


def torch_pre(how):
    m = Torchs(False, True)
    return m, lambda tokens: m(tokens, MASK)


def torch_whole(how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = nn.Transformer(16, 2, 2, 2, 24, 0.0)
    table = torch.randn(V, 16)
    return m, lambda tokens: m(table[tokens].transpose(0, 1), table[tokens.flip(0)].transpose(0, 1), src_key_padding_mask=~MASK,
                               tgt_key_padding_mask=~MASK, memory_key_padding_mask=~MASK)  # fmt: skip


USUAL = [gpt2, llama, qwen3, gemma2, bert, opt, bloom, xlnet, t5, torch_post, torch_pre, torch_whole, neox, vit, phi]
NIGHTLY = [mpnet]
