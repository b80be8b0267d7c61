"""BatchNorm and GroupNorm in the forms a causal model can use: against float64 formulas written here, position by position.

``causal="position"`` takes a position's statistics over the batch, ``causal="running"`` those of earlier batches; both
move the running statistics as the ordinary layer does. GroupNorm's form takes each token's groups on their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normlab

FEATURES = 6
DTYPES = [torch.float64, torch.float32]
FORMS = ["position", "running"]


# ---- tools -----------------------------------------------------------------------------------------------------------


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 1.5 + 0.3).to(dtype)


def shaken(layer: Any) -> Any:
    """The layer with random gains and biases."""
    with torch.no_grad():
        for name, p in layer.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + (0.0 if name.endswith("bias") else 1.0))
    return layer


def assert_near(got: Tensor, want: Tensor, steps: float = 64.0, what: str = "") -> None:
    """Within ``steps`` roundings (of got's dtype) of the largest wanted value."""
    assert got.shape == want.shape and torch.isfinite(want).all()
    limit = steps * torch.finfo(got.dtype).eps * max(want.abs().max().item(), 1e-30)
    error = (got.double() - want.double()).abs().max().item()
    assert error <= limit, f"{what}: off by {error:.3g}, allowed {limit:.3g}"


def state_of(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}


def assert_state(layer: nn.Module, state: dict[str, Tensor]) -> None:
    for name, value in layer.state_dict().items():
        assert torch.equal(value, state[name]), f"{name}: {value.tolist()}, expected {state[name].tolist()}"


MASK = torch.tensor(
    [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.bool
)  # positions with 4, 3, 3, 1 and 0 real samples


def by_position(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, eps: float = 1e-5) -> Tensor:
    """Statistics over the real samples of each position; padding comes out as zero."""
    columns = []
    for t in range(x.shape[1]):
        rows = x[mask[:, t], t]
        column = torch.zeros_like(x[:, t])
        if len(rows):
            mean, var = rows.mean(0), rows.var(0, unbiased=False)
            column = torch.where(mask[:, t, None], (x[:, t] - mean) / (var + eps).sqrt() * weight + bias, 0)
        columns.append(column)
    return torch.stack(columns, 1)


def assert_forward_and_backward(
    layer: Any, formula: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, mask: Tensor | None
) -> None:
    """Output and all gradients of the layer against the formula(x, weight, bias) in float64."""
    own = x.clone().requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    got, want = layer(own, mask=mask), formula(*exact)
    assert got.dtype == x.dtype
    assert_near(got, want, what="y")
    upstream = draw(*x.shape, dtype=x.dtype)
    got_grads = torch.autograd.grad(got, [own, layer.weight, layer.bias], upstream)
    want_grads = torch.autograd.grad(want, exact, upstream.double())
    for name, g, w in zip(("dx", "dweight", "dbias"), got_grads, want_grads, strict=True):
        assert w.abs().max() > 0
        assert_near(g, w, 4096 if name == "dx" else 256, name)


# ---- BatchNorm(causal="position") ------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_position_takes_statistics_over_the_batch_at_each_position(
    kernel: str, dtype: torch.dtype, masked: bool
) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", dtype=dtype))
    x = draw(4, 5, FEATURES, dtype=dtype)
    if masked:
        x[~MASK] = 1e4
    mask = MASK if masked else torch.ones_like(MASK)
    assert_forward_and_backward(layer, lambda x, w, b: by_position(x, w, b, mask), x, MASK if masked else None)


def test_position_with_one_real_sample_is_the_bias_and_none_is_zero(kernel: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position"))
    y = layer(draw(4, 5, FEATURES, dtype=torch.float32), mask=MASK)
    assert torch.equal(y[0, 3], layer.bias)
    assert (y[:, 4] == 0).all() and (y[1:, 3] == 0).all()


def test_position_takes_lengths(kernel: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", dtype=torch.float64))
    x, lengths = draw(4, 5, FEATURES), [5, 2, 3, 4]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    assert_near(layer(x, lengths=lengths), by_position(x, layer.weight, layer.bias, mask))


def test_position_of_one_token_is_batch_norm(kernel: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", dtype=torch.float64))
    x = draw(7, 1, FEATURES)
    assert_near(layer(x)[:, 0], F.batch_norm(x[:, 0], None, None, layer.weight, layer.bias, True))


@pytest.mark.parametrize("gain", ["offset", "none"])
def test_position_with_other_gains(kernel: str, gain: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", gain=gain, dtype=torch.float64))
    x = draw(4, 5, FEATURES)
    weight = torch.ones(FEATURES).double() if gain == "none" else 1 + layer.weight
    assert_near(layer(x), by_position(x, weight, layer.bias, torch.ones_like(MASK)))


def test_position_without_affine(kernel: str) -> None:
    layer = normlab.BatchNorm(FEATURES, causal="position", affine=False, eps=0.1, dtype=torch.float64)
    x = draw(4, 5, FEATURES)
    one, zero = torch.ones(FEATURES).double(), torch.zeros(FEATURES).double()
    assert_near(layer(x), by_position(x, one, zero, torch.ones_like(MASK), eps=0.1))


@pytest.mark.parametrize("causal", FORMS)
@pytest.mark.parametrize("cut", [0, 2])
def test_no_gradient_comes_from_earlier_outputs_to_later_tokens(kernel: str, causal: str, cut: int) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal=causal))
    x = draw(4, 5, FEATURES, dtype=torch.float32).requires_grad_()
    (layer(x)[:, : cut + 1] * draw(4, cut + 1, FEATURES, dtype=torch.float32)).sum().backward()
    assert x.grad[:, : cut + 1].abs().max() > 0 and (x.grad[:, cut + 1 :] == 0).all()


# ---- running statistics of both forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", FORMS)
def test_running_statistics_are_torchs_on_the_real_tokens(
    kernel: str, causal: str, dtype: torch.dtype, momentum: float | None, masked: bool
) -> None:
    layer = normlab.BatchNorm(FEATURES, causal=causal, momentum=momentum, dtype=dtype)
    ordinary = normlab.BatchNorm(FEATURES, momentum=momentum, dtype=dtype)
    theirs = nn.BatchNorm1d(FEATURES, momentum=momentum, dtype=torch.float64)
    for _ in range(3):
        x = draw(4, 5, FEATURES, dtype=dtype)
        layer(x, mask=MASK if masked else None)
        ordinary(x, mask=MASK if masked else None)
        theirs(x.double()[MASK] if masked else x.double().flatten(0, 1))
        for name in ("running_mean", "running_var"):
            assert_near(getattr(layer, name), getattr(theirs, name), what=name)
            assert_near(getattr(layer, name), getattr(ordinary, name), what=name)
        assert layer.num_batches_tracked == theirs.num_batches_tracked == ordinary.num_batches_tracked


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", FORMS)
def test_evaluation_uses_and_keeps_the_running_statistics(kernel: str, causal: str, dtype: torch.dtype) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal=causal, dtype=dtype))
    for _ in range(3):
        layer(draw(4, 5, FEATURES, dtype=dtype))
    layer.eval()
    state = state_of(layer)
    x = draw(3, 4, FEATURES, dtype=dtype)
    mean, var = state["running_mean"].double(), state["running_var"].double()
    want = (x.double() - mean) / (var + 1e-5).sqrt() * layer.weight.double() + layer.bias.double()
    assert (mean != 0).all() and (var != 1).all()
    assert_near(layer(x), want)
    assert_state(layer, state)


@pytest.mark.parametrize("causal", FORMS)
def test_frozen_statistics_stay_in_training(causal: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal=causal, dtype=torch.float64))
    layer(draw(4, 5, FEATURES))
    layer.freeze()
    state, x = state_of(layer), draw(4, 5, FEATURES)
    want = (x - state["running_mean"]) / (state["running_var"] + 1e-5).sqrt() * layer.weight + layer.bias
    assert_near(layer(x), want)
    assert_state(layer, state)


