"""A handful of experiments that many claims share, strongest and cheapest first.

start        gradients and updates before training      placement         warm-up, many layers, effective depth, width
rates        learning rates, equal norms, accuracy      text_and_images   BatchNorm on text, images, small batches, convolutions
cost         time beside a matrix                       tokens            BatchNorm over batch and tokens: hidden bytes, padding, its gradients
inside       values, identity, neighbours in trained nets
             assayed           shift, smoothness, gaps, recurrent nets, scaled features
base         what a design is, how trials become arms
"""

from __future__ import annotations

from ...errors import Table
from . import assayed, cost, inside, placement, rates, start, text_and_images, tokens
from .base import Design, Measured, Size, Trained, first_budget, size_at

DESIGNS: Table[Design] = Table(
    "design",
    {
        d.name: d
        for room in (start, cost, placement, rates, inside, text_and_images, tokens, assayed)
        for d in room.DESIGNS
    },
)

__all__ = ["DESIGNS", "Design", "Measured", "Size", "Trained", "first_budget", "size_at"]
