"""The tests with the oldest torch that pyproject.toml allows, the pinned one and the newest that can be installed.

    make matrix                                         all three; --write puts the table into docs/en and docs/zh
    python tests/matrix.py --torch 2.5.1 -- tests/norms/test_norms.py

Each version gets an environment of its own, which is removed before the next: an ordinary torch brings several GB. The wheel
is built anew in each, with the Python that runs this. NORMLAB_ISA in the environment holds for the tests, as everywhere.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table: make matrix -->\n", "<!-- end of table -->"
HEADERS = {
    "en": "| torch | Python | instruction set | tests | passed | skipped | failed | date |",
    "zh": "| torch | Python | 指令集 | 测试 | 通过 | 跳过 | 失败 | 日期 |",
}


def versions() -> dict[str, str]:
    """{which: what pip is asked for}."""
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
    return {"oldest": f"torch=={oldest}.*", "pinned": f"torch=={pinned}", "newest": "torch"}


def row(asked: str, tests: list[str]) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        # The other pins hold, so that torch alone differs; what a pin of ours does not allow with this torch, pip will say.
        pins = folder / "constraints.txt"
        pins.write_text(re.sub(r"^torch==.*\n", "", (ROOT / "constraints.txt").read_text(), flags=re.M))
        environment = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}
        install = [python, "-m", "pip", "install", "-q", "-c", pins]
        subprocess.run([*install, asked], check=True, env=environment)
        subprocess.run([*install, f"{ROOT}[dev]", asked], check=True, env=environment)
        facts = subprocess.run(
            [python, "-c", "import torch; from normlab.kernels import cpu; print(torch.__version__.split('+')[0], cpu.native.isa())"],
            check=True, capture_output=True, text=True, env=environment, cwd=folder,
        )  # fmt: skip
        torch, isa = facts.stdout.split()
        # From the tests' folder, and installed: nothing of src is on the path.
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-n", "2", "-m", "not nightly", "-p", "no:cacheprovider", *tests],
            cwd=ROOT, capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        print(done.stdout[-5000:], flush=True)
        count = {
            w: int(n) for n, w in re.findall(r"(\d+) (passed|skipped|failed|errors?)", done.stdout.splitlines()[-1])
        }
        failed = count.get("failed", 0) + count.get("error", 0) + count.get("errors", 0)
        what = "all" if tests == ["tests"] else " ".join(Path(t).stem.removeprefix("test_") for t in tests)
        return (
            f"| {torch} | {platform.python_version()} | {isa} | {what} | {count.get('passed', 0)} | {count.get('skipped', 0)} | "
            f"{failed} | {datetime.date.today()} |"
        )


def write(rows: list[str]) -> None:
    for language, header in HEADERS.items():
        page = ROOT / "docs" / language / "kernels.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        ruler = "|---" * (header.count("|") - 1) + "|"
        table = "\n".join((header, ruler, *rows)) + "\n"
        page.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="append", help="a version instead of the three")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    parser.add_argument("tests", nargs="*", default=["tests"])
    args = parser.parse_args()
    asked = [f"torch=={v}" for v in args.torch] if args.torch else list(versions().values())
    rows = []
    for one in asked:
        rows.append(row(one, args.tests))
        print(rows[-1], flush=True)
    if args.write:
        write(rows)
    return 0 if all(r.split(" | ")[6] == "0" for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