@pytest.mark.parametrize("causal", FORMS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_without_two_real_cells_moves_no_statistic(kernel: str, causal: str, momentum: float | None) -> None:
    layer = normlab.BatchNorm(FEATURES, causal=causal, momentum=momentum)
    layer(draw(4, 5, FEATURES, dtype=torch.float32))
    state = state_of(layer)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    for real in (0, 1):
        mask[0, :real] = True
        y = layer(draw(4, 5, FEATURES, dtype=torch.float32), mask=mask)
        assert (y[~mask] == 0).all() and torch.isfinite(y).all()
    for name in ("running_mean", "running_var"):
        assert torch.equal(layer.state_dict()[name], state[name])


@pytest.mark.parametrize("causal", FORMS)
def test_empty_batch_passes_and_changes_nothing(kernel: str, causal: str) -> None:
    layer = normlab.BatchNorm(FEATURES, causal=causal)
    state = state_of(layer)
    assert layer(torch.zeros(0, 5, FEATURES)).shape == (0, 5, FEATURES)
    assert_state(layer, state)


# ---- BatchNorm(causal="running") -------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_running_divides_by_earlier_batches_and_then_moves_the_statistics(
    kernel: str, dtype: torch.dtype, momentum: float | None, masked: bool
) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="running", momentum=momentum, dtype=dtype))
    mask = MASK if masked else torch.ones_like(MASK)
    mean, var = torch.zeros(FEATURES).double(), torch.ones(FEATURES).double()
    for step in range(4):
        x = draw(4, 5, FEATURES, dtype=dtype) + step

        def formula(x: Tensor, w: Tensor, b: Tensor, mean: Tensor = mean, var: Tensor = var) -> Tensor:
            return torch.where(mask[..., None], (x - mean) / (var + 1e-5).sqrt() * w + b, 0)

        assert_forward_and_backward(layer, formula, x, MASK if masked else None)
        rows = x.double()[mask]
        share = 1 / (step + 1) if momentum is None else momentum
        mean = mean + share * (rows.mean(0) - mean)
        var = var + share * (rows.var(0) - var)
        assert_near(layer.running_mean, mean)
        assert_near(layer.running_var, var)
        assert layer.num_batches_tracked == step + 1


