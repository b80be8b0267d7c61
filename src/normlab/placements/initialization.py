"""How matrices start and streams are weighed, by depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import unknown
from .residual import STACKS

# ---- depth rules -----------------------------------------------------------------------------------------------------


def _check_depth(num_layers: int, stack: str, other_layers: int) -> None:
    if stack not in STACKS:
        raise ValueError(unknown("stack", stack, STACKS))
    if num_layers < 1 or other_layers < 0:
        raise ValueError(f"need num_layers >= 1 and other_layers >= 0, got {num_layers} and {other_layers}")


def deepnorm_scales(num_layers: int, *, stack: str = "encoder", other_layers: int = 0) -> tuple[float, float]:
    """(alpha, beta) of DeepNorm for a stack of ``num_layers``.

    Alone (encoder-only, decoder-only): (2N)^(1/4), (8N)^(-1/4). In an encoder-decoder of N and M layers the encoder gets
    0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16) and the decoder (3M)^(1/4), (12M)^(-1/4).

    >>> deepnorm_scales(8)
    (2.0, 0.3535533905932738)
    """
    _check_depth(num_layers, stack, other_layers)
    if not other_layers:
        return (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25
    if stack == "decoder":
        return (3 * num_layers) ** 0.25, (12 * num_layers) ** -0.25
    power = (num_layers**4 * other_layers) ** 0.0625
    return 0.81 * power, 0.87 / power


def subln_gain(num_layers: int, *, stack: str = "encoder", other_layers: int = 0) -> float:
    """Magneto's factor on the matrices: sqrt(log 2N) for one stack; sqrt(log 3M) for the decoder and
    sqrt(log(3M) log(2N) / 3) for the encoder of an encoder-decoder of N and M layers.

    >>> round(subln_gain(12), 4)
    1.7827
    """
    _check_depth(num_layers, stack, other_layers)
    if not other_layers:
        return math.sqrt(math.log(2 * num_layers))
    if stack == "decoder":
        return math.sqrt(math.log(3 * num_layers))
    return math.sqrt(math.log(3 * other_layers) * math.log(2 * num_layers) / 3)


def admin_scale(sublayers: int, output_change: str = "log") -> float:
    """Where Admin's omega starts, for a stack of this many residual sums.

    >>> admin_scale(16, "constant")
    4.0
    """
    if output_change == "log":
        return math.sqrt((sublayers + 1) / math.log(sublayers + 1) - 1)
    if output_change == "constant":
        return math.sqrt(sublayers)
    raise ValueError(unknown("output_change", output_change, ("log", "constant")))


# ---- how the matrices start ------------------------------------------------------------------------------------------

PARTS = ("query", "key", "value", "output", "cross_value", "cross_output", "feedforward")
Parts = Mapping[str, Iterable[nn.Module | Tensor]]


def scaled_init(parts: Parts, gains: Mapping[str, float] | None = None) -> None:
    """Xavier's normal initialization, times a gain per kind of matrix; biases of modules start at zero.

    ``parts`` maps kinds (PARTS) to modules with a ``weight``, or to weight tensors; a slice of a fused projection is a
    part of its own, with its own fans.

    >>> layer = nn.Linear(4, 4)
    >>> scaled_init({"output": [layer]}, {"output": 0.5})
    """
    for kind, matrices in parts.items():
        if kind not in PARTS:
            raise ValueError(unknown("part", kind, PARTS))
        gain = 1.0 if gains is None else gains.get(kind, 1.0)
        for matrix in matrices:
            weight: Any = matrix if isinstance(matrix, Tensor) else matrix.weight
            with torch.no_grad():  # a slice of a parameter is a view that autograd would watch
                nn.init.xavier_normal_(weight.detach(), gain=gain)
                bias = None if isinstance(matrix, Tensor) else getattr(matrix, "bias", None)
                if bias is not None:
                    bias.zero_()


def plain_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """Xavier's initialization as it is; most placements start so."""
    scaled_init(parts)


def deepnorm_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """DeepNorm's: values, outputs and feed-forward matrices beta times smaller; queries and keys as they are.

    >>> deepnorm_init({"feedforward": [nn.Linear(4, 8), nn.Linear(8, 4)]}, num_layers=12)
    """
    beta = deepnorm_scales(num_layers, stack=stack, other_layers=other_layers)[1]
    scaled_init(parts, dict.fromkeys(("value", "output", "cross_value", "cross_output", "feedforward"), beta))


def subln_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """Magneto's: values, outputs and feed-forward matrices larger by subln_gain; cross-attention as it is."""
    gain = subln_gain(num_layers, stack=stack, other_layers=other_layers)
    scaled_init(parts, dict.fromkeys(("value", "output", "feedforward"), gain))


def b2t_init(parts: Parts, *, num_layers: int, stack: str = "encoder", other_layers: int = 0) -> None:
    """B2T's: every matrix 1/sqrt(layers) times smaller."""
    scaled_init(parts, dict.fromkeys(PARTS, num_layers**-0.5))
