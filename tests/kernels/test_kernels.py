"""Kernels against the float64 reference, over the table of norms x instruction sets x dtypes x masks x widths."""

import subprocess
import sys

import pytest
import torch
from contract import as_float64, assert_close, assert_outcomes_close, make_layer, run, straight_gradient
from hypothesis import given, settings
from hypothesis import strategies as st

import normlab
from normlab import functional
from normlab.kernels import choose, cpu, reference
from normlab.kernels.selection import OPS

pytestmark = pytest.mark.skipif(cpu.native is None, reason="no native kernels in this installation")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ROWWISE = ["layer", "rms", "scale", "dyt", "derf"]
NAN = float("nan")


def inputs(shape, dtype, masked):
    x, grad = torch.randn(shape).to(dtype) + 0.5, torch.randn(shape).to(dtype)
    if not masked:
        return x, grad, {}
    mask = torch.rand(shape[:-1]) > 0.4
    mask[0, 0] = mask[-1, -1] = True
    x[~mask], grad[~mask] = NAN, NAN
    return x, grad, {"mask": mask}


@pytest.mark.parametrize("width", [1, 31, 32, 33, 67, 4099])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", normlab.NORMS)
def test_agrees_with_float64(name, dtype, masked, width, isa):
    x, grad, call = inputs((3, 5, width), dtype, masked)
    layer = make_layer(name, width, dtype)
    want = run(as_float64(name, layer, width), x.double(), grad.double(), "reference", **call)
    straight = straight_gradient(name, layer, x, grad, call.get("mask"))
    assert_outcomes_close(run(layer, x, grad, **call), want, dtype, 15, straight)


@pytest.mark.parametrize("name", normlab.NORMS)
def test_ordinary_numbers_in_padding_do_not_count_either(name, isa):
    """NaN in padding sends a column to its second, exact pass, which would hide a first pass that reads wrong rows."""
    x, grad, call = inputs((3, 23, 33), torch.float32, True)
    pad = ~call["mask"]
    x[pad], grad[pad] = 50.0, 50.0
    layer = make_layer(name, 33, torch.float32)
    want = run(as_float64(name, layer, 33), x.double(), grad.double(), "reference", **call)
    straight = straight_gradient(name, layer, x, grad, call["mask"])
    assert_outcomes_close(run(layer, x, grad, **call), want, torch.float32, 69, straight)


@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["planes", "channels_last"])
def test_images_agree_with_float64(name, masked, dtype, layout, isa):
    x, grad = torch.randn(3, 6, 5, 7).to(dtype) + 0.5, torch.randn(3, 6, 5, 7).to(dtype)
    call = {}
    if masked:
        call["mask"] = torch.rand(3, 5, 7) > 0.4
        pad = ~call["mask"].unsqueeze(1).expand_as(x)
        x[pad], grad[pad] = NAN, NAN
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    layer = make_layer(name, 6, dtype, channel_dim=1)
    want = run(as_float64(name, layer, 6, channel_dim=1), x.double(), grad.double(), "reference", **call)
    got = run(layer, x, grad, **call)
    assert_outcomes_close(
        got, want, dtype, 105, straight_gradient(name, layer, x, grad, call.get("mask"), channel_dim=1)
    )
    assert got.y.is_contiguous(memory_format=torch.channels_last) == (layout == "channels_last")


