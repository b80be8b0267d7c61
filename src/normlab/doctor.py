"""What normlab found on this machine: kernels and why, threads, and what large fresh outputs cost.

Large outputs come from fresh memory, and on Linux every new 4 KiB page costs a fault. Allocator settings that keep or
enlarge pages are measured here in child processes, because they must be set before a process starts.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import kernels, machine
from .kernels import cpu

PROBE = """
import time, torch
torch.set_num_threads({threads})
x = torch.ones(32 << 20)
out = torch.empty_like(x)
def best(f, n=5):
    f()
    times = []
    for _ in range(n):
        start = time.perf_counter(); f(); times.append(time.perf_counter() - start)
    return min(times)
print(best(lambda: torch.add(x, 1, out=out)), best(lambda: x + 1))
"""


@dataclass(frozen=True, kw_only=True)
class AllocatorTrial:
    """Cost of writing 128 MiB into fresh memory relative to memory already in use, under one setting."""

    setting: str
    environment: dict[str, str]
    fresh_over_reused: float | None
    note: str = ""


def allocator_trials(timeout: float = 60.0) -> list[AllocatorTrial]:
    keep = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
    }
    settings: list[tuple[str, dict[str, str]]] = [
        ("as it is", {}),
        ("torch huge pages: THP_MEM_ALLOC_ENABLE=1", {"THP_MEM_ALLOC_ENABLE": "1"}),
        ("glibc keeps freed memory: " + " ".join(f"{k}={v}" for k, v in keep.items()), keep),
    ]
    for name in ("jemalloc", "tcmalloc_minimal", "tcmalloc"):
        path = _library(name)
        if path:
            settings.append((f"LD_PRELOAD={path}", {"LD_PRELOAD": path}))
    return [_try(setting, environment, timeout) for setting, environment in settings]


def _library(name: str) -> str | None:
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ):
        found = sorted(Path(folder).glob(f"lib{name}.so.*")) if Path(folder).is_dir() else []
        if found:
            return str(found[0])
    return None


def _try(setting: str, environment: dict[str, str], timeout: float) -> AllocatorTrial:
    code = PROBE.format(threads=torch.get_num_threads())
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
        reused, fresh = map(float, done.stdout.split())
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        return AllocatorTrial(
            setting=setting, environment=environment, fresh_over_reused=None, note=f"could not be measured: {error}"
        )
    return AllocatorTrial(setting=setting, environment=environment, fresh_over_reused=fresh / reused)


def allocator_advice(trials: list[AllocatorTrial]) -> str:
    """One sentence: which setting helps here, if any."""
    measured = [(t.fresh_over_reused, t) for t in trials if t.fresh_over_reused is not None]
    if not measured or trials[0].fresh_over_reused is None:
        return "The cost of fresh memory could not be measured on this machine."
    now = trials[0].fresh_over_reused
    best_ratio, best = min(measured, key=lambda pair: pair[0])
    cost = f"Writing a large new tensor costs {now:.1f}x as much as writing into an existing one."
    if best is trials[0] or now / best_ratio < 1.15:
        return f"{cost} No setting tried helps by more than 15 %."
    return f"{cost} Start your program with {' '.join(f'{k}={v}' for k, v in best.environment.items())} to bring it to {best_ratio:.1f}x."


def thread_pools() -> list[str]:
    """Paths of the OpenMP runtimes in this process; one means torch and normlab share a thread pool."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    names = {line.split()[-1] for line in maps.splitlines() if "/" in line}
    return sorted(n for n in names if any(k in Path(n).name for k in ("libgomp", "libomp", "libiomp")))


def examine(measure_allocator: bool = True) -> dict[str, Any]:
    """Everything `normlab doctor` prints, as data."""
    request = kernels.current_request()
    choices = {}
    for op in kernels.OPS:
        for dtype in (torch.float32, torch.bfloat16):
            try:
                choice = kernels.choose(op, "cpu", dtype, (1, 1), request, cpu.missing)
            except kernels.KernelUnavailable as error:
                choice = ("none", str(error))
            choices[f"{op} {str(dtype).removeprefix('torch.')}"] = choice
    works, setting, note = machine.sixteen_bit()
    trials = allocator_trials() if measure_allocator and platform.system() == "Linux" else []
    return {
        "device": "cpu" + (f", cuda ({torch.cuda.get_device_name(0)})" if torch.cuda.is_available() else ""),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "native": cpu.missing is None,
        "native_missing": cpu.missing,
        "isa": cpu.native.isa() if cpu.native else None,
        "isas": dict(cpu.native.isas()) if cpu.native else {},
        "isa_forced": os.environ.get("NORMLAB_ISA"),
        "openmp": bool(cpu.native.openmp) if cpu.native else False,
        "threads": torch.get_num_threads(),
        "thread_pools": thread_pools(),
        "request": request,
        "kernels": choices,
        "bfloat16_products": {"work": works, "setting": setting, "note": note},
        "allocator": [vars(t) for t in trials],
        "allocator_advice": allocator_advice(trials) if trials else "Not measured.",
    }
