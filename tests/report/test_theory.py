"""Bands of theory: against streams whose blocks are built to add in a known direction, and gradients in which only the identity path is open."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normlab
from normlab import placements, report, runs
from normlab.report.theory import bands

WIDTH, BLOCKS = 97, 7
SITES = [f"stack.layers.{i}" for i in range(BLOCKS)]


def quantity(name: str, values: list[float], step: int = 3) -> dict:
    return {
        "quantity": name,
        "sites": SITES,
        "steps": [step],
        "values": [[v] for v in values],
        "recorded": 1,
        "left_out": 0,
        "broken": None,
    }


def structure(placement: str | None, kind: str = "layer", sums: int = 2, factor: float | None = None) -> dict:
    """As a watch writes it: of every block, a norm of this kind after each of its sums."""
    of = {} if factor is None else {"stream_factor": factor}
    norms = [f"{site}.{i}" for site in SITES for i in range(sums)]
    blocks = [{"name": s, "branches": [{"stream": [f"{s}.{i}"], **of} for i in range(sums)]} for s in SITES]
    stacks = [{"placement": placement, "blocks": blocks, "final_norms": []}]
    return {"placement": placement, "norms": [{"name": n, "kind": kind} for n in norms], "stacks": stacks}


def rms(x: torch.Tensor) -> float:
    return float(x.pow(2).mean().sqrt())


def stream(along: float) -> tuple[list[float], list[float]]:
    """(sizes, shares) of a stream to which each block adds: ``along`` of it in the stream's direction, the rest at right angles."""
    torch.manual_seed(7)
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64))[0]
    x, sizes, shares = 2.0 * basis[0], [], []
    for block in range(BLOCKS):
        size = 0.3 + 0.2 * block
        added = size * (along * x / x.norm() + math.sqrt(1 - along**2) * basis[block + 1])
        x = x + added
        sizes.append(rms(x))
        shares.append(rms(added) / rms(x))
    return sizes, shares


@pytest.mark.parametrize(("along", "border"), [(0.0, "low"), (1.0, "high"), (0.6, None), (-0.5, "below")])
def test_a_stream_lies_where_its_blocks_point(along, border):
    sizes, shares = stream(along)
    (band,) = bands(structure("pre"), [quantity("stream_rms", sizes), quantity("branch_share", shares)])
    low, high = ([row[0] for row in band[side]] for side in ("low", "high"))
    assert low[0] == high[0] == pytest.approx(sizes[0], rel=1e-5) and band["of"] == "open"
    if border in ("low", "high"):
        assert band[border] == [[pytest.approx(s, rel=1e-5)] for s in sizes]
    elif border is None:
        assert all(a < s < b for a, s, b in zip(low[1:], sizes[1:], high[1:], strict=True))
    else:
        assert all(s < a for a, s in zip(low[1:], sizes[1:], strict=True)), "blocks that take back lie below"


@pytest.mark.parametrize("sums", [1, 2, 3])
@pytest.mark.parametrize("name", ["pre", "post", "deepnorm"])
def test_the_identity_path_of_a_real_stack(name, sums):
    """Branches whose output is random, as large as the stream and independent of it: only the identity path carries a gradient."""
    torch.manual_seed(3)
    width, tokens = 512, 64
    alpha = (2 * BLOCKS) ** 0.25 if name == "deepnorm" else 1.0
    states = [torch.randn(tokens, width, dtype=torch.float64).requires_grad_()]
    for _ in range(BLOCKS):
        x = states[-1]
        for _ in range(sums):
            x = alpha * x + torch.randn(tokens, width, dtype=torch.float64)
            if name != "pre":
                x = torch.nn.functional.layer_norm(x, (width,))
        x.retain_grad()
        states.append(x)
    (states[-1] * torch.randn_like(states[-1])).sum().backward()
    grads = [float(s.grad.norm()) for s in states[1:]]
    assert name in placements.PLACEMENTS
    about = structure(name, sums=sums, factor=alpha if name == "deepnorm" else None)
    (band,) = bands(about, [quantity("stream_grad", grads)])
    expected = [row[0] for row in band["low"]]
    assert band["of"] == "path" and expected == pytest.approx(grads, rel=0.05)


def test_what_no_theory_here_knows_has_no_band():
    sizes, shares = stream(0.0)
    both = [quantity("stream_rms", sizes), quantity("branch_share", shares), quantity("stream_grad", sizes)]
    for unknown in ({}, structure(None), structure("unknown"), structure("mixed")):
        assert bands(unknown, both) == []
    assert [b["of"] for b in bands(structure("post"), both)] == ["closed", "path"]
    assert bands(structure("post"), []) == []
    for kind in ("dyt", "derf", "unknown"):  # nothing that divides by a size
        assert bands(structure("post", kind), both) == bands(structure("deepnorm", kind), both) == []
    two = [{**q, "sites": [*SITES[:4], *(f"decoder.{i}" for i in range(3))]} for q in both]
    assert bands(structure("pre"), two) == [], "two stacks"
    holes = [{**q, "values": [[None], *q["values"][1:]]} for q in both]
    (size, path) = bands(structure("pre"), holes)
    assert all(v is None for row in size["low"] for v in row) and path["low"][0][0] is not None


def test_a_factor_that_is_a_parameter_has_no_band():
    learned = structure("post")
    for block in learned["stacks"][0]["blocks"]:
        block["branches"][0]["stream_factor"] = "scale"
    assert bands(learned, [quantity("stream_grad", [1.0] * BLOCKS)]) == []


def test_a_run_knows_its_placement(tmp_path):
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": {}, "blocks": SITES}, "structure": structure("post")})
    writer.write(
        1, {"stream_rms": dict.fromkeys(SITES, 1.2), "stream_grad": dict(zip(SITES, range(1, 8), strict=True))}
    )
    writer.close()
    found = {b["quantity"]: b for b in report.view(tmp_path / "a")["theory"]}
    assert found["stream_rms"]["low"][2] == [1.0] and found["stream_grad"]["low"][0] == [7 / 2**6]


class OneSum(nn.Module):
    """A block of somebody's own: one sum, and a norm on the stream."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        return self.norm(x + self.branch(x))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = (
            nn.Linear(8, 32),
            nn.ModuleList(OneSum(32) for _ in range(6)),
            nn.Linear(32, 5),
        )

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def watched(folder, model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with normlab.watch(model, optimizer=optimizer, out=folder, every=1, max_overhead=None) as watch:
        for _ in range(2):
            loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    return {b["quantity"]: [row[0] for row in b["low"]] for b in report.view(folder)["theory"]}


def test_bands_of_watched_models(tmp_path):
    """One sum per block takes half as many roots of two; what keeps no size has no band."""
    torch.manual_seed(0)
    path = watched(tmp_path / "own", Own(), torch.randn(16, 8))["stream_grad"]
    assert [path[-1] / p for p in path] == pytest.approx([2 ** (i / 2) for i in range(5, -1, -1)], rel=1e-4)
    sizes = {"architecture": "encoder", "dim": 32, "num_layers": 4, "num_heads": 2, "vocab_size": 50}
    tokens = torch.randint(0, 50, (4, 9))
    deep = watched(tmp_path / "deep", normlab.build(**sizes, norm="layer", placement="deepnorm"), tokens)["stream_grad"]
    square = math.sqrt(8)  # alpha^2 with four blocks
    assert deep[-1] / deep[0] == pytest.approx(((square + 1) / square) ** 3, rel=1e-3)
    assert watched(tmp_path / "dyt", normlab.build(**sizes, norm="dyt", placement="post"), tokens) == {}