@pytest.mark.parametrize(("shape", "channel"), [((7, 6), -1), ((3, 6, 5), 1), ((2, 6, 3, 4), 1), ((2, 3, 4, 6), -1)])
def test_running_takes_any_rank(kernel: str, shape: tuple[int, ...], channel: int) -> None:
    layer = normlab.BatchNorm(FEATURES, causal="running", channel_dim=channel, dtype=torch.float64)
    first, second = draw(*shape), draw(*shape)
    assert_near(layer(first), first / (1 + 1e-5) ** 0.5)
    rows = first.movedim(channel, -1).flatten(0, -2)
    mean, var = 0.1 * rows.mean(0), 0.9 + 0.1 * rows.var(0)
    want = ((second.movedim(channel, -1) - mean) / (var + 1e-5).sqrt()).movedim(-1, channel)
    assert_near(layer(second), want)


# ---- one sample ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_position_of_a_batch_of_one_is_the_bias(kernel: str, dtype: torch.dtype) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", dtype=dtype))
    x = draw(1, 5, FEATURES, dtype=dtype).requires_grad_()
    y = layer(x)
    assert torch.equal(y, layer.bias.expand_as(y))
    assert_near(layer.running_mean, 0.1 * x.detach().double()[0].mean(0))
    upstream = draw(1, 5, FEATURES, dtype=dtype)
    y.backward(upstream)
    straight = (layer.weight * upstream).abs().max() / 1e-5**0.5
    assert x.grad.abs().max() <= 4 * torch.finfo(dtype).eps * straight
    assert_near(layer.bias.grad, upstream.double().sum((0, 1)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_running_of_a_batch_of_one(kernel: str, dtype: torch.dtype) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="running", dtype=dtype))
    x = draw(1, 5, FEATURES, dtype=dtype)
    assert_near(layer(x), x.double() / (1 + 1e-5) ** 0.5 * layer.weight.double() + layer.bias.double())
    assert_near(layer.running_var, 0.9 + 0.1 * x.double()[0].var(0))


def test_one_value_per_channel_is_refused_by_position() -> None:
    layer = normlab.BatchNorm(FEATURES, causal="position")
    state = state_of(layer)
    with pytest.raises(ValueError, match="one value per channel"):
        layer(torch.zeros(1, 1, FEATURES))
    assert_state(layer, state)


def test_one_value_per_channel_passes_running_and_moves_no_statistic(kernel: str) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="running", momentum=None, dtype=torch.float64))
    layer(draw(4, 5, FEATURES))
    state, x = state_of(layer), draw(1, 1, FEATURES)
    want = (x - state["running_mean"]) / (state["running_var"] + 1e-5).sqrt() * layer.weight + layer.bias
    assert_near(layer(x), want)
    assert_state(layer, state)


# ---- compilation and checkpointing -----------------------------------------------------------------------------------


