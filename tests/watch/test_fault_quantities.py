"""Quantities that give a fault away: each against a direct computation, on the fault and next to it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlab
from normlab.watch.padding import inferred


class Small(nn.Module):
    """Two blocks over tokens, attention causal or not."""

    def __init__(self, causal: bool = True, eps: float = 1e-5, norm: Any = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": norm() if norm else nn.LayerNorm(8, eps), "up": nn.Linear(8, 8)}) for _ in range(2)
        )
        self.head, self.causal = nn.Linear(8, 13), causal

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            y = block["norm"](x)[:, None]
            x = x + block["up"](F.scaled_dot_product_attention(y, y, y, is_causal=self.causal)[:, 0])
        return self.head(x)


def train(
    folder: Path, model: nn.Module, *, steps: int = 4, lr: float = 1e-2, clears: bool = True, parts: int = 1, clip: float | None = None,
    batch: Any = None, **options: Any,
) -> normlab.Run:  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    draw = torch.Generator().manual_seed(0)
    watch = normlab.watch(model, optimizer=optimizer, out=folder, every=1, max_overhead=None, **options)
    for _ in range(steps):
        if clears:
            optimizer.zero_grad()
        for _ in range(parts):
            tokens = torch.randint(1, 13, (5, 7), generator=draw) if batch is None else batch
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        watch.step(loss=loss)
    watch.close()
    return normlab.Run(folder)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("options", [{}, {"parts": 3}, {"clip": 0.1}, {"parts": 2, "clip": 1e-3}])
def test_gradients_that_are_cleared_are_not_stale(tmp_path, options):
    values = train(tmp_path / "a", Small(), **options).series("stale_gradient")["model"].values
    assert len(values) == 4 and max(values) < 1e-5


def test_gradients_that_are_not_cleared_are_stale(tmp_path):
    values = train(tmp_path / "a", Small(), clears=False, steps=6).series("stale_gradient")["model"].values
    assert values[0] < 1e-5 and min(values[2:]) > 0.1


def test_a_watch_that_has_closed_leaves_no_hook_on_a_parameter(tmp_path):
    model = Small()
    train(tmp_path / "a", model)
    assert not any(p._backward_hooks for p in model.parameters())


def test_an_idle_step_has_no_hook_on_a_parameter(tmp_path):
    model, hooked = Small(), []
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(1, 13, (5, 7))
    with normlab.watch(model, optimizer=optimizer, out=tmp_path / "a", every=3, max_overhead=None) as watch:
        for _ in range(7):
            hooked.append(any(p._backward_hooks for p in model.parameters()))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    found = normlab.Run(tmp_path / "a").series("stale_gradient")["model"]
    assert hooked == [step in (1, 3, 6) for step in range(1, 8)]
    assert found.steps == [1, 3, 6] and max(found.values) < 1e-5


@pytest.mark.parametrize("eps", (1e-5, 3.0))
def test_the_share_of_eps(tmp_path, eps):
    model = Small(eps=eps)
    tokens = torch.arange(35).view(5, 7) % 13
    with torch.no_grad():
        x = model.embedding(tokens).double()
        expected = (eps / (x.var(-1, correction=0) + eps)).mean()
    value = train(tmp_path / "a", model, batch=tokens, steps=1).series("eps_share")["blocks.0.norm"].values[0]
    assert value == pytest.approx(float(expected), rel=1e-4)


def test_weights_in_16_bits_that_do_not_move(tmp_path):
    stuck = train(tmp_path / "a", Small().bfloat16(), lr=1e-6).series("unmoved_share")
    assert min(stuck["blocks.0"].values) > 0.95
    moving = train(tmp_path / "b", Small().bfloat16(), lr=3e-2).series("unmoved_share")
    assert max(moving["blocks.1"].values) < 0.7
    assert "unmoved_share" not in train(tmp_path / "c", Small()).table()


def test_the_scale_of_matrices_is_taken_once(tmp_path):
    model = Small()
    with torch.no_grad():
        model.blocks[1]["up"].weight.mul_(9)
    expected = {name: float(w.detach().double().square().mean().sqrt()) * 8**0.5 for name, w in
                (("blocks.0", model.blocks[0]["up"].weight), ("blocks.1", model.blocks[1]["up"].weight), ("head", model.head.weight))}  # fmt: skip
    found = train(tmp_path / "a", model).series("weight_scale")
    assert {n: s.steps for n, s in found.items()} == {name: [1] for name in expected}
    assert {n: s.values[0] for n, s in found.items()} == pytest.approx(expected, rel=1e-5)


def test_the_spread_of_answers(tmp_path):
    model, tokens = Small(), torch.arange(35).view(5, 7) % 13
    with torch.no_grad():
        y = model(tokens).flatten(0, 1).double()
        y = y - y.mean(1, keepdim=True)
        expected = float((y - y.mean(0)).square().mean().sqrt())
    assert train(tmp_path / "a", model, batch=tokens).series("output_spread")["model"].values[0] == pytest.approx(
        expected, rel=1e-5
    )


def test_leaks_are_looked_for_on_request(tmp_path):
    assert train(tmp_path / "a", Small(), leaks=True).info["leaks"] == []
    found = train(tmp_path / "b", Small(causal=False), leaks=True).info["leaks"]
    assert found and found[0]["first_module"].startswith("blocks.0")
    assert "leaks" not in train(tmp_path / "c", Small(causal=False)).info
    assert [f.rule for f in normlab.diagnose(tmp_path / "b").findings] == ["leak"]


def test_looking_for_leaks_changes_nothing(tmp_path):
    plain, asked = Small(norm=None), Small(norm=None)
    asked.load_state_dict(plain.state_dict())
    train(tmp_path / "a", plain)
    train(tmp_path / "b", asked, leaks=True)
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), asked.parameters(), strict=True))


def test_a_model_without_sequences_is_told_so_and_trains(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "a", leaks=True)
    loss = model(torch.randn(5, 3)).square().mean()
    loss.backward()
    optimizer.step()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watch.step(loss=loss)
    watch.close()
    assert any("call normlab.leaks yourself" in str(w.message) for w in told)


def test_padding_is_seen_in_tokens_and_in_vectors():
    tokens = torch.tensor([[5, 3, 7, 9, 4, 6], [5, 3, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0], [8, 1, 2, 0, 0, 0]])
    real = tokens != 0
    assert torch.equal(inferred([tokens]), real)
    assert torch.equal(inferred([None, torch.nn.functional.one_hot(tokens, 10)[..., 1:].float()]), real)
    assert inferred([torch.randint(1, 9, (4, 6))]) is None
    assert inferred([torch.tensor([[1, 2, 3, 9]] * 4)]) is None  # texts that end alike
    assert inferred([torch.zeros(4, 6, dtype=torch.long)]) is None


def test_batch_norm_over_padding_is_seen_without_a_mask(tmp_path):
    class Over(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(x.transpose(1, 2)).transpose(1, 2)

    tokens = torch.randint(1, 13, (5, 7)).masked_fill(torch.arange(7) >= torch.tensor([[2], [3], [4], [5], [7]]), 0)
    run = train(tmp_path / "a", Small(norm=Over), batch=tokens)
    share = run.series("padding_share")["blocks.0.norm.bn"].values
    assert share == pytest.approx([float((tokens == 0).float().mean())] * 4)
    assert "running_distance_padded" in run.table()
    assert "padding_share" not in train(tmp_path / "b", Small(norm=Over)).table()
