"""A labelled corpus of short trainings, sick and healthy, against which the rules of normlab.diagnosis are measured.

Two sets that share nothing but the data and the list of kinds: TUNING, on which thresholds were set, and EVALUATION, other
models, sizes and seeds, made after the thresholds were frozen. ``python -m corpus evaluation`` makes a set and scores it.
"""

from .plan import SETS
from .trial import Trial

__all__ = ["SETS", "Trial"]
