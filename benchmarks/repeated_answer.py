"""Do two runs of the same comparison with other seeds say the same? Decided statements of each, and what the other says of them.

    normlab compare --out runs/one && normlab compare --first-seed 100 --out runs/two
    python benchmarks/repeated_answer.py runs/one runs/two

A statement is a decided difference between two cells: of all pairs, and of those that a verdict names (with the baseline, with the best). Ends
with code 1 if a sign flips, or if less than 80 % of either run's statements are decided again.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from normlab import answer
from normlab.answer.pairs import Pairs
from normlab.runs import Difference, Summary

AGAIN = 0.8


def differences(found: Summary) -> dict[tuple[str, str], Difference]:
    """Of all pairs of cells, in the order of their names, each at its best rate."""
    rates = {c.name: c.best_lr for c in found.cells if c.best_lr is not None}
    values: dict[str, dict[int, float]] = {name: {} for name in sorted(rates)}
    for t in found.trials:
        if t.cell in rates and t.lr == rates[t.cell] and t.loss is not None and t.seed is not None:
            values[t.cell][t.seed] = t.loss
    pairs = Pairs(values, found.margin)
    return {(a, b): d for a, b in itertools.combinations(values, 2) if (d := pairs.between(a, b)) is not None}


def named(found: Summary) -> set[tuple[str, str]]:
    """Pairs that the verdict is about."""
    return {(min(c.name, other), max(c.name, other)) for c in found.cells for other in (found.best, found.baseline)
            if other is not None and other != c.name}  # fmt: skip


def compare(one: Summary, two: Summary, *, every: bool) -> tuple[list[str], float]:
    """(signs that flip, the smaller share of one's decided statements that the other decides again)."""
    first, second = differences(one), differences(two)
    flips, again = [], []
    for mine, theirs, keep in ((first, second, named(one)), (second, first, named(two))):
        decided = [pair for pair, d in mine.items() if d.decided and (every or pair in keep)]
        same = [p for p in decided if p in theirs and theirs[p].decided and theirs[p].mean * mine[p].mean > 0]
        flips += [f"{a} against {b}" for a, b in decided
                  if (a, b) in theirs and theirs[a, b].decided and theirs[a, b].mean * mine[a, b].mean < 0]  # fmt: skip
        share = len(same) / len(decided) if decided else 1.0
        print(
            f"{'all pairs' if every else 'pairs of the verdict'}: {len(same)} of {len(decided)} decided statements again ({share:.0%})"
        )
        for a, b in sorted(set(decided) - set(same)):
            d, other = mine[a, b], theirs.get((a, b))
            seen = "no difference" if other is None else f"{other.mean:+.4f} [{other.low:+.4f}, {other.high:+.4f}]"
            print(f"  not again: {a} against {b}: {d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}], then {seen}")
        again.append(share)
    return flips, min(again)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("two", type=Path)
    args = parser.parse_args()
    one, two = answer.read(args.one), answer.read(args.two)
    print(f"best: {one.best}, then {two.best}")
    good = True
    for every in (False, True):
        flips, share = compare(one, two, every=every)
        print(f"signs that flip: {', '.join(sorted(set(flips))) or 'none'}")
        good &= not flips and share >= AGAIN
    for found in (one, two):
        tied = [f"{c.name} {c.behind_best.mean:+.3f}" for c in found.cells if c.tied_with_best and c.behind_best]
        print(f"not told apart from {found.best}: {', '.join(tied) or 'none'}")
        print(f"first sentence: {found.verdict.en[0]}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
