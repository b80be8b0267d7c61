"""The layers: drop-ins for torch.nn where torch has them, hand-written formulas where it has not, masks everywhere.

The oracle is torch's own layer (or a formula written here) in float64; ours runs in the dtype under test and must agree
to its rounding. Gains and upstream gradients are random: ones and ``y.sum()`` hide most bugs of a norm. Sizes are
distinct primes where the formula lets them be.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from norm_cases import (
    BUILD,
    DTYPES,
    FEATURES,
    LAYOUTS,
    PowerByHand,
    assert_near,
    assert_same,
    assert_step,
    assert_untouched,
    draw,
    grads,
    lay_out,
    pairs,
    shaken,
    shape_with,
    state_of,
)
from torch import Tensor, nn

import normlab
from normlab import functional

# ---- drop-ins for torch.nn -------------------------------------------------------------------------------------------

BATCH = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
INSTANCE = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}

SAME_CONSTRUCTOR = [
    (normlab.LayerNorm, nn.LayerNorm),
    (normlab.RMSNorm, nn.RMSNorm),
    (normlab.GroupNorm, nn.GroupNorm),
    *((normlab.BatchNorm, theirs) for theirs in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    *((normlab.InstanceNorm, theirs) for theirs in INSTANCE.values()),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), SAME_CONSTRUCTOR, ids=lambda c: f"{c.__module__.split('.')[0]}.{c.__name__}"
)
def test_constructor_takes_what_torch_takes(ours: type, theirs: type) -> None:
    mine = inspect.signature(ours).parameters
    positional = [name for name, p in mine.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, (name, p) in enumerate(inspect.signature(theirs).parameters.items()):
        assert name in mine, f"torch's {name} is missing"
        assert mine[name].default == p.default, f"{name} starts at {mine[name].default}, torch's at {p.default}"
        if p.kind is p.POSITIONAL_OR_KEYWORD:
            assert positional[place] == name, f"argument {place} is {positional[place]}, torch's is {name}"


DROP_INS: list[tuple[str, Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = [
    ("layer-2d", lambda: nn.LayerNorm(13), lambda: normlab.LayerNorm(13), (11, 13)),
    ("layer-1d", lambda: nn.LayerNorm(13), lambda: normlab.LayerNorm(13), (13,)),
    ("layer-3d", lambda: nn.LayerNorm(13, eps=0.02), lambda: normlab.LayerNorm(13, eps=0.02), (5, 7, 13)),
    ("layer-trailing", lambda: nn.LayerNorm((3, 5, 7)), lambda: normlab.LayerNorm((3, 5, 7)), (2, 11, 3, 5, 7)),
    ("layer-all", lambda: nn.LayerNorm([3, 7]), lambda: normlab.LayerNorm([3, 7]), (3, 7)),
    ("layer-no-bias", lambda: nn.LayerNorm(13, bias=False), lambda: normlab.LayerNorm(13, bias=False), (5, 7, 13)),
    ("layer-plain", lambda: nn.LayerNorm(13, elementwise_affine=False),
     lambda: normlab.LayerNorm(13, elementwise_affine=False), (5, 7, 13)),
    ("rms", lambda: nn.RMSNorm(13), lambda: normlab.RMSNorm(13), (5, 7, 13)),
    ("rms-eps", lambda: nn.RMSNorm(13, eps=0.02), lambda: normlab.RMSNorm(13, eps=0.02), (5, 7, 2, 13)),
    ("rms-trailing", lambda: nn.RMSNorm((5, 7)), lambda: normlab.RMSNorm((5, 7)), (11, 5, 7)),
    ("rms-plain", lambda: nn.RMSNorm(13, elementwise_affine=False),
     lambda: normlab.RMSNorm(13, elementwise_affine=False), (5, 7, 13)),
    ("group", lambda: nn.GroupNorm(3, 21), lambda: normlab.GroupNorm(3, 21, channel_dim=1), (5, 21, 7, 11)),
    ("group-2d", lambda: nn.GroupNorm(3, 21), lambda: normlab.GroupNorm(3, 21), (5, 21)),
    ("group-3d", lambda: nn.GroupNorm(7, 21, eps=0.02), lambda: normlab.GroupNorm(7, 21, eps=0.02, channel_dim=1), (5, 21, 13)),
    ("group-5d", lambda: nn.GroupNorm(1, 21), lambda: normlab.GroupNorm(1, 21, channel_dim=1), (2, 21, 3, 5, 7)),
    ("group-plain", lambda: nn.GroupNorm(3, 21, affine=False),
     lambda: normlab.GroupNorm(3, 21, affine=False, channel_dim=1), (5, 21, 7)),
    ("group-no-bias", lambda: nn.GroupNorm(3, 21, bias=False),
     lambda: normlab.GroupNorm(3, 21, bias=False, channel_dim=1), (5, 21, 7)),
]  # fmt: skip
if "bias" not in inspect.signature(nn.GroupNorm).parameters:  # torch 2.5: nothing to compare with
    DROP_INS = [case for case in DROP_INS if case[0] != "group-no-bias"]
for _dims, _batch in BATCH.items():
    for _affine in (True, False):
        for _track in (True, False):
            DROP_INS.append((
                f"batch-{_dims}d{'' if _affine else '-plain'}{'' if _track else '-untracked'}",
                lambda c=_batch, a=_affine, t=_track: c(7, affine=a, track_running_stats=t, momentum=0.3),
                lambda a=_affine, t=_track: normlab.BatchNorm(
                    7, affine=a, track_running_stats=t, momentum=0.3, channel_dim=1
                ),
                shape_with(_dims, 1, 7),
            ))  # fmt: skip
for _dims, _instance in INSTANCE.items():
    for _affine in (True, False):
        for _track in (True, False):
            DROP_INS.append((
                f"instance-{_dims}d{'-affine' if _affine else ''}{'-tracked' if _track else ''}",
                lambda c=_instance, a=_affine, t=_track: c(7, affine=a, track_running_stats=t, momentum=0.3),
                lambda a=_affine, t=_track: normlab.InstanceNorm(
                    7, affine=a, track_running_stats=t, momentum=0.3, channel_dim=1
                ),
                shape_with(_dims, 1, 7),
            ))  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours", "shape"), [d[1:] for d in DROP_INS], ids=[d[0] for d in DROP_INS])
class TestDropIn:
    """Several training steps, then evaluation: outputs, gradients and buffers of ours equal torch's."""

    def test_steps(self, kernel: str, theirs: Any, ours: Any, shape: tuple[int, ...]) -> None:
        oracle = shaken(theirs())
        mine = ours()
        mine.load_state_dict(oracle.state_dict(), strict=True)
        oracle = oracle.double()
        for step in range(4):
            if step == 3:
                mine.eval(), oracle.eval()
            x = draw(*shape) * (1 + step) + step
            assert_step(mine, oracle, pairs(mine, oracle), x, ulps=16)
            for name, buffer in oracle.named_buffers():
                if buffer.is_floating_point():
                    assert_near(getattr(mine, name), buffer, 16, f"{name} after step {step}")
        if isinstance(mine, normlab.BatchNorm) and mine.track_running_stats:
            assert int(mine.num_batches_tracked) == int(oracle.num_batches_tracked) == 3

    def test_checkpoints_travel_both_ways(self, theirs: Any, ours: Any, shape: tuple[int, ...]) -> None:
        a, b = shaken(theirs()), shaken(ours())
        for buffer in [*a.buffers(), *b.buffers()]:
            buffer.copy_(torch.randint(2, 9, buffer.shape))
        assert list(a.state_dict()) == list(b.state_dict())
        saved = state_of(b)
        b.load_state_dict(a.state_dict(), strict=True)
        for name, value in a.state_dict().items():
            assert torch.equal(b.state_dict()[name], value), name
        a.load_state_dict(saved, strict=True)
        for name, value in saved.items():
            assert torch.equal(a.state_dict()[name], value), name

    def test_starts_like_torch(self, theirs: Any, ours: Any, shape: tuple[int, ...]) -> None:
        a, b = theirs().state_dict(), ours().state_dict()
        assert {k: (v.dtype, v.shape) for k, v in a.items()} == {k: (v.dtype, v.shape) for k, v in b.items()}
        for name, value in a.items():
            assert torch.equal(value, b[name]), name


