"""Runs that are asked questions between steps, gaps at one training loss, recurrent nets, and learners that are no networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...answer import matched_gaps
from ...lab import Sweep, feature_scaling
from ...runs import Evidence, Run, TrialResult, trial_folder
from .base import Axes, Found, Measured, Size, Trained, Trials, arms_of, text_experiment
from .text_and_images import digits_experiment


def _mean_reading(found: Trials, trial: TrialResult, probe: str, skip: int = 0) -> float:
    """Over sites, without the first ``skip`` of them, and over all times at which it was asked."""
    sites = list(found.readings(trial, probe).values())[skip:]
    return statistics.fmean(v for points in sites for _, v in points)


# ---- along a training step -------------------------------------------------------------------------------------------


def _landscape(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(
        size, lr=1e-3, warmup=0.1, evaluations=3, assays=("covariate_shift", "smoothness"), assays_at="evaluations"
    )
    noisy = base.changed(norm_noise={"shift": 0.5, "scale": 1.25})
    axes: Axes = {"placement": ["pre", "none"], "seed": list(seeds)}
    return {"plain": Sweep(base=base, axes=axes),
            "noisy": Sweep(base=noisy, axes={"placement": ["pre"], "seed": list(seeds)})}  # fmt: skip


def _read_landscape(found: Found) -> Evidence:
    names = {"pre": "layer", "none": "none"}
    shift: dict[str, dict[int, float]] = {}
    ranges: dict[str, dict[int, float]] = {}
    for trial in found["plain"].trials:
        arm, seed = names[str(trial.axes["placement"])], int(trial.seed or 0)
        shift.setdefault(f"shift, {arm}", {})[seed] = 1 - _mean_reading(
            found["plain"], trial, "covariate_cosine", skip=1
        )
        ranges.setdefault(arm, {})[seed] = _mean_reading(found["plain"], trial, "loss_range")
    ratio = {
        s: math.log10(ranges["layer"][s] / ranges["none"][s]) for s in ranges["layer"].keys() & ranges["none"].keys()
    }
    losses = arms_of(found["plain"], lambda t: {"pre": "steady layer", "none": "no norm"}[str(t.axes["placement"])])
    losses |= arms_of(found["noisy"], lambda _: "noisy layer")
    return Evidence(arms={"covariate shift": shift, "noise": losses}, by_seed={"loss range, layer over none": ratio})


LANDSCAPE = Trained(
    name="landscape",
    about=("Four layers of width 48 on prose at 1e-3: LayerNorm, LayerNorm with a shift of up to 0.5 and a scale of up to 1.25 drawn anew at every step, no norm. Three times in a run: the turn of each block's gradient once the blocks below have moved (1 - cosine), and the range of the loss along the step",
           "四层宽 48，文本，学习率 1e-3：LayerNorm、每步重抽平移（至 0.5）和缩放（至 1.25）噪声的 LayerNorm、无归一化。训练中三次测量：下方各块移动之后每块梯度的转动（1 − 余弦），以及沿更新方向损失的范围"),
    sizes={"default": Size(seeds=10, steps=300, layers=4)},
    sweeps=_landscape, read=_read_landscape,
)  # fmt: skip


# ---- the gap at one training loss ------------------------------------------------------------------------------------


def _matched_gap(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = digits_experiment(size, lr=1e-3, evaluations=16)
    return {"digits": Sweep(base=base, axes={"placement": ["pre", "none"], "seed": list(seeds)})}


def _read_matched_gap(found: Found) -> Evidence:
    digits = found["digits"]
    arms: dict[str, dict[int, float]] = {"layer, gap": {}, "none, gap": {}}
    by_seed: dict[int, dict[str, Run]] = {}
    for t in digits.trials:
        arm = "none, gap" if t.axes["placement"] == "none" else "layer, gap"
        by_seed.setdefault(int(t.seed or 0), {})[arm] = Run(trial_folder(digits.folder, str(t.name)))
    for seed, runs in by_seed.items():
        gaps = matched_gaps(runs)
        if all(g.gap is not None for g in gaps):  # both came to that training loss
            for g in gaps:
                arms[g.run][seed] = float(g.gap or 0.0)
    return Evidence(arms={"matched gap": arms})


MATCHED_GAP = Trained(
    name="matched-gap",
    about=("Digits, four layers of width 48 at 1e-3, several passes over the images: held-out minus training loss where both arms have the same training loss, the lowest that both reached",
           "手写数字，四层宽 48，学习率 1e-3，多遍训练：两方训练损失相同时（取双方都达到的最低值），留出损失减训练损失"),
    sizes={"default": Size(seeds=8, steps=1000)},
    sweeps=_matched_gap, read=_read_matched_gap,
)  # fmt: skip


# ---- other networks, other learners ----------------------------------------------------------------------------------


def _recurrent(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, warmup=0.1, clip=1.0).changed(architecture="recurrent", num_layers=1)
    return {"norms": Sweep(base=base, axes={"norm": ["layer", "batch"], "seed": list(seeds)}),
            "none": Sweep(base=base, axes={"placement": ["none"], "seed": list(seeds)})}  # fmt: skip


def _read_recurrent(found: Found) -> Evidence:
    arms = arms_of(found["norms"], lambda t: f"recurrent, {t.axes['norm']}")
    return Evidence(arms={"recurrent": {**arms, **arms_of(found["none"], lambda _: "recurrent, none")}})


RECURRENT = Trained(
    name="recurrent",
    about=("An LSTM of width 48 on prose at 3e-3: norms on the products that enter the gates and on the cell; BatchNorm per position, as Cooijmans et al. have it, but with running statistics shared by all positions",
           "宽 48 的 LSTM，文本，学习率 3e-3：归一化加在进入各门的乘积和细胞状态上；BatchNorm 按位置统计（如 Cooijmans 等），但运行统计量各位置共用"),
    sizes={"default": Size(seeds=5, steps=400)},
    sweeps=_recurrent, read=_read_recurrent,
)  # fmt: skip


def _feature_scaling(size: Size, seeds: Sequence[int]) -> Evidence:
    """Points of accuracy, mean over the datasets."""
    seen: dict[str, dict[int, list[float]]] = {}
    for r in feature_scaling(seeds=seeds):
        seen.setdefault(f"{r.learner}, {r.scaling}", {}).setdefault(r.seed, []).append(100 * r.accuracy)
    return Evidence(
        arms={"feature scaling": {arm: {s: statistics.fmean(v) for s, v in by.items()} for arm, by in seen.items()}}
    )


FEATURE_SCALING = Measured(
    name="feature-scaling",
    about=("scikit-learn's wine and breast cancer data, split anew for each seed: logistic regression by SGD, five nearest neighbours, a tree; columns raw, scaled to 0-1, standardized; accuracy in points, mean of both",
           "scikit-learn 的 wine 与 breast cancer 数据，每个种子重新划分：SGD 逻辑回归、五近邻、决策树；特征为原始、0–1、标准化；准确率（百分点），两者平均"),
    sizes={"quick": Size(seeds=5), "default": Size(seeds=10)},
    measure=_feature_scaling,
)  # fmt: skip

DESIGNS = (LANDSCAPE, MATCHED_GAP, RECURRENT, FEATURE_SCALING)
