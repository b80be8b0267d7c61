"""The numerics table: largest error against float64, for normlab, torch and onnxruntime where it is installed.

Inputs are rounded to the dtype first, so that every contender sees the same numbers and the error is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import functional
from ..kernels import reference

WIDTH, ROWS = 1024, 64
MEANS = (0.0, 1e2, 1e4, 1e6)
SCALES = (1e-30, 1e-15, 1e-6, 1.0, 1e6, 1e15, 1e30)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table: an input, and the largest error of each contender (nan = it gave a non-finite answer)."""

    case: str
    norm: str
    errors: dict[str, float]


def _error(got: Tensor, want: Tensor) -> float:
    error = (got.double() - want).abs().max().item()
    return error if math.isfinite(error) else math.nan


def _onnx_session(norm: str, width: int) -> Any:
    """An onnxruntime session of one normalization node, or None where onnx or onnxruntime is not installed."""
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        from onnx import TensorProto, helper
    except ImportError:
        return None
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, width])
    ones = helper.make_tensor("w", TensorProto.FLOAT, [width], [1.0] * width)
    kind = {"layer": "LayerNormalization", "rms": "RMSNormalization"}[norm]
    node = helper.make_node(kind, ["x", "w"], ["y"], axis=-1, epsilon=1e-5)
    graph = helper.make_graph([node], "norm", [x], [y], [ones])
    opset = 17 if norm == "layer" else 23
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None


def _rows(norm: str, x: Tensor) -> Tensor:
    return reference.row_norm(x.double(), None, None, None, mode=norm, eps=1e-5, partial=x.shape[-1])


def forward_lines() -> list[Line]:
    lines = []
    sessions = {norm: _onnx_session(norm, WIDTH) for norm in ("layer", "rms")}
    torch_rows: dict[str, Callable[[Tensor], Tensor]] = {
        "layer": lambda x: F.layer_norm(x, (WIDTH,), eps=1e-5),
        "rms": lambda x: F.rms_norm(x, (WIDTH,), eps=1e-5),
    }
    our_rows: dict[str, Callable[[Tensor], Tensor]] = {
        "layer": lambda x: functional.layer_norm(x, (WIDTH,), eps=1e-5),
        "rms": lambda x: functional.rms_norm(x, (WIDTH,), eps=1e-5),
    }
    inputs = [(f"mean {m:.0e}, std 1" if m else "mean 0, std 1", m, 1.0) for m in MEANS] + [
        (f"mean 0, std {s:.0e}", 0.0, s) for s in SCALES if s != 1
    ]
    for case, mean, scale in inputs:
        torch.manual_seed(0)
        x = torch.randn(ROWS, WIDTH) * scale + mean
        for norm in ("layer", "rms"):
            want = _rows(norm, x)
            errors = {"normlab": _error(our_rows[norm](x), want), "torch": _error(torch_rows[norm](x), want)}
            if sessions[norm] is not None:
                errors["onnxruntime"] = _error(torch.from_numpy(sessions[norm].run(None, {"x": x.numpy()})[0]), want)
            lines.append(Line(case=case, norm=norm, errors=errors))
        columns = x.T.contiguous()  # (1024, 64): statistics over 1024 rows
        want = reference.column_norm(columns.double(), None, None, None, eps=1e-5, groups=ROWS, pooled=True)[0]
        got = functional.batch_norm(columns, training=True)
        theirs = F.batch_norm(columns, None, None, training=True, eps=1e-5)
        lines.append(
            Line(case=case, norm="batch", errors={"normlab": _error(got, want), "torch": _error(theirs, want)})
        )
    return lines


def gradient_lines() -> list[Line]:
    """bfloat16 gradients of gain and bias over 8192 rows: largest error relative to the largest exact value."""
    torch.manual_seed(0)
    x, grad = torch.randn(8192, 64).bfloat16(), (torch.rand(8192, 64) + 0.1).bfloat16()
    lines = []
    for norm in ("layer", "rms", "batch"):
        parameters = [torch.ones(64), torch.zeros(64)][: 1 if norm == "rms" else 2]

        def gradients(
            f: Callable[..., Tensor], dtype: torch.dtype, parameters: list[Tensor] = parameters
        ) -> list[Tensor]:
            leaves = [p.to(dtype).requires_grad_() for p in parameters]
            f(x.to(dtype), *leaves).backward(grad.to(dtype))
            return [leaf.grad.double() for leaf in leaves if leaf.grad is not None]

        forms: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
            "layer": (
                lambda x, w, b: functional.layer_norm(x, (64,), w, b),
                lambda x, w, b: F.layer_norm(x, (64,), w, b),
            ),
            "rms": (lambda x, w: functional.rms_norm(x, (64,), w, 1e-5), lambda x, w: F.rms_norm(x, (64,), w, 1e-5)),
            "batch": (
                lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
            ),
        }
        ours, theirs = forms[norm]
        exact = gradients(ours, torch.float64)
        for i, name in enumerate(("dweight", "dbias")[: len(exact)]):
            scale = exact[i].abs().max().item()
            lines.append(Line(case=f"bfloat16 {name}, 8192 rows, relative", norm=norm, errors={
                "normlab": _error(gradients(ours, torch.bfloat16)[i], exact[i]) / scale,
                "torch": _error(gradients(theirs, torch.bfloat16)[i], exact[i]) / scale,
            }))  # fmt: skip
    return lines


def table() -> list[Line]:
    return [*forward_lines(), *gradient_lines()]


def markdown(lines: list[Line], header: tuple[str, str] = ("input", "norm")) -> str:
    contenders = list(dict.fromkeys(name for line in lines for name in line.errors))
    rows = [f"| {header[0]} | {header[1]} | " + " | ".join(contenders) + " |", "|---|---|" + "---|" * len(contenders)]
    for line in lines:
        shown = [
            "-" if c not in line.errors else "not finite" if math.isnan(line.errors[c]) else f"{line.errors[c]:.1e}"
            for c in contenders
        ]
        rows.append(f"| {line.case} | {line.norm} | " + " | ".join(shown) + " |")
    return "\n".join(rows)
