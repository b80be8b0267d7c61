"""Recurrent and plain convolutional networks: their formulas written out, their norms in place, what cannot work refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlab
from normlab.models import WITHOUT_STREAM


def recurrent(**settings):
    torch.manual_seed(0)
    return normlab.build(
        **{"architecture": "recurrent", "dim": 7, "num_layers": 2, "vocab_size": 11, "max_length": 16, **settings}
    )


def images(**settings):
    torch.manual_seed(0)
    return normlab.build(
        **{"architecture": "plain-convolution", "dim": 6, "num_layers": 3, "activation": "relu", **settings}
    )


def shaken(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape)
    return model


TOKENS = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(1))


def test_without_norms_a_layer_is_torchs_lstm():
    model = shaken(recurrent(placement="none"))
    x = torch.randn(4, 9, 7)
    for layer in model.stack.layers:
        theirs = nn.LSTM(7, 7, batch_first=True)
        swap = [0, 1, 3, 2]  # torch's gates are i, f, g, o; ours i, f, o, g
        with torch.no_grad():
            for name, ours in (
                ("weight_ih_l0", layer.input.weight),
                ("weight_hh_l0", layer.state.weight),
                ("bias_ih_l0", layer.bias),
            ):
                getattr(theirs, name).copy_(torch.cat([ours.chunk(4)[i] for i in swap]))
            theirs.bias_hh_l0.zero_()
        torch.testing.assert_close(layer(x), theirs(x)[0])


def test_norms_stand_on_both_products_and_on_the_cell():
    model = shaken(recurrent(num_layers=1))
    (layer,) = model.stack.layers
    x = torch.randn(3, 4, 7)
    h = c = torch.zeros(3, 7)

    def n(norm, v):
        return F.layer_norm(v, v.shape[-1:], norm.weight, norm.bias)

    for t in range(4):
        gates = n(layer.norm_input, x[:, t] @ layer.input.weight.T) + layer.bias
        if t > 0:
            gates = gates + n(layer.norm_state, h @ layer.state.weight.T)
        i, f, o, g = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * n(layer.norm_cell, c).tanh()
    torch.testing.assert_close(layer(x)[:, -1], h)


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "group", "power", "dyt"])
def test_no_token_sees_a_later_one_also_in_training(norm):
    model = recurrent(norm=norm, **({"dim": 8} if norm == "group" else {}))
    other = TOKENS.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 11
    state = {k: v.clone() for k, v in model.state_dict().items()}
    a = model(TOKENS)
    model.load_state_dict(state)
    b = model(other)
    torch.testing.assert_close(a[:, :5], b[:, :5])
    assert (a[:, 5:] - b[:, 5:]).abs().max() > 1e-3


def test_batch_statistics_are_those_of_one_position():
    model = recurrent(norm="batch", num_layers=1)
    seen = []
    model.stack.layers[0].norm_cell.register_forward_hook(lambda m, args, y: seen.append((args[0], y)))
    model(TOKENS)
    assert len(seen) == 9
    for x, y in seen:
        torch.testing.assert_close(y, F.batch_norm(x, None, None, training=True))


def test_no_statistics_are_taken_of_the_empty_state_before_the_first_token(tmp_path):
    """Zeros would pull running averages to zero, and a watch, which looks at a norm's first call, would see nothing else."""
    model = recurrent(norm="batch", num_layers=1)
    seen = []
    model.stack.layers[0].norm_state.register_forward_hook(lambda m, args, y: seen.append(args[0]))
    model(TOKENS)
    assert len(seen) == 8 and all(x.std() > 0 for x in seen)
    experiment = normlab.Experiment(
        steps=24, batch_size=8, held_out=16, lr=1e-2, options={"length": 16}, watch="full", watch_every=1,
        model={"architecture": "recurrent", "dim": 16, "num_layers": 2},
    )  # fmt: skip
    normlab.lab.train(experiment, tmp_path / "a")
    assert "eps-swallows" not in {f.rule for f in normlab.diagnose(normlab.Run(tmp_path / "a")).findings}


