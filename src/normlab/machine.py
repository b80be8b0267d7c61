"""The machine as torch finds it: its description, which a result must carry, and whether 16-bit matrix products work at all."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .kernels import cpu

# An upper bound on the instructions of torch's matrix products, one below AMX. oneDNN reads it at its first product.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
PRODUCT = "import torch; w = torch.ones(64, 64, dtype=torch.bfloat16); print((w @ w)[0, 0].item())"


def description() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "isa": cpu.native.isa() if cpu.native else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "normlab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _product_works(environment: dict[str, str]) -> bool:
    """In a child process: a machine that announces instructions it traps on kills the process that uses them."""
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and done.stdout.strip() == "64.0"


def sixteen_bit() -> tuple[bool, dict[str, str], str]:
    """(do torch's bfloat16 matrix products work, what to set so that they do, in words)."""
    if _product_works({}):
        return True, {}, "torch's bfloat16 matrix products work"
    setting = " ".join(f"{k}={v}" for k, v in WITHOUT_AMX.items())
    if _product_works(WITHOUT_AMX):
        return (
            False,
            WITHOUT_AMX,
            (
                f"torch's bfloat16 matrix products end the process here (this machine announces AMX instructions and traps on them); "
                f"start your program with {setting}"
            ),
        )
    return False, {}, f"torch's bfloat16 matrix products fail here, with {setting} as well; use float32"


def prepare_16_bit() -> dict[str, str]:
    """Set what this process needs for bfloat16 products (before its first product of any kind) and say what was set."""
    works, environment, note = sixteen_bit()
    if not works and not environment:
        raise RuntimeError(note)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    if WITHOUT_AMX.keys() & os.environ.keys() and not _product_works_here():
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        setting = " ".join(f"{k}={v}" for k, v in WITHOUT_AMX.items())
        raise RuntimeError(
            "torch's bfloat16 matrix products would end this process: it has computed in float32 before, and torch chose its "
            f"instructions then; start your program with {setting}"
        )
    return environment


def _product_works_here() -> bool:
    """In a copy of this process, which has the same instructions chosen."""
    if not hasattr(os, "fork"):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are not copied; the product needs none
        child = os.fork()
    if child == 0:
        status = 1
        faulthandler.disable()  # its end is the answer, not a fault to report
        try:
            torch.set_num_threads(1)
            w = torch.ones(64, 64, dtype=torch.bfloat16)
            status = int((w @ w)[0, 0].item() != 64)
        finally:
            os._exit(status)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def keep_freed_memory() -> bool:
    """Tell glibc to keep what this process frees instead of giving it back to the system: a training step asks for the same
    memory again, and every fresh page of 4 KiB costs a fault. For processes that do nothing but train. False elsewhere."""
    mmap_threshold, trim_threshold, largest = -3, -1, 2**31 - 1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return False
    # The first decides: set alone, the second would leave every large block to be mapped afresh. Older glibc takes 32 MiB at most.
    kept = any(mallopt(mmap_threshold, value) == 1 for value in (largest, 32 << 20))
    return kept and mallopt(trim_threshold, largest) == 1


class PeakMemory:
    """The most memory this process held since it was made, above what it held then; None where Linux does not tell."""

    def __init__(self) -> None:
        self.start: int | None = None
        try:
            ctypes.CDLL(None).malloc_trim(0)  # give back what earlier work left, or this one would find it for free
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again here
            self.start = self._status("VmRSS")
        except (OSError, AttributeError, ValueError):
            pass

    @staticmethod
    def _status(name: str) -> int:
        for line in _read("/proc/self/status").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise ValueError(f"no {name}")

    def read(self) -> int | None:
        """Bytes."""
        return None if self.start is None else max(0, self._status("VmHWM") - self.start)


def matmul_rate(threads: int, dtype: torch.dtype = torch.float32, size: int = 512, seconds: float = 0.2) -> float:
    """Floating-point operations per second of torch's matrix product: the best of many, which is what the machine can."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(size, size, dtype=dtype)
        out = a @ a
        best, until = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < until:
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best
    finally:
        torch.set_num_threads(before)
