"""Finding norms and blocks in any model, by what they do rather than by what they are called.

A norm of ours or of torch's is known by its class. Any other small module is asked: seeded vectors go through a copy of
it and the answer is compared with the reference under each hypothesis. The result is exact or "unknown", never a guess.
Blocks are the elements of a model's outermost lists of alike modules.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import norms
from ..kernels import reference
from ..placements import Pending, Residual

GAINS = ("direct", "offset")
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)


@dataclass(frozen=True)
class NormSite:
    """A norm in a model: where, what kind, and the facts a formula needs."""

    name: str
    module: nn.Module
    kind: str  # a name from NORMS
    gain: str = "direct"
    eps: float = 1e-5
    channel_dim: int = -1  # where the features are

    @property
    def weight(self) -> Tensor | None:
        return getattr(self.module, "weight", None)


@dataclass(frozen=True)
class BlockSite:
    """One element of a stack of alike modules."""

    name: str
    module: nn.Module
    depth: int  # from 0
    stack: str  # the list it belongs to


TORCH_KINDS: tuple[tuple[Any, str, int], ...] = (
    (nn.LayerNorm, "layer", -1),
    (getattr(nn, "RMSNorm", nn.LayerNorm), "rms", -1),
    (nn.modules.batchnorm._BatchNorm, "batch", 1),
    (nn.modules.instancenorm._InstanceNorm, "instance", 1),
    (nn.GroupNorm, "group", 1),
)


def _known(name: str, module: nn.Module) -> NormSite | None:
    if isinstance(module, norms.ResidualNorm):
        return None  # takes two inputs: a residual sum with a norm behind it, not a norm
    for kind, facts in norms.NORMS.items():
        if isinstance(module, facts.layer):
            return NormSite(name, module, kind, getattr(module, "gain", "direct"), _eps(module),
                            getattr(module, "channel_dim", -1))  # fmt: skip
    for layer, kind, channel_dim in TORCH_KINDS:
        if isinstance(module, layer):
            return NormSite(name, module, kind, eps=_eps(module), channel_dim=channel_dim)
    return None


def _eps(module: nn.Module) -> float:
    eps = getattr(module, "eps", None)
    return float(eps) if isinstance(eps, (int, float)) else torch.finfo(torch.float32).eps


def _may_be_a_norm(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return (
        not list(module.children())
        and 1 <= len(own) <= 2
        and all(p.dim() == 1 and p.is_floating_point() for p in own)
        and len({p.numel() for p in own}) == 1
    )


def identify(name: str, module: nn.Module) -> NormSite | None:
    """The norm this module is, or None.

    >>> class Foreign(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = nn.Parameter(torch.rand(6))
    ...     def forward(self, x):
    ...         return self.scale * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    >>> identify("n", Foreign()).kind
    'rms'
    """
    known = _known(name, module)
    if known is not None or not _may_be_a_norm(module):
        return known
    parameters = [p.detach().double() for p in module.parameters(recurse=False)]
    width = parameters[0].numel()
    draw = torch.Generator().manual_seed(20261115)
    x = 3 * torch.randn(5, width, generator=draw, dtype=torch.float64) + 1
    small = 1e-3 * x  # tells one eps from another
    try:
        probe = copy.deepcopy(module).double().eval()
        with torch.no_grad():
            answers = [probe(x), probe(small)]
    except Exception:
        return None  # whatever it is, it does not map vectors to vectors
    if any(not isinstance(a, Tensor) or a.shape != x.shape for a in answers):
        return None
    weight, bias = parameters[0], parameters[1] if len(parameters) > 1 else None
    for kind in ("layer", "rms"):
        for gain in GAINS:
            for eps in EPSILONS:
                expected = [
                    reference.row_norm(v, weight, bias, None, mode=kind, eps=eps, partial=width, gain=gain,
                                       round_before_gain=False)
                    for v in (x, small)
                ]  # fmt: skip
                if all(
                    torch.allclose(a.double(), e, rtol=1e-5, atol=1e-6) for a, e in zip(answers, expected, strict=True)
                ):
                    return NormSite(name, module, kind, gain, eps)
    return None


def find_norms(model: nn.Module) -> list[NormSite]:
    """Every norm of the model, in order of definition; a shared one once.

    >>> [s.kind for s in find_norms(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), norms.RMSNorm(4)))]
    ['layer', 'rms']
    """
    found = []
    for name, module in model.named_modules():
        site = identify(name, module)
        if site is not None:
            found.append(site)
    return found


def find_blocks(model: nn.Module) -> list[BlockSite]:
    """The elements of every outermost list of at least two alike modules that hold parameters.

    >>> [b.name for b in find_blocks(nn.Sequential(nn.Linear(4, 4), nn.ModuleList(nn.LayerNorm(4) for _ in range(2))))]
    ['1.0', '1.1']
    """
    found: list[BlockSite] = []
    inside: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(name.startswith(p + ".") for p in inside):
            continue
        children = list(module.named_children())
        alike = len({type(child) for _, child in children}) == 1 and len(children) >= 2
        if alike and all(any(True for _ in child.parameters()) for _, child in children):
            inside.append(name)
            prefix = f"{name}." if name else ""
            found += [BlockSite(prefix + key, child, depth, name) for depth, (key, child) in enumerate(children)]
    return found


def find_residuals(model: nn.Module) -> list[tuple[str, Residual]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Residual)]


def stream_of(value: Any) -> Tensor | None:
    """The stream in what a block takes or returns: a tensor, the first of a tuple, or a sum not yet carried out."""
    if isinstance(value, Pending):
        return value.x if value.branch is None else value.residual.alpha * value.x.detach() + value.branch.detach()
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.dim() >= 2 else None
    if isinstance(value, (tuple, list)) and value:
        return stream_of(value[0])
    return None
