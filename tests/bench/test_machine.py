"""Memory and speed as the machine tells them, and 16-bit products that would end the process refused."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest
import torch

from normlab import machine


def test_peak_memory_sees_what_came_and_went():
    memory = machine.PeakMemory()
    if memory.start is None:
        pytest.skip("this system does not tell")
    small = memory.read()
    planted = torch.ones(64 * 2**20, dtype=torch.uint8)
    del planted
    with_it = memory.read()
    assert with_it - small > 56 * 2**20 and with_it < 1024 * 2**20
    again = machine.PeakMemory()
    assert again.read() < with_it - 32 * 2**20  # a new measurement starts from here


def test_peak_memory_without_linux_is_unknown(monkeypatch):
    monkeypatch.setattr(machine, "_read", lambda path: "")
    assert machine.PeakMemory().read() is None


def test_the_rate_of_products_is_that_of_products():
    threads = torch.get_num_threads()
    rate = machine.matmul_rate(1, size=64, seconds=0.02)
    assert 1e7 < rate < 1e14
    assert torch.get_num_threads() == threads
    with pytest.raises(RuntimeError):
        machine.matmul_rate(1, size=-1)
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("there", [True, False])
def test_a_process_that_has_computed_before_is_told_instead_of_killed(monkeypatch, there):
    """A product that traps, in the copy of the process in which it is tried."""
    monkeypatch.setattr(machine, "_product_works", lambda environment: there or bool(environment))
    if there:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    else:
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = dict(os.environ)
    me = os.getpid()

    def trap(*_, **__):
        assert os.getpid() != me
        os.kill(os.getpid(), signal.SIGILL)

    monkeypatch.setattr(torch, "ones", trap)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="start your program with ONEDNN_MAX_CPU_ISA="):
            machine.prepare_16_bit()
        assert dict(os.environ) == before


def test_freed_memory_is_kept():
    """In a child process: after some rounds of writing and freeing 64 MiB, twenty more cost no page faults."""
    code = (
        "import resource, sys, torch\n"
        "from normlab.machine import keep_freed_memory\n"
        "assert sys.argv[1] == 'as it is' or keep_freed_memory()\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): torch.zeros(16 << 20)\n"  # malloc takes a few rounds to find blocks that fit
        "before = faults()\n"
        "for _ in range(20): torch.zeros(16 << 20)\n"
        "print(faults() - before)"
    )
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("glibc only")
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "THP_MEM_ALLOC_ENABLE") and "MALLOC" not in k}
    loose, kept = (
        int(
            subprocess.run(
                [sys.executable, "-c", code, how], env=env, capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("as it is", "kept")
    )
    assert kept < loose / 20
