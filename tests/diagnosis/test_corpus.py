"""The labelled corpus: its labels are sound, a few of its runs are diagnosed as labelled, and by night all of them are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import normlab
from normlab.diagnosis import RULES

sys.path.insert(0, str(Path(__file__).parent))
from corpus.plan import SETS
from corpus.plants import KINDS
from corpus.score import score

RUN = {"max_overhead": None}


@pytest.fixture(autouse=True)
def _one_thread(threads):
    threads(1)


def test_labels_name_rules_and_both_sets_hold_every_kind():
    for kind in KINDS.values():
        assert kind.names and {*kind.names, *kind.also} <= set(RULES)
    for name, make in SETS.items():
        cases = make()
        assert {c.kind for c in cases} == {*KINDS, "healthy"}
        assert all(sum(c.kind == kind for c in cases) == 2 for kind in KINDS), name
        assert len({(c.kind, c.name) for c in cases}) == len(cases)
    assert len(KINDS) >= 20 and sum(c.kind == "healthy" for c in SETS["evaluation"]()) >= 40


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gradients not cleared", "own"),
        ("not finite at once", "own"),
        ("16-bit weights", "own"),
        ("healthy", "two micro-batches"),
    ],
)
def test_a_few_runs_are_diagnosed_as_labelled(tmp_path, kind, name):
    (case,) = [c for c in SETS["tuning"]() if (c.kind, c.name) == (kind, name)]
    trial = case.make()
    found = normlab.diagnose(trial.run(tmp_path / "a", **RUN)).findings
    if kind == "healthy":
        assert not found
    else:
        assert {f.rule for f in found} & set(KINDS[kind].names)
        assert trial.expected_site in (None, found[0].site)


@pytest.mark.nightly
def test_the_evaluation_set_reaches_what_is_asked(tmp_path):
    import json

    for case in SETS["evaluation"]():
        folder = tmp_path / f"{case.kind} {case.name}".replace("/", "-")
        trial = case.make()
        trial.run(folder, **RUN)
        label = {"kind": case.kind, "name": case.name, "site": trial.expected_site, "step": trial.expected_step}
        (folder / "label.json").write_text(json.dumps(label), encoding="utf-8")
    result = score(tmp_path)
    assert result.recall >= 0.9 and result.precision >= 0.95, result.told
