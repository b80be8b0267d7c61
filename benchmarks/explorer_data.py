"""What the explorer draws, computed by the package: which cells share a statistic, a real column scaled, streams by depth.

    python benchmarks/explorer_data.py sets scaling     seconds; the same numbers on every machine
    python benchmarks/explorer_data.py depth            trains every placement with three seeds: minutes; names this machine
    python benchmarks/explorer_data.py fluctuation      trains BatchNorm on text and on images with three seeds: minutes; names this machine

Writes src/normlab/report/web/data/*.json, which ships with the package: the page is made without torch.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import normlab
from normlab import lab, machine
from normlab.functional import statistic_labels
from normlab.lab.parts import make_model, make_optimizer, task_of

DATA = Path(__file__).resolve().parent.parent / "src" / "normlab" / "report" / "web" / "data"

# ---- sets ------------------------------------------------------------------------------------------------------------

IMAGES = [(n, c, *page) for n, c, page in itertools.product((2, 3, 4), (2, 4, 6), ((2, 3), (3, 4)))]
SENTENCES = list(itertools.product((2, 3, 4), (3, 5), (4, 6)))
MARKS = [(5, 4)]


def divisors(n: int) -> list[int]:
    return [g for g in range(1, n + 1) if n % g == 0]


def left(labels: Tensor) -> list[int]:
    """The shape that averaging leaves: along each axis, how many statistics a line of cells meets."""
    return [len(labels.movedim(axis, 0).flatten(1)[:, 0].unique()) for axis in range(labels.dim())]


def variants(shape: tuple[int, ...], channel: int, whole: int) -> dict[str, Tensor]:
    """Labels of every norm; ``whole``: the axes of one sample, for LayerNorm's other sense."""
    found = {
        "batch": statistic_labels("batch", shape, channel_dim=channel),
        "layer": statistic_labels("layer", shape, normalized_dims=whole),
        "last": statistic_labels("layer", shape),
        "instance": statistic_labels("instance", shape, channel_dim=channel),
        "rms": statistic_labels("rms", shape, normalized_dims=whole if channel == 1 else 1),
        "power": statistic_labels("power", shape, channel_dim=channel),
    }
    for groups in divisors(shape[channel]):
        found[f"group-{groups}"] = statistic_labels("group", shape, channel_dim=channel, num_groups=groups)
    return found


def sets() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, shapes, channel, whole in (("images", IMAGES, 1, 3), ("text", SENTENCES, -1, 2)):
        found[kind] = {
            "-".join(map(str, shape)): {name: {"labels": labels.flatten().tolist(), "left": left(labels)} for name, labels in variants(shape, channel, whole).items()}
            for shape in shapes
        }  # fmt: skip
    found["marks"] = {
        "-".join(map(str, shape)): {
            name: {
                "labels": statistic_labels(name, shape).flatten().tolist(),
                "left": left(statistic_labels(name, shape)),
            }
            for name in ("batch", "layer")
        }
        for shape in MARKS
    }
    return found


# ---- scaling ---------------------------------------------------------------------------------------------------------

BINS, DESCENT, LEAST = 28, 60, 1e-9


