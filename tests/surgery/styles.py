"""Models written by us in the styles of others: norms as functions, lists that are never called, layers whose parts run one by one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 16, 2


def function_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


class Attention(nn.Module):
    def __init__(self, qk=None, by_hand=False, norm=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qk, self.by_hand, self.norm = qk, by_hand, norm

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.qk is not None:
            q, k = self.qk(q), self.qk(k)
        if self.by_hand:
            y = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).flatten(2)
        return self.out(y if self.norm is None else self.norm(y))


class FeedForward(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH), norm

    def forward(self, x):
        y = F.gelu(self.up(x))
        return self.down(y if self.norm is None else self.norm(y))


class FunctionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(qk=function_norm), FeedForward()

    def forward(self, x):
        x = x + self.attention(function_norm(x))
        return x + self.mlp(function_norm(x))


class FunctionNorms(nn.Module):
    """Every norm is a function without parameters: on embeddings, at entries, on queries and keys, at the end (nanochat's style)."""

    def __init__(self, depth=3):
        super().__init__()
        self.embed, self.head = nn.Embedding(31, WIDTH), nn.Linear(WIDTH, 31, bias=False)
        self.blocks = nn.ModuleList(FunctionBlock() for _ in range(depth))

    def forward(self, tokens):
        x = function_norm(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(function_norm(x))


class UnitNorm(nn.Module):
    """F.normalize, times the root of the width and a gain called g."""

    def __init__(self, dim, one=False):
        super().__init__()
        self.scale, self.g = dim**0.5, nn.Parameter(torch.ones(1 if one else dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class Plus(nn.Module):
    def forward(self, x, residual):
        return x + residual


class NeverCalled(nn.Module):
    """Lists of (norm, sub-layer, sum) whose parts run one by one in the parent (x-transformers' style)."""

    def __init__(self, depth=3, norm=UnitNorm):
        super().__init__()
        self.embed = nn.Embedding(31, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleList([norm(WIDTH), Attention() if i % 2 == 0 else FeedForward(), Plus()]) for i in range(2 * depth)
        )
        self.final = norm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, sublayer, plus in self.layers:
            x = plus(sublayer(norm(x)), x)
        return self.final(x)


class PairsInBody(nn.Module):
    """A list of pairs; the parent adds (the style of many small vision Transformers)."""

    def __init__(self, depth=3):
        super().__init__()
        self.patch = nn.Linear(12, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(WIDTH), Attention()), nn.Sequential(nn.LayerNorm(WIDTH), FeedForward())]
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.patch(x)
        for attend, feed in self.layers:
            x = attend(x) + x
            x = feed(x) + x
        return self.head(self.norm(x).mean(1))


class ScaledPostBlock(nn.Module):
    """alpha * x + branch, then a norm, all in the block's own forward (torchscale's style of DeepNorm)."""

    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha
        self.attention, self.feed = Attention(by_hand=True), FeedForward()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.first(x * self.alpha + self.attention(x))
        return self.second(x * self.alpha + self.feed(x))


class InnerNormBlock(nn.Module):
    """Pre-norm, and a norm before each last matrix (torchscale's style of sub-LN)."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed = Attention(norm=nn.LayerNorm(WIDTH)), FeedForward(norm=nn.LayerNorm(3 * WIDTH))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Stacked(nn.Module):
    def __init__(self, blocks, final=True):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(31, WIDTH), nn.ModuleList(blocks)
        self.final = nn.LayerNorm(WIDTH) if final else nn.Identity()

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.final(x)


class LearnedFactorBlock(nn.Module):
    """No norm; each branch times a learned number."""

    def __init__(self):
        super().__init__()
        self.attention, self.feed = Attention(), FeedForward()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x + self.a * self.attention(x)
        return x + self.b * self.feed(x)


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

    def forward(self, x):
        return x + self.up(F.relu(self.down(x)))


class AdaptedBlock(nn.Module):
    """An adapter with a residual of its own inside each branch."""

    def __init__(self):
        super().__init__()
        self.attention, self.feed = Attention(), FeedForward()
        self.adapters = nn.ModuleList([Adapter(), Adapter()])
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.adapters[0](self.attention(self.first(x)))
        return x + self.adapters[1](self.feed(self.second(x)))


# ---- models whose placement must not be named ------------------------------------------------------------------------


class NoResidual(nn.Module):
    """Norms and matrices, and nothing is ever added."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), Attention(), FeedForward()) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


class BrokenPath(NoResidual):
    """Something is added, but not what came in: a matrix stands on the way that should carry it."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer, way in zip(self.layers, self.ways, strict=True):
            x = way(x) + layer(x)
        return x


class Gated(NoResidual):
    """A highway: what came in is weighed against the branch by a gate, not added to it."""

    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            g = torch.sigmoid(gate(x))
            x = g * x + (1 - g) * layer(x)
        return x
