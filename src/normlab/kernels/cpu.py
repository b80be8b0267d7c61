"""The native kernels: torch tensors in, addresses and sizes across the boundary (tensors, for everyday row norms).

Callers have checked shapes and dtypes; this file allocates outputs and hands over. ``missing`` says why there are no
native kernels, or is None. NORMLAB_ISA (avx512bf16, avx512, avx2, baseline) forces an instruction set.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor, empty_like, get_num_threads

from . import pages

native: Any = None
missing: str | None = None
try:
    # torch was imported above, so its OpenMP runtime is the one _native finds: one thread pool for both.
    native = importlib.import_module("._native", __package__)
except ImportError as error:
    try:
        missing = importlib.import_module("._native_missing", __package__).reason  # a build that found no compiler
    except ImportError:
        missing = f"the extension did not load ({error})"
if native is not None and os.environ.get("NORMLAB_ISA"):
    native.use_isa(os.environ["NORMLAB_ISA"])
huge_pages = pages.choose(os.environ.get(pages.VARIABLE, "auto"), pages.setting("enabled"), pages.setting("defrag"))
if native is not None:
    native.use_huge_pages(huge_pages[0])

# May tensors themselves go to the thin functions? (Older torch has no table: then addresses and sizes go one by one.)
_table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
thin = native is not None and _table is not None and native.see_tensors(_table)

CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _parameter_code(weight: Tensor | None, bias: Tensor | None) -> int:
    return CODES[weight.dtype] if weight is not None else CODES[bias.dtype] if bias is not None else 0


# Statistics of a row norm, float64: [mean (rows) | 1/deviation (rows)] for layer, [1/deviation] for rms and scale. Where a
# caller gives a tensor they are written there; otherwise the kernel returns them as bytes, a tenth of a tensor's price.


def row_statistics(x: Tensor, mode: int) -> Tensor:
    rows = x.numel() // x.shape[-1]
    return torch.empty(2 * rows if mode == 0 else rows, dtype=torch.float64, device="cpu")


def as_rows(x: Tensor) -> tuple[Tensor, int]:
    """x itself and the step between its rows, or a dense copy where rows are not evenly spaced."""
    width = x.shape[-1]
    if x.is_contiguous():
        return x, width
    if x.stride(-1) == 1 or width == 1:
        step = x.stride(-2) if x.dim() > 1 else width
        even = step >= width and all(x.stride(d) == x.stride(d + 1) * x.shape[d + 1] for d in range(x.dim() - 2))
        if even:
            return x, step
    return x.contiguous(), width


def _fits_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, width: int, one_gain: bool) -> bool:
    """Can the kernels take x (floating point, on the CPU) and parameters that were not checked, as they are?"""
    return (
        x.dim() > 0
        and x.shape[-1] == width > 0
        and (
            weight is None or (weight.shape == (1 if one_gain else width,) and weight.is_cpu and weight.is_contiguous())
        )
        and (bias is None or (bias.shape == (width,) and bias.is_cpu and bias.is_contiguous()))
        and (weight is None or bias is None or weight.dtype is bias.dtype)
    )


def _fits_residual(x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, width: int) -> bool:
    same = isinstance(branch, Tensor) and x.shape == branch.shape and x.dtype == branch.dtype and branch.is_cpu
    return same and _fits_rows(x, weight, bias, width, False)


fits_rows, fits_residual = (native.fits_rows, native.fits_residual) if thin else (_fits_rows, _fits_residual)


def row_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, statistics: Tensor | None, mode: int,
    eps: float, partial: int, offset: bool, round_first: bool,
) -> tuple[Tensor, bytes | None]:  # fmt: skip
    """y and the statistics (None when a tensor was given for them)."""
    if thin and mask is None and statistics is None:
        y = empty_like(x)
        kept = native.thin_forward(x, None, weight, bias, y, None, mode, eps, partial, offset, round_first, 1.0, 0.0, 0,
                                   get_num_threads())  # fmt: skip
        if kept is not None:
            return y, kept
    width = step = x.shape[-1]
    if x.is_contiguous():
        y = empty_like(x)
    else:
        x, step = as_rows(x)
        y = x.new_empty(x.shape)
    parameters = bias if weight is None else weight
    kept = native.row_forward(
        x.numel() // width, width, step, partial, CODES[x.dtype], 0 if parameters is None else CODES[parameters.dtype],
        mode, eps, offset, round_first, get_num_threads(), 0 if mask is None else mask.data_ptr(),
        0 if weight is None else weight.data_ptr(), 0 if bias is None else bias.data_ptr(), x.data_ptr(),
        0 if statistics is None else statistics.data_ptr(), y.data_ptr(), 0, 0, 1.0, 0.0, 0,
    )  # fmt: skip
    return y, kept


def row_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor | bytes,
    dweight: Tensor | None, dbias: Tensor | None, mode: int, eps: float, partial: int, offset: bool, round_first: bool,
) -> Tensor:  # fmt: skip
    """dx; the gradients of the parameters are written into the tensors given for them."""
    if thin and mask is None and type(statistics) is bytes:
        dx = empty_like(grad)
        if native.thin_backward(x, weight, statistics, grad, None, dx, None, dweight, dbias, False, mode, eps, partial,
                                offset, round_first, 1.0, 0.0, 0, get_num_threads()):  # fmt: skip
            return dx
    _check_restored(x, grad)
    width = step = x.shape[-1]
    if not x.is_contiguous():
        x, step = as_rows(x)
    if not grad.is_contiguous():
        grad = grad.contiguous()
    dx = empty_like(grad)
    parameters = weight if weight is not None else dweight if dweight is not None else dbias
    native.row_backward(
        x.numel() // width, width, step, partial, CODES[x.dtype], 0 if parameters is None else CODES[parameters.dtype],
        mode, eps, offset, round_first, get_num_threads(), 0 if mask is None else mask.data_ptr(),
        0 if weight is None else weight.data_ptr(), x.data_ptr(), _kept(statistics), grad.data_ptr(), dx.data_ptr(),
        0 if dweight is None else dweight.data_ptr(), 0 if dbias is None else dbias.data_ptr(), False, 0, 0, 1.0, 0.0, 0,
    )  # fmt: skip
    return dx


def _check_restored(x: Tensor, grad: Tensor) -> None:
    """Backward goes by x's shape and dtype: what a hook on saved tensors hands back must be what was saved."""
    if x.dtype is not grad.dtype or x.shape != grad.shape or not (x.is_cpu and grad.is_cpu):
        raise RuntimeError(
            f"a saved tensor came back as {tuple(x.shape)} {x.dtype} on {x.device}, its gradient is {tuple(grad.shape)} {grad.dtype} "
            f"on {grad.device}; a hook on saved tensors must restore what it packed"
        )


