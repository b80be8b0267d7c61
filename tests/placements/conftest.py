"""Every test of placements draws numbers of its own, on one thread."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def one_thread(threads: Callable[[int], None]) -> None:
    threads(1)