@pytest.mark.parametrize("rows", [0, 1, 65, 4111])
@pytest.mark.parametrize("name", normlab.NORMS)
def test_many_rows_and_none(name, rows, isa):
    x, grad = torch.randn(rows, 2, 37), torch.randn(rows, 2, 37)
    layer = make_layer(name, 37, torch.float32)
    want = run(as_float64(name, layer, 37), x.double(), grad.double(), "reference")
    got = run(layer, x, grad)
    if rows == 0:
        assert got.y.shape == x.shape
        for gradient in got.parameters.values():
            assert (gradient == 0).all()
    else:
        assert_outcomes_close(got, want, torch.float32, 2 * rows, straight_gradient(name, layer, x, grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", normlab.NORMS)
def test_same_bits_for_one_and_two_threads(name, masked, dtype, isa, threads):
    x, grad, call = inputs((7, 61, 259), dtype, masked)
    outcomes = []
    for n in (1, 2):
        threads(n)
        layer = make_layer(name, 259, dtype)
        with torch.no_grad():
            for i, p in enumerate(layer.parameters()):
                p.copy_(torch.linspace(-1, 2 + i, p.numel()).view(p.shape))
        outcomes.append(run(layer, x, grad, **call))
    one, two = outcomes
    assert torch.equal(one.y, two.y) and torch.equal(one.dx, two.dx)
    for name_, value in one.parameters.items():
        assert torch.equal(value, two.parameters[name_]), name_
    for name_, value in one.buffers.items():
        assert torch.equal(value, two.buffers[name_]), name_


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*ROWWISE, "instance", "group"])
def test_a_sample_does_not_depend_on_its_batch(name, dtype, isa):
    x, grad, _ = inputs((211, 3, 67), dtype, False)
    layer = make_layer(name, 67, dtype)
    whole = run(layer, x, grad)
    for i in (0, 97, 210):
        alone = run(layer, x[i : i + 1], grad[i : i + 1])
        assert torch.equal(alone.y[0], whole.y[i]) and torch.equal(alone.dx[0], whole.dx[i])


@pytest.mark.parametrize("name", ROWWISE)
def test_rows_of_any_kind_side_by_side(name, isa):
    """Short rows are computed in groups; a row that needs float64 or a second pass must not touch its neighbours."""
    x, grad, _ = inputs((23, 67), torch.float32, False)
    x *= torch.tensor([1, 1e30, 1, 1, 1e-30, 1e-30, 1])[torch.arange(23) % 7].unsqueeze(1)
    x[5] += 1e6
    x[9, :32] = 40.0  # its first values say nothing about its mean
    x[14] = 0.0
    x[17, 3] = NAN
    layer = make_layer(name, 67, torch.float32)
    whole = run(layer, x, grad)
    for i in range(23):
        alone = run(layer, x[i : i + 1], grad[i : i + 1])
        for one, all_ in ((alone.y[0], whole.y[i]), (alone.dx[0], whole.dx[i])):
            torch.testing.assert_close(one, all_, rtol=0, atol=0, equal_nan=True)
    assert whole.y[17].isnan().any() and not torch.cat([whole.y[:17], whole.y[18:]]).isnan().any()


@pytest.mark.parametrize("name", normlab.NORMS)
def test_nan_spoils_only_its_own_statistic(name, isa):
    x, grad, _ = inputs((5, 7, 36), torch.float32, False)
    layer = make_layer(name, 36, torch.float32)
    clean = run(layer, x, grad)
    x[2, 3, 5] = NAN
    got = run(layer, x, grad)
    labels = normlab.functional.statistic_labels(name, x.shape, num_groups=4)
    own = labels == labels[2, 3, 5]
    assert torch.isnan(got.y[2, 3, 5]) and torch.isnan(got.dx[2, 3, 5])
    assert torch.equal(got.y[~own], clean.y[~own]) and torch.equal(got.dx[~own], clean.dx[~own])


@pytest.mark.parametrize("name", ["layer", "batch", "instance", "group"])
@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_large_mean_costs_nothing(name, mean, isa):
    x, grad = torch.randn(4, 257, 129) + mean, torch.randn(4, 257, 129)
    layer = make_layer(name, 129, torch.float32)
    want = run(as_float64(name, layer, 129), x.double(), grad.double(), "reference")
    assert_outcomes_close(run(layer, x, grad), want, torch.float32, 1028, straight_gradient(name, layer, x, grad))


def test_layer_norm_at_mean_1e4_within_two_millionths(isa):
    x = torch.randn(512, 1024) + 1e4
    want = reference.row_norm(x.double(), None, None, None, mode="layer", eps=1e-5, partial=1024)
    assert (functional.layer_norm(x, (1024,)).double() - want).abs().max() <= 2e-6


