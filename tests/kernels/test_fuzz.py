"""The native boundary under strange inputs: see the package ``fuzz``, whose table says what is valid and what is wrong.

The fuzz runs in a process of its own: it forks children that may crash.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import cases, faults

from normlab.kernels import cpu

pytestmark = pytest.mark.skipif(bool(cpu.missing) or not hasattr(os, "fork"), reason="no kernels, or no fork")


LEAST = 201  # cases


def fuzz(tmp_path, *args):
    """What ``python -m fuzz`` wrote, and what it printed."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--json", str(out), *map(str, args)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
    )
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text()), done.stdout + done.stderr


def test_strange_inputs_for_a_minute(tmp_path):
    summary, printed = fuzz(tmp_path, "--seconds", 50)
    assert not summary["findings"], printed
    left = LEAST - summary["cases"]
    if left > 0:  # a busy machine: however long it takes, so many are tried
        summary, printed = fuzz(tmp_path, "--first", summary["cases"], "--most", left, "--seconds", 1800)
        assert summary["cases"] == left and not summary["findings"], printed


@pytest.mark.nightly
def test_strange_inputs_for_twenty_minutes(tmp_path):
    """Other cases every night; a finding names its number."""
    summary, printed = fuzz(tmp_path, "--seconds", 1200, "--first", 10**7 * datetime.date.today().toordinal())
    assert summary["cases"] > 5000, printed
    assert not summary["findings"], printed


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    return fuzz(tmp_path_factory.mktemp("drill"), "--drill")[0]


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_put_in_is_found(drilled, name):
    assert drilled[name]


def test_a_number_is_a_case():
    for seed in range(300):
        assert str(cases.draw(seed)) == str(cases.draw(seed))


def test_every_twist_is_drawn():
    drawn = {name for seed in range(4000) for name, _ in cases.draw(seed).twists}
    assert drawn == set(cases.TWISTS)
