"""What a watch sees of models written in other ways, and what it says of that which it does not see."""

from __future__ import annotations

import pytest
import torch
from foreign_models import MASK, B, L, V, hugging
from torch import nn

import normlab


def recorded(folder, model, call, steps=1, **options):
    """The run, and its coverage in words."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"every": 1, "max_overhead": None, **options}
    with normlab.watch(model, optimizer=optimizer, out=folder, **options) as watch:
        for _ in range(steps):
            call(model).square().mean().backward()
            optimizer.step()
            watch.step(loss=0.0)
    return normlab.Run(folder), watch.coverage()


def reading(run, quantity, site):
    return run.series(quantity)[site].values[-1]


# ---- streams whose features are not last -----------------------------------------------------------------------------


class Convolved(nn.Module):
    """x + relu(norm(conv(x))), channels second; ``inside``: what a block has beside its convolution."""

    def __init__(self, width, rank=2, norm=True):
        super().__init__()
        conv, batch = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[rank - 1]

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = conv(width, width, 3, padding=1), batch(width) if norm else nn.Identity()

            def forward(self, x):
                return x + torch.relu(self.norm(self.conv(x)))

        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(2).mean(2))


class ConvolvesTokens(nn.Module):
    """As a Conformer does: features last, turned around for the convolution alone."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.conv, self.batch = (
            nn.LayerNorm(width),
            nn.Conv1d(width, width, 3, padding=1),
            nn.BatchNorm1d(width),
        )

    def forward(self, x):
        return x + self.batch(self.conv(self.norm(x).transpose(1, 2))).transpose(1, 2)


class NormsLast(nn.Module):
    """As a ConvNeXt does: channels second, turned around for the norm alone."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm, self.mix = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.LayerNorm(width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        return x + self.mix(self.norm(self.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def stacked(block, width):
    return nn.Sequential(
        nn.Sequential(block(width), block(width)), nn.Flatten(1, -2) if block is NormsLast else nn.Identity()
    )


@pytest.mark.parametrize(
    ("model", "shape", "axis"),
    [
        (lambda: Convolved(6), (4, 6, 8, 8), 1),
        (lambda: Convolved(6), (4, 6, 8, 6), 1),  # as wide as it has channels
        (lambda: Convolved(6, norm=False), (4, 6, 8, 1), 1),
        (lambda: Convolved(6, rank=1), (4, 6, 9), 1),
        (lambda: stacked(ConvolvesTokens, 6), (4, 9, 6), 2),
        (lambda: stacked(NormsLast, 6), (4, 6, 5, 7), 1),
    ],
)
def test_a_token_is_read_along_the_features(tmp_path, model, shape, axis):
    torch.manual_seed(0)
    model = model()
    x, seen = torch.randn(*shape), {}
    first = model.blocks[0] if hasattr(model, "blocks") else model[0][0]
    first.register_forward_hook(lambda m, a, y: seen.update(x=a[0].detach(), y=y.detach()))
    run, _ = recorded(tmp_path / "run", model, lambda m: m(x))
    site = run.info["sites"]["blocks"][0]
    expected = nn.functional.cosine_similarity(seen["x"], seen["y"], dim=axis).mean()
    assert reading(run, "cosine", site) == pytest.approx(expected.item(), rel=1e-4)
    assert reading(run, "stream_rms", site) == pytest.approx(seen["y"].square().mean().sqrt().item(), rel=1e-4)


def test_a_stream_that_may_lie_in_two_ways_is_told_in_the_coverage(tmp_path):
    """As many steps as channels, and a convolution over them: nothing tells which of both axes holds features."""
    model = Convolved(6, rank=1, norm=False)
    run, coverage = recorded(tmp_path / "run", model, lambda m: m(torch.randn(4, 6, 6)))
    assert run.info["coverage"]["features_unknown"] == ["blocks.0", "blocks.1"]
    assert "features taken from the last axis: blocks.0, blocks.1" in coverage
    run, coverage = recorded(tmp_path / "other", model, lambda m: m(torch.randn(4, 6, 9)))
    assert not run.info["coverage"]["features_unknown"] and "features" not in coverage


# ---- masks -----------------------------------------------------------------------------------------------------------


def spread(rows):
    rows = rows.double()
    rows = rows - rows.mean(1, keepdim=True)
    return (rows - rows.mean(0)).square().mean().sqrt().item()


@pytest.mark.parametrize("given", ["encoder", "both", "decoder"])
def test_answers_of_a_decoder_have_the_decoders_mask_or_none(tmp_path, given):
    torch.manual_seed(0)
    model = hugging("T5", "ForConditionalGeneration", d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                    dropout_rate=0.0, decoder_start_token_id=0)  # fmt: skip
    tokens, own, answers = torch.randint(3, V, (B, L)), torch.ones(B, L, dtype=torch.long), {}
    own[0, 2:] = 0
    masks = {"attention_mask": MASK.long()} if given != "decoder" else {}
    masks |= {"decoder_attention_mask": own} if given != "encoder" else {}

    def call(model):
        answers["y"] = model(input_ids=tokens, decoder_input_ids=tokens, **masks).logits
        return answers["y"]

    run, coverage = recorded(tmp_path / "run", model, call)
    rows = answers["y"].detach().flatten(0, 1)
    rows = rows if given == "encoder" else rows[own.bool().flatten()]
    assert reading(run, "output_spread", "model") == pytest.approx(spread(rows), rel=1e-4)
    assert "model" not in run.info["coverage"]["mask_not_used"] and "mask not used" not in coverage


def test_no_mask_is_missed_at_answers_of_another_length(tmp_path):
    model = hugging("T5", "ForConditionalGeneration", d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                    decoder_start_token_id=0)  # fmt: skip
    tokens = torch.randint(3, V, (B, L))
    _, coverage = recorded(tmp_path / "run", model, lambda m: m(input_ids=tokens, attention_mask=MASK.long(),
                                                                decoder_input_ids=tokens[:, :3]).logits)  # fmt: skip
    assert "mask not used" not in coverage


def test_answers_of_an_encoder_whose_head_is_called_decoder_keep_their_mask(tmp_path):
    """BERT's linear layer over words is ``cls.predictions.decoder``."""
    torch.manual_seed(0)
    model = hugging("Bert", "ForMaskedLM", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    tokens, answers = torch.randint(3, V, (B, L)), {}

    def call(model):
        answers["y"] = model(input_ids=tokens, attention_mask=MASK.long()).logits
        return answers["y"]

    run, _ = recorded(tmp_path / "run", model, call)
    rows = answers["y"].detach().flatten(0, 1)[MASK.flatten()]
    assert reading(run, "output_spread", "model") == pytest.approx(spread(rows), rel=1e-4)


class Flattened(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, 8)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)

            def forward(self, x):
                return x + self.mix(self.norm(x))

        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, V)

    def forward(self, tokens, attention_mask=None):
        x = self.words(tokens).reshape(-1, 8)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize(("batch", "length"), [(6, 1), (1, 6), (2, 3), (1, 1)])
