"""The machine as torch finds it: the facts a result must name, and whether 16-bit matrix products work at all."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .kernels import cpu

# An upper bound on the instructions of torch's matrix products, one below AMX. oneDNN reads it at its first product.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
PRODUCT = "import torch; w = torch.ones(64, 64, dtype=torch.bfloat16); print((w @ w)[0, 0].item())"


def facts() -> dict[str, Any]:
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
    """Set what this process needs for bfloat16 products (before its first one) and say what was set."""
    works, environment, note = sixteen_bit()
    if not works and not environment:
        raise RuntimeError(note)
    os.environ.update(environment)
    return environment
