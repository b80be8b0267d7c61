"""Exact claims: identities and counter-examples in float64. Each function measures, and returns the numbers by name.

axes         which cells share a statistic                      moments     mean, variance, eps, rounding
sphere       where vectors lie after a norm, and what is lost   tokens      batch, length, padding, the future
structure    norms of a model counted, where they stand         cost        operations

Norms are normlab's layers, in the formula that torch's have (tests compare them). Sizes are primes where they may be.
"""

from __future__ import annotations
