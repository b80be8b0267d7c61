"""The explorer and the playground as one page that needs no network, no server and no extra.

What Python computed for the pages lies in ``web/data`` (written by benchmarks/explorer_data.py): the page is written without torch.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from .bundle import LANGUAGES, Texts, bundle, page, save, text_table

__all__ = ["ENTRY", "LANGUAGES", "bundle", "page_data", "render", "text_table", "write"]

ENTRY = "main.js"


def write(out: str | Path) -> Path:
    """The page, as this file. An older one is replaced as a whole."""
    return save(render(), Path(out))


def render(texts: Texts | None = None) -> str:
    """The page as HTML; with other texts only in tests."""
    return page(ENTRY, page_data(), texts)[0]


def page_data() -> dict[str, Any]:
    """What the pages draw, by the name of its file."""
    folder = resources.files(__package__).joinpath("web").joinpath("data")
    files = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    return {
        file.name.removesuffix(".json"): json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(files, key=lambda file: file.name)
    }
