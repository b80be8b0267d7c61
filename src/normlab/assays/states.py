"""What goes into and comes out of each norm in one forward, for questions that need whole states and not a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import surgery
from .untouched import Loss, untouched


@dataclass(frozen=True)
class NormStates:
    """One norm in one forward: input and output as they were, features last."""

    site: surgery.NormSite
    x: Tensor  # (..., features)
    y: Tensor


def norm_states(model: nn.Module, run: Loss, *, names: tuple[str, ...] | None = None) -> dict[str, NormStates]:
    """{name: states} of every norm that ``run(model)`` comes to, or of those named: its first call, in evaluation mode.

    The model leaves bit for bit as it came.

    >>> states = norm_states(nn.Sequential(nn.LayerNorm(4)), lambda m: m(torch.ones(2, 4)))
    >>> states["0"].x.shape
    torch.Size([2, 4])
    """
    sites = surgery.find_norms(model)
    if names is not None and (absent := set(names) - {s.name for s in sites}):
        raise ValueError(f"no norm is called {', '.join(sorted(absent))}; known: {', '.join(s.name for s in sites)}")
    found: dict[str, NormStates] = {}

    def keep(site: surgery.NormSite) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            x = args[0] if args else next(iter(kwargs.values()), None)
            if (
                site.name not in found
                and isinstance(x, Tensor)
                and isinstance(output, Tensor)
                and x.shape == output.shape
            ):
                turned = (t.detach().movedim(site.channel_dim, -1).clone() for t in (x, output))
                found[site.name] = NormStates(site, *turned)

        return hook

    wanted = [s for s in sites if names is None or s.name in names]
    handles = [site.module.register_forward_hook(keep(site), with_kwargs=True) for site in wanted]
    try:
        with torch.no_grad(), untouched(model):
            run(model.eval())
    finally:
        for handle in handles:
            handle.remove()
    return {s.name: found[s.name] for s in wanted if s.name in found}
