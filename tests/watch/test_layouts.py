"""Readings where a stream lies in another way than (batch, tokens, features), or a part of it comes later: masks, dropout, scores."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlab

B, L, D = 5, 7, 12
LENGTHS = torch.tensor([7, 3, 5, 1, 6])


def real(length=L, lengths=LENGTHS):
    return torch.arange(length) < lengths[:, None]


def once(tmp_path, model, call, preset="full", probes=()):
    """The readings of one step: {quantity: {site: value}}, and run.json. Gains are random: behind a gain of one all lengths are one."""
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.LayerNorm):
                norm.weight.normal_()
                norm.bias.normal_()
    with normlab.watch(
        model, out=tmp_path / "run", every=1, max_overhead=None, preset=preset, probes=probes, overwrite=True
    ) as watch:
        out = call()
        (out * torch.randn_like(out)).sum().backward()
        watch.step(loss=1.0)
        said = watch.coverage()
    run = normlab.Run(tmp_path / "run")
    assert not list(run.events())
    return {q: {s: v.last() for s, v in sites.items()} for q, sites in run.table().items()}, run.info, said


def torchs(batch_first, dropout=0.0):
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=dropout, batch_first=batch_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def length_of(y, mask):
    return float(y[mask].norm(dim=-1).mean() / math.sqrt(y.shape[-1]))


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("square", [False, True])
def test_masks_of_torchs_encoder_in_either_layout(tmp_path, batch_first, square):
    """Also where there are as many sequences as tokens: torch's attention says which axis is which."""
    length = B if square else L
    mask = real(length, LENGTHS.clamp(max=length))
    model = torchs(batch_first)
    x = torch.randn(B, length, D)
    outs = []
    handle = model.layers[1].norm2.register_forward_hook(lambda m, a, y: outs.append(y.detach()))
    given = x if batch_first else x.transpose(0, 1)
    table, info, _ = once(tmp_path, model, lambda: model(given, src_key_padding_mask=~mask))
    handle.remove()
    y = outs[0] if batch_first else outs[0].transpose(0, 1)
    assert table["padding_share"]["layers.1.norm2"] == pytest.approx(1 - float(mask.float().mean()))
    assert table["length"]["layers.1.norm2"] == pytest.approx(length_of(y, mask), rel=1e-5)
    assert table["stream_rms"]["layers.1"] == pytest.approx(float(y[mask].square().mean().sqrt()), rel=1e-5)
    assert info["coverage"]["mask_not_used"] == {}


def test_a_causal_mask_of_torchs_encoder_is_not_a_padding_mask(tmp_path):
    model = torchs(True)
    future = torch.ones(B, B, dtype=torch.bool).triu(1)
    table, info, _ = once(tmp_path, model, lambda: model(torch.randn(B, B, D), mask=future))
    assert "padding_share" not in table and info["coverage"]["mask_not_used"] == {}


