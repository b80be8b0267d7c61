"""The functional API: what torch.nn.functional offers for norms, with masks, and the norms it lacks.

Each function checks its arguments, asks :mod:`kernels` who computes, and takes one of three routes: the thin eager
path, the registered ops (when a graph is being traced), or the reference formula (another kernel, or a functional
transform such as vmap or jvp). All three agree; masks are boolean with True = real, and padding comes out as zero.
"""

from __future__ import annotations

from ..kernels.reference import statistic_labels
from .checks import (
    as_mask,
    check_batch,
    check_channels,
    check_columns,
    check_eps,
    check_floating,
    check_gain,
    check_groups,
    check_memory,
    check_running,
    check_same_device,
    positions,
)
from .columns import batch_norm, column_norm, group_norm, instance_norm
from .pointwise import derf, dyt
from .power import power_norm
from .routes import recomputing
from .rows import layer_norm, residual_norm, rms_eps, rms_norm, row_norm, scale_norm
from .running import batch_statistics, process_group, update_running

__all__ = [
    "as_mask",
    "batch_norm",
    "batch_statistics",
    "check_batch",
    "check_channels",
    "check_columns",
    "check_eps",
    "check_floating",
    "check_gain",
    "check_groups",
    "check_memory",
    "check_running",
    "check_same_device",
    "column_norm",
    "derf",
    "dyt",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "positions",
    "power_norm",
    "process_group",
    "recomputing",
    "residual_norm",
    "rms_eps",
    "rms_norm",
    "row_norm",
    "scale_norm",
    "statistic_labels",
    "update_running",
]
