"""inspect against architectures whose truth was written by hand: a few here, all of them nightly (`make zoo` writes the table)."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import zoo

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("row", [r for r in zoo.ROWS if r.few], ids=lambda r: r.name)
def test_a_few_architectures(row):
    assert zoo.look(row).wrong == ()


@pytest.mark.nightly
@pytest.mark.parametrize("row", [r for r in zoo.ROWS if not r.few], ids=lambda r: r.name)
def test_the_other_architectures(row):
    assert zoo.look(row).wrong == ()


def test_the_zoo_is_large_and_its_names_differ():
    assert len(zoo.ROWS) >= 60 and len({r.name for r in zoo.ROWS}) == len(zoo.ROWS)


@pytest.mark.parametrize("change", [{"blocks": 3}, {"placement": "post"}, {"final": 0}, {"qk": 1}, {"parallel": True}, {"unknown": 1}, {"norms": zoo.rms(5, 1e-5)}], ids=str)  # fmt: skip
def test_a_wrong_truth_is_noticed(change):
    (row,) = [r for r in zoo.ROWS if r.name == "Llama"]
    assert len(zoo.look(replace(row, **change)).wrong) == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_holds_every_architecture(language):
    text = (ROOT / "docs" / language / "inspect.md").read_text()
    table = text.split(zoo.BEGIN)[1].split(zoo.END)[0]
    assert re.findall(r"^\| ([^|]+) \|", table, flags=re.M)[1:] == [r.name for r in zoo.ROWS]
