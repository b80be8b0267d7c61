"""A handful of experiments that many claims share, strongest and cheapest first.

start        gradients and updates before training      placement         warm-up, many layers, effective depth, width
rates        learning rates, equal norms, accuracy      text_and_images   BatchNorm on text, images, padding, small batches
cost         time beside a matrix                       assayed           shift, smoothness, gaps, recurrent nets, scaled features
base         what a design is, how trials become arms
"""

from __future__ import annotations

from ...errors import Table
from . import assayed, cost, placement, rates, start, text_and_images
from .base import Design, Measured, Size, Trained, first_budget, size_at

DESIGNS: Table[Design] = Table(
    "design",
    {d.name: d for room in (start, cost, placement, rates, text_and_images, assayed) for d in room.DESIGNS},
)

__all__ = ["DESIGNS", "Design", "Measured", "Size", "Trained", "first_budget", "size_at"]
