"""``watch(leaks=True)``: does the model that trains here see the future? Asked once, with the first batch."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from ..leaks import leaks
from ..runs import Writer


def _is_sequence(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] < 2 or value.is_nested:
        return False
    return value.dim() == 3 if value.is_floating_point() else value.dim() == 2 and value.unique().numel() > 2


def check(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What :func:`normlab.leaks` finds with these arguments, their first sequence changed after its middle."""
    places: list[int | str] = [i for i, value in enumerate(args) if _is_sequence(value)]
    places += [name for name, value in kwargs.items() if _is_sequence(value)]
    if not places:
        raise ValueError("no argument of the model is a sequence of tokens or vectors: call normlab.leaks yourself")
    place = places[0]

    def call(tokens: Tensor) -> Any:
        if isinstance(place, int):
            return model(*args[:place], tokens, *args[place + 1 :], **kwargs)
        return model(*args, **{**kwargs, place: tokens})

    batch = args[place] if isinstance(place, int) else kwargs[place]
    return leaks(model, batch, call=call, cuts=[(batch.shape[1] - 1) // 2]).to_list()


def answer(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], writer: Writer | None, step: int) -> None:
    """Write what was found into the run; a check that fails stops no training."""
    try:
        found = check(model, *call)
        if writer is not None:
            writer.update(leaks=found)
    except Exception as error:
        warnings.warn(f"normlab.watch: leaks=True could not be answered ({error})", stacklevel=3)
        if writer is not None:
            writer.event(step, "leak check failed", error=str(error))
