"""BatchNorm in an encoder, where its statistics span batch and tokens as its papers have it: hidden bytes, docstrings, padding, gradients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...lab import Experiment, Sweep
from ...runs import Evidence, TrialResult
from .base import Axes, Found, Size, Trained, Trials, at_best_rate
from .start import slope
from .text_and_images import digits_experiment, drift

LONG = {"length": 96}  # bytes of a line: 46 % of the cells are padding; of lines of 32 it is 11 %


def hidden_bytes_experiment(size: Size, **changes: object) -> Experiment:
    """Hidden bytes of help pages, width 48: 16 lines of up to 32 bytes, 512 cells, as many as the other designs have."""
    base = Experiment(
        task="masked", options={"length": 32}, batch_size=16, steps=size.steps, lr=3e-3, warmup=0.1, weight_decay=0.0, evaluations=2,
        held_out=0, watch="none", model={"dim": 48, "num_layers": 4, "num_heads": 4},
    )  # fmt: skip
    return base.changed(**changes)


# ---- quality ---------------------------------------------------------------------------------------------------------


def _hidden_bytes(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = hidden_bytes_experiment(size, options=LONG, batch_size=6, held_out=320)
    axes: Axes = {"lr": list(size.rates), "seed": list(seeds)}
    running = base.changed(
        norm_options={"warmup_steps": size.steps // 10}
    )  # of the 10 000 of its default nothing would be left
    return {
        "norms": Sweep(base=base, axes={"norm": ["layer", "batch"], **axes}),
        "power": Sweep(base=running, axes={"norm": ["power"], **axes}),
        "counted": Sweep(base=base.changed(mask_statistics=False), axes={"norm": ["batch"], **axes}),
    }


def _read_hidden_bytes(found: Found) -> Evidence:
    arms: dict[str, dict[int, float]] = {}
    for name in ("norms", "power"):
        arms |= at_best_rate(found[name].trials, found[name].loss, lambda t: f"hidden bytes, {t.axes['norm']}")
    counted = found["counted"]
    padding = at_best_rate(counted.trials, counted.loss, lambda _: "padding counted")
    return Evidence(arms={"hidden bytes": arms, "padding": {**padding, "padding masked": arms["hidden bytes, batch"]}})


HIDDEN_BYTES = Trained(
    name="hidden-bytes",
    about=("An encoder of four pre-norm layers of width 48 names hidden bytes of lines of up to 96, nearly half of it padding: LayerNorm, BatchNorm and PowerNorm over batch and tokens with the padding left out, BatchNorm with the padding counted; each at its best rate",
           "四层前置归一化、宽 48 的编码器，填出最长 96 字节的行里被遮住的字节，近一半是填充：LayerNorm，跨批和词元、不算填充的 BatchNorm 与 PowerNorm，以及算进填充的 BatchNorm；各取最佳学习率"),
    sizes={"default": Size(seeds=4, steps=250, rates=(1e-3, 3e-3))},
    sweeps=_hidden_bytes, read=_read_hidden_bytes,
)  # fmt: skip


def _position(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = Experiment(task="docs", options={"length": 48}, batch_size=16, steps=size.steps, warmup=0.1, weight_decay=0.0, evaluations=2, held_out=0,
                      watch="none", assays=("position",), model={"dim": 48, "num_layers": 4, "num_heads": 4})  # fmt: skip
    axes: Axes = {"norm": ["layer", "batch"], "lr": list(size.rates), "seed": list(seeds)}
    return {"docs": Sweep(base=base, axes=axes)}


def _named(found: Trials, trial: TrialResult, probe: str) -> float:
    """Share of tokens whose position is named, mean over norms; a model that diverged was never asked, and chance is its answer."""
    sites = found.readings(trial, probe)
    return statistics.fmean(points[-1][1] for points in sites.values()) if sites else 1 / 48


def _read_position(found: Found) -> Evidence:
    docs = found["docs"]

    def at_best(value: object, arm: str) -> dict[str, dict[int, float]]:
        return at_best_rate(docs.trials, value, lambda t: f"{arm}, {t.axes['norm']}", judged_by=docs.loss)  # type: ignore[arg-type]

    kept = at_best(lambda t: _named(docs, t, "position_after") - _named(docs, t, "position_before"), "position kept")
    return Evidence(
        arms={"docs": at_best(docs.loss, "docs"), "position": at_best(lambda t: _named(docs, t, "position_after"), "position")},
        by_seed=kept,
    )  # fmt: skip


POSITION = Trained(
    name="position",
    about=("An encoder of four pre-norm layers of width 48 with sinusoidal positions names the package of a docstring of up to 48 bytes, with LayerNorm and with BatchNorm, each at its best rate; at the end linear discriminants name the position of each token from its state before and after every norm, on other sequences than they were fitted to",
           "四层前置归一化、宽 48、正弦位置编码的编码器，判断至多 48 字节的文档字符串属于哪个包，LayerNorm 与 BatchNorm 各取最佳学习率；末了用线性判别从每个归一化前后的状态读出词元的位置，在未参与拟合的序列上评判"),
    sizes={"default": Size(seeds=7, steps=250, rates=(1e-3, 3e-3))},
    sweeps=_position, read=_read_position,
)  # fmt: skip


# ---- statistics ------------------------------------------------------------------------------------------------------


def _inference_gap(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"norm": ["batch"], "seed": list(seeds)}
    assays = ("statistics_gap",)
    return {"text": Sweep(base=hidden_bytes_experiment(size, assays=assays), axes=axes),
            "digits": Sweep(base=digits_experiment(size, assays=assays), axes=axes)}  # fmt: skip


def _read_inference_gap(found: Found) -> Evidence:
    arms: dict[str, dict[str, dict[int, float]]] = {}
    for task, prefix in (("text", ""), ("digits", "digits, ")):
        for statistic in ("running", "batch"):
            losses = {int(t.seed or 0): readings["model"][-1][1] for t in found[task].trials
                      if (readings := found[task].readings(t, f"{statistic}_statistics_loss"))}  # fmt: skip
            arms.setdefault(f"statistics, {task}", {})[f"{prefix}{statistic} statistics"] = losses
    return Evidence(arms=arms)


INFERENCE_GAP = Trained(
    name="inference-gap",
    about=("Four pre-norm layers of width 48 with BatchNorm over batch and tokens at 3e-3, hidden bytes and digits: held-out loss of the trained model under its running statistics and under those of the batches it is judged on",
           "四层前置归一化、宽 48、跨批和词元的 BatchNorm，学习率 3e-3，遮住的字节与手写数字：训练好的模型用运行统计量、用评估批自身统计量时的留出损失"),
    sizes={"default": Size(seeds=5, steps=250)},
    sweeps=_inference_gap, read=_read_inference_gap,
)  # fmt: skip


def _gradients_of_statistics(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    axes: Axes = {"norm": ["batch"], "seed": list(seeds)}
    watched = {"watch": "full", "watch_every": 2, "lr": 1e-3}
    return {"text": Sweep(base=hidden_bytes_experiment(size, **watched), axes=axes),
            "digits": Sweep(base=digits_experiment(size, **watched), axes=axes)}  # fmt: skip


def outliers(found: Trials, trial: TrialResult) -> float:
    """log2 of the 99 % quantile over the median, of the later three quarters of the run: mean over norms and over both gradients."""
    ratios = []
    for probe in ("mean_grad_norm", "var_grad_norm"):
        for points in found.readings(trial, probe).values():
            values = [v for _, v in points[len(points) // 4 :]]
            ratios.append(math.log2(statistics.quantiles(values, n=100, method="inclusive")[98] / statistics.median(values)))  # fmt: skip
    return statistics.fmean(ratios)


def _read_gradients_of_statistics(found: Found) -> Evidence:
    of = {task: {int(t.seed or 0): outliers(found[task], t) for t in found[task].trials} for task in found}
    both = of["text"].keys() & of["digits"].keys()
    return Evidence(by_seed={
        "outliers of gradients, text": of["text"], "outliers of gradients, digits": of["digits"],
        "outliers of gradients, text over digits": {s: of["text"][s] - of["digits"][s] for s in sorted(both)},
    })  # fmt: skip


GRADIENTS_OF_STATISTICS = Trained(
    name="gradients-of-statistics",
    about=("The same models at 1e-3 under a watch, every second step: length of the gradients with respect to mean and variance of each BatchNorm, 99 % quantile over median in the later three quarters of the run",
           "同样的模型，学习率 1e-3，每隔一步监测：各 BatchNorm 的均值和方差所得梯度的长度，后四分之三的 99 % 分位数比中位数"),
    sizes={"default": Size(seeds=4, steps=240)},
    sweeps=_gradients_of_statistics, read=_read_gradients_of_statistics,
)  # fmt: skip

BATCHES = (2, 8, 32)  # lines of 32 bytes


def _batch_statistics(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    """Every step is recorded: what padding does is measured against an average that the watch keeps over recorded steps, and what real
    tokens do against the norm's own, over all steps. Only so are the two averages alike."""
    axes: Axes = {"norm": ["batch"], "seed": list(seeds)}
    watched = {"watch": "standard", "watch_every": 1, "lr": 1e-3}
    lines: dict[str, Sweep] = {
        f"{lines} lines": Sweep(base=hidden_bytes_experiment(size, batch_size=lines, **watched), axes=axes)
        for lines in BATCHES
    }
    return {**lines, "padded": Sweep(base=hidden_bytes_experiment(size, options=LONG, batch_size=6, held_out=320, **watched), axes=axes)}  # fmt: skip


