"""Models as a stranger wires them, with the truth about each: residual sums by other operators, norms written out or handed the sum,
factors in tensors, streams beside other tensors, functions of somebody's own, blocks under any name.

``STRANGERS`` is the table: what to build, what to call it with, and what is true of it. Where a capture cannot know, the truth is
"unknown" for that capture alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from strange_blocks import (
    NO_NORMS,
    WORDS,
    Block,
    Carrying,
    Conditioned,
    DeepNormBuffer,
    DropNormed,
    IndexedReZero,
    InPlaceBranch,
    Interpolated,
    LayerScaled,
    Model,
    NeedsSkipNorm,
    Responding,
    ScaledByDepth,
    SkipBlock,
    SkipNorm,
    Stacked,
    StreamChangedSince,
    Subtracted,
    by_centred_square,
    by_deviation,
    by_length,
    by_length_times_a_number,
    by_product,
    by_sum,
    by_var_mean,
    by_variance,
    in_place,
    instance_norm,
    largest_becomes_one,
    over_tokens,
    over_tokens_and_examples,
    three,
    written_out,
)
from styles import WIDTH, Attention, FeedForward
from torch import nn

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


# ---- sums inside of a sub-layer, weights beside the features ---------------------------------------------------------


class Keeping(nn.Module):
    """A recurrence over the tokens, whose last state is kept for later: made by a sum, and no part of the stream."""

    def __init__(self):
        super().__init__()
        self.qkv, self.gate, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        decay = F.logsigmoid(self.gate(x)).cumsum(1)
        state = torch.zeros(len(x), WIDTH, WIDTH) * decay[:, -1:].exp()
        self.state = state + (k * (decay[:, -1:] - decay).exp()).transpose(1, 2) @ v
        return self.out((q @ k.transpose(1, 2)).tril() @ v)


class KeepingBlock(Block):
    def prepare(self):
        self.attention = Keeping()


class WithStates(Model):
    def __init__(self):
        super().__init__([KeepingBlock() for _ in range(3)])

    def forward(self, tokens):
        logits = super().forward(tokens)
        return logits, [block.attention.state for block in self.blocks]


class Routed(nn.Module):
    def __init__(self, norm, top=None):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(FeedForward() for _ in range(3))
        self.norm, self.top = norm, top

    def forward(self, x):
        if self.top is None:
            weights = self.norm(self.router(x).sigmoid())
            return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.top, -1)
        weights, y = self.norm(weights), torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            y.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return y.view_as(x)


class RoutedBlock(Block):
    norm, top = staticmethod(F.normalize), None

    def prepare(self):
        self.feed = Routed(lambda w: type(self).norm(w, dim=-1), self.top)


class RoutedByLength(RoutedBlock):
    top = 2


class RoutedBySum(RoutedBlock):
    norm, top = staticmethod(lambda w, dim: w / torch.norm(w, p=1, dim=dim, keepdim=True)), 2


class NormedValues(Attention):
    """Queries and values are normalized, keys are not."""

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, v = self.norm(q), self.norm(v)
        if self.by_hand:
            y = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class NormedValuesBlock(Block):
    def prepare(self):
        self.attention = NormedValues(norm=by_product)


class NormedValuesByHand(Block):
    def prepare(self):
        self.attention = NormedValues(norm=by_product, by_hand=True)


class ShortcutExperts(nn.Module):
    """Experts start with the first feed-forward layer and are added after the second (LongCat): no attention starts where they do."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.experts = Block(), Block(), FeedForward()

    def forward(self, x):
        a, b = self.first, self.second
        x = x + a.attention(a.first(x))
        h = a.second(x)
        late = self.experts(h)
        x = x + a.feed(h)
        x = x + b.attention(b.first(x))
        return x + b.feed(b.second(x)) + late


class GivenASum(Block):
    """x + f(norm(x + attention(x))), as Zamba 2 has it."""

    def forward(self, x):
        return x + self.feed(self.second(x + self.attention(self.first(x))))


# ---- ends of a stream ------------------------------------------------------------------------------------------------


