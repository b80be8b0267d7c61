"""The models of the corpus, each with its data: of this package, of torch, of Hugging Face, written by hand."""

from __future__ import annotations

import os
from functools import cache
from pydoc_data import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab
from normlab.lab.tasks import find_task

from .trial import Batch, Trial

os.environ.setdefault("HF_HUB_OFFLINE", "1")
LENGTH, ROWS, VOCABULARY = 24, 8, 256


@cache
def _text() -> Tensor:
    return torch.tensor(list("\n".join(topics.topics[k] for k in sorted(topics.topics)).encode()[:200_000]))


def sample(seed: int, step: int, rows: int, length: int) -> Tensor:
    draw = torch.Generator().manual_seed(1_000_003 * seed + step)
    start = torch.randint(0, len(_text()) - length, (rows,), generator=draw)
    return _text()[start[:, None] + torch.arange(length)]


def next_token(seed: int, name: str, rows: int = ROWS, length: int = LENGTH) -> Any:
    def batch(step: int) -> Batch:
        tokens = sample(seed, step, rows, length + 1)
        return {name: tokens[:, :-1]}, tokens[:, 1:]

    return batch


def hidden_token(seed: int, names: tuple[str, str | None], rows: int = 16, inverted: bool = False, pad: int = 0) -> Any:
    """Guess a fifth of the tokens; about 60 % of the cells are padding. ``names``: of the tokens, of the mask."""

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(7_000_003 * seed + step)
        tokens = sample(seed, step, rows, LENGTH)
        mask = torch.arange(LENGTH) < torch.randint(5, 15, (rows, 1), generator=draw)
        hidden = (torch.rand(tokens.shape, generator=draw) < 0.2) & mask
        hidden[:, 0] = True
        given = {names[0]: tokens.masked_fill(~mask, pad).masked_fill(hidden, 1)}
        if names[1] is not None:
            given[names[1]] = ~mask if inverted else mask
        return given, tokens.masked_fill(~hidden, -100)

    return batch


# ---- decoders --------------------------------------------------------------------------------------------------------


def native(seed: int, rows: int = ROWS, length: int = LENGTH, **settings: Any) -> Trial:
    torch.manual_seed(seed)
    defaults = {"architecture": "decoder", "dim": 24, "num_layers": 4, "num_heads": 4, "max_length": 64}
    return Trial(normlab.build(**{**defaults, **settings}), next_token(seed, "tokens", rows, length), causal=True)


def task(seed: int, name: str, size: int = 16, **settings: Any) -> Trial:
    """A task of the lab."""
    found = find_task(name)
    torch.manual_seed(seed)
    model = normlab.build(**{**found.settings, "dim": 32, "num_layers": 3, **settings})

    def batch(step: int) -> Batch:
        drawn = found.batch(seed, step, size)
        return dict(drawn.arguments), drawn.targets

    return Trial(model, batch)


def hugging_face(seed: int, kind: str, rows: int = ROWS, **settings: Any) -> Trial:
    """A causal model of transformers from a tiny config."""
    import transformers as hf

    base = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
    of_gpt2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
               "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
    of_opt = {**{k: v for k, v in base.items() if k != "intermediate_size"}, "ffn_dim": 64, "dropout": 0.0,
              "word_embed_proj_dim": 32}  # fmt: skip
    configs: dict[str, Any] = {
        "gpt2": (hf.GPT2Config, hf.GPT2LMHeadModel, of_gpt2),
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, base),
        "neox": (hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, base),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {**base, "num_key_value_heads": 2}),
        "olmo2": (hf.Olmo2Config, hf.Olmo2ForCausalLM, base),
        "opt": (hf.OPTConfig, hf.OPTForCausalLM, of_opt),
        "phi": (hf.PhiConfig, hf.PhiForCausalLM, base),
    }
    config, model, defaults = configs[kind]
    torch.manual_seed(seed)
    config = config(**{**defaults, **settings}, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    return Trial(model(config).train(), next_token(seed, "input_ids", rows), causal=True)


class TorchDecoder(nn.Module):
    """torch's own layers with a causal mask."""

    def __init__(
        self, width: int = 24, layers: int = 4, first: bool = True, causal: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.1 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=first, **options)
        self.body = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width) if first else None, enable_nested_tensor=False
        )
        for p in self.body.parameters():  # its layers are copies of one
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.head = nn.Linear(width, VOCABULARY)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.head(self.body(x, mask=mask))


