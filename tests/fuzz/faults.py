"""Faults to put in on purpose, around functions that normlab calls: the fuzz must find each one, or it finds nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from normlab import functional, kernels

from . import judge


def _wrap(name: str, around: Callable[..., Any], owner: Any = functional) -> None:
    """On the kernels alone: what the reference shares with them, comparing cannot show."""
    before = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        if kernels.current_request() == "reference":
            return before(*args, **options)
        return around(before, *args, **options)

    for module in [owner, *(m for n, m in sys.modules.items() if n.split(".")[0] == "normlab")]:
        if vars(module).get(name) is before:
            setattr(module, name, wrapped)


def wrong_stride() -> None:
    def row_norm(before: Any, op: str, x: Any, *args: Any, **options: Any) -> Any:
        if type(x) is torch.Tensor and x.dim() > 1 and x.stride(-2) > x.shape[-1] and x.stride(-1) == 1:
            x = x.as_strided(x.shape, [*x.stride()[:-2], x.stride(-2) - 1, 1])
        return before(op, x, *args, **options)

    _wrap("row_norm", row_norm)


def mask_dropped() -> None:
    def as_mask(before: Any, *args: Any) -> Any:
        mask = before(*args)
        return mask if mask is None else torch.ones_like(mask)

    _wrap("as_mask", as_mask)


def negative_bit_ignored() -> None:
    def row_norm(before: Any, op: str, x: Any, *args: Any, **options: Any) -> Any:
        return before(op, torch._neg_view(x) if isinstance(x, torch.Tensor) and x.is_neg() else x, *args, **options)

    _wrap("row_norm", row_norm)


def gradient_off_by_a_percent() -> None:
    def row_norm(before: Any, *args: Any, **options: Any) -> Any:
        y = before(*args, **options)
        return y + (y - y.detach()) * 0.01 if y.requires_grad and y.isfinite().all() else y

    _wrap("row_norm", row_norm)


def input_written_to() -> None:
    def row_norm(before: Any, op: str, x: Any, *args: Any, **options: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.numel() and x.dtype == torch.float64:
            x.data.view(-1)[:1].mul_(1.0001) if x.is_contiguous() else None
        return before(op, x, *args, **options)

    _wrap("row_norm", row_norm)


def state_before_the_check() -> None:
    def batch_norm(before: Any, x: Any, mean: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(mean, torch.Tensor) and mean.dtype == torch.float32:
            with torch.no_grad():
                mean.add_(1) if mean.is_contiguous() and mean.untyped_storage().nbytes() and not mean.is_meta else None
        return before(x, mean, *args, **options)

    import normlab

    functional.batch_norm = lambda *a, _before=functional.batch_norm, **o: batch_norm(_before, *a, **o)
    normlab.functional.batch_norm = functional.batch_norm


def key_error() -> None:
    def as_mask(before: Any, *args: Any) -> Any:
        try:
            return before(*args)
        except ValueError as error:
            raise KeyError(str(error)) from error

    _wrap("as_mask", as_mask)


def segmentation_fault() -> None:
    def values(before: Any, plan: Any) -> Any:
        if plan.seed % 50 == 7:
            os.kill(os.getpid(), signal.SIGSEGV)
        return before(plan)

    _wrap("values", values, judge)


def read_past_the_end() -> None:
    """One value behind the weight, through its address, as a kernel with a wrong bound would."""
    import ctypes

    def row_norm(before: Any, op: str, x: Any, shape: Any, weight: Any, *args: Any, **options: Any) -> Any:
        if (
            type(weight) in (torch.Tensor, torch.nn.Parameter)
            and weight.dtype == torch.float32
            and weight.is_contiguous()
        ):
            ctypes.c_float.from_address(weight.data_ptr() + 4 * weight.numel()).value  # noqa: B018
        return before(op, x, shape, weight, *args, **options)

    _wrap("row_norm", row_norm)


def hang() -> None:
    _wrap("values", lambda before, plan: time.sleep(3600) if plan.seed % 50 == 7 else before(plan), judge)


def leak() -> None:
    kept: list[bytes] = []
    _wrap("judge", lambda before, plan: kept.append(b"x" * (4 << 20)) or [], judge)


@dataclass(frozen=True)
class Fault:
    install: Callable[[], None]
    kind: str  # of the finding that must come of it
    words: str  # a pattern in it
    twist: str = ""  # a pattern in the case's description


FAULTS = {
    "wrong stride": Fault(wrong_stride, "wrong", "other bits", "x rows apart"),
    "mask dropped": Fault(mask_dropped, "wrong", "y is", ", (mask|lengths), .*no twist"),
    "negative bit ignored": Fault(negative_bit_ignored, "wrong", "y has other bits", "x (negative bit|imaginary)"),
    "gradient off by a percent": Fault(gradient_off_by_a_percent, "wrong", "dx is", "no twist"),
    "input written to": Fault(input_written_to, "wrong", "memory of x was written to"),
    "state before the check": Fault(state_before_the_check, "wrong", "running_mean changed although ValueError"),
    "KeyError": Fault(key_error, "wrong", "KeyError", "mask wrong size"),
    "segmentation fault": Fault(segmentation_fault, "crash", "SIGSEGV"),
    "read past the end": Fault(read_past_the_end, "crash", "SIGSEGV", "weight: wall behind"),
    "hang": Fault(hang, "hang", "did not end"),
    "leak": Fault(leak, "memory", "grew"),
}
