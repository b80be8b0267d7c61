"""The native kernels: torch tensors in, results out.

The extension itself checks each tensor for what the kernel will read and write (csrc/tensors.h) and raises ``Unfit`` where
one cannot be taken as it is. Then, once, plain dense copies are made and it is asked again: what it refuses now is an error.
``missing`` says why there are no native kernels, or is None. NORMLAB_ISA (avx512bf16, avx512, avx2, baseline) forces an
instruction set.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor, empty_like, get_num_threads
from torch.compiler import is_compiling

from .._torch import exchange_table, is_zero_tensor
from ..errors import BadSetting
from . import pages
from .facts import ColumnFacts, Form, ResidualFacts, RowFacts, RowMode

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
    try:
        native.use_isa(os.environ["NORMLAB_ISA"])
    except ValueError as error:
        raise BadSetting(f"NORMLAB_ISA: {error}") from None
huge_pages = pages.choose(os.environ.get(pages.VARIABLE, "auto"), pages.setting("enabled"), pages.setting("defrag"))
if native is not None:
    native.use_huge_pages(huge_pages[0])


class _NoNative(RuntimeError):
    """What is never raised, where there are no kernels to refuse a tensor."""


Unfit: type[RuntimeError] = _NoNative if native is None else native.Unfit

CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
PLAIN = (Tensor, torch.nn.Parameter)


# ---- a tensor as kernels see it --------------------------------------------------------------------------------------


class _Description(NamedTuple):
    """What the extension cannot see by itself in older torch."""

    address: int
    code: int  # of the dtype; -1: boolean
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _memory_fault(t: Tensor) -> str | None:
    """Why the memory behind a tensor with values must not be read, if so."""
    try:
        storage = t.untyped_storage()
        bytes_there = storage.nbytes() if storage.data_ptr() else 0
    except RuntimeError:  # a class whose memory is elsewhere; in older torch also zeros without memory
        bytes_there = 0
    if bytes_there == 0:
        return "has no memory (was its storage resized to 0?)"
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    needed = (t.storage_offset() + last + 1) * t.element_size()
    if bytes_there < needed:
        return f"needs {needed} bytes of a storage that has {bytes_there} (was it resized?)"
    return None


def _described(t: Any) -> Any:
    """A tensor as its description, a tuple with its tensors described, anything else as it is."""
    if not isinstance(t, Tensor):
        return tuple(map(_described, t)) if type(t) is tuple else t
    if type(t) not in PLAIN or t.layout is not torch.strided:
        raise Unfit(f"a {type(t).__name__} with layout {t.layout} is not a plain tensor")
    if not t.is_cpu:
        raise Unfit(f"a tensor is on {t.device}, not on the CPU")
    if t.is_neg():
        raise Unfit("a tensor is to be read with the other sign (negative bit)")
    code = -1 if t.dtype is torch.bool else CODES.get(t.dtype)
    if code is None:
        raise Unfit(f"a tensor has the dtype {t.dtype}")
    if t.numel():
        _require_memory(t)
    return _Description(t.data_ptr() if t.numel() else 0, code, tuple(t.shape), t.stride())


class _Describing:
    """The extension, its tensors described."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._extension, name)
        if not callable(function):
            return function
        if name.startswith("fits"):

            def fits(*args: Any) -> bool:
                try:
                    return function(*map(_described, args))
                except Unfit:
                    return False

            return fits
        return lambda *args: function(*map(_described, args))


# May the extension look into tensors itself? (Older torch has no table for it.)
QUESTIONS = (Tensor.is_neg, Tensor.untyped_storage, Tensor.storage_offset, torch.UntypedStorage.nbytes)
looks = native is not None and exchange_table is not None and native.see_tensors(exchange_table, PLAIN, QUESTIONS)
if native is not None:
    native.take_descriptions(_Description)
if native is not None and not looks:
    native = _Describing(native)


def contiguous(t: Tensor) -> Tensor:
    """t.contiguous(), but not of a tensor without memory: torch would read at no address."""
    if t.is_contiguous():
        return t
    if t.layout is not torch.strided and type(t) in PLAIN:
        raise TypeError(f"a dense tensor is needed, got one with layout {t.layout}; convert it: .to_dense()")
    return with_memory(t).contiguous()


