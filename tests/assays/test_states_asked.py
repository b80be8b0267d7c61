"""Snapshots of tokens and the position probe, against direct computations and planted truths."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from assay_cases import TOKENS, assert_unchanged, decoder, next_token_loss, snapshot
from torch import nn

import normlab
from normlab import assays
from normlab.assays.similarity import cloud


def with_affine(width=7):
    norm = nn.LayerNorm(width)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.bias.normal_()
    return nn.Sequential(norm)


def neighbours(rows):
    cosine = F.cosine_similarity(rows[:, None].double(), rows[None].double(), dim=-1).fill_diagonal_(-2)
    return [tuple(row) for row in cosine.argsort(dim=1, descending=True)[:, :5].tolist()]


def test_three_clouds_of_one_norm():
    model, x = with_affine(), torch.randn(40, 7) + 0.5
    (found,) = assays.token_similarity(model, lambda m: m(x))
    assert found.site == "0" and found.places == tuple(range(40)) and found.tokens is None
    plain = F.layer_norm(x, (7,))
    for form, rows in (("before", x), ("plain", plain), ("after", model(x).detach())):
        seen = getattr(found, form)
        assert list(seen.neighbours) == neighbours(rows), form
        cosine = F.cosine_similarity(rows[:, None], rows[None], dim=-1)
        assert seen.mean_cosine == pytest.approx(float((cosine.sum() - 40) / (40 * 39)), abs=1e-5)
    correlation = torch.corrcoef(x)  # behind a plain LayerNorm the cosine is the correlation
    nearest = [int(row) for row in (correlation - 9 * torch.eye(40)).argmax(1)]
    assert [n[0] for n in found.plain.neighbours] == nearest
    share = (
        sum(len(set(a) & set(b)) / 5 for a, b in zip(found.before.neighbours, found.after.neighbours, strict=True)) / 40
    )
    assert found.overlap("before", "after") == pytest.approx(share) and found.overlap("plain", "plain") == 1


def test_coordinates_are_the_principal_ones():
    rows = torch.randn(30, 6, dtype=torch.float64) * torch.tensor([9.0, 5.0, 3.0, 1.0, 0.5, 0.1])
    found = cloud(rows)
    places = torch.tensor(found.coordinates, dtype=torch.float64)
    values, axes = torch.linalg.eigh(torch.cov(rows.T))
    direct = (rows - rows.mean(0)) @ axes.flip(1)[:, :3]
    torch.testing.assert_close(places.abs(), direct.abs(), rtol=1e-4, atol=1e-4)
    assert found.explained == pytest.approx(float(values.flip(0)[:3].sum() / values.sum()))
    assert cloud(rows).coordinates == found.coordinates


def test_a_snapshot_is_bounded_and_goes_into_a_run(tmp_path):
    model = decoder(num_layers=5, max_length=64)
    tokens = torch.randint(0, 13, (16, 64))
    mask = torch.arange(64).expand(16, 64) < 50
    before = snapshot(model)
    found = assays.token_similarity(model, lambda m: m(tokens), ids=tokens, mask=mask)
    assert_unchanged(model, before)
    assert len(found) == 3 and found[0].site.startswith("stack.layers.0") and found[-1].site == "stack.ends.norm"
    for s in found:
        assert 32 <= len(s.places) <= 64 and s.tokens == tuple(tokens.flatten()[list(s.places)].tolist())
        assert all(mask.flatten()[place] for place in s.places)
        assert len({place % 64 for place in s.places}) > 16  # many positions, not one column
        assert {len(c) for c in s.after.coordinates} == {3} and {len(n) for n in s.after.neighbours} == {5}
    text = json.dumps(found[0].to_dict())
    assert len(text) < 16_000
    writer = normlab.runs.Writer(tmp_path / "run")
    writer.event(3, "token similarity", **found[0].to_dict())
    writer.close()
    (event,) = normlab.Run(tmp_path / "run").events()
    assert event["after"]["neighbours"] == [list(n) for n in found[0].after.neighbours]


def test_tokens_come_from_many_positions():
    """64 of 1024 tokens are every sixteenth: the first of each sequence of 16."""
    (found,) = assays.token_similarity(with_affine(4), lambda m: m(torch.randn(64, 16, 4)))
    assert 48 <= len(found.places) <= 64 and len({place % 16 for place in found.places}) == 16


def test_few_tokens_and_erased_features():
    norm = with_affine(4)
    with torch.no_grad():
        norm[0].weight[2] = 0
    (found,) = assays.token_similarity(norm, lambda m: m(torch.randn(3, 4)))
    assert {len(n) for n in found.plain.neighbours} == {2}
    assert all(abs(v) < 1e6 for row in found.plain.coordinates for v in row)
    with pytest.raises(assays.NothingToAsk):
        assays.token_similarity(nn.Linear(2, 2), lambda m: m(torch.ones(1, 2)))
    with pytest.raises(ValueError, match="no norm is called x"):
        assays.token_similarity(norm, lambda m: m(torch.randn(3, 4)), names=("x",))


def test_states_are_what_went_in_and_came_out():
    model = decoder("post")
    found = assays.norm_states(model, next_token_loss)
    assert len(found) == 6
    for s in found.values():
        assert s.x.shape == s.y.shape == (*TOKENS[:, 1:].shape, 12)
        torch.testing.assert_close(s.y, s.site.module(s.x))
    images = assays.norm_states(nn.Sequential(nn.BatchNorm2d(3)), lambda m: m(torch.randn(2, 3, 4, 4)))
    assert images["0"].x.shape == (2, 4, 4, 3)


# ---- position --------------------------------------------------------------------------------------------------------


def planted(strength, count=64, length=10, width=24, seed=0):
    draw = torch.Generator().manual_seed(seed)
    places = torch.randn(length, width, generator=draw)
    return torch.randn(count, length, width, generator=draw) + strength * places


def test_position_is_read_where_it_is_and_not_where_it_is_not():
    clear, none = assays.position_probe(planted(3.0)), assays.position_probe(planted(0.0))
    assert clear.accuracy > 0.98 and clear.r2 > 0.9
    assert none.accuracy < 0.2 and none.r2 < 0.1 and none.chance == 0.1
    assert clear.positions == 10 and clear.tokens == 320
    weak = assays.position_probe(planted(0.4)).accuracy
    assert none.accuracy + 0.1 < weak < clear.accuracy - 0.1


def test_no_invertible_map_of_the_features_changes_what_is_read():
    """Batch norm in evaluation is one; layer norm is none, and takes a position away that lies in mean or scale alone."""
    states = planted(1.0)
    a = assays.position_probe(states)
    b = assays.position_probe(states * (torch.rand(24) * 5 + 0.1) + 7 * torch.randn(24))
    assert a.accuracy == pytest.approx(b.accuracy, abs=0.01) and a.r2 == pytest.approx(b.r2, abs=0.01)
    lifted = torch.randn(64, 10, 24) * 0.1 + torch.arange(10.0)[:, None]  # position is the mean of the features
    assert assays.position_probe(lifted).accuracy > 0.9
    assert assays.position_probe(F.layer_norm(lifted, (24,))).accuracy < 0.2


def test_padding_is_left_out_and_the_split_follows_the_seed():
    states = planted(3.0)
    mask = torch.arange(10).expand(64, 10) < torch.randint(3, 11, (64, 1))
    states[~mask] = 1e6
    assert assays.position_probe(states, mask=mask).accuracy > 0.95
    weak = planted(0.4)
    assert assays.position_probe(weak) == assays.position_probe(weak)
    assert assays.position_probe(weak, seed=1) != assays.position_probe(weak)
    with pytest.raises(ValueError, match="at least 8"):
        assays.position_probe(torch.randn(7, 4, 3))
