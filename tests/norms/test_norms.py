"""The layers: drop-ins for torch.nn where torch has them, hand-written formulas where it has not, masks everywhere.

The oracle is torch's own layer (or a formula written here) in float64; ours runs in the dtype under test and must agree
to its rounding. Gains and upstream gradients are random: ones and ``y.sum()`` hide most bugs of a norm. Sizes are
distinct primes where the formula lets them be.
"""

from __future__ import annotations

import copy
import inspect
import math
import platform
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normlab
from normlab import functional
from normlab.kernels import cpu, reference

FEATURES = 21  # 3 * 7: groups of channels must divide it
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


# ---- tools -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * 1.5 + 0.3).to(dtype)


def shaken(layer: Any) -> Any:
    """The layer with random parameters."""
    with torch.no_grad():
        for name, p in layer.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + (0.0 if name == "bias" else 1.0))
    return layer


def grads(y: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y, list(inputs), upstream.to(y.dtype)))


def assert_near(actual: Tensor, expected: Tensor, ulps: float = 32.0, what: str = "") -> None:
    """Within ``ulps`` roundings (of actual's dtype) of the largest expected value."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return
    limit = ulps * torch.finfo(actual.dtype).eps * expected.abs().max().double().clamp(min=1e-30).item()
    error = (actual.double() - expected.double()).abs().max().item()
    assert error <= limit, f"{what}: error {error:.3g} above {limit:.3g} ({actual.dtype})"


def assert_cancels(difference: Tensor, terms: Tensor) -> None:
    """Zero but for the rounding of the terms whose difference it is."""
    assert (difference.abs() <= 2 * torch.finfo(difference.dtype).eps * terms.detach().abs()).all()


def assert_same(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Bit for bit."""
    assert actual.dtype == expected.dtype and torch.equal(actual, expected), (
        f"{what}: {int((actual != expected).sum())} of {actual.numel()} values differ, "
        f"by up to {(actual.double() - expected.double()).abs().max().item():.3g}"
    )


def state_of(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}


def assert_untouched(layer: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} went from {before[name].tolist()} to {value.tolist()}"


def shape_with(dims: int, channel: int, channels: int) -> tuple[int, ...]:
    """Distinct primes with ``channels`` at position ``channel``."""
    sizes = [5, 3, 2, 11][: dims - 1]
    sizes.insert(channel % dims, channels)
    return tuple(sizes)


def lay_out(x: Tensor, layout: str, channel: int) -> Tensor:
    """The same values in other memory."""
    if layout == "channels_last":
        return x.movedim(channel, -1).contiguous().movedim(-1, channel)
    if layout == "strided":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), math.nan)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "reversed":
        order = tuple(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    return x.contiguous()


LAYOUTS = ["contiguous", "channels_last", "strided", "reversed"]


def assert_step(
    ours: nn.Module,
    theirs: Callable[[Tensor], Tensor],
    parameters: Sequence[tuple[Tensor, Tensor]],
    x: Tensor,
    ulps: float,
) -> None:
    """One forward and backward of ours on x against theirs in float64, with a random upstream gradient."""
    a, b = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    y, z = ours(a), theirs(b)
    assert y.dtype == x.dtype
    assert_near(y, z, ulps, "y")
    upstream = draw(*x.shape, dtype=x.dtype)
    got = grads(y, [a, *(p for p, _ in parameters)], upstream)
    want = grads(z, [b, *(q for _, q in parameters)], upstream)
    for name, g, w in zip(["dx", "dweight", "dbias"], got, want, strict=False):
        assert_near(g, w, 4 * ulps if name == "dx" else 2 * ulps, name)


def pairs(ours: nn.Module, theirs: nn.Module) -> list[tuple[Tensor, Tensor]]:
    named = dict(theirs.named_parameters())
    return [(p, named[name]) for name, p in ours.named_parameters()]


# Every norm of NORMS, with the options that change its path; test_tables_cover_every_norm holds it to that.
BUILD: dict[str, list[tuple[str, Callable[[], nn.Module]]]] = {
    "layer": [("", lambda: normlab.LayerNorm(FEATURES))],
    "rms": [
        ("", lambda: normlab.RMSNorm(FEATURES, eps=1e-6)),
        ("partial", lambda: normlab.RMSNorm(FEATURES, eps=1e-6, partial=0.4, bias=True)),
    ],
    "scale": [("", lambda: normlab.ScaleNorm(FEATURES))],
    "batch": [
        ("", lambda: normlab.BatchNorm(FEATURES)),
        ("image", lambda: normlab.BatchNorm(FEATURES, channel_dim=1)),
        ("average", lambda: normlab.BatchNorm(FEATURES, momentum=None)),
        ("untracked", lambda: normlab.BatchNorm(FEATURES, track_running_stats=False)),
        ("ghost", lambda: normlab.BatchNorm(FEATURES, ghost_size=2)),
        ("renorm", lambda: normlab.BatchNorm(FEATURES, renorm=(1.5, 0.5))),
    ],
    "instance": [
        ("", lambda: normlab.InstanceNorm(FEATURES, affine=True)),
        ("image", lambda: normlab.InstanceNorm(FEATURES, affine=True, track_running_stats=True, channel_dim=1)),
        ("tracked", lambda: normlab.InstanceNorm(FEATURES, affine=True, track_running_stats=True)),
    ],
    "group": [
        ("", lambda: normlab.GroupNorm(3, FEATURES)),
        ("image", lambda: normlab.GroupNorm(7, FEATURES, channel_dim=1)),
    ],
    "power": [
        ("", lambda: normlab.PowerNorm(FEATURES)),
        ("image", lambda: normlab.PowerNorm(FEATURES, channel_dim=1, warmup_steps=1)),
        ("running", lambda: normlab.PowerNorm(FEATURES, warmup_steps=0)),
        ("per-batch", lambda: normlab.PowerNorm(FEATURES, running=False)),
        ("grouped", lambda: normlab.PowerNorm(FEATURES, warmup_steps=2, group_scaling=3)),
    ],
    "dyt": [("", lambda: normlab.DyT(FEATURES))],
    "derf": [("", lambda: normlab.Derf(FEATURES, shift_init=0.2))],
}


def all_builds() -> list[Any]:
    return [
        pytest.param(build, id=f"{name}-{label}" if label else name)
        for name, builds in BUILD.items()
        for label, build in builds
    ]


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["weight", "plain"])
def test_rms_default_eps_is_torchs(dtype: torch.dtype, affine: bool) -> None:
    """On small values the default eps decides the result: it must be the one torch takes."""
    theirs = shaken(nn.RMSNorm(13, elementwise_affine=affine)).to(dtype)
    ours = normlab.RMSNorm(13, elementwise_affine=affine).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = (draw(5, 7, 13) * 1e-3).to(dtype)
    assert_near(ours(x), theirs(x), 2 if dtype.itemsize == 2 else 16)


def test_residual_rms_default_eps_is_rms_norms() -> None:
    x = (draw(5, 7, 13) * 1e-3).bfloat16()
    theirs = nn.RMSNorm(13).bfloat16()
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