def with_memory(t: Any) -> Any:
    """t itself (a tensor or None), for torch's operators to read, which trust the memory behind a tensor."""
    if is_compiling() or not isinstance(t, Tensor):  # what is traced has no memory yet
        return t
    own = type(t) in PLAIN or type(t).__torch_dispatch__ is Tensor.__torch_dispatch__  # else its memory is elsewhere
    if own and t.is_cpu and t.layout is torch.strided and t.numel() and not is_zero_tensor(t):
        _require_memory(t)
    return t


def _require_memory(t: Tensor) -> None:
    if fault := _memory_fault(t):
        raise Unfit(f"a tensor of shape {tuple(t.shape)} {fault}")


def readable(t: Any) -> Any:
    """t (a tensor, bytes or None) in plain dense memory, whatever form it had; itself where it is so already."""
    if not isinstance(t, Tensor):
        return t
    if type(t) not in PLAIN:
        if t.numel():
            _require_memory(t)  # torch 2.5 would stumble over a class whose memory is elsewhere
        t = t.as_subclass(Tensor)
    if is_zero_tensor(t):
        return t.clone()
    if t.layout is not torch.strided:
        raise Unfit(f"a tensor has the layout {t.layout}; kernels read dense memory alone")
    if t.numel():
        _require_memory(t)
    return t.resolve_neg().contiguous()


def changed(refusal: object) -> RuntimeError:
    """A refusal in a backward, explained: in forward all was right."""
    return RuntimeError(
        f"{refusal}: it was changed between forward and backward; a hook on saved tensors must restore what it packed"
    )


# ---- rows ------------------------------------------------------------------------------------------------------------

# Statistics of a row norm, float64: [mean (rows) | 1/deviation (rows)] for layer, [1/deviation] for rms and scale. Where a
# caller gives a tensor they are written there; otherwise the kernel returns them as bytes, a tenth of a tensor's price.


def row_statistics(x: Tensor, mode: RowMode) -> Tensor:
    rows = x.numel() // x.shape[-1]
    return torch.empty(2 * rows if mode == "layer" else rows, dtype=torch.float64, device="cpu")


def row_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, statistics: Tensor | None,
    facts: RowFacts, again: bool = False,
) -> tuple[Tensor, bytes | None]:  # fmt: skip
    """y and the statistics (None when a tensor was given for them)."""
    y = empty_like(x)
    try:
        return y, native.row_forward(x, weight, bias, mask, statistics, y, facts, get_num_threads())
    except Unfit:
        if again:
            raise
        return row_forward(readable(x), readable(weight), readable(bias), readable(mask), statistics, facts, True)


def row_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor | bytes,
    dweight: Tensor | None, dbias: Tensor | None, facts: RowFacts, again: bool = False,
) -> Tensor:  # fmt: skip
    """dx; the gradients of the parameters are written into the tensors given for them."""
    dx = empty_like(grad)
    try:
        native.row_backward(grad, x, weight, mask, statistics, (dx, dweight, dbias), facts, get_num_threads())
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        return row_backward(readable(grad), readable(x), readable(weight), readable(mask), readable(statistics), dweight, dbias,
                            facts, True)  # fmt: skip
    return dx


def residual_forward(
    x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    statistics: Tensor | None, facts: ResidualFacts, again: bool = False,
) -> tuple[Tensor, Tensor, bytes | None]:  # fmt: skip
    """y, the new stream, the statistics as in row_forward."""
    y, stream = empty_like(x), empty_like(x)
    try:
        kept = native.residual_forward(x, branch, weight, bias, mask, (y, stream, statistics), facts, get_num_threads())
    except Unfit:
        if again:
            raise
        return residual_forward(readable(x), readable(branch), readable(weight), readable(bias), readable(mask), statistics,
                                facts, True)  # fmt: skip
    return y, stream, kept


