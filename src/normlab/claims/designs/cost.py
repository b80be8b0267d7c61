"""What a norm costs in time on this machine, beside a matrix of its width."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ...norms import LayerNorm
from ...runs import Evidence
from .base import Measured, Size

ROWS, WIDTH, ROUNDS = 4096, 512, 9


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _measure(size: Size, seeds: Sequence[int]) -> Evidence:
    """Medians of rounds in which all take their turn, so that what slows the machine down slows all of them; seeds are repetitions."""
    x = torch.randn(ROWS, WIDTH)
    fused, matrix = LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    gain, bias = torch.ones(WIDTH), torch.zeros(WIDTH)

    def operators() -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * gain + bias

    works: dict[str, Callable[[], object]] = {
        "fused": lambda: fused(x),
        "unfused": operators,
        "linear": lambda: matrix(x),
    }
    threads = torch.get_num_threads()
    found: dict[str, dict[int, float]] = {"time over linear, fused": {}, "time over linear, unfused": {}}
    try:
        torch.set_num_threads(1)
        with torch.no_grad():
            for seed in seeds:
                times: dict[str, list[float]] = {name: [] for name in works}
                for _ in range(ROUNDS + 1):
                    for name, work in works.items():
                        times[name].append(_seconds(work))
                medians = {name: statistics.median(values[1:]) for name, values in times.items()}
                for name in ("fused", "unfused"):
                    found[f"time over linear, {name}"][seed] = medians[name] / medians["linear"]
    finally:
        torch.set_num_threads(threads)
    return Evidence(by_seed=found)


COST = Measured(
    name="cost",
    about=(f"Forward pass on {ROWS} rows of {WIDTH}, float32, one thread: LayerNorm as a kernel and as torch operators, over a {WIDTH} x {WIDTH} matrix; medians of {ROUNDS} rounds, repeated", f"{ROWS} 行、宽 {WIDTH} 的前向，float32，单线程：内核的 LayerNorm 与用 torch 算子写的，同一个 {WIDTH} × {WIDTH} 矩阵比；取 {ROUNDS} 轮的中位数，重复多次"),
    sizes={"quick": Size(seeds=5), "default": Size(seeds=9)},
    measure=_measure,
)  # fmt: skip

DESIGNS = (COST,)