def test_checkpoint_from_before_batches_were_counted() -> None:
    """torch loads BatchNorm checkpoints without ``num_batches_tracked`` (written before torch 0.4.1)."""
    old = OrderedDict((k, v) for k, v in nn.BatchNorm1d(7).state_dict().items() if k != "num_batches_tracked")
    old["running_mean"] = torch.arange(7.0)
    nn.BatchNorm1d(7).load_state_dict(old, strict=True)
    mine = normlab.BatchNorm(7)
    mine.load_state_dict(old, strict=True)
    assert torch.equal(mine.running_mean, torch.arange(7.0)) and int(mine.num_batches_tracked) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["layer", "rms", "batch", "instance", "group"])
def test_dtypes_against_torch(kernel: str, name: str, dtype: torch.dtype) -> None:
    """Every dtype is within its own rounding of float64; parameters of the same dtype."""
    theirs, ours = {
        "layer": (nn.LayerNorm(21), normlab.LayerNorm(21)),
        "rms": (nn.RMSNorm(21, eps=1e-6), normlab.RMSNorm(21, eps=1e-6)),
        "batch": (nn.BatchNorm1d(21), normlab.BatchNorm(21)),
        "instance": (nn.InstanceNorm1d(21, affine=True), normlab.InstanceNorm(21, affine=True)),
        "group": (nn.GroupNorm(3, 21), normlab.GroupNorm(3, 21)),
    }[name]
    shaken(ours).to(dtype)
    oracle = theirs.double()
    oracle.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in ours.state_dict().items()})

    def tokens_last(x: Tensor) -> Tensor:
        return oracle(x) if name in ("layer", "rms") else oracle(x.transpose(1, 2)).transpose(1, 2)

    ulps = 1.0 if dtype in (torch.bfloat16, torch.float16) else 16.0
    x = draw(5, 67, 21, dtype=dtype)
    assert_step(ours, tokens_last, pairs(ours, oracle), x, ulps)