class PowerByHand(nn.Module):
    """PN-V with the channels at 1: x over the root of its mean square over all other axes."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        psi = (x.flatten(0, -2).pow(2).mean(0) + self.eps).sqrt()
        return (x / psi * self.weight + self.bias).movedim(-1, 1)


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


# ---- batch normalization ---------------------------------------------------------------------------------------------


def scattered(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(shape) < share


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channel", [-1, 1])
def test_cumulative_average_is_torchs(kernel: str, channel: int, dtype: torch.dtype) -> None:
    ours = normlab.BatchNorm(7, momentum=None, channel_dim=channel, dtype=dtype)
    oracle = nn.BatchNorm1d(7, momentum=None).double()
    for step in range(1, 6):
        x = draw(5, 7, 11, dtype=dtype) * step
        oracle(x.double())
        ours(x if channel == 1 else x.transpose(1, 2))
        assert_near(ours.running_mean, oracle.running_mean, 16, "running_mean")
        assert_near(ours.running_var, oracle.running_var, 16, "running_var")
        assert int(ours.num_batches_tracked) == step


def test_running_variance_is_unbiased_by_real_cells(kernel: str) -> None:
    norm = normlab.BatchNorm(7, momentum=0.25)
    mean, var = torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    for _ in range(3):
        x, mask = draw(3, 5, 7), scattered(3, 5)
        mask[0, :2] = True
        norm(x, mask=mask)
        real = x[mask].double()
        mean += 0.25 * (real.mean(0) - mean)
        var += 0.25 * (real.var(0, unbiased=True) - var)
    assert_near(norm.running_mean, mean, 8)
    assert_near(norm.running_var, var, 8)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
def test_frozen_statistics_train_like_eval(kernel: str, masked: bool) -> None:
    norm = shaken(normlab.BatchNorm(7))
    norm(draw(5, 3, 7) * 2 + 1)
    evaluated = copy.deepcopy(norm).eval()
    before = state_of(norm.train().freeze())
    x, upstream = draw(5, 11, 7).requires_grad_(), draw(5, 11, 7)
    mask = scattered(5, 11) if masked else None
    y, z = norm(x, mask=mask), evaluated(x, mask=mask)
    assert_same(y, z, "y")
    for g, w in zip(
        grads(y, [x, *norm.parameters()], upstream), grads(z, [x, *evaluated.parameters()], upstream), strict=True
    ):
        assert_same(g, w, "gradient")
    assert_untouched(norm, before)
    wanted = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    dx = grads(norm(x), [x], upstream)[0]
    assert_near(dx, upstream * wanted, 8, "statistics are constants")
    assert not torch.allclose(norm.freeze(False)(x, mask=mask), y)
    assert int(norm.num_batches_tracked) == int(before["num_batches_tracked"]) + 1


def test_frozen_constructor_and_single_sample() -> None:
    norm = normlab.BatchNorm(7, frozen=True)
    x = draw(1, 7)
    assert_near(norm(x), x / math.sqrt(1 + 1e-5), 4)
    with pytest.raises(ValueError, match="track_running_stats"):
        normlab.BatchNorm(7, track_running_stats=False).freeze()


@pytest.mark.parametrize("shape", [(1, 7), (1, 1, 7), (1, 7, 1, 1), (1, 7, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"renorm": (2.0, 1.0)}, {"ghost_size": 3}], ids=str)
def test_one_value_per_channel_is_an_error(kernel: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    norm = normlab.BatchNorm(7, channel_dim=2 if len(shape) == 3 else 1, **options)
    before = state_of(norm)
    with pytest.raises(ValueError, match="one value per channel") as caught:
        norm(draw(*shape))
    assert str(shape) in str(caught.value)
    assert_untouched(norm, before)
    norm.eval()
    assert norm(draw(*shape)).shape == shape


def test_last_ghost_batch_of_one_value_is_an_error_before_anything_moves(kernel: str) -> None:
    norm = normlab.BatchNorm(7, ghost_size=3)
    before = state_of(norm)
    with pytest.raises(ValueError, match="one value per channel"):
        norm(draw(7, 7))
    assert_untouched(norm, before)


EMPTY = [(0, 5, FEATURES), (3, 0, FEATURES)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("build", all_builds())
def test_empty_batch_passes_and_changes_nothing(
    kernel: str, build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Also the gradients: zeros, not None, as torch gives, so that DDP finds every parameter."""
    layer = shaken(build())
    for _ in range(2):
        turned(layer)(draw(5, 7, FEATURES))
    before = state_of(layer)
    x = torch.empty(shape, requires_grad=True)
    y = turned(layer)(x)
    assert y.shape == x.shape
    assert_untouched(layer, before)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    for name, p in layer.named_parameters():
        assert p.grad is not None and torch.equal(p.grad, torch.zeros_like(p)), f"{name} has gradient {p.grad}"
    assert_untouched(layer, before)


@pytest.mark.parametrize("real", [0, 1])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_fewer_than_two_real_cells_leave_the_running_statistics(kernel: str, real: int, momentum: float | None) -> None:
    norm = shaken(normlab.BatchNorm(7, momentum=momentum))
    norm(draw(5, 11, 7))
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    x, mask = draw(3, 5, 7).requires_grad_(), torch.zeros(3, 5, dtype=torch.bool)
    mask[1, :real] = True
    y = norm(x, mask=mask)
    assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)
    assert_same(y[mask], norm.bias.detach().expand(real, 7), "one cell is its own mean: the bias is left")
    assert torch.equal(y[~mask], torch.zeros(15 - real, 7))
    upstream = draw(3, 5, 7)
    (dx,) = grads(y, [x], upstream)
    assert not dx[~mask].any()
    assert_cancels(dx, upstream * norm.weight / math.sqrt(norm.eps))


def test_skipped_batches_do_not_weigh_in_the_plain_average(kernel: str) -> None:
    """momentum=None is the average of the batches that were taken in; start values (0, 1) must not leak into it."""
    norm = normlab.BatchNorm(7, momentum=None)
    means, variances = [], []
    for step in range(5):
        x = draw(3, 5, 7) * (step + 1)
        if step in (0, 3):
            norm(x, mask=torch.zeros(3, 5, dtype=torch.bool))
            continue
        norm(x)
        means.append(x.double().flatten(0, 1).mean(0))
        variances.append(x.double().flatten(0, 1).var(0))
    assert_near(norm.running_mean, torch.stack(means).mean(0), 16)
    assert_near(norm.running_var, torch.stack(variances).mean(0), 16)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("channel", [-1, 1])
@pytest.mark.parametrize("samples", [6, 7, 2])
def test_ghost_batches_are_batch_norm_on_each_chunk(kernel: str, samples: int, channel: int, masked: bool) -> None:
    """7 = 3 + 3 + 1: the last chunk may be smaller; 2: one chunk, smaller than asked."""
    ghost = shaken(normlab.BatchNorm(7, ghost_size=3, momentum=0.3, channel_dim=channel))
    plain = normlab.BatchNorm(7, momentum=0.3, channel_dim=channel)
    plain.load_state_dict(ghost.state_dict())
    x = draw(samples, 11, 7)
    mask = scattered(samples, 11) if masked else None
    upstream = draw(samples, 11, 7)
    if channel == 1:
        x, upstream = x.transpose(1, 2).contiguous(), upstream.transpose(1, 2)
    x.requires_grad_()
    y = ghost(x, mask=mask)
    z = torch.cat([
        plain(part, mask=None if mask is None else mask[3 * i : 3 * i + 3]) for i, part in enumerate(x.split(3))
    ])  # fmt: skip
    assert_same(y, z, "y")
    got, want = grads(y, [x, *ghost.parameters()], upstream), grads(z, [x, *plain.parameters()], upstream)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, 8, "gradient")
    assert_same(ghost.running_mean, plain.running_mean, "running_mean")
    assert_same(ghost.running_var, plain.running_var, "running_var")
    assert_same(ghost.eval()(x, mask=mask), plain.eval()(x, mask=mask), "evaluation")


