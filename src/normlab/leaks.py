"""Does a model see the future? Checked by changing later tokens and looking at earlier outputs.

A norm whose statistics span tokens (Batch, Instance, Group, Power) lets a causal model read ahead: the statistic of a
sequence knows its end. The loss then looks better than it is, and generation, where there is no future to read, is worse than the loss says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Leak:
    """One cut: tokens after position ``cut`` were changed, outputs up to it compared."""

    mode: str  # "train" or "eval"
    cut: int
    moved: tuple[int, ...]  # positions up to the cut whose output changed
    change: float  # the largest change there, relative to the largest output
    first_module: str | None  # the first module (in order of execution) that let it through


@dataclass(frozen=True)
class Leaks:
    """What :func:`leaks` found; true if anything moved."""

    found: tuple[Leak, ...]
    cuts: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.found)

    def to_list(self) -> list[dict[str, Any]]:
        """For run.json: ``normlab.watch(..., leaks=report.to_list())``, where the diagnosis finds it."""
        return [asdict(leak) for leak in self.found]

    def in_mode(self, mode: str) -> tuple[Leak, ...]:
        return tuple(leak for leak in self.found if leak.mode == mode)

    def __str__(self) -> str:
        lines = []
        for mode in ("train", "eval"):
            leaks = self.in_mode(mode)
            if not leaks:
                lines.append(f"{mode}: no leak (cuts after positions {', '.join(map(str, self.cuts))})")
            for leak in leaks:
                where = f", first in {leak.first_module}" if leak.first_module else ""
                lines.append(
                    f"{mode}: changing tokens after position {leak.cut} moves {len(leak.moved)} of {leak.cut + 1} earlier "
                    f"outputs, by up to {leak.change:.1e} of the largest output{where}"
                )
        return "\n".join(lines)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards modes, buffers and the random state are as they were before."""
    modes = {m: m.training for m in model.modules()}
    buffers = {b: b.detach().clone() for b in model.buffers()}
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        for module, training in modes.items():
            module.training = training


def _sequences(output: Any, length: int) -> Tensor | None:
    """The tensor of a module's output that has one vector per token, if there is one."""
    if isinstance(output, Tensor):
        return output if output.dim() >= 2 and output.shape[1] == length and output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Sequence) and not isinstance(output, str):
        return next((found for part in output if (found := _sequences(part, length)) is not None), None)
    return None


def _run(model: nn.Module, call: Callable[[Tensor], Any], tokens: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """The model's output, and each module's, in order of execution."""
    seen: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            found = _sequences(output, tokens.shape[1])
            if found is not None:
                seen.append((name, found.detach().clone()))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            output = _sequences(call(tokens), tokens.shape[1])
    finally:
        for handle in handles:
            handle.remove()
    if output is not None and not output.isfinite().all():
        raise ValueError(
            "the model's output is not finite, so nothing can be compared; check the weights and the batch"
        )
    if output is None:
        raise ValueError(
            f"leaks needs an output with one vector per token, (B, {tokens.shape[1]}, ...); the model gave none"
        )
    return output, seen


def _moved(before: Tensor, after: Tensor, cut: int, tolerance: float) -> tuple[tuple[int, ...], float]:
    scale = before.abs().max().clamp(min=torch.finfo(before.dtype).tiny)
    change = (before[:, : cut + 1] - after[:, : cut + 1]).abs() / scale
    change = change.movedim(1, 0).flatten(1).amax(1)
    return tuple((change > tolerance).nonzero().flatten().tolist()), float(change.max())


def leaks(
    model: nn.Module,
    batch: Tensor,
    *,
    call: Callable[[Tensor], Any] | None = None,
    cuts: Sequence[int] | None = None,
    tolerance: float = 1e-6,
) -> Leaks:
    """Change the tokens after each cut and report which earlier outputs moved, in training and in evaluation mode.

    ``batch`` is (B, L) token ids or (B, L, d) vectors; ``call(batch)`` runs the model when ``model(batch)`` is not enough.
    Tokens are replaced by tokens of the same batch, so no vocabulary need be known. Dropout draws the same pattern in
    both runs; buffers, modes and the random state are as before afterwards.

    >>> print(leaks(nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4)), torch.arange(6).view(1, 6), cuts=[2]))
    train: no leak (cuts after positions 2)
    eval: no leak (cuts after positions 2)
    """
    if not isinstance(batch, Tensor) or batch.dim() < 2:
        raise ValueError(
            f"leaks takes a batch of shape (B, L) or (B, L, d), got {getattr(batch, 'shape', type(batch))}"
        )
    length = batch.shape[1]
    if length < 2:
        raise ValueError("leaks needs sequences of at least two tokens")
    cuts = sorted({0, (length - 1) // 2, length - 2} if cuts is None else set(cuts))
    if not all(0 <= cut < length - 1 for cut in cuts):
        raise ValueError(f"cuts must lie in 0..{length - 2} for sequences of {length} tokens, got {list(cuts)}")
    call = model if call is None else call
    found = []
    with _undisturbed(model):
        state = torch.get_rng_state()
        buffers = {b: b.detach().clone() for b in model.buffers()}

        def run(tokens: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
            torch.set_rng_state(state)
            with torch.no_grad():
                for buffer, value in buffers.items():
                    buffer.copy_(value)
            return _run(model, call, tokens)

        for mode in ("train", "eval"):
            model.train(mode == "train")
            before, steps = run(batch)
            for cut in cuts:
                for tail in _others(batch, cut):
                    after, again = run(torch.cat((batch[:, : cut + 1], tail), 1))
                    moved, change = _moved(before, after, cut, tolerance)
                    if not moved:
                        continue
                    first = next(
                        (a for (a, x), (b, y) in zip(steps, again, strict=False) if _moved(x, y, cut, tolerance)[0]),
                        None,
                    )
                    found.append(Leak(mode, cut, moved, change, first))
                    break
    return Leaks(tuple(found), tuple(cuts))


def _others(batch: Tensor, cut: int) -> Iterator[Tensor]:
    """Other values for the tokens after the cut: for vectors a mirror image that no vector is likely to equal; for ids
    the batch's own, shifted by one (every token another), then all alike (a shift may leave the tail's statistics as
    they were)."""
    tail = batch[:, cut + 1 :].contiguous()
    if batch.is_floating_point():
        yield torch.linspace(1, 2, tail.shape[-1], dtype=tail.dtype, device=tail.device) - tail
        return
    values = batch.unique()
    if len(values) < 2:
        raise ValueError("leaks needs a batch with at least two different tokens, to swap them")
    yield values[(torch.searchsorted(values, tail) + 1) % len(values)]
    yield torch.full_like(tail, int(values[1 if (tail == values[0]).all() else 0]))