def default_eps_of_torch(dtype: torch.dtype) -> float | None:
    """None, torch's default. torch 2.5 takes the epsilon of a 16-bit input (0.0078 in bfloat16), later ones and ours with any torch float32's."""
    tiny = torch.full((1, 4), 1e-3, dtype=dtype)
    takes_that_of_the_input = bool(nn.functional.rms_norm(tiny, (4,)).max() < 0.5)
    assert dtype.itemsize == 2 or not takes_that_of_the_input
    return torch.finfo(torch.float32).eps if takes_that_of_the_input else None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["weight", "plain"])
def test_rms_default_eps_is_torchs(dtype: torch.dtype, affine: bool) -> None:
    """On small values the default eps decides the result: it must be the one torch takes."""
    theirs = shaken(nn.RMSNorm(13, default_eps_of_torch(dtype), affine)).to(dtype)
    ours = normlab.RMSNorm(13, elementwise_affine=affine).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = (draw(5, 7, 13) * 1e-3).to(dtype)
    assert_near(ours(x), theirs(x), 2 if dtype.itemsize == 2 else 16)


def test_residual_rms_default_eps_is_rms_norms() -> None:
    x = (draw(5, 7, 13) * 1e-3).bfloat16()
    theirs = nn.RMSNorm(13, default_eps_of_torch(torch.bfloat16)).bfloat16()
    assert_near(normlab.ResidualNorm(13, norm="rms").bfloat16()(x, torch.zeros_like(x)), theirs(x), 2)


