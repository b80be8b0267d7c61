"""Encoder, decoder, encoder-decoder."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from .config import TransformerConfig
from .embeddings import Embedding, make_head, start_head, start_input
from .generation import check_sampling, evaluating, extend
from .stacks import Stack
from .sublayers import Cache


class Model(nn.Module):
    """What the models share."""

    def reset_parameters(self) -> None:
        """The state at construction: constants as they were, matrices and embeddings drawn anew. A weight that output
        and embedding share is drawn as both are: with variance 1 / dim."""
        for name, part in self.named_children():
            if name == "head":
                start_head(part)  # type: ignore[arg-type]
            elif isinstance(part, (nn.Linear, nn.Conv2d)):
                start_input(part)
            else:
                part.reset_parameters()  # type: ignore[operator]


class Encoder(Model):
    """Tokens and their mask -> class scores (B, classes) from the mean of the real tokens, or of each token (B, L, classes) with
    pooling="none", or a vector per token.

    >>> model = build(TransformerConfig(dim=16, num_layers=1, num_classes=3))
    >>> model(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.norm_factory(causal=False))
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = None if config.num_classes is None else make_head(config, config.num_classes, None)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.stack(self.embedding(tokens, mask), mask)
        if self.head is None:
            return x
        return self.head(x if self.config.pooling == "none" else _mean(x, mask))


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Over the real tokens; a sample without any gives zero."""
    if mask is None:
        return x.mean(1)
    real = mask.unsqueeze(-1)
    return torch.where(real, x, 0).sum(1) / real.sum(1).clamp(min=1)


class Decoder(Model):
    """A causal language model: tokens (B, L) -> scores of the next token (B, L, vocabulary).

    Causal-safe norms: layer, rms, scale, dyt, derf; batch, group and power in the form that ``causal_statistics`` names.

    >>> model = build(TransformerConfig(architecture="decoder", dim=16, num_layers=1, vocab_size=11))
    >>> model.generate(torch.tensor([[1, 2]]), 3).shape
    torch.Size([1, 5])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.norm_factory(causal=True))
        self.stack = Stack(config, "decoder", config.num_layers)
        self.head = make_head(config, config.vocab_size, self.embedding.token if config.tie_embeddings else None)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        x = self.embedding(tokens, mask, 0 if cache is None else cache.length)
        x = self.stack(x, mask, cache=cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.head(x)

    @torch.no_grad()
    def generate(
        self, prompt: Tensor, steps: int, *, temperature: float = 0.0, top_k: int | None = None,
        generator: torch.Generator | None = None, use_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """The prompts (B, L), of one length, and ``steps`` more tokens: the likeliest, or drawn when temperature > 0."""
        check_sampling(self, prompt, steps, temperature, top_k)
        cache = Cache(self.config.max_length) if use_cache else None
        with evaluating(self):
            return extend(prompt, steps, self, cache, temperature, top_k, generator)


class EncoderDecoder(Model):
    """Source and target tokens -> scores of the next target token (B, L, vocabulary). One vocabulary for both.

    >>> model = build(TransformerConfig(architecture="encoder-decoder", dim=16, num_layers=1, vocab_size=11))
    >>> model(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)).shape
    torch.Size([2, 3, 11])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        below, above = config.num_layers, config.num_decoder_layers or config.num_layers
        self.source = Embedding(config, config.norm_factory(causal=False))
        self.target = Embedding(config, config.norm_factory(causal=True))
        if config.tie_embeddings:
            self.target.token = self.source.token
        self.encoder = Stack(config, "encoder", below, above)
        self.decoder = Stack(config, "decoder", above, below)
        self.head = make_head(config, config.vocab_size, self.source.token if config.tie_embeddings else None)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(self.source(source, mask), mask)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        return self._decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def _decode(
        self, target: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        x = self.target(target, target_mask, 0 if cache is None else cache.length)
        x = self.decoder(x, target_mask, memory, source_mask, cache)
        if cache is not None:
            cache.length += target.shape[1]
        return self.head(x)

    @torch.no_grad()
    def generate(
        self, source: Tensor, start: Tensor, steps: int, *, source_mask: Tensor | None = None, temperature: float = 0.0,
        top_k: int | None = None, generator: torch.Generator | None = None, use_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """``start`` (B, L) and ``steps`` more target tokens."""
        check_sampling(self, start, steps, temperature, top_k)
        cache = Cache(self.config.max_length) if use_cache else None
        with evaluating(self):
            memory = self.encode(source, source_mask)
            decode = functools.partial(self._decode, memory=memory, source_mask=source_mask)
            return extend(start, steps, decode, cache, temperature, top_k, generator)
