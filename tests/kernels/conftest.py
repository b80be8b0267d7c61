"""Kernels share work out over threads."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _work_is_shared_out(two_threads: None) -> None:
    """Beside another worker, too."""
