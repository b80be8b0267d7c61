"""Which parameters are below which: by the order in which a forward first comes to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def first_use(model: nn.Module, run: Callable[[], Any]) -> dict[nn.Parameter, int]:
    """{parameter: when ``run`` first called the module it belongs to}; of a module that is never called itself (a norm fused
    with its sum, the output matrix of nn.MultiheadAttention) when the nearest module around it was called."""
    called: dict[nn.Module, int] = {}

    def note(module: nn.Module, args: Any) -> None:
        called.setdefault(module, len(called))

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    names = dict(model.named_modules())
    found: dict[nn.Parameter, int] = {}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        while names[owner] not in called and owner:
            owner = owner.rpartition(".")[0]
        found[parameter] = called.get(names[owner], 0)
    return found
