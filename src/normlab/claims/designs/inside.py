"""What trained models are like inside: values after their norms, what is left of their input, which tokens are alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...lab import Sweep
from ...runs import Evidence, TrialResult
from .base import Found, Size, Trained, Trials, late, text_experiment


def _inside(size: Size, seeds: Sequence[int]) -> dict[str, Sweep]:
    base = text_experiment(
        size, lr=2e-3, warmup=0.5, watch="full", watch_every=max(1, size.steps // 12), assays=("parallel_blocks", "token_similarity")
    )  # fmt: skip
    return {"inside": Sweep(base=base, axes={"placement": ["pre", "post"], "seed": list(seeds)})}


def _by_site(found: Trials, trial: TrialResult, probe: str) -> list[float]:
    """Mean of the last third of the recorded steps."""
    return [statistics.fmean(late(points, 3)) for points in found.readings(trial, probe).values()]


def _read_inside(found: Found) -> Evidence:
    inside = found["inside"]
    arms: dict[str, dict[str, dict[int, float]]] = {"identity": {}, "parallel blocks": {}}
    by_seed: dict[str, dict[int, float]] = {}
    for trial in inside.trials:
        seed, placement = int(trial.seed or 0), trial.axes["placement"]
        share = _by_site(inside, trial, "identity_share")
        arms["identity"].setdefault(f"identity left, {placement}", {})[seed] = share[-1]
        if pairs := _by_site(inside, trial, "parallel_blocks"):
            arms["parallel blocks"].setdefault(f"parallel blocks, {placement}", {})[seed] = statistics.fmean(pairs)
        if placement == "pre":
            within = _by_site(inside, trial, "within_two")
            values = {"within two, mean norm": statistics.fmean(within), "within two, lowest norm": min(within)}
            if kept := _by_site(inside, trial, "neighbours_kept"):
                values["neighbours kept"] = statistics.fmean(kept)
            for name, value in values.items():
                by_seed.setdefault(name, {})[seed] = value
    return Evidence(arms=arms, by_seed=by_seed)


INSIDE = Trained(
    name="inside",
    about=("Layers of width 48 on prose at 2e-3, warm-up over half of the steps, LayerNorm before and after the sub-layers, watched. Of the last third: share of the values after each norm within 2, gain and bias included; cosine of what leaves the last block with what entered the first. At the end: loss when two neighbouring blocks run side by side, and how many of a token's five nearest neighbours are the same before and after a norm",
           "宽 48，文本，学习率 2e-3，前一半步数预热，LayerNorm 在子层之前或之后，训练时监测。最后三分之一：各归一化之后（含增益偏置）落在 ±2 内的比例；末块输出与首块输入的余弦。末尾：相邻两块并行时的损失，以及一个词元的五个最近邻在归一化前后有多少相同"),
    sizes={"quick": Size(seeds=3, steps=60, layers=4), "default": Size(seeds=4, steps=250)},
    sweeps=_inside, read=_read_inside,
)  # fmt: skip

DESIGNS = (INSIDE,)
