"""Files that fit into a head: none too long, and half of the modules short."""

from __future__ import annotations

import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE, MEDIAN, TEST = 450, 200, 700  # lines


def lengths(*patterns: str) -> dict[str, int]:
    """{path: lines}."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
    }


MODULES = lengths("src/normlab/**/*.py", "csrc/*.cpp", "csrc/*.h")
TESTS = lengths("tests/**/*.py", "csrc/tests/*.cpp", "csrc/tests/*.h")


def test_no_module_and_no_test_file_is_too_long() -> None:
    assert len(MODULES) > 50 and len(TESTS) > 30, "the patterns find nothing"
    long = {path: n for path, n in {**MODULES, **TESTS}.items() if n > (TEST if path in TESTS else MODULE)}
    assert not long, f"split along ideas: {long}"


def test_half_of_the_modules_are_short() -> None:
    assert statistics.median(MODULES.values()) < MEDIAN
