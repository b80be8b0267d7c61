"""From a sweep's trials to its answer: every cell at its best rate, with intervals, and what is decided. No torch.

Cells share seeds, so they are compared seed by seed: what a seed does to all cells alike cancels. Each is compared at its own best
rate, as a user would run it. Whatever is said of two cells (tied, decided, undecided, equal, an interval, p, seeds still needed)
comes from :class:`normlab.intervals.Differences` over all cells, whose intervals hold together; no two statements can disagree.

A rate where a seed diverged, collapsed or stayed untrained is never the best one, whatever the other seeds reached: their mean would be a mean of
survivors. Nor is a rate with fewer trained seeds than another. A trial that is missing says nothing about its rate; one that failed
keeps the rate from being called stable, since a program may break because its numbers did.
"""

from __future__ import annotations

from .chosen import sentences as choices
from .inside import why
from .judge import answer, read, settled
from .matched import MatchedGap, loss_points, matched_gaps
from .metrics import METRICS

__all__ = ["METRICS", "MatchedGap", "answer", "choices", "loss_points", "matched_gaps", "read", "settled", "why"]