def _kept(statistics: Tensor | bytes) -> int | bytes:
    return statistics if type(statistics) is bytes else statistics.data_ptr()  # type: ignore[union-attr]


def residual_forward(
    x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    statistics: Tensor | None, mode: int, eps: float, offset: bool, round_first: bool, alpha: float, drop: float,
    seed: int,
) -> tuple[Tensor, Tensor, bytes | None]:  # fmt: skip
    """y, the new stream, the statistics as in row_forward."""
    if thin and mask is None and statistics is None:
        y, stream = empty_like(x), empty_like(x)
        kept = native.thin_forward(x, branch, weight, bias, y, stream, mode, eps, 0, offset, round_first, alpha, drop, seed,
                                   get_num_threads())  # fmt: skip
        if kept is not None:
            return y, stream, kept
    width = x.shape[-1]
    x, step = as_rows(x)
    branch = branch.contiguous()
    y, stream = x.new_empty(x.shape), x.new_empty(x.shape)
    kept = native.row_forward(
        x.numel() // width, width, step, width, CODES[x.dtype], _parameter_code(weight, bias), mode, eps, offset,
        round_first, get_num_threads(), _address(mask), _address(weight), _address(bias), x.data_ptr(),
        _address(statistics), y.data_ptr(), branch.data_ptr(), stream.data_ptr(), alpha, drop, seed,
    )  # fmt: skip
    return y, stream, kept


