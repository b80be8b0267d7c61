"""The public names as editors and type checkers see them, and what the first of them costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import normlab

ROOT = Path(__file__).resolve().parents[2]


def test_readmes_code_is_typed(tmp_path):
    """What a user copies from the README passes mypy in its strict mode (but for calls of torch, which is not typed), and names have their own types, not Any."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    known = """
import normlab, torch
from typing_extensions import assert_type
assert_type(normlab.LayerNorm(8), normlab.LayerNorm)
assert_type(normlab.NORMS["rms"].formula, str)
assert_type(normlab.leaks.__name__, str)
assert_type(normlab.functional.rms_norm(torch.ones(2, 8), (8,)), torch.Tensor)
assert_type(normlab.placements.deepnorm_scales(8), tuple[float, float])
"""
    for number, code in enumerate([known, *blocks]):
        (tmp_path / f"block{number}.py").write_text(code if number < 2 else "\n".join([*blocks[: number - 1], code]))
    files = [str(p) for p in sorted(tmp_path.glob("block*.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--no-error-summary", "--config-file=", "--python-version", "3.10",
         "--cache-dir", str(ROOT / ".mypy_cache" / "front"), *files],
        cwd=tmp_path, capture_output=True, text=True, env={"PATH": ""}, check=False,  # as installed
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_about_forty_names_stand_at_the_top():
    assert len(normlab.__all__) <= 45


def test_functions_are_not_hidden_by_the_rooms_they_live_in():
    code = (
        "import normlab.watch.quantities, normlab.leaks, normlab; print(normlab.watch.__name__, normlab.leaks.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["watch", "leaks"]


@pytest.mark.parametrize(
    ("table", "wrong", "near"), [("NORMS", "layr", "'layer'"), ("PLACEMENTS", "sandwhich", "'sandwich'")]
)
def test_a_table_suggests_the_nearest_name(table, wrong, near):
    with pytest.raises(KeyError, match=f"Did you mean {near}"):
        getattr(normlab, table)[wrong]
    with pytest.raises(ValueError, match=f"Did you mean {near}"):
        getattr(normlab, table)[wrong]
    assert wrong not in getattr(normlab, table) and getattr(normlab, table).get(wrong) is None