class ResidualGroup(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.matrix = nn.ModuleList(Block() for _ in range(2)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = x
        for block in self.inner:
            y = block(y)
        return x + self.matrix(y)


class ClassBlock(Block):
    """Attends from one token to itself and all others, which stay as they are (CaiT)."""

    def forward(self, one, x):
        one = one + self.attention(self.first(torch.cat([one, x], 1)))[:, :1]
        return one + self.feed(self.second(one))


class ClassToken(Model):
    def __init__(self):
        super().__init__([Block(), Block()])
        self.token, self.late = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.ModuleList([ClassBlock(), ClassBlock()])

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        one = self.token.expand(len(x), -1, -1)
        for block in self.late:
            one = block(one, x)
        return self.head(self.final(torch.cat([one, x], 1))[:, 0])


class PositionsAfterNorm(Model):
    def __init__(self):
        super().__init__([Block() for _ in range(3)])
        self.enter, self.positions = nn.LayerNorm(WIDTH), nn.Embedding(7, WIDTH)

    def forward(self, tokens):
        x = self.enter(self.embed(tokens)) + self.positions(torch.arange(7))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class CrossAttention(Attention):
    def forward(self, x, memory):
        return super().forward(torch.cat([x, memory], 1))[:, : x.shape[1]]


class Latents(nn.Module):
    """The stream starts as a parameter; lists are never called."""

    def __init__(self):
        super().__init__()
        self.embed, self.latents = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(1, 4, WIDTH))
        self.layers = nn.ModuleList(
            nn.ModuleList([CrossAttention(), FeedForward(), *(nn.LayerNorm(WIDTH) for _ in range(3))]) for _ in range(3)
        )
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        memory = self.embed(tokens)
        x = self.latents.repeat(len(memory), 1, 1)
        for attend, feed, first, other, second in self.layers:
            x = x + attend(first(x), other(memory))
            x = x + feed(second(x))
        return self.final(x)


def frozen(blocks: int) -> Callable[[], nn.Module]:
    """The embedding and that many of four blocks."""

    def make() -> nn.Module:
        model = Model([Block() for _ in range(4)])
        for part in (model.embed, *model.blocks[:blocks]):
            part.requires_grad_(False)
        return model

    return make


def last_matrices_alone() -> nn.Module:
    model = Model([Block() for _ in range(3)]).requires_grad_(False)
    for block in model.blocks:
        block.feed.down.weight.requires_grad_()
    return model


@dataclass(frozen=True)
class Stranger:
    make: Callable[[], nn.Module]
    placement: str
    blocks: int = 3
    final: tuple[str, ...] | None = ("final",)  # None: not asked
    graph: str | None = None  # where that capture must say something else
    embedding: tuple[str, ...] = ()
    queries_keys: int | None = None
    parallel: bool = False
    kinds: tuple[str, ...] | None = None  # of norms that are functions, each once
    unseen: str = ""  # what the graph's capture must name, and say why


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
    **{f"no norm: {name}": Stranger(written_out(f), "unknown", kinds=()) for name, f in NO_NORMS.items()},
    "no norm: x |x|, post": Stranger(written_out(NO_NORMS["x |x|"], True), "unknown", kinds=()),
    "no norm, between the matrices": Stranger(three(lambda _: Responding()), "pre", kinds=()),
    "BatchNorm written out": Stranger(written_out(over_tokens_and_examples), "pre", final=None, kinds=("batch",)),
    "InstanceNorm written out": Stranger(written_out(over_tokens), "pre", final=None, kinds=("layer over axis 1",)),
    "F.instance_norm": Stranger(written_out(instance_norm), "pre", final=None, kinds=("instance",)),
    "LayerNorm written out": Stranger(written_out(by_variance), "pre", final=None, kinds=("layer",)),
    "RMSNorm written out": Stranger(written_out(by_sum), "pre", final=None, kinds=("rms",)),
    "over its length": Stranger(written_out(by_length), "pre", final=None, kinds=("scale",)),
    "over its length, times a number": Stranger(written_out(by_length_times_a_number), "pre", final=None, kinds=("scale",)),
    "a norm in place": Stranger(written_out(in_place), "pre", final=None, kinds=("rms",)),
    "a stream changed in place": Stranger(three(lambda _: StreamChangedSince()), "pre", kinds=("rms",), graph="unknown"),
    "a state is kept": Stranger(WithStates, "pre"),
    "weights of experts over their length": Stranger(three(RoutedBlock), "pre"),
    "weights of two experts over their length": Stranger(three(RoutedByLength), "pre"),
    "weights of two experts over their sum": Stranger(three(RoutedBySum), "pre"),
    "a norm of values": Stranger(three(NormedValuesBlock), "pre", queries_keys=3),
    "a norm of values, by hand": Stranger(three(NormedValuesByHand), "pre", queries_keys=3),
    "shortcut to experts": Stranger(lambda: Model([ShortcutExperts(), ShortcutExperts()]), "pre", 2),
    "x + f(x + attention(x))": Stranger(three(lambda i: GivenASum() if i == 1 else Block()), "pre"),
    "residual groups": Stranger(lambda: Model([ResidualGroup(), ResidualGroup()]), "pre", 4),
    "two streams joined at the end": Stranger(ClassToken, "pre", 4),
    "positions after the norm": Stranger(PositionsAfterNorm, "pre", embedding=("enter",)),
    "latents are a parameter": Stranger(Latents, "pre"),
    "a frozen embedding": Stranger(frozen(0), "pre", 4),
    "a frozen block": Stranger(frozen(1), "pre", 4, unseen="blocks.0"),
    "three frozen blocks": Stranger(frozen(3), "pre", 4, graph="unknown", unseen="blocks.0 ... blocks.2"),
    "all frozen but last matrices": Stranger(last_matrices_alone, "pre", unseen="blocks.0"),
}  # fmt: skip
