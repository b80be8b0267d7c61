"""The mask contract, over every norm: padding is not read, comes out as zero, and moves no bit of the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from norm_cases import (
    FEATURES,
    LENGTHS,
    all_builds,
    assert_cancels,
    assert_near,
    assert_same,
    draw,
    grads,
    shaken,
    state_of,
    turned,
)
from torch import Tensor, nn

import normlab

# ---- the mask contract, over every norm ------------------------------------------------------------------------------

STEPS = 3
POISON = [math.nan, math.inf, -math.inf, 3e38]


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