def of_torch(seed: int, rows: int = ROWS, **settings: Any) -> Trial:
    torch.manual_seed(seed)
    return Trial(TorchDecoder(**settings), next_token(seed, "tokens", rows), causal=True)


class HandBlock(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Hand(nn.Module):
    """A decoder as people write it, with GPT-2's initialization."""

    def __init__(
        self, width: int = 32, layers: int = 4, heads: int = 4, std: float = 0.02, causal: bool = True
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(HandBlock(width, heads, causal) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(p, std=std * scale)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def by_hand(seed: int, rows: int = ROWS, **settings: Any) -> Trial:
    torch.manual_seed(seed)
    return Trial(Hand(**settings), next_token(seed, "tokens", rows), causal=True)


# ---- encoders over padded text ---------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """An encoder of this package that guesses hidden tokens; ``tells`` says whether it is given the mask."""

    def __init__(self, tells: bool = True, **settings: Any) -> None:
        super().__init__()
        self.encoder = normlab.build(
            **{"architecture": "encoder", "dim": 16, "num_layers": 2, "max_length": 32, **settings}
        )
        self.head, self.tells = nn.Linear(settings.get("dim", 16), VOCABULARY), tells

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(tokens, mask if self.tells else None))


def tagger(seed: int, tells: bool = True, rows: int = 16, mask: bool = True, **settings: Any) -> Trial:
    torch.manual_seed(seed)
    names = ("tokens", "mask" if mask else None)
    return Trial(Tagger(tells, **settings), hidden_token(seed, names, rows))


class BatchNormOfTokens(nn.Module):
    """nn.BatchNorm1d over (B, L, d), as people put it into a Transformer."""

    def __init__(self, width: int, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(width, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.transpose(1, 2)).transpose(1, 2)


class TorchTagger(nn.Module):
    """torch's encoder, hidden tokens."""

    def __init__(
        self, width: int = 24, layers: int = 2, batch_norm: bool = False, momentum: float | None = 0.1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        final = nn.LayerNorm(width)
        self.body = nn.TransformerEncoder(layer, layers, final, enable_nested_tensor=False)
        if batch_norm:
            for block in self.body.layers:
                block.norm1, block.norm2 = BatchNormOfTokens(width, momentum), BatchNormOfTokens(width, momentum)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.head(self.body(self.embedding(tokens), src_key_padding_mask=src_key_padding_mask))


def torch_tagger(seed: int, rows: int = 16, mask: bool = True, **settings: Any) -> Trial:
    torch.manual_seed(seed)
    names = ("tokens", "src_key_padding_mask" if mask else None)
    return Trial(TorchTagger(**settings), hidden_token(seed, names, rows, inverted=True))


def bert(
    seed: int, rows: int = 16, layers: int = 3, width: int = 32, batch_norm: bool = False, mask: bool = True
) -> Trial:
    import transformers as hf

    torch.manual_seed(seed)
    config = hf.BertConfig(vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                           intermediate_size=2 * width, max_position_embeddings=64, hidden_dropout_prob=0.0,
                           attention_probs_dropout_prob=0.0)  # fmt: skip
    model = hf.BertForMaskedLM(config).train()
    if batch_norm:
        for block in model.bert.encoder.layer:
            block.attention.output.LayerNorm, block.output.LayerNorm = (
                BatchNormOfTokens(width),
                BatchNormOfTokens(width),
            )
    names = ("input_ids", "attention_mask" if mask else None)
    trial = Trial(model, hidden_token(seed, names, rows), lr=1e-3)
    trial.schedule = lambda step: min(1.0, step / 40)
    return trial


def vit(seed: int, width: int = 32, layers: int = 3) -> Trial:
    """Hugging Face's ViT on the digits."""
    import transformers as hf

    found = find_task("digits")
    torch.manual_seed(seed)
    config = hf.ViTConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=2 * width,
                          image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_dropout_prob=0.0,
                          attention_probs_dropout_prob=0.0)  # fmt: skip
    model = hf.ViTForImageClassification(config).train()

    def batch(step: int) -> Batch:
        drawn = found.batch(seed, step, 32)
        return {"pixel_values": drawn.arguments["images"]}, drawn.targets

    return Trial(model, batch)
