"""inspect: what it finds, what it leaves as it was, what it says where it cannot know."""

import copy
import json
import random

import pytest
import styles
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import normlab
from normlab import cli, surgery
from normlab.runs.contents import STRUCTURE

TOKENS = torch.arange(2, 10).unsqueeze(0)


def make(placement="pre", **settings):
    torch.manual_seed(0)
    return normlab.build(
        architecture="decoder", dim=16, num_layers=3, num_heads=2, vocab_size=31, max_length=16, placement=placement, **settings
    )  # fmt: skip


# ---- what it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("capture", ["operators", "graph"])
@pytest.mark.parametrize("placement", list(normlab.PLACEMENTS))
def test_our_own_placements(placement, capture, fused):
    model = normlab.build(
        architecture="decoder", dim=16, num_layers=4, num_heads=2, vocab_size=31, max_length=16, placement=placement, fused=fused
    )  # fmt: skip
    found = normlab.inspect(model, capture=capture)
    assert found.placement == placement
    assert [b.name for b in found.blocks] == [f"stack.layers.{i}" for i in range(4)]
    assert not found.silent and found.reason is None
    ends = normlab.PLACEMENTS[placement].ends.__name__
    assert found.final_norms == (("stack.ends.norm",) if ends != "Ends" else ())
    assert found.embedding_norms == (("stack.ends.norm_in",) if ends == "NormedEnds" else ())


@pytest.mark.parametrize("architecture", ["encoder", "encoder-decoder", "vision", "convolution"])
@pytest.mark.parametrize("placement", ["pre", "post", "reordered", "sub-ln"])
def test_our_other_architectures(architecture, placement):
    model = normlab.build(architecture=architecture, dim=16, num_layers=2, num_heads=2, placement=placement)
    found = normlab.inspect(model)
    assert found.placement == placement
    assert len(found.blocks) == (4 if architecture == "encoder-decoder" else 2)


def test_the_evidence():
    found = normlab.inspect(styles.Stacked([styles.ScaledPostBlock(1.7) for _ in range(2)], final=False), TOKENS)
    attention, feed = found.blocks[0].branches
    assert (attention.kind, feed.kind) == ("attention", "feedforward")
    assert attention.stream == ("blocks.0.first",) and feed.stream == ("blocks.0.second",)
    assert attention.stream_factor == pytest.approx(1.7) and feed.stream_factor == pytest.approx(1.7)
    assert not attention.entry and not attention.exit
    assert [(a.name, a.how) for a in found.attention] == [(f"blocks.{i}.attention", "by hand") for i in range(2)]


def test_norms_of_queries_and_keys_are_functions_here():
    found = normlab.inspect(styles.FunctionNorms(), TOKENS)
    assert len(found.functions) == 14 and not found.norms
    assert [len(branch.queries_keys) for b in found.blocks for branch in b.branches] == [2, 0] * 3


def test_a_shared_layer_is_a_block_each_time():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer = nn.Embedding(31, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

        def forward(self, tokens):
            x = self.embed(tokens)
            for _ in range(3):
                x = self.layer(x)
            return x

    for capture in ("operators", "graph"):
        found = normlab.inspect(Shared(), capture=capture)
        assert [(b.module, b.use, b.placement) for b in found.blocks] == [("layer", i, "post") for i in range(3)]


def test_mixed_placements_are_named():
    model = styles.Stacked([styles.ScaledPostBlock(1.0), styles.InnerNormBlock(), styles.LearnedFactorBlock()])
    found = normlab.inspect(model, TOKENS)
    assert [b.placement for b in found.blocks] == ["post", "sub-ln", "rezero"]
    assert found.placement == "post / sub-ln / rezero"


@pytest.mark.parametrize("model", [styles.NoResidual, styles.BrokenPath, styles.Gated])
@pytest.mark.parametrize("capture", ["operators", "graph"])
def test_what_has_no_stream_is_unknown_with_a_reason(model, capture):
    found = normlab.inspect(model(), TOKENS, capture=capture)
    assert found.placement == "unknown" and not found.stacks
    assert "residual stream" in found.reason


def test_a_norm_that_is_never_called_is_said():
    model = styles.Stacked([styles.InnerNormBlock() for _ in range(2)])
    model.spare = nn.LayerNorm(16)
    assert normlab.inspect(model, TOKENS).silent == ("spare",)


def test_heads_experts_and_adapters_are_no_blocks():
    class Headed(styles.Stacked):
        def __init__(self):
            super().__init__([styles.AdaptedBlock() for _ in range(2)])
            self.head = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))

        def forward(self, tokens):
            return self.head(super().forward(tokens))

    assert [b.name for b in normlab.inspect(Headed(), TOKENS).blocks] == ["blocks.0", "blocks.1"]


# ---- the graph of a training step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", list(normlab.PLACEMENTS))
@pytest.mark.parametrize("fused", [True, False])
def test_the_graph_of_a_training_step_with_dropout(placement, fused):
    """As a watch takes it: in training mode, gradients bit for bit as without it, no hook left."""
    gradients = []
    for watched in (False, True):
        model = normlab.build(
            architecture="decoder", dim=16, num_layers=4, num_heads=2, vocab_size=31, max_length=16, placement=placement,
            fused=fused, dropout=0.3,
        )  # fmt: skip
        for p in model.parameters():
            torch.manual_seed(p.numel())
            nn.init.normal_(p, std=0.3)
        found = surgery.survey(model)
        torch.manual_seed(3)
        if watched:
            capture = surgery.GraphCapture(model, found.norms)
            capture.attach()
        output = model(TOKENS)
        if watched:
            seen = surgery.structure_of(capture.finish(output), found, "graph")
            assert seen.placement == placement and len(seen.blocks) == 4
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        F.cross_entropy(output.flatten(0, 1), TOKENS.flatten()).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_checkpointed_blocks():
    class Checkpointed(styles.Stacked):
        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.final(x)

    model = Checkpointed([styles.InnerNormBlock() for _ in range(2)])
    model.reentrant = False
    assert normlab.inspect(model, TOKENS, capture="graph").placement == "sub-ln"
    model.reentrant = True
    found = normlab.inspect(model, TOKENS, capture="graph")
    assert found.placement == "unknown" and "reentrant" in found.reason
    assert normlab.inspect(model, TOKENS).placement == "sub-ln"