def padded_over_real(found: Trials, trial: TrialResult) -> float:
    return math.log2(drift(found, trial, "batch_mean_distance_padded") / drift(found, trial))


def _read_batch_statistics(found: Found) -> Evidence:
    by_size = {lines: {int(t.seed or 0): drift(found[f"{lines} lines"], t) for t in found[f"{lines} lines"].trials}
               for lines in BATCHES}  # fmt: skip
    slopes = {s: slope(BATCHES, [by_size[b][s] for b in BATCHES]) for s in by_size[BATCHES[0]]}
    padded = {int(t.seed or 0): padded_over_real(found["padded"], t) for t in found["padded"].trials}
    return Evidence(by_seed={"drift against batch size": slopes, "drift, padded over real": padded})


BATCH_STATISTICS = Trained(
    name="batch-statistics",
    about=("The same model on hidden bytes at 1e-3, every step watched: how far batch means lie from their running average, with batches of 2, 8 and 32 lines; and, with nearly half of the cells padded, of real tokens and of all cells",
           "同样的模型，遮住的字节，学习率 1e-3，每步监测：批均值离其运行平均多远，每批 2、8、32 行；以及近一半是填充时，只算真实词元与连填充一起算"),
    sizes={"default": Size(seeds=4, steps=120)},
    sweeps=_batch_statistics, read=_read_batch_statistics,
)  # fmt: skip

DESIGNS = (HIDDEN_BYTES, POSITION, INFERENCE_GAP, GRADIENTS_OF_STATISTICS, BATCH_STATISTICS)
