"""Models as a stranger wires them, with the truth about each: residual sums by other operators, norms written out or handed the sum,
factors in tensors, streams beside other tensors, functions of somebody's own, blocks under any name.

``STRANGERS`` is the table: what to build, what to call it with, and what is true of it. Where a capture cannot know, the truth is
"unknown" for that capture alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


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


# ---- functions of somebody's own -------------------------------------------------------------------------------------


class OwnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.flatten(0, -2).T @ x.flatten(0, -2)


class OwnNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.rms_norm(x, (x.shape[-1],), w)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            return torch.autograd.grad(F.rms_norm(x, (x.shape[-1],), w), (x, w), g)


class OwnFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(2 * WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2 * WIDTH))

    def forward(self, x):
        return OwnLinear.apply(F.gelu(OwnLinear.apply(x, self.up)), self.down)


class OwnMatrices(Block):
    def prepare(self):
        self.feed = OwnFeedForward()


class OwnNorms(Block):
    def prepare(self):
        self.first = self.second = nn.Identity()
        self.a, self.b = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x + self.attention(OwnNorm.apply(x, self.a))
        return x + self.feed(OwnNorm.apply(x, self.b))


# ---- blocks under any name -------------------------------------------------------------------------------------------


class OneLayer(nn.Module):
    """A layer and the model's last norm in one body."""

    def __init__(self, post=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.attention, self.feed, self.post = Attention(), FeedForward(), post
        self.first, self.second, self.final = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.post:
            x = self.first(x + self.attention(x))
            return self.head(self.second(x + self.feed(x)))
        x = x + self.attention(self.first(x))
        x = x + self.feed(self.second(x))
        return self.head(self.final(x))


class Added(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def normed_feed() -> nn.Module:
    return Added(nn.Sequential(nn.LayerNorm(WIDTH), FeedForward()))


class WithTail(Model):
    """A residual module after the list, before the last norm."""

    def __init__(self, in_body=False):
        super().__init__([Block() for _ in range(3)])
        self.tail, self.tail_norm, self.in_body = normed_feed(), nn.LayerNorm(WIDTH), in_body
        self.tail_feed = FeedForward()

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        x = x + self.tail_feed(self.tail_norm(x)) if self.in_body else self.tail(x)
        return self.head(self.final(x))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.final = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS), nn.LayerNorm(WIDTH)
        self.lower, self.middle, self.upper = Block(), Block(), Block()

    def forward(self, tokens):
        return self.head(self.final(self.upper(self.middle(self.lower(self.embed(tokens))))))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.final = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS), nn.LayerNorm(WIDTH)
        self.block = Block()

    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(4):
            x = self.block(x)
        return self.head(self.final(x))


def flat_sequential() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(3)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
    )


class MeanAdded(Block):
    def forward(self, x):
        return super().forward(x) + 1e-3 * x.mean(1, keepdim=True)


class NormAfterConcatenation(Model):
    def __init__(self):
        super().__init__([Block() for _ in range(3)], nn.LayerNorm(2 * WIDTH))
        self.head = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, tokens):
        x = first = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(torch.cat([x, first], -1)))


# ---- streams beside other tensors ------------------------------------------------------------------------------------


class WeightsFirst(Block):
    """Returns what attention looked at, then the stream."""

    def forward(self, x):
        return torch.zeros(x.shape[0], x.shape[1], x.shape[1]) + x.mean(-1, keepdim=True), super().forward(x)


class ConditionFirst(Block):
    def forward(self, c, x):
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x) + c)


class Keywords(Block):
    def forward(self, *, mask, x):
        return super().forward(x)


class AsDictionary(Block):
    def forward(self, state):
        return {"count": state["count"] + 1, "x": super().forward(state["x"])}


class Other(Model):
    """``call(block, x, c)`` says how a block is called and where in its answer the stream is."""

    def __init__(self, block, call):
        super().__init__([block() for _ in range(3)])
        self.call, self.condition = call, nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens)
        c = self.condition(x)
        for block in self.blocks:
            x = self.call(block, x, c)
        return self.head(self.final(x))


def weights_first():
    return Other(WeightsFirst, lambda block, x, c: block(x)[1])


def condition_first():
    return Other(ConditionFirst, lambda block, x, c: block(c, x))


def keywords():
    return Other(Keywords, lambda block, x, c: block(mask=torch.ones(2, 7, dtype=torch.bool), x=x))


def as_dictionary():
    return Other(AsDictionary, lambda block, x, c: block({"count": torch.zeros(()), "x": x})["x"])


@dataclass(frozen=True)
class Stranger:
    make: Callable[[], nn.Module]
    placement: str
    blocks: int = 3
    final: tuple[str, ...] | None = ("final",)  # None: not asked
    graph: str | None = None  # where that capture must say something else


STRANGERS = {
    "addcmul": Stranger(three(LayerScaled), "pre"),
    "sub": Stranger(three(Subtracted), "pre"),
    "lerp": Stranger(three(Interpolated), "pre"),
    "stack and sum": Stranger(three(Stacked), "pre"),
    "in place on the branch": Stranger(three(InPlaceBranch), "pre", graph="unknown"),
    "deepnorm, a buffer of one element": Stranger(three(DeepNormBuffer, None), "deepnorm", final=()),
    "layernorm-scaling, a buffer of one element": Stranger(three(ScaledByDepth), "layernorm-scaling"),
    "rezero, an indexed parameter": Stranger(IndexedReZero, "rezero", final=()),
    **{
        f"{f.__name__}, {'post' if post else 'pre'}": Stranger(written_out(f, post), "post" if post else "pre", final=None)
        for f in (by_variance, by_var_mean, by_centred_square, by_product, by_sum, by_deviation)
        for post in (False, True)
    },
    "a norm without a name": Stranger(written_out(largest_becomes_one), "unknown", final=None),
    "a norm without a name, post": Stranger(written_out(largest_becomes_one, True), "unknown", final=None),
    "skip=None": Stranger(three(lambda _: SkipBlock(SkipNorm), None), "post", final=()),
    "skip": Stranger(three(lambda _: SkipBlock(NeedsSkipNorm), None), "post", final=()),
    "sum carried out by the next norm": Stranger(Carrying, "pre", final=None),
    "AdaLN": Stranger(Conditioned, "pre"),
    "a norm with dropout inside": Stranger(three(DropNormed), "pre"),
    "matrices as functions": Stranger(three(OwnMatrices), "pre"),
    "norms as functions": Stranger(three(OwnNorms), "pre", graph="unknown"),
    "one layer": Stranger(OneLayer, "pre", 1),
    "one layer, post": Stranger(lambda: OneLayer(True), "post", 1, final=()),
    "a tail": Stranger(WithTail, "pre", 4),
    "a tail in the body": Stranger(lambda: WithTail(True), "pre", 3),
    "one feed-forward layer, then blocks": Stranger(lambda: Model([normed_feed(), Block(), Block()]), "pre"),
    "names": Stranger(Named, "pre"),
    "shared": Stranger(Shared, "pre", 4),
    "a flat list": Stranger(flat_sequential, "pre", final=("4",)),
    "a mean added": Stranger(three(MeanAdded), "pre"),
    "a norm after a concatenation": Stranger(NormAfterConcatenation, "pre", final=None),
    "weights before the stream": Stranger(weights_first, "pre"),
    "condition before the stream": Stranger(condition_first, "pre"),
    "keywords": Stranger(keywords, "pre"),
    "a dictionary": Stranger(as_dictionary, "pre"),
}  # fmt: skip
