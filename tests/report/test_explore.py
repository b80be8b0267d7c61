"""The explorer's page: texts in both languages, one script out of the modules, nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from normlab import cli
from normlab.report import explore

WEB = Path(explore.__file__).parent / "web"
MODULES = sorted(WEB.rglob("*.js"))
HAN = re.compile(r"[\u4e00-\u9fff]")
SOURCE = "".join(p.read_text(encoding="utf-8") for p in MODULES)
TEXTS = {language: explore.text_table(language) for language in explore.LANGUAGES}


@pytest.fixture(scope="module")
def page() -> str:
    return explore.render()


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_no_text_is_missing_in_a_language():
    assert list(TEXTS["en"]) == list(TEXTS["zh"]), "the same meanings in the same order"
    for key, text in TEXTS["en"].items():
        assert text.strip() and TEXTS["zh"][key].strip(), key
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", TEXTS["zh"][key])), key


def test_a_meaning_stands_once_in_a_table():
    for language in explore.LANGUAGES:
        lines = (WEB / "texts" / f"{language}.json").read_text(encoding="utf-8")
        assert len(re.findall(r'^  "[^"]+":', lines, flags=re.M)) == len(TEXTS[language])


def test_english_is_english_and_chinese_is_chinese():
    assert not [key for key, text in TEXTS["en"].items() if HAN.search(text)]
    latin = {key for key, text in TEXTS["zh"].items() if not HAN.search(text)}
    assert all(len(TEXTS["zh"][key].split()) <= 2 for key in latin), "names such as LayerNorm, nothing longer"


def asked() -> tuple[set[str], list[str]]:
    """Keys that stand in the code as they are, and patterns of those that are put together."""
    literal = set(re.findall(r'\bt\("([^"]+)"', SOURCE))
    made = [re.sub(r"\\\$\\\{[^}]*\\\}", r"[\\w-]+", re.escape(key)) for key in re.findall(r"\bt\(`([^`]+)`", SOURCE)]
    return literal, made


def test_every_text_asked_for_exists_and_none_is_idle():
    literal, made = asked()
    assert len(literal) > 20 and made
    assert not literal - set(TEXTS["en"])
    named = set(re.findall(r'"([\w.-]+)"', SOURCE)) | set(re.findall(r"^  (\w+): \[", SOURCE, flags=re.M))
    idle = [
        key
        for key in TEXTS["en"]
        if key not in literal | named | {"language", "no_script"} and not any(re.fullmatch(m, key) for m in made)
    ]
    assert not idle


@pytest.mark.parametrize("path", [*MODULES, WEB / "page.html", WEB / "style.css"], ids=lambda p: p.name)
def test_no_text_stands_in_the_code(path):
    """Comments aside, no sentence. What is put together at run time is found by the browser's test with marked texts."""
    code = re.sub(
        r"/\*.*?\*/|(?<!:)//.*", "", path.read_text(encoding="utf-8"), flags=re.S if path.suffix == ".css" else 0
    )
    code = re.sub(r"/\*\*.*?\*/", "", code, flags=re.S)
    assert not HAN.search(code)
    if path.suffix == ".js":
        strings = re.findall(r'"([^"\n]*)"', code)
        assert not [s for s in strings if re.search(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}", s)]


# ---- one script ------------------------------------------------------------------------------------------------------


def test_modules_become_one_script_in_the_order_they_need():
    script = explore.bundle("a.js", {
        "a.js": 'import { two, one as uno } from "./sub/b.js";\nexport const three = two + uno;\n',
        "sub/b.js": 'import {\n  zero,\n} from "../c.js";\nexport function f() { return zero; }\nexport const one = zero + 1;\nexport class two {}\n',
        "c.js": "export const zero = 0;\n",
    })  # fmt: skip
    assert script.index("const zero = 0") < script.index("const one") < script.index("const three")
    assert "one: uno" in script and "import" not in script and "export " not in script
    assert "return { f, one, two };" in script
    with pytest.raises(ValueError, match=r"web/a\.js imports b, which web/c\.js does not export"):
        explore.bundle("a.js", {"a.js": 'import { a, b } from "./c.js";\n', "c.js": "export const a = 1, b = 2;\n"})


@pytest.mark.parametrize("source", [
    'import all from "./b.js";\n', 'import * as all from "./b.js";\n', 'export default 3;\n', 'export { x };\n', 'import { x } from "./b.js"\n',
])  # fmt: skip
def test_what_the_bundle_does_not_understand_is_refused(source):
    with pytest.raises(ValueError, match="cannot take in"):
        explore.bundle("a.js", {"a.js": source, "b.js": "export const x = 1;\n"})


def test_modules_in_a_circle_are_refused():
    with pytest.raises(ValueError, match=r"a\.js -> b\.js -> a\.js"):
        explore.bundle("a.js", {"a.js": 'import { y } from "./b.js";\n', "b.js": 'import { x } from "./a.js";\n'})


def test_every_module_is_used_and_none_is_long():
    script = "".join(explore.bundle(entry) for entry in ("main.js", "runs.js"))
    for path in MODULES:
        first = path.read_text(encoding="utf-8")
        assert first.startswith("/**"), f"{path.name} says what it is"
        assert first.splitlines()[1 if first.startswith("/**\n") else 0] in script, f"{path.name} is in no page"
        assert len(first.splitlines()) <= 450


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_policy_lets_the_pages_script_run_and_nothing_else(page):
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "*" not in policy and "http" not in policy
    script, style = (
        re.findall(r"<script>(.*)</script>", page, flags=re.S)[0],
        re.findall(r"<style>(.*)</style>", page, flags=re.S)[0],
    )
    for rule, text in (("script-src", script), ("style-src", style)):
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_nothing_in_the_page_points_outside(page):
    addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", page)) - {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    assert not addresses
    assert page.count("</script>") == 2 and len(page.encode()) < 7_000_000


def test_data_cannot_end_its_element():
    marked = {
        language: {**table, "footer": "</script><script>alert(1)</script>\u2028"} for language, table in TEXTS.items()
    }
    page = explore.render(marked)
    assert page.count("</script>") == 2
    (data,) = re.findall(r'id="data">(.*?)</script>', page, flags=re.S)
    assert json.loads(data)["texts"]["en"]["footer"] == marked["en"]["footer"]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_explore_writes_the_page_without_torch(tmp_path, page):
    out = tmp_path / "new" / "page.html"
    code = f"import sys; from normlab.cli import main; assert main(['explore', '-o', {str(out)!r}]) == 0; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [str(out), "False"], done.stderr
    assert out.read_text(encoding="utf-8") == page


@pytest.mark.parametrize("found", [True, False])
def test_explore_opens_a_browser_or_says_that_there_is_none(monkeypatch, capsys, found):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: (opened.append(address), found)[1])
    assert cli.main(["explore"]) == 0
    said = capsys.readouterr()
    assert opened == [Path(said.out.strip()).as_uri()] and Path(said.out.strip()).exists()
    assert ("no browser was found" in said.err) is not found


def test_explore_says_what_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["explore", "-o", str(tmp_path / "file" / "page.html")]) == 1
    assert capsys.readouterr().err.startswith("normlab explore: ")
