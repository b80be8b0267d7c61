"""What theory expects of a run's stream by depth, as bands beside the readings; computed from what was recorded at the same step.

size of the stream, no norm on it (pre-norm and its kin)
    low   sqrt(s_1^2 + b_2^2 + ... + b_l^2)    what the blocks add stands at right angles to the stream
    high  s_1 + b_2 + ... + b_l                it all points along the stream (triangle inequality: nothing lies above)
    s_l: stream_rms after block l; b_l = branch_share_l * s_l: what block l added. Below the band blocks take back what others added.
size of the stream, a norm after every sum (post-norm, deepnorm)
    1, as long as gains are 1
gradient of the stream: what the identity path alone brings down from the last block's g_L
    no norm on it         g_L
    a norm on it          g_L times a / sqrt(a^2 + 1) for every sum on the way: parts of equal size, the stream multiplied by a before it
                          (1, and (2 L)^(1/4) in deepnorm), and a norm that divides by the size of the sum
    The branches bring more: readings lie above it. Below it, parts are not of equal size, or branches work against the path.
What divides by no statistic (DyT, Derf) keeps no size: a stream through it has no band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

OPEN = (
    "pre",
    "reordered",
    "sandwich",
    "sub-ln",
    "layernorm-scaling",
    "rezero",
    "parallel",
    "none",
)  # no norm on the stream
CLOSED = ("post", "deepnorm")
KEEPERS = ("layer", "rms", "scale", "batch", "group", "instance", "power")  # norms that divide by a size

Data = dict[str, Any]
Column = list[float | None]


def bands(structure: Data, quantities: Sequence[Data]) -> list[Data]:
    """[{quantity, of (which theory), low, high}]: rows and columns as those of the quantity. Nothing for what no theory here knows.

    ``structure``: as in run.json.
    """
    by_name = {q["quantity"]: q for q in quantities}
    placement, found = structure.get("placement"), []
    stream, share, gradient = (by_name.get(name) for name in ("stream_rms", "branch_share", "stream_grad"))
    if stream is not None and _one_stack(stream):
        if placement in CLOSED and _kept(structure, stream["sites"]) is not None:
            ones = [[1.0] * len(stream["steps"]) for _ in stream["sites"]]
            found.append({"quantity": "stream_rms", "of": "closed", "low": ones, "high": ones})
        elif placement in OPEN and share is not None and share["sites"] == stream["sites"]:
            columns = [_grown(*pair) for pair in _columns(stream, share)]
            found.append(
                {
                    "quantity": "stream_rms",
                    "of": "open",
                    "low": _rows([c[0] for c in columns]),
                    "high": _rows([c[1] for c in columns]),
                }
            )
    if gradient is not None and _one_stack(gradient):
        sites = gradient["sites"]
        kept = [1.0] * len(sites) if placement in OPEN else _kept(structure, sites) if placement in CLOSED else None
        if kept is not None:
            low = _rows([_path(column, kept) for column in zip(*gradient["values"], strict=True)])
            found.append({"quantity": "stream_grad", "of": "path", "low": low, "high": low})
    return found


def _kept(structure: Data, sites: Sequence[str]) -> list[float] | None:
    """What each block's norms leave of a gradient on the identity path; None unless a norm that keeps a size stands after every sum."""
    kinds = {norm["name"]: norm.get("kind") for norm in structure.get("norms", ())}
    blocks = {
        block["name"]: block.get("branches", ()) for stack in structure.get("stacks", ()) for block in stack["blocks"]
    }
    kept = []
    for site in sites:
        product = 1.0
        for branch in blocks.get(site, []):
            norms, factor = branch.get("stream", ()), branch.get("stream_factor", 1.0)
            if len(norms) != 1 or kinds.get(norms[0]) not in KEEPERS:
                return None
            if type(factor) not in (int, float) or not 0 < factor < 1e6:
                return None
            product *= factor / math.hypot(factor, 1.0)
        if not blocks.get(site):
            return None
        kept.append(product)
    return kept


def _one_stack(of: Data) -> bool:
    return len(of["sites"]) > 1 and not of["left_out"] and len({site.rpartition(".")[0] for site in of["sites"]}) == 1


def _columns(stream: Data, share: Data) -> list[tuple[Column, Column]]:
    """Sizes and shares at each step of the stream's; shares of a step that was not recorded are None."""
    at = {step: i for i, step in enumerate(share["steps"])}
    return [
        ([row[i] for row in stream["values"]], [row[at[step]] if step in at else None for row in share["values"]])
        for i, step in enumerate(stream["steps"])
    ]


def _grown(sizes: Column, shares: Column) -> tuple[Column, Column]:
    low, high = [sizes[0]], [sizes[0]]
    for size, share in zip(sizes[1:], shares[1:], strict=True):
        if size is None or share is None or low[-1] is None or high[-1] is None:
            low.append(None)
            high.append(None)
        else:
            low.append(math.hypot(low[-1], share * size))
            high.append(high[-1] + share * size)
    return low, high


def _path(column: Sequence[float | None], kept: Sequence[float]) -> Column:
    """``kept`` of a block is lost on the way down from its output to the output of the one below."""
    last = column[-1]
    return [None if last is None else last * math.prod(kept[i + 1 :]) for i in range(len(column))]


def _rows(columns: Sequence[Column]) -> list[Column]:
    return [[None if v is None else float(f"{v:.6g}") for v in row] for row in zip(*columns, strict=True)]
