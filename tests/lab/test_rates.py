"""The largest stable learning rate: a case with a known answer, brackets, state, refusals."""

from __future__ import annotations

import json
import math
from itertools import repeat

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlab
from normlab import cli
from normlab.lab import Experiment
from normlab.lab.parts import parts_of
from normlab.lab.rates import Bracket, lr_range, summarize


class Bowl(nn.Module):
    """loss = c/2 * w^2: gradient descent is stable exactly below 2 / c."""

    def __init__(self, curvature=4.0):
        super().__init__()
        self.w, self.c = nn.Parameter(torch.tensor([3.0])), curvature


def bowl_loss(model, batch):
    return (model.c / 2 * model.w.square()).sum()


@pytest.mark.parametrize("curvature", [0.5, 4.0, 37.0])
def test_the_bracket_holds_the_known_limit_of_gradient_descent(curvature):
    found = lr_range(lambda: Bowl(curvature), bowl_loss, lambda seed: repeat(None), steps=200, seeds=2, halvings=5,
                     optimizer=torch.optim.SGD)  # fmt: skip
    for bracket in found.brackets:
        assert bracket.stable < 2 / curvature < bracket.broken
        assert bracket.broken / bracket.stable == pytest.approx(10 ** (1 / 32), rel=1e-6)
    assert found.low <= found.rate <= found.high


def test_a_model_that_is_given_is_not_changed_and_the_random_state_is_kept():
    model = Bowl()
    before, state = model.w.detach().clone(), torch.get_rng_state()
    lr_range(model, bowl_loss, lambda seed: repeat(None), steps=5, seeds=1, optimizer=torch.optim.SGD)
    assert torch.equal(model.w, before) and model.w.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_without_an_upper_or_a_lower_end_there_is_no_rate():
    never = lr_range(Bowl(0.01), bowl_loss, lambda seed: repeat(None), steps=5, seeds=1, optimizer=torch.optim.SGD)
    assert never.rate is None and "raise it" in str(never)
    always = lr_range(Bowl(1e9), bowl_loss, lambda seed: repeat(None), steps=5, seeds=1, optimizer=torch.optim.SGD)
    assert always.rate is None and "lower them" in str(always)


def test_the_interval_comes_from_the_spread_over_seeds():
    brackets = tuple(Bracket(i, rate, rate * 1.1, 5) for i, rate in enumerate((0.1, 0.2, 0.4)))
    found = summarize(brackets)
    assert found.rate == pytest.approx(0.2 * math.sqrt(1.1), rel=1e-9)
    half = 4.302652729911 * math.log(2) / math.sqrt(3)
    assert found.high / found.rate == pytest.approx(math.exp(half), rel=1e-4)
    equal = summarize(tuple(Bracket(i, 0.1, 0.2, 5) for i in range(3)))
    assert (equal.low, equal.high) == (pytest.approx(0.1), pytest.approx(0.2))
    assert summarize(brackets[:1]).low is None


def test_a_rate_that_only_finds_the_frequencies_is_not_stable():
    """Training that ends at half the gain of the best rate has broken, although its loss is below the start."""

    class Stuck(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

    def loss_of(model, batch):
        gain = model.w.clamp(max=10) / 10 if model.w < 50 else 0.5 + 0 * model.w
        return (2 - gain).sum() - 0 * model.w.sum()

    found = lr_range(Stuck, loss_of, lambda seed: repeat(None), lowest=0.1, highest=1000, steps=100, seeds=1, halvings=0,
                     optimizer=torch.optim.SGD)  # fmt: skip
    assert (found.brackets[0].stable, found.brackets[0].broken) == (pytest.approx(100), pytest.approx(1000))


def test_bad_arguments_and_data_that_end_early_are_refused():
    with pytest.raises(ValueError, match="lowest < highest"):
        lr_range(Bowl(), bowl_loss, lambda seed: repeat(None), lowest=1, highest=0.1)
    with pytest.raises(ValueError, match="data ended after 3 batches"):
        lr_range(Bowl(), bowl_loss, lambda seed: iter([None] * 3), steps=5)


def test_twelve_layers_of_post_norm_never_see_the_token_before_them_and_deepnorms_do():
    """The short form of the next test: each token's answer follows from the token alone, log 13 is the loss of a guess."""

    def batches(seed):
        generator = torch.Generator().manual_seed(seed)
        return iter(lambda: torch.randint(13, (8, 7), generator=generator), None)

    def loss_of(model, tokens):
        return F.cross_entropy(model(tokens).flatten(0, 1), ((5 * tokens + 3) % 13).flatten())

    def best(placement):
        sizes = {"dim": 16, "num_heads": 1, "num_layers": 12, "ffn_dim": 32, "vocab_size": 13, "max_length": 8}
        make = lambda: normlab.build(architecture="decoder", placement=placement, **sizes)  # noqa: E731
        found = lr_range(make, loss_of, batches, lowest=3e-3, highest=3e-2, steps=30, seeds=1, halvings=0)
        return found.brackets[0].best_loss

    assert best("post") > 0.95 * math.log(13) and best("deepnorm") < 0.1 * math.log(13)


@pytest.mark.nightly
def test_post_norm_of_twelve_layers_reaches_no_more_than_frequencies_at_any_rate_and_deepnorm_does():
    """Without warm-up; the entropy of single bytes of this text is 3.26 nats."""

    def best(placement):
        sizes = {"dim": 32, "num_layers": 12, "ffn_dim": 128}
        found = lr_range(
            *parts_of(Experiment(placement=placement, model=sizes)),
            lowest=1e-3,
            highest=0.1,
            steps=40,
            seeds=1,
            halvings=0,
        )
        return found.brackets[0].best_loss

    post, deep = best("post"), best("deepnorm")
    assert post > 3.15 > 3.0 > deep


def test_the_command_line_runs_it_on_text(capsys):
    assert (
        cli.main(
            ["lr-range", "--dim", "16", "--layers", "1", "--steps", "6", "--seeds", "1", "--halvings", "0", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["brackets"][0]["trials"] >= 1
    assert cli.main(["lr-range", "--placement", "prr", "--seeds", "1"]) == 2
    assert "Did you mean 'pre'" in capsys.readouterr().err


def test_the_command_line_takes_a_factory_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "factory_of_rates.py").write_text(
        "import torch\nfrom torch import nn\nfrom itertools import repeat\n"
        "make_model = lambda: nn.Linear(1, 1)\n"
        "make_loader = lambda seed: repeat(torch.ones(4, 1))\n"
        "loss_of = lambda model, x: (model(x) - 5).square().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["lr-range", "--model", "factory_of_rates:make_model", "--data", "factory_of_rates:make_loader", "--loss", "factory_of_rates:loss_of",
                     "--steps", "20", "--seeds", "1", "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["brackets"][0]["stable"] > 0
    assert (
        cli.main(
            [
                "lr-range",
                "--model",
                "factory_of_rates:absent",
                "--data",
                "factory_of_rates:make_loader",
                "--loss",
                "factory_of_rates:loss_of",
            ]
        )
        == 2
    )
    assert "absent" in capsys.readouterr().err
    assert cli.main(["lr-range", "--model", "factory_of_rates:make_model"]) == 2
    assert "--data" in capsys.readouterr().err