def test_ghost_batches_in_a_plain_average(kernel: str) -> None:
    norm = normlab.BatchNorm(7, ghost_size=3, momentum=None)
    parts = []
    for _ in range(2):
        x = draw(7, 11, 7)
        norm(x)
        parts += [p.double().flatten(0, 1) for p in x.split(3)]
    assert_near(norm.running_mean, torch.stack([p.mean(0) for p in parts]).mean(0), 16)
    assert_near(norm.running_var, torch.stack([p.var(0) for p in parts]).mean(0), 16)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_batch_renormalization_by_hand(kernel: str, affine: bool, masked: bool) -> None:
    """y = ((x - mean) / dev * r + d) * weight + bias, dev = sqrt(var + eps); r = dev / running dev and
    d = (mean - running mean) / running dev, both clamped and both constants to the gradient."""
    r_max, d_max, eps, momentum = 1.3, 0.4, 1e-3, 0.2
    norm = shaken(normlab.BatchNorm(53, eps=eps, momentum=momentum, renorm=(r_max, d_max), affine=affine))
    weight, bias = (norm.weight, norm.bias) if affine else (torch.ones(53), torch.zeros(53))
    weight, bias = weight.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    run_mean, run_var = torch.zeros(53, dtype=torch.float64), torch.ones(53, dtype=torch.float64)
    clamped = free = 0
    for _ in range(3):
        x = draw(3, 5, 53)
        mask = scattered(3, 5) if masked else torch.ones(3, 5, dtype=torch.bool)
        mask[0] = True
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        real = b[mask]
        mean, var = real.mean(0), real.var(0, unbiased=False)
        deviation, running = (var + eps).sqrt(), (run_var + eps).sqrt()
        with torch.no_grad():
            raw_r, raw_d = deviation / running, (mean - run_mean) / running
            r, d = raw_r.clamp(1 / r_max, r_max), raw_d.clamp(-d_max, d_max)
            clamped += int((r != raw_r).sum() + (d != raw_d).sum())
            free += int((r == raw_r).sum() + (d == raw_d).sum())
        z = torch.zeros_like(b)
        z[mask] = ((real - mean) / deviation * r + d) * weight + bias
        y = norm(a, mask=mask if masked else None)
        assert_near(y, z, 32, "y")
        upstream = draw(3, 5, 53)
        got = grads(y, [a, *norm.parameters()], upstream)
        want = grads(z, [b, weight, bias] if affine else [b], upstream)
        for g, w in zip(got, want, strict=True):
            assert_near(g, w, 64, "gradient")
        with torch.no_grad():
            run_mean += momentum * (mean - run_mean)
            run_var += momentum * (real.var(0) - run_var)
        assert_near(norm.running_mean, run_mean, 16, "running_mean")
        assert_near(norm.running_var, run_var, 16, "running_var")
    assert clamped > 20 and free > 20, "the test must meet both sides of the bounds"


def test_batch_renormalization_at_one_and_zero_is_batch_norm(kernel: str) -> None:
    renorm, plain = (shaken(normlab.BatchNorm(7, renorm=r)) for r in ((1.0, 0.0), None))
    plain.load_state_dict(renorm.state_dict())
    for _ in range(3):
        x, upstream = draw(5, 11, 7).requires_grad_(), draw(5, 11, 7)
        y, z = renorm(x), plain(x)
        assert_same(y, z, "y")
        got, want = grads(y, [x, *renorm.parameters()], upstream), grads(z, [x, *plain.parameters()], upstream)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w, "gradient")
    assert_untouched(renorm, state_of(plain))


# ---- the mask contract, over every norm ------------------------------------------------------------------------------

LENGTHS = [11, 3, 0, 1, 7]
STEPS = 3
POISON = [math.nan, math.inf, -math.inf, 3e38]


def turned(layer: nn.Module) -> Callable[..., Tensor]:
    """The layer as a function of (B, L, d), whatever its channel_dim."""
    if getattr(layer, "channel_dim", -1) != 1:
        return layer
    return lambda x, **k: layer(x.transpose(1, 2), **k).transpose(1, 2)


def masks(kind: str) -> Tensor:
    """(steps, B, L)."""
    prefix = torch.arange(11)[None, :] < torch.tensor(LENGTHS)[:, None]
    if kind == "prefix":
        return prefix.repeat(STEPS, 1, 1)
    mask = torch.rand(STEPS, 5, 11) < 0.5
    mask[:, 2] = False
    mask[:, 3] = False
    mask[:, 3, 4] = True
    return mask


def run(
    layer: nn.Module, x: Tensor, upstream: Tensor, mask: Tensor | None = None, lengths: Any = None
) -> dict[str, Tensor]:
    """Training steps over the first axis of x: outputs, gradients and what the buffers hold at the end."""
    call = turned(layer)
    found: dict[str, Tensor] = {}
    total = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    ys, dxs = [], []
    for step in range(x.shape[0]):
        leaf = x[step].detach().requires_grad_()
        given = {} if mask is None else {"mask": mask[step]}
        y = call(leaf, **given, **({} if lengths is None else {"lengths": lengths}))
        dx, *parameters = grads(y, [leaf, *layer.parameters()], upstream[step])
        ys.append(y.detach())
        dxs.append(dx)
        for name, g in zip(total, parameters, strict=True):
            total[name] += g
    found["y"], found["dx"] = torch.stack(ys), torch.stack(dxs)
    found |= {f"d{name}": g for name, g in total.items()}
    found |= {name: b.clone() for name, b in layer.named_buffers() if b is not None}
    layer.eval()
    if mask is not None or lengths is None:
        given = {} if mask is None else {"mask": mask[0]}
        found["evaluated"] = call(x[0], **given).detach()
    return found


