"""inspect on models nobody here would write, with both captures."""

from __future__ import annotations

import pytest
import torch
from strangers import STRANGERS, TOKENS

import normlab


@pytest.mark.parametrize("capture", ["operators", "graph"])
@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_model(name, capture):
    truth = STRANGERS[name]
    torch.manual_seed(1)
    found = normlab.inspect(truth.make(), TOKENS, capture=capture)
    wanted = truth.graph if capture == "graph" and truth.graph is not None else truth.placement
    assert found.placement == wanted, str(found)
    if wanted == "unknown":
        assert found.reason, "and why"
        return
    assert len(found.blocks) == truth.blocks, [b.name for b in found.blocks]
    if truth.final is not None:
        assert found.final_norms == truth.final
