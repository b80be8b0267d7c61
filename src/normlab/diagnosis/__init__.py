"""What a run's readings say is wrong: rules over what was recorded, each with its threshold and where that comes from.

A rule is a pure function from a :class:`Record` to findings; RULES lists them, causes before consequences. It looks at
windows (the late third of the run), asks for several readings that agree, and stays silent where there are too few:
the start of a training is wild in every healthy model. Readings after the first non-finite value are left out. Each
rule reports its worst site once and counts the others.

"Measured" in a docstring means: decoders, encoders and image models of this package on text and noisy patterns, 16 to
32 wide, 2 to 24 layers, every placement, AdamW and SGD, 40 to 1000 steps, 1 to 5 seeds each. Healthy means that the
loss fell as it does under "pre". Thresholds lie between the healthy and the sick values found there. No torch here.
"""

from __future__ import annotations

from .advice import ADVICE, SOURCES
from .evidence import EVIDENCE
from .finding import FEW, SEVERITIES, Blind, Diagnosis, Finding
from .needs import NEEDS
from .record import Record
from .rules import RULES, diagnose

__all__ = [
    "ADVICE",
    "EVIDENCE",
    "FEW",
    "NEEDS",
    "RULES",
    "SEVERITIES",
    "SOURCES",
    "Blind",
    "Diagnosis",
    "Finding",
    "Record",
    "diagnose",
]
