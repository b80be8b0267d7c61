"""What a claim is: a sentence, and the numbers that decide it, with their ranges written down before anything is measured.

A claim says of measured numbers where they lie. What it cannot do without is *core*; what it says beyond that, by its wording or by
leaving out a condition, is its *reach*. All true: it holds. A core number elsewhere: it does not hold. A number of its reach elsewhere:
it holds with conditions. An interval over a border: undecided. The verdict follows from the numbers; none is written here.

Words come in pairs, English and Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

KINDS = ("exact", "empirical", "definition")

Words = tuple[str, str]  # English, Chinese: the same facts
Numbers = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The claim says that this number lies from ``least`` to ``most``.

    ``against``: the number is the difference of two arms, ``quantity`` minus ``against``, seed by seed. ``margin``: the smallest
    difference that matters. A difference that has the claimed sign, but surely less than the margin, makes the claim hold with conditions;
    one that surely falls short of the margin and may have either sign makes it fail.
    """

    quantity: str
    what: Words
    least: float = -math.inf
    most: float = math.inf
    margin: float = 0.0
    against: str | None = None
    core: bool = True

    def __post_init__(self) -> None:
        if not self.least <= self.most or not (math.isfinite(self.least) or math.isfinite(self.most)):
            raise ValueError(f"{self.quantity}: no range from {self.least} to {self.most}")
        one_sided = math.isfinite(self.least) != math.isfinite(self.most)
        if self.margin < 0 or (self.margin and not one_sided):
            raise ValueError(f"{self.quantity}: a margin of {self.margin} needs a range with one end")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What a source says, and whether the claim agrees with it. For definitions, dates and quotations."""

    what: Words
    source: str  # where it was read
    agrees: bool
    core: bool = True


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the folklore, in our own words."""

    id: str
    source: str  # S0 to S4; several where sources contradict each other
    kind: str
    says: Words
    how: Words  # what is done to test it
    checks: tuple[Check, ...] = ()
    measure: Callable[[], Numbers] | None = None  # exact numbers, in milliseconds
    designs: tuple[str, ...] = ()  # experiments of the table DESIGNS
    facts: tuple[Fact, ...] = ()
    untestable: Words | None = None  # why
    literature: Words | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.id}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        tested, without = bool(self.checks or self.facts), self.untestable
        if tested == (without is not None):
            raise ValueError(f"{self.id} needs checks or facts, or a reason why it has none")
        if bool(self.checks) != bool(self.measure or self.designs):
            raise ValueError(f"{self.id}: checks need something that measures, and the other way round")
        if not any(c.core for c in self.checks) and not any(f.core for f in self.facts) and without is None:
            raise ValueError(f"{self.id}: nothing of it is core, so it could never fail")
