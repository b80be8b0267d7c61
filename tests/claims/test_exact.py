"""Exact claims: known numbers by other ways, and verdicts that turn when the thing they measure is changed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from normlab.claims import CLAIMS, judge
from normlab.claims.exact import axes, cost, moments, sphere, structure, tokens
from normlab.runs import Evidence

TRAINED_REACH = ("C22", "C40", "C53", "C89", "C98")  # the core is exact, what trained models add is not
EXACT = [c for c in CLAIMS.values() if c.measure and (not c.designs or c.id in TRAINED_REACH)]


def verdict(name: str) -> str:
    """Of the part that needs no training."""
    claim = CLAIMS[name]
    assert claim.measure is not None and (not claim.designs or name in TRAINED_REACH)
    numbers = dict(claim.measure())
    known = dataclasses.replace(claim, checks=tuple(c for c in claim.checks if c.quantity in numbers))
    assert [c for c in claim.checks if c.core] == [c for c in known.checks if c.core]
    return judge(known, Evidence(numbers=numbers), "quick").verdict


@pytest.mark.parametrize("claim", EXACT, ids=lambda c: c.id)
def test_each_is_decided_twice_alike(claim):
    first, second = verdict(claim.id), verdict(claim.id)
    assert first == second and first in ("holds", "conditions", "fails")


def test_numbers_known_from_theory():
    assert sphere.radius()["radius_768"] == pytest.approx(math.sqrt(768), rel=1e-12)
    assert sphere.radius()["off_plane_64"] < 1e-11 and sphere.radius()["ellipsoid"] < 1e-12
    found = sphere.information()
    assert (found["rank_of_layer"], found["rank_of_rms"], found["rank_of_batch_in_evaluation"]) == (14, 15, 16)
    assert moments.without_centring()["variance"] == pytest.approx(1 / 10, rel=1e-9)
    shape = moments.shape_is_kept()
    assert shape["skew"] == pytest.approx(2, abs=0.05) and shape["excess_kurtosis"] == pytest.approx(6, abs=0.5)
    assert moments.gaussian_range()["largest_possible"] == pytest.approx(math.sqrt(767), rel=1e-3)
    assert moments.gaussian_range()["share_within_2"] == pytest.approx(math.erf(2 / math.sqrt(2)), abs=2e-3)
    tiny = moments.standardized()["variance_of_tiny"]
    assert tiny == pytest.approx(1e-6 / (1e-6 + 1e-5), rel=0.05), "s^2 / (s^2 + eps)"
    weights = structure.identity_weight()
    assert weights["after_2"] == pytest.approx(0.5, rel=0.05) and weights["after_8"] == pytest.approx(1 / 16, rel=0.12)
    assert structure.stream_growth()["growth_pre"] == pytest.approx(24 / 2, rel=0.3), (
        "between 1 + l/2 and 1 + 3l/2 over 1 + 1/2"
    )
    folded = tokens.folding()
    assert folded["layer_as_rms"] < 1e-12 < 0.01 < folded["layer_is_not_rms"] and folded["gain_left_out"] > 0.1
    flops = cost.share()
    by_hand = 4 * 64**2 * 512 / (24 * 64 * 512**2 + 4 * 64**2 * 512 + 2 * 512 * 2)
    assert flops["square_at_64"] == pytest.approx(by_hand, rel=1e-3)


def test_special_cases_need_their_conditions():
    found = axes.special_cases()
    assert found["two_groups_are_not_layer"] > 0.01
    orders = axes.order()
    assert orders["batch_keeps_features"] < 0.999 and orders["layer_keeps_samples"] < 0.999


class WholeSentence(nn.Module):
    """LayerNorm over all but the batch axis, whatever it is told."""

    def __init__(self, shape: int | tuple[int, ...], *, eps: float = 1e-5, **_: object) -> None:
        super().__init__()
        self.eps, self.weight, self.bias = eps, nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x, mask=None):
        return nn.functional.layer_norm(x, x.shape[1:], eps=self.eps)


class PerToken(WholeSentence):
    """What stands in for BatchNorm if the two are swapped."""

    running_mean = running_var = torch.zeros(1)

    def forward(self, x, mask=None):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)


class AcrossBatch(WholeSentence):
    """What a LayerNorm over the batch would be."""

    def forward(self, x, mask=None):
        return (x - x.mean((0, 1))) / x.std((0, 1), correction=0)


class Unit(PerToken):
    """Onto the sphere of radius 1."""

    def forward(self, x, mask=None):
        return super().forward(x) / math.sqrt(x.shape[-1])


class Shrunk(PerToken):
    """Onto no sphere: lengths depend on the row."""

    def forward(self, x, mask=None):
        return super().forward(x) * (1 + 0.1 * torch.tanh(x[..., :1]))


class KeepsAll(PerToken):
    """No norm at all."""

    def forward(self, x, mask=None):
        return x * torch.linspace(1.0, 2.0, x.shape[-1], dtype=x.dtype)


class Biased(nn.LayerNorm):
    """With the unbiased variance."""

    def forward(self, x, mask=None):
        d = x.shape[-1]
        y = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + self.eps)
        return y if self.weight is None else y * self.weight + self.bias * (d > 0)


class Unmasked(nn.Module):
    """BatchNorm that counts padding: what switching the mask off does."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d, dtype=torch.float64)

    def double(self):
        return self

    def forward(self, x, mask=None):
        return self.norm(x.flatten(0, 1)).view_as(x)


