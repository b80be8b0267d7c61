"""inspect on models nobody here would write, with both captures."""

from __future__ import annotations

import pytest
import torch
from strange_blocks import TOKENS
from strangers import STRANGERS

import normlab


@pytest.mark.parametrize("capture", ["operators", "graph"])
@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_model(name, capture):
    truth = STRANGERS[name]
    torch.manual_seed(1)
    found = normlab.inspect(truth.make(), TOKENS, capture=capture)
    wanted = truth.graph if capture == "graph" and truth.graph is not None else truth.placement
    if wanted == "unknown" and found.placement == truth.placement:
        wanted = truth.placement  # torch 2.15's graph tells more than 2.13's
    assert found.placement == wanted, str(found)
    unseen = truth.unseen if capture == "graph" else ""
    assert unseen in (found.reason or "")
    if truth.kinds is not None and wanted == truth.placement:
        assert {name.partition("(")[2].partition(", a function")[0] for name in found.functions} == set(truth.kinds)
    if wanted == "unknown":
        assert found.reason, "and why"
        return
    assert unseen or found.reason is None
    assert len(found.blocks) == truth.blocks, [b.name for b in found.blocks]
    assert found.embedding_norms == truth.embedding
    assert any(stack.parallel for stack in found.stacks) == truth.parallel
    if truth.queries_keys is not None:
        assert sum(len(stack.queries_keys) for stack in found.stacks) == truth.queries_keys
    if truth.final is not None:
        assert found.final_norms == truth.final
