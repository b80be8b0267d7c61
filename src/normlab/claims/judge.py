"""From numbers to a verdict. Pure: the same rule for identities, for experiments and for simulated arms.

Every interval of a claim is made at a level at which all of them together hold in 95 of 100 runs, so that a claim has one chance in
twenty, at most, to get a wrong verdict, whatever else was asked. Arms that share seeds are compared by
:class:`normlab.intervals.Differences`, over those arms that the claim names; numbers per seed by Student's t. An equivalence is a range on
both sides of zero: the interval must lie in it as a whole, which is two one-sided tests in one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..intervals import Differences
from ..runs import DECIDED, CheckResult, ClaimResult, Evidence
from .claim import Check, Claim

ERROR = 0.05  # chance of a wrong verdict per claim
NOTHING = "zero"  # the arm that a number per seed is compared with


def outcome_of(check: Check, low: float, high: float) -> str:
    """What an interval says: true, small (true, but less than matters), false, undecided."""
    true = check.least <= low and high <= check.most
    if check.margin:
        if low == high and low in (check.least, check.most):
            return "false"  # a difference of exactly nothing has no sign
        away = check.least + check.margin if math.isfinite(check.least) else check.most - check.margin
        short = high < away if math.isfinite(check.least) else low > away
        return "small" if true and short else "true" if true else "false" if short else "undecided"
    if true:
        return "true"
    return "false" if high < check.least or low > check.most else "undecided"


def judge(claim: Claim, evidence: Evidence, budget: str) -> ClaimResult:
    """The verdict on this evidence. A number that was not measured is undecided; where none was, the claim did not run."""
    level = 1 - ERROR / max(1, _families(claim.checks, evidence))
    checks = [_exact(check, evidence) or _estimated(check, claim.checks, evidence, level) for check in claim.checks]
    checks += [
        CheckResult(quantity=fact.source, core=fact.core, outcome="true" if fact.agrees else "false")
        for fact in claim.facts
    ]
    verdict = "untestable" if claim.untestable else verdict_of(checks)
    if claim.checks and not claim.facts and all(c.value is None for c in checks):
        verdict = "not run"
    return ClaimResult(
        id=claim.id, verdict=verdict, budget=budget, checks=tuple(checks),
        level=level if any(c.n for c in checks) else None,
        further_seeds=_further(checks) if verdict == "undecided" else None,
    )  # fmt: skip


def verdict_of(checks: Sequence[CheckResult]) -> str:
    core = [c.outcome for c in checks if c.core]
    reach = [c.outcome for c in checks if not c.core]
    if "false" in core:
        return "fails"
    if "undecided" in core:
        return "undecided"
    if "small" in core or {"false", "small"} & set(reach):
        return "conditions"
    return "undecided" if "undecided" in reach else "holds"


def _families(checks: Sequence[Check], evidence: Evidence) -> int:
    """How many sets of intervals must hold together: one per family of arms, one per number."""
    found = set()
    for check in checks:
        if check.against is not None:
            found.add(("arms", _family_of(check, evidence) or f"{check.quantity} - {check.against}"))
        elif check.quantity not in evidence.numbers:
            found.add(("by seed", check.quantity))
    return len(found)


def _exact(check: Check, evidence: Evidence) -> CheckResult | None:
    if check.against is not None or check.quantity not in evidence.numbers:
        return None
    value = evidence.numbers[check.quantity]
    return _result(check, value, value, value, 0, None)


def _estimated(check: Check, checks: Sequence[Check], evidence: Evidence, level: float) -> CheckResult:
    family = _family_of(check, evidence)
    if family is not None:
        assert check.against is not None
        arms = evidence.arms[family]
        named = {a for c in checks if c.against is not None for a in (c.quantity, c.against) if a in arms}
        compared = Differences({arm: arms[arm] for arm in arms if arm in named}, level)
        pair = (check.quantity, check.against)
    elif check.against is None and check.quantity in evidence.by_seed:
        values = evidence.by_seed[check.quantity]
        compared = Differences({check.quantity: values, NOTHING: dict.fromkeys(values, 0.0)}, level)
        pair = (check.quantity, NOTHING)
    else:
        return unmeasured(check)
    found = compared.between(*pair)
    if found is None:  # no seed in common
        return unmeasured(check)
    low = -math.inf if found.low is None else found.low
    high = math.inf if found.high is None else found.high
    needed = _seeds_needed(check, compared, pair, low, high)
    return _result(check, found.mean, low, high, found.n, needed)


def _family_of(check: Check, evidence: Evidence) -> str | None:
    """The family that holds both arms."""
    sides = {check.quantity, check.against}
    return next((family for family, arms in evidence.arms.items() if sides <= arms.keys()), None)


def _seeds_needed(check: Check, compared: Differences, pair: tuple[str, str], low: float, high: float) -> int | None:
    """To move the interval off the border it lies over; the nearest border that would decide."""
    borders = [b for b in (check.least, check.most) if math.isfinite(b)]
    if check.margin:
        borders += [b + check.margin * (1 if b == check.least else -1) for b in borders]
    crossed = [b for b in borders if low < b < high]
    if not crossed or outcome_of(check, low, high) != "undecided":
        return None
    plans = []
    for border in crossed:
        moved = {pair[0]: {s: v - border for s, v in compared.values[pair[0]].items()}}
        rest = {arm: values for arm, values in compared.values.items() if arm != pair[0]}
        if (plan := Differences({**moved, **rest}, compared.level).seeds_needed(*pair)) is not None:
            plans.append(plan.about)
    return min(plans, default=None)


def unmeasured(check: Check) -> CheckResult:
    """What is known of a number before anything is measured: its range."""
    return _result(check, math.nan, -math.inf, math.inf, 0, None)


def _result(check: Check, value: float, low: float, high: float, n: int, needed: int | None) -> CheckResult:
    return CheckResult(
        quantity=check.quantity, against=check.against, core=check.core, least=_known(check.least), most=_known(check.most),
        margin=check.margin or None, value=_known(value), low=_known(low), high=_known(high), n=n,
        outcome=outcome_of(check, low, high), seeds_needed=needed,
    )  # fmt: skip


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _further(checks: Sequence[CheckResult]) -> int | None:
    wanted = [c.seeds_needed - c.n for c in checks if c.outcome == "undecided" and c.seeds_needed is not None]
    return max(1, max(wanted)) if wanted else None


def expected_false(results: Sequence[ClaimResult]) -> float:
    """How many verdicts from samples are wrong by chance, at most, on average."""
    return ERROR * sum(r.level is not None and r.verdict in DECIDED for r in results)
