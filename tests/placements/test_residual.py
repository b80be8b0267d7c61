"""The sum of stream and branch: fused with the norm or not, in which dtype, with dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas import (
    FACTORIES,
    FORMULAS,
    LAYERS,
    NAMES,
    OPTIONS,
    WIDTH,
    Map,
    Net,
    assert_close,
    batch_norm,
    draw,
    layer_norm,
    shaken,
)
from torch import Tensor, nn

import normlab
from normlab import PLACEMENTS, functional, placements
from normlab.placements import Slot

# ---- Residual --------------------------------------------------------------------------------------------------------

FUSED_NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: normlab.LayerNorm(WIDTH),
    "layer-plain": lambda: normlab.LayerNorm(WIDTH, elementwise_affine=False),
    "layer-offset": lambda: normlab.LayerNorm(WIDTH, gain="offset"),
    "layer-no-bias": lambda: normlab.LayerNorm(WIDTH, bias=False),
    "rms": lambda: normlab.RMSNorm(WIDTH),
    "rms-eps": lambda: normlab.RMSNorm(WIDTH, eps=0.1),
    "rms-plain": lambda: normlab.RMSNorm(WIDTH, elementwise_affine=False),
    "rms-offset": lambda: normlab.RMSNorm(WIDTH, gain="offset"),
    "rms-bias": lambda: normlab.RMSNorm(WIDTH, bias=True),
}


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with each call of the fused op."""
    calls: list[str] = []
    inner = functional.residual_norm

    def spy(*arguments: Any, **options: Any) -> Any:
        calls.append(options["norm"])
        return inner(*arguments, **options)

    monkeypatch.setattr(functional, "residual_norm", spy)
    return calls


