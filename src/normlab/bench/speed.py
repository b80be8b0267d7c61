"""Speed on this machine: verify, then time, both sides interleaved in one run, as ratios and shares of the memory limit.

How sides are timed is in :mod:`timing`, whole training steps are in :mod:`steps`. "As users run it" means forward +
backward with fresh outputs; "kernel" means outputs allocated beforehand.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional, machine, norms
from ..kernels import cpu, reference
from ..kernels.facts import ColumnFacts, RowFacts, RowMode
from . import steps
from .timing import Goal, Row, Side, compare, geometric_mean, interleave

SHAPES = ((4, 32, 256), (8, 128, 256), (8, 512, 768), (8, 1024, 1024), (4, 2048, 4096))
QUICK_SHAPES = ((4, 32, 256), (8, 512, 768))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def training_step(module: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, parameters: list[nn.Parameter]) -> Side:
    x = x.detach().clone().requires_grad_()

    def step() -> None:
        y = module(x)
        y.backward(grad.view(y.shape))
        x.grad = None
        for p in parameters:
            p.grad = None

    return step


# ---- verification ----------------------------------------------------------------------------------------------------


def verify() -> list[tuple[str, str, float, float]]:
    """Forward and backward of every norm against the float64 reference: (norm, dtype, error, allowed).

    Errors are in units of the dtype's rounding step at the largest value.
    """
    found = []
    torch.manual_seed(0)
    for name, facts in norms.NORMS.items():
        for dtype_name, dtype in DTYPES.items():
            arguments: tuple[int, ...] = (4, 68) if name == "group" else (68,)
            layer = facts.layer(*arguments, dtype=dtype)
            for p in layer.parameters():
                nn.init.uniform_(p, 0.5, 1.5)
            x = torch.randn(3, 17, 68).to(dtype)
            grad = torch.randn(3, 17, 68).to(dtype)
            exact = facts.layer(*arguments, dtype=torch.float64)
            exact.load_state_dict(
                {k: v.double() if v.is_floating_point() else v for k, v in layer.state_dict().items()}
            )
            if name == "rms":
                exact.eps = functional.rms_eps(x, None)  # type: ignore[assignment]
            results = []
            for module, kernel, value, upstream in (
                (layer, "auto", x, grad),
                (exact, "reference", x.double(), grad.double()),
            ):
                value = value.clone().requires_grad_()
                with _kernel(kernel):
                    y = module(value)
                    y.backward(upstream)
                assert value.grad is not None
                results.append((y.detach().double(), value.grad.double()))
            ulp = torch.finfo(dtype).eps
            error = max(((a - b).abs().max() / b.abs().max()).item() / ulp for a, b in zip(*results, strict=True))
            found.append((name, dtype_name, error, 4.0 if dtype is torch.float32 else 0.75))
    return found


def _kernel(name: str) -> Any:
    from ..kernels import use_kernel

    return use_kernel(name)


# ---- what is compared ------------------------------------------------------------------------------------------------


def _randomized(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.normal_()
    return module


def _data(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def rows_against_torch(shape: tuple[int, ...], dtype_name: str, seconds: float, compiled: bool) -> Iterator[Row]:
    dtype = DTYPES[dtype_name]
    x, grad = _data(shape, dtype)
    for family, ours_type, torch_type in (
        ("RMSNorm", norms.RMSNorm, nn.RMSNorm),
        ("LayerNorm", norms.LayerNorm, nn.LayerNorm),
    ):
        ours = _randomized(ours_type(shape[-1], dtype=dtype))
        theirs = torch_type(shape[-1], dtype=dtype)
        theirs.load_state_dict(ours.state_dict())
        sides = {
            "ours": training_step(ours, x, grad, list(ours.parameters())),
            "torch": training_step(theirs, x, grad, list(theirs.parameters())),
        }
        if compiled:
            torch.compiler.reset()  # the recompile limit would otherwise fall back to eager without a word
            fast = torch.compile(theirs)
            sides["torch.compile"] = training_step(fast, x, grad, list(theirs.parameters()))
        yield compare(Row(family=family, case="layer, fwd+bwd", shape=shape, dtype=dtype_name), sides, seconds)


def batch_against_torch(shape: tuple[int, ...], dtype_name: str, seconds: float) -> Iterator[Row]:
    dtype = DTYPES[dtype_name]
    x, grad = _data(shape, dtype)
    d = shape[-1]
    ours = _randomized(norms.BatchNorm(d, dtype=dtype))
    flat, transposed = nn.BatchNorm1d(d, dtype=dtype), nn.BatchNorm1d(d, dtype=dtype)
    for other in (flat, transposed):
        other.load_state_dict(ours.state_dict())
    mask = torch.arange(shape[1])[None, :] < torch.linspace(shape[1] / 2, shape[1], shape[0])[:, None]
    sides = {
        "ours": training_step(ours, x, grad, list(ours.parameters())),
        "torch, flattened": training_step(lambda t: flat(t.view(-1, d)), x, grad, list(flat.parameters())),
        "torch, transposed": training_step(_transposed(transposed), x, grad, list(transposed.parameters())),
    }
    # Each by itself: beside a side that takes ten times as long there would be few rounds, and whether a call finds its
    # memory mapped is luck that only many rounds even out.
    for rival in ("torch, flattened", "torch, transposed"):
        row = Row(family="BatchNorm", case="layer, fwd+bwd", shape=shape, dtype=dtype_name)
        yield compare(row, {"ours": sides["ours"], rival: sides[rival]}, seconds)
    sides = {
        "ours": sides["ours"],
        "ours, masked": training_step(lambda t: ours(t, mask=mask), x, grad, list(ours.parameters())),
    }
    yield compare(Row(family="BatchNorm", case="masked, fwd+bwd", shape=shape, dtype=dtype_name), sides, seconds)


def _transposed(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x.transpose(1, 2)).transpose(1, 2)


def groups_against_torch(shape: tuple[int, ...], dtype_name: str, seconds: float) -> Iterator[Row]:
    dtype = DTYPES[dtype_name]
    x, grad = _data(shape, dtype)
    d = shape[-1]
    pairs: list[tuple[str, nn.Module, nn.Module]] = [
        ("GroupNorm", norms.GroupNorm(8, d, dtype=dtype), nn.GroupNorm(8, d, dtype=dtype)),
        (
            "InstanceNorm",
            norms.InstanceNorm(d, affine=True, dtype=dtype),
            nn.InstanceNorm1d(d, affine=True, dtype=dtype),
        ),
    ]
    for family, ours, theirs in pairs:
        _randomized(ours)
        theirs.load_state_dict(ours.state_dict())
        sides = {
            "ours": training_step(ours, x, grad, list(ours.parameters())),
            "torch, transposed": training_step(_transposed(theirs), x, grad, list(theirs.parameters())),
        }
        yield compare(Row(family=family, case="layer, fwd+bwd", shape=shape, dtype=dtype_name), sides, seconds)


def residual_fused(shape: tuple[int, ...], dtype_name: str, seconds: float) -> Iterator[Row]:
    """Fused against the same from our parts, in the two forms blocks use: stream out (Pre-LN), alpha (DeepNorm)."""
    dtype = DTYPES[dtype_name]
    x, grad = _data(shape, dtype)
    branch, grad_stream = _data(shape, dtype)
    d = shape[-1]
    for norm in ("layer", "rms"):
        for case, alpha, stream in (("stream out", 1.0, True), ("alpha", 2.0, False)):
            fused = _randomized(norms.ResidualNorm(d, norm=norm, alpha=alpha, return_stream=stream, dtype=dtype))
            plain = norms.NORMS[norm].layer(d, dtype=dtype)
            plain.load_state_dict(fused.state_dict())
            leaves = [x.clone().requires_grad_(), branch.clone().requires_grad_()]

            def finish(
                outputs: tuple[Tensor, ...], parameters: list[nn.Parameter], leaves: list[Tensor] = leaves
            ) -> None:
                torch.autograd.backward(outputs, [grad, grad_stream][: len(outputs)])
                for t in (*leaves, *parameters):
                    t.grad = None

            def run_fused(
                fused: nn.Module = fused, stream: bool = stream, finish: Any = finish, leaves: list[Tensor] = leaves
            ) -> None:
                out = fused(*leaves)
                finish(out if stream else (out,), list(fused.parameters()))

            def run_plain(
                plain: nn.Module = plain,
                alpha: float = alpha,
                stream: bool = stream,
                finish: Any = finish,
                leaves: list[Tensor] = leaves,
            ) -> None:
                total = leaves[0] + leaves[1] if alpha == 1 else torch.add(leaves[1], leaves[0], alpha=alpha)
                y = plain(total)
                finish((y, total) if stream else (y,), list(plain.parameters()))

            row = Row(family="ResidualNorm", case=f"{norm}, {case}", shape=shape, dtype=dtype_name)
            yield compare(row, {"ours": run_fused, "unfused": run_plain}, seconds)


def kernels_alone(shape: tuple[int, ...], dtype_name: str, seconds: float) -> Iterator[Row]:
    """Outputs allocated beforehand. The limit: a measured copy moves 2 tensors; LN and RMS move 5, BN moves 8."""
    dtype = DTYPES[dtype_name]
    x, grad = _data(shape, dtype)
    d = shape[-1]
    x, grad = x.view(-1, d), grad.view(-1, d)
    rows = x.shape[0]
    weight, bias = torch.randn(d).to(dtype), torch.randn(d).to(dtype)
    y, dx, dweight, dbias = torch.empty_like(x), torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    threads = torch.get_num_threads()
    kept = torch.empty(2 * rows, dtype=torch.float64)
    column_kept = torch.empty(2 * d + 1, dtype=torch.float64)
    column_facts = ColumnFacts(1e-5, False, centered=True, channel=1, groups=d, pooled=True)
    n = cpu.native

    def row_pair(mode: RowMode) -> None:
        facts = RowFacts(mode, 1e-5, d, d)
        statistics_, b, db = (kept, bias, dbias) if mode == "layer" else (kept[:rows], None, None)
        n.row_forward(x, weight, b, None, statistics_, y, facts, threads)
        n.row_backward(grad, x, weight, None, statistics_, (dx, dweight, db), facts, threads)

    def column_pair() -> None:
        n.column_forward(x, weight, bias, None, None, (y, column_kept), column_facts, threads)
        n.column_backward(grad, x, weight, None, column_kept, (dx, dweight, dbias), column_facts, threads)

    tgeometric_mean, t_rstd = torch.empty(rows, 1, dtype=dtype), torch.empty(rows, 1, dtype=dtype)
    forward, backward = torch.ops.aten.native_layer_norm.out, torch.ops.aten.native_layer_norm_backward.out

    def torch_pair() -> None:
        forward(x, [d], weight, bias, 1e-5, out0=y, out1=tgeometric_mean, out2=t_rstd)
        backward(
            grad, x, [d], tgeometric_mean, t_rstd, weight, bias, [True, True, True], out0=dx, out1=dweight, out2=dbias
        )

    sides: dict[str, Side] = {
        "copy": lambda: y.copy_(x),
        "LayerNorm": lambda: row_pair("layer"),
        "RMSNorm": lambda: row_pair("rms"),
        "BatchNorm": column_pair,
        "torch LayerNorm": torch_pair,
    }
    times = interleave(sides, seconds * 2, equal_calls=True)
    row = Row(family="kernels", case="outputs preallocated", shape=shape, dtype=dtype_name)
    row.sides = {name: min(t) for name, t in times.items()}
    for name, tensors in (("LayerNorm", 5), ("RMSNorm", 5), ("BatchNorm", 8), ("torch LayerNorm", 5)):
        row.share_of_limit[name] = statistics.median(
            c * tensors / 2 / t for c, t in zip(times["copy"], times[name], strict=True)
        )
    row.ratios = {"torch LayerNorm": statistics.median(
        a / b for a, b in zip(times["torch LayerNorm"], times["LayerNorm"], strict=True))}  # fmt: skip
    yield row


# ---- goals -----------------------------------------------------------------------------------------------------------


def goals(rows: list[Row]) -> list[Goal]:
    """The figures normlab sets out to reach, from what this run measured."""

    def ratios(family: str, rival: str, dtype: str | None = None) -> list[float]:
        return [r.ratios[rival] for r in rows if r.family == family and rival in r.ratios and dtype in (None, r.dtype)]

    found = []

    def goal(
        en: str, zh: str, values: list[float], target: float, pick: Callable[[list[float]], float], **more: Any
    ) -> None:
        if values:
            found.append(Goal(what=en, what_zh=zh, measured=pick(values), target=target, **more))

    def mean(en: str, zh: str, values: list[float], target: float) -> None:
        goal(f"{en}, geometric mean", f"{zh}，几何平均", values, target, geometric_mean)

    def slowest(en: str, zh: str, values: list[float], target: float) -> None:
        goal(f"{en}, slowest shape", f"{zh}，最慢的形状", values, target, min)

    for dtype, target in (("float32", 5.0), ("bfloat16", 8.0)):
        times = ratios("RMSNorm", "torch", dtype)
        mean(f"RMSNorm vs nn.RMSNorm, {dtype}", f"RMSNorm 对比 nn.RMSNorm，{dtype}", times, target)
    slowest("RMSNorm vs nn.RMSNorm", "RMSNorm 对比 nn.RMSNorm", ratios("RMSNorm", "torch"), 1.0)
    times = ratios("LayerNorm", "torch", "float32")
    slowest("LayerNorm vs nn.LayerNorm, float32", "LayerNorm 对比 nn.LayerNorm，float32", times, 0.95)
    times = ratios("LayerNorm", "torch", "bfloat16")
    mean("LayerNorm vs nn.LayerNorm, bfloat16", "LayerNorm 对比 nn.LayerNorm，bfloat16", times, 1.5)
    kernel_rows = [r for r in rows if r.family == "kernels"]
    times = [r.ratios["torch LayerNorm"] for r in kernel_rows if r.dtype == "bfloat16"]
    mean("LayerNorm kernel vs torch's, bfloat16", "LayerNorm 内核对比 torch 的内核，bfloat16", times, 2.0)
    for family in ("RMSNorm", "LayerNorm"):
        times = ratios(family, "torch.compile")
        mean(f"{family} vs torch.compile of torch's", f"{family} 对比经 torch.compile 编译的 torch 实现", times, 1.2)
    flat, flat_zh = "BatchNorm vs nn.BatchNorm1d flattened", "BatchNorm 对比展平后的 nn.BatchNorm1d"
    slowest(f"{flat}, float32", f"{flat_zh}，float32", ratios("BatchNorm", "torch, flattened", "float32"), 0.95)
    mean(f"{flat}, bfloat16", f"{flat_zh}，bfloat16", ratios("BatchNorm", "torch, flattened", "bfloat16"), 1.2)
    times = ratios("BatchNorm", "torch, transposed")
    mean("BatchNorm vs nn.BatchNorm1d transposed", "BatchNorm 对比转置后的 nn.BatchNorm1d", times, 8.0)
    times = ratios("BatchNorm", "ours, masked")
    goal(
        "BatchNorm masked / unmasked, worst shape",
        "BatchNorm 带掩码与不带掩码之比，最差的形状",
        times,
        1.2,
        max,
        at_most=True,
    )
    for family in ("GroupNorm", "InstanceNorm"):
        times = ratios(family, "torch, transposed")
        mean(f"{family} vs torch transposed", f"{family} 对比转置后的 torch 实现", times, 4.0)
    fused = [r.ratios["unfused"] for r in rows if r.family == "ResidualNorm" and r.shape in SHAPES[2:]]
    mean(
        "fused residual + norm vs unfused, three largest shapes",
        "残差与归一化融合对比不融合，最大的三种形状",
        fused,
        1.3,
    )
    for name in ("LayerNorm", "RMSNorm", "BatchNorm"):
        shares = [r.share_of_limit[name] * 100 for r in kernel_rows if r.shape in SHAPES[3:]]
        goal(f"{name} kernel, share of the copy limit, two largest shapes, lowest",
             f"{name} 内核达到内存拷贝极限的比例，最大的两种形状中的最低值", shares, 80.0, min, unit="%")  # fmt: skip
    return found


def accuracy() -> list[Goal]:
    """The figures of the table that are not about speed."""
    torch.manual_seed(0)
    x = torch.randn(8192, 64).bfloat16()
    grad = torch.ones(8192, 64).bfloat16() * 0.4976
    layer = norms.LayerNorm(64, dtype=torch.bfloat16)
    layer(x.requires_grad_()).backward(grad)
    exact = grad.double().sum(0)
    assert layer.bias is not None and layer.bias.grad is not None
    dbias = ((layer.bias.grad.double() - exact).abs() / exact).max().item()
    y = torch.randn(512, 1024) + 1e4
    error = (functional.layer_norm(y, (1024,)).double() - reference_rows(y)).abs().max().item()
    big = torch.randn(64, 1024) * 1e30
    error_big = (functional.layer_norm(big, (1024,)).double() - reference_rows(big)).abs().max().item()
    found = [
        (
            "bfloat16 LayerNorm dbias over 8192 rows, relative error",
            "bfloat16 LayerNorm 在 8192 行上的 dbias，相对误差",
            dbias,
            2**-8,
        ),
        ("float32 LayerNorm at mean 1e4, largest error", "float32 LayerNorm，均值 1e4，最大误差", error, 2e-6),
        ("float32 LayerNorm at scale 1e30, largest error", "float32 LayerNorm，尺度 1e30，最大误差", error_big, 2e-6),
    ]
    return [
        Goal(what=en, what_zh=zh, measured=measured, target=target, unit="", at_most=True)
        for en, zh, measured, target in found
    ]


def reference_rows(x: Tensor) -> Tensor:
    return reference.row_norm(x.double(), None, None, None, mode="layer", eps=1e-5, partial=x.shape[-1])


# ---- the run ---------------------------------------------------------------------------------------------------------


def run(
    quick: bool = False, seconds: float = 1.0, compiled: bool = True, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """All comparisons. Refuses to time what does not verify."""
    if cpu.native is None:
        raise RuntimeError(f"there are no native kernels to measure: {cpu.missing}")
    say = progress or (lambda text: None)
    say("verify")
    verified = verify()
    wrong = [v for v in verified if not v[2] <= v[3]]
    if wrong:
        raise RuntimeError(f"kernels disagree with the reference, nothing was timed: {wrong}")
    rows: list[Row] = []
    if quick:
        seconds, compiled = min(seconds, 0.3), False
    for shape in QUICK_SHAPES if quick else SHAPES:
        for dtype in DTYPES:
            say(f"{shape} {dtype}")
            rows += rows_against_torch(shape, dtype, seconds, compiled)
            rows += batch_against_torch(shape, dtype, seconds)
            rows += groups_against_torch(shape, dtype, seconds)
            rows += residual_fused(shape, dtype, seconds)
            rows += kernels_alone(shape, dtype, seconds)
    environment = machine.prepare_16_bit()
    for dtype in DTYPES:
        say(f"training step, {dtype}")
        rows += steps.training_steps(dtype, seconds, compiled, quick)
    return {
        "machine": {**machine.description(), "environment": environment},
        "quick": quick,
        "verified": verified,
        "rows": rows,
        "goals": [*goals(rows), *steps.goals(rows), *accuracy()],
    }


def write_json(result: dict[str, Any], path: Path) -> None:
    plain = {
        **result,
        "rows": [asdict(r) for r in result["rows"]],
        "goals": [{**asdict(g), "met": g.met} for g in result["goals"]],
    }
    path.write_text(json.dumps(plain, indent=1) + "\n")
