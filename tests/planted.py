"""Sweeps with a planted truth, and what holds for every answer."""

from __future__ import annotations

import itertools
import json
import math
import random
import re

from normlab.answer import answer as answer_of
from normlab.runs import Grid, TrialResult

RATES = (3e-4, 1e-3, 3e-3)
BY_RATE = dict(zip(RATES, (0.2, 0.0, 0.05), strict=True))


def sweep_of(norms=("layer", "rms"), placements=("pre", "post"), rates=RATES, seeds=3, **more):
    return {"schema": "normlab.sweep/1", "created": "2024-01-01T00:00:00Z", "base": {"task": "text", "steps": 200},
            "axes": {"norm": list(norms), "placement": list(placements), "lr": list(rates), "seed": list(range(seeds))},
            "baseline": {"norm": norms[0], "placement": placements[0]}, "refused": [], "unit": "nats per byte", "blind": 3.3,
            **more}  # fmt: skip


def trials_of(sweep, loss=lambda norm, placement, lr: 2.3 + BY_RATE.get(lr, 0.0), *, noise=0.0, shared=0.0, seed=0):
    """One entry per trial; ``loss`` gives a number, or the outcome. ``shared``: what a seed does to all cells alike."""
    draw = random.Random(seed)
    effects = {s: draw.gauss(0, shared) for s in sweep["axes"]["seed"]}
    found = []
    for norm, placement, lr, s in itertools.product(*sweep["axes"].values()):
        value, outcome = loss(norm, placement, lr), "trained"
        if isinstance(value, str):
            value, outcome = 4.0 if value in ("collapsed", "untrained") else None, value
        else:
            value += effects[s] + draw.gauss(0, noise)
        found.append({
            "name": f"{norm}-{placement}-lr{lr:g}-seed{s}", "cell": f"{norm}/{placement}",
            "axes": {"norm": norm, "placement": placement}, "lr": lr, "seed": s, "outcome": outcome, "loss": value,
            "first_loss": 5.3, "curve": [] if value is None else [[100, value + 0.5], [200, value]],
            "tokens_per_second": 1000.0 + s, "peak_memory": 7 + s,
        })  # fmt: skip
    return found


def answer(sweep, trials, **how):
    return answer_of(Grid.from_dict(sweep), [TrialResult.from_dict(t) for t in trials], **how)


def cells_of(found):
    return {c.name: c for c in found.cells}


def numbers(sentence):
    """Numbers apart from the names of cells."""
    return sorted(re.findall(r"(?<![\w./])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", sentence))


def check(found):
    """What holds for every answer."""
    json.dumps(found.to_dict(), allow_nan=False)
    en, zh = found.verdict.en, found.verdict.zh
    assert 1 <= len(en) == len(zh) <= 14
    for english, chinese in zip(en, zh, strict=True):
        assert numbers(english) == numbers(chinese), (english, chinese)
        assert max(len(english), 2 * len(chinese)) < 450, english
        assert english.endswith(".") and chinese.endswith("。") and not re.search("[一-鿿]", english)
        names = [c.name for c in found.cells] + [r.name for r in found.refused]
        assert {n for n in names if n in english} == {n for n in names if n in chinese}
    assert [c.rank for c in found.cells] == list(range(1, len(found.cells) + 1))
    means = [c.mean for c in found.cells]
    assert means == sorted(means, key=lambda m: math.inf if m is None else m)
    return found
