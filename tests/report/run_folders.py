"""Folders as a server meets them: runs with everything that a page shows, hostile names, damage."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from normlab import runs
from normlab.report import recorded

BLOCKS = [f"stack.layers.{i}" for i in range(6)]
NORMS = [f"{b}.placement.norm{i}" for b in BLOCKS for i in (1, 2)] + ["stack.ends.norm"]
SCRIPT = "<script>alert(1)<\\script>"  # a folder's name; no slash can stand in one
STEPS = 240


def loss(step: int, draw: random.Random) -> float:
    return 2.2 + 3.0 * math.exp(-step / 60) + 0.05 * draw.gauss(0, 1)


def readings(step: int, draw: random.Random) -> dict[str, dict[str, float]]:
    """All quantities of the pages, at plausible sizes; the gradient vanishes on its way down."""

    def about(base: float) -> float:
        return base * math.exp(0.06 * draw.gauss(0, 1))

    late = 1 - math.exp(-step / 80)
    by_block = {
        "stream_rms": lambda i: 1 + 0.5 * i * late,
        "stream_grad": lambda i: 0.05 * 0.04 ** ((5 - i) * late * 0.6),
        "param_grad": lambda i: 0.2 * 0.5 ** (5 - i),
        "update_ratio": lambda i: 2e-3 / (1 + i),
        "branch_share": lambda i: 0.5 / (1 + 0.4 * i),
        "angle": lambda i: 0.25 / (1 + 0.5 * i),
    }
    by_norm = {
        "batch_mean_distance": 0.2,
        "batch_var_distance": 0.1,
        "batch_mean_distance_padded": 0.5,
        "batch_var_distance_padded": 0.3,
        "padding_share": 0.3,
        "grad_through_mean": 0.12,
        "grad_through_var": 0.3,
        "inference_gap": 0.25,
        "eps_share": 1e-4,
        "length": 1.1,
        "length_spread": 0.05,
        "mean_angle": 2.0,
        "anisotropy": 0.2,
        "kurtosis_in": 4.0,
        "kurtosis_out": 3.2,
        "gain_rms": 1.0,
        "gain_max": 1.2,
    }
    found = {q: {b: about(size(i)) for i, b in enumerate(BLOCKS)} for q, size in by_block.items()}
    found |= {q: {n: about(base * (1 + 0.05 * i)) for i, n in enumerate(NORMS)} for q, base in by_norm.items()}
    found |= {
        "effective_depth": {"model": about(4.0)},
        "grad_norm": {"model": about(1.0)},
        "lr": {"model": 3e-3},
        "output_spread": {"model": about(2.0)},
    }
    return found


def snapshot(site: str, draw: random.Random) -> dict[str, Any]:
    def cloud() -> dict[str, Any]:
        points = [[draw.gauss(0, 2), draw.gauss(0, 1), draw.gauss(0, 0.5)] for _ in range(40)]
        near = [sorted((j for j in range(40) if j != i), key=lambda j, i=i: math.dist(points[i], points[j]))[:5] for i in range(40)]  # fmt: skip
        return {"coordinates": points, "neighbours": near, "explained": 0.61, "mean_cosine": 0.13}

    return {"site": site, "places": list(range(40)), "tokens": [97 + i % 26 for i in range(40)],
            "before": cloud(), "plain": cloud(), "after": cloud()}  # fmt: skip


def full_run(folder: Path, *, close: bool = True, steps: int = STEPS, seed: int = 3) -> runs.Writer:
    """A run in which every page has something to show."""
    draw = random.Random(seed)
    writer = runs.Writer(folder, {
        "experiment": {"task": "text", "lr": 3e-3, "seed": seed, "norm": "batch", "placement": "post"}, "seed": seed,
        "task": {"name": "text", "unit": "nats per byte", "blind": 3.3}, "versions": {"normlab": "0.1.0", "torch": "2.13.0"},
        "machine": {"cpu": "Some CPU", "threads": 1}, "sites": {"norms": dict.fromkeys(NORMS, "batch"), "blocks": BLOCKS},
    })  # fmt: skip
    for step in range(1, steps + 1):
        write_step(writer, step, draw)
    if close:
        result = {"outcome": "trained", "steps": steps, "loss": 2.31, "blind": 3.3}
        writer.close("finished", result=result)
    return writer


def write_step(writer: runs.Writer, step: int, draw: random.Random) -> None:
    writer.write(step, {"loss": {"model": loss(step, draw)}})
    if step % 6 == 1:
        writer.write(step, readings(step, draw))
    if step % 60 == 0:
        extra = {
            "held_out_loss": {"model": loss(step, draw) + 0.1},
            "running_statistics_loss": {"model": 2.6},
            "batch_statistics_loss": {"model": 2.4},
        }
        writer.write(step, {**extra, "neighbours_kept": {NORMS[0]: 0.7, NORMS[-1]: 0.5}})
    if step in (120, 240):
        for site in (NORMS[0], NORMS[-1]):
            writer.event(step, "token similarity", **snapshot(site, draw))


def small_run(folder: Path, steps: int = 5) -> Path:
    writer = runs.Writer(folder)
    for step in range(1, steps + 1):
        writer.write(step, {"loss": {"model": 3.0 / step}})
    writer.close()
    return folder


def hostile_run(folder: Path) -> Path:
    """Every text in it would be markup or code, if anything took it for that."""
    nasty = "</script><img src=x onerror=alert(2)><b>bold</b>"
    writer = runs.Writer(folder, {"task": {"name": nasty, "unit": nasty}, "experiment": {"seed": 1, nasty: nasty}, "machine": nasty,
                                  "sites": {"blocks": [f"{nasty}.{i}" for i in range(3)]}})  # fmt: skip
    for step in range(1, 41):
        writer.write(step, {"loss": {"model": 3.0 if step < 20 else 9.0}, "stream_rms": {f"{nasty}.{i}": 1.0 for i in range(3)},
                            "length": {f"{nasty}.norm": 1.0}})  # fmt: skip
    writer.close()
    return folder


def damaged_run(folder: Path, line: str = "{not JSON}\n") -> Path:
    small_run(folder)
    with open(folder / runs.READINGS, "a", encoding="utf-8") as file:
        file.write(line + json.dumps({"step": 9, "values": {"loss": {"model": 1.0}}}) + "\n")
    return folder


assert set(readings(1, random.Random(0))) >= set(recorded.BY_BLOCK)