@pytest.mark.parametrize("name", ["layer", "rms", "batch", "instance", "group", "power", "dyt"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_dtype(kernel: str, name: str, dtype: torch.dtype) -> None:
    """16-bit input, float32 parameters: 16-bit output, float32 parameter gradients that are summed in more than 16."""
    ours = shaken(BUILD[name][0][1]())
    twin = copy.deepcopy(ours).double()
    x = draw(5, 203, FEATURES, dtype=dtype)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, z = ours(a), twin(b)
    assert y.dtype == dtype
    assert_near(y, z, 1.0, "y")
    upstream = draw(*x.shape, dtype=dtype)
    got, want = grads(y, [a, *ours.parameters()], upstream), grads(z, [b, *twin.parameters()], upstream)
    assert_near(got[0], want[0], 2.0, "dx")
    for (n, p), g, w in zip(ours.named_parameters(), got[1:], want[1:], strict=True):
        assert g.dtype == p.dtype == torch.float32
        assert_near(g, w, 256.0, n)  # of float32


# ---- shapes and memory -----------------------------------------------------------------------------------------------

PLACES = [(2, 1), (3, 1), (3, -1), (4, 1), (4, 2), (4, -1), (5, 1), (5, 3), (5, -1)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dims", "channel"), PLACES)
@pytest.mark.parametrize("name", ["batch", "batch-eval", "instance", "group", "power"])
def test_channel_dim_and_layout(name: str, dims: int, channel: int, layout: str) -> None:
    if name == "instance" and dims == 2:
        pytest.skip("torch reads a 2-D input of InstanceNorm1d as one sample without a batch axis")
    oracle, ours = {
        "batch": lambda: (BATCH[dims](21), normlab.BatchNorm(21, channel_dim=channel)),
        "batch-eval": lambda: (BATCH[dims](21), normlab.BatchNorm(21, channel_dim=channel)),
        "instance": lambda: (
            INSTANCE[dims](21, affine=True),
            normlab.InstanceNorm(21, affine=True, channel_dim=channel),
        ),
        "group": lambda: (nn.GroupNorm(3, 21), normlab.GroupNorm(3, 21, channel_dim=channel)),
        "power": lambda: (PowerByHand(21), normlab.PowerNorm(21, channel_dim=channel, running=False)),
    }[name]()
    shaken(oracle)
    if name == "batch-eval":
        oracle.running_mean.copy_(draw(21))
        oracle.running_var.copy_(draw(21).abs() + 0.1)
        oracle.eval(), ours.eval()
    ours.load_state_dict(oracle.state_dict(), strict=name != "power")
    oracle = oracle.double()
    x = lay_out(draw(*shape_with(dims, channel, 21)), layout, channel)
    assert_step(ours, lambda b: oracle(b.movedim(channel, 1)).movedim(1, channel), pairs(ours, oracle), x, ulps=16)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(11, 13), (5, 7, 13), (2, 3, 7, 13), (2, 3, 5, 7, 13)], ids=lambda s: f"{len(s)}d")
@pytest.mark.parametrize("name", ["layer", "rms", "scale", "dyt", "derf"])
def test_row_norms_of_any_memory(name: str, shape: tuple[int, ...], layout: str) -> None:
    ours = shaken({
        "layer": normlab.LayerNorm, "rms": normlab.RMSNorm, "scale": normlab.ScaleNorm, "dyt": normlab.DyT,
        "derf": normlab.Derf,
    }[name](13))  # fmt: skip
    twin = copy.deepcopy(ours).double()

    def by_hand(x: Tensor) -> Tensor:
        if name == "layer":
            centered = x - x.mean(-1, keepdim=True)
            return centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * twin.weight + twin.bias
        if name == "rms":
            return x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * twin.weight
        if name == "scale":
            return twin.weight * x / x.pow(2).sum(-1, keepdim=True).sqrt()
        u = twin.alpha * x if name == "dyt" else twin.alpha * x + twin.shift
        return (torch.tanh(u) if name == "dyt" else torch.erf(u)) * twin.weight + twin.bias

    x = lay_out(draw(*shape), layout, 1)
    a, b = x.requires_grad_(), x.detach().double().requires_grad_()
    y, z = ours(a), by_hand(b)
    assert_near(y, z, 16, "y")
    upstream = lay_out(draw(*shape), LAYOUTS[(LAYOUTS.index(layout) + 1) % 4], 1)
    got, want = grads(y, [a, *ours.parameters()], upstream), grads(z, [b, *twin.parameters()], upstream)
    for what, g, w in zip(["x", *dict(ours.named_parameters())], got, want, strict=True):
        assert_near(g, w, 64, f"d{what}")


@pytest.mark.parametrize("name", ["batch", "batch-eval", "instance", "group", "power"])
@pytest.mark.parametrize("dims", [4, 5])
def test_channels_last_images_are_not_copied(name: str, dims: int) -> None:
    """Output and gradient keep the strides of the image, and no op on the way moves a tensor of its size."""
    layer = shaken({
        "batch": lambda: normlab.BatchNorm(7, channel_dim=1),
        "batch-eval": lambda: normlab.BatchNorm(7, channel_dim=1).eval(),
        "instance": lambda: normlab.InstanceNorm(7, affine=True, channel_dim=1),
        "group": lambda: normlab.GroupNorm(7, 7, channel_dim=1),
        "power": lambda: normlab.PowerNorm(7, channel_dim=1),
    }[name]())  # fmt: skip
    form = torch.channels_last if dims == 4 else torch.channels_last_3d
    shape = (3, 7, 5, 11) if dims == 4 else (3, 7, 5, 2, 11)
    x = draw(*shape).to(memory_format=form).requires_grad_()
    upstream = draw(*shape).to(memory_format=form)
    with torch.profiler.profile(record_shapes=True) as profile:
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, upstream)
    assert y.stride() == x.stride() and dx.stride() == x.stride()
    events = profile.events()
    assert len(events) > 0
    copies = [
        e.name for e in events if e.name in ("aten::copy_", "aten::clone") and list(x.shape) in (e.input_shapes or [])
    ]
    assert copies == []
    dense = x.detach().contiguous().requires_grad_()
    same = copy.deepcopy(layer)(dense)
    assert same.is_contiguous()
    assert_near(y, same.double(), 16, "y")
    assert_near(dx, grads(same, [dense], upstream)[0], 32, "dx")


