"""BatchNorm where the data differs: text, images, small batches, convolutions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...lab import Experiment, Sweep
from ...runs import Evidence, TrialResult
from .base import Axes, Found, Size, Trained, Trials, at_best_rate, text_experiment


def digits_experiment(size: Size, **changes: object) -> Experiment:
    """8 x 8 digits in 16 patches, width 48, 32 images: 512 tokens, as many as 16 windows of 32 bytes."""
    base = Experiment(
        task="digits", batch_size=32, steps=size.steps, lr=3e-3, warmup=0.1, weight_decay=0.0, evaluations=2, held_out=0,
        watch="none", model={"dim": 48, "num_layers": 4, "num_heads": 4},
    )  # fmt: skip
    return base.changed(**changes)


def drift(found: Trials, trial: TrialResult, probe: str = "batch_mean_distance") -> float:
    """Mean over norms, and over the later half of the recorded steps."""
    late = []
    for points in found.readings(trial, probe).values():
        late += [v for _, v in points[len(points) // 2 :]]
    return statistics.fmean(late)


def _text_and_images(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    text = text_experiment(size, warmup=0.1, schedule="cosine", clip=1.0).changed(num_layers=4)
    digits = digits_experiment(size)
    rates: Axes = {"lr": list(size.rates), "seed": list(seeds)}
    watched: Axes = {"norm": ["batch"], "seed": list(seeds)}
    # Batch statistics as NLP pools them, over batch and tokens: in an encoder, where they may. Both see 512 tokens per batch.
    return {
        "text": Sweep(base=text, axes={"norm": ["layer", "batch", "power"], **rates}),
        "digits": Sweep(base=digits, axes={"norm": ["layer", "batch"], **rates}),
        "text, watched": Sweep(base=text.changed(watch="standard", lr=1e-3), axes=watched),
        "digits, watched": Sweep(base=digits.changed(watch="standard", lr=1e-3), axes=watched),
    }


def _read_text_and_images(found: Found) -> Evidence:
    arms = {task: at_best_rate(found[task].trials, found[task].loss, lambda t: f"{task}, {t.axes['norm']}")  # noqa: B023
            for task in ("text", "digits")}  # fmt: skip
    drifts = {task: {t.seed: drift(found[f"{task}, watched"], t) for t in found[f"{task}, watched"].trials}
              for task in ("text", "digits")}  # fmt: skip
    common = sorted(drifts["text"].keys() & drifts["digits"].keys())  # type: ignore[type-var]
    ratio = {int(s or 0): math.log2(drifts["text"][s] / drifts["digits"][s]) for s in common}
    return Evidence(arms=arms, by_seed={"drift of the mean, text over digits": ratio})


TEXT_AND_IMAGES = Trained(
    name="text-and-images",
    about=("Four pre-norm layers of width 48 on prose (next byte; BatchNorm per position, PowerNorm running, so that no token sees a later one) and on digits, 512 tokens per batch, each norm at its best rate; a watched run of BatchNorm at 1e-3 gives the distance of batch means from running ones",
           "四层前置归一化、宽 48：文本（预测下一个字节；BatchNorm 按位置统计、PowerNorm 用运行统计量，词元看不到后文）与手写数字，每批 512 个词元，各取最佳学习率；另以 1e-3 监测 BatchNorm，测批均值与运行均值的距离"),
    sizes={"quick": Size(seeds=3, steps=80, rates=(3e-3,)), "default": Size(seeds=5, steps=300, rates=(3e-3, 1e-2))},
    sweeps=_text_and_images, read=_read_text_and_images,
)  # fmt: skip


def _small_batches(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    """``steps`` are those at 32 images; smaller batches take more, for the same number of images."""
    axes: Axes = {"norm": ["batch", "layer", "group"], "lr": list(size.rates), "seed": list(seeds)}
    return {f"{images} images": Sweep(base=digits_experiment(size, batch_size=images, steps=size.steps * 32 // images), axes=axes)
            for images in (2, 8, 32)}  # fmt: skip


def _read_small_batches(found: Found) -> Evidence:
    arms: dict[str, dict[int, float]] = {}
    for name, trials in found.items():
        arms |= at_best_rate(trials.trials, trials.loss, lambda t: f"{t.axes['norm']}, {name}")  # noqa: B023
    return Evidence(arms={"small batches": arms})


SMALL_BATCHES = Trained(
    name="small-batches",
    about=("Digits, four pre-norm layers of width 48, batches of 2, 8 and 32 images at the same number of images seen: BatchNorm, LayerNorm, GroupNorm, each at its best rate",
           "手写数字，四层前置归一化、宽 48，批大小 2、8、32，看过的图像总数相同：BatchNorm、LayerNorm、GroupNorm，各取最佳学习率"),
    sizes={"default": Size(seeds=6, steps=80, rates=(1e-3, 3e-3))},
    sweeps=_small_batches, read=_read_small_batches,
)  # fmt: skip


def _convolution(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = digits_experiment(size).changed(model={"architecture": "plain-convolution", "dim": 32, "num_layers": 4})
    axes: Axes = {"lr": list(size.rates), "seed": list(seeds)}
    return {"norms": Sweep(base=base, axes={"norm": ["layer", "batch"], **axes}),
            "none": Sweep(base=base, axes={"placement": ["none"], **axes})}  # fmt: skip


def _read_convolution(found: Found) -> Evidence:
    norms, none = found["norms"], found["none"]
    arms = at_best_rate(norms.trials, norms.loss, lambda t: f"convolution, {t.axes['norm']}")
    return Evidence(
        arms={"convolution": {**arms, **at_best_rate(none.trials, none.loss, lambda _: "convolution, none")}}
    )


CONVOLUTION = Trained(
    name="convolution",
    about=("Digits, four 3 x 3 convolutions of 32 channels without residual sums, a norm between convolution and activation: BatchNorm, LayerNorm of each pixel's channels, none; each at its best rate",
           "手写数字，四层 3 × 3 卷积、32 通道、无残差，归一化在卷积与激活函数之间：BatchNorm、对每个像素各通道的 LayerNorm、无归一化；各取最佳学习率"),
    sizes={"default": Size(seeds=4, steps=250, rates=(1e-3, 3e-3))},
    sweeps=_convolution, read=_read_convolution,
)  # fmt: skip

DESIGNS = (TEXT_AND_IMAGES, SMALL_BATCHES, CONVOLUTION)