@pytest.mark.parametrize("name", ["layer", "rms", "scale", "batch", "instance", "group", "power"])
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-15, 1e15, 1e30, 1e37])
def test_any_scale(name, scale, isa):
    x, grad = torch.randn(3, 19, 67) * scale, torch.randn(3, 19, 67)
    layer = make_layer(name, 67, torch.float32)
    layer.eps = 0.0 if scale < 1 else layer.eps  # without eps tiny values must come out at full size
    want = run(as_float64(name, layer, 67), x.double(), grad.double(), "reference") if scale >= 1 else None
    if want is None:
        exact = as_float64(name, layer, 67)
        exact.eps = 0.0
        want = run(exact, x.double(), grad.double(), "reference")
    got = run(layer, x, grad)
    assert_close("y", got.y, want.y, torch.float32)
    if 1e-30 <= scale <= 1e30:  # beyond, the gradient itself leaves float32
        assert_close("dx", got.dx, want.dx, torch.float32, terms=straight_gradient(name, layer, x, grad))


def test_outlier_features_do_not_hurt(isa):
    """One feature a thousand times the others, first, in the middle, last: the shift must not be fooled."""
    for at in (0, 1, 500, 1023):
        x = torch.randn(16, 1024) + 3
        x[:, at] += 3000
        want = reference.row_norm(x.double(), None, None, None, mode="layer", eps=1e-5, partial=1024)
        assert_close("y", functional.layer_norm(x, (1024,)), want, torch.float32)
        rows = x.T.contiguous()
        want = reference.column_norm(rows.double(), None, None, None, eps=1e-5, groups=16, pooled=True)[0]
        assert_close("batch", functional.batch_norm(rows, training=True), want, torch.float32)


def test_a_first_block_unlike_the_rest_does_not_hurt(isa):
    """The shift is taken from the first values; here they lie a thousand deviations from the mean."""
    x = torch.randn(3, 65537)
    x[:, :64] += 1000
    want = reference.row_norm(x.double(), None, None, None, mode="layer", eps=1e-5, partial=65537)
    assert_close("y", functional.layer_norm(x, (65537,)), want, torch.float32)


def test_scale_norm_below_eps_is_a_plain_division(isa):
    """|x| < eps is clamped: the length is a constant there and takes no part in the gradient."""
    x, grad = torch.randn(5, 67) * 1e-8, torch.randn(5, 67)
    layer = make_layer("scale", 67, torch.float32)
    got = run(layer, x, grad)
    torch.testing.assert_close(got.y, layer.weight.detach() * x / layer.eps)
    torch.testing.assert_close(got.dx, layer.weight.detach() * grad / layer.eps)


def test_sixteen_bit_gradients_are_summed_in_more(isa):
    x, grad = torch.randn(8192, 64).bfloat16(), torch.full((8192, 64), 0.4976).bfloat16()
    layer = normlab.LayerNorm(64, dtype=torch.bfloat16)
    layer(x.requires_grad_()).backward(grad)
    exact = grad.double().sum(0)
    assert ((layer.bias.grad.double() - exact).abs() <= 2.0**-9 * exact * 1.001).all()


def test_rows_may_be_strided(isa):
    base = torch.randn(6, 5, 100)
    layer = make_layer("layer", 67, torch.float32)
    for view in (base[..., :67], base[:, 1:4, 33:], base[::2, ..., :67], base.transpose(0, 1)[..., 7:74]):
        grad = torch.randn(view.shape)
        dense = run(layer, view.contiguous(), grad)
        x = view.detach().requires_grad_()
        y = layer(x)
        assert torch.equal(y, dense.y)
        assert torch.equal(torch.autograd.grad(y, x, grad)[0], dense.dx)


