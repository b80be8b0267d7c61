"""The registered ops: torch's own checks, vmap rules, torch.compile (fullgraph) and torch.export, all against eager.

Both paths run the same kernels, so compiled and eager outputs and gradients are compared bit for bit; only what torch
computes around the kernels (running statistics, inductor's fusions) may differ by rounding.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

import normlab
from normlab import NORMS, functional
from normlab.kernels import graph

WIDTH = 15  # divisible by the groups, not by any vector
EVERY = [*NORMS, "residual"]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make_layer(name, dtype=torch.float32, **options):
    """Any layer of the table, or "residual", with random gain and bias."""
    build = normlab.ResidualNorm if name == "residual" else NORMS[name].layer
    if name == "instance":
        options = {"affine": True, "track_running_stats": True, **options}
    layer = build(*((3, WIDTH) if name == "group" else (WIDTH,)), dtype=dtype, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + 0.75)
    return layer


def inputs_of(name, shape=(3, 7, WIDTH), dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype) + 0.3 for _ in range(2 if name == "residual" else 1)]


def random_mask(*shape):
    mask = torch.rand(shape) < 0.6
    mask.view(-1)[:3] = torch.tensor([True, False, True])
    return mask


# ---- what torch checks -----------------------------------------------------------------------------------------------


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


# channel axis, groups, pooled
BATCH, IMAGES, INSTANCE, GROUP = (2, 6, True), (1, 6, True), (2, 6, False), (1, 2, False)


def row_arguments(mode, partial=7, dtype=torch.float32, plain=False, offset=False, round_first=False):
    weight = None if plain else leaf(1 if mode == "scale" else 7)
    bias = None if plain or mode == "scale" else leaf(7)
    mask = None if plain else random_mask(5, 3)
    return leaf(5, 3, 7, dtype=dtype), weight, bias, mask, mode, 1e-3, partial, offset, round_first


def row_backward_arguments(mode, partial=7, **facts):
    x, weight, bias, mask, *rest = (
        t.detach() if isinstance(t, torch.Tensor) else t for t in row_arguments(mode, partial, **facts)
    )
    _, statistics = graph.row_norm(x, weight, bias, mask, *rest)
    return (
        torch.randn_like(x),
        x,
        weight,
        mask,
        statistics,
        *rest,
        [weight is not None, bias is not None],
        torch.float32,
    )


def residual_arguments(mode, alpha, drop, plain=False):
    weight, bias = (None, None) if plain else (leaf(7), leaf(7))
    mask = None if plain else random_mask(5, 3)
    return (
        leaf(5, 3, 7),
        leaf(5, 3, 7),
        weight,
        bias,
        mask,
        mode,
        1e-3,
        mode == "rms",
        False,
        alpha,
        drop,
        torch.tensor(2**61 + 12345),
    )


def residual_backward_arguments(*facts):
    x, branch, weight, bias, mask, *rest = (
        t.detach() if isinstance(t, torch.Tensor) else t for t in residual_arguments(*facts)
    )
    _, stream, statistics = graph.residual_norm(x, branch, weight, bias, mask, *rest)
    wanted = [weight is not None, bias is not None]
    return torch.randn_like(x), torch.randn_like(x), stream, weight, mask, statistics, *rest, wanted, torch.float32


def column_arguments(layout, plain=False, given=False, centered=True):
    channel, groups, pooled = layout
    shape = (3, 6, 5) if channel == 1 else (3, 5, 6)
    sets = 1 if pooled else 3
    mean, square = None, None
    if given:
        mean, square = (
            torch.randn(sets, groups, dtype=torch.float64) * centered,
            torch.rand(sets, groups, dtype=torch.float64) + 0.5,
        )
    weight, bias, mask = (None, None, None) if plain else (leaf(6), leaf(6), random_mask(3, 5))
    return leaf(*shape), weight, bias, mask, mean, square, 1e-3, not plain, centered, *layout


def column_backward_arguments(layout, given=False, **facts):
    x, weight, bias, mask, mean, square, *rest = (
        t.detach() if isinstance(t, torch.Tensor) else t for t in column_arguments(layout, given=given, **facts)
    )
    _, *statistics = graph.column_norm(x, weight, bias, mask, mean, square, *rest)
    wanted = [weight is not None, bias is not None]
    return (
        torch.randn_like(x),
        x,
        weight,
        mask,
        *statistics,
        given,
        *rest,
        wanted,
        torch.float32,
    )


def power_arguments(step, plain=False):
    weight, bias, mask = (None, None, None) if plain else (leaf(6), leaf(6), random_mask(3, 5))
    return (
        leaf(3, 5, 6),
        weight,
        bias,
        mask,
        torch.rand(6) + 0.5,
        torch.rand(6),
        torch.tensor(step),
        3,
        0.8,
        1e-3,
        2,
    )


def power_backward_arguments(step, plain=False):
    x, weight, bias, mask, psi2, nu, count, warmup, alpha, eps, channel = (
        t.detach() if isinstance(t, torch.Tensor) else t for t in power_arguments(step, plain)
    )
    _, batch, count, used, warm = graph.power_norm(x, weight, bias, mask, psi2, nu, count, warmup, alpha, eps, channel)
    return torch.randn_like(x), x, weight, mask, batch, used, count, warm, nu, alpha, eps, channel


def pointwise_arguments(form, plain=False):
    weight, bias, mask = (None, None, None) if plain else (leaf(7), leaf(7), random_mask(5, 3))
    return leaf(5, 3, 7), leaf(1), leaf(1) if form == "erf" else None, weight, bias, mask, form


def pointwise_backward_arguments(form, plain=False):
    x, alpha, shift, weight, bias, mask, form = (
        t.detach() if isinstance(t, torch.Tensor) else t for t in pointwise_arguments(form, plain)
    )
    wanted = [True, shift is not None, weight is not None, bias is not None]
    return torch.randn_like(x), x, alpha, shift, weight, mask, form, wanted


# op -> calls: parameters and masks present and absent, every mode and layout
CALLS = {
    "row_norm": {
        "layer": lambda: row_arguments("layer"), "rms partial": lambda: row_arguments("rms", 3, offset=True),
        "scale": lambda: row_arguments("scale"), "layer plain": lambda: row_arguments("layer", plain=True),
        "rms bf16": lambda: row_arguments("rms", dtype=torch.bfloat16, round_first=True),
    },
    "row_norm_backward": {
        "layer": lambda: row_backward_arguments("layer"), "rms partial": lambda: row_backward_arguments("rms", 3),
        "scale": lambda: row_backward_arguments("scale"), "layer plain": lambda: row_backward_arguments("layer", plain=True),
    },
    "residual_norm": {
        "layer": lambda: residual_arguments("layer", 1.0, 0.0), "rms dropout": lambda: residual_arguments("rms", 1.7, 0.3),
        "layer plain": lambda: residual_arguments("layer", 0.5, 0.0, True),
    },
    "residual_norm_backward": {
        "layer": lambda: residual_backward_arguments("layer", 1.0, 0.0),
        "rms dropout": lambda: residual_backward_arguments("rms", 1.7, 0.3),
        "layer plain": lambda: residual_backward_arguments("layer", 0.5, 0.0, True),
    },
    "column_norm": {
        "batch": lambda: column_arguments(BATCH), "images": lambda: column_arguments(IMAGES),
        "instance": lambda: column_arguments(INSTANCE), "group": lambda: column_arguments(GROUP),
        "given": lambda: column_arguments(BATCH, given=True),
        "batch plain": lambda: column_arguments(BATCH, plain=True),
        "uncentered": lambda: column_arguments(BATCH, centered=False),
    },
    "column_norm_backward": {
        "batch": lambda: column_backward_arguments(BATCH), "images": lambda: column_backward_arguments(IMAGES),
        "instance": lambda: column_backward_arguments(INSTANCE), "group": lambda: column_backward_arguments(GROUP),
        "given": lambda: column_backward_arguments(BATCH, given=True),
        "batch plain": lambda: column_backward_arguments(BATCH, plain=True),
    },
    "power_norm": {
        "warm-up": lambda: power_arguments(1), "running": lambda: power_arguments(5),
        "plain": lambda: power_arguments(5, True),
    },
    "power_norm_backward": {
        "warm-up": lambda: power_backward_arguments(1), "running": lambda: power_backward_arguments(5),
        "plain": lambda: power_backward_arguments(5, True),
    },
    "pointwise": {
        "tanh": lambda: pointwise_arguments("tanh"), "erf": lambda: pointwise_arguments("erf"),
        "tanh plain": lambda: pointwise_arguments("tanh", True),
    },
    "pointwise_backward": {
        "tanh": lambda: pointwise_backward_arguments("tanh"), "erf": lambda: pointwise_backward_arguments("erf"),
        "tanh plain": lambda: pointwise_backward_arguments("tanh", True),
    },
}  # fmt: skip
FLAT = [pytest.param(op, call, id=f"{op}-{name}") for op, calls in CALLS.items() for name, call in calls.items()]


def test_every_registered_op_is_checked_here():
    registered = {
        n.removeprefix("normlab::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("normlab::")
    }
    assert registered == set(CALLS)


@pytest.mark.parametrize(("op", "call"), FLAT)
def test_opcheck(op, call):
    results = opcheck(getattr(torch.ops.normlab, op).default, call())
    assert set(results.values()) == {"SUCCESS"}
    assert {"test_schema", "test_faketensor", "test_aot_dispatch_dynamic"} <= set(results)


# ---- vmap ------------------------------------------------------------------------------------------------------------

MAPPED = [p for p in FLAT if not p.values[0].startswith("power_norm")]  # holds state; see test_eager


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("op", "call"), MAPPED)
def test_vmap_of_every_tensor(op, call, axis):
    """Every tensor argument is mapped over an axis that leaves its slices dense (0) or strided (1, -1)."""
    calls = [tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in call()) for _ in range(3)]
    function = getattr(torch.ops.normlab, op)
    want = [function(*arguments) for arguments in calls]
    tensors = [i for i, a in enumerate(calls[0]) if isinstance(a, torch.Tensor)]

    def where(t):
        return min(axis, t.dim()) if axis >= 0 else t.dim()

    stacked = [torch.stack([c[i] for c in calls], where(calls[0][i])) for i in tensors]

    def of_tensors(*mapped):
        arguments = list(calls[0])
        for i, t in zip(tensors, mapped, strict=True):
            arguments[i] = t
        return function(*arguments)

    got = torch.vmap(of_tensors, in_dims=tuple(where(calls[0][i]) for i in tensors))(*stacked)
    if isinstance(got, torch.Tensor):
        got, want = (got,), [(w,) for w in want]
    for part, pieces in zip(got, zip(*want, strict=True), strict=True):
        assert torch.equal(part, torch.stack(pieces))


@pytest.mark.parametrize(("op", "call"), MAPPED)
def test_vmap_of_the_first_tensor_alone(op, call):
    arguments = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in call())
    function = getattr(torch.ops.normlab, op)
    xs = torch.stack([arguments[0], arguments[0].flip(0), arguments[0] * 1.5])
    got = torch.vmap(lambda x: function(x, *arguments[1:]))(xs)
    want = [function(x, *arguments[1:]) for x in xs]
    if isinstance(got, torch.Tensor):
        got, want = (got,), [(w,) for w in want]
    for part, pieces in zip(got, zip(*want, strict=True), strict=True):
        assert torch.equal(part, torch.stack(pieces))


def test_second_derivative_of_a_registered_op_is_refused():
    """The registered backward has no derivative of its own; silence would be a wrong answer."""
    x, weight, bias, mask, *facts = row_arguments("layer")
    y, _ = torch.ops.normlab.row_norm(x, weight, bias, mask, *facts)
    (dx,) = torch.autograd.grad(y, x, torch.randn_like(y), create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(dx, x, torch.randn_like(dx))


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def run(layer, xs, grads, **call):
    """Outputs, gradients of inputs and parameters."""
    xs = [x.clone().requires_grad_() for x in xs]
    for p in layer.parameters():
        p.grad = None
    torch.manual_seed(5)  # dropout
    y = layer(*xs, **call)
    outputs = y if isinstance(y, tuple) else (y,)
    torch.autograd.backward(outputs, grads[: len(outputs)])
    return [*(o.detach() for o in outputs), *(x.grad for x in xs), *(p.grad.clone() for p in layer.parameters())]


def assert_buffers_close(ours, theirs):
    """A buffer is moved by the kernel in eager and by torch ops in a graph: the last bits may differ."""
    for (name, a), (_, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=4e-7, atol=4e-7, msg=lambda m, n=name: f"{n}: {m}")


def assert_compiled_equals_eager(layer, name, backend="aot_eager", exact=True, steps=1, dtype=torch.float32, **call):
    twin = copy.deepcopy(layer)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    for _ in range(steps):
        xs = inputs_of(name, dtype=dtype)
        grads = [torch.randn_like(xs[0]) for _ in range(2)]
        for got, want in zip(run(compiled, xs, grads, **call), run(layer, xs, grads, **call), strict=True):
            if exact:
                assert torch.equal(got, want)
            else:
                torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)
        assert_buffers_close(twin, layer)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", EVERY)
def test_compiled_layer_equals_eager(name, training, masked):
    layer = make_layer(name).train(training)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape) + 0.5)
    before = {k: v.clone() for k, v in layer.named_buffers()}
    # a graph hands the residual kernel a gradient of zeros for the stream nobody used: other instructions, last bits
    assert_compiled_equals_eager(
        layer, name, exact=name != "residual", **({"mask": random_mask(3, 7)} if masked else {})
    )
    moved = [k for k, v in layer.named_buffers() if not torch.equal(v, before[k])]
    assert bool(moved) == (training and bool(before))


@pytest.mark.parametrize("options", [
    ("layer", {"gain": "offset", "round_before_gain": True}),
    ("rms", {"partial": 0.4, "gain": "offset"}),
    ("residual", {"norm": "rms", "alpha": 1.7, "dropout": 0.3, "return_stream": True, "gain": "offset"}),
    ("residual", {"alpha": 0.8, "return_stream": True, "elementwise_affine": False}),
    ("batch", {"frozen": True}), ("batch", {"ghost_size": 2}), ("batch", {"renorm": (2.0, 1.0)}),
    ("batch", {"affine": False, "track_running_stats": False}),
    ("power", {"group_scaling": 3}), ("power", {"running": False}),
], ids=str)  # fmt: skip
def test_compiled_options_equal_eager(options):
    name, facts = options
    # ghost batches and renormalization put torch ops around the kernel, which autograd may order otherwise
    assert_compiled_equals_eager(make_layer(name, **facts), name, exact=not {"ghost_size", "renorm"} & set(facts))


@pytest.mark.parametrize("name", ["layer", "rms", "batch", "group", "derf"])
def test_compiled_bfloat16_with_float32_parameters(name):
    assert_compiled_equals_eager(make_layer(name), name, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", EVERY)
def test_reference_formulas_compile(name):
    """Where there is no native kernel, the reference formula itself is traced, and must be traceable as a whole."""
    with normlab.use_kernel("reference"):
        assert_compiled_equals_eager(make_layer(name), name, exact=False)


def test_compiled_lengths():
    assert_compiled_equals_eager(make_layer("batch"), "batch", lengths=torch.tensor([7, 3, 1]))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
@pytest.mark.parametrize("norm", ["layer", "residual", "batch", "group"])
def test_graph_takes_parameters_of_unlike_dtypes(norm, dtypes):
    x, weight, bias = torch.randn(5, 3, 7), torch.randn(7).to(dtypes[0]), torch.randn(7).to(dtypes[1])
    call = {
        "layer": lambda: functional.layer_norm(x, (7,), weight, bias),
        "residual": lambda: functional.residual_norm(x, x, weight, bias),
        "batch": lambda: functional.batch_norm(x, None, None, weight, bias, True),
        "group": lambda: functional.group_norm(x, 7, weight, bias),
    }[norm]
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(), call())


def test_plain_average_over_three_steps():
    layer = make_layer("batch", momentum=None)
    assert_compiled_equals_eager(layer, "batch", steps=3)
    assert layer.num_batches_tracked == 3
    assert (layer.running_mean != 0).all()


def test_power_norm_across_the_end_of_warmup():
    """Three steps of warm-up, four after it; psi and nu, which backward moves, must keep in step with eager."""
    layer = make_layer("power", warmup_steps=3, alpha_forward=0.8, alpha_backward=0.7)
    assert_compiled_equals_eager(layer, "power", steps=7)
    assert layer.num_batches_tracked == 7
    assert (layer.running_nu != 0).all() and (layer.running_psi2 != 1).all()


def test_power_norm_learns_the_same_compiled():
    """Two of them in a model under an optimizer: the state of one step feeds the next."""
    torch.manual_seed(11)
    model = nn.Sequential(
        make_layer("power", warmup_steps=2), nn.Linear(WIDTH, WIDTH), make_layer("power", warmup_steps=2)
    )
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for m, f in ((model, model), (twin, compiled)):
        torch.manual_seed(12)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            y = f(torch.randn(5, 3, WIDTH))
            y.backward(torch.randn_like(y))
            optimizer.step()
    for (name, a), (_, b) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert (model[0].running_nu != 0).all()


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


def test_power_norm_used_twice_in_a_graph():
    """Its backward changes nu while the backward of the other use still needs it."""
    model = Twice(make_layer("power", warmup_steps=1))
    assert_compiled_equals_eager(model, "power", exact=False, steps=3)
    assert model.layer.num_batches_tracked == 6


@pytest.mark.parametrize("name", ["layer", "batch", "group", "power", "dyt"])
def test_other_shapes_do_not_need_another_graph(name):
    layer = make_layer(name)
    twin = copy.deepcopy(layer)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twin, fullgraph=True, backend=counter, dynamic=True)
    compiled_frames = []
    for shape in ((3, 7, WIDTH), (5, 11, WIDTH), (2, 13, WIDTH)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), layer(x))
        assert_buffers_close(twin, layer)
        compiled_frames.append(counter.frame_count)
    assert compiled_frames == [compiled_frames[0]] * 3


# ---- inductor --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm feed-forward block: linear layers around our norms for inductor to fuse with."""

    def __init__(self):
        super().__init__()
        self.first, self.last = (
            normlab.LayerNorm(WIDTH),
            normlab.ResidualNorm(WIDTH, norm="rms", alpha=1.2, return_stream=True),
        )
        self.up, self.down = nn.Linear(WIDTH, 31), nn.Linear(31, WIDTH)

    def forward(self, x):
        y, stream = self.last(x, self.down(torch.relu(self.up(self.first(x)))))
        return torch.tanh(y) + stream


