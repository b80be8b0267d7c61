"""How fast `normlab serve` is: first paint with many runs, the delay of a new line, and many clients at once.

    python benchmarks/serve_speed.py                     500 runs, 1e6 readings, five rounds, 50 clients for a minute
    python benchmarks/serve_speed.py --runs 50 --readings 1e5 --rounds 1 --clients 10 --seconds 5
    python benchmarks/serve_speed.py --json results.json

First paint is what chromium says (first-contentful-paint) of the list and of the run with all the readings; it needs Playwright and
chromium, and is left out without them. A delay is the time from the writing of a line to its arrival at a client, by one clock.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from normlab import runs

NORMS = [f"stack.layers.{i}.norm{j}" for i in range(12) for j in (1, 2)]
QUANTITIES = ("length", "anisotropy", "batch_mean_distance", "inference_gap", "gain_rms")


def make(folder: Path, count: int, readings: int) -> None:
    """Small runs, and one that holds nearly all of the readings."""
    for i in range(count - 1):
        writer = runs.Writer(folder / f"run-{i:04}", {"task": {"name": "text", "unit": "nats per byte"}})
        for step in range(1, 6):
            writer.write(step, {"loss": {"model": 3.0 / step}})
        writer.close(result={"outcome": "trained", "loss": 2.0})
    writer = runs.Writer(folder / "large", {"sites": {"norms": dict.fromkeys(NORMS, "batch"), "blocks": []}})
    per_step = len(NORMS) * len(QUANTITIES)
    for step in range(1, max(1, readings // per_step) + 1):
        values = {q: {n: 1.0 + 0.1 * math.sin(step + i) for i, n in enumerate(NORMS)} for q in QUANTITIES}
        writer.write(step, {"loss": {"model": 2.0 + 3.0 / step}, **values})
    writer.close()


def serve(folder: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-m", "normlab", "serve", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline().strip().rsplit(":", 1)[1].rstrip("/"))


def painted(browser: Any, address: str, ready: str) -> tuple[float, float]:
    """(first contentful paint, until what was asked for stands in the page), seconds."""
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(ready)
    there = time.perf_counter() - began
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
    page.close()
    return first, there


class Client(threading.Thread):
    """Follows a run and notes when each line came."""

    def __init__(self, port: int, place: str) -> None:
        super().__init__(daemon=True)
        self.came: dict[int, float] = {}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.connection.request("GET", f"/events/run?at=live&from={place}")
        self.socket: socket.socket = self.connection.sock
        self.response = self.connection.getresponse()

    def run(self) -> None:
        try:
            while line := self.response.readline():
                if line.startswith(b"data: ["):
                    now = time.perf_counter()
                    for told in json.loads(line[6:]):
                        self.came.setdefault(told["step"], now)
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return  # closed at the end


def delays(folder: Path, port: int, clients: int, seconds: float, rate: float = 10.0) -> dict[str, float]:
    writer = runs.Writer(folder / "live")
    writer.write(1, {"loss": {"model": 1.0}})
    place = str(runs.end_of(folder / "live"))
    following = [Client(port, place) for _ in range(clients)]
    for client in following:
        client.start()
    time.sleep(1.0)
    written: dict[int, float] = {}
    until, step = time.perf_counter() + seconds, 1
    while time.perf_counter() < until:
        step += 1
        written[step] = time.perf_counter()
        writer.write(step, {"loss": {"model": 1.0}, "length": {n: 1.0 for n in NORMS}})
        time.sleep(1 / rate)
    time.sleep(3.0)
    writer.close()
    found = sorted(c.came[s] - written[s] for c in following for s in written if s in c.came)
    for client in following:
        client.socket.shutdown(socket.SHUT_RDWR)  # closing would wait for whoever is reading
        client.join()
        client.connection.close()
    shutil.rmtree(folder / "live")
    every = clients * len(written)
    return {"lines": len(written), "missing": every - len(found), "median": statistics.median(found),
            "p99": found[min(len(found) - 1, math.ceil(0.99 * len(found)) - 1)], "largest": found[-1]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--readings", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="normlab-serve-"))
    found: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
                             "runs": args.runs, "readings": int(args.readings), "rounds": []}  # fmt: skip
    try:
        make(folder, args.runs, int(args.readings))
        for number in range(args.rounds):
            process, port = serve(folder)  # a fresh one: nothing is known yet
            one: dict[str, Any] = {}
            try:
                chromium = shutil.which("chromium") or shutil.which("google-chrome")
                if chromium:
                    from playwright.sync_api import sync_playwright

                    with sync_playwright() as p:
                        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                        one["list"] = painted(browser, f"http://127.0.0.1:{port}/", "tbody tr")
                        one["large run"] = painted(browser, f"http://127.0.0.1:{port}/#run=large&page=run-geometry", ".plot svg")  # fmt: skip
                        browser.close()
                one["one client"] = delays(folder, port, 1, min(5.0, args.seconds))
                one["all clients"] = delays(folder, port, args.clients, args.seconds)
            finally:
                process.send_signal(signal.SIGINT)
                began = time.perf_counter()
                process.wait(20)
                one["seconds to end"] = time.perf_counter() - began
            found["rounds"].append(one)
            print(f"round {number + 1}:", json.dumps(one), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