@pytest.mark.parametrize(
    "strided", [lambda n: draw(2 * n)[::2], lambda n: draw(1).expand(n)], ids=["every-other", "expanded"]
)
@pytest.mark.parametrize("name", ["layer", "rms", "batch", "instance", "group", "dyt"])
def test_parameters_need_not_be_dense(name: str, strided: Callable[[int], Tensor]) -> None:
    """A gain that is a view (tied, sliced, expanded) is read through its strides."""
    weight, x = strided(21), draw(5, 7, 21)
    call: dict[str, Callable[[Tensor], Tensor]] = {
        "layer": lambda w: functional.layer_norm(x, (21,), w),
        "rms": lambda w: functional.rms_norm(x, (21,), w),
        "batch": lambda w: functional.batch_norm(x, weight=w, training=True),
        "instance": lambda w: functional.instance_norm(x, w),
        "group": lambda w: functional.group_norm(x, 3, w),
        "dyt": lambda w: functional.dyt(x, torch.ones(1), w),
    }
    view, dense = weight.detach().requires_grad_(), weight.detach().clone(memory_format=torch.contiguous_format)
    dense.requires_grad_()
    y, z = call[name](view), call[name](dense)
    assert_same(y, z, "y")
    upstream = draw(5, 7, 21)
    assert_same(grads(y, [view], upstream)[0], grads(z, [dense], upstream)[0], "dweight")


