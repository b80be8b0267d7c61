"""Every comparison of an answer: one procedure over all of its cells (or over the values of an axis) decides them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..intervals import LEVEL, Differences, decided, equivalent
from ..runs import Difference


class Pairs:
    """``values``: {arm: {seed: loss, or another number}}. ``share``: what this look may spend of the error of all looks at the same sweep.
    ``lower``: is lower better? It decides nothing but who is called the best.

    With a share below 1 intervals are wider and p values larger, so that the words (95 %, decided, p below 0.05) hold for all looks together.
    """

    def __init__(
        self, values: Mapping[str, Mapping[int, float]], margin: float | None = None, share: float = 1.0, *,
        lower: bool = True,
    ) -> None:  # fmt: skip
        self.all, self.margin, self.share = Differences(values, 1 - share * (1 - LEVEL)), margin, share
        self.lower = lower
        self.names = tuple(values)

    @property
    def count(self) -> int:
        return len(self.names) * (len(self.names) - 1) // 2

    def between(self, a: str, b: str | None) -> Difference | None:
        """a minus b; None if either has no loss, or no seed is common."""
        if a == b or a not in self.names or b not in self.names:
            return None
        seen = self.all.between(a, str(b))
        if seen is None:
            return None
        clear = decided(seen)
        needed = None if clear else self.all.seeds_needed(a, str(b))
        return Difference(
            **{**seen._asdict(), "p": None if seen.p is None else min(1.0, seen.p / self.share)}, decided=clear, equal=self.margin is not None and equivalent(seen, self.margin),
            seeds_needed=None if needed is None else max(needed.about, seen.n + 1),
            seeds_low=None if needed is None else max(needed.low, seen.n + 1),
            seeds_high=None if needed is None else max(needed.high, seen.n + 1),
        )  # fmt: skip

    def best(self, ranked: Sequence[str]) -> str | None:
        """The first of these that no other is decidedly better than.

        Where all cells have the same seeds that is the first. In a partial sweep the lowest mean may be that of the easy seeds.
        """

        def better(a: str, b: str) -> bool:
            mean = self.all.paired(a, b)
            return bool(mean) and (sum(mean) < 0) == self.lower and decided(self.all.between(a, b))

        for name in ranked:
            if not any(better(other, name) for other in ranked if other != name):
                return name
        return ranked[0] if ranked else None