def scaling() -> dict[str, Any]:
    """A column of scikit-learn's breast cancer data, raw, min-max scaled and standardized; and gradient descent on two."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = list(bunch.feature_names)
    column = torch.tensor(bunch.data[:, names.index("worst area")], dtype=torch.float64)
    columns = {"raw": column, "minmax": (column - column.min()) / (column.max() - column.min()),
               "standard": (column - column.mean()) / column.std(correction=0)}  # fmt: skip
    features = torch.tensor(
        bunch.data[:, [names.index("worst area"), names.index("worst smoothness")]], dtype=torch.float64
    )
    target = torch.tensor(bunch.target, dtype=torch.float64)
    return {
        "source": "scikit-learn, load_breast_cancer", "column": "worst area", "other": "worst smoothness", "rows": len(column), "steps": DESCENT, "least": LEAST,
        "values": [round(v, 1) for v in column.tolist()],
        "histograms": {name: histogram(values) for name, values in columns.items()},
        "descent": {name: descent(f, target) for name, f in (
            ("raw", features), ("minmax", (features - features.amin(0)) / (features.amax(0) - features.amin(0))),
            ("standard", (features - features.mean(0)) / features.std(0, correction=0)))},
    }  # fmt: skip


def histogram(values: Tensor) -> dict[str, Any]:
    z = (values - values.mean()) / values.std(correction=0)
    low, high = float(values.min()), float(values.max())
    return {
        "low": low, "high": high, "counts": torch.histc(values, BINS, low, high).int().tolist(), "mean": round(float(values.mean()), 12),
        "deviation": float(values.std(correction=0)), "skew": float(z.pow(3).mean()), "kurtosis": float(z.pow(4).mean() - 3),
    }  # fmt: skip


def descent(features: Tensor, target: Tensor) -> dict[str, Any]:
    """Least squares for two weights and a bias from zero, each problem at its own largest useful step: 1 / the largest curvature."""
    x = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    hessian = x.T @ x / len(x)
    curvature = torch.linalg.eigvalsh(hessian)
    best = torch.linalg.lstsq(x, target[:, None]).solution[:, 0]
    least = float(((x @ best - target) ** 2).mean() / 2)
    rate, weights, losses = 1 / float(curvature[-1]), torch.zeros(3, dtype=torch.float64), []
    for _ in range(DESCENT + 1):
        error = x @ weights - target
        excess = float((error**2).mean() / 2) - least
        if excess < LEAST:
            break  # what follows is rounding
        losses.append(excess)
        weights = weights - rate * (x.T @ error / len(x))
    return {"rate": rate, "condition": float(curvature[-1] / curvature[0]), "excess": losses}


# ---- depth -----------------------------------------------------------------------------------------------------------

LAYERS, DIM, STEPS, SEEDS, RATE = 12, 32, 40, (0, 1, 2), 1e-3


def depth() -> dict[str, Any]:
    """Stream and gradient behind each block, at the first and at the last step, of every placement with LayerNorm."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, facts in normlab.PLACEMENTS.items():
            runs = [measured(name, seed, Path(folder) / f"{name}-{seed}") for seed in SEEDS]
            rows = {
                quantity: [[[spread(*values) for values in zip(*(r[quantity][when] for r in runs), strict=True)]] for when in (0, 1)]
                for quantity in ("stream_rms", "stream_grad")
            }  # fmt: skip
            found[name] = {"formula": facts.formula, "paper": facts.paper, "year": facts.year,
                           **{quantity: [when[0] for when in both] for quantity, both in rows.items()},
                           "loss": spread(*(r["loss"] for r in runs))}  # fmt: skip
            print(name, file=sys.stderr, flush=True)
    known = machine.description()
    return {
        "machine": known["cpu"], "torch": known["torch"], "date": datetime.date.today().isoformat(), "layers": LAYERS, "dim": DIM,
        "steps": STEPS, "seeds": len(SEEDS), "rate": RATE, "command": "python benchmarks/explorer_data.py depth", "placements": found,
    }  # fmt: skip


def spread(*values: float) -> list[float]:
    """Median, lowest and highest over seeds, four digits."""
    return [float(f"{v:.4g}") for v in (statistics.median(values), min(values), max(values))]


def measured(placement: str, seed: int, folder: Path) -> dict[str, Any]:
    experiment = lab.Experiment(placement=placement, seed=seed, steps=STEPS, lr=RATE, batch_size=8, watch="none",
                                model={"num_layers": LAYERS, "dim": DIM, "num_heads": 4, "ffn_dim": 4 * DIM}, options={"length": 48})  # fmt: skip
    run, losses = trained(experiment, folder, preset="lite", every=STEPS)
    found = {}
    for quantity in ("stream_rms", "stream_grad"):
        series = [s for s in run.series(quantity).values() if len(s) >= 2]
        assert len(series) == LAYERS, (placement, quantity, len(series))
        found[quantity] = [[s.values[0] for s in series], [s.values[-1] for s in series]]
    return {**found, "loss": statistics.fmean(losses[-10:])}