def test_a_flattened_stream_has_its_mask_whatever_the_length(tmp_path, batch, length):
    torch.manual_seed(0)
    model, seen = Flattened(), {}
    mask = torch.ones(batch, length, dtype=torch.bool)
    if batch * length > 1:
        mask.view(-1)[[1, -1]] = False
    tokens = torch.randint(1, V, (batch, length))
    model.blocks[0].register_forward_hook(lambda m, a, y: seen.update(y=y.detach()))
    run, coverage = recorded(tmp_path / "run", model, lambda m: m(tokens, attention_mask=mask))
    expected = seen["y"][mask.flatten()].square().mean().sqrt().item()
    assert reading(run, "stream_rms", "blocks.0") == pytest.approx(expected, rel=1e-5)
    assert "mask not used" not in coverage


# ---- attention that is not seen --------------------------------------------------------------------------------------


class ThreeAxes(nn.Module):
    def __init__(self, how="softmax"):
        super().__init__()
        self.norm, self.qkv, self.how = nn.LayerNorm(8), nn.Linear(8, 24), how

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.how == "function":
            return x + nn.functional.scaled_dot_product_attention(q, k, v)
        return x + (q @ k.transpose(1, 2)).softmax(-1) @ v


class Routed(nn.Module):
    """Attention that is seen, and a choice of experts by a softmax of three axes."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.route = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = (t[:, None] for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return x * self.route(x).softmax(-1).sum(-1, keepdim=True)


@pytest.mark.parametrize("preset", ["lite", "standard"])
@pytest.mark.parametrize(
    ("block", "silent"),
    [(ThreeAxes, False), (lambda: ThreeAxes("function"), False), (Routed, True), (lambda: ConvolvesTokens(8), True)],
)
def test_attention_with_three_axes_is_said_not_to_be_seen(tmp_path, block, silent, preset):
    model = nn.Sequential(nn.Sequential(block(), block()), nn.Linear(8, 3))
    run, coverage = recorded(tmp_path / "run", model, lambda m: m(torch.randn(3, 5, 8)), steps=2, preset=preset)
    unseen = run.info["coverage"]["attention_not_seen"]
    assert list(unseen) == ([] if silent else ["0.0", "0.1"])
    assert ("attention not seen: 0.0 (" in coverage) is not silent and ("3 axes" in coverage) is not silent


def test_torchs_attention_with_other_widths_is_said_not_to_be_seen(tmp_path):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)

        def forward(self, x):
            return x + self.attention(x, x[..., :4], x[..., :4], need_weights=False)[0]

    run, coverage = recorded(
        tmp_path / "run", nn.Sequential(nn.Sequential(Other(), Other())), lambda m: m(torch.randn(3, 5, 8))
    )
    assert list(run.info["coverage"]["attention_not_seen"]) == ["0.0", "0.1"] and "attention not seen" in coverage


# ---- a forward that is tried again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["embedding", "block"])
def test_a_forward_that_raises_and_is_tried_again_loses_nothing(tmp_path, where):
    def made(folder, fails):
        torch.manual_seed(0)
        model = hugging("Llama", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                        max_position_embeddings=16)  # fmt: skip
        draw, broken = torch.Generator().manual_seed(1), {"now": False}

        def breaks(module, args):
            if broken["now"]:
                raise RuntimeError("out of memory")

        model.model.layers[1].register_forward_pre_hook(breaks)

        def call(model):
            tokens = torch.randint(3, V, (B, L), generator=draw)
            if fails:
                broken["now"] = where == "block"
                with pytest.raises((IndexError, RuntimeError)):
                    model(tokens + (1000 if where == "embedding" else 0))
                broken["now"] = False
            return model(tokens).logits

        return recorded(folder, model, call, steps=3)

    (plain, _), (again, coverage) = made(tmp_path / "a", False), made(tmp_path / "b", True)
    quantities = {"loss": plain.series("loss"), **plain.table()}
    assert set(again.table()) == set(quantities) and coverage == "5 of 5 norms fired"
    for quantity, sites in quantities.items():
        assert {s: v.values for s, v in again.series(quantity).items()} == {s: v.values for s, v in sites.items()}, (
            quantity
        )
    assert again.info["structure"] == plain.info["structure"]
