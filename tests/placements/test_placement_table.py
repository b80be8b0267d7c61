"""The table of placements and what is refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from formulas import (
    NAMES,
    Net,
)
from torch import nn

import normlab
from normlab import PLACEMENTS, placements
from normlab.models import build
from normlab.placements import Slot

# ---- refusals --------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "layer-too-high": (lambda: Slot(layer=4, num_layers=4), r"0\.\.3.*got 4"),
    "layer-negative": (lambda: Slot(layer=-1), "got -1"),
    "no-layers": (lambda: Slot(num_layers=0), "num_layers=0"),
    "other-layers-negative": (lambda: Slot(other_layers=-1), "other_layers"),
    "kind": (lambda: Slot(kind="atention"), "Did you mean 'attention'"),
    "stack": (lambda: Slot(stack="encodr"), "Did you mean 'encoder'"),
    "placement": (lambda: normlab.PLACEMENTS["sandwhich"], "Did you mean 'sandwich'"),
    "placement-of-a-model": (lambda: build(placement="deep-norm"), "Did you mean 'deepnorm'"),
    "residual-dropout-one": (lambda: normlab.placements.Residual(dropout=1.0), r"\[0, 1\).*1\.0"),
    "residual-dropout-negative": (lambda: normlab.placements.Residual(dropout=-0.1), r"\[0, 1\).*-0\.1"),
    "placement-dropout": (lambda: normlab.placements.PreNorm(nn.Identity, dropout=1.5), r"\[0, 1\).*1\.5"),
    "share-above-one": (lambda: normlab.placements.MixNorm(nn.Identity, post_share=1.01), r"\[0, 1\].*1\.01"),
    "share-negative": (lambda: normlab.placements.MixNorm(nn.Identity, post_share=-0.5), r"\[0, 1\].*-0\.5"),
    "output-change": (lambda: normlab.placements.admin_scale(12, "constnt"), "Did you mean 'constant'"),
    "admin": (
        lambda: normlab.placements.Admin(nn.Identity, Slot(width=4), output_change="linear"),
        "Known: constant, log",
    ),
    "admin-width": (lambda: normlab.placements.Admin(nn.Identity), "width from Identity; name it: Slot"),
    "deepnorm-depth": (lambda: normlab.placements.deepnorm_scales(0), "num_layers >= 1"),
    "deepnorm-stack": (lambda: normlab.placements.deepnorm_scales(4, stack="decodr"), "Did you mean 'decoder'"),
    "subln-other": (lambda: normlab.placements.subln_gain(4, other_layers=-2), "other_layers >= 0"),
    "part": (lambda: normlab.placements.scaled_init({"valu": [nn.Linear(2, 2)]}), "Did you mean 'value'"),
    "part-of-a-rule": (
        lambda: normlab.placements.deepnorm_init({"feed_forward": []}, num_layers=2),
        "Did you mean 'feedforward'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_with_what_to_do(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        make()


def test_option_of_another_placement_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="post_share"):
        build(placement="pre", placement_options={"post_share": 0.5}, dim=8, num_heads=2, num_layers=1)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_complete(name: str) -> None:
    facts = PLACEMENTS[name]
    assert issubclass(facts.placement, placements.Placement) and issubclass(facts.ends, placements.Ends)
    assert re.fullmatch(r"\d{4}\.\d{5}", facts.paper)
    assert facts.year == 2000 + int(facts.paper[:2])
    assert facts.formula and facts.advice and facts.advice[-1] != "."
    assert set(inspect.signature(facts.init).parameters) == {"parts", "num_layers", "stack", "other_layers"}
    assert normlab.PLACEMENTS[name] is facts
    assert getattr(placements, facts.placement.__name__) is facts.placement


def test_every_placement_class_has_a_row_of_its_own() -> None:
    classes = {
        c
        for c in vars(placements).values()
        if inspect.isclass(c) and issubclass(c, placements.Placement) and c is not placements.Placement
    }
    assert classes == {facts.placement for facts in PLACEMENTS.values()} and len(classes) == len(PLACEMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_draws_the_placement(name: str) -> None:
    place = PLACEMENTS[name].placement
    drawing = [line for line in (vars(place)["__doc__"] or "").splitlines() if "──" in line]
    assert len(drawing) >= 2 and "S" in drawing[0] + drawing[1]
    assert any("└" in line and "┘" in line for line in drawing), "no residual drawn"
    norms = sum(isinstance(m, nn.Identity) for m in Net(name, nn.Identity, layers=4).modules())
    assert ("N " in "\n".join(drawing) + " ") == (norms > 0)