class Flat(nn.Module):
    """OPT's way: the norm in front of the feed-forward sees (batch * tokens, features)."""

    def __init__(self, turn=False, heads=None, embed=False):
        super().__init__()
        self.embedding = nn.Embedding(11, D) if embed else None
        self.first, self.flat, self.turn, self.heads = (
            nn.LayerNorm(D),
            nn.LayerNorm(D if heads is None else D // heads),
            turn,
            heads,
        )
        self.out = nn.Linear(D, 3)

    def forward(self, x, attention_mask):
        x = x.T if self.turn else x
        x = self.embedding(x) if self.embedding is not None else x
        x = self.first(x)
        if self.heads is None:
            return self.out(self.flat(x.reshape(-1, D)).view(x.shape))
        q = self.flat(x.unflatten(-1, (self.heads, -1)).transpose(1, 2))
        return self.out(q.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("heads", [None, 3])
def test_masks_at_flattened_and_at_four_dimensional_inputs(tmp_path, heads):
    model = Flat(heads=heads)
    x, mask = torch.randn(B, L, D), real()
    table, info, _ = once(tmp_path, model, lambda: model(x, mask))
    y = model.first(x).detach()
    y = model.flat(y) if heads is None else model.flat(y.unflatten(-1, (heads, -1)))
    assert table["length"]["flat"] == pytest.approx(length_of(y.detach(), mask), rel=1e-5)
    assert (
        table["padding_share"]["flat"] == pytest.approx(1 - float(mask.float().mean()))
        and not info["coverage"]["mask_not_used"]
    )


@pytest.mark.parametrize("turn", [False, True])
def test_what_an_embedding_is_given_tells_the_layout(tmp_path, turn):
    """As many sequences as tokens, and no module that says which is which."""
    model = Flat(turn, embed=True)
    tokens, mask = torch.randint(0, 11, (B, B)), real(B, LENGTHS.clamp(max=B))
    table, info, _ = once(tmp_path, model, lambda: model(tokens, mask))
    y = model.first(model.embedding(tokens)).detach()
    assert table["length"]["first"] == pytest.approx(length_of(y, mask), rel=1e-5)
    assert table["length"]["flat"] == pytest.approx(length_of(model.flat(y).detach(), mask), rel=1e-5)
    assert not info["coverage"]["mask_not_used"]


class Turned(torch.autograd.Function):
    """Nobody can know what a function of somebody's does with its axes."""

    @staticmethod
    def forward(ctx, x):
        return x.transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx, grad):
        return grad.transpose(0, 1)


TURNS = {
    "as it came": (lambda x: x, True), "transpose": (lambda x: x.transpose(0, 1), False),
    "negative axes": (lambda x: x.transpose(-3, -2), False), "permute": (lambda x: x.permute(1, 0, 2), False),
    "twice": (lambda x: x.permute(1, 0, 2).contiguous().movedim(0, 1), True), "swapaxes": (lambda x: x.swapaxes(0, 1) * 2, False),
    "heads apart": (lambda x: x.unflatten(-1, (3, -1)).transpose(0, 1).flatten(2), False),
    "flat and back": (lambda x: x.reshape(-1, D).view(B, B, D).transpose(0, 1), False),
}  # fmt: skip
UNTELLABLE = {"a function": Turned.apply, "piece by piece": lambda x: torch.stack(list(x.unbind(1)))}


class Written(nn.Module):
    """Everything by hand, as many sequences as tokens: no module says which axis is which. Norms on the stream, on heads, on rows."""

    def __init__(self, turn):
        super().__init__()
        self.turn, self.embedding, self.positions = turn, nn.Embedding(11, D), nn.Parameter(torch.randn(B, D))
        self.first, self.heads, self.flat = nn.LayerNorm(D), nn.LayerNorm(D // 3), nn.LayerNorm(D)
        self.q, self.kv, self.out = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, tokens, attention_mask):
        x = self.turn(self.embedding(tokens) + self.positions)
        h = self.first(x)
        q = self.heads(self.q(h).unflatten(-1, (3, -1)))
        k, v = (t.unflatten(-1, (3, -1)) for t in self.kv(h).chunk(2, -1))
        weights = torch.einsum("ibhd,jbhd->bhij", q, k).softmax(-1)
        x = x + self.out(torch.einsum("bhij,jbhd->ibhd", weights, v).flatten(2))
        return x + self.flat(x.reshape(-1, D)).view(x.shape)


def seen_at(model, names, call):
    """What left these modules, and what was read of them."""
    outs = {}
    handles = [
        model.get_submodule(n).register_forward_hook(lambda m, a, y, n=n: outs.__setitem__(n, y.detach()))
        for n in names
    ]
    table = call()
    for handle in handles:
        handle.remove()
    return outs, table


@pytest.mark.parametrize("turn", TURNS)
def test_the_graph_tells_the_layout_where_no_module_does(tmp_path, turn):
    way, batch_first = TURNS[turn]
    model, mask = Written(way), real(B, LENGTHS.clamp(max=B))
    tokens = torch.randint(0, 11, (B, B))
    outs, (table, info, _) = seen_at(
        model, ("first", "heads", "flat"), lambda: once(tmp_path, model, lambda: model(tokens, mask))
    )
    lies = mask if batch_first else mask.T
    assert not torch.equal(mask, mask.T) and info["coverage"]["mask_not_used"] == {}
    for site, y in outs.items():
        laid = {"first": lies, "heads": lies[:, :, None].expand(B, B, 3), "flat": lies.reshape(-1)}[site]
        assert table["length"][site] == pytest.approx(length_of(y, laid), rel=1e-5), site
        assert table["length"][site] != pytest.approx(length_of(y, torch.ones_like(laid)), rel=1e-6), site


@pytest.mark.parametrize("turn", UNTELLABLE)
def test_where_the_graph_does_not_tell_the_mask_is_not_used(tmp_path, turn):
    model, mask = Written(UNTELLABLE[turn]), real(B, LENGTHS.clamp(max=B))
    tokens = torch.randint(0, 11, (B, B))
    outs, (table, info, said) = seen_at(
        model, ("first", "heads", "flat"), lambda: once(tmp_path, model, lambda: model(tokens, mask))
    )
    assert {"first", "heads", "flat"} <= set(info["coverage"]["mask_not_used"]) and "nothing tells which" in said
    for site, y in outs.items():
        assert table["length"][site] == pytest.approx(length_of(y, torch.ones(y.shape[:-1], dtype=bool)), rel=1e-5)


def test_a_flattened_stream_that_is_sequence_first(tmp_path):
    """Fewer sequences than tokens, and the order inside of one axis: the nearest shape that has both tells."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.flat = nn.Embedding(11, D), nn.LayerNorm(D)

        def forward(self, tokens, attention_mask):
            return self.flat(self.embedding(tokens).transpose(0, 1).reshape(-1, D))

    model, mask = Model(), real()
    tokens = torch.randint(0, 11, (B, L))
    outs, (table, _info, _) = seen_at(model, ("flat",), lambda: once(tmp_path, model, lambda: model(tokens, mask)))
    assert table["length"]["flat"] == pytest.approx(length_of(outs["flat"], mask.T.reshape(-1)), rel=1e-5)


def test_attention_that_turns_inside_of_a_block_says_nothing_of_the_stream(tmp_path):
    """nn.MultiheadAttention that wants sequences second, in blocks whose stream has them first."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.norm, self.attention = (
                nn.Embedding(11, D),
                nn.LayerNorm(D),
                nn.MultiheadAttention(D, 2),
            )
            self.last = nn.LayerNorm(D)

        def forward(self, tokens, attention_mask):
            x = self.embedding(tokens)
            h = self.norm(x).transpose(0, 1)
            return self.last(x + self.attention(h, h, h, key_padding_mask=~attention_mask)[0].transpose(0, 1))

    model, mask = Model(), real(B, LENGTHS.clamp(max=B))
    tokens = torch.randint(0, 11, (B, B))
    outs, (table, info, _) = seen_at(
        model, ("norm", "last"), lambda: once(tmp_path, model, lambda: model(tokens, mask))
    )
    assert info["coverage"]["mask_not_used"] == {}
    for site, y in outs.items():
        assert table["length"][site] == pytest.approx(length_of(y, mask), rel=1e-5), site


