"""normlab: a normalization workbench for Transformers.

The public names, one table; resolved on first use so that importing normlab is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES: dict[str, str] = {
    **dict.fromkeys(
        ("LayerNorm", "RMSNorm", "ScaleNorm", "BatchNorm", "InstanceNorm", "GroupNorm", "PowerNorm", "DyT", "Derf",
         "ResidualNorm", "NORMS", "make_norm"),
        "norms",
    ),
    **dict.fromkeys(
        ("Residual", "Site", "NoNorm", "PostNorm", "PreNorm", "DeepNorm", "SandwichNorm", "PeriNorm", "SubNorm",
         "NormFormer", "ResidualDual", "B2T", "MixNorm", "HybridNorm", "LayerNormScaling", "ReorderedNorm", "Admin", "ReZero",
         "PLACEMENTS", "find_placement", "scaled_init", "plain_init", "deepnorm_init", "subln_init", "b2t_init",
         "deepnorm_scales", "subln_gain", "admin_scale"),
        "placements",
    ),
    **dict.fromkeys(("TransformerConfig", "build"), "transformer"),
    "leaks": "causal",
    **dict.fromkeys(("watch", "Probe"), "probes"),
    "lr_range": "rates",
    **dict.fromkeys(("Experiment", "Sweep"), "lab"),
    "diagnose": "diagnosis",
    "Run": "runs",
    **dict.fromkeys(("find_norms", "find_blocks"), "sites"),
    "RunUnreadable": "errors",
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "scale_norm", "batch_norm", "instance_norm", "group_norm", "power_norm", "dyt", "derf",
         "residual_norm", "batch_statistics"),
        "ops",
    ),
    "cells": "reference",
    "use_kernel": "kernels",
    "KernelUnavailable": "errors",
    "TransformUnsupported": "errors",
}  # fmt: skip
_MODULES = ("callbacks", "lab", "answer", "report", "runs")
__all__ = ["__version__", *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
