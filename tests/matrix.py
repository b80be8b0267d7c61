"""The tests with the oldest torch that pyproject.toml allows, the pinned one and the newest that can be installed.

    make matrix                                         all three; --write puts the table into docs/en and docs/zh
    python tests/matrix.py --torch 2.7.0 -- tests/norms
    python tests/matrix.py --keep FOLDER --processes 1  in the background; called again, it goes on where it was

Each version gets an environment of its own. Without --keep it is removed before the next: an ordinary torch brings several GB.
One wheel serves all, since nothing of torch is built in. The rooms of the tests run one after the other, each in a process of its own;
with --keep what a room gave is kept, too, and taken over as long as neither the package nor that room has changed.
NORMLAB_ISA in the environment holds for the tests, as everywhere. Left out: nightly tests, and pages in a browser, which know no torch.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table: make matrix -->\n", "<!-- end of table -->"
HEADERS = {
    "en": "| torch | Python | instruction set | tests | passed | skipped | failed | left out | date |",
    "zh": "| torch | Python | 指令集 | 测试 | 通过 | 跳过 | 失败 | 未安装 | 日期 |",
}
ENDINGS = ("passed", "skipped", "failed", "error", "errors")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}


def say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def versions() -> list[str]:
    """What pip is asked for."""
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
    return [f"torch=={oldest}.*", f"torch=={pinned}", "torch"]


def rooms(tests: list[str]) -> list[str]:
    """One folder of tests after the other, if all are asked for."""
    if tests != ["tests"]:
        return tests
    return sorted({f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in ROOT.glob("tests/*/**/test_*.py")})


def sources(*parts: str) -> str:
    """A fingerprint of what git tracks there."""
    listed = subprocess.run(["git", "ls-files", "-z", *parts], cwd=ROOT, capture_output=True, check=True).stdout
    files = [ROOT / name for name in sorted(listed.decode().split("\0")) if name]
    return hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files if f.exists())).hexdigest()


@dataclass
class Part:
    """What one room gave."""

    sources: str
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Environment:
    """One torch."""

    folder: Path
    asked: str

    @property
    def python(self) -> str:
        return str(self.folder / "venv" / "bin" / "python")

    def prepare(self, wheel: Path) -> list[str]:
        """Install what is missing; returns what of the development set does not go with this torch."""
        kept = self.folder / "installed.json"
        asked = {"torch": self.asked, "wheel": wheel.parent.name}
        known = json.loads(kept.read_text()) if kept.exists() else {}
        if self.asked == "torch" or {k: known.get(k) for k in asked} != asked:  # the newest may be another by now
            known = {**asked, "left_out": self._install(wheel)}
            kept.write_text(json.dumps(known))
        left_out: list[str] = known["left_out"]
        return left_out

    def _install(self, wheel: Path) -> list[str]:
        if not Path(self.python).exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        # The other pins hold, so that torch alone differs.
        pins = self.folder / "constraints.txt"
        pins.write_text(re.sub(r"^torch==.*\n", "", (ROOT / "constraints.txt").read_text(), flags=re.M))
        say(f"{self.asked}: installing")
        newest = ["--upgrade"] if self.asked == "torch" else []
        if not self._pip("-c", str(pins), *newest, self.asked):
            raise SystemExit(f"{self.asked} cannot be installed")
        version = self.ask("import importlib.metadata as m; print(m.version('torch'))")  # as pip knows it
        had = f"torch=={version}"
        self._pip("--no-deps", "--force-reinstall", str(wheel))
        if self._pip("-c", str(pins), f"{wheel}[dev]", had):
            return []
        say(f"{self.asked}: not all of the development set goes with it; one by one")
        wanted = self.ask(
            "import importlib.metadata as m, re; "
            "print(*[re.match(r'[\\w.-]+', r)[0] for r in m.requires('normlab') if 'extra' in r and not r.startswith('normlab')])"
        ).split()
        left_out = [one for one in dict.fromkeys(wanted) if not self._pip("-c", str(pins), one, had)]
        return [*left_out, *([] if self._pip("-c", str(pins), str(wheel), had) else ["normlab's own requirements"])]

    def _pip(self, *arguments: str) -> bool:
        return not subprocess.run([self.python, "-m", "pip", "install", "-q", *arguments], env=ENVIRONMENT).returncode

    def ask(self, program: str) -> str:
        """What a program prints there. From that folder: nothing of src is on the path."""
        done = subprocess.run([self.python, "-c", program], check=True, capture_output=True, text=True, env=ENVIRONMENT,
                              cwd=self.folder)  # fmt: skip
        return done.stdout.strip()

    def test(self, room: str, processes: int) -> Part:
        """Run one room, or take over what it gave."""
        part = Part(
            sources(
                "src",
                "csrc",
                "CMakeLists.txt",
                "pyproject.toml",
                ":(glob)tests/*.py",
                ":(exclude)tests/matrix.py",
                room,
            )
        )
        kept = self.folder / "parts" / (room.replace("/", "-") + ".json")
        if kept.exists() and json.loads(kept.read_text())["sources"] == part.sources:
            return Part(**json.loads(kept.read_text()))
        side_by_side = ["-p", "no:xdist"] if processes == 1 else ["-n", str(processes)]
        command = [self.python, "-m", "pytest", "-rfE", "--tb=short", "-m", "not nightly and not browser", "-p", "no:cacheprovider",
                   *side_by_side, room]  # fmt: skip
        began, lines = time.monotonic(), []
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                print(line, end="", flush=True)
        found = re.findall(rf"(\d+) ({'|'.join(ENDINGS)})\b", lines[-1] if lines else "")
        part.counts = {word: int(number) for number, word in found}
        part.failures = [line.strip() for line in lines if line.startswith(("FAILED ", "ERROR "))]
        part.seconds = round(time.monotonic() - began, 1)
        if process.returncode not in (0, 1) or not found:  # it died, or said nothing that was understood
            part.counts["error"] = part.counts.get("error", 0) + 1
            part.failures.append(f"{room}: pytest ended with {process.returncode}")
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(asdict(part), indent=1))
        return part


def row(environment: Environment, wheel: Path, tests: list[str], processes: int) -> str:
    """One line of the table."""
    left_out = environment.prepare(wheel)
    torch, isa = environment.ask(
        "import torch; from normlab.kernels import cpu; print(torch.__version__.split('+')[0], cpu.native.isa() if cpu.native else 'none')"
    ).split()
    counts: Counter[str] = Counter()
    for room in rooms(tests):
        part = environment.test(room, processes)
        counts.update(part.counts)
        say(f"torch {torch}, {room}: {part.counts}, {part.seconds:.0f} s")
        for failure in part.failures:
            say(f"  {failure}")
    failed = counts["failed"] + counts["error"] + counts["errors"]
    what = "all" if tests == ["tests"] else " ".join(Path(t).stem.removeprefix("test_") for t in tests)
    return (
        f"| {torch} | {platform.python_version()} | {isa} | {what} | {counts['passed']} | {counts['skipped']} | "
        f"{failed} | {', '.join(left_out) or '-'} | {datetime.date.today()} |"
    )


def write(rows: list[str]) -> None:
    for language, header in HEADERS.items():
        page = ROOT / "docs" / language / "kernels.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        ruler = "|---" * (header.count("|") - 1) + "|"
        table = "\n".join((header, ruler, *rows)) + "\n"
        page.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")


def built(folder: Path) -> Path:
    """The wheel of these sources, built by the Python that runs this."""
    at = folder / "wheel" / sources("src", "csrc", "CMakeLists.txt", "pyproject.toml")[:16]
    if not list(at.glob("*.whl")):
        say("building the wheel")
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", at, ROOT], check=True)
    return next(at.glob("*.whl"))


@contextmanager
def place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--torch", action="append", metavar="VERSION", help="a version instead of the three; may be repeated"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="environments and results stay there, and are used again"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="pytest processes at a time (2)")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    parser.add_argument("tests", nargs="*", default=["tests"])
    args = parser.parse_args()
    asked = [f"torch=={v}" for v in args.torch] if args.torch else versions()
    rows = []
    with place(args.keep) as wheels:
        wheel = built(wheels)
        for one in asked:
            with place(args.keep and args.keep / one.replace("torch==", "").replace("torch", "newest")) as folder:
                rows.append(row(Environment(folder, one), wheel, args.tests, args.processes))
            say(rows[-1])
    print("\n".join((HEADERS["en"], *rows)))
    if args.write:
        write(rows)
    return 0 if all(r.split(" | ")[6] == "0" for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
