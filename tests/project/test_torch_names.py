"""The private names of torch: what stands in for each gives the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import BuiltinFunctionType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import Function, forward_ad

from normlab import _torch
from normlab.kernels import eager
from normlab.kernels.facts import RowFacts

TESTS = Path(__file__).resolve().parents[1]

# What every stand-in must leave as it is, in a process of its own: the names are bound when normlab is imported.
CHECK = """
import sys
import torch
from torch.autograd import forward_ad
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

owner, name = {owner}, {name!r}
held = getattr(owner, name)
delattr(owner, name)
import normlab, normlab._torch, normlab.functional, normlab.norms, normlab.watch, normlab.placements
setattr(owner, name, held)  # torch itself needs it
assert not any(value is held for value in vars(normlab._torch).values()), "still bound"

torch.manual_seed(0)
x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
t = torch.randn(4, 6, dtype=torch.float64)
ours, theirs = normlab.LayerNorm(6).double(), torch.nn.LayerNorm(6).double()

# first and second derivatives (registered ops, which take over where dispatch modes cannot be counted, have no second)
for order in (1, 2) if name != "_len_torch_dispatch_stack" else (1,):
    found = []
    for layer in (ours, theirs):
        (g,) = torch.autograd.grad((layer(x) * t).sum(), x, create_graph=order == 2)
        if order == 2:
            (g,) = torch.autograd.grad((g * t).sum(), x)
        found.append(g)
    torch.testing.assert_close(*found)

# transforms and forward mode, over x and over what a layer holds
torch.testing.assert_close(vmap(ours)(x.detach()), theirs(x.detach()))
weights = torch.randn(3, 6, dtype=torch.float64)
got = vmap(lambda w: normlab.functional.layer_norm(x.detach(), (6,), w))(weights)
torch.testing.assert_close(got, torch.stack([torch.nn.functional.layer_norm(x.detach(), (6,), w) for w in weights]))
found = []
for layer in (ours, theirs):
    with forward_ad.dual_level():
        found.append(forward_ad.unpack_dual(layer(forward_ad.make_dual(x.detach(), t))).tangent)
assert found[0] is not None
torch.testing.assert_close(*found)
power = normlab.PowerNorm(6)
power(torch.randn(3, 6)).sum().backward()  # not a transform
try:
    vmap(power)(torch.randn(2, 3, 6))
    raise SystemExit("vmap of PowerNorm's running form was not refused")
except normlab.TransformUnsupported:
    pass

# a dispatch mode sees the registered op
class Names(TorchDispatchMode):
    seen = set()
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(str(function))
        return function(*args, **(kwargs or {{}}))

with Names():
    ours(x.detach())
assert "normlab.row_norm.default" in Names.seen, Names.seen

# a gain of another class may have no memory of its own
from contract import Wrapped
assert torch.equal(normlab.functional.layer_norm(t, (6,), Wrapped(weights[0])), normlab.functional.layer_norm(t, (6,), weights[0]))

# a recomputed forward counts once, an ordinary one counts
batch = normlab.BatchNorm(6).double()
for reentrant in (False, True):
    before = int(batch.num_batches_tracked)
    checkpoint(batch, x, use_reentrant=reentrant).sum().backward()
    assert int(batch.num_batches_tracked) == before + 1, reentrant

# many tensors at once
from normlab.watch.quantities import _norm
torch.testing.assert_close(_norm([x.detach(), t]), torch.cat((x.detach(), t)).float().norm())
moved = normlab._torch.foreach_sub([x.detach(), t], [t, t])
torch.testing.assert_close(list(moved), [x.detach() - t, t - t])
print(type(normlab._torch.exchange_table).__name__)
"""

NAMES = (
    ("torch._C", "_are_functorch_transforms_active"),
    ("torch._C", "_len_torch_dispatch_stack"),
    ("torch._C", "_current_graph_task_id"),
    ("forward_ad", "_current_level"),
    ("torch", "_foreach_norm"),
    ("torch", "_foreach_sub"),
    ("torch.Tensor", "__dlpack_c_exchange_api__"),
)


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[name for _, name in NAMES])
def test_without_it_the_results_are_the_same(owner, name):
    held = {"torch._C": torch._C, "forward_ad": forward_ad, "torch": torch, "torch.Tensor": torch.Tensor}[owner]
    if not hasattr(held, name):
        pytest.skip(f"this torch has no {name}: the other tests ran without it")
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(owner=owner, name=name)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_functions_without_a_private_backward_are_applied_as_torch_does():
    class Without(Function):
        pass

    del Without._backward_cls
    assert _torch.direct_apply(Without) == Without.apply
    assert isinstance(_torch.direct_apply(eager.RowNorm), BuiltinFunctionType)  # no wrapper; torch 2.15 has none itself
    x, weight, grad = torch.randn(5, 7), torch.rand(7), torch.randn(5, 7)
    facts, found = RowFacts("rms", 1e-5, 7, 7), []
    for apply in (eager.RowNorm.apply, eager.row_norm):
        leaf = x.clone().requires_grad_()
        y = apply(leaf, weight, None, None, facts)
        y.backward(grad)
        found.append((y, leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_module_that_does_not_tell_its_hooks_is_called():
    quiet = nn.LayerNorm(3)
    assert not _torch.has_hooks(quiet, aside="passive")
    assert _torch.has_hooks(SimpleNamespace(), aside="passive")
    quiet.register_forward_hook(lambda *_: None)
    assert _torch.has_hooks(quiet, aside="passive")


def test_parameters_and_buffers_by_torchs_iterators():
    norm, bare = nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False, track_running_stats=False)

    def shut(module):
        """The same module where torch keeps its tensors elsewhere: only the public iterators are left."""
        return SimpleNamespace(
            weight=module.weight, named_parameters=module.named_parameters, named_buffers=module.named_buffers
        )

    for module in (norm, shut(norm)):
        assert _torch.own_parameters(module)["weight"] is norm.weight
        assert _torch.own_parameter(module, "weight") is norm.weight
        assert _torch.own_buffers(module)["running_mean"] is norm.running_mean
    for module in (bare, shut(bare)):
        assert _torch.own_parameter(module, "weight") is None
        assert _torch.own_buffers(module)["running_mean"] is None


def test_what_compile_wrapped_is_found_with_and_without_its_attribute():
    inner = nn.Linear(2, 2)
    assert _torch.uncompiled(inner) is None
    assert _torch.uncompiled(torch.compile(inner)) is inner

    class OptimizedModule(nn.Module):
        def __init__(self):
            super().__init__()
            self.behind = inner

    assert _torch.uncompiled(OptimizedModule()) is inner