def test_without_evidence_the_mask_is_not_used_and_this_is_said(tmp_path):
    model = Flat()
    table, info, said = once(tmp_path, model, lambda: model(torch.randn(B, B, D), real(B, LENGTHS.clamp(max=B))))
    assert "padding_share" not in table and set(info["coverage"]["mask_not_used"]) == {"first", "flat", "model"}
    assert "mask not used: first (5 x 5 can be read batch-first or sequence-first" in said


def test_a_mask_that_does_not_fit_is_said(tmp_path):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.pooled = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, x, attention_mask):
            return self.pooled(self.norm(x[:, ::2]).mean(1))

    model = Halved()
    _, info, said = once(tmp_path, model, lambda: model(torch.randn(B, L, D), real()))
    assert set(info["coverage"]["mask_not_used"]) == {"norm"}  # where tokens are averaged there is nothing to hide
    assert "a mask of 5 x 7 does not lie in 5 x 4" in said


# ---- dropout in a fused stack ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("placement", ["pre", "peri", "sub-ln"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_stream_of_a_fused_stack_is_the_one_with_its_dropout(tmp_path, dropout, placement, norm):
    """Against the sums themselves: what each one gave, and the gradient with respect to it, found by adding a zero to it."""
    torch.manual_seed(0)
    model = normlab.build(architecture="encoder", dim=D, num_layers=3, num_heads=2, num_classes=5, vocab_size=31,
                          max_length=16, norm=norm, placement=placement, dropout=dropout)  # fmt: skip
    tokens = torch.randint(0, 31, (B, L))
    table, _, _ = once(tmp_path, model, lambda: (torch.manual_seed(3), model(tokens))[1])

    assert set(table["stream_grad"]) == set(table["stream_rms"]) == {f"stack.layers.{i}" for i in range(3)}
    before = None
    for at in range(
        3
    ):  # the same random numbers once more, a zero added to the stream after block ``at``, and the sums seen
        torch.manual_seed(3)
        zero, kept, sums = torch.zeros(B, L, D, requires_grad=True), [], []

        def block(module, args, out, zero=zero, kept=kept):
            kept.append(out.branch)
            return out._replace(x=out.x + zero / (1.0 if out.branch is None else out.residual.alpha))

        def see(module, args, out, kept=kept, sums=sums):
            if kept and args[1] is kept[0]:
                sums.append((out[0] if isinstance(out, tuple) else out).detach())

        handles = [model.stack.layers[at].register_forward_hook(block)]
        handles += [m.register_forward_hook(see) for m in model.modules() if isinstance(m, normlab.placements.Residual)]
        out = model(tokens)
        for handle in handles:
            handle.remove()
        (out * torch.randn_like(out)).sum().backward()
        site = f"stack.layers.{at}"
        assert table["stream_grad"][site] == pytest.approx(float(zero.grad.norm()), rel=1e-4)
        if kept[0] is not None:
            (stream,) = sums
            assert table["stream_rms"][site] == pytest.approx(float(stream.square().mean().sqrt()), rel=1e-5)
            if before is not None:
                share = (stream - before).norm() / stream.norm()
                assert table["branch_share"][site] == pytest.approx(float(share), rel=1e-4)
            before = stream


