"""With --lang zh everything said on the way is Chinese too: the plan, progress, rounds, rules; names and numbers stay."""

from __future__ import annotations

import re
import string

import pytest
from test_growing import TINY, Planted

from normlab import cli
from normlab.cli import compare as command
from normlab.cli.progress import Lines, ending
from normlab.cli.words import LANGUAGES, TEXTS, words_in
from normlab.diagnosis import RULES
from normlab.diagnosis.words import rule_in
from normlab.lab import Message, Sweep, told
from normlab.lab.sweep import Plan
from normlab.report.words import WORDS
from normlab.runs import RULE_NAMES, Refused, Result

CHINESE = re.compile("[一-鿿]")


def fields(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("table", [TEXTS, told.WORDS])
def test_both_languages_hold_the_same_facts(table):
    for key, (en, zh) in table.items():
        assert fields(en) == fields(zh), key
        assert not CHINESE.search(en) and (CHINESE.search(zh) or not re.search("[a-z]", re.sub(r"{[^}]*}", "", en))), (
            key
        )


def test_outcomes_have_the_reports_words():
    for outcome in ("diverged", "collapsed", "untrained"):
        assert {lang: words_in(lang)(outcome) for lang in LANGUAGES} == dict(
            zip(LANGUAGES, WORDS[outcome], strict=True)
        )


def test_every_rule_has_a_name_in_words():
    assert set(RULE_NAMES) == set(RULES)
    for rule, (_, zh) in RULE_NAMES.items():
        assert CHINESE.search(zh) and rule_in("zh", rule) == f"{zh}（{rule}）" and rule_in("en", rule) == rule
    assert rule_in("zh", "of-a-later-version") == "of-a-later-version"


def compared(monkeypatch, capsys, folder, lang, *more, behind=0.05):
    monkeypatch.setattr(command, "_engine", lambda *_: Planted(behind))
    code = cli.main(["compare", "--norm", "layer,rms,instance", "--placement", "pre", "--lr", "1e-3", "--seeds", "3", *TINY, "--out", str(folder),
                     "--lang", lang, *more])  # fmt: skip
    return code, capsys.readouterr()


def test_no_line_of_a_comparison_is_english(tmp_path, monkeypatch, capsys):
    code, said = compared(monkeypatch, capsys, tmp_path / "s", "zh", "--until", "decided", "--time-limit", "10m")
    assert code == 0
    lines = [line for line in (said.out + said.err).splitlines() if re.search("[A-Za-z]{3}", line)]
    # The end of a wrapped line may be a name alone, with Chinese punctuation behind it.
    chinese = [line for line in lines if CHINESE.search(line) or re.search("[，。：；（）、]", line)]
    plain = [line for line in lines if line not in chinese and not re.match(r"^ +\d*=? *(layer|rms)/pre\*? ", line)]
    assert not [line for line in plain if not re.search("[━─│]", line)], plain
    for words in ("2 个组合 x 1 个学习率 x 3 个种子 = 6 次试验，每次 3 步，任务 text", "拒绝运行：instance/pre：", "预计时间：", "目录：",
                  "6/6 rms-pre-lr0.001-seed2：损失 2.3", "；还剩 0 秒", "已有定论：每个组合都与最佳者分得出高下"):  # fmt: skip
        assert words in said.out, words
    _, english = compared(monkeypatch, capsys, tmp_path / "e", "en", "--until", "decided", "--time-limit", "10m")
    assert not CHINESE.search(english.out + english.err) and "6/6 rms-pre-lr0.001-seed2: loss 2.3" in english.out


def test_a_dry_run_in_chinese(tmp_path, monkeypatch, capsys):
    code, said = compared(monkeypatch, capsys, tmp_path / "s", "zh", "--dry-run")
    assert code == 0 and "学习率：0.001" in said.out and "layer/pre  至多 3 次试验，已完成 0 次" in said.out


def test_what_happens_to_a_trial_is_told_in_the_language():
    heard = {}
    for lang in LANGUAGES:
        lines: list[str] = []
        sweep = Sweep(axes={"norm": ["layer"], "lr": [1e-3], "seed": [0, 1]})
        trials = sweep.trials()
        progress = Lines(Plan(sweep, None, {}, trials, 1), lines.append, lang)
        progress("lost", trials[0], Message(reason="it is gone", reason_zh="它没了"))
        progress("lost", trials[0], Message(reason="only English"))
        diverged = Result(outcome="diverged", cause="too high", cause_zh="太高", seconds=1.0)
        progress("ended", trials[0], Message(result=diverged))
        progress("ended", trials[1], Message(result=Result(outcome="failed", error="x is no y")))
        heard[lang] = lines
    name = trials[0].name
    assert heard["zh"][:2] == [f"{name}：它没了", f"{name}：only English"] and heard["en"][0] == f"{name}: it is gone"
    assert (
        heard["zh"][2] == f"1/2 {name}：发散：太高；还剩 1 秒"
        and heard["en"][2] == f"1/2 {name}: diverged: too high; 1 s left"
    )
    assert heard["zh"][3] == f"2/2 {trials[1].name}：出错：x is no y"
    assert ending(diverged) == "diverged: too high"


def test_a_plan_in_chinese():
    refused = Refused(axes={"norm": "instance"}, reason="no", reason_zh="不行")
    sweep = Sweep(
        axes={"norm": ["layer", "rms"], "lr": [1e-3, 1e-2], "seed": [0, 1, 2]}, first_seeds=2, refused=(refused,)
    )
    plan = Plan(sweep, None, {"a": Result()}, sweep.trials()[:4], 2, seconds=75.0, later=3)
    text = told.told(plan, "zh")
    for words in (
        "2+1 个种子 = 至多 8 次试验",
        "同时跑 2 次",
        "其余各跑 2 个种子；每个组合的最佳学习率跑 3 个",
        "其中 1 次已完成",
        "预计时间：1 分 15 秒",
        "：不行",
    ):
        assert words in text, words
    assert str(plan) == told.told(plan, "en") and not CHINESE.search(str(plan))
