"""The journeys that docs/en/design.md draws are the ones that calls take: the modules named there are entered in that order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import normlab
from normlab import cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(normlab.__file__).parent
ELSEWHERE = {"csrc", "lab/train"}  # below Python; in the workers' processes


def drawn(language: str) -> dict[str, list[str]]:
    """{journey: the modules or rooms on it}."""
    page = (ROOT / "docs" / language / "design.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```text\n(.*?)```", page, re.S) if "a watched step" in b)
    found = {}
    for line in block.strip().splitlines():
        name, steps = (
            line[:16].strip(),
            re.sub(r"\(.*?\)", "", line[16:]).replace("; back:", " ->").replace("<->", "->"),
        )
        found[name] = [step.strip() for step in steps.split("->")]
    return found


def entered(run: Callable[[], object]) -> list[str]:
    """The modules of normlab whose functions are called, one after the other, as the page writes them: kernels/eager."""
    calls: list[str] = []
    here = str(PACKAGE)

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(here):
            name = file[len(here) + 1 :].removesuffix(".py").removesuffix("/__init__")
            if not calls or calls[-1] != name:
                calls.append(name)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def missed(steps: list[str], calls: list[str]) -> str | None:
    """The first step that was not entered after those before it. A room stands for any of its modules; "a or b" for either."""
    rest = iter(calls)
    for step in steps:
        if step in ELSEWHERE:
            continue
        wanted = step.split(" or ")
        if not any(call == w or call.startswith(w + "/") for call in rest for w in wanted):
            return step
    return None


def layer_norm(tmp_path):
    layer, x = normlab.LayerNorm(8), torch.randn(3, 8, requires_grad=True)
    layer(x).backward(torch.randn(3, 8))


def watched_step(tmp_path):
    model = normlab.build(dim=16, num_layers=1, num_heads=2, vocab_size=11)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        for _ in range(3):
            loss = model(torch.randint(11, (2, 5))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    normlab.diagnose(tmp_path / "run")


def comparison(tmp_path):
    command = (
        "compare --steps 2 --norm rms --placement pre --lr 1e-3 --seeds 1 --workers 1 --set num_layers=1 --set dim=16"
    )
    assert cli.main([*command.split(), "--out", str(tmp_path / "sweep")]) == 0


def pre_norm_block(tmp_path):
    normlab.build(dim=16, num_layers=1, num_heads=2, vocab_size=11, placement="pre")(torch.randint(11, (2, 5)))


TAKEN = {
    "a LayerNorm": layer_norm,
    "a watched step": watched_step,
    "a comparison": comparison,
    "a pre-norm block": pre_norm_block,
}


@pytest.mark.parametrize("name", TAKEN)
def test_calls_take_the_way_that_is_drawn(name, tmp_path, capfd):
    assert drawn("en").keys() == TAKEN.keys() and drawn("zh") == drawn("en")
    steps = drawn("en")[name]
    assert all(
        (PACKAGE / s).is_dir() or (PACKAGE / f"{s}.py").is_file()
        for step in steps
        for s in step.split(" or ")
        if s != "csrc"
    )
    calls = entered(lambda: TAKEN[name](tmp_path))
    assert missed(steps, calls) is None, calls


def test_another_way_is_noticed():
    calls = ["norms/rows", "functional/rows", "kernels/cpu", "kernels/eager"]
    assert missed(["norms/rows", "functional/rows", "kernels/eager"], calls) is None
    assert missed(["norms/rows", "kernels/eager", "kernels/cpu"], calls) == "kernels/cpu"
    assert missed(["norms", "lab or kernels", "csrc"], calls) is None
    assert missed(["functional", "norms"], calls) == "norms"
