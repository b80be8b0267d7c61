"""What normlab found on this machine: kernels and why, threads, and what large fresh outputs cost.

Large outputs come from fresh memory, and on Linux every new 4 KiB page costs a fault. Allocator settings that keep or
enlarge pages are measured here in child processes, because they must be set before a process starts. So are huge pages, which
are faster or slower by what other processes have left of memory: there the mean and the worst call count, not the best.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import kernels, machine
from ..kernels import cpu, pages

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


PAGES = """
import json, time
import torch
import normlab
from normlab.kernels import cpu
torch.set_num_threads({threads})
x, norm = torch.ones(16384, 1024), normlab.LayerNorm(1024)
times = {{"0": [], "1": []}}
with torch.no_grad():
    for _ in range(27):
        for setting, own in times.items():
            cpu.native.use_huge_pages(setting == "1")
            time.sleep(0.04)  # memory is taken back in pauses, not in a tight loop
            start = time.perf_counter()
            y = norm(x)
            own.append(1e3 * (time.perf_counter() - start))
            del y
print(json.dumps({{setting: own[2:] for setting, own in times.items()}}))
"""


def huge_page_times(timeout: float = 60.0) -> dict[str, list[float]] | None:
    """Milliseconds of calls that write 64 MiB of fresh memory, without ("0") and with ("1") huge pages; None: not measured."""
    if cpu.native is None:
        return None
    command = [sys.executable, "-c", PAGES.format(threads=torch.get_num_threads())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        found: dict[str, list[float]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError, OSError):
        return None
    return found


def huge_page_advice(times: dict[str, list[float]] | None, in_use: bool) -> str:
    """One sentence or two: what huge pages do on this machine, and what to set."""
    if times is None:
        return "Huge pages could not be measured on this machine."
    mean = {setting: statistics.fmean(own) for setting, own in times.items()}
    worst = {setting: max(own) for setting, own in times.items()}
    seen = (f"A call that writes 64 MiB takes {mean['1']:.0f} ms with huge pages (mean; worst {worst['1']:.0f}) and "
            f"{mean['0']:.0f} ms without (worst {worst['0']:.0f}).")  # fmt: skip
    # Better on average is not enough: who waits for a call waits for the worst one.
    better = mean["1"] < 0.87 * mean["0"] and worst["1"] < 2 * worst["0"]
    worse = mean["1"] > mean["0"] or worst["1"] > 2 * worst["0"]
    if better and not in_use:
        return f"{seen} Start your program with {pages.VARIABLE}=1."
    if worse and in_use:
        return f"{seen} Start your program with {pages.VARIABLE}=0."
    return f"{seen} They are {'' if in_use else 'not '}asked for now; leave it so."


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
    measure = measure_allocator and platform.system() == "Linux"
    trials = allocator_trials() if measure else []
    asked, why = cpu.huge_pages
    times = huge_page_times() if measure else None
    return {
        "device": "cpu" + (f", cuda ({torch.cuda.get_device_name(0)})" if torch.cuda.is_available() else ""),
        "other_devices": "torch's kernels and float32 formulas; checked on torch's meta device only, no GPU has run them yet",
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
        "huge_pages": {
            "asked_for": asked,
            "reason": why,
            **{name: pages.setting(name) for name in ("enabled", "defrag")},
            "milliseconds": times,
            "advice": huge_page_advice(times, asked) if measure else "Not measured.",
        },
    }
