"""What tests share: instruction sets to run under, and inputs that hide nothing."""

import pytest
import torch

from normlab.kernels import cpu

ISAS = [name for name, has in (cpu.native.isas() if cpu.native else []) if has]


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(20261115)


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set of this machine in turn."""
    before = cpu.native.isa()
    cpu.native.use_isa(request.param)
    yield request.param
    cpu.native.use_isa(before)


@pytest.fixture
def threads():
    """Set the number of threads; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
