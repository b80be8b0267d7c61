"""Each test of a layer draws numbers of its own, the same ones each time, and the layers share work out over threads."""

from __future__ import annotations

import zlib

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _work_is_shared_out(two_threads: None) -> None:
    """Beside another worker, too."""
