"""How fast the explorer is in headless chromium: size of the page, time until it can be used, training steps a second.

    python benchmarks/explore_speed.py [--json FILE]

Medians of five rounds, at 16 blocks, width 16 and batches of 64: one network alone in a loop, and both networks as the page
trains them, with its drawings. Needs chromium and Playwright's Python package.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from normlab import machine
from normlab.report import explore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "report"))
from page_script import script

ROUNDS, SECONDS = 5, 2.0
SIDE = {"norm": "layer", "placement": "pre", "depth": 16, "width": 16, "rate": 0.003, "batch": 64, "optimizer": "adam", "warmup": 0, "eps": 1e-5}  # fmt: skip
COMMON = {"data": "spiral", "noise": 0.02, "seed": 1}
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def measured(browser: Any, address: str) -> dict[str, float]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto("about:blank")
    pace = page.evaluate(f"(questions) => {{ {script()}; return exported.answers(questions)[0]; }}",
                         [{"ask": "pace", "side": SIDE, "common": COMMON, "seconds": SECONDS}])  # fmt: skip
    side = ",".join(f"{k}:{v}" for k, v in SIDE.items())
    page.goto(f"{address}#a={side}&b={side}")
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_timeout(1500)
    first, start = steps(page), time.monotonic()
    page.wait_for_timeout(1000 * SECONDS)
    last, end = steps(page), time.monotonic()
    page.close()
    return {"steps a second, one network alone": pace, "steps a second, both in the page": (last - first) / (end - start), "milliseconds until it can be used": ready}  # fmt: skip


def steps(page: Any) -> int:
    return int(re.findall(r"step (\d+)", page.locator(".side.a .status").inner_text())[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    path = explore.write(Path(tempfile.mkdtemp()) / "page.html")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=QUIET)
        rounds = [measured(browser, path.as_uri()) for _ in range(ROUNDS)]
        version = browser.version
        browser.close()
    found = {name: round(statistics.median(r[name] for r in rounds), 1) for name in rounds[0]}
    result = {
        "cpu": machine.description()["cpu"],
        "chromium": version,
        "bytes": path.stat().st_size,
        **found,
        "rounds": rounds,
    }
    for name, value in result.items():
        if name != "rounds":
            print(f"{name}: {value}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
