"""The eager path under every kind of differentiation: first and second derivatives, torch.func, forward mode,
autocast, activation checkpointing, and copies of layers.

gradcheck drives the kernels' backward; gradgradcheck drives the replayed reference formula; that the two agree on the
first derivative is a test of its own.
"""

import copy
import io

import pytest
import torch
from layer_cases import F64, WIDTH, inputs_of, make_layer, random_mask, seeded, upstream
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

import normlab
from normlab import NORMS, functional
from normlab.kernels import eager, power, reference

# ---- gradcheck -------------------------------------------------------------------------------------------------------


def leaf(*shape):
    return torch.randn(shape, dtype=F64).add_(0.3).requires_grad_()


# name -> (function of (tensors, mask), tensors, shape of the mask)
FUNCTIONS = {
    "layer_norm": lambda: (
        lambda x, w, b, m: functional.layer_norm(x, (7,), w, b, mask=m), [leaf(2, 3, 7), leaf(7), leaf(7)], (2, 3)),
    "layer_norm over two axes": lambda: (
        lambda x, w, b, m: functional.layer_norm(x, (3, 5), w, b, mask=m), [leaf(2, 3, 5), leaf(3, 5), leaf(3, 5)], (2,)),
    "layer_norm without parameters": lambda: (lambda x, m: functional.layer_norm(x, (7,), mask=m), [leaf(2, 3, 7)], (2, 3)),
    "layer_norm offset": lambda: (
        lambda x, w, m: functional.layer_norm(x, (7,), w, gain="offset", mask=m), [leaf(2, 3, 7), leaf(7)], (2, 3)),
    "rms_norm": lambda: (
        lambda x, w, b, m: functional.rms_norm(x, (7,), w, 1e-3, bias=b, mask=m), [leaf(2, 3, 7), leaf(7), leaf(7)], (2, 3)),
    "rms_norm partial": lambda: (
        lambda x, w, m: functional.rms_norm(x, (7,), w, 1e-3, partial=3, mask=m), [leaf(2, 3, 7), leaf(7)], (2, 3)),
    "rms_norm offset": lambda: (
        lambda x, w, m: functional.rms_norm(x, (7,), w, 1e-3, gain="offset", mask=m), [leaf(2, 3, 7), leaf(7)], (2, 3)),
    "scale_norm": lambda: (lambda x, w, m: functional.scale_norm(x, w, mask=m), [leaf(2, 3, 7), leaf(1)], (2, 3)),
    "scale_norm clamped": lambda: (
        lambda x, w, m: functional.scale_norm(x, w, 50.0, mask=m), [leaf(2, 3, 7), leaf(1)], (2, 3)),
    "batch_norm": lambda: (
        lambda x, w, b, m: functional.batch_norm(x, None, None, w, b, True, mask=m),
        [leaf(3, 5, 3), leaf(3), leaf(3)], (3, 5)),
    "batch_norm images": lambda: (
        lambda x, w, b, m: functional.batch_norm(x, None, None, w, b, True, channel_dim=1, mask=m),
        [leaf(2, 3, 3, 2), leaf(3), leaf(3)], (2, 3, 2)),
    "batch_norm evaluation": lambda: (
        lambda x, w, b, m: functional.batch_norm(x, torch.full((3,), 0.2, dtype=F64), torch.full((3,), 1.7, dtype=F64),
            w, b, mask=m),
        [leaf(3, 5, 3), leaf(3), leaf(3)], (3, 5)),
    "instance_norm": lambda: (
        lambda x, w, b, m: functional.instance_norm(x, w, b, mask=m), [leaf(2, 5, 3), leaf(3), leaf(3)], (2, 5)),
    "instance_norm offset": lambda: (
        lambda x, w, m: functional.instance_norm(x, w, gain="offset", channel_dim=1, mask=m),
        [leaf(2, 3, 5), leaf(3)], (2, 5)),
    "group_norm": lambda: (
        lambda x, w, b, m: functional.group_norm(x, 3, w, b, mask=m), [leaf(2, 5, 6), leaf(6), leaf(6)], (2, 5)),
    "group_norm images": lambda: (
        lambda x, w, b, m: functional.group_norm(x, 2, w, b, channel_dim=1, mask=m),
        [leaf(2, 4, 3, 2), leaf(4), leaf(4)], (2, 3, 2)),
    "power_norm per batch": lambda: (
        lambda x, w, b, m: functional.power_norm(x, torch.ones(3, dtype=F64), torch.zeros(3, dtype=F64), torch.tensor(0),
            w, b, running=False, mask=m),
        [leaf(3, 5, 3), leaf(3), leaf(3)], (3, 5)),
    "dyt": lambda: (
        lambda x, a, w, b, m: functional.dyt(x, a, w, b, mask=m), [leaf(2, 3, 7), leaf(1), leaf(7), leaf(7)], (2, 3)),
    "derf": lambda: (
        lambda x, a, s, w, b, m: functional.derf(x, a, s, w, b, mask=m),
        [leaf(2, 3, 7), leaf(1), leaf(1), leaf(7), leaf(7)], (2, 3)),
    "residual_norm": lambda: (
        lambda x, r, w, b, m: functional.residual_norm(x, r, w, b, mask=m),
        [leaf(2, 3, 7), leaf(2, 3, 7), leaf(7), leaf(7)], (2, 3)),
    "residual_norm with stream": lambda: (
        lambda x, r, w, b, m: functional.residual_norm(x, r, w, b, return_stream=True, mask=m),
        [leaf(2, 3, 7), leaf(2, 3, 7), leaf(7), leaf(7)], (2, 3)),
    "residual_norm rms alpha": lambda: (
        lambda x, r, w, m: functional.residual_norm(x, r, w, eps=1e-3, norm="rms", alpha=1.7, gain="offset",
            return_stream=True, mask=m),
        [leaf(2, 3, 7), leaf(2, 3, 7), leaf(7)], (2, 3)),
    "residual_norm dropout": lambda: (
        lambda x, r, w, b, m: seeded(functional.residual_norm, x, r, w, b, dropout=0.4, alpha=0.8, return_stream=True, mask=m),
        [leaf(2, 3, 7), leaf(2, 3, 7), leaf(7), leaf(7)], (2, 3)),
}  # fmt: skip


