"""Files that fit into a head: none too long, and half of the modules short."""

from __future__ import annotations

import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE, MEDIAN, TEST = 450, 200, 700  # lines

# Too long, and to be split along ideas. Nothing may be added; what has become short enough must go.
TOO_LONG = {
    "csrc/bindings.cpp",
    "csrc/column_norm.cpp",
    "csrc/row_norm.cpp",
    "csrc/tests/kernel_test.cpp",
    "tests/fuzz/judge.py",
    "tests/kernels/test_eager.py",
    "tests/lab/test_tasks.py",
    "tests/lab/test_train.py",
    "tests/norms/test_norms.py",
    "tests/watch/test_probes.py",
}


def lengths(*patterns: str) -> dict[str, int]:
    """{path: lines}."""
    files = sorted(p for pattern in patterns for p in ROOT.glob(pattern) if "tests" in pattern or "tests" not in p.parts)
    return {p.relative_to(ROOT).as_posix(): len(p.read_text(encoding="utf-8").splitlines()) for p in files}


MODULES = lengths("src/normlab/**/*.py", "csrc/**/*.cpp", "csrc/**/*.h")
TESTS = lengths("tests/**/*.py", "csrc/tests/*.cpp")


def test_no_module_and_no_test_file_is_too_long() -> None:
    assert len(MODULES) > 50 and len(TESTS) > 30, "the patterns find nothing"
    long = {path: n for path, n in {**MODULES, **TESTS}.items() if n > (TEST if path in TESTS else MODULE)}
    assert not long.keys() - TOO_LONG, f"split along ideas: { {p: long[p] for p in long.keys() - TOO_LONG} }"
    assert not TOO_LONG - long.keys(), f"short enough, or gone; take them from TOO_LONG: {sorted(TOO_LONG - long.keys())}"


def test_half_of_the_modules_are_short() -> None:
    assert statistics.median(MODULES.values()) < MEDIAN
