"""leaks: it finds models that see the future, names the module, spares those that do not, and leaves no trace."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normlab
from normlab import NORMS, PLACEMENTS, build, leaks

VOCABULARY, LENGTH = 11, 7
SMALL = {"dim": 24, "num_heads": 2, "num_layers": 2, "ffn_dim": 48, "vocab_size": VOCABULARY, "max_length": 8}
OVER_TOKENS: dict[str, Callable[[int], nn.Module]] = {
    "batch": lambda width: normlab.BatchNorm(width),
    "instance": lambda width: normlab.InstanceNorm(width),
    "group": lambda width: normlab.GroupNorm(4, width),
    "power-warming-up": lambda width: normlab.PowerNorm(width),
}
SAFE = [("batch", "position"), ("batch", "running"), ("group", "position"), ("power", "running")]
TOKEN_NORMS = [name for name, facts in NORMS.items() if not facts.layer.over_tokens]


def tokens(batch: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length))


def decoder(norm: Any = "layer", **more: Any) -> Any:
    return build(architecture="decoder", norm=norm, **{**SMALL, **more})


class Ahead(nn.Module):
    """Adds a little of the next vector to each."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * x.roll(-1, 1)


class Behind(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


# ---- what leaks and what does not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_decoder_with_layer_norm_has_no_leak(placement: str) -> None:
    report = leaks(decoder(placement=placement), tokens())
    assert not report and report.found == ()
    assert report.cuts == (0, 3, 5)


@pytest.mark.parametrize("norm", TOKEN_NORMS)
def test_decoder_with_a_norm_of_single_tokens_has_no_leak(norm: str) -> None:
    assert not leaks(decoder(norm), tokens())


@pytest.mark.parametrize(("norm", "form"), SAFE)
@pytest.mark.parametrize("placement", ["pre", "post", "hybrid-norm", "sub-ln"])
def test_safe_forms_have_no_leak_in_either_mode(norm: str, form: str, placement: str) -> None:
    model = decoder(norm, causal_statistics=form, placement=placement)
    batch = tokens()
    for _ in range(3):  # running statistics that are not the first ones
        model(batch)
    assert not leaks(model, batch)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("norm", OVER_TOKENS)
def test_norms_over_tokens_given_by_hand_leak(norm: str, placement: str, fused: bool) -> None:
    model = decoder(OVER_TOKENS[norm], placement=placement, fused=fused)
    report = leaks(model, tokens())
    modes = {leak.mode for leak in report.found}
    assert modes == ({"train", "eval"} if norm in ("instance", "group") else {"train"})
    norms = {name for name, m in model.named_modules() if getattr(m, "over_tokens", False)}
    for leak in report.found:
        assert leak.first_module in norms
        assert leak.first_module.startswith("stack.layers.0.attention_place")
        assert leak.moved == tuple(range(leak.cut + 1))
        assert leak.change > 1e-4
    assert [leak.cut for leak in report.in_mode("train")] == [0, 3, 5]
    assert len(report.in_mode("train")) + len(report.in_mode("eval")) == len(report.found)


def test_leak_in_the_second_layer_is_named_there() -> None:
    model = decoder()
    model.stack.layers[1].feedforward_place.norm = normlab.InstanceNorm(SMALL["dim"])
    report = leaks(model, tokens())
    assert {leak.first_module for leak in report.found} == {"stack.layers.1.feedforward_place.norm"}


def test_bidirectional_encoder_leaks() -> None:
    report = leaks(build(architecture="encoder", **SMALL), tokens())
    assert {leak.mode for leak in report.found} == {"train", "eval"}
    assert {leak.first_module for leak in report.found} == {"stack.layers.0.attention.out"}


def test_only_positions_that_moved_are_named() -> None:
    report = leaks(nn.Sequential(nn.Identity(), Ahead()), torch.randn(2, 6, 3), cuts=[1, 4])
    assert [(leak.mode, leak.cut, leak.moved) for leak in report.found] == [
        ("train", 1, (1,)),
        ("train", 4, (4,)),
        ("eval", 1, (1,)),
        ("eval", 4, (4,)),
    ]
    assert {leak.first_module for leak in report.found} == {"1"}


def test_looking_back_is_no_leak() -> None:
    assert not leaks(nn.Sequential(Behind(), nn.LayerNorm(3)), torch.randn(2, 6, 3))


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_change_is_relative_to_the_largest_output(factor: float) -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(Ahead(), Scale(factor))

    def call(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return model(x)

    report = leaks(model, torch.randn(2, 6, 3), call=call, cuts=[2])
    before, after = Ahead()(seen[0]), Ahead()(seen[1])
    want = ((before - after)[:, :3].abs().max() / before.abs().max()).item()
    assert report.found[0].change == pytest.approx(want, rel=1e-4)


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_tolerance_decides_what_counts() -> None:
    x = torch.randn(2, 6, 3)
    change = leaks(Ahead(), x, cuts=[2]).found[0].change
    assert leaks(Ahead(), x, cuts=[2], tolerance=0.9 * change)
    assert not leaks(Ahead(), x, cuts=[2], tolerance=1.1 * change)


# ---- leaks that are easy to miss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[[0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]], [[0, 0, 1], [1, 1, 0]]], ids=str)
def test_leak_of_batch_statistics_is_found_whatever_the_tokens(rows: list[list[int]]) -> None:
    """Swapping the tokens for one another must not leave the statistics of the batch as they were."""
    model = nn.Sequential(nn.Embedding(2, 4), normlab.BatchNorm(4))
    assert leaks(model, torch.tensor(rows)).in_mode("train")


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_leak_is_found_whatever_the_constant(value: float) -> None:
    assert leaks(normlab.InstanceNorm(4), torch.full((2, 6, 4), value))


@pytest.mark.parametrize("from_the_start", [True, False])
def test_output_that_is_not_finite_is_refused_not_called_safe(from_the_start: bool) -> None:
    class Poison(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where((x[:, -1:] > 0) != from_the_start, x, x.new_tensor(float("nan")))

    model = Poison()
    with pytest.raises(ValueError, match="not finite"):
        leaks(model, torch.rand(2, 6, 4) + 1.5)
    assert model.training


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_vectors_as_input() -> None:
    x = torch.randn(3, 6, 8)
    assert not leaks(nn.Sequential(nn.Linear(8, 8), normlab.LayerNorm(8)), x)
    report = leaks(nn.Sequential(nn.Linear(8, 8), normlab.InstanceNorm(8)), x)
    assert {leak.first_module for leak in report.found} == {"1"}


@pytest.mark.parametrize("masked", [True, False], ids=["causal-mask", "no-mask"])
def test_torchs_encoder_by_call(masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    report = leaks(model, torch.randn(3, 6, 8), call=lambda x: model(x, mask=mask) if masked else model(x))
    assert bool(report) != masked


def test_encoder_decoder_by_call() -> None:
    model = build(architecture="encoder-decoder", **SMALL)
    source, target = tokens(length=5), tokens()
    assert not leaks(model, target, call=lambda t: model(source, t))
    assert leaks(model, source, call=lambda s: model.encode(s))


def test_output_may_be_a_dictionary_or_a_tuple() -> None:
    class Wrapped(nn.Module):
        def __init__(self, form: Callable[[Tensor], Any]) -> None:
            super().__init__()
            self.form, self.inner = form, Ahead()

        def forward(self, x: Tensor) -> Any:
            return self.form(self.inner(x))

    for form in (lambda y: {"loss": y.sum(), "logits": y}, lambda y: (y.sum(), [y])):
        assert leaks(Wrapped(form), torch.randn(2, 6, 3)).found[0].first_module == "inner"


def test_cuts_may_be_chosen() -> None:
    report = leaks(decoder(OVER_TOKENS["instance"]), tokens(), cuts=[4, 2, 2])
    assert report.cuts == (2, 4)
    assert [leak.cut for leak in report.in_mode("eval")] == [2, 4]


def test_model_is_called_with_other_tokens_after_the_cut_and_the_same_up_to_it() -> None:
    seen: list[Tensor] = []
    model, batch = decoder(), tokens()

    def call(t: Tensor) -> Tensor:
        seen.append(t.clone())
        return model(t)

    before = batch.clone()
    leaks(model, batch, call=call, cuts=[2])
    assert torch.equal(batch, before)
    changed = [t for t in seen if not torch.equal(t, batch)]
    assert 2 <= len(changed) < len(seen)
    assert all(torch.equal(t[:, :3], batch[:, :3]) and 0 <= t.min() <= t.max() < VOCABULARY for t in changed)
    assert any((t[:, 3:] != batch[:, 3:]).all() for t in changed)


# ---- no trace --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("norm", "form"), [("batch", "position"), ("batch", "running"), ("power", "running")])
def test_buffers_modes_gradients_and_random_state_stay(norm: str, form: str, training: bool) -> None:
    model = decoder(norm, causal_statistics=form, dropout=0.3)
    batch = tokens()
    model(batch).sum().backward()
    model.train(training)
    model.stack.layers[1].train(not training)
    modes = [m.training for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    leaks(model, batch)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert not any(m._forward_hooks for m in model.modules())


def test_model_that_fails_is_put_back_all_the_same() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = normlab.BatchNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            torch.rand(3)
            self.norm(x)
            raise RuntimeError("out of order")

    model, x = Fails().eval(), torch.randn(2, 6, 4)
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of order"):
        leaks(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.training and not model.norm.training
    assert (model.norm.running_mean == 0).all() and model.norm.num_batches_tracked == 0
    assert not model.norm._forward_hooks


@pytest.mark.parametrize(
    "settings", [{"dropout": 0.5}, {"attention_dropout": 0.5}, {"activation_dropout": 0.5}], ids=str
)
@pytest.mark.parametrize("fused", [True, False])
def test_dropout_is_no_false_alarm(settings: dict[str, float], fused: bool) -> None:
    model = decoder(fused=fused, **settings)
    batch = tokens()
    assert not torch.equal(model(batch), model(batch))
    assert not leaks(model, batch)


def test_dropout_hides_no_leak() -> None:
    report = leaks(decoder(OVER_TOKENS["batch"], dropout=0.5), tokens())
    assert report.in_mode("train") and not report.in_mode("eval")


def test_running_statistics_of_one_run_do_not_reach_the_next() -> None:
    """The second run must not see statistics that the first one moved; that would be a leak of the check's own."""
    model = nn.Sequential(nn.Linear(4, 4), normlab.BatchNorm(4, causal="running", momentum=0.9))
    assert not leaks(model, 3 * torch.randn(4, 6, 4))


def test_integer_batches_raise_no_warning() -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not leaks(nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.LayerNorm(4)), tokens())
    finally:
        torch.set_warn_always(before)


# ---- words -----------------------------------------------------------------------------------------------------------


def test_report_can_be_read() -> None:
    text = str(leaks(decoder(OVER_TOKENS["batch"]), tokens(), cuts=[3]))
    train, evaluation = text.splitlines()
    assert re.fullmatch(
        r"train: changing tokens after position 3 moves 4 of 4 earlier outputs, by up to \d\.\de[-+]\d\d of the largest "
        r"output, first in stack\.layers\.0\.attention_place\.norm",
        train,
    )
    assert evaluation == "eval: no leak (cuts after positions 3)"


def test_report_without_a_leak() -> None:
    assert str(leaks(decoder(), tokens())).splitlines() == [
        "train: no leak (cuts after positions 0, 3, 5)",
        "eval: no leak (cuts after positions 0, 3, 5)",
    ]


def test_leak_outside_any_module_names_none() -> None:
    report = leaks(nn.Identity(), torch.randn(2, 6, 3), call=lambda x: F.instance_norm(x.mT).mT)
    assert report and {leak.first_module for leak in report.found} == {None}
    assert "first in" not in str(report)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "one-axis": (lambda: leaks(nn.Identity(), torch.arange(6)), r"\(B, L\)"),
    "not-a-tensor": (lambda: leaks(nn.Identity(), [[1, 2, 3]]), r"\(B, L\).*list"),
    "one-token": (lambda: leaks(nn.Identity(), torch.ones(3, 1, 4)), "two tokens"),
    "cut-at-the-end": (lambda: leaks(nn.Identity(), torch.ones(3, 6, 4), cuts=[5]), r"0\.\.4.*\[5\]"),
    "cut-negative": (lambda: leaks(nn.Identity(), torch.ones(3, 6, 4), cuts=[-1]), r"0\.\.4.*\[-1\]"),
    "one-kind-of-token": (lambda: leaks(nn.Embedding(5, 4), torch.ones(2, 6, dtype=torch.long)), "different tokens"),
    "no-output-per-token": (
        lambda: leaks(nn.Identity(), torch.ones(2, 6, 4), call=lambda x: x.mean(1)),
        r"\(B, 6, \.\.\.\)",
    ),
    "class-scores": (lambda: leaks(build(architecture="encoder", num_classes=3, **SMALL), tokens()), "one vector per"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        call()