@pytest.fixture(params=FUNCTIONS)
def function(request):
    """(function of tensors, tensors, shape of a mask)"""
    return FUNCTIONS[request.param]()


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
def test_first_and_second_derivatives(function, masked):
    call, tensors, positions = function
    mask = random_mask(*positions) if masked else None
    assert gradcheck(lambda *t: call(*t, mask), tensors)
    assert gradgradcheck(lambda *t: call(*t, mask), tensors)


def test_gradients_with_create_graph_are_the_kernels(function):
    call, tensors, positions = function
    outputs = call(*tensors, random_mask(*positions))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = upstream(outputs)
    plain = torch.autograd.grad(outputs, tensors, grads, retain_graph=True)
    replayed = torch.autograd.grad(outputs, tensors, grads, create_graph=True)
    for a, b in zip(plain, replayed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_create_graph_when_the_branch_depends_on_x():
    """The common case: branch = sublayer(x). Replaying must not follow the branch back to x a second time."""
    x, mix, weight = leaf(3, 7), torch.randn(7, 7, dtype=F64), leaf(7)
    y = functional.residual_norm(x, x @ mix, weight)
    g = torch.randn_like(y)
    plain = torch.autograd.grad(y, [x, weight], g, retain_graph=True)
    replayed = torch.autograd.grad(y, [x, weight], g, create_graph=True)
    for a, b in zip(plain, replayed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert gradgradcheck(lambda x, w: functional.residual_norm(x, x @ mix, w), [x, weight])


@pytest.mark.parametrize("norm", ["layer", "batch", "dyt"])
def test_create_graph_when_layers_share_a_weight(norm):
    x, weight, alpha = leaf(5, 7), leaf(7), leaf(1)
    apply = {
        "layer": lambda t: functional.layer_norm(t, (7,), weight),
        "batch": lambda t: functional.batch_norm(t, None, None, weight, None, True),
        "dyt": lambda t: functional.dyt(t, alpha, weight),
    }[norm]
    wanted = [x, weight, alpha] if norm == "dyt" else [x, weight]
    y = apply(apply(x))
    g = torch.randn_like(y)
    plain = torch.autograd.grad(y, wanted, g, retain_graph=True)
    replayed = torch.autograd.grad(y, wanted, g, create_graph=True)
    for a, b in zip(plain, replayed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_second_derivative_equals_torchs():
    """A gradient penalty, as a user writes it, gives the same weight gradients with our layers as with torch's."""
    results = []
    x = torch.randn(4, 5, 7, dtype=F64)
    for build in (normlab.LayerNorm, nn.LayerNorm):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(7, 7), build(7), nn.Linear(7, 7), build(7)).to(F64)
        for p in model.parameters():
            p.data.add_(torch.randn_like(p))
        probe = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(model(probe).pow(3).sum(), probe, create_graph=True)
        dx.pow(2).sum().backward()
        results.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_in_place_change_of_a_saved_input_is_caught():
    x = torch.randn(3, 7, requires_grad=True) * 1
    y = functional.layer_norm(x, (7,))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(torch.randn_like(y))


@pytest.mark.parametrize("which", ["y", "stream"])
def test_residual_gradient_through_one_output_only(which):
    x, branch, weight = leaf(3, 7), leaf(3, 7), leaf(7)
    outputs = dict(
        zip(("y", "stream"), functional.residual_norm(x, branch, weight, alpha=1.3, return_stream=True), strict=True)
    )
    stream = 1.3 * x + branch
    plain = {"y": nn.functional.layer_norm(stream, (7,), weight), "stream": stream}
    g = torch.randn(3, 7, dtype=F64)
    got = torch.autograd.grad(outputs[which], [x, branch, weight], g, allow_unused=True)
    want = torch.autograd.grad(plain[which], [x, branch, weight], g, allow_unused=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(
            torch.zeros(7, dtype=F64) if a is None else a, torch.zeros(7, dtype=F64) if b is None else b
        )


# ---- torch.func ------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A layer's own parameters in its reference formula: the counterpart where torch has none."""

    def __init__(self, name, layer):
        super().__init__()
        self.name, self.layer = name, layer

    def forward(self, *xs):
        n, c = self.layer, dict(self.layer.named_parameters())
        if self.name == "scale":
            return reference.row_norm(xs[0], c["weight"], None, None, mode="scale", eps=n.eps, partial=WIDTH)
        if self.name == "power":
            return reference.column_norm(
                xs[0], c["weight"], c["bias"], None, eps=n.eps, groups=WIDTH, pooled=True, centered=False
            )[0]
        if self.name == "residual":
            stream = n.alpha * xs[0] + xs[1]
            return nn.functional.layer_norm(stream, (WIDTH,), c["weight"], c["bias"], n.eps)
        curve = torch.tanh if self.name == "dyt" else torch.erf
        return curve(c["alpha"] * xs[0] + c.get("shift", 0)) * c["weight"] + c["bias"]


class Transposed(nn.Module):
    """A torch layer with channels at 1, on (..., d) inputs."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.movedim(-1, 1)).movedim(1, -1)


def pair(name):
    """Our layer and its counterpart with the same parameters; neither keeps running statistics."""
    options = {"rms": {"eps": 1e-3}, "batch": {"track_running_stats": False},
               "power": {"running": False, "track_running_stats": False},
               "residual": {"alpha": 1.3}}.get(name, {})  # fmt: skip
    ours = make_layer(name, **options)
    torch_layers = {
        "layer": lambda: nn.LayerNorm(WIDTH),
        "rms": lambda: nn.RMSNorm(WIDTH, eps=1e-3),
        "batch": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
        "instance": lambda: nn.InstanceNorm1d(WIDTH, affine=True),
        "group": lambda: nn.GroupNorm(3, WIDTH),
    }
    if name not in torch_layers:
        return ours, Plain(name, copy.deepcopy(ours)), "layer."
    theirs = torch_layers[name]().to(F64)
    theirs.load_state_dict(ours.state_dict())
    return (ours, theirs, "") if name in ("layer", "rms") else (ours, Transposed(theirs), "inner.")


def as_function(layer, prefix=""):
    """f(parameters, *xs) with parameters named without the prefix."""
    return lambda parameters, *xs: functional_call(layer, {prefix + k: v for k, v in parameters.items()}, xs)


EVERY = [*NORMS, "residual"]


@pytest.mark.parametrize("name", EVERY)
def test_func_transforms_equal_the_counterpart(name):
    ours, theirs, prefix = pair(name)
    f, g = as_function(ours), as_function(theirs, prefix)
    parameters = {k: p.detach() for k, p in ours.named_parameters()}
    shape = (3, 4, WIDTH)
    xs = inputs_of(name, shape, requires_grad=False)
    tangents = [torch.randn_like(x) for x in xs]
    parameter_tangents = {k: torch.randn_like(p) for k, p in parameters.items()}
    probe = torch.randn(shape, dtype=F64)

    def agree(transform):
        torch.testing.assert_close(transform(f), transform(g), rtol=1e-10, atol=1e-10)

    agree(lambda h: grad(lambda p, *x: (h(p, *x) * probe).sum(), argnums=(0, 1))(parameters, *xs))
    agree(lambda h: jvp(h, (parameters, *xs), (parameter_tangents, *tangents)))
    batched = [torch.stack([x, x.flip(0), x * 1.5]) for x in xs]
    agree(lambda h: vmap(h, in_dims=(None, *[0] * len(xs)))(parameters, *batched))
    # per-sample gradients of the parameters
    agree(
        lambda h: vmap(grad(lambda p, *x: (h(p, *x) * probe).sum()), in_dims=(None, *[0] * len(xs)))(
            parameters, *batched
        )
    )


@pytest.mark.parametrize("name", EVERY)
def test_hessian_equals_the_counterpart(name):
    ours, theirs, prefix = pair(name)
    f, g = as_function(ours), as_function(theirs, prefix)
    parameters = {k: p.detach() for k, p in ours.named_parameters()}
    xs = inputs_of(name, (2, 2, WIDTH), requires_grad=False)
    probe = torch.randn(2, 2, WIDTH, dtype=F64)
    of_x = [hessian(lambda x, h=h: (h(parameters, x, *xs[1:]) * probe).sum())(xs[0]) for h in (f, g)]
    torch.testing.assert_close(*of_x, rtol=1e-9, atol=1e-9)
    if name != "scale":  # its gain enters as a factor only; the others are covered by x
        of_weight = [jacrev(lambda w, h=h: h({**parameters, "weight": w}, *xs))(parameters["weight"]) for h in (f, g)]
        torch.testing.assert_close(*of_weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_masks_under_vmap(name):
    """A mask may be mapped over with its input, and padding still does not leak."""
    layer = pair(name)[0]
    mask = random_mask(4, 3, 5)
    mask[:, 0, :2] = True
    xs = [
        x.masked_fill(~mask.unsqueeze(-1), float("nan")) for x in inputs_of(name, (4, 3, 5, WIDTH), requires_grad=False)
    ]
    got = vmap(lambda m, *x: layer(*x, mask=m))(mask, *xs)
    want = torch.stack([layer(*(x[i] for x in xs), mask=mask[i]) for i in range(4)])
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_forward_mode(name):
    ours, theirs, _ = pair(name)
    xs = inputs_of(name, requires_grad=False)
    tangents = [torch.randn_like(x) for x in xs]
    found = []
    for layer in (ours, theirs):
        with forward_ad.dual_level():
            y = layer(*(forward_ad.make_dual(x, t) for x, t in zip(xs, tangents, strict=True)))
            found.append(tuple(forward_ad.unpack_dual(y)))
    assert found[0][1] is not None and found[0][1].abs().max() > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


def test_batch_norm_evaluation_under_vmap_and_jvp():
    ours, theirs = make_layer("batch"), nn.BatchNorm1d(WIDTH, dtype=F64)
    ours.running_mean.copy_(torch.randn(WIDTH))
    ours.running_var.copy_(torch.rand(WIDTH) + 0.5)
    theirs.load_state_dict(ours.state_dict())
    ours.eval(), theirs.eval()
    x = torch.randn(4, 5, WIDTH, dtype=F64)
    torch.testing.assert_close(vmap(ours)(x), vmap(theirs)(x), rtol=1e-12, atol=1e-12)
    t = torch.randn_like(x[0])
    torch.testing.assert_close(jvp(ours, (x[0],), (t,)), jvp(theirs, (x[0],), (t,)), rtol=1e-12, atol=1e-12)


# ---- PowerNorm's running form ----------------------------------------------------------------------------------------


def snapshot(layer):
    return {k: v.clone() for k, v in layer.state_dict().items()}


def test_running_power_norm_has_no_second_derivative():
    layer = make_layer("power", warmup_steps=1)
    x = leaf(5, 3, WIDTH)
    y = layer(x)
    before = layer.running_nu.clone()
    with pytest.raises(normlab.TransformUnsupported, match="running=False"):
        torch.autograd.grad(y, x, torch.randn_like(y), create_graph=True)
    assert torch.equal(layer.running_nu, before)
    exact = make_layer("power", running=False)
    assert gradgradcheck(exact, [leaf(3, 2, WIDTH)])


@pytest.mark.parametrize("transform", [
    lambda f, x: vmap(f)(x),
    lambda f, x: grad(lambda t: f(t).pow(3).sum())(x),
    lambda f, x: jvp(f, (x,), (torch.ones_like(x),)),
    lambda f, x: hessian(lambda t: f(t).pow(3).sum())(x),
], ids=["vmap", "grad", "jvp", "hessian"])  # fmt: skip
def test_running_power_norm_refuses_transforms_and_keeps_its_state(transform):
    layer = make_layer("power", warmup_steps=1)
    before = snapshot(layer)
    with pytest.raises(normlab.TransformUnsupported, match="running=False"):
        transform(layer, torch.randn(3, 2, WIDTH, dtype=F64))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_running_power_norm_refuses_forward_mode():
    layer = make_layer("power")
    before = snapshot(layer)
    x = torch.randn(3, 2, WIDTH, dtype=F64)
    with forward_ad.dual_level(), pytest.raises(normlab.TransformUnsupported):
        layer(forward_ad.make_dual(x, torch.ones_like(x)))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_power_norm_evaluation_takes_transforms():
    layer = make_layer("power").eval()
    layer.running_psi2.copy_(torch.rand(WIDTH) + 0.5)
    x = torch.randn(3, 2, 5, WIDTH, dtype=F64)
    torch.testing.assert_close(vmap(layer)(x), layer(x), rtol=1e-13, atol=1e-13)


# ---- autocast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_autocast_returns_the_inputs_dtype_and_loses_nothing(name):
    layer = make_layer(name, torch.float32)
    exact = make_layer(name, F64)
    exact.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in layer.state_dict().items()})
    xs = inputs_of(name, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(*xs)
    assert y.dtype == torch.bfloat16
    doubles = [x.detach().double().requires_grad_() for x in xs]
    want = exact(*doubles)
    step = 2.0**-8  # half a step of bfloat16, relative
    # a residual sum is rounded to bfloat16 before it is normalized
    slack = 4 * step if name == "residual" else 1.01 * step
    assert (
        (y.double() - want).abs() <= slack * want.abs() + (slack * want.abs().max() if name == "residual" else 1e-6)
    ).all()
    g = torch.randn_like(y)
    y.backward(g)
    want.backward(g.double())
    for x, d in zip(xs, doubles, strict=True):
        assert x.grad.dtype == torch.bfloat16
        assert (x.grad.double() - d.grad).norm() <= 4 * step * d.grad.norm()
    for p, q in zip(layer.parameters(), exact.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        assert (
            (p.grad.double() - q.grad).norm() <= 2 * step * q.grad.norm()
            if name == "residual"
            else 1e-5 * q.grad.norm()
        )


def test_autocast_in_a_model():
    """Linear hands bfloat16 to the norm, the norm hands bfloat16 on; gradients reach float32 parameters."""
    model = nn.Sequential(nn.Linear(7, WIDTH), normlab.RMSNorm(WIDTH), nn.Linear(WIDTH, 5))
    x = torch.randn(11, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        middle = model[1](model[0](x))
        y = model(x)
    assert middle.dtype == y.dtype == torch.bfloat16
    y.backward(torch.randn_like(y))
    assert all(p.grad.dtype == torch.float32 and p.grad.abs().max() > 0 for p in model.parameters())


# ---- activation checkpointing ----------------------------------------------------------------------------------------


def gradients(model, xs, checkpointed):
    xs = [x.detach().clone().requires_grad_() for x in xs]
    model.zero_grad()
    torch.manual_seed(7)
    y = checkpoint(model, *xs, use_reentrant=False) if checkpointed else model(*xs)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    return [y.detach(), *(x.grad for x in xs), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("name", EVERY)
def test_checkpointing_gives_the_same_bits(name):
    layer = make_layer(name, torch.float32, **({"running": False} if name == "power" else {}))
    xs = inputs_of(name, dtype=torch.float32)
    for plain, again in zip(gradients(layer, xs, False), gradients(layer, xs, True), strict=True):
        assert torch.equal(plain, again)


def test_checkpointing_running_power_norm_is_right_or_refused():
    """Its forward moves the statistics it divides by, so a second forward for the same step sees other ones."""
    layer = make_layer("power", torch.float32, warmup_steps=1)
    for _ in range(2):  # past warm-up
        gradients(layer, inputs_of("power", dtype=torch.float32), False)
    twin = copy.deepcopy(layer)
    xs = inputs_of("power", dtype=torch.float32)
    plain = gradients(layer, xs, False)
    try:
        again = gradients(twin, xs, True)
    except normlab.TransformUnsupported as refusal:
        assert "checkpoint" in str(refusal)
        return
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), twin.buffers(), strict=True))


def test_checkpointing_draws_the_same_dropout():
    layer = make_layer("residual", torch.float32, dropout=0.4, alpha=1.3)
    xs = inputs_of("residual", (7, 11, WIDTH), torch.float32)
    plain, again = gradients(layer, xs, False), gradients(layer, xs, True)
    assert 0.2 < (plain[2] == 0).float().mean() < 0.6  # the branch's gradient shows what was dropped
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(8)
    assert not torch.equal(layer(*xs), plain[0])  # another seed draws others


# ---- copies ----------------------------------------------------------------------------------------------------------


def trained(name):
    """A layer whose buffers have moved from where they start."""
    layer = make_layer(name, torch.float32, **({"track_running_stats": True} if name == "instance" else {}))
    for _ in range(2):
        y = layer(*inputs_of(name, dtype=torch.float32))
        y.backward(torch.randn_like(y))
    layer.zero_grad()
    return layer


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", EVERY)
def test_deepcopy_is_equal_and_apart(name, training):
    layer = trained(name).train(training)
    twin = copy.deepcopy(layer)
    xs = inputs_of(name, dtype=torch.float32, requires_grad=False)
    want = layer(*xs)
    assert torch.equal(twin(*xs), want)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.5)
    assert not torch.equal(twin(*xs), want)
    fresh = layer(*xs)
    if name == "power" and training:
        assert fresh.shape == want.shape  # it normalizes by what it has seen, which has moved on
    else:
        assert torch.equal(fresh, want)


@pytest.mark.parametrize("name", EVERY)
def test_state_dict_round_trip(name):
    layer = trained(name)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make_layer(name, torch.float32, **({"track_running_stats": True} if name == "instance" else {}))
    xs = inputs_of(name, dtype=torch.float32, requires_grad=False)
    assert not torch.equal(layer.eval()(*xs), other.eval()(*xs))
    assert not any(other.load_state_dict(torch.load(file, weights_only=True)))  # no missing, no unexpected keys
    assert torch.equal(layer(*xs), other(*xs))
    layer.train(), other.train()
    assert torch.equal(layer(*xs), other(*xs))
    for key, value in layer.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w


@pytest.mark.parametrize("name", EVERY)
def test_a_parametrized_weight_is_used(name):
    """torch.nn.utils.parametrize and prune replace the parameter by a computed attribute; the layer must read that."""
    layer = make_layer(name)
    doubled = copy.deepcopy(layer)
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    with torch.no_grad():
        doubled.weight.mul_(2)
    xs = inputs_of(name)
    assert torch.equal(layer(*xs), doubled(*xs))


def test_eager_is_the_path_these_tests_took(monkeypatch):
    """Were the calls above routed to the reference or the graph ops, they would prove nothing about this module."""
    seen = []
    for function in (eager.RowNorm, eager.ResidualNorm, eager.ColumnNorm, power.PowerNorm, eager.Pointwise):
        forward = function.forward
        monkeypatch.setattr(
            function, "forward", staticmethod(lambda *a, f=forward, n=function.__name__: (seen.append(n), f(*a))[1])
        )
    for name in EVERY:
        make_layer(name, torch.float32)(*inputs_of(name, dtype=torch.float32))
    assert set(seen) == {"RowNorm", "ResidualNorm", "ColumnNorm", "PowerNorm", "Pointwise"}
