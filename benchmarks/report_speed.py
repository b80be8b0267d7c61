"""The page of a sweep of 100 runs: time to write it, its size, and the time until it can be used in headless chromium.

    python benchmarks/report_speed.py [--json FILE]

Twenty cells with five seeds each, 500 steps of loss and 60 recorded steps of twelve blocks per run, with a planted answer. Medians of five
rounds. Needs chromium and Playwright's Python package.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from normlab import machine, report, runs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from planted import answer, sweep_of, trials_of

ROUNDS, STEPS, RECORDED = 5, 500, 60
BLOCKS = [f"stack.layers.{i}" for i in range(12)]
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip


def make(folder: Path) -> None:
    sweep = sweep_of([f"n{i}" for i in range(10)], ("pre", "post"), (1e-3,), seeds=5)
    trials = trials_of(sweep, lambda norm, placement, lr: 2.3 + 0.02 * int(norm[1:]), noise=0.02)
    folder.mkdir()
    for trial in trials:
        trial["folder"] = f"trials/{trial['name']}"
        draw = random.Random(trial["name"])
        writer = runs.Writer(
            folder / trial["folder"], {"sites": {"norms": {}, "blocks": BLOCKS}, "seed": trial["seed"]}
        )
        for step in range(1, STEPS + 1):
            writer.write(step, {"loss": {"model": trial["loss"] + 3 * math.exp(-step / 60) + 0.05 * draw.gauss(0, 1)}})
            if step % (STEPS // RECORDED) == 0:
                writer.write(step, {q: {b: (1 + i) * math.exp(0.05 * draw.gauss(0, 1)) for i, b in enumerate(BLOCKS)}
                                    for q in ("stream_rms", "stream_grad", "param_grad", "angle")})  # fmt: skip
        writer.close()
    runs.write_grid(folder, runs.Grid.from_dict(sweep))
    runs.write_summary(folder, answer(sweep, trials))


def usable(browser: Any, address: str) -> float:
    """Milliseconds until the last figure of the first page is drawn."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector(".plot path.line", state="attached")
    ready = page.evaluate("performance.now()")
    page.close()
    return float(ready)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no chromium here")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        sweep = Path(folder) / "grid"
        make(sweep)
        written, ready = [], []
        browser = p.chromium.launch(executable_path=chromium, args=QUIET)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            page = report.write(sweep)
            written.append(time.perf_counter() - began)
            ready.append(usable(browser, page.as_uri()))
        browser.close()
        found = {
            "machine": machine.description()["cpu"], "runs": len(list((sweep / "trials").iterdir())), "megabytes": page.stat().st_size / 1e6,
            "seconds to write": statistics.median(written), "milliseconds until it can be used": statistics.median(ready),
        }  # fmt: skip
    for name, value in found.items():
        print(f"{name}: {value if isinstance(value, str) else f'{value:.3g}'}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
