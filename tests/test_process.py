"""What the kernels take from the process they run in: threads, working memory, huge pages. Each in a process of its own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest

from normlab.kernels import cpu

pytestmark = [
    pytest.mark.skipif(cpu.native is None, reason="no native kernels in this installation"),
    pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc"),
]

MIB = 1 << 20


def child(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=300)  # fmt: skip


def printed(code: str, *arguments: object, **environment: str) -> list[int]:
    done = child(code, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


# ---- threads -----------------------------------------------------------------------------------------------------------

# Thread ids are looked at after every layer: one that ended and one that took its place are two.
STEPS = """
import os, sys
import torch
import normlab
torch.set_num_threads(int(sys.argv[1]))
norms = {"layer": lambda: normlab.LayerNorm(512), "batch": lambda: normlab.BatchNorm(512), "dyt": lambda: normlab.DyT(512)}
seen = set()
look = lambda *_: seen.update(os.listdir("/proc/self/task"))
layers = []
for _ in range(2):
    layers += [torch.nn.Linear(512, 512), norms[sys.argv[2]](), torch.nn.GELU()]
model = torch.nn.Sequential(*layers)
for layer in model:
    layer.register_forward_hook(look)
    layer.register_full_backward_hook(look)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def step(rows):
    optimizer.zero_grad()
    model(torch.randn(rows, 512, requires_grad=True)).square().mean().backward()
    optimizer.step()
    look()
for _ in range(5):
    step(256)
print(len(seen))
for i in range(50):
    step((64, 96, 128, 130)[i % 4])
print(len(seen))
"""


@pytest.mark.parametrize("norm", ["layer", "batch", "dyt"])
@pytest.mark.parametrize("threads", [4, 8])
def test_steps_start_no_threads(threads, norm):
    """A parallel region of fewer threads than the one before makes libgomp end the others, and the next one starts them again."""
    warm, after = printed(STEPS, threads, norm)
    assert after == warm


# ---- working memory ----------------------------------------------------------------------------------------------------

# A forward and a backward at about 32 MB; printed in bytes: what the process has kept once all tensors are gone, and what it
# had at its peak beyond them. glibc is told to give freed memory back at once, so that what is kept is the kernels' own.
# The first, small call starts threads and libraries.
MEMORY = """
import gc, sys
import torch
import normlab
torch.set_num_threads(2)
def status(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field))
make = {
    "causal": lambda c: normlab.GroupNorm(max(1, c // 8), c, causal="position"),
    "causal batch": lambda c: normlab.BatchNorm(c, causal="position"),
    "group": lambda c: normlab.GroupNorm(max(1, c // 8), c),
    "instance": lambda c: normlab.InstanceNorm(c, affine=True),
    "batch": lambda c: normlab.BatchNorm(c),
    "layer": lambda c: normlab.LayerNorm(c),
    "dyt": lambda c: normlab.DyT(c),
}[sys.argv[1]]
def run(*shape):
    norm, x = make(shape[-1]), torch.randn(*shape, requires_grad=True)
    y = norm(x)
    y.backward(torch.randn_like(x))
    tensors = [x, y, x.grad, x.grad] + [t for p in norm.parameters() for t in (p, p.grad)]
    return sum(t.numel() * t.element_size() for t in tensors)
run(2, 300, 64)
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
tensors = run(*map(int, sys.argv[2].split("x")))
peak = status("VmHWM") - before - tensors
gc.collect()
print(status("VmRSS") - before, peak)
"""


@pytest.mark.parametrize(
    ("norm", "shape", "most"),
    [
        # The statistics kept for backward, two doubles a group and a count, are part of it.
        ("causal", "8x1024x1024", 40 * MIB),
        ("causal", "1024x8192x1", 240 * MIB),  # 24 bytes of statistics for every value
        ("causal batch", "2x64x65536", 170 * MIB),
        ("group", "8192x1x1024", 40 * MIB),
        ("group", "64x128x1024", 40 * MIB),
        ("instance", "2048x4x1024", 60 * MIB),
        ("batch", "8x1024x1024", 40 * MIB),
        ("layer", "8x1024x1024", 40 * MIB),
        ("layer", "256x1x32768", 60 * MIB),
        ("dyt", "256x1x32768", 60 * MIB),
    ],
)
def test_working_memory_is_bounded_and_given_back(norm, shape, most):
    settings = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
    kept, peak = printed(MEMORY, norm, shape, **settings)
    assert kept < 16 * MIB
    assert peak < most


# Room for the tensors is there, for what the kernel works in it is not.
STARVED = """
import resource, sys
import torch
import normlab
torch.set_num_threads(2)
norm = {"batch": lambda: normlab.BatchNorm(4 << 20), "layer": lambda: normlab.LayerNorm(4 << 20)}[sys.argv[1]]()
x = torch.randn(8, 4 << 20, requires_grad=True)
grad = torch.randn_like(x)
normlab.LayerNorm(64)(torch.randn(1000, 64, requires_grad=True)).sum().backward()  # threads and their stacks exist
y = norm(x) if sys.argv[1] == "layer" else None
room = x.numel() * 4 + (100 << 20)
held = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (held + room, resource.RLIM_INFINITY))
try:
    norm(x) if y is None else y.backward(grad)
    print("went through")
except MemoryError as error:
    print("MemoryError", error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
small = torch.randn(300, 64)
assert torch.equal(normlab.LayerNorm(64)(small), normlab.LayerNorm(64)(small))
"""


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_without_memory_a_kernel_raises(norm):
    """Forward in the first case, backward in the second: an exception, and the process goes on."""
    done = child(STARVED, norm)
    assert done.returncode == 0, done.returncode if done.returncode != -signal.SIGABRT else "aborted"
    assert "MemoryError not enough memory" in done.stdout
