"""A watch that looks away while the model is asked something between two steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .watch import Watch


@contextlib.contextmanager
def suspended(watch: Watch) -> Iterator[None]:
    """Between two steps: what the model computes inside is no training, and is neither recorded nor counted as overhead."""
    began, active, watch.hooks.active = watch.budget.clock(), watch.hooks.active, False
    try:
        yield
    finally:
        watch.hooks.active = active
        watch._gradients.stepped()  # what was derived inside is no gradient of the next step
        watch.pause(watch.budget.clock() - began)
