"""What was timed, as a page: the numbers of the file, and a file that is anything."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from normlab import RunUnreadable, cli, report
from normlab.bench import speed, steps
from normlab.bench.timing import Row
from normlab.report import kernels

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-16-second.json"


def test_every_number_of_the_file_is_there():
    held, view = json.loads(RESULTS.read_text()), report.view(RESULTS)
    for what in ("ratios", "share_of_limit"):
        told = {
            (f["family"], line["case"], line["shape"], line["dtype"], rival): value
            for f in view["figures"] if f["what"] == what for line in f["lines"] for rival, value in zip(f["rivals"], line["values"], strict=True)
        }  # fmt: skip
        wanted = {
            (r["family"], r["case"], "×".join(map(str, r["shape"])), r["dtype"], rival): value
            for r in held["rows"] for rival, value in r[what].items()
        }  # fmt: skip
        assert told == wanted and wanted
    assert [g["what"]["en"] for g in view["goals"]] == [g["what"] for g in held["goals"]]
    assert [g["met"] for g in view["goals"]] == [g["met"] for g in held["goals"]] and view["machine"][
        "isa"
    ] == "avx512bf16"


def test_goals_in_both_languages(tmp_path):
    """As they are measured today; files of before have English alone."""
    rows = [Row(**{**row, "shape": tuple(row["shape"])}) for row in json.loads(RESULTS.read_text())["rows"]]
    now = [*speed.goals(rows), *steps.goals(rows)]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"rows": [asdict(r) for r in rows], "goals": [asdict(g) for g in now]}))
    shown, before = report.view(path)["goals"], report.view(RESULTS)["goals"]
    assert [g["what"]["en"] for g in shown] == [g["what"]["en"] for g in before][: len(shown)] and len(shown) >= 18
    assert all(re.search("[\u4e00-\u9fff]", g["what"]["zh"]) for g in shown)
    assert [g["what"]["zh"] for g in before] == [g["what"]["en"] for g in before]


def test_the_page_stands_beside_the_file(tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_bytes(RESULTS.read_bytes())
    assert cli.main(["report", str(path)]) == 0 and capsys.readouterr().out.strip() == str(tmp_path / "bench.html")
    page = (tmp_path / "bench.html").read_text()
    assert '"kind":"kernels"' in page and len(page) < 400_000
    assert cli.main(["report", str(path), "--figures", "svg"]) == 1
    assert "no figures" in capsys.readouterr().err


def test_a_file_that_is_anything(tmp_path):
    """Damaged at random: a page or a refusal that names the file, and only finite positive numbers in it."""
    whole, draw = json.loads(RESULTS.read_text()), random.Random(5)
    strange = [
        None,
        True,
        "x",
        -1,
        0,
        1e308,
        [],
        {},
        {"a": "b"},
        {"torch": 0},
        {"torch": -2.0},
        {"torch": True},
        "<script>",
        10**400,
    ]
    refused = 0
    for _ in range(300):
        copy = json.loads(json.dumps(whole))
        for _ in range(draw.choice((1, 3, 30))):
            at = draw.choice(
                (copy, draw.choice(copy["rows"]) if isinstance(copy.get("rows"), list) and copy["rows"] else copy)
            )
            if isinstance(at, dict) and at:
                at[draw.choice(list(at))] = draw.choice(strange)
        path = tmp_path / "a.json"
        path.write_text(json.dumps(copy))
        try:
            view = report.view(path)
        except RunUnreadable as error:
            refused += str(path) in str(error)
            continue
        assert all(0 < v < 1e300 for f in view["figures"] for line in f["lines"] for v in line["values"])
        report.render(view)
    assert 0 < refused < 200
    for text in ("", "[]", "{", '{"rows": 3}', '{"rows": []}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(RunUnreadable, match=r"a\.json"):
            report.view(path)


def test_each_fault_of_a_file_has_its_own_words(tmp_path, monkeypatch):
    path = tmp_path / "bench.json"
    for content, fault in (
        (b"{", "is not valid JSON"),
        (b"\xff", "is not UTF-8 text"),
        (b"[" * 99 + b"]" * 99, "nest"),
    ):
        path.write_bytes(content)
        with pytest.raises(RunUnreadable, match=fault) as refused:
            report.view(path)
        assert ("JSON" in str(refused.value)) == (fault == "is not valid JSON")
    monkeypatch.setattr(kernels, "BYTES", 100)
    path.write_bytes(RESULTS.read_bytes())
    with pytest.raises(RunUnreadable, match=f"bench.json has {len(RESULTS.read_bytes())} bytes, more than the 100"):
        report.view(path)
