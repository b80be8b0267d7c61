"""A recurrent language model with norms in its cells: what normalization was before Transformers.

There is no residual stream here and so no placement around it: the norms stand on what enters the gates and on the cell state,
as in Ba, Kiros, Hinton 2016 (arXiv 1607.06450); with batch norm as in Cooijmans et al. 2016 (arXiv 1603.09025), except that running
statistics are shared by all positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..placements import apply_norm, reset_inside
from .config import TransformerConfig
from .embeddings import Embedding, make_head
from .text import Model


class RecurrentLayer(nn.Module):
    """An LSTM over (B, L, d), with a norm on each of the two products that enter the gates and one on the cell.

        gates = N(W x_t) + N(U h_{t-1}) + b        i, f, o = sigmoid of three of them, g = tanh of the fourth
        c_t = f c_{t-1} + i g                      h_t = o tanh(N(c_t))

    Each norm sees one position at a time, (B, width): statistics over tokens are those of the batch at that position, and no
    token sees a later one. The first position has no state before it, so N(U h) is left out there: zeros have no statistics worth
    a running average. At padding the state stays as it was.
    """

    def __init__(self, config: TransformerConfig, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        width = config.dim
        self.width, self.dropout = width, config.dropout
        self.input = nn.Linear(width, 4 * width, bias=False)
        self.state = nn.Linear(width, 4 * width, bias=False)
        self.bias = nn.Parameter(torch.empty(4 * width))
        wanted = config.placement != "none"
        self.norm_input = norm(4 * width) if wanted else None
        self.norm_state = norm(4 * width) if wanted else None
        self.norm_cell = norm(width) if wanted else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Norms as at construction; matrices drawn anew, gate by gate; the gate that forgets starts open."""
        reset_inside(self)
        for matrix in self.input.weight.chunk(4):
            nn.init.xavier_normal_(matrix)
        for matrix in self.state.weight.chunk(4):
            nn.init.orthogonal_(matrix)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[self.width : 2 * self.width] = 1.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = c = x.new_zeros(len(x), self.width)
        entered = self.input(x)
        found = []
        for t in range(x.shape[1]):
            real = None if mask is None else mask[:, t]
            gates = _normed(self.norm_input, entered[:, t], real)
            if t > 0:
                gates = gates + _normed(self.norm_state, self.state(h), real)
            i, f, o, g = (gates + self.bias.to(gates.dtype)).chunk(4, -1)
            new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            new_h = torch.sigmoid(o) * torch.tanh(_normed(self.norm_cell, new_c, real))
            if real is not None:
                cell = real.unsqueeze(-1)
                new_c, new_h = torch.where(cell, new_c, c), torch.where(cell, new_h, h)
            c, h = new_c, new_h
            found.append(h)
        return F.dropout(torch.stack(found, 1), self.dropout, self.training)


def _normed(norm: nn.Module | None, x: Tensor, mask: Tensor | None) -> Tensor:
    return x if norm is None else apply_norm(norm, x, mask)


class RecurrentStack(nn.Module):
    """Layers one above the other, without residual sums: (B, L, d) -> (B, L, d)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        norm = config.norm_factory(causal=False)  # each call sees one position alone
        self.layers = nn.ModuleList(RecurrentLayer(config, norm) for _ in range(config.num_layers))

    def reset_parameters(self) -> None:
        reset_inside(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Recurrent(Model):
    """A recurrent language model: tokens (B, L) -> scores of the next token (B, L, vocabulary). It adds no positions.

    >>> model = build(TransformerConfig(architecture="recurrent", dim=16, num_layers=1, vocab_size=11))
    >>> model(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 5, 11])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(replace(config, positions="none"), config.norm_factory(causal=False))
        self.stack = RecurrentStack(config)
        self.head = make_head(config, config.vocab_size, self.embedding.token if config.tie_embeddings else None)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.stack(self.embedding(tokens, mask), mask))
