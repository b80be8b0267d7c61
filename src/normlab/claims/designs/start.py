"""Before any training: gradients at the start over depth, and the change that one tiny step makes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...lab.tasks import find_task
from ...models import TransformerConfig, build
from ...runs import Evidence
from .base import Measured, Size

PLACEMENTS = ("pre", "post", "deepnorm")


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least squares, of logarithms."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True)) / sum((p - mean_a) ** 2 for p in a)


def _model(placement: str, layers: int, dim: int, seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    config = TransformerConfig(architecture="decoder", placement=placement, num_layers=layers, dim=dim, num_heads=4,
                               activation="relu", vocab_size=256, max_length=64)  # fmt: skip
    return build(config).to(dtype)


def _last_matrices(model: nn.Module) -> list[Tensor]:
    """Of each feed-forward layer, the matrix back to the stream."""
    parts = [layer.feedforward.parts()["feedforward"] for layer in model.stack.layers]  # type: ignore[union-attr]
    return [p[-1] if isinstance(p[-1], Tensor) else p[-1].weight for p in parts]


def gradients(placement: str, layers: int, seed: int) -> list[float]:
    """Lengths of the gradients of these matrices, from the first layer to the last, on one batch of prose."""
    task = find_task("text", options={"length": 64})
    model = _model(placement, layers, 64, seed, torch.float32)
    task.loss(model, task.batch(seed, 1, 16)).backward()
    return [float(torch.linalg.vector_norm(m.grad)) for m in _last_matrices(model) if m.grad is not None]


def _measure_gradients(size: Size, seeds: Sequence[int]) -> Evidence:
    found: dict[str, dict[int, float]] = {}
    deepest = size.depths[-1]
    for seed in seeds:
        for placement in PLACEMENTS:
            by_depth = {depth: gradients(placement, depth, seed) for depth in size.depths}
            found.setdefault(f"slope, {placement}", {})[seed] = slope(
                size.depths, [by_depth[d][-1] for d in size.depths]
            )
            first_and_last = by_depth[min(24, deepest)]
            ratio = math.log10(first_and_last[-1] / first_and_last[0])
            found.setdefault(f"last over first, {placement}", {})[seed] = ratio
    return Evidence(by_seed=found)


GRADIENTS = Measured(
    name="gradients",
    about=("Decoders of width 64 at the start, one batch of prose: length of the gradient of the last feed-forward matrix of each layer, for several depths", "宽 64 的解码器，尚未训练，一批文本：各层最后一个前馈矩阵的梯度长度，多种深度"),
    sizes={"quick": Size(seeds=3, depths=(6, 12, 24)), "default": Size(seeds=5, depths=(6, 12, 24, 48))},
    measure=_measure_gradients,
)  # fmt: skip

STEP = 1e-6  # small: the change is then proportional to it


def update(placement: str, layers: int, seed: int) -> float:
    """Root mean square of the change of the last hidden state by one SGD step of the stack, over the size of the step."""
    task = find_task("text", options={"length": 16})
    model = _model(placement, layers, 32, seed, torch.float64)
    batch = task.batch(seed, 1, 8)
    stack: nn.Module = model.stack  # type: ignore[assignment]
    hidden: list[Tensor] = []
    hook = stack.register_forward_hook(lambda _module, _inputs, y: hidden.append(y.detach()))  # type: ignore[func-returns-value]
    task.loss(model, batch).backward()
    moved = copy.deepcopy({n: p.grad for n, p in stack.named_parameters() if p.grad is not None})
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if name in moved:
                parameter.sub_(STEP * moved[name])
        task.loss(model, batch)
    hook.remove()
    return float((hidden[1] - hidden[0]).square().mean().sqrt()) / STEP


def _measure_updates(size: Size, seeds: Sequence[int]) -> Evidence:
    found: dict[str, dict[int, float]] = {}
    for seed in seeds:
        sizes = {p: [update(p, depth, seed) for depth in size.depths] for p in ("post", "deepnorm")}
        for placement, values in sizes.items():
            found.setdefault(f"slope of updates, {placement}", {})[seed] = slope(size.depths, values)
        found.setdefault("post over deepnorm", {})[seed] = math.log10(sizes["post"][-1] / sizes["deepnorm"][-1])
    return Evidence(by_seed=found)


UPDATES = Measured(
    name="updates",
    about=(f"Decoders of width 32 in float64: change of the last hidden state by one SGD step of size {STEP:g} on the stack's weights, over that size, for several depths", f"宽 32 的解码器，float64：堆叠的权重走一步大小 {STEP:g} 的 SGD，末层状态的变化除以步长，多种深度"),
    sizes={"quick": Size(seeds=3, depths=(4, 8, 16, 32)), "default": Size(seeds=5, depths=(4, 8, 16, 32, 64))},
    measure=_measure_updates,
)  # fmt: skip

DESIGNS = (GRADIENTS, UPDATES)
