"""Where the norm stands, trained: warm-up, other norms, many layers, effective depth, depth against width, final quality."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...lab import Sweep
from ...runs import Evidence, TrialResult
from .base import Axes, Found, Size, Trained, Trials, arms_of, at_best_rate, text_experiment
from .text_and_images import digits_experiment

WARM = 0.5  # share of the steps


def _warmth(trial: TrialResult) -> str:
    return f"{trial.axes['placement']}, {'warm-up' if trial.axes['warmup'] else 'no warm-up'}"


def _warm_up(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    """Post-norm and pre-norm at the first of the depths; the others are controls of post-norm."""
    found = {}
    for depth in size.depths:
        axes: Axes = {
            "placement": ["post", "pre"] if depth == size.depths[0] else ["post"],
            "warmup": [0.0, WARM],
            "seed": list(seeds),
        }
        found[f"{depth} layers"] = Sweep(base=text_experiment(size, lr=size.rates[0], num_layers=depth), axes=axes)
    return found


def _read_warm_up(found: Found) -> Evidence:
    first, *controls = found
    arms = {"warm-up": arms_of(found[first], _warmth)}
    for name in controls:
        arms[f"warm-up, {name}"] = arms_of(found[name], lambda t: f"{name}, {_warmth(t)}")  # noqa: B023
    return Evidence(arms=arms)


WARM_UP = Trained(
    name="warm-up",
    about=("Eight layers of width 48, next byte of prose, LayerNorm, AdamW at 3e-3 (600 steps: 2e-3) without clipping: post-norm and pre-norm, without warm-up and with one over half of the steps; two layers as a control",
           "八层宽 48，预测文本的下一个字节，LayerNorm，AdamW 学习率 3e-3（600 步时 2e-3），不裁剪梯度：后置与前置，不预热与前一半步数预热；另以两层作对照"),
    sizes={"quick": Size(seeds=3, steps=100, depths=(8,), rates=(3e-3,)), "default": Size(seeds=5, steps=600, depths=(8, 2), rates=(2e-3,))},
    sweeps=_warm_up, read=_read_warm_up,
)  # fmt: skip


def _other_norms(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"norm": ["rms"], "placement": ["post", "pre"], "warmup": [0.0, WARM], "seed": list(seeds)}
    return {"rms": Sweep(base=text_experiment(size), axes=axes)}


OTHER_NORMS = Trained(
    name="other-norms",
    about=("The warm-up experiment with RMSNorm", "预热实验，改用 RMSNorm"),
    sizes={"default": Size(seeds=3, steps=400)},
    sweeps=_other_norms,
    read=lambda found: Evidence(arms={"other norms": arms_of(found["rms"], lambda t: f"rms, {_warmth(t)}")}),
)  # fmt: skip


def _deep(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, lr=1e-3).changed(dim=32, num_heads=2)
    return {"deep": Sweep(base=base, axes={"placement": ["post", "deepnorm"], "seed": list(seeds)})}


DEEP = Trained(
    name="deep",
    about=("Many layers of width 32 at 1e-3 without warm-up: post-norm and DeepNorm", "许多层、宽 32、学习率 1e-3、不预热：后置与 DeepNorm"),
    sizes={"quick": Size(seeds=3, steps=80, layers=16), "default": Size(seeds=3, steps=200, layers=48)},
    sweeps=_deep,
    read=lambda found: Evidence(arms={"deep": arms_of(found["deep"], lambda t: f"{t.axes['placement']}, deep")}),
)  # fmt: skip


def _effective_depth(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, lr=2e-3, warmup=WARM, watch="lite", assays=("block_drop",))
    return {"watched": Sweep(base=base, axes={"placement": ["pre", "post"], "seed": list(seeds)})}


def _angles(found: Trials, trial: TrialResult) -> list[float]:
    """By block, the mean over the last third of the recorded steps."""
    sites = found.readings(trial, "angle")
    means = []
    for points in sites.values():
        late = [v for _, v in points[-max(1, len(points) // 3) :]]
        means.append(statistics.fmean(late))
    return means


def _read_effective_depth(found: Found) -> Evidence:
    watched = found["watched"]
    depths: dict[str, dict[int, float]] = {}
    ratios: dict[str, dict[int, float]] = {}
    for trial in watched.trials:
        assert trial.seed is not None
        placement = trial.axes["placement"]
        angles = _angles(watched, trial)
        total, squares = math.fsum(angles), math.fsum(a * a for a in angles)
        depths.setdefault(f"effective depth, {placement}", {})[trial.seed] = total * total / squares if squares else 0.0
        ratio = angles[-1] / angles[0] if angles[0] else 0.0
        ratios.setdefault(f"angle of last over first, {placement}", {})[trial.seed] = ratio
        drops = [points[-1][1] for points in watched.readings(trial, "block_drop").values()]
        inner = drops[1:-1] or drops[-1:]  # the last block also serves the output
        deep = statistics.fmean(inner[-max(1, len(drops) // 3) :])
        ratios.setdefault(f"drop of deep over first, {placement}", {})[trial.seed] = (
            deep / drops[0] if drops[0] else 0.0
        )
    return Evidence(arms={"effective depth": depths}, by_seed=ratios)


EFFECTIVE_DEPTH = Trained(
    name="effective-depth",
    about=("Eight layers trained with warm-up at 2e-3 under a watch: the angle by which each block turns the stream, last third of the run; effective depth is (sum of angles)^2 / sum of squares; at the end the held-out loss without each block",
           "八层、学习率 2e-3、有预热，训练时监测：各块转动残差流的角度（最后三分之一）；有效深度为角度和的平方除以平方和；末尾测去掉每个块的留出损失"),
    sizes={"quick": Size(seeds=3, steps=100), "default": Size(seeds=5, steps=400)},
    sweeps=_effective_depth, read=_read_effective_depth,
)  # fmt: skip


def _depth_or_width(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"lr": list(size.rates), "seed": list(seeds)}
    shapes = {"deep": {"num_layers": 8, "dim": 48}, "wide": {"num_layers": 2, "dim": 96}}
    return {name: Sweep(base=text_experiment(size, warmup=0.1, schedule="cosine").changed(**shape), axes=axes)
            for name, shape in shapes.items()}  # fmt: skip


def _read_depth_or_width(found: Found) -> Evidence:
    arms = {name: at_best_rate(t.trials, t.loss, lambda _: name)[name] for name, t in found.items()}  # noqa: B023
    return Evidence(arms={"depth or width": arms})


DEPTH_OR_WIDTH = Trained(
    name="depth-or-width",
    about=("Pre-norm, eight layers of width 48 and two of width 96: 12 L d^2 weights are the same; each at its best of the rates, chosen on the other seeds",
           "前置归一化，八层宽 48 与两层宽 96：12·L·d² 个权重相同；各取最佳学习率（由其他种子选出）"),
    sizes={"default": Size(seeds=5, steps=400, rates=(1e-3, 3e-3, 1e-2))},
    sweeps=_depth_or_width, read=_read_depth_or_width,
)  # fmt: skip


def _pre_or_deepnorm(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"placement": ["pre", "deepnorm"], "lr": list(size.rates), "seed": list(seeds)}
    text = text_experiment(size, warmup=0.1, schedule="cosine", clip=1.0)
    return {"text": Sweep(base=text, axes=axes), "digits": Sweep(base=digits_experiment(size), axes=axes)}


def _read_pre_or_deepnorm(found: Found) -> Evidence:
    arms: dict[str, dict[str, dict[int, float]]] = {}
    for task, trials in found.items():
        metrics = {f"{task} loss": trials.loss, f"{task} accuracy": lambda t: 100 * (t.accuracy or 0.0)}
        for metric, value in metrics.items():
            arms[metric] = at_best_rate(
                trials.trials, value, lambda t: f"{metric}, {t.axes['placement']}", judged_by=trials.loss  # noqa: B023
            )  # fmt: skip
    return Evidence(arms=arms)


PRE_OR_DEEPNORM = Trained(
    name="pre-or-deepnorm",
    about=("Pre-norm and post-norm with DeepNorm at the same steps, six layers of width 48 on prose and four on digits, each at its best rate: loss and accuracy of both tasks",
           "步数相同的前置归一化与 DeepNorm 后置归一化，文本六层、手写数字四层，宽 48，各取最佳学习率：两个任务的损失与准确率"),
    sizes={"default": Size(seeds=4, steps=250, layers=6, rates=(1e-3, 3e-3))},
    sweeps=_pre_or_deepnorm, read=_read_pre_or_deepnorm,
)  # fmt: skip


def _final_quality(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(size, warmup=0.1, schedule="cosine").changed(dim=128, evaluations=8)
    return {"final": Sweep(base=base, axes={"placement": ["pre", "post"], "lr": list(size.rates), "seed": list(seeds)})}


def _read_final_quality(found: Found) -> Evidence:
    final = found["final"]
    arms = at_best_rate(final.trials, final.loss, lambda t: f"final, {t.axes['placement']}")
    return Evidence(arms={"final quality": arms})


FINAL_QUALITY = Trained(
    name="final-quality",
    about=("Six layers of width 128, 10 000 steps with warm-up and cosine, each at its best rate", "六层宽 128，10000 步，预热加余弦，各取最佳学习率"),
    sizes={"full": Size(seeds=5, steps=10_000, layers=6, rates=(3e-4, 1e-3, 3e-3))},
    sweeps=_final_quality, read=_read_final_quality,
)  # fmt: skip

DESIGNS = (WARM_UP, OTHER_NORMS, DEEP, EFFECTIVE_DEPTH, DEPTH_OR_WIDTH, PRE_OR_DEEPNORM, FINAL_QUALITY)
