"""Finding norms and blocks in any model, by what they do rather than by what they are called.

A norm is known by its class only where the class's own forward runs: ours, or torch's. Any other small module is asked, see
:mod:`.behaviour`; what is called a norm and answers as none is returned with the reason. Nothing here runs a hook of the
user's, draws from a random state that is not its own, or changes the model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import norms
from .._torch import own_buffers, own_parameters
from ..functional.rows import eps_of
from ..placements import Pending, Residual
from .behaviour import FRESH, PLAIN, facts_of
from .fitting import Facts, Unknown
from .sites import BlockSite, NormSite, UnknownSite

TORCH_KINDS: tuple[tuple[Any, str, int], ...] = (
    (nn.LayerNorm, "layer", -1),
    (getattr(nn, "RMSNorm", nn.LayerNorm), "rms", -1),
    (nn.SyncBatchNorm, "batch", 1),  # has a forward of its own
    (nn.modules.batchnorm._BatchNorm, "batch", 1),
    (nn.modules.instancenorm._InstanceNorm, "instance", 1),
    (nn.GroupNorm, "group", 1),
)


GIVEN_MORE = "it was called with more than its input: its output is not a norm of that alone"


@dataclass(frozen=True)
class Survey:
    """The norms of a model in order of definition, and what may be one but is unknown."""

    norms: list[NormSite]
    unknown: list[UnknownSite]


def _known(name: str, module: nn.Module) -> NormSite | None:
    """By class, if it is that class's forward that runs, on parameters that are its own."""
    for kind, facts in norms.NORMS.items():
        if _runs(module, facts.layer):
            return _site(name, module, kind, getattr(module, "gain", "direct"), getattr(module, "channel_dim", -1))
    for layer, kind, channel_dim in TORCH_KINDS:
        if isinstance(module, layer) and _runs(module, layer):
            return _site(name, module, kind, "direct", channel_dim)
    return None


def _runs(module: nn.Module, layer: type[nn.Module]) -> bool:
    """Does ``layer``'s forward run when this module is called?"""
    return (
        isinstance(module, layer)
        and type(module).forward is layer.forward
        and "forward" not in vars(module)
        and "parametrizations" not in dict(module.named_children())
    )


def _site(name: str, module: Any, kind: str, gain: str, channel_dim: int) -> NormSite:
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    eps = getattr(module, "eps", None)
    return NormSite(
        name, module, kind, "none" if weight is None else gain,
        float(eps) if isinstance(eps, (int, float)) else eps_of(None if weight is None else weight.dtype, None), channel_dim,
        gain_name=None if weight is None else "weight", bias_name=None if bias is None else "bias",
        gain_scale=module.dim**-0.5 if kind == "scale" else 1.0, eps_form="clamp" if kind == "scale" else "root",
        groups=getattr(module, "num_groups", None), axes=len(getattr(module, "normalized_shape", (1,))),
    )  # fmt: skip


def _says_norm(module: nn.Module) -> bool:
    """Is it called a norm, or derived from one? Then a reason is due where it is unknown."""
    return "norm" in type(module).__name__.lower() or isinstance(module, tuple(layer for layer, _, _ in TORCH_KINDS))


def _may_be_a_norm(module: nn.Module) -> bool:
    """Worth asking: at most a gain and a bias, all its own, not one of torch's other layers. With modules inside it must have one of
    these: a module without a gain around a norm adds nothing to it."""
    own = [p for p in own_parameters(module).values() if p is not None]
    return (
        (next(module.children(), None) is None or (len(own) > 0 and len(own) == len(list(module.parameters()))))
        and len(own) <= 2
        and all(sum(n > 1 for n in p.shape) <= 2 for p in own)
        and not type(module).__module__.startswith("torch.nn.modules.")
    )


def _key(module: nn.Module) -> Any:
    """What decides a module's facts, if that can be told; modules with equal keys are asked once."""
    plain = {k: v for k, v in vars(module).items() if k not in FRESH}
    flat = tuple((k, v) for k, v in plain.items() if isinstance(v, (*PLAIN, tuple)))
    buffers = any(b is not None for b in own_buffers(module).values())
    if len(flat) != len(plain) or buffers or next(module.children(), None) is not None:
        return None
    shapes = tuple((n, None if p is None else (p.shape, p.dtype, p.device)) for n, p in own_parameters(module).items())
    try:
        key = (type(module), flat, shapes)
        hash(key)
    except TypeError:
        return None
    return key


