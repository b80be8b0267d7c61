"""What strangers' models are made of: blocks whose sums, factors and norms are written in ways of their own. See strangers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from styles import WIDTH, Attention, FeedForward
from torch import Tensor, nn

WORDS = 31
TOKENS = torch.randint(2, WORDS, (2, 7), generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Embedding, blocks, a last norm, a head."""

    def __init__(self, blocks, final=True):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(blocks)
        self.final = nn.LayerNorm(WIDTH) if final is True else final or nn.Identity()

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class Block(nn.Module):
    """Pre-norm; subclasses say how the sum is written."""

    def __init__(self, depth=0):
        super().__init__()
        self.depth = depth
        self.attention, self.feed = Attention(), FeedForward()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


def three(block: Callable[[int], nn.Module], final: Any = True) -> Callable[[], nn.Module]:
    return lambda: Model([block(i) for i in range(3)], final)


# ---- sums by other operators -----------------------------------------------------------------------------------------


class LayerScaled(Block):
    def prepare(self):
        self.a, self.b = nn.Parameter(torch.full((WIDTH,), 0.1)), nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x):
        x = torch.addcmul(x, self.a, self.attention(self.first(x)))
        return torch.addcmul(x, self.b, self.feed(self.second(x)))


class Subtracted(Block):
    def forward(self, x):
        x = x - self.attention(self.first(x))
        return x - self.feed(self.second(x))


class Interpolated(Block):
    def forward(self, x):
        x = torch.lerp(x, self.attention(self.first(x)), 0.3)
        return torch.lerp(x, self.feed(self.second(x)), 0.3)


class Stacked(Block):
    def forward(self, x):
        x = torch.stack([x, self.attention(self.first(x))]).sum(0)
        return torch.stack([x, self.feed(self.second(x))]).sum(0)


class InPlaceBranch(Block):
    def forward(self, x):
        y = self.attention(self.first(x))
        y += x
        z = self.feed(self.second(y))
        z += y
        return z


# ---- factors in tensors ----------------------------------------------------------------------------------------------


class DeepNormBuffer(Block):
    def prepare(self):
        self.register_buffer("alpha", torch.tensor([1.8]))

    def forward(self, x):
        x = self.first(x * self.alpha + self.attention(x))
        return self.second(x * self.alpha + self.feed(x))


class ScaledByDepth(Block):
    def prepare(self):
        self.register_buffer("k", torch.full((1,), (self.depth + 1) ** -0.5))

    def forward(self, x):
        x = x + self.attention(self.first(x) * self.k)
        return x + self.feed(self.second(x) * self.k)


class IndexedReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.attention, self.feed = (
            nn.ModuleList(Attention() for _ in range(3)),
            nn.ModuleList(FeedForward() for _ in range(3)),
        )
        self.w = nn.Parameter(torch.rand(3, 2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, (attend, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
            x = x + self.w[i, 0] * attend(x)
            x = x + self.w[i, 1] * feed(x)
        return self.head(x)


# ---- norms written out -----------------------------------------------------------------------------------------------


def by_variance(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


def by_var_mean(x: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(var + 1e-5)


def by_centred_square(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def by_product(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def by_sum(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) / WIDTH + 1e-6) ** -0.5


def by_deviation(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def largest_becomes_one(x: Tensor) -> Tensor:
    """A norm of a kind that has no name here."""
    return x / (x.abs().amax(-1, keepdim=True) + 1e-5)


NO_NORMS = {
    "x |x|": lambda x: x * x.norm(dim=-1, keepdim=True),
    "x sigmoid(|x|)": lambda x: x * torch.sigmoid(x.norm(dim=-1, keepdim=True)),
    "x mean(x^2)": lambda x: x * x.pow(2).mean(-1, keepdim=True),
    "x / (mean(x^2) + 1)": lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1),
    "x / (1 + |x|)": lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
    "x min(1 / |x|, 1)": lambda x: x * (1 / x.norm(dim=-1, keepdim=True)).clamp(max=1),
    "x / max(|x|, 1)": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1),
    "(x - mean) std": lambda x: (x - x.mean(-1, keepdim=True)) * x.std(-1, keepdim=True),
    "|x| / x": lambda x: x.norm(dim=-1, keepdim=True) / x,
    "squash": lambda x: x * x.norm(dim=-1, keepdim=True) / (1 + x.pow(2).sum(-1, keepdim=True)),
    "x over the sum of |x|": lambda x: F.normalize(x, p=1, dim=-1),
    "by a quarter of x": lambda x: x * torch.rsqrt(x[..., :4].pow(2).mean(-1, keepdim=True) + 1e-6),
    "centred over tokens, scaled over features": lambda x: (x - x.mean(1, keepdim=True)) * torch.rsqrt(
        x.var(-1, keepdim=True, unbiased=False) + 1e-5),
}  # fmt: skip


def over_tokens_and_examples(x: Tensor) -> Tensor:
    return (x - x.mean((0, 1))) / (x.var((0, 1), unbiased=False) + 1e-5).sqrt()


def over_tokens(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def instance_norm(x: Tensor) -> Tensor:
    return F.instance_norm(x.transpose(1, 2)).transpose(1, 2)


def by_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


def by_length_times_a_number(x: Tensor) -> Tensor:
    return x * (3.7 / x.norm(dim=-1, keepdim=True))


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    return y.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class StreamChangedSince(nn.Module):
    """What was normalized is overwritten by the sum."""

    def __init__(self):
        super().__init__()
        self.attention, self.feed = Attention(), FeedForward()

    def forward(self, x):
        x += self.attention(by_product(x))
        x += self.feed(by_product(x))
        return x


def response(x: Tensor) -> Tensor:
    """Global response normalization (ConvNeXt V2): features compete, none is normalized."""
    size = x.norm(dim=1, keepdim=True)
    return x + x * (size / (size.mean(-1, keepdim=True) + 1e-6))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Responding(Block):
    def prepare(self):
        self.feed = FeedForward(norm=response)


class WrittenOut(nn.Module):
    def __init__(self, norm, post=False):
        super().__init__()
        self.attention, self.feed = Attention(), FeedForward()
        self.norm, self.post = norm, post

    def forward(self, x):
        norm = self.norm
        if self.post:
            x = norm(x + self.attention(x))
            return norm(x + self.feed(x))
        x = x + self.attention(norm(x))
        return x + self.feed(norm(x))


def written_out(norm, post=False):
    return lambda: Model([WrittenOut(norm, post) for _ in range(3)], None if post else Function(norm))


# ---- norms that are handed the sum, or more than their input ---------------------------------------------------------


class SkipNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x, skip=None):
        return F.layer_norm(x if skip is None else x + skip, (WIDTH,), self.w, self.b)


class NeedsSkipNorm(SkipNorm):
    def forward(self, x, skip):
        return super().forward(x, skip)


class SkipBlock(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.attention, self.feed, self.first, self.second = Attention(), FeedForward(), norm(), norm()

    def forward(self, x):
        x = self.first(self.attention(x), x)
        return self.second(self.feed(x), skip=x)


class SumAndNorm(nn.Module):
    """(norm of the sum, the sum), as fused kernels return them."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, residual=None):
        x = x if residual is None else x + residual
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w, x


class CarryingBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed, self.first, self.second = Attention(), FeedForward(), SumAndNorm(), SumAndNorm()

    def forward(self, x, residual):
        y, residual = self.first(x, residual)
        y, residual = self.second(self.attention(y), residual)
        return self.feed(y), residual


class Carrying(Model):
    """Blocks hand on what they made and the stream by itself; the next one's first norm carries out the sum."""

    def __init__(self):
        super().__init__([CarryingBlock() for _ in range(3)], SumAndNorm())

    def forward(self, tokens):
        x, residual = self.embed(tokens), None
        for block in self.blocks:
            x, residual = block(x, residual)
        return self.head(self.final(x, residual)[0])


class Modulated(nn.Module):
    """LayerNorm without parameters, scaled and shifted by what it is given (AdaLN)."""

    def forward(self, x, shift=None, scale=None):
        y = F.layer_norm(x, (WIDTH,))
        return y if scale is None else y * (1 + scale) + shift


class ModulatedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed, self.first, self.second = Attention(), FeedForward(), Modulated(), Modulated()
        self.condition = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x, c):
        a, b, d, e = self.condition(c).unsqueeze(1).chunk(4, -1)
        x = x + self.attention(self.first(x, shift=a, scale=b))
        return x + self.feed(self.second(x, d, e))


class Conditioned(Model):
    def __init__(self):
        super().__init__([ModulatedBlock() for _ in range(3)])

    def forward(self, tokens):
        x = self.embed(tokens)
        c = x.mean(1)
        for block in self.blocks:
            x = block(x, c)
        return self.head(self.final(x))


class DropNorm(nn.Module):
    """A gain of its own, and a module without weights inside."""

    def __init__(self, dim=WIDTH):
        super().__init__()
        self.gamma, self.drop, self.inner = (
            nn.Parameter(torch.ones(dim)),
            nn.Dropout(0.1),
            nn.LayerNorm(dim, elementwise_affine=False),
        )

    def forward(self, x):
        return self.drop(self.inner(x)) * self.gamma


class DropNormed(Block):
    def prepare(self):
        self.first, self.second = DropNorm(), DropNorm()