def step_of(call: Callable[..., Tensor], layer: nn.Module, x: Tensor, upstream: Tensor, **more: Any) -> list[Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = call(x, **more)
    y.backward(upstream)
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: normlab.BatchNorm(FEATURES, causal="position"),
        lambda: normlab.BatchNorm(FEATURES, causal="running"),
        lambda: normlab.BatchNorm(FEATURES, causal="position", momentum=None),
        lambda: normlab.BatchNorm(FEATURES, causal="running", momentum=None),
        lambda: normlab.GroupNorm(2, FEATURES, causal="position"),
    ],
    ids=["position", "running", "position-average", "running-average", "group"],
)
def test_whole_graph_compiles_to_the_same_numbers(make: Callable[[], nn.Module], masked: bool) -> None:
    torch._dynamo.reset()
    layer = shaken(make())
    twin = copy.deepcopy(layer)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    mask = {"mask": MASK} if masked else {}
    for _ in range(3):
        x, upstream = draw(4, 5, FEATURES, dtype=torch.float32), draw(4, 5, FEATURES, dtype=torch.float32)
        plain = step_of(layer, layer, x, upstream, **mask)
        for a, b in zip(step_of(compiled, twin, x, upstream, **mask), plain, strict=True):
            assert_near(a, b)
        for (name, a), b in zip(twin.named_buffers(), layer.buffers(), strict=True):
            assert_near(a.float(), b.float(), what=name)
    if isinstance(twin, normlab.BatchNorm):
        assert twin.num_batches_tracked == 3


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_checkpointing_position_moves_statistics_once_and_keeps_gradients(
    kernel: str, momentum: float | None, reentrant: bool
) -> None:
    layer = shaken(normlab.BatchNorm(FEATURES, causal="position", momentum=momentum))
    twin = copy.deepcopy(layer)
    for _ in range(2):
        x, upstream = draw(4, 5, FEATURES, dtype=torch.float32), draw(4, 5, FEATURES, dtype=torch.float32)
        plain = step_of(layer, layer, x, upstream)
        again = step_of(lambda x: checkpoint(twin, x, use_reentrant=reentrant), twin, x, upstream)
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
        assert_state(twin, state_of(layer))


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
def test_checkpointing_running_is_right_or_refused(kernel: str, reentrant: bool) -> None:
    """Its forward moves the statistics it divides by, so a second forward for the same step sees other ones."""
    layer = shaken(normlab.BatchNorm(FEATURES, causal="running"))
    twin = copy.deepcopy(layer)
    x, upstream = draw(4, 5, FEATURES, dtype=torch.float32), draw(4, 5, FEATURES, dtype=torch.float32)
    plain = step_of(layer, layer, x, upstream)
    try:
        again = step_of(lambda x: checkpoint(twin, x, use_reentrant=reentrant), twin, x, upstream)
    except normlab.TransformUnsupported as refusal:
        assert "checkpoint" in str(refusal)
    else:
        for a, b in zip(again, plain, strict=True):
            assert_near(a, b)
    assert_state(twin, state_of(layer))


def test_checkpointed_model_with_running_statistics_is_right_or_refused() -> None:
    settings = {"architecture": "decoder", "dim": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 5, "norm": "batch",
                "causal_statistics": "running", "max_length": 8}  # fmt: skip
    model = normlab.build(**settings)
    tokens = torch.randint(0, 5, (4, 5))
    try:
        twin = normlab.build(checkpoint=True, **settings)
        twin.load_state_dict(model.state_dict())
        model(tokens).square().mean().backward()
        twin(tokens).square().mean().backward()
    except (ValueError, normlab.TransformUnsupported) as refusal:
        assert "checkpoint" in str(refusal)
        return
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


# ---- GroupNorm(causal="position") ------------------------------------------------------------------------------------


def token_groups(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, channel: int = -1) -> Tensor:
    """torch's group norm with every token as a sample of its own."""
    last = x.movedim(channel, -1)
    return F.group_norm(last.flatten(0, -2), groups, weight, bias, 1e-5).view(last.shape).movedim(-1, channel)


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_by_position_is_that_of_each_token(
    kernel: str, dtype: torch.dtype, groups: int, masked: bool
) -> None:
    layer = shaken(normlab.GroupNorm(groups, FEATURES, causal="position", dtype=dtype))
    x = draw(4, 5, FEATURES, dtype=dtype)
    mask = MASK if masked else torch.ones_like(MASK)
    x[~mask] = 1e4
    assert_forward_and_backward(
        layer,
        lambda x, w, b: torch.where(mask[..., None], token_groups(x, w, b, groups), 0),
        x,
        MASK if masked else None,
    )


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "dense"])
@pytest.mark.parametrize("shape", [(4, FEATURES, 5), (2, FEATURES, 3, 5)], ids=str)
def test_group_norm_by_position_with_channels_second(kernel: str, shape: tuple[int, ...], masked: bool) -> None:
    layer = shaken(normlab.GroupNorm(2, FEATURES, causal="position", channel_dim=1, dtype=torch.float64))
    mask = torch.rand(shape[0], *shape[2:]) < 0.6 if masked else None
    real = torch.ones(1, dtype=torch.bool) if mask is None else mask.unsqueeze(1)
    assert_forward_and_backward(
        layer, lambda x, w, b: torch.where(real, token_groups(x, w, b, 2, 1), 0), draw(*shape), mask
    )