def identify(name: str, module: nn.Module) -> NormSite | None:
    """The norm this module is, or None.

    >>> import torch
    >>> class Foreign(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = nn.Parameter(torch.rand(6))
    ...     def forward(self, x):
    ...         return self.scale * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    >>> identify("n", Foreign()).kind
    'rms'
    """
    found = _ask(name, module, {})
    return found if isinstance(found, NormSite) else None


def _ask(name: str, module: nn.Module, asked: dict[Any, Facts | Unknown]) -> NormSite | UnknownSite | None:
    if "parametrizations." in name:
        return None  # makes a parameter (weight norm, spectral norm), normalizes nothing that flows
    if isinstance(module, norms.ResidualNorm):
        return None  # takes two inputs: a residual sum with a norm after it, not a norm
    known = _known(name, module)
    if known is not None:
        return known
    if not _may_be_a_norm(module):
        # containers are judged by what they contain; of the rest only what says that it is a norm gets a reason
        alone = next(module.children(), None) is None or "parametrizations" in dict(module.named_children())
        return UnknownSite(name, module, *_why_not(module)) if alone and _says_norm(module) else None
    key = _key(module)
    facts = asked.get(key) if key is not None else None
    if facts is None:
        try:
            facts = facts_of(module)
        except Unknown as error:
            facts = error
        if key is not None:
            asked[key] = facts
    if isinstance(facts, Unknown):
        told = facts.nature == "norm" or _says_norm(module)
        return UnknownSite(name, module, str(facts), facts.nature) if told else None
    site = NormSite(name, module, facts.kind, facts.gain, facts.eps, facts.channel_dim, facts.gain_name, facts.bias_name,
                    facts.gain_scale, facts.eps_form, facts.groups, square=facts.square)  # fmt: skip
    return site if facts.width is None else site.at(facts.width)


def _why_not(module: nn.Module) -> tuple[str, str]:
    """(reason, nature)."""
    try:
        facts_of(module)
    except Unknown as error:
        return str(error), error.nature
    return "its parameters are more than a gain and a bias", "unknown"


def survey(model: nn.Module) -> Survey:
    """Every norm of the model, and everything that may be one, with the reason why that is not known.

    >>> [s.reason for s in survey(nn.Sequential(nn.LocalResponseNorm(2))).unknown]
    ['its answers fit neither LayerNorm nor RMSNorm']
    """
    asked: dict[Any, Facts | Unknown] = {}
    found: list[NormSite | UnknownSite | None] = []
    inside = ""  # of a norm that holds modules: a part of it is no other
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        found.append(site := _ask(name, module, asked))
        if isinstance(site, NormSite) and next(module.children(), None) is not None:
            inside = f"{name}."
    return Survey([s for s in found if isinstance(s, NormSite)], [s for s in found if isinstance(s, UnknownSite)])


def in_use(found: Survey, given_more: Collection[str]) -> Survey:
    """The survey after a forward pass in which these were called with more tensors than their input: a gate, a residual, a scale. What
    they were found to be, they are without it.

    >>> [u.reason for u in in_use(survey(nn.Sequential(nn.LayerNorm(4))), {"0"}).unknown]
    ['it was called with more than its input: its output is not a norm of that alone']
    """
    held = [UnknownSite(s.name, s.module, GIVEN_MORE) for s in found.norms if s.name in given_more]
    return Survey([s for s in found.norms if s.name not in given_more], [*found.unknown, *held])


def find_norms(model: nn.Module) -> list[NormSite]:
    """Every norm of the model, in order of definition; a shared one once. See :func:`survey` for what is unknown.

    >>> [s.kind for s in find_norms(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), norms.RMSNorm(4)))]
    ['layer', 'rms']
    """
    return survey(model).norms


def find_blocks(model: nn.Module) -> list[BlockSite]:
    """The elements of every outermost list of at least two alike modules that hold parameters.

    By the lists a model is made of; :func:`normlab.inspect` finds blocks by what flows through them.

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
