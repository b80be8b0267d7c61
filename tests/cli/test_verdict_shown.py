"""normlab answer: a sweep's verdict at any moment, in both languages, at any width."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from planted import BY_RATE, sweep_of, trials_of

from normlab import cli, runs
from normlab.cli import show
from normlab.cli.answers import language


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answer") / "sweep"
    grid = sweep_of(("layer", "rms"), ("pre", "deepnorm"))
    runs.write_grid(folder, runs.Grid.from_dict({k: v for k, v in grid.items() if k not in ("unit", "blind")}))
    trials = trials_of(
        grid, lambda n, p, lr: 2.3 + 0.1 * (p == "deepnorm") + BY_RATE[lr], noise=0.01, shared=0.1, seed=3
    )
    for t in trials:
        info = {"experiment": {**t["axes"], "lr": t["lr"], "seed": t["seed"], "model": {}}, "result": None,
                "task": {"name": "text", "unit": "nats per byte", "blind": 3.3}}  # fmt: skip
        result = {k: v for k, v in t.items() if k not in ("name", "cell", "axes", "lr", "seed")}
        runs.Writer(runs.trial_folder(folder, t["name"]), info).close("finished", result=result)
    return folder


def said(capsys, *words) -> tuple[int, str, str]:
    code = cli.main(["answer", *map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_an_answer_is_printed_and_nothing_written(capsys, sweep):
    code, out, _ = said(capsys, sweep)
    assert code == 0 and "- Use " in out and "Decidedly worse than" in out and "held-out loss, nats per byte" in out
    assert sorted(p.name for p in sweep.iterdir()) == ["sweep.json", "trials"]


def test_json_margin_and_baseline(capsys, sweep):
    code, out, _ = said(capsys, sweep, "--json", "--margin", "0.5", "--baseline", "rms/deepnorm")
    found = runs.Summary.from_dict(json.loads(out))
    assert code == 0 and found.margin == 0.5 and found.baseline == "rms/deepnorm"
    assert any(c.difference and c.difference.equal for c in found.cells)
    assert any(s.startswith("Equal to ") for s in found.verdict.en)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [(["--margin", "-1"], 2, "margin must be"), (["--baseline", "layer/pro"], 2, "Did you mean 'layer/pre'")],
)
def test_mistakes_are_one_line(capsys, sweep, words, code, why):
    found, out, err = said(capsys, sweep, *words)
    assert found == code and not out and why in err and err.count("\n") == 1


def test_a_folder_without_a_sweep(capsys, tmp_path):
    code, out, err = said(capsys, tmp_path)
    assert code == 1 and not out and "holds no sweep" in err


@pytest.mark.parametrize(
    ("asked", "locale", "found"),
    [(None, "zh_CN.UTF-8", "zh"), (None, "en_US.UTF-8", "en"), ("en", "zh_CN", "en"), ("zh", "C", "zh")],
)
def test_the_language_is_asked_for_or_the_locales(monkeypatch, asked, locale, found):
    monkeypatch.delenv("LC_MESSAGES", raising=False)
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LANG", locale)
    assert language(asked) == found


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("columns", [80, 100, 160])
def test_no_line_is_too_long_and_no_word_is_broken(capsys, monkeypatch, sweep, lang, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = said(capsys, sweep, "--lang", lang)
    assert max(map(show._cells, out.splitlines())) <= columns
    whole = " ".join(out.split())
    for cell in ("layer/pre", "rms/deepnorm"):
        assert cell in whole
    summary = json.loads(said(capsys, sweep, "--json")[1])
    words = {w for s in summary["verdict"][lang] for w in re.findall(r"[A-Za-z0-9./%+-]+", s)}
    shown = set(re.findall(r"[A-Za-z0-9./%+-]+", out))
    assert words <= shown, words - shown
    assert ("结论" in out or "分不出高下" in out or "用 " in out) == (lang == "zh")


def test_wrapping_counts_chinese_characters_twice():
    text = "- 用 layer/pre（2.3 奈特/字节）或 rms/pre：分不出高下，差距尚无定论。"
    lines = show.wrapped(text, 24, "  ").splitlines()
    assert max(map(show._cells, lines)) <= 24 and len(lines) > 2
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert not any(line.lstrip().startswith(("，", "。", "）")) for line in lines)
    assert any("layer/pre" in line for line in lines) and any("rms/pre" in line for line in lines)
    assert show.wrapped("a bc def", 4) == "a bc\ndef" and show.wrapped("abcdefgh", 4) == "abcdefgh"


@pytest.mark.parametrize(("lang", "head"), [("en", "held-out loss at"), ("zh", "留出损失，各组合")])
def test_a_loss_without_a_unit_has_none(capsys, tmp_path, sweep, lang, head):
    shutil.copytree(sweep, tmp_path / "bare")
    for path in (tmp_path / "bare" / "trials").glob("*/run.json"):
        info = json.loads(path.read_text())
        del info["task"]["unit"]
        path.write_text(json.dumps(info))
    code, out, _ = said(capsys, tmp_path / "bare", "--lang", lang)
    assert code == 0 and head in out.splitlines()[0] and "loss，" not in out.splitlines()[0]
