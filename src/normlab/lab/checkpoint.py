"""The state of a training run in one safetensors file: weights, buffers, optimizer, random numbers, progress. No pickle.

The file is replaced as a whole. One that cannot be read (cut short by a dying disk, edited, of another experiment) is refused
with the reason, and the run starts again: slower, never wrong.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import need, require
from ..runs import replacing

FORMAT = "normlab.checkpoint/1"
FILE = "checkpoint.safetensors"
WEIGHTS = "model.safetensors"
NEEDS = ("safetensors", "numpy")  # the former asks for the latter only when it saves


class CheckpointUnreadable(ValueError):
    """A checkpoint that cannot be used; the message says why."""


def _library() -> Any:
    require("a checkpoint", "lab", *NEEDS)
    return need("a checkpoint", "lab", "safetensors.torch")


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights once, under their first name: the format refuses shared memory."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    return {
        name: t.detach().clone(memory_format=torch.contiguous_format)  # parts of one tensor share memory as well
        for name, t in tensors.items()
        if t.numel() == 0 or seen.setdefault((t.data_ptr(), tuple(t.shape)), name) == name
    }


def _checksum(tensors: Mapping[str, Tensor], progress: str) -> str:
    """The format itself has none, and a flipped bit in a weight would be a wrong number."""
    value = zlib.crc32(progress.encode())
    for name in sorted(tensors):
        t = tensors[name]
        value = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), value)
        value = zlib.crc32(t.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def _write(path: Path, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
    """``progress`` travels as JSON in the header, under the name facts."""
    text = json.dumps(progress)
    header = {"format": FORMAT, "facts": text, "checksum": _checksum(tensors, text)}
    data = _library().save(dict(tensors), header)
    with replacing(path) as file:
        file.write(data)


def save_weights(folder: Path, model: nn.Module, progress: Mapping[str, Any]) -> Path:
    """The model alone; ``model.load_state_dict(safetensors.torch.load_file(path), strict=False)`` (tied weights once)."""
    path = folder / WEIGHTS
    _write(path, _distinct(model.state_dict()), progress)
    return path


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Mapping[str, Any],
    also: Mapping[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """``also``: further tensors to keep."""
    tensors = {f"model.{name}": t for name, t in _distinct(model.state_dict()).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = torch.as_tensor(value).detach().clone()
    tensors["random"] = torch.get_rng_state()
    tensors.update({f"also.{name}": t.detach().clone() for name, t in (also or {}).items()})
    _write(folder / FILE, tensors, progress)


UNLIKE = "missing, unknown or of another shape or type"


def _unlike(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Names of what is wanted and not found as such."""
    return [n for n, t in wanted.items() if n not in found or (found[n].shape, found[n].dtype) != (t.shape, t.dtype)]


def _state_made_by(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, dict[str, Tensor]]:
    """What it keeps of each parameter after a step, made by a step of a copy: only it knows. Fused ones trust what they are given,
    and read past its end."""
    twin = copy.deepcopy(optimizer)
    twin.state.clear()
    of: dict[Tensor, nn.Parameter] = {}
    for group, its in zip(optimizer.param_groups, twin.param_groups, strict=True):
        of.update(zip(its["params"], group["params"], strict=True))
    for parameter in of:
        parameter.grad = torch.zeros_like(parameter)
    twin.step()
    return {of[p]: {k: torch.as_tensor(v) for k, v in kept.items()} for p, kept in twin.state.items()}


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, refusal: Callable[[dict[str, Any]], str | None]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put the state back and return the progress and further tensors saved with it. Nothing is changed if the file does not fit.

    ``refusal`` looks at the progress and says why it does not fit, if so.
    """
    path = folder / FILE
    _library()
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointUnreadable(f"{path} cannot be read: no regular file")  # opening a pipe would wait for ever
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointUnreadable(f"{path} cannot be read: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointUnreadable(f"{path} has format {header.get('format')!r}, this version reads {FORMAT!r}")
    if header.get("checksum") != _checksum(tensors, header.get("facts", "")):
        raise CheckpointUnreadable(f"{path} was damaged or changed: its checksum is another")
    try:
        progress = json.loads(header.get("facts", ""))
    except (ValueError, RecursionError) as error:
        raise CheckpointUnreadable(f"{path} holds no progress: {error}") from error
    if reason := refusal(progress):
        raise CheckpointUnreadable(f"{path} does not fit: {reason}")
    expected = {f"model.{name}": t for name, t in _distinct(model.state_dict()).items()}
    if wrong := _unlike(tensors, expected):
        raise CheckpointUnreadable(f"{path} does not fit the model: {', '.join(wrong)} {UNLIKE}")
    state: dict[nn.Parameter, dict[str, Tensor]] = {}
    kept = _state_made_by(optimizer)
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        held = {
            n.removeprefix(prefix): t
            for n, t in tensors.items()
            if n.startswith(prefix) and "." not in n[len(prefix) :]
        }
        its = kept.get(parameter, {})
        # None at all is right: a parameter that had no gradient has no state.
        if wrong := [*_unlike(held, its), *(held.keys() - its.keys())] if held else []:
            raise CheckpointUnreadable(f"{path} does not fit the optimizer: {', '.join(wrong)} of {name} {UNLIKE}")
        if held:
            state[parameter] = held
    try:
        torch.Generator().set_state(tensors["random"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointUnreadable(f"{path} does not fit the random numbers: their state is none") from error
    if left := [n for n in tensors if n.startswith("model.") and n not in expected]:
        raise CheckpointUnreadable(f"{path} does not fit the model, which has no {', '.join(left)}")
    model.load_state_dict(
        {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}, strict=False
    )
    optimizer.state.clear()
    for parameter, held in state.items():
        optimizer.state[parameter] = dict(held)
    torch.set_rng_state(tensors["random"])
    return progress, {n.removeprefix("also."): t for n, t in tensors.items() if n.startswith("also.")}