class Nameless(torch.nn.Module):
    """A model whose arguments tell a watch nothing of padding: readings are then over all tokens, as the statistics of its norms are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.batch = model, {}

    def forward(self) -> Tensor:
        return self.model(**self.batch)

    def on(self, **batch: Tensor) -> Tensor:
        self.batch = batch
        return self()


def trained(experiment: lab.Experiment, folder: Path, **watched: Any) -> tuple[normlab.Run, list[float]]:
    """(the run, its losses), every recording made that is due. A watch measures what the norms do, so with padding in their statistics over padding, too."""
    task = task_of(experiment)
    torch.manual_seed(experiment.seed)
    model, _ = make_model(experiment, task)
    optimizer = make_optimizer(experiment, model)
    watched_model, call = model, model
    if not experiment.model.get("mask_statistics", True):
        watched_model = Nameless(model)
        call = watched_model.on
    losses = []
    with normlab.watch(
        watched_model, optimizer=optimizer, out=folder, max_overhead=None, trace=False, **watched
    ) as watch:
        for step in range(experiment.steps):
            loss = task.loss(call, task.draw(experiment.seed, step, experiment.batch_size))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
            losses.append(loss.item())
    return normlab.Run(folder), losses


# ---- text against images ---------------------------------------------------------------------------------------------

FLOW_STEPS, FLOW_EVERY = 300, 5
ARMS = {
    "masked": {"task": "masked"},
    "counted": {"task": "masked", "mask_statistics": False},
    "images": {"task": "digits", "batch_size": 32},
}
FLOWS = ("batch_mean_distance", "batch_var_distance", "mean_grad_norm", "var_grad_norm")


def fluctuation() -> dict[str, Any]:
    """BatchNorm over training: batch statistics against running ones, and the gradients of mean and variance; median norm of each step."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in ARMS.items():
            base = lab.Experiment(norm="batch", placement="pre", steps=FLOW_STEPS, lr=1e-3, batch_size=16, watch="none",
                                  model={"num_layers": 4, "dim": 48, "num_heads": 4})  # fmt: skip
            runs = [flows(base.changed(seed=seed, **settings), Path(folder) / f"{name}-{seed}") for seed in SEEDS]
            found[name] = {q: [spread(*values) for values in zip(*(r[q] for r in runs), strict=True)] for q in runs[0]}
            print(name, file=sys.stderr, flush=True)
    known = machine.description()
    return {
        "machine": known["cpu"], "torch": known["torch"], "date": datetime.date.today().isoformat(), "layers": 4, "dim": 48, "seeds": len(SEEDS),
        "recorded": steps_of(FLOW_STEPS, FLOW_EVERY), "command": "python benchmarks/explorer_data.py fluctuation", "arms": found,
    }  # fmt: skip


def steps_of(steps: int, every: int) -> list[int]:
    return [1, *range(every, steps + 1, every)]


def flows(experiment: lab.Experiment, folder: Path) -> dict[str, list[float]]:
    run, _ = trained(experiment, folder, preset="full", every=FLOW_EVERY)
    recorded = steps_of(FLOW_STEPS, FLOW_EVERY)

    def at(quantity: str, combine: Any = statistics.median) -> list[float]:
        series = [dict(zip(s.steps, s.values, strict=True)) for s in run.series(quantity).values()]
        return [combine([s[step] for s in series if step in s]) for step in recorded]

    found = {quantity: at(quantity) for quantity in FLOWS}
    # How far the largest single gradient stands out: what Shen et al. call outliers.
    for name in ("mean_grad", "var_grad"):
        found[f"{name}_outlier"] = [
            high / middle for high, middle in zip(at(f"{name}_max", max), at(f"{name}_median"), strict=True)
        ]
    return found


PARTS = {"sets": sets, "scaling": scaling, "depth": depth, "fluctuation": fluctuation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for part in parser.parse_args().parts:
        DATA.mkdir(exist_ok=True)
        text = json.dumps(PARTS[part](), separators=(",", ":"), allow_nan=False)
        (DATA / f"{part}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{part}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
