"""What probes remember across steps, such as gains at the start and running averages: as tensors, for a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from torch import Tensor

from .frames import Probe


def remembered(probes: Iterable[Probe]) -> dict[str, Tensor]:
    """The tensors in the probes' dictionaries."""
    found = {}
    for probe in probes:
        for attribute, table in vars(probe).items():
            for key, value in table.items() if isinstance(table, dict) else ():
                for place, part in enumerate(value) if isinstance(value, tuple) else ((None, value),):
                    if isinstance(part, Tensor):
                        found[json.dumps([probe.name, attribute, key, place])] = part
    return found


def remind(probes: Iterable[Probe], state: Mapping[str, Tensor]) -> None:
    """Let the probes go on with what :func:`remembered` gave."""
    known = {probe.name: probe for probe in probes}
    for text, tensor in state.items():
        name, attribute, key, place = json.loads(text)
        if name in known:
            table = vars(known[name])[attribute]
            key = tuple(key) if isinstance(key, list) else key
            table[key] = tensor.clone() if place is None else (*table.get(key, ()), tensor.clone())