def residual_backward(
    grad: Tensor, grad_stream: Tensor | None, stream: Tensor, weight: Tensor | None, mask: Tensor | None,
    statistics: Tensor | bytes, dweight: Tensor | None, dbias: Tensor | None, mode: int, eps: float, offset: bool,
    round_first: bool, alpha: float, drop: float, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dx and dbranch: one and the same tensor when alpha is 1 and nothing is dropped."""
    if thin and mask is None and type(statistics) is bytes:
        dx = empty_like(stream)
        other = None if alpha == 1 and drop == 0 else empty_like(stream)
        if native.thin_backward(stream, weight, statistics, grad, grad_stream, dx, other, dweight, dbias, True, mode, eps, 0,
                                offset, round_first, alpha, drop, seed, get_num_threads()):  # fmt: skip
            return dx, dx if other is None else other
    _check_restored(stream, grad)
    width = stream.shape[-1]
    grad = grad.contiguous()
    if grad_stream is not None:
        grad_stream = grad_stream.contiguous()
    dx = stream.new_empty(stream.shape)
    dbranch = dx if alpha == 1 and drop == 0 else stream.new_empty(stream.shape)
    native.row_backward(
        stream.numel() // width, width, width, width, CODES[stream.dtype],
        _parameter_code(dweight, dbias) if weight is None else CODES[weight.dtype], mode, eps, offset, round_first,
        get_num_threads(), _address(mask), _address(weight), stream.data_ptr(), _kept(statistics), grad.data_ptr(),
        dx.data_ptr(), _address(dweight), _address(dbias), True, _address(grad_stream),
        0 if dbranch is dx else dbranch.data_ptr(), alpha, drop, seed,
    )  # fmt: skip
    return dx, dbranch


# Statistics of a column norm, float64: [mean (sets * groups) | mean square (sets * groups) | count (sets)], a flat tensor or,
# as for rows, bytes. ``layout`` is (segments, rows, channels, groups, planes, pooled), as in csrc/kernels.h.


def column_statistics(layout: tuple[int, ...]) -> Tensor:
    segments, _, _, groups, _, pooled = layout
    return torch.empty((1 if pooled else segments) * (2 * groups + 1), dtype=torch.float64, device="cpu")


def split_statistics(statistics: Tensor, layout: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of mean (sets, groups), mean square (sets, groups) and count (sets)."""
    segments, _, _, groups, _, pooled = layout
    sets = 1 if pooled else segments
    mean, square, count = statistics.split([sets * groups, sets * groups, sets])
    return mean.view(sets, groups), square.view(sets, groups), count


def column_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, eps: float, offset: bool,
    centered: bool, given: bool, layout: tuple[int, ...], statistics: Tensor | None, *, moments_only: bool = False,
    running: tuple[Tensor, Tensor, float] | None = None,
) -> Any:  # fmt: skip
    """y and the statistics as bytes (None when a tensor was given for them, to be written or, if ``given``, read).

    ``running`` (mean, variance, factor) is moved towards the statistics.
    """
    y = None if moments_only else empty_like(x)
    if given and x.numel() == 0:  # an empty y has no address, which would read as "moments only"
        return y, None
    parameters = bias if weight is None else weight
    running_mean, running_var, factor = (None, None, 0.0) if running is None else running
    kept = native.column_forward(
        *layout, centered, given, CODES[x.dtype], 0 if parameters is None else CODES[parameters.dtype], eps, offset,
        get_num_threads(), 0 if mask is None else mask.data_ptr(), 0 if weight is None else weight.data_ptr(),
        0 if bias is None else bias.data_ptr(), x.data_ptr(), 0 if statistics is None else statistics.data_ptr(),
        0 if y is None else y.data_ptr(), _address(running_mean), _address(running_var),
        0 if running_mean is None else CODES[running_mean.dtype], factor,
    )  # fmt: skip
    return y, kept


def column_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor | bytes,
    dweight: Tensor | None, dbias: Tensor | None, eps: float, offset: bool, centered: bool, given: bool,
    layout: tuple[int, ...], *, sums: Tensor | None = None, stage: str = "both", coefficients: Tensor | None = None,
) -> Any:  # fmt: skip
    """dx. The stages "sums" and "apply" can be run apart, with an exchange between processes in the middle:
    ``sums`` (2, sets, channels) of grad and grad * xhat is what they hand over. ``coefficients`` (3, sets, channels)
    replaces the derived dx = c[0] * grad + c[1] * xhat + c[2]."""
    _check_restored(x, grad)
    dx = None if stage == "sums" else empty_like(x)
    total, first = _address(sums), _address(coefficients)
    wide = 8 * layout[2] * (1 if layout[5] else layout[0])
    parameters = weight if weight is not None else dweight if dweight is not None else dbias
    native.column_backward(
        *layout, centered, given, CODES[x.dtype], 0 if parameters is None else CODES[parameters.dtype], eps, offset,
        get_num_threads(), 0 if mask is None else mask.data_ptr(), 0 if weight is None else weight.data_ptr(),
        x.data_ptr(), _kept(statistics), grad.data_ptr(), total, total and total + wide, stage != "apply",
        stage != "sums", first, first and first + wide, first and first + 2 * wide,
        0 if dx is None else dx.data_ptr(), 0 if dweight is None else dweight.data_ptr(),
        0 if dbias is None else dbias.data_ptr(),
    )  # fmt: skip
    return dx


def pointwise_forward(
    x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    erf: bool,
) -> Tensor:  # fmt: skip
    x = x.contiguous()
    width = x.shape[-1]
    y = torch.empty_like(x)
    native.pointwise_forward(
        x.numel() // width, width, CODES[x.dtype], CODES[alpha.dtype], erf, get_num_threads(), _address(mask),
        alpha.data_ptr(), _address(shift), _address(weight), _address(bias), x.data_ptr(), y.data_ptr(),
    )  # fmt: skip
    return y


def pointwise_backward(
    grad: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, mask: Tensor | None, erf: bool,
    dalpha: Tensor | None, dshift: Tensor | None, dweight: Tensor | None, dbias: Tensor | None,
) -> Tensor:  # fmt: skip
    x, grad = x.contiguous(), grad.contiguous()
    width = x.shape[-1]
    dx = torch.empty_like(x)
    native.pointwise_backward(
        x.numel() // width, width, CODES[x.dtype], CODES[alpha.dtype], erf, get_num_threads(), _address(mask),
        alpha.data_ptr(), _address(shift), _address(weight), x.data_ptr(), grad.data_ptr(), dx.data_ptr(),
        _address(dalpha), _address(dshift), _address(dweight), _address(dbias),
    )  # fmt: skip
    return dx
