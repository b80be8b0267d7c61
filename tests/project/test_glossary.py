"""One Chinese word for each English one: docs/zh/glossary.md against the pages, the report's words and the verdict's."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "zh" / "glossary.md"
PAGES = [ROOT / "README.zh.md", *(p for p in sorted((ROOT / "docs" / "zh").glob("*.md")) if p != GLOSSARY)]
HAN = re.compile(r"[\u4e00-\u9fff]")
# Words that a reader of Chinese tutorials searches for; each stands in a page, not in the glossary alone.
SEARCHED = ("残差连接", "归一化位置", "梯度消失", "泛化", "过拟合", "内部协变量偏移", "标准化")


class Entry(NamedTuple):
    english: str
    chinese: list[str]
    meaning: str
    rejected: list[str]


def parts(cell: str) -> list[str]:
    return [word for word in cell.split("、") if word]


def entries(text: str) -> list[Entry]:
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert all(len(row) == 4 for row in rows)
    return [Entry(row[0], parts(row[1]), row[2], parts(row[3])) for row in rows if row[0] not in ("英文", "---")]


def chinese_strings(path: Path) -> str:
    """Of a Python file its strings with Chinese in them, of any other its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        strings = (
            n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        )
        return "\n".join(s for s in strings if HAN.search(s))
    return "\n".join(line for line in text.splitlines() if HAN.search(line))


def sources() -> list[Path]:
    """Files of the package, and of what writes tables into the pages, that speak Chinese."""
    found = [p for p in (ROOT / "src").rglob("*") if p.suffix in (".py", ".jinja", ".html", ".js", ".css", ".json")]
    found += [*(ROOT / "benchmarks").glob("*.py"), ROOT / "tests" / "matrix.py"]
    return [p for p in sorted(found) if chinese_strings(p)]


ENTRIES = entries(GLOSSARY.read_text(encoding="utf-8"))
TEXTS = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in PAGES}
TEXTS |= {p.relative_to(ROOT).as_posix(): chinese_strings(p) for p in sources()}
REJECTED = {wrong: e for e in ENTRIES for wrong in e.rejected}


def rejected_in(text: str) -> list[str]:
    return [f"{wrong} (use {'、'.join(e.chinese)})" for wrong, e in REJECTED.items() if wrong in text]


def test_the_glossary_is_read():
    assert len(ENTRIES) > 60 and len(REJECTED) > 40
    words = {e.english: e.chinese for e in ENTRIES}
    assert len(words) == len(ENTRIES), "an English word twice"
    for word in ("collapse", "stack", "activation checkpointing", "checkpoint", "cell (of a grid), grid combination"):
        assert len(words[word]) == 1
    assert all(e.chinese and e.meaning for e in ENTRIES)


def test_no_two_entries_share_a_word_and_none_is_rejected():
    chosen = [word for e in ENTRIES for word in e.chinese]
    assert len(set(chosen)) == len(chosen)
    assert not [(word, wrong) for word in chosen for wrong in REJECTED if wrong in word]


def test_the_package_speaks_chinese_where_it_is_looked_for():
    assert any(name.startswith("src/") and "report" in name for name in TEXTS)
    assert any("训练失稳" in text for name, text in TEXTS.items() if name.startswith("src/")), "the verdict"


@pytest.mark.parametrize("name", TEXTS)
def test_no_rejected_word(name: str):
    assert not rejected_in(TEXTS[name])


@pytest.mark.parametrize("name", [*TEXTS, "docs/zh/glossary.md"])
def test_the_reader_is_ni(name: str):
    polite = "\u60a8"
    assert polite not in (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", ENTRIES, ids=[e.english for e in ENTRIES])
def test_every_word_of_the_glossary_is_used(entry: Entry):
    missing = [word for word in entry.chinese if not any(word in text for text in TEXTS.values())]
    assert not missing


@pytest.mark.parametrize("word", SEARCHED)
def test_words_of_tutorials_can_be_found(word: str):
    assert any(word in e.chinese for e in ENTRIES)
    pages = [n for n, text in TEXTS.items() if n.startswith("docs/zh/") and word in text]
    assert [n for n in pages if n != "docs/zh/index.md"], "in a page that says something about it"


def comments(tag: str, code: str) -> list[str]:
    if tag == "python":
        tokens = tokenize.generate_tokens(io.StringIO(code).readline)
        return [t.string for t in tokens if t.type == tokenize.COMMENT]
    return re.findall(r"(?:^|\s)(#.*)", code) if tag == "sh" else []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_comments_in_code_are_chinese(page: Path):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not [c for tag, code in blocks for c in comments(tag, code) if not HAN.search(c)]


def prose(text: str) -> str:
    """Without code, formulas, links' targets and HTML comments."""
    text = re.sub(r"^```.*?^```$|^ {4}\S.*$|<!--.*?-->", "", text, flags=re.M | re.S)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "`", text))


def misset(text: str) -> list[str]:
    """Half-width punctuation between Chinese characters, and Latin letters or digits set against them without a space."""
    han = r"[\u4e00-\u9fff]"
    return re.findall(rf"{han}[,;:?!]|[,;:?!]{han}|{han}[A-Za-z0-9`]|[A-Za-z0-9`%]{han}", text)


@pytest.mark.parametrize("page", [*PAGES, GLOSSARY], ids=lambda p: p.name)
def test_punctuation_and_spaces(page: Path):
    assert not misset(prose(page.read_text(encoding="utf-8")))


def test_faults_are_found():
    """What the tests above look for, planted."""
    assert rejected_in("模型" + "崩" + "塌了") and not rejected_in("模型坍缩了")
    assert misset("残差流,归一化") and misset("宽256") and not misset("残差流，宽 256")
    table = "| 英文 | 中文 | 含义 | 不用的译法 |\n|---|---|---|---|\n| a | 甲、乙 | 丙 | |\n"
    assert entries(table) == [Entry("a", ["甲", "乙"], "丙", [])]
    assert comments("sh", "normlab compare   # the plan") == ["# the plan"]