def test_inductor_on_a_block():
    block = Block()
    for p in block.parameters():
        p.data.add_(torch.randn_like(p) * 0.3)
    assert_compiled_equals_eager(block, "layer", backend="inductor", exact=False)


def test_inductor_on_channels_last_images():
    """Inductor may choose memory layouts of its own; the kernels must get the one they were told of."""
    torch.manual_seed(13)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3),
        normlab.BatchNorm(5, channel_dim=1),
        nn.ReLU(),
        nn.Conv2d(5, 6, 1),
        normlab.GroupNorm(3, 6, channel_dim=1),
    )
    model = model.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="inductor")
    x = torch.randn(2, 3, 11, 7).to(memory_format=torch.channels_last)
    grads = [torch.randn(2, 6, 9, 5)]
    for got, want in zip(run(compiled, [x], grads), run(model, [x], grads), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert_buffers_close(twin, model)


def test_inductor_on_power_norm():
    layer = make_layer("power", warmup_steps=2)
    assert_compiled_equals_eager(layer, "power", backend="inductor", exact=False, steps=4)
    assert (layer.running_nu != 0).all()


# ---- torch.export ----------------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.rms = make_layer("layer"), make_layer("rms", eps=1e-5)
        self.batch = make_layer("batch")
        self.batch.running_mean.copy_(torch.randn(WIDTH))
        self.batch.running_var.copy_(torch.rand(WIDTH) + 0.5)

    def forward(self, x, mask):
        return self.batch(self.rms(torch.sin(self.layer(x))), mask=mask)


def test_export_gives_the_same_outputs_for_any_batch():
    module = Small().eval()
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    x, mask = torch.randn(3, 7, WIDTH), random_mask(3, 7)
    program = torch.export.export(module, (x, mask), dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}))
    called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert {"normlab.row_norm.default", "normlab.column_norm.default"} <= called
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    for shape in ((3, 7), (5, 11)):
        x, mask = torch.randn(*shape, WIDTH), random_mask(*shape)
        want = module(x, mask)
        assert torch.equal(program.module()(x, mask), want)
        assert torch.equal(loaded.module()(x, mask), want)


@pytest.mark.parametrize("name", EVERY)
def test_every_layer_exports(name):
    layer = make_layer(name).eval()
    xs = inputs_of(name)
    program = torch.export.export(layer, tuple(xs))
    assert any("normlab." in str(n.target) for n in program.graph.nodes)
    xs = inputs_of(name)
    assert torch.equal(program.module()(*xs), layer(*xs))
