"""What tests share: instruction sets to run under, and inputs that hide nothing."""

import os
import sys

# Two workers with two threads each on two cores: a thread that waits keeps the core that the other worker needs (75 s of processor time
# where 5 are enough). Idle threads sleep, and a worker has one thread unless its room is about threads. libgomp reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

import normlab
from normlab.kernels import cpu

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Some virtual machines announce AMX and trap on it: torch's first 16-bit matrix product would end the test process.
# This is an upper bound, read at that first product; processors without these instructions are not affected.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

ISAS = [name for name, has in (cpu.native.isas() if cpu.native else []) if has]


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(20261115)


@pytest.fixture(autouse=True)
def _own_modules_are_forgotten():
    """Several tests write a ``mine.py`` of their own and name it on the command line."""
    yield
    sys.modules.pop("mine", None)


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set of this machine in turn."""
    before = cpu.native.isa()
    cpu.native.use_isa(request.param)
    yield request.param
    cpu.native.use_isa(before)


@pytest.fixture(params=["cpu", "reference"])
def kernel(request):
    """Both ways to compute, in turn."""
    if request.param == "cpu" and cpu.missing:
        pytest.skip(cpu.missing)
    with normlab.use_kernel(request.param):
        yield request.param


@pytest.fixture
def two_threads():
    """Where work is shared out: kernels and norms ask for this by themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads():
    """Set the number of threads; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
