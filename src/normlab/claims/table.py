"""All claims by id, in order: C1 to C98, then the contradictions X1, X2, ..."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Table, unknown
from .claim import Claim
from .sources import (
    contradictions,
    s0_placement,
    s0_types,
    s1_axes,
    s1_placement,
    s2_effects,
    s2_formula,
    s3,
    s4,
)

_PAGES = (s0_types, s0_placement, s1_axes, s1_placement, s2_formula, s2_effects, s3, s4, contradictions)


def _collected() -> dict[str, Claim]:
    every = [claim for page in _PAGES for claim in page.CLAIMS]
    found = {c.id: c for c in sorted(every, key=lambda c: (c.id[0], int(c.id[1:])))}
    if len(found) != len(every):
        raise ValueError("two claims share an id")
    return found


CLAIMS: Table[Claim] = Table("claim", _collected())
SOURCES = ("S0", "S1", "S2", "S3", "S4")


def chosen(only: Sequence[str] = (), source: str | None = None) -> list[Claim]:
    """Those asked for by id, of one source, or all; ids in any case.

    >>> [c.id for c in chosen(["c93", "X1"])]
    ['C93', 'X1']
    """
    if source is not None and source not in SOURCES:
        raise ValueError(unknown("source", source, SOURCES))
    asked = [CLAIMS[name.strip().upper()] for name in only] if only else list(CLAIMS.values())
    return [c for c in asked if source is None or source in c.source.split()]
