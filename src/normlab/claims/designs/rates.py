"""Learning rates with and without a norm; norms that should be equal; accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...lab import Sweep
from ...runs import Evidence, TrialResult
from .base import Axes, Found, Size, Trained, Trials, arms_of, at_best_rate, text_experiment
from .text_and_images import digits_experiment

LEARNED = 0.2  # nats below a blind predictor: what counts as training at a rate
TARGET = 0.5  # nats below a blind predictor: what steps are counted to
SMOOTHED = 10  # training losses that are averaged for that


def _arm(trial: TrialResult) -> str:
    return "none" if trial.axes["placement"] == "none" else "layer"


def _rates(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, warmup=0.0)
    axes: Axes = {"placement": ["pre", "none"], "lr": list(size.rates), "seed": list(seeds)}
    return {"rates": Sweep(base=base, axes=axes)}


def largest_rates(found: Trials) -> dict[str, dict[int, float]]:
    """{arm: {seed: log10 of the largest rate up to which every one learns, from the best one on}}; a seed that learns at none has none."""
    assert found.blind is not None
    by_seed: dict[tuple[str, int], dict[float, float]] = {}
    for t in found.trials:
        assert t.seed is not None and t.lr is not None
        by_seed.setdefault((_arm(t), t.seed), {})[t.lr] = found.loss(t)
    found_rates: dict[str, dict[int, float]] = {}
    for (arm, seed), losses in by_seed.items():
        rates = sorted(losses)
        at = rates.index(min(rates, key=lambda r: losses[r]))
        if losses[rates[at]] >= found.blind - LEARNED:
            continue
        while at + 1 < len(rates) and losses[rates[at + 1]] < found.blind - LEARNED:
            at += 1
        found_rates.setdefault(arm, {})[seed] = math.log10(rates[at])
    return found_rates


def _ratio(found: Trials) -> dict[int, float]:
    largest = largest_rates(found)
    layer, none = largest.get("layer", {}), largest.get("none", {})
    return {s: layer[s] - none[s] for s in sorted(layer.keys() & none.keys())}


def steps_to_target(found: Trials, trial: TrialResult) -> float:
    """Until the mean of ten training losses is TARGET below a blind predictor's; all steps of the longest run if it never is."""
    assert found.blind is not None
    losses = [v for _, v in found.readings(trial, "loss")["model"]]
    for step in range(SMOOTHED, len(losses) + 1):
        if statistics.fmean(losses[step - SMOOTHED : step]) < found.blind - TARGET:
            return float(step)
    return float(max(t.steps or 0 for t in found.trials))


def _read_rates(found: Found) -> Evidence:
    rates = found["rates"]
    arms = at_best_rate(rates.trials, rates.loss, lambda t: f"{_arm(t)}, best rate")
    steps = at_best_rate(rates.trials, lambda t: steps_to_target(rates, t), _arm, judged_by=rates.loss)
    fewer = {s: math.log2(steps["layer"][s] / steps["none"][s]) for s in steps["layer"].keys() & steps["none"].keys()}
    return Evidence(
        arms={"best rates": arms},
        by_seed={"largest rate, adam": _ratio(rates), "steps to target, layer over none": fewer},
    )


RATES = Trained(
    name="rates",
    about=(f"Six layers of width 48, next byte of prose, AdamW at a constant rate without warm-up or clipping, rates a factor of about three apart: pre-norm LayerNorm and no norm. The largest rate is the last, from the best one upwards, that ends {LEARNED} nats below a blind predictor",
           f"六层宽 48，预测文本的下一个字节，AdamW 恒定学习率，不预热、不裁剪，学习率约三倍一档：前置 LayerNorm 与无归一化。最大学习率指从最佳者往上，最后一个比盲预测器低 {LEARNED} 奈特的"),
    # not at --quick: three rates of 80 steps decided against what nine seeds find
    sizes={"default": Size(seeds=9, steps=200, layers=6, rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1))},
    sweeps=_rates, read=_read_rates,
)  # fmt: skip


def _rates_sgd(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, warmup=0.0, optimizer="sgd")
    axes: Axes = {"placement": ["pre", "none"], "lr": list(size.rates), "seed": list(seeds)}
    return {"rates": Sweep(base=base, axes=axes)}


RATES_SGD = Trained(
    name="rates-sgd",
    about=("Four layers of width 48 as in `rates`, but SGD with a momentum of 0.9, rates from 1e-3 to 1: the largest that trains, pre-norm LayerNorm and no norm",
           "同 `rates`，四层宽 48，但用动量 0.9 的 SGD，学习率 1e-3 到 1：能训练的最大学习率，前置 LayerNorm 与无归一化"),
    sizes={"default": Size(seeds=4, steps=150, layers=4, rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0))},
    sweeps=_rates_sgd, read=lambda found: Evidence(by_seed={"largest rate, sgd": _ratio(found["rates"])}),
)  # fmt: skip


def _equivalence(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, lr=2e-3, warmup=0.15)
    plain = base.changed(norm_options={"elementwise_affine": False})
    detached = base.changed(norm_options={"detach_statistics": True})
    return {"norms": Sweep(base=base, axes={"norm": ["layer", "rms"], "seed": list(seeds)}),
            "plain": Sweep(base=plain, axes={"norm": ["layer"], "seed": list(seeds)}),
            "detached": Sweep(base=detached, axes={"norm": ["layer"], "seed": list(seeds)})}  # fmt: skip


def _read_equivalence(found: Found) -> Evidence:
    arms = arms_of(found["norms"], lambda t: str(t.axes["norm"]))
    arms |= arms_of(found["plain"], lambda _: "layer without affine")
    return Evidence(
        arms={"equivalence": {**arms, **arms_of(found["detached"], lambda _: "layer, statistics detached")}}
    )


EQUIVALENCE = Trained(
    name="equivalence",
    about=("Four pre-norm layers of width 48 at 2e-3 with a short warm-up: LayerNorm, LayerNorm without gain and bias, LayerNorm without a gradient through its statistics, RMSNorm", "四层前置归一化、宽 48、学习率 2e-3、短预热：LayerNorm、不带增益偏置的 LayerNorm、梯度不经过统计量的 LayerNorm、RMSNorm"),
    sizes={"default": Size(seeds=8, steps=300, layers=4)},
    sweeps=_equivalence, read=_read_equivalence,
)  # fmt: skip


def _accuracy(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"placement": ["pre", "none"], "lr": list(size.rates), "seed": list(seeds)}
    return {"digits": Sweep(base=digits_experiment(size), axes=axes)}


def _read_accuracy(found: Found) -> Evidence:
    def points(t: TrialResult) -> float:
        return 100 * (t.accuracy or 0.1)  # a run that diverged guesses one digit of ten

    arms = at_best_rate(found["digits"].trials, points, lambda t: f"digits, {_arm(t)}", max)
    return Evidence(arms={"accuracy": arms})


ACCURACY = Trained(
    name="accuracy",
    about=("Digits, four layers of width 48: accuracy in points, pre-norm LayerNorm and no norm, each at its best rate", "手写数字，四层宽 48：准确率（百分点），前置 LayerNorm 与无归一化，各取最佳学习率"),
    sizes={"default": Size(seeds=6, steps=400, rates=(3e-4, 1e-3, 3e-3))},
    sweeps=_accuracy, read=_read_accuracy,
)  # fmt: skip

DESIGNS = (RATES, RATES_SGD, EQUIVALENCE, ACCURACY)
