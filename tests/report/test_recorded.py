"""What a run's pages draw: readings as they were recorded, within bounds, and lines that come while it is written."""

from __future__ import annotations

import json
import math
import os
import re

import pytest
import run_folders
from page_script import NODE, in_node

from normlab import RunUnreadable, diagnosis, report, runs
from normlab.report import explore, recorded


def test_recorded_quantities_repeat_the_run(tmp_path):
    folder = tmp_path / "a"
    run_folders.full_run(folder, steps=60)
    view, table = report.view(folder), runs.Run(folder).table()
    assert (
        {q["quantity"] for q in view["quantities"]}
        == set(table) & set(recorded.SHOWN) - {"loss"}
        > set(recorded.BY_BLOCK)
    )
    for q in view["quantities"]:
        for site, row in zip(q["sites"], q["values"], strict=True):
            series = table[q["quantity"]][site]
            assert q["steps"] == series.steps and row == pytest.approx(series.values, rel=1e-5)
        assert q["recorded"] == len(q["steps"]) and q["broken"] is None and q["left_out"] == 0


def test_values_that_are_not_finite_are_gaps_with_a_word(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    for step, value in ((1, 1.0), (5, math.inf), (9, math.nan)):
        writer.write(step, {"length": {"n": value, "m": 2.0}})
    writer.close()
    (length,) = report.view(tmp_path / "a")["quantities"]
    assert length["values"] == [[1.0, None, None], [2.0, 2.0, 2.0]] and length["broken"] == 5


def test_snapshots_of_tokens_are_kept_within_bounds(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    cloud = {"coordinates": [[1.0, 2.0]] * 70, "neighbours": [[1, 69, 3]] * 70, "explained": None, "mean_cosine": 0.5}
    for step in (1, 2, 3):
        for site in range(9):
            writer.event(step, "token similarity", site=f"n{site}", places=[], tokens=list(range(70)), before=cloud, plain=cloud, after=cloud)  # fmt: skip
    writer.close()
    kept = report.view(tmp_path / "a")["snapshots"]
    assert [(s["site"], s["step"]) for s in kept[:3]] == [("n0", 1), ("n0", 3), ("n1", 1)] and len(
        kept
    ) == recorded.SNAPSHOTS
    assert kept[0]["tokens"] == list(range(64)) and kept[0]["after"]["near"][0] == [1, 3], "69 is no token of it"
    assert kept[0]["after"]["points"][0] == [1.0, 2.0, 0.0]


def test_every_rule_has_evidence_that_a_page_shows():
    assert set(diagnosis.EVIDENCE) == set(diagnosis.RULES)
    named = {q for qs in diagnosis.EVIDENCE.values() for q in qs}
    texts = explore.text_table("en")
    assert all(f"quantity.{q}" in texts for q in named) and named - {"loss"} <= set(recorded.SHOWN)
    assert all(f"quantity.{q}.axis" in texts for q in named - {"loss"})


def embedded(page: str) -> dict:
    (data,) = re.findall(r'id="data">(.*?)</script>', page, flags=re.S)
    return json.loads(data)


def test_a_run_of_a_watch_alone(tmp_path):
    writer = runs.Writer(tmp_path / "a", {"config": "free text", "machine": "Linux, 2 threads"})
    for step in range(1, 8):
        writer.write(step, {"loss": {"model": 1.0 / step}, "held_out_loss": {"model": 2.0 / step}})
    view = report.view(tmp_path / "a")  # still running
    assert view["ran"]["status"] == "running"
    assert view["curves"]["heldout"][0]["mean"] == [2.0 / s for s in range(1, 8)]
    assert embedded(report.render(view))["view"]["last_step"] == 7
    writer.close()
    runs.Writer(tmp_path / "b").close()
    nothing = embedded(report.render(report.view(tmp_path / "b")))["view"]
    assert nothing["quantities"] == nothing["snapshots"] == [] and nothing["last_step"] == 0


def test_a_runs_page_needs_no_extra(tmp_path, monkeypatch):
    run_folders.small_run(tmp_path / "a")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None)
    assert report.write(tmp_path / "a").stat().st_size < 1_000_000


# ---- lines as they come ----------------------------------------------------------------------------------------------


def test_what_was_written_since_a_place(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    assert (
        runs.end_of(tmp_path / "nothing") == runs.Place() and runs.grown(tmp_path / "nothing", runs.Place()).lines == []
    )
    writer.write(1, {"loss": {"model": 1.0}})
    place = runs.end_of(tmp_path / "a")
    assert runs.grown(tmp_path / "a", place).lines == [] and runs.Place.parse(str(place)) == place
    writer.write(2, {"loss": {"model": 2.0}})
    writer.event(3, "resumed", note="x")
    path = tmp_path / "a" / runs.READINGS
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "val')
    found = runs.grown(tmp_path / "a", place)
    assert [line["step"] for line in found.lines] == [2, 3] and found.end == runs.end_of(tmp_path / "a")
    assert runs.grown(tmp_path / "a", found.end).lines == [], "half a line is none"
    assert [line["step"] for line in runs.grown(tmp_path / "a", runs.Place()).lines] == [1, 2, 3]
    with open(path, "ab") as file:
        file.write(b'ues": {}}\nnonsense\n')
    with pytest.raises(RunUnreadable, match=r"readings\.jsonl, the line at byte \d+ is not valid JSON"):
        runs.grown(tmp_path / "a", found.end)


def test_pieces_are_bounded_and_a_long_line_comes_whole(tmp_path):
    writer = runs.Writer(tmp_path / "a")
    for step in range(1, 21):
        writer.write(step, {"loss": {f"site{i}": 1.0 for i in range(30)}})
    place, seen, turns = runs.Place(), [], 0
    while (found := runs.grown(tmp_path / "a", place, most=1500)).lines:
        seen += [line["step"] for line in found.lines]
        place, turns = found.end, turns + 1
    assert seen == list(range(1, 21)) and turns > 5
    assert [line["step"] for line in runs.grown(tmp_path / "a", runs.Place(), most=10).lines][:1] == [1]


def test_a_file_that_was_cut_or_replaced_has_to_be_read_again(tmp_path):
    run_folders.small_run(tmp_path / "a", steps=9)
    place, path = runs.end_of(tmp_path / "a"), tmp_path / "a" / runs.READINGS
    keep = path.read_bytes()
    os.truncate(path, place.byte - 5)
    assert runs.grown(tmp_path / "a", place).anew
    path.rename(tmp_path / "old")
    path.write_bytes(keep * 3)
    assert runs.grown(tmp_path / "a", place).anew, "longer, but another file"
    assert not runs.grown(tmp_path / "a", runs.Place(0, 0)).anew
    for text in ("", "1", "1-", "-1-2", "1-2-3", "a-b", "1-" + "9" * 30, "１-２"):
        assert runs.Place.parse(text) is None


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_lines_put_into_a_view_twice_are_there_once(tmp_path):
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=12)
    view = json.loads(json.dumps(report.view(tmp_path / "a")))
    place = runs.end_of(tmp_path / "a")
    writer.write(13, {"loss": {"model": 1.5}})
    writer.write(13, {"stream_rms": {b: 7.0 for b in run_folders.BLOCKS[:3]}, "not_shown": {"model": 1.0}})
    lines = runs.grown(tmp_path / "a", place).lines
    (once, twice) = in_node([{"ask": "merged", "view": view, "lines": lines * n} for n in (1, 2)])
    assert once == twice and once["last_step"] == 13 and once["fresh"] == [[13, 1.5]]
    stream = next(q for q in once["quantities"] if q["quantity"] == "stream_rms")
    before = next(q for q in view["quantities"] if q["quantity"] == "stream_rms")
    assert stream["steps"] == [*before["steps"], 13] and [row[-1] for row in stream["values"]] == [7.0] * 3 + [None] * 3
    assert [row[:-1] for row in stream["values"]] == before["values"]
