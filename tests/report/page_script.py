"""Asking the page's own JavaScript: in node, or in a browser. Both get the script that the page would get."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from normlab.report.explore import bundle

WEB = Path(__file__).parent / "web"
NODE = shutil.which("node")
MISSING = "no node on this machine: the arithmetic of the page was not compared (make browser compares it, too)"


def script() -> str:
    return bundle("harness.js", {"harness.js": (WEB / "harness.js").read_text(encoding="utf-8")})


def numbers(value: Any) -> Any:
    """JSON has no word for what is not finite; node.mjs sends names."""
    if isinstance(value, dict):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def in_node(questions: list[dict[str, Any]]) -> list[Any]:
    asked = json.dumps({"script": script(), "questions": questions})
    done = subprocess.run(
        [str(NODE), str(WEB / "node.mjs")], input=asked, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return numbers(json.loads(done.stdout))
