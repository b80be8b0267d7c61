"""The build on a machine that is not ours: without a compiler, with one that cannot read the kernels, with one that knows no AVX-512.

Only the configuration is run, which decides; a compiler is a script that refuses what it is told to.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))

pytestmark = [
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
]


def refusing(folder: Path, flag: str, words: str) -> str:
    """A compiler that refuses sources with this flag, as clang does: a line with "error:" and exit code 1."""
    script = folder / "refusing-c++"
    script.write_text(
        f'#!/bin/sh\nfor one in "$@"; do\n'
        f'  if [ "$one" = "{flag}" ]; then echo "rows.h:7:9: error: {words}" >&2; exit 1; fi\ndone\nexec "{COMPILER}" "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def configure(folder: Path, compiler: str) -> tuple[str | None, str]:
    """(why there will be no native kernels, or None; what CMake said)."""
    done = subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(folder / "build"), f"-DPython_EXECUTABLE={sys.executable}", "-DNORMLAB_CPP_TESTS=ON"],
        env={**os.environ, "CXX": compiler}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    missing = folder / "build" / "_native_missing.py"
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    return (runpy.run_path(str(missing))["reason"] if missing.exists() else None), said


def kernels_in(folder: Path) -> set[str]:
    """The instruction sets that would be built."""
    return {p.name.split("_", 1)[1].split(".")[0] for p in (folder / "build" / "CMakeFiles").glob("kernels_*.dir")}


@pytest.mark.nightly  # reading the kernels for every instruction set takes ten seconds
def test_a_usable_compiler_gives_every_instruction_set(tmp_path):
    reason, _ = configure(tmp_path, str(COMPILER))
    assert reason is None and {"baseline"} <= kernels_in(tmp_path)
    if os.uname().machine == "x86_64":
        assert {"baseline", "avx2", "avx512"} <= kernels_in(tmp_path)


def test_without_a_compiler_the_package_is_built_without_kernels(tmp_path):
    reason, said = configure(tmp_path, str(tmp_path / "no-such-compiler"))
    assert reason is not None and "no C++ compiler was found" in reason and "apt-get install g++" in reason
    assert "building without native kernels" in said and not kernels_in(tmp_path)


def test_a_compiler_that_cannot_read_the_kernels_is_named_with_its_error(tmp_path):
    compiler = refusing(tmp_path, "-fsyntax-only", "no 'builtin' of that \\\"name\\\"")
    reason, said = configure(tmp_path, compiler)
    assert reason is not None and "cannot compile the kernels: rows.h:7:9: error: no 'builtin' of that 'name'" in reason
    assert "building without native kernels" in said and not kernels_in(tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="one instruction set")
@pytest.mark.parametrize(
    ("flag", "left"), [("-mavx512f", {"baseline"}), ("-mavx512bf16", {"baseline", "avx2", "avx512"})]
)
def test_a_compiler_without_an_instruction_set_builds_the_others(tmp_path, flag, left):
    reason, _ = configure(tmp_path, refusing(tmp_path, flag, "unknown option"))
    assert reason is None and kernels_in(tmp_path) == left