def residual_backward(
    grad: Tensor, grad_stream: Tensor | None, stream: Tensor, weight: Tensor | None, mask: Tensor | None,
    statistics: Tensor | bytes, dweight: Tensor | None, dbias: Tensor | None, facts: ResidualFacts, again: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dx and dbranch: one and the same tensor when alpha is 1 and nothing is dropped."""
    dx, other = empty_like(stream), None if facts.shared else empty_like(stream)
    try:
        native.residual_backward((grad, grad_stream), stream, weight, mask, statistics, (dx, other, dweight, dbias), facts,
                                 get_num_threads())  # fmt: skip
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        return residual_backward(readable(grad), readable(grad_stream), readable(stream), readable(weight), readable(mask),
                                 readable(statistics), dweight, dbias, facts, True)  # fmt: skip
    return dx, dx if other is None else other


# ---- columns ---------------------------------------------------------------------------------------------------------

# Statistics of a column norm, float64: [mean (sets * groups) | mean square (sets * groups) | count (sets)], a flat tensor or,
# as for rows, bytes. The order in memory, row-major or channels last, is read off x each time: a hook on saved tensors may
# bring it back in another one.


def column_statistics(x: Tensor, facts: ColumnFacts) -> Tensor:
    return torch.empty(facts.sets(x) * (2 * facts.groups + 1), dtype=torch.float64, device="cpu")


def split_statistics(statistics: Tensor, x: Tensor, facts: ColumnFacts) -> tuple[Tensor, Tensor, Tensor]:
    """Views of mean (sets, groups), mean square (sets, groups) and count (sets)."""
    sets, groups = facts.sets(x), facts.groups
    if statistics.dtype is not torch.float64:  # of another size torch refuses it
        raise changed(f"the tensor of statistics is {statistics.dtype}")
    mean, square, count = statistics.split([sets * groups, sets * groups, sets])
    return mean.view(sets, groups), square.view(sets, groups), count


def channels_of(x: Tensor, channel: int) -> int:
    """For a backward: x may have come back without that axis."""
    if x.dim() <= channel:
        raise changed(f"x has the shape {tuple(x.shape)}")
    return x.shape[channel]


def packed(x: Tensor, channel: int) -> Tensor:
    """x without gaps: as it is where its channels lie innermost, else row-major."""
    return x if x.is_contiguous() or x.movedim(channel, -1).is_contiguous() else contiguous(x)


def _packed_readable(x: Tensor, channel: int) -> Tensor:
    """As :func:`readable`, but channels last may stay."""
    order = [a for a in range(x.dim()) if a != channel] + [channel]
    if x.dim() > channel and not x.is_contiguous() and x.permute(order).is_contiguous():
        return readable(x.permute(order)).movedim(-1, channel)
    return readable(x)


def column_moments(x: Tensor, mask: Tensor | None, facts: ColumnFacts, again: bool = False) -> Tensor:
    """The statistics alone."""
    statistics = column_statistics(x, facts)
    try:
        native.column_moments(x, mask, statistics, facts, get_num_threads())
    except Unfit:
        if again:
            raise
        return column_moments(_packed_readable(x, facts.channel), readable(mask), facts, True)
    return statistics


def column_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, statistics: Tensor | None,
    running: tuple[Tensor, Tensor, float] | None, facts: ColumnFacts, again: bool = False,
) -> tuple[Tensor, bytes | None]:  # fmt: skip
    """y and the statistics as bytes (None when a tensor was given for them). ``running`` (mean, variance, factor) is moved
    towards them."""
    y = empty_like(x)
    try:
        kept = native.column_forward(x, weight, bias, mask, running, (y, statistics), facts, get_num_threads())
    except Unfit:
        if again:
            raise
        return column_forward(_packed_readable(x, facts.channel), readable(weight), readable(bias), readable(mask), statistics,
                              running, facts, True)  # fmt: skip
    return y, kept


def column_apply(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, statistics: Tensor, facts: ColumnFacts,
    again: bool = False,
) -> Tensor:  # fmt: skip
    """y by statistics that are given."""
    y = empty_like(x)
    try:
        native.column_apply(x, weight, bias, mask, statistics, y, facts, get_num_threads())
    except Unfit:
        if again:
            raise
        return column_apply(_packed_readable(x, facts.channel), readable(weight), readable(bias), readable(mask),
                            readable(statistics), facts, True)  # fmt: skip
    return y


def _like_readable(grad: Tensor, x: Tensor) -> Tensor:
    """grad as :func:`readable`, in the order in memory that x has."""
    grad = readable(grad)
    if grad.shape == x.shape and grad.dtype is x.dtype and grad.stride() != x.stride():
        grad = empty_like(x).copy_(grad)
    return grad


def column_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor | bytes,
    dweight: Tensor | None, dbias: Tensor | None, facts: ColumnFacts, *, given: bool, again: bool = False,
) -> Tensor:  # fmt: skip
    """dx of :func:`column_forward`, or with ``given`` of :func:`column_apply`."""
    dx = empty_like(x)
    run = native.column_apply_backward if given else native.column_backward
    try:
        run(grad, x, weight, mask, statistics, (dx, dweight, dbias), facts, get_num_threads())
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        x = _packed_readable(x, facts.channel)
        return column_backward(_like_readable(grad, x), x, readable(weight), readable(mask), readable(statistics), dweight,
                               dbias, facts, given=given, again=True)  # fmt: skip
    return dx


# The same in two halves, with an exchange between processes or a formula of one's own in between.


def column_sums(
    grad: Tensor, x: Tensor, weight: Tensor | None, mask: Tensor | None, statistics: Tensor | bytes, facts: ColumnFacts,
    again: bool = False,
) -> Tensor:  # fmt: skip
    """The sums (2, sets, channels) of grad and grad * xhat. The weight does not enter them; it is looked at because callers
    multiply by it next."""
    sums = torch.empty(2, facts.sets(x), channels_of(x, facts.channel), dtype=torch.float64, device="cpu")
    try:
        native.column_sums(grad, x, weight, mask, statistics, sums, facts, get_num_threads())
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        x = _packed_readable(x, facts.channel)
        return column_sums(
            _like_readable(grad, x), x, readable(weight), readable(mask), readable(statistics), facts, True
        )
    return sums


def column_combine(
    grad: Tensor, x: Tensor, mask: Tensor | None, statistics: Tensor | bytes, coefficients: Tensor, facts: ColumnFacts,
    again: bool = False,
) -> Tensor:  # fmt: skip
    """dx = c[0] * grad + c[1] * xhat + c[2] for coefficients c (3, sets, channels)."""
    dx = empty_like(x)
    try:
        native.column_combine(grad, x, mask, statistics, coefficients, dx, facts, get_num_threads())
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        x = _packed_readable(x, facts.channel)
        return column_combine(
            _like_readable(grad, x), x, readable(mask), readable(statistics), coefficients, facts, True
        )
    return dx


def fits_running(mean: Tensor | None, variance: Tensor | None, channels: int) -> bool:
    """May a kernel move these itself?"""
    return mean is not None and variance is not None and native.fits_running(mean, variance, channels)


# ---- pointwise -------------------------------------------------------------------------------------------------------


def pointwise_forward(
    x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    form: Form, again: bool = False,
) -> Tensor:  # fmt: skip
    y = empty_like(x)
    try:
        native.pointwise_forward(x, (alpha, shift, weight, bias), mask, y, form, get_num_threads())
    except Unfit:
        if again:
            raise
        return pointwise_forward(readable(x), readable(alpha), readable(shift), readable(weight), readable(bias),
                                 readable(mask), form, True)  # fmt: skip
    return y


def pointwise_backward(
    grad: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor | None, mask: Tensor | None, form: Form,
    slots: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None], again: bool = False,
) -> Tensor:  # fmt: skip
    """dx; the gradients of alpha, shift, weight and bias go into ``slots``."""
    dx = empty_like(x)
    try:
        native.pointwise_backward(grad, x, (alpha, shift, weight), mask, (dx, *slots), form, get_num_threads())
    except Unfit as refusal:
        if again:
            raise changed(refusal) from refusal
        return pointwise_backward(readable(grad), readable(x), readable(alpha), readable(shift), readable(weight),
                                  readable(mask), form, slots, True)  # fmt: skip
    return dx
