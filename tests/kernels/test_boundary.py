"""What crosses into C++: whatever a tensor is, the result is right or an error says why; nothing is read or written past its end.

Most of these ended the process or gave a silently wrong number before every tensor was checked where it crosses.
"""

import copy
import re

import pytest
import torch
from contract import Wrapped, make_layer
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import normlab
from normlab import functional
from normlab.kernels import cpu
from normlab.kernels.facts import ColumnFacts, ResidualFacts, RowFacts

EXTENSION = getattr(cpu.native, "_extension", cpu.native)  # itself, where tensors are described to it (older torch)

pytestmark = pytest.mark.skipif(cpu.missing is not None, reason=str(cpu.missing))

EVERY = sorted(normlab.NORMS)
WIDTH = 12


def layer_of(name, width=WIDTH, **options):
    if name == "power":
        options.setdefault("warmup_steps", 0)  # the running form from the start
    return make_layer(name, width, torch.float32, **options)


def outcome(layer, x, up, **call):
    """y, dx, the gradients of the parameters and the buffers, of a copy of the layer."""
    layer = copy.deepcopy(layer)
    leaf = x if x.requires_grad else x.detach().requires_grad_()
    y = layer(leaf, **call)
    grads = torch.autograd.grad(y, [leaf, *layer.parameters()], up)
    return [y.detach(), *grads, *(b.clone() for b in layer.buffers())]


def assert_same(got, want):
    assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def emptied(t):
    """A tensor whose storage was resized to 0, as sharded training does between uses."""
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


# ---- between forward and backward ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 5000])
@pytest.mark.parametrize("name", ["layer", "rms", "batch", "group", "instance", "power", "dyt", "derf"])
def test_a_weight_replaced_by_another_size_is_refused_in_backward(name, size):
    layer = layer_of(name, 2048)
    y = layer(torch.randn(4, 2048) if name != "instance" else torch.randn(2, 2, 2048))
    layer.weight.data = torch.randn(size)
    with pytest.raises(RuntimeError, match=r"changed between forward and backward|weight"):
        y.backward(torch.randn_like(y))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("change", [
    lambda t: t.reshape(-1)[:0], lambda t: t.reshape(-1)[:1], lambda t: torch.stack([t, t]).flatten(0, 1) if t.dim() else t.expand(2), lambda t: t.unsqueeze(0),
    lambda t: t.to("meta"), lambda t: t.to(torch.int64), lambda t: emptied(t), lambda t: t.float().to_sparse(),
    lambda t: t.double() if t.is_floating_point() else t.float(),
], ids=["empty", "one", "longer", "an axis more", "meta", "integers", "no memory", "sparse", "another dtype"])  # fmt: skip
def test_whatever_a_hook_on_saved_tensors_brings_back(name, masked, change):
    """Each saved tensor in turn comes back changed: a RuntimeError, or (a gain in another dtype) a number; never a crash."""
    layer, x, up = layer_of(name), torch.randn(3, 5, WIDTH, requires_grad=True), torch.randn(3, 5, WIDTH)
    call = {"mask": torch.rand(3, 5) < 0.7} if masked else {}
    want = outcome(layer, x, up, **call)
    saved = []
    with saved_tensors_hooks(lambda t: saved.append(t) or len(saved) - 1, lambda i: saved[i]):
        copy.deepcopy(layer)(x, **call)
    assert saved
    for turn in range(len(saved)):
        kept = []

        def pack(t, kept=kept):
            kept.append(t)
            return len(kept) - 1

        with saved_tensors_hooks(pack, lambda i, kept=kept, turn=turn: change(kept[i]) if i == turn else kept[i]):
            own = copy.deepcopy(layer)
            y = own(x, **call)
        try:
            grads = torch.autograd.grad(y, [x, *own.parameters()], up)
        except RuntimeError as error:
            assert str(error)
        else:
            assert change(kept[turn]).numel() == kept[turn].numel(), "what has another size must be refused"
            for got, right in zip(grads, want[1 : 1 + len(grads)], strict=True):
                assert got.shape == right.shape
                torch.testing.assert_close(got, right)


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (2, 6, 35)])
@pytest.mark.parametrize("how", ["save_on_cpu", "contiguous", "permuted"])
@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
def test_a_saved_tensor_may_come_back_in_another_order_in_memory(name, how, shape):
    layer = make_layer(name, 6, torch.float32, channel_dim=1)
    x, up = torch.randn(shape), torch.randn(shape)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1)  # channels last
    want = outcome(layer, x.contiguous(), up)
    unpack = {
        "contiguous": lambda t: t.contiguous(),
        "permuted": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    }
    hooks = save_on_cpu() if how == "save_on_cpu" else saved_tensors_hooks(lambda t: t, unpack[how])
    with hooks:
        got = outcome(layer, x, up)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# ---- parameters and buffers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["weight", "bias"])