@pytest.mark.parametrize("shape", [(1, 5, FEATURES), (7, FEATURES), (2, 3, 4, FEATURES), (1, 1, FEATURES)], ids=str)
def test_group_norm_by_position_of_other_shapes(kernel: str, shape: tuple[int, ...]) -> None:
    layer = shaken(normlab.GroupNorm(2, FEATURES, causal="position", dtype=torch.float64))
    x = draw(*shape)
    assert_near(layer(x), token_groups(x, layer.weight, layer.bias, 2))


def test_group_norm_by_position_of_one_group_is_layer_norm(kernel: str) -> None:
    layer = shaken(normlab.GroupNorm(1, FEATURES, causal="position", dtype=torch.float64))
    x = draw(4, 5, FEATURES)
    assert_near(layer(x), F.layer_norm(x, (FEATURES,), layer.weight, layer.bias))


def test_group_norm_by_position_differs_from_that_of_the_sample() -> None:
    x = draw(4, 5, FEATURES)
    causal, plain = (normlab.GroupNorm(2, FEATURES, causal=c, dtype=torch.float64)(x) for c in ("position", None))
    assert (causal - plain).abs().max() > 0.1


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_group_norm_by_position_is_the_same_in_both_modes(training: bool) -> None:
    layer = shaken(normlab.GroupNorm(2, FEATURES, causal="position", dtype=torch.float64)).train(training)
    x = draw(4, 5, FEATURES)
    assert_near(layer(x), token_groups(x, layer.weight, layer.bias, 2))


@pytest.mark.parametrize("shape", [(0, 5, FEATURES), (4, 0, FEATURES)], ids=str)
def test_group_norm_by_position_of_an_empty_batch(kernel: str, shape: tuple[int, ...]) -> None:
    assert normlab.GroupNorm(2, FEATURES, causal="position")(torch.zeros(shape)).shape == shape


# ---- refusals --------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "batch-unknown": (lambda: normlab.BatchNorm(4, causal="positon"), "Did you mean 'position'.*running"),
    "batch-true": (lambda: normlab.BatchNorm(4, causal=True), "unknown causal True"),
    "group-unknown": (lambda: normlab.GroupNorm(2, 4, causal="running"), "unknown causal 'running'.*position"),
    "with-ghosts": (lambda: normlab.BatchNorm(4, causal="position", ghost_size=2), "exclude one another"),
    "with-renorm": (lambda: normlab.BatchNorm(4, causal="running", renorm=(2.0, 1.0)), "exclude one another"),
    "with-sync": (lambda: normlab.BatchNorm(4, causal="position", sync=True), "exclude one another"),
    "untracked": (
        lambda: normlab.BatchNorm(4, causal="running", track_running_stats=False),
        "track_running_stats=True",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_options_that_cannot_be_are_refused(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("shape", "channel"),
    [((5, FEATURES), -1), ((2, 3, 5, FEATURES), -1), ((2, FEATURES, 5), 1), ((2, FEATURES, FEATURES), 1)],
    ids=str,
)
def test_position_takes_only_sequences_with_channels_last(shape: tuple[int, ...], channel: int) -> None:
    layer = normlab.BatchNorm(FEATURES, causal="position", channel_dim=channel)
    state = state_of(layer)
    with pytest.raises(ValueError, match=r"\(B, L, d\).*got an input of shape"):
        layer(torch.randn(shape))
    assert_state(layer, state)


def test_position_takes_channel_dim_two(kernel: str) -> None:
    layer = normlab.BatchNorm(FEATURES, causal="position", channel_dim=2, dtype=torch.float64)
    x = draw(4, 5, FEATURES)
    assert_near(layer(x), by_position(x, layer.weight, layer.bias, torch.ones_like(MASK)))


@pytest.mark.parametrize("causal", FORMS)
def test_mask_of_another_shape_is_refused_and_moves_nothing(causal: str) -> None:
    layer = normlab.BatchNorm(FEATURES, causal=causal)
    state = state_of(layer)
    with pytest.raises(ValueError, match=r"mask has shape \(5, 4\)"):
        layer(torch.randn(4, 5, FEATURES), mask=MASK.T)
    assert_state(layer, state)