def by_hand(norm: Any, x: Tensor, branch: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(stream, norm(stream)) in float64."""
    stream = alpha * x.double() + branch.double()
    weight = None if norm.weight is None else norm.weight.double() + (1 if norm.gain == "offset" else 0)
    bias = None if norm.bias is None else norm.bias.double()
    if isinstance(norm, normlab.LayerNorm):
        return stream, F.layer_norm(stream, (x.shape[-1],), weight, bias, norm.eps)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    y = F.rms_norm(stream, (x.shape[-1],), weight, eps)
    return stream, y if bias is None else y + bias


@pytest.mark.parametrize("alpha", [1.0, 2.5, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", FUSED_NORMS)
def test_fused_and_unfused_sums_are_the_formula(
    fused_calls: list[str], kind: str, dtype: torch.dtype, alpha: float
) -> None:
    norm = shaken(FUSED_NORMS[kind]().to(dtype))
    x, branch = (draw(5, 3, WIDTH, dtype=dtype).requires_grad_() for _ in range(2))
    upstream = draw(2, 5, 3, WIDTH, dtype=dtype)
    inputs = [x, branch, *norm.parameters()]
    want = torch.stack(by_hand(norm, x, branch, alpha))
    want_grads = torch.autograd.grad(want, inputs, upstream.double())
    relative = 1e-12 if dtype == torch.float64 else 1e-5
    for fuse in (True, False):
        got = torch.stack(normlab.placements.Residual(alpha, fuse=fuse)(x, branch, norm))
        assert got.dtype == dtype
        assert_close(got, want, relative)
        for g, w in zip(torch.autograd.grad(got, inputs, upstream), want_grads, strict=True):
            assert_close(g, w, 4 * relative)
        assert fused_calls == ["layer" if "layer" in kind else "rms"]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("alpha", [1.0, 2.5])
@pytest.mark.parametrize("early", [True, False], ids=["round-before-gain", "round-after"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_sums_in_bfloat16_round_where_they_say(kind: str, early: bool, alpha: float, fuse: bool) -> None:
    """Fused, the sum is rounded once, unfused alpha * x before it; with round_before_gain the result before its gain."""
    width = 16
    norm = shaken(normlab.make_norm(kind, width, round_before_gain=early, eps=1e-5).bfloat16())
    if early:
        norm.bias = None
    x, branch = (draw(64, width, dtype=torch.bfloat16) for _ in range(2))
    scaled = alpha * x.float() if fuse else (alpha * x.float()).bfloat16().float()
    want_stream = (scaled + branch.float()).bfloat16()
    y = (F.layer_norm if kind == "layer" else F.rms_norm)(want_stream.float(), (width,), eps=1e-5)
    bias = 0 if norm.bias is None else norm.bias.float()
    want = y.bfloat16() * norm.weight if early else (y * norm.weight.float() + bias).bfloat16()
    stream, got = normlab.placements.Residual(alpha, fuse=fuse)(x, branch, norm)
    assert stream.dtype == got.dtype == torch.bfloat16
    assert torch.equal(stream, want_stream)
    assert (got != want).float().mean() < 0.01 and within_one_step(got, want)


def within_one_step(got: Tensor, want: Tensor) -> bool:
    return bool(((got.double() - want.double()).abs() <= 2.0**-7 * want.double().abs() + 1e-30).all())


def test_round_before_gain_shows_in_bfloat16() -> None:
    """So that the test above could tell the two orders apart."""
    x, branch = (draw(64, 16, dtype=torch.bfloat16) for _ in range(2))
    early, late = (shaken(normlab.RMSNorm(16, round_before_gain=e).bfloat16()) for e in (True, False))
    late.load_state_dict(early.state_dict())
    differ = normlab.placements.Residual()(x, branch, early)[1] != normlab.placements.Residual()(x, branch, late)[1]
    assert differ.float().mean() > 0.05


def test_partial_rms_norm_goes_the_unfused_way(fused_calls: list[str]) -> None:
    norm = shaken(normlab.RMSNorm(8, partial=0.5, eps=1e-6).double())
    x, branch = draw(5, 8), draw(5, 8)
    stream, y = normlab.placements.Residual(1.5)(x, branch, norm)
    want = 1.5 * x + branch
    assert_close(stream, want)
    assert_close(y, want / (want[:, :4].square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight)
    assert not fused_calls


def test_batch_norm_goes_the_unfused_way_with_its_mask(fused_calls: list[str]) -> None:
    norm = shaken(normlab.BatchNorm(WIDTH).double())
    x, branch = draw(3, 4, WIDTH), draw(3, 4, WIDTH)
    mask = torch.arange(4) < torch.tensor([4, 1, 2])[:, None]
    stream, y = normlab.placements.Residual(1.5)(x, branch, norm, mask)
    assert_close(stream, 1.5 * x + branch)
    assert_close(y[mask], batch_norm(norm, (1.5 * x + branch)[mask]))
    assert not fused_calls


def test_norm_over_several_axes_goes_the_unfused_way(fused_calls: list[str]) -> None:
    norm = shaken(normlab.LayerNorm((4, WIDTH)).double())
    x, branch = draw(3, 4, WIDTH), draw(3, 4, WIDTH)
    y = normlab.placements.Residual()(x, branch, norm)[1]
    assert_close(y, F.layer_norm(x + branch, (4, WIDTH), norm.weight, norm.bias))
    assert not fused_calls


@pytest.mark.parametrize(
    ("stream_dtype", "branch_dtype"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)], ids=str
)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_mixed_dtypes_go_the_unfused_way_and_keep_the_wider(
    fused_calls: list[str], stream_dtype: torch.dtype, branch_dtype: torch.dtype, alpha: float
) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH, dtype=stream_dtype))
    x, branch = draw(5, WIDTH, dtype=stream_dtype), draw(5, WIDTH, dtype=branch_dtype)
    stream, y = normlab.placements.Residual(alpha)(x, branch, norm)
    want = alpha * x.double() + branch.double()
    assert stream.dtype == y.dtype == stream_dtype
    assert_close(stream, want, 4 * torch.finfo(stream_dtype).eps)
    assert_close(
        y, F.layer_norm(want, (WIDTH,), norm.weight.double(), norm.bias.double()), 64 * torch.finfo(stream_dtype).eps
    )
    assert not fused_calls


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_branch_that_broadcasts_is_added_fused_or_not(fuse: bool) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH).double())
    x, branch = draw(3, 4, WIDTH), draw(WIDTH)
    stream, y = normlab.placements.Residual(fuse=fuse)(x, branch, norm)
    assert_close(stream, x + branch)
    assert_close(y, layer_norm(norm, x + branch))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", ["pre", "post"])
def test_hooks_on_norms_fire_fused_or_not(name: str, fuse: bool) -> None:
    net, seen = Net(name, FACTORIES["layer"][0], fuse=fuse), []
    norms = [m for m in net.modules() if isinstance(m, normlab.LayerNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, inputs, output: seen.append(module))
    net(torch.randn(2, WIDTH))
    assert len(norms) == len(seen) == len(set(seen))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", ["pre", "post", "sandwich", "reordered", "none", "hybrid-norm", "mix-ln"])
def test_hook_on_every_residual_sees_stream_and_branch(name: str, fuse: bool) -> None:
    net, seen = shaken(Net(name, FACTORIES["layer"][0], fuse=fuse).double()), []
    branches: list[Tensor] = []
    for m in net.modules():
        if isinstance(m, normlab.placements.Residual):
            m.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs, output)))
        elif isinstance(m, Map) and name in ("pre", "post"):
            m.register_forward_hook(lambda module, inputs, output: branches.append(output))
    x = draw(3, WIDTH)
    y = net(x)
    assert len(seen) == len({module for module, _, _ in seen}) == len(net.maps) == 2 * LAYERS
    streams = [output if isinstance(output, Tensor) else output[0] for _, _, output in seen]
    for (_, inputs, _), stream in zip(seen, streams, strict=True):
        assert_close(stream, inputs[0] + inputs[1])
    assert torch.equal(seen[0][1][0], x)
    if name in ("pre", "post"):
        assert all(a is inputs[1] for a, (_, inputs, _) in zip(branches, seen, strict=True))
    if name == "pre":
        assert all(torch.equal(a, inputs[0]) for a, (_, inputs, _) in zip(streams, seen[1:], strict=False))
        assert_close(y, layer_norm(net.ends.norm, streams[-1]))
    if name == "post":
        assert_close(y, layer_norm(net.places[-1].norm, streams[-1]))


# ---- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normed", [True, False], ids=["with-norm", "bare"])
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("drop", [0.1, 0.5])
def test_residual_dropout_keeps_the_mean_of_the_branch(drop: float, fuse: bool, normed: bool) -> None:
    residual = normlab.placements.Residual(2.0, drop, fuse=fuse)
    x, branch = torch.randn(400, 50), torch.ones(400, 50)
    arguments = (x, branch, normlab.LayerNorm(50)) if normed else (x, branch)
    stream = residual(*arguments)[0] if normed else residual(*arguments)
    kept = stream - 2 * x
    dropped = kept.abs() < 1e-3
    assert_close(kept[~dropped], torch.full_like(kept[~dropped], 1 / (1 - drop)), 1e-5)
    share = dropped.double().mean().item()
    assert abs(share - drop) < 5 * math.sqrt(drop * (1 - drop) / kept.numel())
    residual.eval()
    stream = residual(*arguments)[0] if normed else residual(*arguments)
    assert_close(stream, 2 * x + 1, 1e-6)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_every_placement_falls_on_the_branch_once(name: str, fuse: bool) -> None:
    """Norms that do nothing, a stream of zero and a constant branch: what comes out is dropped or scaled up."""
    drop = 0.3
    facts = PLACEMENTS[name]
    place, ends = (
        facts.placement(nn.Identity, Slot(width=50), dropout=drop, fuse=fuse),
        facts.ends(nn.Identity, fuse=fuse),
    )
    if name == "rezero":
        nn.init.constant_(place.alpha, 1.5)

    def run() -> Tensor:
        return ends.leave(place(ends.enter(torch.zeros(400, 50)), torch.ones_like))

    y = run()
    whole = place.eval() and run()
    constant = {"rezero": 1.5, "residual-dual": 2.0}.get(name, 1.0)
    assert torch.equal(whole, torch.full((400, 50), constant))
    assert_close(y[y != 0], torch.full_like(y[y != 0], constant / (1 - drop)), 1e-6)
    share = (y == 0).double().mean().item()
    assert abs(share - drop) < 5 * math.sqrt(drop * (1 - drop) / y.numel())


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_follows_the_seed_and_is_off_in_eval(name: str, fuse: bool) -> None:
    net = shaken(Net(name, FACTORIES["layer"][0], dropout=0.4, fuse=fuse, **OPTIONS.get(name, {})))
    x = torch.randn(6, 5, WIDTH)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(net(x))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert_close(net.eval()(x), FORMULAS[name](net, x, layer_norm), 1e-5)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_residual_dual_drops_the_same_from_both_streams(fuse: bool) -> None:
    norm = shaken(normlab.LayerNorm(WIDTH).double())
    place = normlab.placements.ResidualDual(lambda: norm, dropout=0.5, fuse=fuse)
    x, r, branch = draw(20, WIDTH), draw(20, WIDTH), draw(20, WIDTH)
    normed, plain = place(placements.Dual(x, r), lambda h: branch)
    dropped = plain - r
    assert 0.2 < (dropped.abs() < 1e-9).double().mean() < 0.8
    assert_close(normed, layer_norm(norm, x + dropped))