def twins(build: Callable[[], nn.Module], count: int = 2, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    first = shaken(build()).to(dtype)
    return [first, *(copy.deepcopy(first) for _ in range(count - 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["prefix", "scattered"])
@pytest.mark.parametrize("build", all_builds())
def test_nothing_in_padding_leaks(kernel: str, build: Callable[[], nn.Module], kind: str, dtype: torch.dtype) -> None:
    """NaN, Inf and huge values in padding, of the input and of the upstream gradient, change no bit of anything."""
    clean, dirty = twins(build, dtype=dtype)
    mask = masks(kind)
    x, upstream = draw(STEPS, 5, 11, FEATURES, dtype=dtype), draw(STEPS, 5, 11, FEATURES, dtype=dtype)
    poison = torch.tensor(POISON)[torch.randint(4, x.shape)].to(dtype)
    want = run(clean, torch.where(mask[..., None], x, 0), torch.where(mask[..., None], upstream, 0), mask)
    got = run(dirty, torch.where(mask[..., None], x, poison), torch.where(mask[..., None], upstream, poison), mask)
    for name, value in want.items():
        assert value.isfinite().all(), name
        assert_same(got[name], value, name)
    padding = ~mask[..., None].expand(x.shape)
    assert not got["y"][padding].any() and not got["dx"][padding].any(), "padding comes out as zero"
    assert not got["evaluated"][padding[0]].any()
    assert got["y"][~padding].any() and got["dx"][~padding].any()


@pytest.mark.parametrize("kind", ["prefix", "scattered"])
@pytest.mark.parametrize("build", all_builds())
def test_statistics_are_those_of_the_real_cells(kernel: str, build: Callable[[], nn.Module], kind: str) -> None:
    """The same as a layer that never sees padding: tokens packed (or, with statistics per sample, sample by sample)."""
    layer, packed = twins(build)
    if getattr(layer, "ghost_size", None):
        pytest.skip("ghost batches are chunks of samples: test_ghost_batches_are_batch_norm_on_each_chunk")
    mask = masks(kind)
    x, upstream = draw(STEPS, 5, 11, FEATURES), draw(STEPS, 5, 11, FEATURES)
    got = run(layer, x, upstream, mask)
    per_sample = isinstance(layer, (normlab.InstanceNorm, normlab.GroupNorm))
    call = turned(packed) if per_sample else packed
    total = {name: torch.zeros_like(p) for name, p in packed.named_parameters()}
    for step in range(STEPS):
        for rows in [torch.tensor([i]) for i in range(5)] if per_sample else [torch.arange(5)]:
            real = mask[step, rows]
            if not real.any():
                continue
            leaf = x[step, rows][real].requires_grad_()
            y = call(leaf[None] if per_sample else leaf)
            dx, *parameters = grads(y, [leaf, *packed.parameters()], upstream[step, rows][real].view(y.shape))
            assert_near(got["y"][step, rows][real], y.view(leaf.shape), 16, "y")
            assert_near(got["dx"][step, rows][real], dx, 128, "dx")
            for name, g in zip(total, parameters, strict=True):
                total[name] += g
    for name, g in total.items():
        assert_near(got[f"d{name}"], g, 32, f"d{name}")
    if not per_sample:
        for name, value in packed.named_buffers():
            if value is not None and value.is_floating_point():
                assert_near(got[name], value, 32, name)


@pytest.mark.parametrize("where", ["behind", "before", "samples"])
@pytest.mark.parametrize("build", all_builds())
def test_more_padding_changes_no_bit(kernel: str, build: Callable[[], nn.Module], where: str) -> None:
    """53 more positions of garbage behind or before every sequence, or two more samples of it."""
    layer, padded = twins(build)
    mask = masks("prefix")
    x, upstream = draw(STEPS, 5, 11, FEATURES), draw(STEPS, 5, 11, FEATURES)
    axis = 1 if where == "samples" else 2
    shape = list(x.shape)
    shape[axis] = 4 if where == "samples" else 53  # two ghost batches
    garbage, none = draw(*shape) * 1e5, torch.zeros(shape[:3], dtype=torch.bool)

    def longer(t: Tensor, more: Tensor) -> Tensor:
        return torch.cat([more, t] if where == "before" else [t, more], dim=axis)

    # Row norms cut their rows into tasks before they look at the mask: sums over all rows may be rounded elsewhere.
    by_row = not isinstance(layer, (normlab.BatchNorm, normlab.InstanceNorm, normlab.GroupNorm, normlab.PowerNorm))
    want = run(layer, x, upstream, mask)
    got = run(padded, longer(x, garbage), longer(upstream, garbage), longer(mask, none))
    start = 53 if where == "before" else 0
    for name, value in want.items():
        if name in ("y", "dx", "evaluated"):
            kept = got[name].narrow(axis - (name == "evaluated"), start, value.shape[axis - (name == "evaluated")])
            assert got[name].count_nonzero() == kept.count_nonzero(), f"{name}: padding is not zero"
        else:
            kept = got[name]
        if value.is_floating_point() and (
            kernel == "reference" or (by_row and name[1:] in dict(layer.named_parameters()))
        ):
            assert_near(kept, value, 8, name)
        else:
            assert_same(kept, value, name)


@pytest.mark.parametrize(
    "form", [list, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)], ids=["list", "int64", "int32"]
)
@pytest.mark.parametrize("build", all_builds())
def test_lengths_are_a_mask(build: Callable[[], nn.Module], form: Callable[[list[int]], Any]) -> None:
    by_mask, by_lengths = twins(build)
    x, upstream = draw(STEPS, 5, 11, FEATURES), draw(STEPS, 5, 11, FEATURES)
    want, got = run(by_mask, x, upstream, masks("prefix")), run(by_lengths, x, upstream, lengths=form(LENGTHS))
    assert len(got) > 2
    for name, value in got.items():
        assert_same(value, want[name], name)


@pytest.mark.parametrize("build", all_builds())
def test_whole_mask_is_no_mask(kernel: str, build: Callable[[], nn.Module]) -> None:
    plain, masked = twins(build)
    x, upstream = draw(STEPS, 5, 11, FEATURES), draw(STEPS, 5, 11, FEATURES)
    want, got = run(plain, x, upstream), run(masked, x, upstream, torch.ones(STEPS, 5, 11, dtype=torch.bool))
    for name, value in want.items():
        if value.is_floating_point():
            assert_near(got[name], value, 8, name)
        else:
            assert_same(got[name], value, name)


@pytest.mark.parametrize("build", all_builds())
def test_batch_without_a_real_cell(kernel: str, build: Callable[[], nn.Module]) -> None:
    """Zeros out, zeros back, and the running statistics stay."""
    layer = shaken(build())
    run(layer, draw(2, 5, 11, FEATURES), draw(2, 5, 11, FEATURES))
    layer.train()
    before = state_of(layer)
    x = torch.full((5, 11, FEATURES), math.nan, requires_grad=True)
    y = turned(layer)(x, mask=torch.zeros(5, 11, dtype=torch.bool))
    assert torch.equal(y, torch.zeros_like(y))
    for g in grads(y, [x, *layer.parameters()], draw(5, 11, FEATURES)):
        assert torch.equal(g, torch.zeros_like(g))
    for name, value in layer.state_dict().items():
        if name != "num_batches_tracked":
            assert torch.equal(value, before[name]), f"{name} went from {before[name].tolist()} to {value.tolist()}"


@pytest.mark.parametrize("build", all_builds())
def test_single_real_token(kernel: str, build: Callable[[], nn.Module]) -> None:
    """Norms that centre over positions have nothing left but the bias; the others work as ever."""
    layer = shaken(build())
    x, mask = draw(5, 11, FEATURES), torch.zeros(5, 11, dtype=torch.bool)
    mask[3, 4] = True
    leaf = x.clone().requires_grad_()
    renorm_shift = 0
    if getattr(layer, "renorm", None):  # d moves the batch mean towards the running mean
        limit = layer.renorm[1]
        renorm_shift = layer.weight.detach() * (x[3, 4] / math.sqrt(1 + layer.eps)).clamp(-limit, limit)
    y = turned(layer)(leaf, mask=mask)
    upstream = draw(5, 11, FEATURES)
    (dx,) = grads(y, [leaf], upstream)
    assert not y[~mask].any() and not dx[~mask].any() and dx.isfinite().all()
    token = y[3, 4].detach()
    if isinstance(layer, (normlab.BatchNorm, normlab.InstanceNorm)):
        assert_near(token, layer.bias.detach() + renorm_shift, 4)
        assert_cancels(dx, 2 * upstream * layer.weight / math.sqrt(layer.eps))
    elif isinstance(layer, normlab.PowerNorm):
        value = x[3, 4].double()
        if layer.group_scaling:
            groups = value.view(3, 7)
            value = (groups / (groups.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt()).flatten()
        psi = (
            (value.pow(2) + layer.eps).sqrt()
            if layer.warmup_steps > 0 or not layer.running
            else math.sqrt(1 + layer.eps)
        )
        assert_near(token, value / psi * layer.weight + layer.bias, 16)
    else:  # a token (or its group of channels) on its own
        assert_near(token, turned(copy.deepcopy(layer))(x[3:4, 4:5])[0, 0].detach(), 16)


def test_instance_norm_running_statistics_take_samples_that_have_a_variance(kernel: str) -> None:
    """The average over samples, as in torch; a sample with fewer than two real positions has no variance to give."""
    norm = normlab.InstanceNorm(7, track_running_stats=True, momentum=0.3)
    x = draw(5, 11, 7)
    norm(x, lengths=LENGTHS)
    counted = [x[i, :n].double() for i, n in enumerate(LENGTHS) if n >= 2]
    assert_near(norm.running_mean, 0.3 * torch.stack([s.mean(0) for s in counted]).mean(0), 16)
    assert_near(norm.running_var, 0.7 + 0.3 * torch.stack([s.var(0) for s in counted]).mean(0), 16)


# ---- power normalization ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [-1, 1])
def test_power_norm_per_batch_gradient_is_exact(kernel: str, channel: int) -> None:
    norm = shaken(normlab.PowerNorm(7, eps=0.01, running=False, channel_dim=channel)).double()
    hand = PowerByHand(7, eps=0.01).double()
    hand.load_state_dict({"weight": norm.weight, "bias": norm.bias})
    x = draw(5, 7, 7, dtype=torch.float64)
    for _ in range(3):  # PN-V has no memory
        assert_step(norm, lambda b: hand(b.movedim(channel, 1)).movedim(1, channel), pairs(norm, hand), x, ulps=64)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("channel", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_power_norm_follows_the_papers_algorithm(kernel: str, dtype: torch.dtype, channel: int, masked: bool) -> None:
    """20 steps, warm-up of 7. After it: forward by psi of the step before; backward by the same psi, with nu in place
    of the batch's own mean; then nu moves along mean(X' xhat). Different factors forward and backward."""
    alpha_forward, alpha_backward, warmup, eps = 0.8, 0.65, 7, 1e-3
    norm = shaken(normlab.PowerNorm(
        7, eps, alpha_forward, alpha_backward, warmup, channel_dim=channel
    )).to(dtype)  # fmt: skip
    weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
    psi2, nu = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    seen: list[Tensor] = []
    for step in range(20):
        x = draw(5, 3, 7, dtype=dtype) * (1 + 0.2 * step)
        upstream = draw(5, 3, 7, dtype=dtype) + 0.2
        mask = scattered(5, 3) if masked else torch.ones(5, 3, dtype=torch.bool)
        mask[0] = True
        real, g = x[mask].double(), upstream[mask].double()
        batch = (real * real).sum(0) / len(real)
        psi = ((batch if step < warmup else psi2) + eps).sqrt()
        xhat = real / psi
        y = weight * xhat + bias
        along = weight * g  # dL / dxhat
        residue = along - (nu if step >= warmup else (along * xhat).mean(0)) * xhat
        dx = residue / psi
        nu = nu + (1 - alpha_backward) * ((along - nu * xhat) * xhat).mean(0)
        seen.append(batch)
        psi2 = torch.stack(seen).mean(0) if step < warmup else alpha_forward * psi2 + (1 - alpha_forward) * batch

        leaf = x.clone().requires_grad_()
        given = leaf if channel == -1 else leaf.transpose(1, 2)
        got = norm(given, mask=mask if masked else None)
        got = got if channel == -1 else got.transpose(1, 2)
        got_dx, dweight, dbias = grads(got, [leaf, norm.weight, norm.bias], upstream)
        ulps = 64
        assert_near(got[mask], y, ulps, f"y at step {step}")
        assert_near(got_dx[mask], dx, 4 * ulps, f"dx at step {step}")
        assert_near(dweight, (g * xhat).sum(0), ulps, "dweight")
        assert_near(dbias, g.sum(0), ulps, "dbias")
        assert_near(norm.running_psi2, psi2, ulps, f"psi2 after step {step}")
        assert_near(norm.running_nu, nu, ulps, f"nu after step {step}")
        assert int(norm.num_batches_tracked) == step + 1
    norm.eval()
    x = draw(5, 3, 7, dtype=dtype).requires_grad_()
    z = norm(x if channel == -1 else x.transpose(1, 2))
    z = z if channel == -1 else z.transpose(1, 2)
    psi = (psi2 + eps).sqrt()
    assert_near(z, x.detach().double() / psi * weight + bias, 64, "evaluation divides by the running psi")
    upstream = draw(5, 3, 7)
    before = state_of(norm)
    assert_near(grads(z, [x], upstream)[0], upstream.double() * weight / psi, 64, "and psi is a constant there")
    assert_untouched(norm, before)


@pytest.mark.parametrize("gap", [None, 0, 3], ids=["", "all-masked-first", "all-masked-between"])
def test_power_norm_warm_up_is_the_plain_average(kernel: str, gap: int | None) -> None:
    """psi^2 of 1, 2, 3, 4, 5 average to 3 (the published code, which updates twice, reaches 3.37)."""
    norm = normlab.PowerNorm(7, warmup_steps=100)
    for step, square in enumerate([1.0, 2.0, 3.0, 4.0, 5.0]):
        if step == gap:
            norm(draw(3, 5, 7), mask=torch.zeros(3, 5, dtype=torch.bool))
        sign = torch.randint(0, 2, (3, 5, 7)) * 2.0 - 1
        norm(sign * math.sqrt(square))
    assert_near(norm.running_psi2, torch.full((7,), 3.0), 8)


@pytest.mark.parametrize("channel", [-1, 1])
def test_power_norm_group_scaling(kernel: str, channel: int) -> None:
    """First every token over the RMS of each of its groups of channels, then PowerNorm."""
    scaled = shaken(normlab.PowerNorm(21, eps=0.01, group_scaling=3, warmup_steps=1, channel_dim=channel)).double()
    plain = normlab.PowerNorm(21, eps=0.01, warmup_steps=1).double()
    plain.load_state_dict(scaled.state_dict())
    for _ in range(3):
        x, upstream = draw(5, 11, 21, dtype=torch.float64), draw(5, 11, 21, dtype=torch.float64)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = turned(scaled)(a)
        groups = b.view(5, 11, 3, 7)
        z = plain((groups / (groups.pow(2).mean(-1, keepdim=True) + 0.01).sqrt()).view(5, 11, 21))
        assert_near(y, z, 64, "y")
        got, want = grads(y, [a, *scaled.parameters()], upstream), grads(z, [b, *plain.parameters()], upstream)
        for g, w in zip(got, want, strict=True):
            assert_near(g, w, 256, "gradient")
        assert_near(scaled.running_psi2, plain.running_psi2, 64)
        assert_near(scaled.running_nu, plain.running_nu, 256)


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


# ---- bad input -------------------------------------------------------------------------------------------------------


def assert_refused(layer: nn.Module, kind: type[Exception], words: Sequence[str], *args: Any, **options: Any) -> None:
    before = state_of(layer)
    with pytest.raises(kind) as caught:
        layer(*args, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"
    assert_untouched(layer, before)


def image(layer: nn.Module, x: Tensor) -> Tensor:
    return x.transpose(1, 2) if getattr(layer, "channel_dim", -1) == 1 else x


REFUSED: dict[str, tuple[type[Exception], list[str], Callable[[], tuple[Tensor, dict[str, Any]]]]] = {
    "width": (ValueError, ["22", "21"], lambda: (draw(5, 11, 22), {})),
    "integers": (TypeError, ["int64", "floating"], lambda: (torch.ones(5, 11, FEATURES, dtype=torch.int64), {})),
    "booleans": (TypeError, ["bool", "floating"], lambda: (torch.ones(5, 11, FEATURES, dtype=torch.bool), {})),
    "mask-shape": (ValueError, ["(5, 12)", "(5, 11)"],
                   lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 12, dtype=torch.bool)})),
    "mask-flat": (ValueError, ["(55,)", "(5, 11)"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(55, dtype=torch.bool)})),
    "mask-full": (ValueError, ["(5, 11, 1)", "(5, 11)"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, 1, dtype=torch.bool)})),
    "mask-integers": (TypeError, ["int64", "bool"],
                      lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, dtype=torch.int64)})),
    "mask-floats": (TypeError, ["float32", "bool"], lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11)})),
    "mask-list": (TypeError, ["list", "bool"], lambda: (draw(5, 11, FEATURES), {"mask": [[True] * 11] * 5})),
    "lengths-long": (ValueError, ["12", "0..11"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 12, 1, 1, 1]})),
    "lengths-negative": (ValueError, ["-1", "0..11"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 2, -1, 1, 1]})),
    "lengths-few": (ValueError, ["(4,)", "(5,)"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 2, 1, 1]})),
    "lengths-floats": (TypeError, ["float32", "integers"],
                       lambda: (draw(5, 11, FEATURES), {"lengths": torch.ones(5)})),
    "mask-and-lengths": (ValueError, ["mask", "lengths", "not both"],
                         lambda: (draw(5, 11, FEATURES), {"lengths": [1] * 5, "mask": torch.ones(5, 11, dtype=torch.bool)})),
    "meta-mask": (ValueError, ["meta", "cpu", "mask"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, dtype=torch.bool, device="meta")})),
    "meta-input": (ValueError, ["meta", "cpu"], lambda: (torch.empty(5, 11, FEATURES, device="meta"), {})),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mistake", REFUSED)
