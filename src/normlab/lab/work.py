"""What a step of a cell costs on this machine, measured before a sweep: how long it will take, and which share of the machine's rate it reaches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .experiment import Experiment

if TYPE_CHECKING:
    from .sweep import Trial

START_SECONDS = 3.0  # until a worker has loaded torch


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one cell. Plain numbers: it travels to workers as JSON."""

    step_seconds: float
    evaluation_seconds: float
    flops_per_step: float
    matmul_rate: float = 0.0  # what the machine's matrix product reaches, flops per second


def measure(trials: Sequence[Trial], seconds: float = 3.0) -> dict[str, Work]:
    """By cell: as many as can be tried in that time, the first always."""
    import torch

    from ..machine import matmul_rate

    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    until = time.perf_counter() + seconds
    found: dict[str, Work] = {}
    try:
        for trial in trials:
            if trial.cell not in found and (not found or time.perf_counter() < until):
                torch.set_num_threads(trial.experiment.threads)
                found[trial.cell] = _try(trial.experiment)
        rate = matmul_rate(trials[0].experiment.threads)
        return {cell: replace(work, matmul_rate=rate) for cell, work in found.items()}
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _try(experiment: Experiment) -> Work:
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
    examples = min(experiment.held_out or task.num_held_out, task.num_held_out)
    return Work(
        step_seconds=step,
        evaluation_seconds=step * examples / size / 3,  # a forward pass is about a third of a step
        flops_per_step=float(counter.get_total_flops()) * experiment.accumulate,
    )


def estimated(trials: Sequence[Trial], work: Mapping[str, Work], workers: int, later: int = 0) -> float:
    """Seconds for these trials side by side, and for so many like them that follow ``later``; cells that were not measured are taken for the mean of those that were."""
    step, evaluation = (
        statistics.fmean(getattr(w, name) for w in work.values()) for name in ("step_seconds", "evaluation_seconds")
    )
    usual = Work(step_seconds=step, evaluation_seconds=evaluation, flops_per_step=0.0)
    total = 0.0
    for trial in trials:
        cost, e = work.get(trial.cell, usual), trial.experiment
        total += e.steps * cost.step_seconds + min(e.evaluations, e.steps) * cost.evaluation_seconds
    # Watching, saving and side by side running cost about a fifth; then there is the start of the workers.
    total *= 1 + later / len(trials)
    return START_SECONDS + 1.2 * total / max(1, min(workers, len(trials) + later))
