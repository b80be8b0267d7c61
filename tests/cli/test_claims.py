"""normlab claims on the terminal."""

from __future__ import annotations

import json

import pytest

from normlab import cli
from normlab.claims import shipped
from normlab.runs import ClaimResult, ClaimsRun, read_claims, write_claims


def test_exact_claims_run_and_say_what_decides(tmp_path, capsys):
    assert cli.main(["claims", "--only", "C93,C96,C82", "--lang", "en", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "does not hold" in out and "not testable" in out and "27.71" not in out and "0.1" in out
    assert [r.verdict for r in read_claims(tmp_path).results] == ["fails", "fails", "untestable"]


def test_json_is_the_record(tmp_path, capsys):
    assert cli.main(["claims", "--only", "C93", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "normlab.claims/1" and found["results"][0]["checks"][0]["value"] == pytest.approx(0.1)


def test_chinese(tmp_path, capsys):
    assert cli.main(["claims", "--only", "C93", "--lang", "zh", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "不成立" in out and "does not" not in out


def test_exact_leaves_experiments_out(tmp_path, capsys):
    assert cli.main(["claims", "--exact", "--source", "S1", "--json", "--out", str(tmp_path)]) in (0, 3)
    ids = [r["id"] for r in json.loads(capsys.readouterr().out)["results"]]
    assert "C41" in ids and "C37" not in ids


@pytest.mark.parametrize(("args", "said"), [
    (["show"], "needs the id"), (["show", "C999"], "C99"), (["C93"], "show, list or compare"), (["--only", "C93", "--source", "S0"], "no claim fits"),
    (["--workers", "0"], "at least 1"), (["--first-seed", "-1"], "at least 0"), (["--source", "S7"], "S4"), (["list", "C93"], "no more words"),
])  # fmt: skip
def test_mistakes_are_one_line(args, said, capsys):
    assert cli.main(["claims", *args]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and len(err) < 200


@pytest.mark.parametrize("words", [["--only", "C93", "--expect", "nowhere"], ["--write", "nowhere"]])
def test_a_folder_that_is_not_there_is_told_of_before_anything_is_made(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims", *words]) in (1, 2)
    assert not list(tmp_path.iterdir())
    told = capsys.readouterr()
    assert "nowhere" in told.err and told.err.count("\n") == 1 and not told.out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_show_and_list_run_nothing(lang, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims", "show", "C93", "C82", "--lang", lang]) == 0
    assert cli.main(["claims", "list", "--source", "S4", "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert "C93" in out and "normlab claims --only C93" in out and "C98" in out
    assert not list(tmp_path.iterdir())


def expected(verdict: str) -> ClaimsRun:
    return ClaimsRun(budget="quick", results=(ClaimResult(id="C93", verdict=verdict, budget="quick"),))


def test_another_verdict_than_expected_is_an_exit_code(tmp_path, capsys, monkeypatch):
    write_claims(tmp_path / "expected", expected("holds"))
    run = ["claims", "--quick", "--only", "C93", "--lang", "en", "--out", str(tmp_path / "run")]
    assert cli.main([*run, "--expect", str(tmp_path / "expected")]) == 3
    assert "C93 was holds, now does not hold" in capsys.readouterr().out
    write_claims(tmp_path / "expected", expected("fails"))
    assert cli.main([*run, "--expect", str(tmp_path / "expected")]) == 0
    monkeypatch.setattr(shipped, "HERE", tmp_path)
    write_claims(tmp_path / "quick", expected("holds"))
    assert cli.main(run) == 3, "without --expect the shipped run of this budget"