@pytest.mark.parametrize("build", all_builds())
def test_bad_input_is_refused_and_changes_nothing(build: Callable[[], nn.Module], mistake: str, training: bool) -> None:
    kind, words, make = REFUSED[mistake]
    layer = shaken(build()).train(training)
    x, options = make()
    assert_refused(layer, kind, words, image(layer, x), **options)
    assert turned(layer)(draw(5, 11, FEATURES)).isfinite().all(), "the layer still works"


@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
def test_too_few_and_too_many_axes(name: str) -> None:
    layer = BUILD[name][0][1]()
    assert_refused(layer, ValueError, ["2-D to 5-D", "(21,)"], draw(FEATURES))
    assert_refused(layer, ValueError, ["2-D to 5-D", "(1, 1, 1, 1, 2, 21)"], draw(1, 1, 1, 1, 2, FEATURES))


@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
@pytest.mark.parametrize("channel", [0, 3, -4])
def test_channel_dim_out_of_place(name: str, channel: int) -> None:
    layer = BUILD[name][0][1]()
    layer.channel_dim = channel
    assert_refused(layer, ValueError, ["channel_dim", str(channel)], draw(FEATURES, FEATURES, FEATURES))


@pytest.mark.parametrize("name", normlab.NORMS)
def test_not_a_tensor(name: str) -> None:
    layer = BUILD[name][0][1]()
    assert_refused(layer, TypeError, ["tensor", "list"], [[0.0] * FEATURES])


