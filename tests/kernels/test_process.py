"""What the kernels take from the process they run in: threads, working memory, huge pages. Each in a process of its own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest

from normlab.bench import doctor
from normlab.kernels import cpu, pages

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


# ---- huge pages --------------------------------------------------------------------------------------------------------

ASKED = """
from normlab.kernels import cpu
print(int(cpu.native.huge_pages()))
"""

# Is an output of 48 MiB marked with MADV_HUGEPAGE?
UNDER_OUTPUT = """
import torch
import normlab
from normlab.kernels import cpu
torch.set_num_threads(1)
x, norm = torch.randn(12288, 1024), normlab.LayerNorm(1024)
with torch.no_grad():
    y = norm(x)
start = y.data_ptr()
advised = 0
inside = False
for line in open("/proc/self/smaps"):
    first = line.split()[0]
    if "-" in first and not first.endswith(":"):
        begin, end = (int(word, 16) for word in first.split("-"))
        inside = begin < start + (40 << 20) and end > start + (8 << 20)
    elif inside and first == "VmFlags:":
        advised |= "hg" in line.split()
print(int(advised))
"""


def test_huge_pages_are_asked_for_as_the_environment_says():
    assert printed(ASKED, NORMLAB_HUGE_PAGES="0") == [0]
    assert printed(ASKED, NORMLAB_HUGE_PAGES="1") == [1]
    automatic = pages.choose("auto", pages.setting("enabled"), pages.setting("defrag"))[0]
    assert printed(ASKED, NORMLAB_HUGE_PAGES="auto") == [automatic]


def test_an_unknown_setting_of_huge_pages_names_the_choices():
    done = child(ASKED, NORMLAB_HUGE_PAGES="yes")
    assert done.returncode == 1
    assert "NORMLAB_HUGE_PAGES: unknown setting 'yes'. Known: 0, 1, auto." in done.stderr


@pytest.mark.skipif(pages.setting("enabled") is None, reason="a kernel without transparent huge pages")
def test_large_outputs_are_marked_only_if_asked():
    assert printed(UNDER_OUTPUT, NORMLAB_HUGE_PAGES="1") == [1]
    assert printed(UNDER_OUTPUT, NORMLAB_HUGE_PAGES="0") == [0]


@pytest.mark.parametrize(
    ("enabled", "defrag", "asks"),
    [
        ("madvise", "madvise", False),
        ("always", "always", False),
        ("madvise", "defer+madvise", False),
        ("madvise", "defer", True),
        ("always", "never", True),
        ("never", "defer", False),
        (None, None, False),
    ],
)
def test_automatic_huge_pages_make_nobody_wait(enabled, defrag, asks):
    answer, reason = pages.choose("auto", enabled, defrag)
    assert answer is asks and reason


@pytest.mark.parametrize(
    ("ordinary", "huge", "in_use", "words"),
    [
        ([20, 22, 21], [9, 10, 9], False, "NORMLAB_HUGE_PAGES=1"),
        ([20, 22, 21], [9, 10, 9], True, "leave it so"),
        ([20, 22, 21], [9, 9, 430], True, "NORMLAB_HUGE_PAGES=0"),  # the median is half, the mean seven times
        ([20, 22, 21], [9, 9, 9, 9, 9, 9, 60], False, "leave it so"),  # better on average, but one call in seven waits
        ([20, 22, 21], [19, 21, 20], False, "leave it so"),
    ],
)
def test_the_doctor_judges_huge_pages_by_the_mean_and_the_worst(ordinary, huge, in_use, words):
    advice = doctor.huge_page_advice({"0": ordinary, "1": huge}, in_use)
    assert words in advice and f"worst {max(huge):.0f}" in advice


def test_the_doctor_measures_huge_pages():
    times = doctor.huge_page_times()
    assert times is not None and sorted(times) == ["0", "1"]
    assert len(times["0"]) == len(times["1"]) == 25 and min(times["0"] + times["1"]) > 0
