"""The statements of five Chinese tutorials, one file per document and topic, and those that contradict each other.

Texts are in our own words. Sources are named S0 to S4 as in ``SOURCES`` of :mod:`normlab.claims.words`.
"""

from __future__ import annotations
