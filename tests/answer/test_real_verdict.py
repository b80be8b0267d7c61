"""A verdict of a sweep as people have it: nine cells, trials that failed with a diagnosis, choices, reasons; it stays short."""

from __future__ import annotations

import itertools
import random

import pytest
from planted import answer, check, sweep_of

from normlab.answer.phrases import LONGEST, packed

NORMS, PLACEMENTS, RATES = ("layer", "rms", "batch"), ("pre", "post", "deepnorm"), (3e-3, 1e-2, 3e-2)
AHEAD = {"pre": 0.0, "post": 0.12, "deepnorm": -0.02}
FORM = {"kind": "causal-position", "norm": "batch", "values": 16, "text": "causal_statistics='position': ..."}
INSIDE = {"pre": (0.9, 1.4, 12.0), "post": (0.1, 1.0, 31.0), "deepnorm": (0.5, 3.1, 6.0)}  # gradient, stream, turn


def demo(**more):
    """(sweep, trials) like those of the default comparison: three seeds at every rate, five at the best; post breaks at the highest rate,
    deepnorm is best at the highest, batch is worse and not in its usual form."""
    sweep = sweep_of(NORMS, PLACEMENTS, RATES, seeds=5, first_seeds=3, **more)
    sweep["base"] |= {"model": {"dim": 48, "num_layers": 4, "num_heads": 4}, "batch_size": 16}
    draw, found = random.Random(4), []
    for norm, placement, lr, seed in itertools.product(NORMS, PLACEMENTS, RATES, range(5)):
        best = 3e-2 if placement == "deepnorm" else 1e-2
        broken = placement == "post" and lr == 3e-2
        if seed >= (1 if broken else 5 if lr == best else 3):
            continue
        loss = 2.4 + AHEAD[placement] + 0.09 * (norm == "batch") + 0.05 * (lr != best) + draw.gauss(0, 0.012)
        rules = ["vanishing-gradient", "token-collapse"] if norm != "batch" else ["unstable-batch-statistics"]
        found.append({
            "name": f"{norm}-{placement}-lr{lr:g}-seed{seed}", "cell": f"{norm}/{placement}", "axes": {"norm": norm, "placement": placement},
            "lr": lr, "seed": seed, "outcome": "collapsed" if broken else "trained", "loss": 3.3 if broken else loss, "first_loss": 5.6,
            "curve": [] if broken else [[60, loss + 0.4], [120, loss]], "tokens_per_second": 9000.0 - 2000 * (norm == "batch") + draw.gauss(0, 50),
            "peak_memory": 300 * 2**20, "accuracy": 0.31, "train_loss": loss - 0.1, "parameters": 120_000 + 96 * (norm == "layer"),
            "choices": [FORM] if norm == "batch" else [],
            "findings": [{"rule": r, "severity": "critical", "site": None, "en": "x", "zh": "x"} for r in rules] if broken else [],
        })  # fmt: skip
    return sweep, found


def look(trial):
    gradient, stream, turn = INSIDE[trial.axes["placement"]]
    slightly = 1 + 0.02 * (trial.seed or 0)
    found = {"gradient": gradient * slightly, "stream": stream * slightly, "turn": turn * slightly}
    return found | ({"gap": 0.4 * slightly} if trial.axes["norm"] == "batch" else {})


EVERYTHING = {
    "as the default comparison": ({}, {}),
    "grown after two looks": ({"looks": [3, 4]}, {}),
    "with a margin": ({}, {"margin": 0.03}),
    "grown, with a margin": ({"looks": [3]}, {"margin": 0.03}),
}


@pytest.mark.parametrize("case", EVERYTHING)
def test_a_real_verdict_says_what_matters_in_few_sentences(case):
    more, how = EVERYTHING[case]
    sweep, trials = demo(**more)
    found = check(answer(sweep, trials, look=look, **how))  # at most 14 sentences of less than 450 characters
    en, zh = " ".join(found.verdict.en), "".join(found.verdict.zh)
    for words in ("Use ", "the baseline, by ", "Cost of ", "accuracy 0.310", "Holds for task text", "Averaged over the other axes",
                  "What the probes show to differ between ", "Decidedly ", "Training breaks above 0.01: ", "est at the edge of the grid",
                  "vanishing-gradient in 2 (layer/post, rms/post)", "unstable-batch-statistics in 1 (batch/post)",
                  "batch norm is not in its usual form"):  # fmt: skip
        assert words in en, words
    assert "梯度消失（vanishing-gradient） 2 次：" in zh and "批统计量不稳定" in zh
    assert "0.52 against 0.94 and 0.1" in en and "running statistics 0.42 in batch/post" in en
    assert len(found.verdict.en) <= 12


def test_a_partial_sweep_with_refused_cells_stays_short_too():
    sweep, trials = demo(refused=[{"name": "batch/pre", "axes": {"norm": "batch", "placement": "pre"}, "reason": "no way", "reason_zh": "不行"}],
                         looks=[3])  # fmt: skip
    found = check(answer(sweep, [t for t in trials if t["cell"] != "batch/pre"][:-3], look=look))
    assert found.verdict.en[0].startswith("Partial answer") and "Refused: batch/pre (no way)." in found.verdict.en


def test_packing_joins_what_fits_and_loses_nothing():
    short = [("One a", "一"), ("Two b", "二"), ("Three c", "三")]
    assert list(packed(short)) == [("One a; two b; three c", "一；二；三")]
    long = [("X" + "x" * 300, "长"), ("Y" + "y" * 200, "短"), ("Z", "短")]
    assert [len(en) for en, _ in packed(long)] == [301, 204] and list(packed([])) == []
    both = [("One", "字" * 150), ("Two", "字" * 100)]
    assert len(list(packed(both))) == 2 and all(2 * len(zh) <= LONGEST for _, zh in packed(both))