def test_padding_leaves_the_state_and_the_statistics_alone():
    model = recurrent(norm="batch")
    mask = torch.arange(9) < torch.tensor([9, 9, 4, 6])[:, None]
    other = torch.where(mask, TOKENS, (TOKENS + 3) % 11)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    a = model(TOKENS, mask)
    after = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(model(other, mask)[mask], a[mask])
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, after[name])
    hidden = model.stack(model.embedding(TOKENS), mask)
    assert torch.equal(hidden[2, 3], hidden[2, 8])


def test_it_adds_no_positions_and_its_config_says_so():
    model = recurrent()
    same = model.embedding(torch.full((1, 3), 5))
    assert torch.equal(same[0, 0], same[0, 2])
    assert model.config.resolved()["positions"] == "none"


@pytest.mark.parametrize("placement", ["pre", "post", "none"])
@pytest.mark.parametrize("norm", ["batch", "layer", "group"])
def test_convolution_norm_activation_in_the_order_of_the_placement(placement, norm):
    model = shaken(
        images(placement=placement, norm=norm, norm_options={"eps": 1e-3}, **({"dim": 8} if norm == "group" else {}))
    )
    x = torch.randn(5, 1, 8, 8)
    y = x
    for block in model.stack.layers:
        y = block.conv(y)

        def normed(v, block=block):
            n = block.norm
            if norm == "batch":
                return F.batch_norm(v, None, None, n.weight, n.bias, training=True, eps=1e-3)
            if norm == "group":
                return F.group_norm(v, n.num_groups, n.weight, n.bias, eps=1e-3)
            return F.layer_norm(v.movedim(1, -1), v.shape[1:2], n.weight, n.bias, eps=1e-3).movedim(-1, 1)

        y = {"pre": lambda v: normed(v).relu(), "post": lambda v: normed(v.relu()), "none": torch.relu}[placement](y)
    torch.testing.assert_close(model(x), model.head(y.mean((2, 3))), rtol=1e-4, atol=1e-5)
    assert len(normlab.find_norms(model)) == (0 if placement == "none" else 3)
    assert len(normlab.find_blocks(model)) == 3


@pytest.mark.parametrize("make", [recurrent, images])
def test_a_model_starts_again_as_it_was_built(make):
    model = make(norm="batch")
    state = {k: v.clone() for k, v in model.state_dict().items()}
    shaken(model)
    torch.manual_seed(0)
    model.reset_parameters()
    for name, value in model.state_dict().items():
        if value.dim() < 2:
            assert torch.equal(value, state[name]), name
        else:
            assert value.std() == pytest.approx(state[name].std(), rel=0.5)


def test_both_learn():
    torch.manual_seed(0)
    text, x, y = torch.arange(9).repeat(8, 3)[:, :20] % 11, torch.randn(32, 1, 8, 8), torch.arange(32) % 4
    x = x + 2 * F.one_hot(y, 8).float()[:, None, :, None]
    cases = [
        (
            recurrent(max_length=32, dim=16, num_layers=1),
            lambda m: F.cross_entropy(m(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        ),
        (images(norm="batch"), lambda m: F.cross_entropy(m(x), y)),
    ]
    for (model, loss), steps in zip(cases, (40, 80), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        first = float(loss(model).detach())
        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(model)
            value.backward()
            optimizer.step()
        assert float(value.detach()) < 0.3 * first


@pytest.mark.parametrize("wrong", [
    {"placement": "deepnorm"}, {"placement": "post", "architecture": "recurrent"}, {"final_norm": True}, {"qk_norm": "head"},
    {"causal_statistics": "position"}, {"checkpoint": True}, {"activation": "swiglu"},
    {"architecture": "recurrent", "norm": "instance"}, {"norm": "instance", "placement": "post"},
])  # fmt: skip
def test_what_has_no_meaning_there_is_refused(wrong):
    settings = {"architecture": "plain-convolution", **wrong}
    with pytest.raises(ValueError):
        normlab.TransformerConfig(**settings)


def test_every_such_architecture_builds_in_every_placement():
    for name, placements in WITHOUT_STREAM.items():
        for placement in placements:
            assert normlab.build(architecture=name, placement=placement, dim=8, num_layers=2) is not None
