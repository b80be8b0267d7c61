"""How tensors are handed to the extension: looked into or described, in memory of any form, and what is not handed over."""

import copy

import pytest
import torch
from contract import Wrapped
from layer_cases import F64, WIDTH, inputs_of, make_layer, random_mask, seeded
from torch import nn

from normlab import NORMS, functional
from normlab.kernels import cpu
from normlab.kernels.facts import RowFacts

# ---- two ways to hand a tensor over ----------------------------------------------------------------------------------


def seen_and_described(monkeypatch, run):
    """What ``run`` gives when the extension looks into tensors, and when they are described to it (older torch)."""
    if not cpu.looks:
        pytest.skip("this torch has no table for looking into tensors")
    seen = run()
    described = []
    describe = cpu._described
    monkeypatch.setattr(cpu, "_described", lambda t: (described.append(t), describe(t))[1])
    monkeypatch.setattr(cpu, "native", cpu._Describing(cpu.native))
    other = run()
    assert described
    return seen, other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, F64])
@pytest.mark.parametrize("name", sorted(NORMS))
@pytest.mark.parametrize("mixed", [False, True], ids=["one dtype", "float32 parameters"])
@pytest.mark.parametrize("masked", [False, True])
def test_described_tensors_give_the_same_bits(name, dtype, mixed, masked, monkeypatch):
    layer = make_layer(name, torch.float32 if mixed else dtype)
    x, upstream_grad = torch.randn(7, 3, WIDTH).to(dtype), torch.randn(7, 3, WIDTH).to(dtype)
    call = {"mask": random_mask(7, 3)} if masked else {}

    def run():
        own = copy.deepcopy(layer)
        leaf = x.clone().requires_grad_()
        y = own(leaf, **call)
        y.backward(upstream_grad)
        with torch.no_grad():
            again = own.eval()(x, **call)
        return [y.detach(), leaf.grad, *(p.grad for p in own.parameters()), *own.buffers(), again]

    seen, described = seen_and_described(monkeypatch, run)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(seen, described, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("alpha", [1.0, 1.7])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("wanted", ["y", "stream", "both"])
def test_described_residual_calls_give_the_same_bits(norm, alpha, dropout, wanted, monkeypatch):
    layer = make_layer("residual", torch.float32, norm=norm, alpha=alpha, dropout=dropout, return_stream=True)
    x, branch, *grads = (torch.randn(5, 3, WIDTH) for _ in range(4))

    def run():
        leaves = [x.clone().requires_grad_(), branch.clone().requires_grad_()]
        layer.zero_grad()
        outputs = list(seeded(layer, *leaves))
        chosen = {"y": [0], "stream": [1], "both": [0, 1]}[wanted]
        torch.autograd.backward([outputs[i] for i in chosen], [grads[i] for i in chosen])
        with torch.no_grad():
            assert all(torch.equal(a, b) for a, b in zip(seeded(layer, *leaves), outputs, strict=True))
        return [*outputs, *(t.grad for t in leaves), *(p.grad for p in layer.parameters() if wanted != "stream")]

    seen, described = seen_and_described(monkeypatch, run)
    assert all(torch.equal(a, b) for a, b in zip(seen, described, strict=True))


@pytest.mark.parametrize("name", sorted(NORMS))
def test_zeros_without_memory_are_zeros_in_both_ways(name, monkeypatch):
    layer, up = make_layer(name, torch.float32).eval(), torch.randn(4, WIDTH)

    def run(x):
        return [(y := layer(x.requires_grad_())).detach(), *torch.autograd.grad(y, [x, *layer.parameters()], up)]

    for found in seen_and_described(monkeypatch, lambda: run(torch._efficientzerotensor((4, WIDTH)))):
        assert all(torch.equal(a, b) for a, b in zip(found, run(torch.zeros(4, WIDTH)), strict=True))


def test_a_fused_residual_keeps_the_stream_and_not_its_parts():
    """Between the passes a model should hold what the sum and the norm one after the other would: one tensor."""
    layer = make_layer("residual", torch.float32, return_stream=True)
    leaves = [torch.randn(5, 3, WIDTH).requires_grad_() for _ in range(2)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        y, stream = layer(*leaves)
    large = [t for t in kept if t.shape == y.shape]
    assert len(large) == 1 and large[0].data_ptr() == stream.data_ptr()
    torch.autograd.grad((y, stream), leaves, (torch.ones_like(y), torch.ones_like(y)))


@pytest.mark.parametrize("case", ["x", "grad", "weight", "no weight", "no rows"])
def test_rows_of_any_form_are_right_in_both_ways(case, monkeypatch):
    weight, bias = (torch.randn(WIDTH) for _ in range(2))
    x = torch.randn(6, WIDTH)
    up = torch.randn(6, WIDTH)
    if case == "x":
        x = torch.randn(WIDTH, 6).T
    elif case == "grad":
        up = torch.randn(WIDTH, 6).T
    elif case == "weight":
        weight = torch.randn(WIDTH, 2)[:, 0]
    elif case == "no weight":
        weight = None
    else:
        x, up = x[:0], up[:0]
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]

    def run():
        y = functional.layer_norm(leaves[0], (WIDTH,), leaves[1], leaves[2])
        return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], up)]

    seen, described = seen_and_described(monkeypatch, run)
    assert all(torch.equal(a, b) for a, b in zip(seen, described, strict=True))
    gain = torch.ones(WIDTH) if weight is None else weight
    exact = nn.functional.layer_norm(x.double(), (WIDTH,), gain.double(), bias.double())
    torch.testing.assert_close(seen[0].double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("describing", [False, True])
def test_what_fits(describing):
    native = cpu._Describing(cpu.native) if describing else cpu.native
    x, w = torch.randn(3, 8), torch.ones(8)
    facts = RowFacts("layer", 1e-5, 8, 8)

    def takes(x, weight, bias, facts=facts):
        try:
            native.row_forward(x, weight, bias, None, None, torch.empty_like(x), facts, 1)
        except cpu.Unfit:
            return False
        return True

    assert takes(x, w, None) and takes(x, None, None) and takes(x, w.double(), w.double())
    assert takes(x, torch.ones(1), None, RowFacts("scale", 1e-5, 8, 8))
    assert not takes(x, w, None, RowFacts("layer", 1e-5, 7, 7))  # another width
    assert not takes(x, w[:7], None)  # too few gains
    assert not takes(x, w, torch.ones(1))  # too few biases
    assert not takes(x, torch.ones(8, 2)[:, 0], None)  # not dense
    assert not takes(x, w, w.double())  # two dtypes
    assert not takes(x, w.view(1, 8), None)  # two axes
    assert not takes(x, w.long(), None)  # integers
    assert not takes(x, w.to("meta"), None)  # not on the CPU
    assert not takes(torch.tensor(1.0), None, None, RowFacts("layer", 1e-5, 1, 1))  # no axis
    assert not takes(x[:, :0], None, None, RowFacts("layer", 1e-5, 0, 0))  # nothing to normalize
    assert not takes(x, None, None, RowFacts("rms", 1e-5, 8, 9))  # a statistic over more than there is
    assert not takes(x, None, None, RowFacts("rms", 1e-5, 8, 0))  # or over nothing
    assert not takes(x, None, None, RowFacts("layer", 1e-5, 8, 7))  # a part is for rms alone
    assert not takes(x, (w.data_ptr(), 0, (8,), (1,)), None)  # a tuple is no tensor, though it looks like a description
    with pytest.raises(ValueError, match="no such kind of norm"):
        takes(x, w, None, RowFacts("batch", 1e-5, 8, 8))
    with pytest.raises(TypeError, match="facts of a row norm must be a tuple of 6"):
        takes(x, w, None, ("layer", 1e-5, 8, 8))
    fits = native.fits_residual
    assert fits(x, x + 1, w, None)
    assert not fits(x, x.double(), w, None)  # two dtypes
    assert not fits(x, x[:2], w, None)  # fewer rows
    assert not fits(x, x.view(3, 1, 8), w, None)  # another shape
    assert not fits(x, x + 1, w[:7], None)


def test_even_rows_are_read_where_they_are():
    """A slice of each row needs no copy."""
    base = torch.randn(6, 5, 100)
    for view, direct in (
        (base[..., :67], True),
        (base[:, :, 33:], True),
        (base[:1, ::2, :67], True),
        (base[:, ::2, :67], False),
    ):
        y = torch.empty(view.shape)
        facts = RowFacts("layer", 1e-5, 67, 67)
        try:
            cpu.native.row_forward(view, None, None, None, None, y, facts, 1)
        except cpu.Unfit:
            assert not direct
        else:
            assert direct and torch.equal(y, functional.layer_norm(view.contiguous(), (67,)))


# ---- what must not reach a kernel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layer", "batch", "residual"])
def test_a_saved_tensor_that_comes_back_changed_is_refused(name):
    """Kernels go by what was saved; read as another dtype it would be read past its end."""
    xs = inputs_of(name, dtype=torch.float32)
    layer = make_layer(name, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t):
        y = layer(*xs)
    with pytest.raises(RuntimeError, match="restore what it packed"):
        y.backward(torch.ones_like(y))


@pytest.mark.parametrize("name", ["layer", "rms", "residual", "batch", "group", "power", "dyt"])
@pytest.mark.parametrize("kind", ["dense", "strided", "masked"])
def test_another_default_device_changes_nothing(name, kind):
    layer = make_layer(name, torch.float32)
    xs = inputs_of(name, dtype=torch.float32)
    if kind == "strided":
        xs = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in xs]
    options = {"mask": random_mask(3, 5)} if kind == "masked" else {}
    up = torch.randn(3, 5, WIDTH)

    def run(device):
        own = copy.deepcopy(layer)  # some move their statistics
        with torch.device(device):
            y = own(*xs, **options)
            return [y, *torch.autograd.grad(y, [*xs, *own.parameters()], up), *own.buffers()]

    for ordinary, elsewhere in zip(run("cpu"), run("meta"), strict=True):
        assert elsewhere.device.type == "cpu" and torch.equal(ordinary, elsewhere)


