"""Verdicts that must turn do turn: a sign planted wrong in every rule, post-norm placed as pre-norm, BatchNorm replaced, the mask left in place."""

from __future__ import annotations

import dataclasses
import math

import pytest
from test_designs import evidence

from normlab.claims import CLAIMS, Check, Claim
from normlab.claims.designs import DESIGNS, Size
from normlab.claims.run import judge_one
from normlab.norms import NORMS
from normlab.placements import PLACEMENTS
from normlab.runs import Evidence

EMPIRICAL = [c for c in CLAIMS.values() if c.designs]
SEEDS = range(5)
WIDE = 4.0  # how far from a border, in the largest margin or width that the rule has


def spread(value: float) -> dict[int, float]:
    """Five seeds around a number, hardly apart."""
    return {s: value + 1e-7 * max(1.0, abs(value)) * (s - 2) for s in SEEDS}


def inside(checks: list[Check]) -> float | None:
    """A number that all of these rules want; None if they contradict each other."""
    least = max(c.least + WIDE * c.margin for c in checks)
    most = min(c.most - WIDE * c.margin for c in checks)
    if least > most:
        return None
    if math.isfinite(least) and math.isfinite(most):
        return (least + most) / 2
    return least + 1.0 if math.isfinite(least) else most - 1.0


def outside(check: Check) -> float:
    """Beyond the border, on the wrong side."""
    return check.most + 1.0 if math.isfinite(check.most) else check.least - 1.0


def planted(claim: Claim, values: dict[tuple[str, str | None], float]) -> Evidence:
    """Evidence in which every number of the claim has the value given. Each difference gets arms of its own family."""
    by_seed = {q: spread(v) for (q, against), v in values.items() if against is None}
    arms = {f"{q} - {a}": {q: {s: 5.0 + v for s, v in spread(value).items()}, a: dict.fromkeys(SEEDS, 5.0)}
            for (q, a), value in values.items() if a is not None}  # fmt: skip
    return Evidence(by_seed=by_seed, arms=arms)


def by_number(claim: Claim) -> dict[tuple[str, str | None], list[Check]]:
    exact = set(claim.measure()) if claim.measure else set()
    found: dict[tuple[str, str | None], list[Check]] = {}
    for check in claim.checks:
        if check.quantity not in exact:
            found.setdefault((check.quantity, check.against), []).append(check)
    return found


@pytest.mark.parametrize("claim", EMPIRICAL, ids=lambda c: c.id)
def test_a_sign_planted_wrong_turns_every_rule(claim: Claim):
    exact = Evidence(numbers=dict(claim.measure())) if claim.measure else Evidence()
    numbers = by_number(claim)
    right = {key: inside(checks) for key, checks in numbers.items()}
    assert None not in right.values(), "rules of one number that no number meets"

    def found(values):
        result = judge_one(claim, exact, {claim.designs[0]: planted(claim, values)}, "default")
        return result.verdict, {(c.quantity, c.against): c.outcome for c in result.checks if c.n}

    before, outcomes = found(right)
    assert set(outcomes.values()) == {"true"} and len(outcomes) == len(numbers)
    assert before in ("holds", "conditions", "fails") and (before == "holds" or exact.numbers), (
        "samples speak for it, exact numbers may not"
    )
    for key, checks in numbers.items():
        turned, outcome = found({**right, key: outside(checks[0])})
        assert outcome[key] == "false"
        if before != "fails":  # where an identity speaks against it nothing can turn it
            assert turned == ("fails" if any(c.core for c in checks) else "conditions")