def test_large_outputs_written_past_the_caches_are_the_same():
    """From 64 MiB on outputs are streamed; the bits must not change."""
    x, grad = torch.randn(4097, 4096), torch.randn(4097, 4096)
    for name in ("layer", "rms", "dyt"):
        layer = make_layer(name, 4096, torch.float32)
        whole, part = run(layer, x, grad), run(layer, x[-9:], grad[-9:])
        assert torch.equal(whole.y[-9:], part.y) and torch.equal(whole.dx[-9:], part.dx)
    layer = make_layer("group", 4096, torch.float32)
    big, some = x[:4096].view(8, 512, 4096), grad[:4096].view(8, 512, 4096)
    whole, part = run(layer, big, some), run(layer, big[5:6], some[5:6])
    assert torch.equal(whole.y[5:6], part.y) and torch.equal(whole.dx[5:6], part.dx)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(normlab.NORMS)),
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 9),
    length=st.integers(2, 40),
    width=st.integers(1, 300),
    padded=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_shape(name, dtype, batch, length, width, padded, seed):
    torch.manual_seed(seed)
    x, grad, call = inputs((batch, length, width), dtype, padded)
    layer = make_layer(name, width, dtype)
    want = run(as_float64(name, layer, width), x.double(), grad.double(), "reference", **call)
    straight = straight_gradient(name, layer, x, grad, call.get("mask"))
    assert_outcomes_close(run(layer, x, grad, **call), want, dtype, batch * length, straight)


# ---- who computes ----------------------------------------------------------------------------------------------------


def test_choice_is_pure_and_explains_itself():
    assert choose("rms_norm", "cpu", torch.float32, (2, 3), "auto", None) == ("cpu", "fused C++ kernel")
    assert choose("rms_norm", "cpu", torch.float32, (2, 3), "reference", None) == ("reference", "requested")
    kernel, reason = choose("rms_norm", "cuda", torch.float32, (2, 3), "auto", None)
    assert kernel == "torch" and "cuda" in reason
    kernel, reason = choose("rms_norm", "cpu", torch.float8_e5m2, (2, 3), "auto", None)
    assert kernel == "reference" and "float8" in reason


def test_choice_never_depends_on_the_number_of_rows():
    for op in OPS:
        choices = {choose(op, "cpu", torch.float32, (rows, 64), "auto", None) for rows in (0, 1, 7, 10**9)}
        assert len(choices) == 1


def test_a_request_that_cannot_be_met_raises():
    with pytest.raises(normlab.KernelUnavailable, match="no C\\+\\+ compiler"):
        choose("layer_norm", "cpu", torch.float32, (1, 1), "cpu", "no C++ compiler was found")
    with pytest.raises(normlab.KernelUnavailable, match="meta"), normlab.use_kernel("cpu"):
        normlab.functional.layer_norm(torch.ones(2, 3, device="meta"), (3,))
    with pytest.raises(ValueError, match="Did you mean 'reference'"), normlab.use_kernel("refrence"):
        pass


def child(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_instruction_set_can_be_forced():
    code = "from normlab.kernels import cpu; print(cpu.native.isa())"
    assert child(code, NORMLAB_ISA="baseline").stdout.strip() == "baseline"
    wrong = child(code, NORMLAB_ISA="avx1024")
    assert wrong.returncode != 0 and "avx1024" in wrong.stderr


def test_without_native_kernels_everything_runs_on_the_reference():
    code = """
import sys
sys.modules["normlab.kernels._native"] = None
import torch, normlab
from normlab.kernels import cpu
assert cpu.native is None and "did not load" in cpu.missing, cpu.missing
for name, facts in normlab.NORMS.items():
    layer = facts.layer(*((2, 6) if name == "group" else (6,)))
    x = torch.randn(4, 3, 6, requires_grad=True)
    layer(x).sum().backward()
    assert torch.isfinite(x.grad).all(), name
from normlab.cli import main
main(["doctor", "--no-allocator"])
"""
    done = child(code)
    assert done.returncode == 0, done.stderr
    assert "NO: the extension did not load" in done.stdout and "reference" in done.stdout
    assert "no GPU has run them" in done.stdout


def test_the_mutation_drill_still_applies():
    """A mutation whose text is gone would pass for a survivor nobody looks at; `make mutation` runs them."""
    import mutation_drill

    stale = [m.name for m in mutation_drill.MUTATIONS if not mutation_drill.applicable(m)]
    assert stale == []
