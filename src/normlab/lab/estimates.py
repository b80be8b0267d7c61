"""How long trials will take: a few steps of each cell, tried here before the workers start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .experiment import Experiment

if TYPE_CHECKING:
    from .sweep import Trial

START_SECONDS = 3.0  # until a worker has loaded torch


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def measure(trials: Sequence[Trial], seconds: float = 3.0) -> dict[str, dict[str, float]]:
    """{cell: {seconds, evaluation_seconds, flops_per_step, matmul_rate}}: time and arithmetic of a step, time of an evaluation, and
    what the machine's matrix product reaches. For as many cells as can be tried in that time, the first always.
    """
    import torch

    from ..machine import matmul_rate

    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    until = time.perf_counter() + seconds
    found: dict[str, dict[str, float]] = {}
    try:
        for trial in trials:
            if trial.cell not in found and (not found or time.perf_counter() < until):
                torch.set_num_threads(trial.experiment.threads)
                found[trial.cell] = _try(trial.experiment)
        rate = matmul_rate(trials[0].experiment.threads)
        return {cell: {**figures, "matmul_rate": rate} for cell, figures in found.items()}
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _try(experiment: Experiment) -> dict[str, float]:
    from torch.utils.flop_counter import FlopCounterMode

    from .batches import shares
    from .parts import make_model, make_optimizer, task_of

    task = task_of(experiment)
    model, _ = make_model(experiment, task)
    optimizer = make_optimizer(experiment, model)
    size = experiment.batch_size or task.batch_size
    batch = next(shares(task, experiment, 1, size, 0, 1))[0]
    with FlopCounterMode(display=False) as counter:
        task.loss(model, batch).backward()
    optimizer.step()  # the first makes its state
    times = []
    for _ in range(3):
        start = time.perf_counter()
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    step = statistics.median(times) * experiment.accumulate
    # A forward pass is about a third of a step.
    examples = min(experiment.held_out or task.num_held_out, task.num_held_out)
    return {"seconds": step, "evaluation_seconds": step * examples / size / 3,
            "flops_per_step": float(counter.get_total_flops()) * experiment.accumulate}  # fmt: skip


def expected_seconds(
    trials: Sequence[Trial], work: Mapping[str, Mapping[str, float]], workers: int, later: int = 0
) -> float:
    """Seconds for these trials side by side, and as many like them that follow ``later``; cells that were not measured are taken for the mean of those that were."""
    known = list(work.values())
    usual = {name: statistics.fmean(figures[name] for figures in known) for name in known[0]}
    total = 0.0
    for trial in trials:
        figures, e = work.get(trial.cell, usual), trial.experiment
        total += e.steps * figures["seconds"] + min(e.evaluations, e.steps) * figures["evaluation_seconds"]
    # Watching, saving and side by side running cost about a fifth; then there is the start of the workers.
    total *= 1 + later / len(trials)
    return START_SECONDS + 1.2 * total / max(1, min(workers, len(trials) + later))
