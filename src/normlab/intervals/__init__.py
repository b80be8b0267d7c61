"""What a comparison over few seeds needs: Student's t, the studentized range, and intervals of all differences at once. No torch."""

from __future__ import annotations

from .simultaneous import Differences, decided, equivalent
from .student import (
    MOST_SEEDS,
    Difference,
    holm,
    mean_interval,
    paired_difference,
    seeds_needed,
    t_cdf,
    t_quantile,
    t_tail,
)
from .studentized_range import range_quantile, range_tail

__all__ = [
    "MOST_SEEDS",
    "Difference",
    "Differences",
    "decided",
    "equivalent",
    "holm",
    "mean_interval",
    "paired_difference",
    "range_quantile",
    "range_tail",
    "seeds_needed",
    "t_cdf",
    "t_quantile",
    "t_tail",
]