@pytest.mark.parametrize("size", [1, 3, 4096])
@pytest.mark.parametrize("name", ["layer", "rms", "batch", "group", "instance", "power", "dyt", "derf"])
@pytest.mark.parametrize("training", [True, False])
def test_parameters_of_another_size_are_refused_before_anything_moves(name, size, which, training):
    layer = layer_of(name, 2048).train(training)
    if getattr(layer, which) is None:
        pytest.skip("has none")
    setattr(layer, which, nn.Parameter(torch.randn(size)))
    before = [b.clone() for b in layer.buffers()]
    with pytest.raises(ValueError, match=f"{which} has {size} values"):
        layer(torch.randn(2, 3, 2048))
    assert_same(list(layer.buffers()), before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
@pytest.mark.parametrize("name", EVERY)
def test_a_weight_that_is_no_floating_point_is_a_type_error(name, dtype):
    layer = layer_of(name)
    layer.weight = nn.Parameter(torch.ones(layer.weight.shape).to(dtype), requires_grad=False)
    with pytest.raises(TypeError, match=str(dtype)):
        layer(torch.randn(2, 3, WIDTH))


@pytest.mark.parametrize("name", EVERY)
def test_a_weight_of_eight_bits_runs_on_the_reference(name):
    """No kernel reads float8: the automatic choice computes by the formula, the explicit one is refused with the reason."""
    layer = layer_of(name)
    layer.requires_grad_(False)
    layer.weight = nn.Parameter(layer.weight.to(torch.float8_e4m3fn), requires_grad=False)
    x = torch.randn(2, 3, WIDTH)
    wide = copy.deepcopy(layer)
    wide.weight = nn.Parameter(layer.weight.float(), requires_grad=False)
    torch.testing.assert_close(copy.deepcopy(layer)(x), wide(x))
    with normlab.use_kernel("cpu"), pytest.raises(normlab.KernelUnavailable, match="float8"):
        layer(x)


@pytest.mark.parametrize("name", ["layer", "rms", "batch", "group", "instance", "power", "dyt", "derf"])
def test_parameters_of_two_dtypes_lose_nothing(name):
    """A float32 bias beside a bfloat16 weight was rounded to bfloat16."""
    layer = layer_of(name, **({"bias": True} if name == "rms" else {}))
    first = "alpha" if hasattr(layer, "alpha") else "weight"
    setattr(layer, first, nn.Parameter(getattr(layer, first).detach().bfloat16()))
    x, up = torch.randn(3, 5, WIDTH), torch.randn(3, 5, WIDTH)
    got = outcome(layer, x, up)
    with normlab.use_kernel("reference"):
        want = outcome(layer, x, up)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2 if a.dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [
    lambda n: setattr(n, "running_mean", n.running_mean.double()),
    lambda n: setattr(n, "running_var", n.running_var.bfloat16()),
    lambda n: n.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in n.state_dict().items()}, assign=True),
    lambda n: setattr(n, "running_mean", torch.zeros(WIDTH, 2)[:, 0]),
    lambda n: setattr(n, "running_var", torch.ones(3 * WIDTH)[::3]),
], ids=["mean float64", "variance bfloat16", "assigned", "strided mean", "strided variance"])  # fmt: skip
@pytest.mark.parametrize("name", ["batch", "instance"])
def test_running_statistics_of_any_dtype_and_stride_move_as_they_should(name, change):
    x = torch.randn(4, 5, WIDTH) * 3 + 2
    options = {"track_running_stats": True} if name == "instance" else {}
    plain = layer_of(name, **options)
    layer = copy.deepcopy(plain)
    change(layer)
    layer(x)
    plain(x)
    for key in ("running_mean", "running_var"):
        got = getattr(layer, key)
        torch.testing.assert_close(
            got.float(), getattr(plain, key), rtol=1e-2 if got.dtype is torch.bfloat16 else 1e-6, atol=1e-6
        )
    layer.eval()
    plain.eval()
    if not any(b.dtype is torch.bfloat16 for b in layer.buffers()):
        torch.testing.assert_close(layer(x).float(), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", ["running_mean", "running_var"])
@pytest.mark.parametrize("bad, match", [
    (lambda: torch.ones(1).expand(WIDTH), "expanded"),
    (lambda: torch.ones(3), "has 3 values"),
    (lambda: torch.ones(1), "has 1 values"),
    (lambda: torch.ones(WIDTH, dtype=torch.int64), "int64"),
])  # fmt: skip
def test_running_statistics_that_cannot_be_moved_are_refused_before_anything_moves(which, bad, match):
    layer = layer_of("batch")
    setattr(layer, which, bad())
    before = [b.clone() for b in layer.buffers()]
    with pytest.raises((ValueError, TypeError), match=match):
        layer(torch.randn(4, 5, WIDTH))
    assert_same(list(layer.buffers()), before)


# ---- tensors that are not what they look like ------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("masked", [False, True])
def test_the_negative_bit_is_read(name, masked):
    layer, x, up = layer_of(name), torch.randn(3, 5, WIDTH), torch.randn(3, 5, WIDTH)
    call = {"mask": torch.rand(3, 5) < 0.7} if masked else {}
    want = outcome(layer, x, up, **call)
    assert_same(outcome(layer, torch._neg_view(-x), up, **call), want)
    assert_same(outcome(layer, x, torch._neg_view(-up), **call), want)
    negated = copy.deepcopy(layer)
    for key, p in list(negated.named_parameters()):
        setattr(negated, key, nn.Parameter(torch._neg_view(-p.detach())))
    y = negated(x.requires_grad_(), **call)
    assert_same(
        [y.detach(), *torch.autograd.grad(y, [x, *negated.parameters()], up)], want[: 2 + len(list(layer.parameters()))]
    )


def test_an_imaginary_part_of_a_conjugate_keeps_its_sign():
    z = torch.randn(6, 1, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    with normlab.use_kernel("reference"):
        want = functional.rms_norm(x, (1,)), functional.dyt(x, torch.ones(1)), functional.batch_norm(x, training=True)
    got = functional.rms_norm(x, (1,)), functional.dyt(x, torch.ones(1)), functional.batch_norm(x, training=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def shrunk(t, left):
    """t, whose storage was resized: to nothing, or to one byte less than it needs, so that the last value reaches beyond."""
    t.untyped_storage().resize_(left if left == 0 else t.untyped_storage().nbytes() - 1)
    return t


@pytest.mark.parametrize("left", [0, -1], ids=["nothing", "a byte less"])
@pytest.mark.parametrize("where", ["whole", "view"])
@pytest.mark.parametrize("name", EVERY)
def test_a_storage_that_was_resized_is_an_error(name, where, left):
    def gone(*shape):
        return shrunk(torch.randn(*shape[:-1], shape[-1] + 1)[..., 1:] if where == "view" else torch.randn(shape), left)

    refused = pytest.raises(RuntimeError, match=r"no memory|for storage of size|of a storage that has")
    layer, x = layer_of(name), torch.randn(3, 5, WIDTH)
    with refused:
        layer(gone(3, 5, WIDTH))
    for key, p in list(layer.named_parameters()):
        own = copy.deepcopy(layer)
        setattr(own, key, nn.Parameter(gone(*p.shape)))
        with refused:
            own(x)
    for key, b in list(layer.named_buffers()):
        if b.dim() == 1:
            own = copy.deepcopy(layer)
            setattr(own, key, gone(*b.shape))
            others = {k: t.clone() for k, t in own.named_buffers() if k != key}
            with refused:
                own(x)
            assert all(torch.equal(t, others[k]) for k, t in own.named_buffers() if k != key)
    mask = torch.ones(3, 6, dtype=torch.bool)[:, 1:] if where == "view" else torch.ones(3, 5, dtype=torch.bool)
    with refused:
        layer(x, mask=shrunk(mask, left))


@pytest.mark.parametrize("name", EVERY)
def test_a_storage_resized_between_forward_and_backward_is_an_error(name):
    layer, x = layer_of(name), torch.randn(3, 5, WIDTH, requires_grad=True)
    y = layer(x)
    shrunk(x, -1)
    with pytest.raises(RuntimeError, match="of a storage that has"):
        y.backward(torch.randn_like(y))


@pytest.mark.parametrize("again", [False, True], ids=["gradient", "second derivative"])
@pytest.mark.parametrize("name", [*EVERY, "residual"])
def test_a_mask_that_comes_back_in_another_shape_is_refused(name, again):
    """As many values, other positions: taken by their number alone, gradients were wrong by any amount."""
    layer = normlab.ResidualNorm(WIDTH) if name == "residual" else layer_of(name)
    if again and name == "power":
        pytest.skip("no second derivative")
    x, mask = torch.randn(3, 5, WIDTH, requires_grad=True), torch.rand(3, 5) < 0.6
    inputs = (x, torch.randn(3, 5, WIDTH)) if name == "residual" else (x,)
    with saved_tensors_hooks(lambda t: t, lambda t: t.view(5, 3) if t.shape == mask.shape else t):
        y = layer(*inputs, mask=mask)
    with pytest.raises(RuntimeError, match=r"mask.*changed between forward and backward"):
        torch.autograd.grad(y, x, torch.randn_like(y), create_graph=again)


@pytest.mark.parametrize("name", EVERY)
def test_zeros_without_memory_are_zeros(name):
    layer, up = layer_of(name), torch.randn(3, 5, WIDTH)
    zeros = torch._efficientzerotensor(3, 5, WIDTH)
    assert_same(outcome(layer, zeros, up), outcome(layer, torch.zeros(3, 5, WIDTH), up))


@pytest.mark.parametrize("name", EVERY)
def test_tensors_of_other_classes_count(name):
    layer, x = layer_of(name), torch.randn(3, 5, WIDTH)
    mask = torch.rand(3, 5) < 0.7
    layer.requires_grad_(False)
    want, masked = copy.deepcopy(layer)(x), copy.deepcopy(layer)(x, mask=mask)
    assert not torch.equal(want, masked)
    assert torch.equal(copy.deepcopy(layer)(x, mask=Wrapped(mask)), masked)
    assert torch.equal(copy.deepcopy(layer)(Wrapped(x)), want)
    for key, p in list(layer.named_parameters()):
        own = copy.deepcopy(layer)
        delattr(own, key)
        setattr(own, key, Wrapped(p.detach()))
        assert torch.equal(own(x), want), key

    class Named(torch.Tensor):
        """With memory: only the name is another."""

    assert torch.equal(copy.deepcopy(layer)(x.as_subclass(Named)).as_subclass(torch.Tensor), want)


def test_a_mask_over_bytes_of_any_value():
    layer, x = layer_of("batch"), torch.randn(3, 5, WIDTH)
    mask = torch.tensor([0, 2, 255, 1, 0] * 3, dtype=torch.uint8).view(torch.bool).view(3, 5)
    plain = torch.tensor([False, True, True, True, False]).expand(3, 5)
    for name in ("layer", "dyt", "group"):
        layer = layer_of(name)
        assert torch.equal(layer(x, mask=mask), layer(x, mask=plain))


@pytest.mark.parametrize(
    "shape, channel_dim", [((0, 2, WIDTH, 2), 2), ((0, WIDTH, 3), 1), ((0, 3, WIDTH), -1), ((3, 0, WIDTH), -1)]
)
@pytest.mark.parametrize("make", [
    lambda c: normlab.PowerNorm(WIDTH, running=False, channel_dim=c), lambda c: normlab.PowerNorm(WIDTH, channel_dim=c),
    lambda c: normlab.BatchNorm(WIDTH, channel_dim=c), lambda c: normlab.InstanceNorm(WIDTH, affine=True, channel_dim=c),
    lambda c: normlab.GroupNorm(4, WIDTH, channel_dim=c),
], ids=["power of a batch", "power", "batch", "instance", "group"])  # fmt: skip
def test_of_nothing_comes_nothing_in_both_directions(make, shape, channel_dim):
    layer, x = make(channel_dim), torch.randn(shape, requires_grad=True)
    y = layer(x)
    y.backward(torch.randn_like(y))
    assert y.shape == x.grad.shape == shape
    assert all(not p.grad.any() for p in layer.parameters())


# ---- recomputed forwards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: normlab.BatchNorm(4, momentum=None),
    lambda: normlab.InstanceNorm(4, track_running_stats=True),
    lambda: normlab.InstanceNorm(4, track_running_stats=True, momentum=None, affine=True),
    lambda: normlab.BatchNorm(4, ghost_size=2),
    lambda: normlab.BatchNorm(4, causal="position"),
], ids=["plain average", "instance", "instance plain average", "ghost", "causal"])  # fmt: skip
@pytest.mark.parametrize("odd", [False, True], ids=["dense", "buffers of two dtypes"])
def test_a_checkpointed_layer_with_running_statistics(make, odd):
    """Recomputing saves as many tensors as the forward did, and moves nothing a second time."""
    layer = make()
    if odd:
        layer.running_mean = layer.running_mean.double()
    plain = copy.deepcopy(layer)
    x = torch.randn(4, 3, 4, requires_grad=True)
    up = torch.randn(4, 3, 4)
    y = checkpoint(layer, x, use_reentrant=False)
    (got,) = torch.autograd.grad(y, x, up)
    (want,) = torch.autograd.grad(plain(x), x, up)
    assert torch.equal(got, want)
    assert_same(list(layer.buffers()), list(plain.buffers()))


# ---- what twenty minutes of the fuzz found ---------------------------------------------------------------------------


class Named(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.parametrize("which", ["weight", "bias", "running_mean", "running_var"])
@pytest.mark.parametrize(
    "options", [{"renorm": (3.0, 5.0)}, {"frozen": True}, {"ghost_size": 3}], ids=["renorm", "frozen", "ghost"]
)
def test_batch_norms_variants_refuse_a_storage_of_no_bytes(options, which):
    layer = normlab.BatchNorm(WIDTH, **options)
    getattr(layer, which).data.untyped_storage().resize_(0)
    x = torch.randn(6, 5, WIDTH).as_subclass(
        Named
    )  # the registered ops serve this class, by torch's operators in between
    with pytest.raises(RuntimeError, match="no memory"):
        layer(x)


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_batch_renormalization_broadcasts_no_parameter(which):
    layer = normlab.BatchNorm(WIDTH, renorm=(3.0, 5.0))
    before = layer.running_mean.clone()
    setattr(layer, which, nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match=f"{which} has 1 values"):
        layer(torch.randn(6, 5, WIDTH))
    assert torch.equal(layer.running_mean, before)


@pytest.mark.parametrize("options", [{}, {"renorm": (3.0, 5.0)}, {"ghost_size": 3}, {"causal": "running"}], ids=str)
def test_a_mask_made_in_inference_mode_is_a_mask(options):
    x, up = torch.randn(6, 5, WIDTH), torch.randn(6, 5, WIDTH)
    mask = torch.rand(6, 5) < 0.6
    with torch.inference_mode():
        other = mask.clone()
    layer = normlab.BatchNorm(WIDTH, **options)
    assert_same(outcome(layer, x, up, mask=other), outcome(layer, x, up, mask=mask))


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_the_bias_of_a_gain_of_another_class_gets_its_gradient(name):
    layer = normlab.make_norm(name, WIDTH, bias=True)
    x, up = torch.randn(7, WIDTH, requires_grad=True), torch.randn(7, WIDTH)
    want = torch.autograd.grad(layer(x), [x, layer.bias], up)
    del layer.weight
    layer.weight = torch.ones(WIDTH).as_subclass(Named)
    assert_same(torch.autograd.grad(layer(x), [x, layer.bias], up), want)


@pytest.mark.parametrize("name", ["batch", "instance", "group"])
def test_registered_ops_take_no_statistics_of_fewer_bits(name):
    layer = layer_of(name)
    x, up = torch.randn(6, 5, WIDTH, requires_grad=True), torch.randn(6, 5, WIDTH)
    with saved_tensors_hooks(lambda t: t, lambda t: t.half() if t.dtype == torch.float64 and t.shape[-1] > 1 else t):
        y = layer(x.as_subclass(Named))
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        torch.autograd.grad(y, x, up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("again", [False, True], ids=["gradient of another class", "second derivative"])
def test_formulas_take_no_given_statistics_of_fewer_bits(dtype, again):
    """Found by the fuzz: frozen statistics are a saved tensor, and what the kernels do not compute the formula does."""
    layer = normlab.BatchNorm(WIDTH, channel_dim=-1, frozen=True)
    layer.running_mean.normal_()
    x, up = torch.randn(6, 5, WIDTH, requires_grad=True), torch.randn(6, 5, WIDTH)
    with saved_tensors_hooks(lambda t: t, lambda t: t.to(dtype) if t.dtype == torch.float64 and t.numel() > 1 else t):
        y = layer(x)
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        torch.autograd.grad(y, layer.weight, up if again else up.as_subclass(Named), create_graph=again)


def test_a_second_derivative_takes_no_parameter_of_another_size():
    x, weight = torch.randn(4, WIDTH, requires_grad=True), torch.randn(WIDTH, requires_grad=True)
    with saved_tensors_hooks(lambda t: t, lambda t: t.flatten()[:1] if t.shape == (WIDTH,) else t):
        y = functional.layer_norm(x, (WIDTH,), weight)
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        torch.autograd.grad(y, x, torch.randn(4, WIDTH), create_graph=True)


@pytest.mark.parametrize("which", ["running_psi2", "nu"])
def test_power_norm_keeps_nothing_in_eight_bits(which):
    state = {"running_psi2": torch.ones(WIDTH), "nu": torch.zeros(WIDTH)}
    state[which] = state[which].to(torch.float8_e5m2)
    with pytest.raises(TypeError, match="float8"):
        functional.power_norm(torch.randn(9, WIDTH), state["running_psi2"], state["nu"], torch.tensor(0))


def test_running_statistics_of_another_class_in_evaluation():
    mean, var = torch.randn(WIDTH), torch.rand(WIDTH) + 0.5
    x, weight, bias = torch.randn(9, WIDTH), torch.randn(WIDTH, dtype=torch.float64), torch.randn(WIDTH)
    want = functional.batch_norm(x, mean, var, weight, bias)
    torch.testing.assert_close(functional.batch_norm(x, mean, Wrapped(var), weight, bias), want)


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_no_entry_takes_more_than_eight_arguments():
    entries = {name: getattr(EXTENSION, name).__doc__ for name in dir(EXTENSION) if "_" in name.strip("_")}
    assert {"row_forward", "residual_backward", "column_sums", "pointwise_backward"} <= set(entries)
    for name, signature in entries.items():
        assert len(re.findall(r"\barg\d*: ", signature)) <= 8, f"{name}: {signature}"


def test_a_tuple_of_numbers_is_no_tensor():
    """Older torch sends descriptions, tuples with an address; a user's tuple must never be taken for one."""
    x = torch.randn(3, 8)
    for forged in ((x.data_ptr(), 0, (8,), (1,)), (8, 0, (8,), (1,))):
        with pytest.raises(TypeError, match="weight must be a floating-point tensor, got tuple"):
            normlab.functional.layer_norm(x, (8,), forged)
        with pytest.raises((TypeError, AttributeError, ValueError)):
            normlab.functional.residual_norm(x, x, forged)


COLUMN = ColumnFacts(1e-5, offset_gain=False, centered=True, channel=1, groups=8, pooled=True)
ROW = RowFacts("layer", 1e-5, 8, 8)


@pytest.mark.skipif(not cpu.looks, reason="the extension cannot look into tensors of this torch")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "entry", ["row_backward", "column_backward", "residual_forward", "column_forward", "pointwise_forward"]
)
def test_tensors_that_come_together_come_all(entry, size):
    """A tuple of another length is refused before anything is read from it."""
    x, w, kept = torch.randn(3, 8), torch.ones(8), torch.empty(17, dtype=torch.float64)
    together = (torch.empty_like(x),) * size
    residual = ResidualFacts("layer", 1e-5, 8, False, False, 1.0, 0.0, 0)
    arguments = {
        "row_backward": (x, x, w, None, kept[:6], together, ROW, 1),
        "column_backward": (x, x, w, None, kept, together, COLUMN, 1),
        "residual_forward": (x, x, w, None, None, together, residual, 1),
        "column_forward": (x, w, None, None, None, (*together, kept), COLUMN, 1),
        "pointwise_forward": (x, (w[:1],) * (size + 1), None, torch.empty_like(x), "tanh", 1),
    }[entry]
    with pytest.raises(TypeError, match="must be a tuple of"):
        getattr(EXTENSION, entry)(*arguments)


@pytest.mark.skipif(not cpu.looks, reason="the extension cannot look into tensors of this torch")
@pytest.mark.parametrize("shape", [(2, 8), (6, 8), (0, 8), (3, 8, 1), (24,), (3, 9)])
def test_what_goes_with_x_has_its_shape(shape):
    """autograd complains of another shape as well, but after the kernel has read and written."""
    x, w, other = torch.randn(3, 8), torch.ones(8), torch.randn(shape)
    kept = torch.zeros(6, dtype=torch.float64)
    dx, dw, db = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
    residual = ResidualFacts("layer", 1e-5, 8, False, False, 1.0, 0.0, 0)
    EXTENSION.row_backward(x, x, w, None, kept, (dx, dw, db), ROW, 1)
    for arguments in ((other, x, w, None, kept, (dx, dw, db)), (x, x, w, None, kept, (other, dw, db))):
        with pytest.raises(cpu.Unfit, match="another shape"):
            EXTENSION.row_backward(*arguments, ROW, 1)
    for arguments in (
        (x, other, w, None, None, (x, x, kept)),
        (x, x, w, None, None, (other, x, kept)),
        (x, x, w, None, None, (x, other, kept)),
    ):
        with pytest.raises(cpu.Unfit, match="another shape"):
            EXTENSION.residual_forward(*arguments, residual, 1)
    with pytest.raises(cpu.Unfit, match="another shape"):
        EXTENSION.pointwise_forward(x, (w[:1], None, None, None), None, other, "tanh", 1)


@pytest.mark.skipif(not cpu.looks, reason="the extension cannot look into tensors of this torch")
def test_the_extension_looks_into_plain_tensors_alone():
    """What lies in the memory of a subclass is that class's business, and of another object nothing is known."""

    class Named(torch.Tensor):
        pass

    x, kept = torch.randn(5, 8), torch.zeros(17, dtype=torch.float64)
    for other in (x.as_subclass(Named), Wrapped(x), object(), "x", [[1.0] * 8] * 5):
        with pytest.raises(cpu.Unfit, match="not a plain tensor"):
            EXTENSION.column_moments(other, None, kept, COLUMN, 1)
    assert not kept.any()


@pytest.mark.skipif(not cpu.looks, reason="the extension cannot look into tensors of this torch")
def test_statistics_must_fit_in_every_half_of_a_backward():
    x, w = torch.randn(5, 8), torch.ones(8)
    kept = torch.zeros(17, dtype=torch.float64)
    sums, coefficients = torch.empty(2, 8, dtype=torch.float64), torch.zeros(3, 8, dtype=torch.float64)
    EXTENSION.column_moments(x, None, kept, COLUMN, 1)
    torch.testing.assert_close(kept[:8], x.double().mean(0))
    EXTENSION.column_sums(x, x, w, None, kept, sums, COLUMN, 1)
    torch.testing.assert_close(sums[0], x.double().sum(0), rtol=1e-5, atol=1e-5)
    for bad in (kept[:16], kept.float(), bytes(16 * 8), None, torch.zeros(34, dtype=torch.float64)[::2]):
        for run in (
            lambda k: EXTENSION.column_sums(x, x, w, None, k, sums, COLUMN, 1),
            lambda k: EXTENSION.column_combine(x, x, None, k, coefficients, torch.empty_like(x), COLUMN, 1),
            lambda k: EXTENSION.column_apply(x, w, None, None, k, torch.empty_like(x), COLUMN, 1),
            lambda k: EXTENSION.column_apply_backward(x, x, w, None, k, (torch.empty_like(x), None, None), COLUMN, 1),
        ):
            with pytest.raises(cpu.Unfit):
                run(bad)
    for bad in (sums[:1], sums.float(), torch.empty(2, 7, dtype=torch.float64)):
        with pytest.raises(cpu.Unfit):
            EXTENSION.column_sums(x, x, w, None, kept, bad, COLUMN, 1)
        with pytest.raises(cpu.Unfit):
            EXTENSION.column_combine(x, x, None, kept, bad, torch.empty_like(x), COLUMN, 1)
    for weight in (w[:7], torch.ones(8, 2)[:, 0], w.long()):
        with pytest.raises(cpu.Unfit):
            EXTENSION.column_sums(x, x, weight, None, kept, sums, COLUMN, 1)
    with pytest.raises(TypeError):
        EXTENSION.column_moments(x, None, None, COLUMN, 1)