CONSTRUCTORS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "layer eps": (lambda: normlab.LayerNorm(7, eps=-1.0), ["eps", "-1.0", ">= 0"]),
    "rms eps": (lambda: normlab.RMSNorm(7, eps=-1e-6), ["eps", "-1e-06", ">= 0"]),
    "scale eps": (lambda: normlab.ScaleNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "batch eps": (lambda: normlab.BatchNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "instance eps": (lambda: normlab.InstanceNorm(7, eps=float("nan")), ["eps", "nan"]),
    "group eps": (lambda: normlab.GroupNorm(1, 7, eps=float("inf")), ["eps", "inf"]),
    "power eps": (lambda: normlab.PowerNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "residual eps": (lambda: normlab.ResidualNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "groups": (lambda: normlab.GroupNorm(4, 21), ["21", "4", "divide"]),
    "no groups": (lambda: normlab.GroupNorm(0, 21), ["21", "0", "divide"]),
    "group scaling": (lambda: normlab.PowerNorm(21, group_scaling=4), ["21", "4", "divide"]),
    "gain": (lambda: normlab.LayerNorm(7, gain="ofset"), ["'ofset'", "'offset'", "direct", "none"]),
    "batch gain": (lambda: normlab.BatchNorm(7, gain="one"), ["'one'", "offset", "direct", "none"]),
    "residual gain": (lambda: normlab.ResidualNorm(7, gain="dirct"), ["'dirct'", "'direct'"]),
    "dropout of one": (lambda: normlab.ResidualNorm(7, dropout=1.0), ["dropout", "1.0", "[0, 1)"]),
    "dropout below zero": (lambda: normlab.ResidualNorm(7, dropout=-0.1), ["dropout", "-0.1", "[0, 1)"]),
    "residual norm": (lambda: normlab.ResidualNorm(7, norm="layr"), ["'layr'", "'layer'", "rms"]),
    "partial": (lambda: normlab.RMSNorm(7, partial=0.0), ["partial", "0.0", "(0, 1]"]),
    "partial above one": (lambda: normlab.RMSNorm(7, partial=1.5), ["partial", "1.5", "(0, 1]"]),
    "shape": (lambda: normlab.LayerNorm(()), ["normalized_shape", "()"]),
    "zero width": (lambda: normlab.LayerNorm((3, 0)), ["normalized_shape", "(3, 0)"]),
    "momentum": (lambda: normlab.BatchNorm(7, momentum=1.5), ["momentum", "1.5", "[0, 1]"]),
    "alpha": (lambda: normlab.PowerNorm(7, alpha_backward=1.1), ["alpha_backward", "1.1", "[0, 1]"]),
    "ghost size": (lambda: normlab.BatchNorm(7, ghost_size=0), ["ghost_size", "0"]),
    "renorm": (lambda: normlab.BatchNorm(7, renorm=(0.5, 1.0)), ["renorm", "(0.5, 1.0)", "r_max >= 1"]),
    "ghost and renorm": (lambda: normlab.BatchNorm(7, ghost_size=2, renorm=(2.0, 1.0)), ["ghost_size", "renorm", "exclude"]),
    "frozen": (lambda: normlab.BatchNorm(7, frozen=True, track_running_stats=False), ["frozen", "track_running_stats"]),
    "scale dim": (lambda: normlab.ScaleNorm(0), ["dim", "0"]),
    "dyt dim": (lambda: normlab.DyT(0), ["dim", "0"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CONSTRUCTORS)
def test_bad_options_are_refused(mistake: str) -> None:
    build, words = CONSTRUCTORS[mistake]
    with pytest.raises(ValueError) as caught:
        build()
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "layer eps": (lambda x: functional.layer_norm(x, (21,), eps=-1.0), ["eps", "-1.0"]),
    "rms eps": (lambda x: functional.rms_norm(x, (21,), eps=-1.0), ["eps", "-1.0"]),
    "scale eps": (lambda x: functional.scale_norm(x, eps=-1.0), ["eps", "-1.0"]),
    "batch eps": (lambda x: functional.batch_norm(x, training=True, eps=-1.0), ["eps", "-1.0"]),
    "instance eps": (lambda x: functional.instance_norm(x, eps=-1.0), ["eps", "-1.0"]),
    "group eps": (lambda x: functional.group_norm(x, 3, eps=-1.0), ["eps", "-1.0"]),
    "residual eps": (lambda x: functional.residual_norm(x, x, eps=-1.0), ["eps", "-1.0"]),
    "layer gain": (lambda x: functional.layer_norm(x, (21,), torch.ones(21), gain="ofset"), ["'ofset'", "'offset'"]),
    "batch gain": (lambda x: functional.batch_norm(x, training=True, gain="ofset"), ["'ofset'", "'offset'"]),
    "residual gain": (lambda x: functional.residual_norm(x, x, gain="ofset"), ["'ofset'", "'offset'"]),
    "groups": (lambda x: functional.group_norm(x, 4), ["21", "4", "divide"]),
    "partial none": (lambda x: functional.rms_norm(x, (21,), partial=0), ["partial", "0", "21"]),
    "partial beyond": (lambda x: functional.rms_norm(x, (21,), partial=22), ["partial", "22", "21"]),
    "weight": (lambda x: functional.layer_norm(x, (21,), torch.ones(20)), ["weight", "20", "21"]),
    "channel weight": (lambda x: functional.group_norm(x, 3, torch.ones(20)), ["weight", "20", "21"]),
    "nothing to evaluate with": (lambda x: functional.batch_norm(x), ["running statistics", "training=True"]),
    "shape": (lambda x: functional.layer_norm(x, (11, 22)), ["(5, 11, 21)", "(11, 22)"]),
    "dropout": (lambda x: functional.residual_norm(x, x, dropout=1.5), ["dropout", "1.5"]),
    "norm": (lambda x: functional.residual_norm(x, x, norm="batch"), ["'batch'", "layer", "rms"]),
}


@pytest.mark.parametrize("mistake", FUNCTIONS)
def test_functions_refuse_what_layers_refuse(mistake: str) -> None:
    call, words = FUNCTIONS[mistake]
    with pytest.raises(ValueError) as caught:
        call(draw(5, 11, 21))
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


@pytest.mark.parametrize("norm", ["layer", "rms"])
class TestResidualRefuses:
    def test_shapes(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        assert_refused(layer, ValueError, ["(5, 11, 21)", "(5, 12, 21)"], draw(5, 11, 21), draw(5, 12, 21))
        assert_refused(layer, ValueError, ["(5, 11, 21)", "(11, 21)"], draw(5, 11, 21), draw(11, 21))
        assert_refused(layer, ValueError, ["(5, 22)", "21"], draw(5, 22), draw(5, 22))

    def test_dtypes(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        whole = torch.ones(5, 21, dtype=torch.int64)
        assert_refused(layer, TypeError, ["int64", "floating"], whole, whole)
        assert_refused(layer, ValueError, ["float32", "bfloat16"], draw(5, 21), draw(5, 21).bfloat16())

    def test_devices_and_masks(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        x = draw(5, 11, 21)
        assert_refused(layer, ValueError, ["meta", "cpu", "branch"], x, x.to("meta"))
        assert_refused(layer, ValueError, ["(11,)", "(5, 11)"], x, x, mask=torch.ones(11, dtype=torch.bool))
        assert_refused(layer, TypeError, ["tensor", "list"], x, [0.0])


# ---- the residual sum and its norm -----------------------------------------------------------------------------------


def parts_of(layer: normlab.ResidualNorm) -> nn.Module:
    """Our norm on its own, with the fused layer's parameters."""
    kind = {"layer": normlab.LayerNorm, "rms": normlab.RMSNorm}[layer.norm]
    alone = kind(layer.dim, eps=layer.eps, bias=layer.bias is not None, gain=layer.gain,
                 round_before_gain=layer.round_before_gain)  # fmt: skip
    alone.load_state_dict(layer.state_dict())
    return alone.to(next(layer.parameters()).dtype)


DEEP = 64**0.25  # DeepNorm's alpha for 32 encoder layers; not exact in any of the dtypes


def scaled_sum(alpha: float, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    """alpha * x + branch as the kernels round it: once, except on an x86 without fused multiply-add. torch.add is of no use
    for bfloat16: it rounds alpha itself to it."""
    if x.dtype == torch.bfloat16:
        return (alpha * x.float() + branch.float()).to(x.dtype)
    twice = cpu.native is not None and cpu.native.isa() == "baseline" and platform.machine() in ("x86_64", "AMD64")
    return alpha * x + branch if twice else torch.add(branch, x, alpha=alpha)


@pytest.mark.parametrize("options", [{}, {"gain": "offset"}, {"round_before_gain": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.5, DEEP])
@pytest.mark.parametrize("stream", [False, True], ids=["y", "y-and-stream"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_norm_is_add_then_norm(
    kernel: str, norm: str, dtype: torch.dtype, stream: bool, alpha: float, options: dict[str, Any]
) -> None:
    fused = shaken(normlab.ResidualNorm(131, norm, alpha=alpha, return_stream=stream, **options)).to(dtype)
    alone = parts_of(fused)
    leaves = [draw(5, 7, 131, dtype=dtype) for _ in range(2)]
    (x, branch), (p, q) = ([t.clone().requires_grad_() for t in leaves] for _ in range(2))
    upstream, upstream_stream = draw(5, 7, 131, dtype=dtype), draw(5, 7, 131, dtype=dtype)
    summed = scaled_sum(alpha, p, q)
    exact_sum = kernel == "cpu" or alpha != DEEP  # the reference sums in float64
    if stream:
        y, new = fused(x, branch)
        assert_near(new, alpha * p.double() + q.double(), 1.5, "stream")
        if exact_sum:
            assert_same(new, summed, "stream")
        z = alone(new.detach())
        assert_same(y, z, "the norm is that of the stored stream")
        got = torch.autograd.grad([y, new], [x, branch, *fused.parameters()], [upstream, upstream_stream])
        want = torch.autograd.grad([alone(summed), summed], [p, q, *alone.parameters()], [upstream, upstream_stream])
    else:
        y, z = fused(x, branch), alone(summed)
        if exact_sum:
            assert_same(y, z, "y")
        else:
            assert_near(y, z, 16, "y")
        got, want = (grads(o, leaves, upstream) for o, leaves in
                     ((y, [x, branch, *fused.parameters()]), (z, [p, q, *alone.parameters()])))  # fmt: skip
    exact = alpha == 1.0 and not stream
    for name, g, w in zip(["x", "branch", *dict(fused.named_parameters())], got, want, strict=True):
        if exact:
            assert_same(g, w, f"d{name}")
        else:
            assert_near(g, w, 2 if dtype == torch.bfloat16 else 64, f"d{name}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_residual_sum_is_rounded_as_the_instruction_set_rounds(isa: str, dtype: torch.dtype) -> None:
    x, branch = draw(5, 131, dtype=dtype), draw(5, 131, dtype=dtype)
    stream = normlab.ResidualNorm(131, "rms", alpha=DEEP, return_stream=True).to(dtype)(x, branch)[1]
    assert_same(stream, scaled_sum(DEEP, x, branch), isa)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_gradients_do_not_share_memory(norm: str) -> None:
    """With alpha 1 both inputs have the same gradient; writing into one must not change the other."""
    layer = shaken(normlab.ResidualNorm(13, norm))
    x, branch = draw(5, 13).requires_grad_(), draw(5, 13).requires_grad_()
    layer(x, branch).backward(draw(5, 13))
    assert_same(x.grad, branch.grad)
    kept = branch.grad.clone()
    x.grad.zero_()
    assert_same(branch.grad, kept)


@pytest.mark.parametrize("only", ["y", "stream"])
def test_residual_gradient_of_one_output(kernel: str, only: str) -> None:
    layer = shaken(normlab.ResidualNorm(13, alpha=0.7, return_stream=True)).double()
    x, branch, upstream = (draw(5, 13, dtype=torch.float64) for _ in range(3))
    x.requires_grad_(), branch.requires_grad_()
    y, stream = layer(x, branch)
    got = grads(y if only == "y" else stream, [x, branch], upstream)
    summed = 0.7 * x + branch
    want = grads(parts_of(layer)(summed) if only == "y" else summed, [x, branch], upstream)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, 64)


def keep_of(seed: int, shape: tuple[int, ...], drop: float) -> Tensor:
    """The mask a layer draws after ``torch.manual_seed(seed)``, by the reference."""
    torch.manual_seed(seed)
    drawn = int(torch.randint(0, 2**62, ()))
    return reference.keep_mask(drawn, math.prod(shape[:-1]), shape[-1], drop).view(shape)


@pytest.mark.parametrize("drop", [0.1, 0.3, 0.75])
def test_dropout_keeps_its_share(kernel: str, drop: float) -> None:
    layer = normlab.ResidualNorm(211, dropout=drop, return_stream=True)
    _, stream = layer(torch.zeros(101, 211), torch.ones(101, 211))
    kept = stream != 0
    assert_near(stream[kept], torch.full_like(stream[kept], 1 / (1 - drop)), 1)
    deviation = math.sqrt(drop * (1 - drop))
    assert abs(kept.double().mean() - (1 - drop)) < 5 * deviation / math.sqrt(kept.numel())
    for axis in (0, 1):  # no row or column is favoured
        shares, n = kept.double().mean(axis), kept.shape[axis]
        assert (shares - (1 - drop)).abs().max() < 5.5 * deviation / math.sqrt(n)
    neighbours = (kept[:, 1:] == kept[:, :-1]).double().mean()
    assert abs(neighbours - (1 - 2 * drop * (1 - drop))) < 0.02


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_is_the_reference_mask_and_the_seed(kernel: str, norm: str, dtype: torch.dtype) -> None:
    drop, alpha, shape = 0.3, 1.5, (5, 7, 131)
    layer = shaken(normlab.ResidualNorm(131, norm, dropout=drop, alpha=alpha, return_stream=True)).to(dtype)
    x, branch = draw(*shape, dtype=dtype).requires_grad_(), draw(*shape, dtype=dtype).requires_grad_()
    keep = keep_of(1234, shape, drop)
    torch.manual_seed(1234)
    y, stream = layer(x, branch)
    again, _ = layer(x, branch)
    assert not torch.equal(again, y), "every call draws anew"
    torch.manual_seed(1234)
    assert_same(layer(x, branch)[0], y, "the same seed, the same mask")
    p, q = x.detach().double().requires_grad_(), branch.detach().double().requires_grad_()
    want = alpha * p + torch.where(keep, q / (1 - drop), 0)
    assert_near(stream, want, 2)
    z = parts_of(layer).double()(want)
    assert_near(y, z, 2 if dtype == torch.bfloat16 else 16)
    upstream = draw(*shape, dtype=dtype)
    dx, dbranch = grads(y, [x, branch], upstream)
    assert not dbranch[~keep].any() and dbranch[keep].count_nonzero() > 0.9 * keep.sum()
    for name, g, w in zip(["dx", "dbranch"], (dx, dbranch), grads(z, [p, q], upstream), strict=True):
        assert_near(g, w, 4 if dtype == torch.bfloat16 else 64, name)


def test_dropout_is_off_in_eval(kernel: str) -> None:
    layer = shaken(normlab.ResidualNorm(13, dropout=0.9, alpha=0.5))
    x, branch = draw(5, 13), draw(5, 13)
    before = torch.get_rng_state()
    assert_same(layer.eval()(x, branch), parts_of(layer)(torch.add(branch, x, alpha=0.5)))
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws no random number"
    assert not torch.equal(layer.train()(x, branch), layer.eval()(x, branch))


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_mask(kernel: str, norm: str, drop: float) -> None:
    layer = shaken(normlab.ResidualNorm(13, norm, dropout=drop, alpha=1.5, return_stream=True))
    mask = scattered(5, 11)
    x, branch, upstream, upstream_stream = (draw(5, 11, 13) for _ in range(4))

    def outcome(fill: float, **padding: Any) -> list[Tensor]:
        a, b, g, s = (torch.where(mask[..., None], t, fill) for t in (x, branch, upstream, upstream_stream))
        a.requires_grad_(), b.requires_grad_()
        torch.manual_seed(7)
        y, stream = layer(a, b, **padding)
        return [y, stream, *torch.autograd.grad([y, stream], [a, b, *layer.parameters()], [g, s])]

    clean, dirty = outcome(0.0, mask=mask), outcome(math.nan, mask=mask)
    for c, d in zip(clean, dirty, strict=True):
        assert c.isfinite().all()
        assert_same(d, c)
    for t in dirty[:4]:
        assert not t[~mask].any() and t[mask].any()
    free = outcome(0.0)  # without a mask, real rows are the same
    for c, f in zip(clean[:4], free[:4], strict=True):
        assert_same(c[mask], f[mask])


def test_residual_lengths_are_a_mask() -> None:
    layer = shaken(normlab.ResidualNorm(13))
    x, branch = draw(5, 11, 13), draw(5, 11, 13)
    mask = torch.arange(11)[None, :] < torch.tensor(LENGTHS)[:, None]
    assert_same(layer(x, branch, lengths=LENGTHS), layer(x, branch, mask=mask))
    assert not layer(x, branch, lengths=LENGTHS)[~mask].any()


@pytest.mark.parametrize("layout", ["strided", "reversed"])
def test_residual_of_any_memory(layout: str) -> None:
    layer = shaken(normlab.ResidualNorm(13))
    x, branch = draw(5, 7, 13), draw(5, 7, 13)
    assert_same(layer(lay_out(x, layout, 1), branch), layer(x, branch))
    assert_same(layer(x, lay_out(branch, layout, 1)), layer(x, branch))


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
