"""Who computes an op: a pure function from facts to (kernel, reason).

The choice never depends on the number of rows: a row's bits must not depend on the batch around it. ``shape`` is there
for the sizes that statistics span; today no kernel is limited by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import KernelUnavailable, unknown

REQUESTS = ("auto", "cpu", "reference")
OPS = (
    "layer_norm",
    "rms_norm",
    "scale_norm",
    "residual_norm",
    "batch_norm",
    "instance_norm",
    "group_norm",
    "power_norm",
    "dyt",
    "derf",
)
CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def choose(
    op: str, device: str, dtype: torch.dtype, shape: Sequence[int], request: str, missing: str | None
) -> tuple[str, str]:
    """(kernel, reason). ``missing`` says why there is no native kernel in this installation, or is None.

    >>> choose("layer_norm", "cpu", torch.float32, (4, 8), "auto", None)[0]
    'cpu'
    >>> choose("layer_norm", "cuda", torch.float32, (4, 8), "auto", None)[0]
    'torch'
    >>> choose("layer_norm", "cpu", torch.float32, (4, 8), "auto", "no C++ compiler was found")
    ('reference', 'no native kernel: no C++ compiler was found')
    """
    if request == "reference":
        return "reference", "requested"
    if device != "cpu":
        if request != "cpu":
            return (
                "torch",
                f"no kernel of ours for device {device!r}: torch's own where the formula is theirs, else float32 formulas",
            )
        obstacle = f"no native kernel for device {device!r} yet"
    elif missing is not None:
        obstacle = f"no native kernel: {missing}"
    elif dtype not in CPU_DTYPES:
        obstacle = f"no native kernel for {dtype}"
    else:
        return "cpu", "requested" if request == "cpu" else "fused C++ kernel"
    if request == "cpu":
        raise KernelUnavailable(f"kernel 'cpu' was requested for {op} on {tuple(shape)}, but there is {obstacle}")
    return "reference", obstacle


def check_request(request: str) -> str:
    if request not in REQUESTS:
        raise ValueError(unknown("kernel", request, REQUESTS))
    return request
