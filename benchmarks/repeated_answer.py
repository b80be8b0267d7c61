"""Do two runs of the same comparison with other seeds say the same? Decided statements of each, and what the other says of them.

    normlab compare --out runs/one && normlab compare --first-seed 100 --out runs/two
    python benchmarks/repeated_answer.py runs/one runs/two

A statement is a decided difference between two cells: of all pairs, and of those that a verdict names (with the baseline, with the best). Ends
with code 1 if a sign flips, or if less than 80 % of either run's statements are decided again; with 2 if the two cannot be compared.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from normlab import answer
from normlab.answer.pairs import Pairs
from normlab.errors import RunUnreadable
from normlab.runs import Difference, Grid, Summary, read_grid

AGAIN = 0.8
Pair = tuple[str, str]  # cells in the order of their names


@dataclass(frozen=True)
class Repeated:
    """What became of one run's decided statements in the other."""

    decided: tuple[Pair, ...]
    again: tuple[Pair, ...]  # decided there too, with the same sign
    flipped: tuple[Pair, ...]  # ... with the other sign

    @property
    def share(self) -> float:
        return len(self.again) / len(self.decided) if self.decided else 1.0


def differences(found: Summary, share: float = 1.0) -> dict[Pair, Difference]:
    """Of all pairs, each cell at its best rate. ``share``: what this look at the sweep may spend of its error."""
    rates = {c.name: c.best_lr for c in found.cells if c.best_lr is not None}
    values: dict[str, dict[int, float]] = {name: {} for name in sorted(rates)}
    for t in found.trials:
        if t.cell in rates and t.lr == rates[t.cell] and t.loss is not None and t.seed is not None:
            values[t.cell][t.seed] = t.loss
    pairs = Pairs(values, found.margin, share)
    return {(a, b): d for a, b in itertools.combinations(values, 2) if (d := pairs.between(a, b)) is not None}


def named(found: Summary) -> set[Pair]:
    """Pairs that the verdict is about."""
    return {(min(c.name, other), max(c.name, other)) for c in found.cells for other in (found.best, found.baseline)
            if other is not None and other != c.name}  # fmt: skip


def repeated(
    mine: Mapping[Pair, Difference], theirs: Mapping[Pair, Difference], among: Collection[Pair] | None = None
) -> Repeated:
    """``among``: these statements alone."""
    decided = tuple(pair for pair, d in mine.items() if d.decided and (among is None or pair in among))
    both = [pair for pair in decided if pair in theirs and theirs[pair].decided]
    again = tuple(pair for pair in both if theirs[pair].mean * mine[pair].mean > 0)
    return Repeated(decided, again, tuple(pair for pair in both if pair not in again))


def mistake(one: Grid, two: Grid) -> str | None:
    """Why these two cannot be compared."""
    if sorted(one.cells()) != sorted(two.cells()) or one.rates != two.rates:
        return "the two sweeps compare other cells or rates"
    if one.base.get("steps") != two.base.get("steps") or one.base.get("task") != two.base.get("task"):
        return "the two sweeps have another task or other steps"
    if common := sorted(set(one.seeds) & set(two.seeds)):
        return f"both sweeps have the seeds {', '.join(map(str, common))}: give the second --first-seed {max(one.seeds) + 1}"
    return None


def shown(difference: Difference | None) -> str:
    if difference is None:
        return "no difference"
    interval = "" if difference.low is None else f" [{difference.low:+.4f}, {difference.high:+.4f}]"
    return f"{difference.mean:+.4f}{interval}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path, help="a sweep")
    parser.add_argument("two", type=Path, help="the same sweep with other seeds")
    args = parser.parse_args(arguments)
    try:
        grids = [read_grid(folder) for folder in (args.one, args.two)]
        found = [answer.read(folder) for folder in (args.one, args.two)]
    except (RunUnreadable, OSError) as error:
        print(f"repeated_answer: {error}", file=sys.stderr)
        return 2
    if (wrong := mistake(*grids)) is not None:
        print(f"repeated_answer: {wrong}", file=sys.stderr)
        return 2
    each = [differences(f, grid.share) for f, grid in zip(found, grids, strict=True)]
    print(f"best: {found[0].best}, then {found[1].best}")
    good = True
    for title, among in (("pairs of the verdict", [named(f) for f in found]), ("all pairs", [None, None])):
        for i, direction in enumerate(("first run's", "second run's")):
            mine, theirs = each[i], each[1 - i]
            result = repeated(mine, theirs, among[i])
            print(f"{title}, {direction} decided statements: {len(result.again)} of {len(result.decided)} decided again ({result.share:.0%}), "
                  f"{len(result.flipped)} with the other sign")  # fmt: skip
            for pair in sorted(set(result.decided) - set(result.again)):
                what = "flipped" if pair in result.flipped else "not again"
                print(f"  {what}: {' against '.join(pair)}: {shown(mine[pair])}, then {shown(theirs.get(pair))}")
            good &= not result.flipped and result.share >= AGAIN
    for summary in found:
        tied = [f"{c.name} {c.behind_best.mean:+.3f}" for c in summary.cells if c.tied_with_best and c.behind_best]
        print(f"not told apart from {summary.best}: {', '.join(tied) or 'none'}")
        print(f"first sentence: {summary.verdict.en[0]}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
