"""Who computes, and how fast. ``use_kernel`` asks for one; without it the choice is automatic and explains itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import KernelUnavailable
from . import cpu
from .selection import OPS, check_request, choose

_request = check_request(os.environ.get("NORMLAB_KERNEL", "auto"))


def current_request() -> str:
    return _request


@contextmanager
def use_kernel(name: str) -> Iterator[None]:
    """Within the block every op runs on this kernel ("cpu", "reference" or "auto"), or raises if it cannot.

    >>> import normlab, torch
    >>> with normlab.use_kernel("reference"):
    ...     y = normlab.LayerNorm(8)(torch.ones(2, 8))
    """
    global _request
    before, _request = _request, check_request(name)
    try:
        yield
    finally:
        _request = before


__all__ = ["OPS", "KernelUnavailable", "choose", "cpu", "current_request", "use_kernel"]