@pytest.mark.parametrize("call", [
    lambda x, w, b: functional.layer_norm(x, (8,), w, b),
    lambda x, w, b: functional.residual_norm(x, x, w, b),
    lambda x, w, b: functional.group_norm(x, 2, w, b),
])  # fmt: skip
@pytest.mark.parametrize("with_weight", [True, False])
def test_parameters_of_other_shapes_get_gradients_of_theirs(call, with_weight):
    x = torch.randn(3, 4, 8)
    weight, bias = torch.randn(8, requires_grad=True), torch.randn(1, 8, requires_grad=True)
    call(x, weight if with_weight else None, bias).sum().backward()
    assert bias.grad.shape == (1, 8) and (weight.grad is not None) == with_weight
    torch.testing.assert_close(bias.grad.flatten(), torch.full((8,), 12.0))


def test_the_gradient_of_a_stream_alone_is_plain():
    """y is not used, so nothing of the norm counts: neither a zero row without eps nor an infinite one."""
    x = torch.randn(4, 7)
    x[1], x[2, 3] = 0, float("inf")
    leaves = [x.requires_grad_(), torch.zeros(4, 7, requires_grad=True)]
    weight = torch.ones(7, requires_grad=True)
    _, stream = functional.residual_norm(*leaves, weight, eps=0.0, norm="rms", alpha=1.5, return_stream=True)
    up = torch.randn(4, 7)
    stream.backward(up)
    assert torch.equal(leaves[0].grad, up * 1.5) and torch.equal(leaves[1].grad, up) and weight.grad is None


def test_a_gain_without_memory_of_its_own_counts():
    x, gain = torch.randn(3, 8), torch.randn(8)
    assert torch.equal(functional.layer_norm(x, (8,), Wrapped(gain)), functional.layer_norm(x, (8,), gain))
