"""A real browser, driven by Playwright's Python package: Debian's chromium, or one that is found.

Without one these tests are skipped and say so; with NORMLAB_BROWSER=required, which .ci/run sets, they fail instead.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # page_script, network_cases

from normlab.report import explore

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


def absent(what: str) -> None:
    if os.environ.get("NORMLAB_BROWSER") == "required":
        pytest.fail(f"{what}, and NORMLAB_BROWSER=required asks for it")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        absent("no chromium on this machine (Debian: apt-get install chromium fonts-noto-cjk)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("Playwright's Python package is not installed (pip install playwright)")
    with sync_playwright() as p:
        started = p.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield started
        started.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return explore.write(tmp_path_factory.mktemp("explore") / "page.html").as_uri()


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.exists():
        absent("axe-core is not installed (npm ci)")
    return AXE.read_text(encoding="utf-8")


class Visit:
    """A page, with everything it said and asked for."""

    def __init__(
        self,
        browser: Any,
        *,
        width: int = 1440,
        theme: str = "light",
        locale: str = "en-US",
        origin: str = "file:",
    ) -> None:
        self.allowed = (origin, "file:", "data:", "blob:", "about:")  # nothing else may be asked for
        self.context = browser.new_context(viewport={"width": width, "height": 900}, locale=locale, color_scheme=theme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: object) -> None:
        self.context.close()
        if raised[0] is None:
            assert not self.said, self.said
            assert not [a for a in self.asked if not a.startswith(self.allowed)]


@pytest.fixture
def visit(browser: Any) -> Any:
    return lambda **how: Visit(browser, **how)
