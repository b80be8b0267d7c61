"""Who computes, and how fast. ``use_kernel`` asks for one; without it the choice is automatic and explains itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import BadSetting, KernelUnavailable
from . import cpu, reference
from .selection import OPS, check_request, choose

try:
    _request = check_request(os.environ.get("NORMLAB_KERNEL", "auto"))
except ValueError as error:
    raise BadSetting(f"NORMLAB_KERNEL: {error}") from None
reference.float64_everywhere = _request == "reference"


def current_request() -> str:
    return _request


def choose_native(x: torch.Tensor) -> bool:
    """What :func:`choose` answers for the plain case, in a tenth of the time: native kernels on an ordinary CPU tensor."""
    return x.is_cpu and x.dtype in cpu.CODES and _request != "reference" and cpu.missing is None


@contextmanager
def use_kernel(name: str) -> Iterator[None]:
    """Within the block every op runs on this kernel ("cpu", "reference" or "auto"), or raises if it cannot.

    >>> import normlab, torch
    >>> with normlab.use_kernel("reference"):
    ...     y = normlab.LayerNorm(8)(torch.ones(2, 8))
    """
    global _request
    before, _request = _request, check_request(name)
    reference.float64_everywhere = _request == "reference"
    try:
        yield
    finally:
        _request = before
        reference.float64_everywhere = _request == "reference"


__all__ = ["OPS", "KernelUnavailable", "choose", "choose_native", "cpu", "current_request", "use_kernel"]
