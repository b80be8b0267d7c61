"""Norms of foreign modules: found by their answers, with all facts, or unknown with a reason."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import normlab
from normlab import surgery

WIDTH = 13


class Foreign(nn.Module):
    """A norm by its formula: parameters by these names, in this order."""

    def __init__(self, formula, names=("weight",), shape=(WIDTH,), **attributes):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(shape)))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.formula = formula

    def forward(self, x):
        return self.formula(self, x)


def rms(x, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def layer(x, eps, axis=-1):
    x = x - x.mean(axis, keepdim=True)
    return x / (x.pow(2).mean(axis, keepdim=True) + eps).sqrt()


CASES = {
    "gain called g": (Foreign(lambda m, x: m.g * rms(x, 1e-6), ("g",)), "rms", "direct", 1e-6, "g", None, -1),
    "an odd eps": (Foreign(lambda m, x: rms(x, 1.5625e-07) * m.weight), "rms", "direct", 1.5625e-07, "weight", None, -1),
    "a large eps": (Foreign(lambda m, x: rms(x, 3e-2) * m.weight), "rms", "direct", 3e-2, "weight", None, -1),
    "no eps": (Foreign(lambda m, x: F.normalize(x, dim=-1) * WIDTH**0.5 * m.g, ("g",)), "rms", "direct", 0.0, "g", None, -1),
    "bias first": (Foreign(lambda m, x: m.b + m.a * layer(x, 1e-12), ("b", "a")), "layer", "direct", 1e-12, "a", "b", -1),
    "one plus weight": (Foreign(lambda m, x: (1 + m.w) * rms(x, 1e-6), ("w",)), "rms", "offset", 1e-6, "w", None, -1),
    "no parameters": (Foreign(lambda m, x: rms(x, 1e-5), ()), "rms", "none", 1e-5, None, None, -1),
    "no parameters, its width": (
        Foreign(lambda m, x: F.layer_norm(x, m.shape, eps=1e-5), (), shape=(WIDTH,)), "layer", "none", 1e-5, None, None, -1,
    ),
    "a gain per head": (Foreign(lambda m, x: m.weight * layer(x, 1e-5), shape=(3, 5)), "layer", "direct", 1e-5, "weight", None, -1),
    "channels first": (
        Foreign(lambda m, x: m.weight[:, None, None] * layer(x, 1e-6, 1)), "layer", "direct", 1e-6, "weight", None, 1,
    ),
    "one number": (Foreign(lambda m, x: F.normalize(x, dim=-1) * m.g, ("g",), (1,)), "scale", "direct", 0.0, "g", None, -1),
}  # fmt: skip
CASES["no parameters, its width"][0].shape = (WIDTH,)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_facts(case, dtype):
    module, kind, gain, eps, gain_name, bias_name, channel_dim = CASES[case]
    (site,) = surgery.find_norms(nn.ModuleDict({"n": module.to(dtype)}))
    found = (site.kind, site.gain, site.eps, site.gain_name, site.bias_name, site.channel_dim)
    assert found == (kind, gain, pytest.approx(eps, rel=1e-4), gain_name, bias_name, channel_dim)
    assert site.weight is (None if gain_name is None else getattr(module, gain_name))


@pytest.mark.parametrize("eps", [1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 2.5e-7, 1.1920928955078125e-07])
@pytest.mark.parametrize("width", [2, 7, 64, 1031])
def test_eps_is_exact(eps, width):
    module = Foreign(lambda m, x: rms(x, eps) * m.weight, shape=(width,))
    (site,) = surgery.find_norms(nn.ModuleDict({"n": module}))
    assert site.eps == eps


def test_facts_do_not_depend_on_where_the_parameters_stand():
    for value in (0.0, 1.0, -2.0):
        module = Foreign(lambda m, x: (1 + m.w) * rms(x, 1e-6), ("w",))
        nn.init.constant_(module.w, value)
        (site,) = surgery.find_norms(nn.ModuleDict({"n": module}))
        assert (site.gain, site.gain_name) == ("offset", "w")
        assert torch.equal(site.factor(), torch.full((WIDTH,), 1 + value))


@pytest.mark.parametrize("width", [5, 16])
def test_the_factor_is_what_multiplies(width):
    """Of a ScaleNorm it is weight / sqrt(width), on what has unit mean square."""
    norm = normlab.ScaleNorm(width)
    (site,) = surgery.find_norms(nn.ModuleDict({"n": norm}))
    x = torch.randn(4, width)
    assert torch.allclose(site.factor() * rms(x, 0.0), norm(x), rtol=1e-5, atol=1e-6)


class Subclass(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class Channels(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Broken(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).tanh()


def test_a_subclass_is_asked_like_any_other():
    model = nn.ModuleDict({"a": Subclass(8), "b": Channels(8), "c": Broken(8), "d": nn.LayerNorm(8)})
    found = surgery.survey(model)
    assert {s.name: (s.gain, s.channel_dim) for s in found.norms} == {
        "a": ("offset", -1), "b": ("direct", 1), "d": ("direct", -1),
    }  # fmt: skip
    assert [(u.name, u.reason) for u in found.unknown] == [("c", "its answers fit neither LayerNorm nor RMSNorm")]


class GatedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x, gate=None):
        return self.weight * rms(x if gate is None else x * F.silu(gate), 1e-6)


class KeywordNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, *, hidden):
        return self.weight * rms(hidden, 1e-6)


class FailingNorm(nn.Module):
    def forward(self, x):
        raise KeyError("nothing here")


def test_reasons_are_kept():
    weighted = nn.RMSNorm(8)
    parametrize.register_parametrization(weighted, "weight", nn.Identity())
    replaced = KeywordNorm()
    replaced.forward = lambda x: x
    quantized = KeywordNorm()
    quantized.weight = nn.Parameter(torch.ones(8, dtype=torch.int8), requires_grad=False)
    modules = {
        "gated": GatedNorm(),
        "failing": FailingNorm(),
        "weighted": weighted,
        "replaced": replaced,
        "quantized": quantized,
    }
    found = surgery.survey(nn.ModuleDict(modules))
    assert not found.norms
    reasons = {u.name: u.reason for u in found.unknown if "parametrizations" not in u.name}
    assert set(reasons) == set(modules)
    for name, word in (
        ("gated", "gate"),
        ("failing", "KeyError"),
        ("weighted", "parametrized"),
        ("replaced", "replaced"),
        ("quantized", "int8"),
    ):
        assert word in reasons[name], reasons


def test_called_with_a_keyword_or_without_values():
    model = nn.ModuleDict({"a": KeywordNorm(), "b": Foreign(lambda m, x: m.g * rms(x, 1e-6), ("g",)).to("meta")})
    assert [(s.name, s.kind) for s in surgery.find_norms(model)] == [("a", "rms"), ("b", "rms")]


class Lookalike(nn.Module):
    """Multiplies; remembers; draws."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.ones(8))
        self.seen = []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.seen.append(x)
        self.count += 1
        random.random()
        return self.g * x + 0 * torch.rand_like(x)


def test_asking_changes_nothing_and_fires_no_hook():
    model = nn.Sequential(Lookalike(), Foreign(lambda m, x: m.g * rms(x, 1e-6), ("g",)))
    fired = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: fired.append(1))
        module.register_forward_pre_hook(lambda *_: fired.append(1))
    before, python = torch.get_rng_state(), random.getstate()
    assert [s.name for s in surgery.find_norms(model)] == ["1"]
    assert not fired and not model[0].seen and model[0].count == 0
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == python
    assert model.training and all(torch.equal(m.g, torch.ones_like(m.g)) for m in model)


def test_under_autocast_and_without_gradients_the_same():
    model = nn.Sequential(Foreign(lambda m, x: m.g * rms(x, 1e-6), ("g",)))
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        (site,) = surgery.find_norms(model)
    assert (site.kind, site.eps) == ("rms", 1e-6)