# ---- scores ----------------------------------------------------------------------------------------------------------


def readings_of(scores):
    """max_logit and attention_entropy of (B, H, queries, keys), -inf where hidden."""
    visible = (scores > -5e3).sum(-1)
    share = scores.masked_fill(scores <= -5e3, -math.inf).softmax(-1)
    ratio = (torch.special.entr(share).sum(-1) / visible.double().log())[visible > 1]
    return float(scores.max()), float(ratio.mean())


class Attending(nn.Module):
    """Attention with an additive bias, through torch's function or written out."""

    def __init__(self, by_hand):
        super().__init__()
        self.q, self.k, self.by_hand = nn.Linear(D, D), nn.Linear(D, D), by_hand

    def forward(self, x, bias):
        q, k = (m(x).unflatten(-1, (3, -1)).transpose(1, 2) for m in (self.q, self.k))
        v = x.unflatten(-1, (3, -1)).transpose(1, 2)
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        scores = q @ k.transpose(-1, -2) / 2 + bias
        return (self.by_hand(scores) @ v).transpose(1, 2).flatten(2)


WAYS = {
    "function": None, "F.softmax": lambda s: F.softmax(s, dim=-1), "method": lambda s: s.softmax(-1), "torch": lambda s: torch.softmax(s, 3),
    "float": lambda s: F.softmax(s, dim=-1, dtype=torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_the_scores_of_attention_contain_what_is_added_to_them(tmp_path, way, hidden):
    blocks = nn.ModuleList(Attending(WAYS[way]) for _ in range(2))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x, bias):
            for block in self.blocks:
                x = x + block(x, bias)
            return x

    x = torch.randn(B, L, D)
    bias = 3 * torch.randn(B, 3, L, L)
    bias = bias.masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), hidden)
    table, info, _ = once_with(tmp_path, Model(), x, bias)
    q, k = (m(x).unflatten(-1, (3, -1)).transpose(1, 2) for m in (blocks[0].q, blocks[0].k))
    largest, entropy = readings_of((q @ k.transpose(-1, -2) / 2 + bias).detach())
    assert info["sites"]["attention"] == ["blocks.0.attention", "blocks.1.attention"]
    assert table["max_logit"]["blocks.0.attention"] == pytest.approx(largest, rel=1e-5)
    assert table["attention_entropy"]["blocks.0.attention"] == pytest.approx(entropy, rel=1e-4)


def once_with(tmp_path, model, *args):
    return once(tmp_path, model, lambda: model(*args))


def test_a_softmax_that_is_no_attention_is_not_taken_for_one(tmp_path):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(D, 4)

        def forward(self, x):
            return x * F.softmax(self.router(x), dim=-1).amax(-1, keepdim=True)

    model = nn.Sequential(Gate(), Gate())
    table, info, _ = once(tmp_path, model, lambda: model(torch.randn(B, L, D)))
    assert "max_logit" not in table and info["coverage"]["attention"] == 0