def test_frozen_parameters_change_nothing():
    model = styles.Stacked([styles.InnerNormBlock() for _ in range(3)])
    for name, p in model.named_parameters():
        p.requires_grad_("embed" in name)
    assert normlab.inspect(model, TOKENS, capture="graph").placement == "sub-ln"


# ---- what it leaves as it was ----------------------------------------------------------------------------------------


class Remembering(nn.Module):
    """Keeps what it saw, counts in a buffer, draws random numbers."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.mix = nn.Embedding(31, 16), nn.BatchNorm1d(16, momentum=0.5), nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))
        self.cache = None

    def forward(self, tokens):
        self.calls += 1
        self.cache = tokens
        random.random()
        x = self.embed(tokens) + 0 * torch.rand(16)
        return x + self.mix(self.norm(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("capture", ["operators", "graph"])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(capture, training):
    model = Remembering().train(training)
    model.norm.eval()
    state = copy.deepcopy(model.state_dict())
    before, python, modes = torch.get_rng_state(), random.getstate(), [m.training for m in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    assert normlab.inspect(model, TOKENS, capture=capture).placement == "pre"
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == python
    assert all(torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True))
    assert [m.training for m in model.modules()] == modes and model.cache is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.parametrize("capture", ["operators", "graph"])
def test_a_model_that_raises_is_left_as_it_was_too(capture):
    class Raising(Remembering):
        def forward(self, tokens):
            super().forward(tokens)
            raise KeyError("inside")

    model = Raising()
    with pytest.raises(KeyError, match="inside"):
        normlab.inspect(model, TOKENS, capture=capture)
    assert model.calls == 0 and model.training and model.cache is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert normlab.inspect(make(), capture=capture).placement == "pre"


# ---- asking for it ---------------------------------------------------------------------------------------------------


def test_requests_that_cannot_be_met():
    with pytest.raises(TypeError, match=r"nn\.Module, got str"):
        normlab.inspect("model")
    with pytest.raises(ValueError, match="give example_inputs"):
        normlab.inspect(nn.Linear(3, 3))
    with pytest.raises(ValueError, match='"operators" or "graph"'):
        normlab.inspect(make(), capture="eyes")
    with pytest.raises(TypeError, match="a tensor, a tuple of arguments"):
        normlab.inspect(nn.Linear(3, 3), "x")


def test_inputs_by_keyword_and_by_position():
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(1, 5, 16)
    for given in ((x, x), {"tgt": x, "memory": x}):
        found = normlab.inspect(layer, given)
        assert found.placement == "post" and len(found.blocks) == 1 and len(found.blocks[0].branches) == 3


def test_the_drawing_and_the_json():
    found = normlab.inspect(make("peri"))
    text = str(found)
    assert "stack.layers.0 ... stack.layers.2 (3): sandwich" in text and "stack.ends.norm_in" in text
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["placement"] == "peri" and len(data["stacks"][0]["blocks"]) == 3
    assert data["stacks"][0]["blocks"][0]["branches"][0]["entry"] == ["stack.layers.0.attention_place.norm"]
    assert {n["kind"] for n in data["norms"]} == {"layer"}


def test_what_a_run_keeps_has_the_types_that_its_readers_count_on():
    for found in (normlab.inspect(make("peri"), capture="graph"), normlab.inspect(styles.NoResidual(), TOKENS)):
        kept = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert STRUCTURE(kept, "structure") == kept
    assert kept["placement"] == "unknown" and kept["stacks"] == []


def pre_model():
    return make("pre")


def with_inputs():
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(1, 5, 16)


def talkative():
    print("building")
    return make("pre")


def linear():
    return nn.Linear(3, 3)


def broken():
    raise RuntimeError("two\nlines")


@pytest.mark.parametrize("options", [(), ("--graph",)])
def test_the_verb(options, capsys):
    assert cli.main(["inspect", f"{__name__}:pre_model", *options]) == 0
    assert "placement: pre" in capsys.readouterr().out
    assert cli.main(["inspect", f"{__name__}:with_inputs", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["placement"] == "post"
    assert cli.main(["inspect", f"{__name__}:talkative", "--json", *options]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["placement"] == "pre" and said.err == "building\n"


@pytest.mark.parametrize(
    ("named", "words", "code"),
    [
        (f"{__name__}:linear", "give example_inputs", 1),
        (f"{__name__}:broken", "RuntimeError: two lines", 1),
        (f"{__name__}:nothing", "cannot load", 2),  # the command is wrong, not the model
        ("no.such.module:model", "cannot load no.such.module:model", 2),
        ("without_colon", "expected MODULE:NAME", 2),
    ],
)
def test_bad_input_is_one_line(named, words, code, capsys):
    assert cli.main(["inspect", named]) == code
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1 and words in said.err