PRE, POST = (2.26, 2.27, 2.25, 2.30, 2.28), (3.18, 3.21, 3.21, 3.23, 3.20)
WORLDS = {  # what pilots of such runs gave: (evidence of the design, which arm is which in the mutant, claims that must turn)
    "post placed as pre": ("warm-up", {"warm-up": {"pre, no warm-up": PRE, "post, no warm-up": POST, "pre, warm-up": PRE, "post, warm-up": (2.30, 2.33, 2.31, 2.36, 2.33)}},
                           {"post, no warm-up": "pre, no warm-up", "post, warm-up": "pre, warm-up"}, ("C64",)),
    "BatchNorm swapped for LayerNorm": ("text-and-images", {"text": {"text, layer": (2.20, 2.18, 2.21, 2.19, 2.20), "text, batch": (2.29, 2.26, 2.30, 2.27, 2.28), "text, power": (2.31, 2.28, 2.33, 2.29, 2.31)}},
                                        {"text, batch": "text, layer", "text, power": "text, layer"}, ("C84", "X11")),
    "the mask switched off in both arms": ("hidden-bytes", {"padding": {"padding counted": (2.95, 2.93, 2.97, 2.94, 2.96), "padding masked": (2.85, 2.84, 2.86, 2.84, 2.87)}},
                                           {"padding masked": "padding counted"}, ("C31",)),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_a_mutant_of_the_arms_turns_what_rests_on_them(name):
    design, families, swapped, claims = WORLDS[name]
    whole = {f: {arm: dict(enumerate(v)) for arm, v in found.items()} for f, found in families.items()}
    other = {f: {arm: found[swapped.get(arm, arm)] for arm in found} for f, found in whole.items()}
    for claim in claims:
        pairs = {
            (c.quantity, c.against)
            for c in CLAIMS[claim].checks
            if {c.quantity, c.against} <= {a for f in whole.values() for a in f}
        }
        assert pairs
        before, after = (
            {(c.quantity, c.against): c.outcome for c in judge_one(CLAIMS[claim], Evidence(), {design: Evidence(arms=found)}, "default").checks}
            for found in (whole, other)
        )  # fmt: skip
        turned = {pair: (before[pair], after[pair]) for pair in pairs}
        assert any(was == "true" and now == "false" for was, now in turned.values()), turned


# ---- in the code itself ----------------------------------------------------------------------------------------------


def updates(depths: tuple[int, ...], seeds: int) -> Evidence:
    return DESIGNS["updates"].measure(Size(seeds=seeds, depths=depths), range(seeds))


def test_post_norm_built_as_pre_norm_loses_its_large_updates(monkeypatch):
    before = updates((2, 16), 2).by_seed["post over deepnorm"]
    monkeypatch.setitem(PLACEMENTS, "post", PLACEMENTS["pre"])
    after = updates((2, 16), 2).by_seed["post over deepnorm"]
    assert min(before.values()) > max(after.values())


@pytest.mark.nightly
def test_post_norm_built_as_pre_norm_turns_the_claim_of_deepnorm(monkeypatch):
    def found() -> tuple[str, str]:
        result = judge_one(CLAIMS["C43"], Evidence(), {"updates": updates((8, 32), 5)}, "quick")
        return result.verdict, result.checks[0].outcome

    before = found()
    assert before[0] != "fails" and before[1] == "true"
    monkeypatch.setitem(PLACEMENTS, "post", PLACEMENTS["pre"])
    assert found() == ("fails", "false")


@pytest.mark.nightly
def test_batch_norm_swapped_for_layer_norm_leaves_no_difference(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    before = evidence(DESIGNS["convolution"], tmp_path / "a").arms["convolution"]
    assert before["convolution, batch"] != before["convolution, layer"]
    monkeypatch.setitem(NORMS, "batch", NORMS["layer"])
    after = evidence(DESIGNS["convolution"], tmp_path / "b").arms["convolution"]
    assert after["convolution, batch"] == after["convolution, layer"]


@pytest.mark.nightly
def test_a_mask_that_is_never_dropped_leaves_no_difference(tmp_path, monkeypatch):
    before = evidence(DESIGNS["hidden-bytes"], tmp_path / "a", blind=99.0).arms[
        "padding"
    ]  # so short a run ends worse than blind
    assert before["padding counted"] != before["padding masked"]
    design = DESIGNS["hidden-bytes"]
    sweeps = design.sweeps

    def forgetful(size, seeds):
        made = sweeps(size, seeds)
        counted = made["counted"]
        model = {k: v for k, v in counted.base.model.items() if k != "mask_statistics"}
        return {**made, "counted": dataclasses.replace(counted, base=dataclasses.replace(counted.base, model=model))}

    after = evidence(dataclasses.replace(design, sweeps=forgetful), tmp_path / "b", blind=99.0).arms["padding"]
    assert after["padding counted"] == after["padding masked"]
    result = judge_one(
        CLAIMS["C31"],
        Evidence(),
        {
            "hidden-bytes": Evidence(
                arms={"padding": {n: {s: v[0] + 0.01 * s for s in range(3)} for n, v in after.items()}}
            )
        },
        "default",
    )
    assert result.checks[1].outcome == "false"
