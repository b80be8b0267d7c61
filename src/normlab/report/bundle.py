"""The front end in ``web/`` as one page: plain ES modules put into one script, texts and data beside it.

A page opened from disk may not import files, so the modules are put into one script here, each as a function that returns what it
exports; its hash stands in the content security policy, which lets nothing else run. Texts are data, one table per language.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path

from ..runs import replace_file

LANGUAGES = ("en", "zh")
IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', flags=re.M)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) (\w+))", flags=re.M)
LEFT = re.compile(r"^(?:import|export)\b.*$", flags=re.M)

Texts = Mapping[str, Mapping[str, str]]


def page(
    entry: str, data: Mapping[str, object], texts: Texts | None = None, *, connect: bool = False
) -> tuple[str, str]:
    """(the page that this module begins, its policy). ``connect``: it may ask the server it came from; else nobody."""
    texts = texts or {language: text_table(language) for language in LANGUAGES}
    script, style = bundle(entry), _read("style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        + ("connect-src 'self'; " if connect else "")
        + "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "style": style,
        "noscript": "".join(f'<p lang="{language}">{escape(texts[language]["no_script"])}</p>' for language in texts),
        "data": _as_script({"texts": texts, **data}),
        "script": script,
    }
    return re.sub(r"%(\w+)%", lambda found: parts[found[1]], _read("page.html")), policy


def save(html: str, path: Path) -> Path:
    """The page as this file. An older one is replaced as a whole."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, html)
    return path


def text_table(language: str) -> dict[str, str]:
    """{meaning: text}."""
    return json.loads(_read("texts", f"{language}.json"))


def bundle(entry: str, extra: Mapping[str, str] | None = None) -> str:
    """The module and all it imports as one script. ``extra``: modules beside those of web/, as {name: source}.

    Understood is what the modules use: ``import {a, b as c} from "./x.js";`` and ``export`` in front of a declaration.
    """
    extra, order, open_ = extra or {}, list[str](), list[str]()
    sources: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in sources:
            return
        if name in open_:
            raise ValueError(f"modules import each other in a circle: {' -> '.join([*open_, name])}")
        open_.append(name)
        source = extra[name] if name in extra else _read(*name.split("/"))
        for _, target in IMPORT.findall(source):
            visit(_resolved(target, name))
        open_.pop()
        sources[name] = source
        order.append(name)

    visit(entry)
    number = {name: i for i, name in enumerate(order)}
    parts = [_wrapped(name, sources, number) for name in order]
    return '"use strict";\n' + "".join(parts) + f"const exported = module{number[entry]};\n"


def _wrapped(name: str, sources: Mapping[str, str], number: Mapping[str, int]) -> str:
    def imported(found: re.Match[str]) -> str:
        target, names = _resolved(found[2], name), [part.split() for part in found[1].split(",") if part.strip()]
        absent = {first for first, *_ in names} - set(EXPORT.findall(sources[target]))
        if absent:
            raise ValueError(f"web/{name} imports {', '.join(sorted(absent))}, which web/{target} does not export")
        return f"const {{ {', '.join(': '.join((part[0], part[-1])) for part in names)} }} = module{number[target]};\n"

    exported = EXPORT.findall(sources[name])
    code = EXPORT.sub("", IMPORT.sub(imported, sources[name]))
    left = LEFT.search(code)
    if left:
        raise ValueError(
            f"web/{name}: the page cannot take in {left[0]!r}; write named imports, and export at the declaration"
        )
    return f"const module{number[name]} = (() => {{\n{code}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _resolved(target: str, importer: str) -> str:
    parts = importer.split("/")[:-1]
    for step in target.split("/"):
        if step == "..":
            parts.pop()
        elif step != ".":
            parts.append(step)
    return "/".join(parts)


def _as_script(data: object) -> str:
    """JSON that may stand inside of a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath("web", *path).read_text(encoding="utf-8")