CELLS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "layer": (lambda: normlab.LayerNorm(5), (2, 3, 5), {}),
    "layer-trailing": (lambda: normlab.LayerNorm((3, 5)), (2, 3, 5), {"norm": "layer", "normalized_dims": 2}),
    "rms": (lambda: normlab.RMSNorm(5), (2, 3, 5), {}),
    "scale": (lambda: normlab.ScaleNorm(5), (2, 3, 5), {}),
    "batch": (lambda: normlab.BatchNorm(5), (2, 3, 5), {}),
    "batch-image": (lambda: normlab.BatchNorm(3, channel_dim=1), (2, 3, 5), {"norm": "batch", "channel_dim": 1}),
    "instance": (lambda: normlab.InstanceNorm(3), (2, 5, 3), {}),
    "instance-middle": (lambda: normlab.InstanceNorm(3, channel_dim=2), (2, 2, 3, 3), {"norm": "instance", "channel_dim": 2}),
    "group": (lambda: normlab.GroupNorm(2, 6), (2, 3, 6), {"num_groups": 2}),
    "group-image": (lambda: normlab.GroupNorm(2, 6, channel_dim=1), (2, 6, 3), {"norm": "group", "num_groups": 2, "channel_dim": 1}),
    "power": (lambda: normlab.PowerNorm(5), (2, 3, 5), {}),
    "dyt": (lambda: normlab.DyT(5), (2, 3, 5), {}),
    "derf": (lambda: normlab.Derf(5), (2, 3, 5), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_cells_that_share_a_statistic_are_those_the_gradient_couples(name: str) -> None:
    build, shape, facts = CELLS[name]
    layer = shaken(build()).double()
    facts = dict(facts)
    labels = normlab.functional.statistic_labels(facts.pop("norm", name), shape, **facts).flatten()
    jacobian = torch.autograd.functional.jacobian(layer, draw(*shape, dtype=torch.float64))
    coupled = jacobian.reshape(labels.numel(), labels.numel()).abs() > 1e-9
    assert torch.equal(coupled, labels[:, None] == labels[None, :])


def test_tables_cover_every_norm() -> None:
    assert {c.split("-")[0] for c in CELLS} == set(normlab.NORMS) == set(BUILD)
    for name, facts in normlab.NORMS.items():
        assert all(isinstance(build(), facts.layer) for _, build in BUILD[name])


# ---- gains and rounding ----------------------------------------------------------------------------------------------

GAINED: dict[str, Callable[..., nn.Module]] = {
    "layer": lambda **k: normlab.LayerNorm(21, **k),
    "layer-trailing": lambda **k: normlab.LayerNorm((7, 21), **k),
    "rms": lambda **k: normlab.RMSNorm(21, **k),
    "batch": lambda **k: normlab.BatchNorm(21, **k),
    "batch-renorm": lambda **k: normlab.BatchNorm(21, renorm=(2.0, 1.0), **k),
    "batch-ghost": lambda **k: normlab.BatchNorm(21, ghost_size=2, **k),
    "batch-eval": lambda **k: normlab.BatchNorm(21, **k).eval(),
    "instance": lambda **k: normlab.InstanceNorm(21, affine=True, **k),
    "group": lambda **k: normlab.GroupNorm(3, 21, **k),
}


@pytest.mark.parametrize("name", GAINED)
def test_gain_offset_is_one_plus_weight(kernel: str, name: str) -> None:
    offset, direct = GAINED[name](gain="offset"), GAINED[name](gain="direct")
    assert torch.equal(offset.weight, torch.zeros_like(offset.weight))
    x, upstream = draw(5, 7, 21).requires_grad_(), draw(5, 7, 21)
    with torch.no_grad():  # quarters: 1 + weight is exact
        offset.weight.copy_(torch.randint(-8, 9, offset.weight.shape) / 4)
        direct.weight.copy_(1 + offset.weight)
        if offset.bias is not None:
            offset.bias.copy_(torch.randn_like(offset.bias))
            direct.bias.copy_(offset.bias)
    y, z = offset(x), direct(x)
    assert_same(y, z, "y")
    for g, w in zip(
        grads(y, [x, *offset.parameters()], upstream), grads(z, [x, *direct.parameters()], upstream), strict=True
    ):
        assert_same(g, w, "gradient")


@pytest.mark.parametrize("name", GAINED)
def test_gain_none_has_no_weight(kernel: str, name: str) -> None:
    plain, direct = GAINED[name](gain="none"), GAINED[name](gain="direct")
    assert plain.weight is None and "weight" not in plain.state_dict()
    x, upstream = draw(5, 7, 21).requires_grad_(), draw(5, 7, 21)
    if plain.bias is not None:
        shaken(plain)
        direct.load_state_dict({"weight": direct.weight, **plain.state_dict()})
    y, z = plain(x), direct(x)
    assert_same(y, z, "y")
    assert_same(grads(y, [x], upstream)[0], grads(z, [x], upstream)[0], "dx")


@pytest.mark.parametrize("build", [
    lambda: normlab.InstanceNorm(21, gain="offset"),
    lambda: normlab.LayerNorm(21, elementwise_affine=False, gain="offset"),
    lambda: normlab.BatchNorm(21, affine=False, gain="direct"),
], ids=["instance", "layer", "batch"])  # fmt: skip
def test_asked_for_gain_is_not_dropped_in_silence(build: Callable[[], nn.Module]) -> None:
    """gain= together with affine=False (InstanceNorm's default) contradict each other: honour the request or raise."""
    try:
        layer = build()
    except ValueError as error:
        assert "gain" in str(error)
    else:
        assert layer.weight is not None


def llama_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Hugging Face's LlamaRMSNorm.forward, line by line."""
    input_dtype = x.dtype
    hidden_states = x.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + eps)
    return weight * hidden_states.to(input_dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_round_before_gain_is_llamas_order(kernel: str, dtype: torch.dtype) -> None:
    before, after = (shaken(normlab.RMSNorm(131, eps=1e-6, round_before_gain=r)).to(dtype) for r in (True, False))
    after.load_state_dict(before.state_dict())
    x = draw(5, 37, 131, dtype=dtype)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = before(a), llama_rms_norm(b, before.weight, 1e-6)
    # Llama divides in float32: the last bit before rounding may differ, hence not every cell need be equal.
    assert (y != z).double().mean() < 1e-3
    assert_near(y, z, 1.0)
    assert (after(x) != z).double().mean() > 0.05, "the two orders should be told apart by this test"
    upstream = draw(*x.shape, dtype=dtype)
    for g, w in zip(grads(y, [a, before.weight], upstream), grads(z, [b, before.weight], upstream), strict=True):
        assert_near(g, w, 4.0, "gradient")


def test_round_before_gain_on_layer_norm(kernel: str) -> None:
    norm = shaken(normlab.LayerNorm(131, round_before_gain=True))
    x = draw(5, 37, 131, dtype=torch.bfloat16)
    d = x.double()
    xhat = (d - d.mean(-1, keepdim=True)) / (d.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    want = (xhat.bfloat16().double() * norm.weight.double() + norm.bias.double()).bfloat16()
    assert (norm(x) != want).double().mean() < 1e-3
    assert (norm(x) != (xhat * norm.weight + norm.bias).bfloat16()).double().mean() > 0.05


@pytest.mark.parametrize(("partial", "counted"), [(0.0625, 8), (0.3, 39), (1.0, 131), (0.001, 1)])
def test_partial_rms(kernel: str, partial: float, counted: int) -> None:
    norm = shaken(normlab.RMSNorm(131, eps=0.01, partial=partial))
    weight = norm.weight.detach().double().requires_grad_()
    x = draw(5, 7, 131)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y = norm(a)
    z = b / (b[..., :counted].pow(2).mean(-1, keepdim=True) + 0.01).sqrt() * weight
    assert_near(y, z, 16, "y")
    upstream = draw(5, 7, 131)
    for g, w in zip(grads(y, [a, norm.weight], upstream), grads(z, [b, weight], upstream), strict=True):
        assert_near(g, w, 64, "gradient")


# ---- norms that are other norms --------------------------------------------------------------------------------------


def assert_same_function(
    one: nn.Module, other: nn.Module, x: Tensor, view: Callable[[Tensor], Tensor] = lambda t: t, ulps: float = 16
) -> None:
    """one(x) and other(view(x)), values and input gradients."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = one(a), other(view(b))
    assert_near(y, z.reshape(y.shape), ulps, "y")
    upstream = draw(*x.shape, dtype=x.dtype)
    assert_near(grads(y, [a], upstream)[0], grads(z, [b], upstream.view(z.shape))[0], 4 * ulps, "dx")


def test_scale_norm_at_root_dim_is_rms_norm(kernel: str) -> None:
    assert_same_function(normlab.ScaleNorm(13), normlab.RMSNorm(13, eps=0, elementwise_affine=False), draw(5, 7, 13))
    assert normlab.ScaleNorm(13).weight.item() == pytest.approx(math.sqrt(13))


def test_group_norm_of_one_group_is_layer_norm_over_the_sample(kernel: str) -> None:
    group, layer = shaken(normlab.GroupNorm(1, 13)), normlab.LayerNorm((7, 13))
    layer.load_state_dict({name: p.expand(7, 13) for name, p in group.state_dict().items()})
    assert_same_function(group, layer, draw(5, 7, 13))


def test_group_norm_of_single_channels_is_instance_norm(kernel: str) -> None:
    group, instance = shaken(normlab.GroupNorm(13, 13)), normlab.InstanceNorm(13, affine=True)
    instance.load_state_dict(group.state_dict())
    assert_same_function(group, instance, draw(5, 7, 13))


def test_batch_norm_of_one_sample_is_instance_norm(kernel: str) -> None:
    batch, instance = shaken(normlab.BatchNorm(13, track_running_stats=False)), normlab.InstanceNorm(13, affine=True)
    instance.load_state_dict(batch.state_dict())
    assert_same_function(batch, instance, draw(1, 7, 13))


def test_layer_norm_of_centred_tokens_is_rms_norm(kernel: str) -> None:
    x = draw(5, 7, 13, dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    layer, rms = (
        normlab.LayerNorm(13, elementwise_affine=False),
        normlab.RMSNorm(13, eps=1e-5, elementwise_affine=False),
    )
    assert_near(layer(x), rms(x), 16)


# ---- starting again --------------------------------------------------------------------------------------------------

AT_THE_START: dict[str, Callable[..., nn.Module]] = {
    "layer": lambda **to: normlab.LayerNorm((3, 7), **to),
    "layer-offset": lambda **to: normlab.LayerNorm(FEATURES, gain="offset", **to),
    "rms": lambda **to: normlab.RMSNorm(FEATURES, bias=True, **to),
    "scale": lambda **to: normlab.ScaleNorm(FEATURES, **to),
    "batch": lambda **to: normlab.BatchNorm(FEATURES, **to),
    "batch-frozen": lambda **to: normlab.BatchNorm(FEATURES, frozen=True, **to),
    "batch-offset-average": lambda **to: normlab.BatchNorm(FEATURES, momentum=None, gain="offset", **to),
    "batch-untracked": lambda **to: normlab.BatchNorm(FEATURES, track_running_stats=False, **to),
    "instance": lambda **to: normlab.InstanceNorm(FEATURES, affine=True, track_running_stats=True, **to),
    "group": lambda **to: normlab.GroupNorm(3, FEATURES, **to),
    "power": lambda **to: normlab.PowerNorm(FEATURES, warmup_steps=1, **to),
    "power-untracked": lambda **to: normlab.PowerNorm(FEATURES, running=False, track_running_stats=False, **to),
    "dyt": lambda **to: normlab.DyT(FEATURES, alpha_init=0.7, **to),
    "derf": lambda **to: normlab.Derf(FEATURES, alpha_init=0.7, shift_init=-0.2, **to),
    "residual": lambda **to: normlab.ResidualNorm(FEATURES, **to),
}


@pytest.mark.parametrize("way", ["overwritten", "emptied", "from meta"])
@pytest.mark.parametrize("name", AT_THE_START)
def test_reset_parameters_restores_the_state_at_construction(name: str, way: str) -> None:
    start = AT_THE_START[name]().state_dict()
    layer = AT_THE_START[name](device="meta" if way == "from meta" else None)
    if way != "overwritten":
        layer.to_empty(device="cpu")
    with torch.no_grad():
        for held in (*layer.parameters(), *layer.buffers()):  # what to_empty gives may by chance be the right numbers
            held.fill_(13)
    layer.reset_parameters()  # type: ignore[operator]
    again = layer.state_dict()
    assert list(again) == list(start)
    for key, value in start.items():
        assert_same(again[key], value, key)


def test_starting_again_is_tried_on_every_norm() -> None:
    assert {type(make()) for make in AT_THE_START.values()} == {
        *(facts.layer for facts in normlab.NORMS.values()),
        normlab.ResidualNorm,
    }


# ---- torch's tools that ask for its own class ------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, None])
def test_update_bn_gives_torchs_statistics(momentum: float | None) -> None:
    batches = [draw(n, 5, FEATURES) * (1 + n) for n in (3, 7, 2)]
    ours, theirs = normlab.BatchNorm(FEATURES, momentum=momentum), nn.BatchNorm1d(FEATURES, momentum=momentum)
    for norm in (ours, theirs):
        norm.running_mean.fill_(9)
        norm.num_batches_tracked.fill_(4)
    torch.optim.swa_utils.update_bn(batches, nn.Sequential(ours).eval())
    torch.optim.swa_utils.update_bn([b.transpose(1, 2) for b in batches], nn.Sequential(theirs).eval())
    assert ours.momentum == momentum and not ours.training and ours.num_batches_tracked == 3
    assert_near(ours.running_mean, theirs.running_mean, what="mean")
    assert_near(ours.running_var, theirs.running_var, what="variance")


def test_update_bn_keeps_frozen_statistics() -> None:
    frozen, moving = normlab.BatchNorm(FEATURES, frozen=True), normlab.BatchNorm(FEATURES)
    frozen.running_mean.fill_(2)
    frozen.running_var.fill_(3)
    kept = state_of(frozen)
    torch.optim.swa_utils.update_bn([draw(6, FEATURES)], nn.Sequential(frozen, moving))
    assert_untouched(frozen, kept)
    assert moving.num_batches_tracked == 1 and moving.running_mean.abs().max() > 0


def test_functorch_takes_the_running_statistics_out_of_ours_as_out_of_torchs() -> None:
    model = torch.func.replace_all_batch_norm_modules_(nn.Sequential(normlab.BatchNorm(FEATURES)))
    x, alone = draw(6, FEATURES), normlab.BatchNorm(FEATURES, track_running_stats=False)
    assert not list(model.buffers())
    assert_same(model(x), alone(x))
    assert_same(model.eval()(x), alone.eval()(x))


# ---- options that change ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "name", "value"),
    [
        (normlab.LayerNorm, "eps", 0.5),
        (normlab.LayerNorm, "gain", "offset"),
        (normlab.LayerNorm, "round_before_gain", True),
        (normlab.RMSNorm, "eps", 0.5),
        (normlab.RMSNorm, "gain", "offset"),
        (normlab.RMSNorm, "round_before_gain", True),
        (normlab.RMSNorm, "partial", 0.4),
        (normlab.ScaleNorm, "eps", 50.0),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_option_set_later_counts(build: Any, name: str, value: Any, dtype: torch.dtype) -> None:
    """Facts are made when an option is set, not in each call: they must follow it, in copies too."""
    late, soon = shaken(build(FEATURES, dtype=dtype)), build(FEATURES, dtype=dtype, **{name: value})
    soon.load_state_dict(late.state_dict())
    before = late(x := draw(5, FEATURES, dtype=dtype))
    twin = copy.deepcopy(late)
    setattr(late, name, value)
    assert_same(late(x), soon(x))
    assert_same(twin(x), before)
    setattr(twin, name, value)
    assert_same(twin(x), soon(x))
    if name != "round_before_gain" or dtype in (torch.bfloat16, torch.float16):
        assert not torch.equal(before, late(x))


def test_an_eps_set_later_is_checked() -> None:
    for layer in (normlab.LayerNorm(3), normlab.RMSNorm(3), normlab.ScaleNorm(3)):
        with pytest.raises(ValueError, match="eps must be a finite number"):
            layer.eps = -1.0