@pytest.mark.parametrize(("claim", "room", "name", "instead", "turned"), [
    ("C34", axes, "LayerNorm", WholeSentence, "holds"), ("X1", axes, "LayerNorm", WholeSentence, "holds"),
    ("C27", axes, "LayerNorm", WholeSentence, "holds"), ("C94", axes, "LayerNorm", WholeSentence, "fails"),
    ("C88", axes, "BatchNorm", PerToken, "fails"), ("X3", axes, "BatchNorm", PerToken, "fails"),
    ("C32", axes, "BatchNorm", PerToken, "holds"),
    ("C90", tokens, "BatchNorm", PerToken, "fails"), ("C48", tokens, "LayerNorm", AcrossBatch, "fails"), ("C58", tokens, "LayerNorm", AcrossBatch, "fails"),
    ("C61", tokens, "BatchNorm", PerToken, "fails"),
    ("C96", sphere, "LayerNorm", Unit, "holds"), ("C97", sphere, "LayerNorm", Shrunk, "holds"), ("C95", sphere, "LayerNorm", KeepsAll, "holds"),
    ("C3", moments, "LayerNorm", Unit, "fails"), ("C47", moments, "LayerNorm", Biased, "fails"), ("C49", moments, "LayerNorm", Biased, "fails"),
    ("C89", tokens, "BatchNorm", Unmasked, "holds"),
])  # fmt: skip
def test_another_thing_measured_turns_the_verdict(claim, room, name, instead, turned, monkeypatch):
    before = verdict(claim)
    monkeypatch.setattr(room, name, instead)
    assert verdict(claim) == turned
    assert before != turned


def test_post_norm_with_the_place_of_pre_norm_turns_what_follows(monkeypatch):
    assert verdict("C16") == "conditions" and verdict("C22") == "holds"
    monkeypatch.setattr(structure, "PostNorm", structure.PreNorm)
    assert verdict("C16") == "fails" and verdict("C22") == "fails"


def test_a_wrong_number_of_minimax_turns_the_verdict(monkeypatch):
    from normlab.claims.sources import s1_placement

    assert verdict("C40") == "fails"
    monkeypatch.setitem(s1_placement.TABLE_5, "WinoGrande", (65.4, 65.5))
    assert verdict("C40") == "holds"


def test_deepnorm_with_another_exponent_or_another_norm_more_turns_its_verdicts(monkeypatch):
    assert verdict("C41") == "holds" and verdict("C42") == "holds" and verdict("C44") == "fails"
    right = structure.deepnorm_scales
    monkeypatch.setattr(structure, "deepnorm_scales", lambda n, **k: (right(n, **k)[0], 1 / right(n, **k)[1]))
    assert verdict("C41") == "fails" and verdict("C42") == "fails"


def test_the_variance_of_the_code_is_compared_with_what_it_should_be(monkeypatch):
    assert verdict("C93") == "fails"
    shifted = moments.drawn
    monkeypatch.setattr(moments, "drawn", lambda *shape, seed=0: shifted(*shape, seed=seed) * 1e6)
    assert verdict("C93") == "fails", "rows are brought to mean 3 and deviation 1 first"
