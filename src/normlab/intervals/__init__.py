"""What a comparison over few seeds needs: Student's t, the studentized range, and intervals of all differences at once. No torch."""

from __future__ import annotations

from .simultaneous import FEWEST, LEVEL, MOST_SEEDS, Difference, Differences, Seeds, decided, equivalent
from .student import mean_interval, t_cdf, t_quantile, t_tail
from .studentized_range import range_quantile, range_tail

__all__ = [
    "FEWEST",
    "LEVEL",
    "MOST_SEEDS",
    "Difference",
    "Differences",
    "Seeds",
    "decided",
    "equivalent",
    "mean_interval",
    "range_quantile",
    "range_tail",
    "t_cdf",
    "t_quantile",
    "t_tail",
]
