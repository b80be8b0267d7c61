"""Devices without kernels of ours. There is no such device here: meta tensors prove route, shapes and dtypes, and the functions
themselves are plain torch, so that their numbers are compared on the CPU."""

import pytest
import torch
from contract import make_layer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normlab
from normlab import kernels
from normlab.kernels import devices, reference

WIDTH = 12


class Log(TorchDispatchMode):
    """Which operators ran, and every dtype they gave."""

    def __init__(self):
        super().__init__()
        self.ops, self.dtypes = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.ops.add(function.overloadpacket.__name__)
        for t in torch.utils._pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor):
                self.dtypes.add(t.dtype)
        return result


def traced(layer, x, **call):
    with Log() as log:
        y = layer(x, **call)
        y.sum().backward()
    return y, log


THEIRS = {
    "batch": "native_batch_norm",
    "instance": "native_group_norm",
    "group": "native_group_norm",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted(normlab.NORMS))
def test_no_norm_computes_in_float64_elsewhere(name, training, masked, dtype):
    with torch.device("meta"):
        layer = make_layer(name, WIDTH, dtype, **({"warmup_steps": 0} if name == "power" else {})).train(training)
        x = torch.empty(3, 5, WIDTH, dtype=dtype, requires_grad=True)
        call = {"mask": torch.ones(3, 5, dtype=torch.bool)} if masked else {}
    y, log = traced(layer, x, **call)
    assert y.shape == x.shape and y.dtype == dtype and y.device.type == "meta" and x.grad.shape == x.shape
    # update_running and PowerNorm's share are scalars and vectors of the statistics' own precision
    assert torch.float64 not in log.dtypes
    with normlab.use_kernel("reference"):
        _, exact = traced(layer, x, **call)
    assert torch.float64 in exact.dtypes, "float64 stays what the reference is asked for"


@pytest.mark.parametrize("name, op", THEIRS.items())
def test_torchs_own_kernels_where_the_formula_is_theirs(name, op):
    with torch.device("meta"):
        layer = make_layer(name, WIDTH, torch.float32)
        x = torch.empty(3, 5, WIDTH, requires_grad=True)
    _, log = traced(layer, x)
    assert op in log.ops or f"_{op}" in log.ops or f"{op}_legit" in log.ops or f"_{op}_legit" in log.ops, sorted(
        log.ops
    )


@pytest.mark.parametrize("channel_dim", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["batch", "instance", "group"])
@pytest.mark.parametrize("gain", ["direct", "offset"])
def test_column_norms_by_torch_are_ours(name, dtype, channel_dim, gain):
    layer = make_layer(name, WIDTH, dtype, channel_dim=channel_dim, gain=gain)
    x = torch.randn(3, 5, WIDTH, dtype=dtype)
    if channel_dim == 1:
        x = x.movedim(-1, 1).contiguous()
    channel = channel_dim % 3
    pooled, groups = name == "batch", getattr(layer, "num_groups", WIDTH)
    running = (torch.randn(WIDTH, dtype=dtype), torch.rand(WIDTH, dtype=dtype) + 1, 0.3) if pooled else None
    moved = None if running is None else (running[0].clone(), running[1].clone(), 0.3)
    y = devices.column_norm(x, layer.weight, layer.bias, eps=1e-5, groups=groups, pooled=pooled, channel=channel, gain=gain,
                            statistics=None, running=moved)  # fmt: skip
    want, mean, square, count = reference.column_norm(x, layer.weight, layer.bias, None, eps=1e-5, groups=groups, pooled=pooled,
                                                      channel_dim=channel, gain=gain)  # fmt: skip
    torch.testing.assert_close(y, want)
    if running is not None:
        normlab.functional.update_running(running[0], running[1], mean[0], square[0], count[0], 0.3)
        torch.testing.assert_close(moved[:2], running[:2])
        given = devices.column_norm(x, layer.weight, layer.bias, eps=1e-5, groups=groups, pooled=True, channel=channel, gain=gain,
                                    statistics=running[:2], running=None)  # fmt: skip
        exact = reference.column_norm(x, layer.weight, layer.bias, None, eps=1e-5, groups=groups, pooled=True,
                                      channel_dim=channel, gain=gain, statistics=running[:2])[0]  # fmt: skip
        torch.testing.assert_close(given, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [
    {"mode": "layer"}, {"mode": "rms"}, {"mode": "rms", "partial": 5}, {"mode": "scale"}, {"mode": "layer", "gain": "offset"},
    {"mode": "rms", "round_before_gain": True},
])  # fmt: skip
def test_row_norms_by_torch_are_ours(options, dtype):
    options = {"eps": 1e-5, "partial": WIDTH, **options}
    x, weight = torch.randn(3, 5, WIDTH).to(dtype), torch.randn(1 if options["mode"] == "scale" else WIDTH).to(dtype)
    bias = torch.randn(WIDTH).to(dtype) if options["mode"] == "layer" else None
    y, want = (f(x, weight, bias, None, **options) for f in (devices.row_norm, reference.row_norm))
    torch.testing.assert_close(
        y, want, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2 if dtype == torch.bfloat16 else 1e-5
    )
    assert y.dtype == dtype


def test_statistics_that_are_moved_after_their_use_elsewhere():
    """torch keeps what it was given for backward, and refuses it once it has moved."""
    layer = normlab.BatchNorm(WIDTH, causal="running", device="meta")
    layer(torch.randn(3, 5, WIDTH, device="meta", requires_grad=True)).sum().backward()
    assert layer.weight.grad.shape == (WIDTH,)


@pytest.mark.parametrize("make, shape", [
    (lambda device: normlab.InstanceNorm(WIDTH, device=device), (1, 1, WIDTH)),
    (lambda device: normlab.GroupNorm(WIDTH, WIDTH, device=device), (1, WIDTH)),
    (lambda device: normlab.GroupNorm(WIDTH, WIDTH, causal="position", device=device), (1, 1, WIDTH)),
])  # fmt: skip
def test_a_single_value_is_its_own_mean_elsewhere(make, shape):
    assert not make("cpu")(torch.randn(shape)).any()
    assert make("meta")(torch.randn(shape, device="meta")).shape == shape


def test_a_residual_elsewhere_has_both_results():
    norm = normlab.ResidualNorm(WIDTH, alpha=1.5, dropout=0.1, return_stream=True, device="meta")
    x = torch.empty(3, 5, WIDTH, device="meta")
    y, stream = norm(x, x)
    assert y.shape == stream.shape == x.shape and y.device.type == stream.device.type == "meta"


def test_the_choice_says_why():
    kernel, reason = kernels.choose("layer_norm", "cuda", torch.float32, (4, 8), "auto", None)
    assert kernel == "torch" and "cuda" in reason and "float32" in reason
    assert kernels.choose("layer_norm", "cuda", torch.float32, (4, 8), "reference", None)[0] == "reference"
    with pytest.raises(normlab.KernelUnavailable, match="cuda"):
        kernels.choose("layer_norm", "cuda", torch.float32, (4, 8), "cpu", None)


@pytest.mark.parametrize("ours, theirs", [(normlab.LayerNorm, nn.LayerNorm), (normlab.RMSNorm, nn.RMSNorm)])
def test_row_norms_run_the_operators_of_torchs_layer_and_no_others(ours, theirs):
    logs = [
        traced(layer(WIDTH, device="meta"), torch.empty(3, 5, WIDTH, device="meta", requires_grad=True))[1]
        for layer in (ours, theirs)
    ]
    assert logs[0].ops == logs[1].ops and logs[0].dtypes == logs[1].dtypes
