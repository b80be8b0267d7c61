"""What the lab costs: a trial outside its steps, two trials side by side, and its loop against a hand-written one.

    python benchmarks/lab_speed.py [--json FILE]

Both sides of every comparison run in this one program, in turns. Ratios are what counts; times are of this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from normlab import build, lab, machine
from normlab.lab.parts import model_config, task_of
from normlab.runs import Result

STEPS = 120  # as in the default comparison
ROUNDS = 7  # the first only warms up


def trials(threads: int, count: int, folder: Path, workers: int) -> list[Result]:
    """Results of a sweep, without each worker's first trial: that one loads libraries and data."""
    base = lab.Experiment(steps=STEPS, threads=threads)
    sweep = lab.Sweep(base=base, axes={"norm": ["layer"], "seed": list(range(count))})
    ended: list[Result] = []

    def notify(kind: str, trial: lab.Trial, message: lab.Message) -> None:
        if message.result is not None:
            ended.append(message.result)

    lab.run(lab.plan(sweep, folder, workers, estimate=False), lab.Pool(workers), notify)
    assert all(r.outcome != "failed" for r in ended), ended
    return ended[workers:]


def side_by_side(folder: Path) -> dict[str, float]:
    """Trials per second: two processes of one thread against one process of two threads, in turns.

    What a second thread gains and what a neighbour costs say where the limit lies: the ratio is 2 / (gain x cost).
    """
    ratios, gains, costs, overheads = [], [], [], []
    for turn in range(3):
        seconds = {}
        for name, threads, workers in (("beside", 1, 2), ("two threads", 2, 1), ("alone", 1, 1)):
            found = trials(threads, 3 * workers, folder / f"{name}{turn}", workers)
            seconds[name] = statistics.fmean(r.seconds for r in found)
            overheads += [r.overhead_seconds for r in found]
        ratios.append(2 * seconds["two threads"] / seconds["beside"])
        gains.append(seconds["alone"] / seconds["two threads"])
        costs.append(seconds["beside"] / seconds["alone"])
    return {
        "two trials side by side over one after the other with two threads": statistics.median(ratios),
        "  of it: what a second thread gains a trial": statistics.median(gains),
        "  of it: what a neighbour costs a trial": statistics.median(costs),
        "seconds of a trial outside steps and evaluations, median": statistics.median(overheads),
        "the same, largest": max(overheads),
    }


class PlainLoop:
    """A loop as people write it: the same model with nn.LayerNorm, same data, same schedule. One call is one step."""

    def __init__(self, experiment: lab.Experiment) -> None:
        self.experiment, self.task = experiment, task_of(experiment)
        config, _ = model_config(experiment, self.task)
        torch.manual_seed(experiment.seed)
        self.model = build(**{**vars(config), "norm": nn.LayerNorm, "fused": False})
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=experiment.lr, betas=experiment.betas, weight_decay=experiment.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: experiment.learning_rate(s + 1) / experiment.lr
        )
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def __call__(self, step: int, loss_of_ours: float) -> None:
        start = time.perf_counter()
        batch = self.task.batch(self.experiment.seed, step, self.task.batch_size)
        scores = self.model(**batch.arguments)
        loss = nn.functional.cross_entropy(scores.flatten(0, -2), batch.targets.flatten(), ignore_index=-100)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.experiment.clip)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def against_plain_loop(folder: Path) -> dict[str, float]:
    """A step of the hand-written loop after every step of ours, so that both meet the same machine."""
    ratios: dict[str, list[float]] = {"lite": [], "none": []}
    for turn in range(ROUNDS):
        for watch, found in ratios.items():
            experiment = lab.Experiment(steps=STEPS, evaluations=1, held_out=64, watch=watch)
            plain = PlainLoop(experiment)
            ours = lab.train(experiment, folder / f"{watch}{turn}", on_step=plain).training_seconds
            found.append(sum(plain.seconds) / ours)
    return {
        f"hand-written loop with nn.LayerNorm over ours, watch {watch}": statistics.median(found[1:])
        for watch, found in ratios.items()
    }


def matmul_share(folder: Path) -> dict[str, float]:
    from normlab.lab.sweep import measure

    (trial,) = lab.Sweep(base=lab.Experiment(steps=STEPS, evaluations=1), axes={"norm": ["layer"]}).trials()
    work = measure([trial])[trial.cell]
    result = lab.train(trial.experiment, folder / "share", work=work)
    return {"share of this machine's matrix-product rate": result.matmul_share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    here = machine.description()
    print(f"{here['cpu']}, {here['isa']}, torch {here['torch']}; text task, default model, {STEPS} steps per trial")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {**matmul_share(folder), **against_plain_loop(folder / "plain"), **side_by_side(folder)}
    for what, value in figures.items():
        print(f"{value:8.3f}  {what}")
    if args.json:
        args.json.write_text(json.dumps({"machine": here, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
