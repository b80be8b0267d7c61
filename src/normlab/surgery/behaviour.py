"""What a small module computes, found by asking it.

A stand-in of the module, with its class and its plain attributes but with seeded random parameters and without hooks, gets seeded
vectors. If its answers are ``gain * x_hat + bias`` per feature for one kind of ``x_hat``, gain and bias are solved for and looked up
among the parameters: neither their names nor their order matter, and a gain that still stands at one cannot hide. eps is solved
for from answers to small inputs, rounded to the shortest number that gives them, and all answers are compared again. What takes any
width is asked at others as well, and inputs of fewer axes count only where those of more were refused: what holds for one shape alone
is no answer. The result is exact, or the reason why it is unknown.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._torch import own_buffers, own_parameters
from .fitting import Asked, Facts, Unknown, fit

SCALES = (1e3, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-14)
ELSEWHERE = (7, 19)  # widths at which what takes any width is asked again
PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)


def facts_of(module: nn.Module) -> Facts:
    """What the module computes, if it is a norm of single tokens; Unknown otherwise.

    >>> class Foreign(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.beta, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))
    ...     def forward(self, x):
    ...         return self.beta + self.scale * x / (x.pow(2).mean(-1, keepdim=True) + 1.5e-7).sqrt()
    >>> facts = facts_of(Foreign())
    >>> facts.kind, facts.gain_name, facts.bias_name, facts.eps
    ('rms', 'scale', 'beta', 1.5e-07)
    """
    _refuse_strange(module)
    argument = _argument(module)
    draw = torch.Generator().manual_seed(20261117)
    stand_in, parameters = _stand_in(module, draw)

    def ask(shape: tuple[int, ...], channel: int) -> Asked:
        x = 3 * torch.randn(shape, generator=draw, dtype=torch.float64) + 1
        x = x.to(_dtype(module)).to(_device(module))
        answers = [_answer(stand_in, argument, scale * x) for scale in SCALES]
        return [_channels_last(scale * x, channel) for scale in SCALES], [_channels_last(y, channel) for y in answers]

    told = any(p.numel() > 1 for p in parameters.values())
    refused: list[str] = []
    unfit: list[str] = []
    with _undisturbed(module):
        for tail in _tails(parameters, module):
            before = len(unfit)
            for layouts in _by_rank(tail):
                for shape, channel in layouts:
                    try:
                        asked = ask(shape, channel)
                    except Exception as error:  # another layout may be the right one; the reason is kept
                        name = "" if isinstance(error, Unknown) else f"{type(error).__name__}: "
                        refused.append(name + " ".join(str(error).split())[:120])
                        continue

                    def elsewhere(shape: tuple[int, ...] = shape, channel: int = channel) -> list[Asked]:
                        return [] if told else _at_other_widths(ask, shape, channel)

                    try:
                        return fit(*asked, parameters, channel, elsewhere, _factors(module, told))
                    except Unknown as error:
                        if error.nature == "linear" and any(b is not None for b in own_buffers(module).values()):
                            raise Unknown("in evaluation, in which it was asked, it scales and shifts its input alone", "linear") from error  # fmt: skip
                        if error.nature != "unknown":
                            raise
                        unfit.append(str(error))
                if len(unfit) > before:
                    break  # fewer axes cannot tell which of them share a statistic
    raise Unknown((unfit or refused or ["no input of a shape it could take"])[0])


def _at_other_widths(ask: Callable[..., Asked], shape: tuple[int, ...], channel: int) -> list[Asked]:
    """None at all: it insists on its width."""
    found = []
    for width in ELSEWHERE:
        other = list(shape)
        other[channel] = width
        try:
            found.append(ask(tuple(other), channel))
        except Exception:  # whatever a foreign module raises there says the same: not this width
            continue
    return found


# ---- may it be asked? ------------------------------------------------------------------------------------------------


def _refuse_strange(module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        raise Unknown("its parameters are parametrized")
    if any(p is not None for child in module.children() for m in child.modules() for p in own_parameters(m).values()):
        raise Unknown("it has modules with weights inside")
    if "forward" in vars(module):
        raise Unknown("its forward was replaced on the instance")
    if isinstance(module, torch.jit.ScriptModule):
        raise Unknown("it is a compiled script")
    for name, p in own_parameters(module).items():
        if p is not None and not p.is_floating_point():
            raise Unknown(f"its parameter {name} is of {p.dtype}: quantized")
        if p is not None and isinstance(p, nn.parameter.UninitializedParameter):
            raise Unknown(f"its parameter {name} has no shape yet")
    for name, b in own_buffers(module).items():
        if b is not None and b.device.type == "meta":
            raise Unknown(f"its buffer {name} is on the meta device, without values")


def _argument(module: nn.Module) -> str | None:
    """The name of the one tensor it takes; None: by position."""
    try:
        taken = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    for p in taken[1:]:
        if p.name in ("gate", "z") or (p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD):
            gated = p.name in ("gate", "z")
            what = "a gate" if gated else f"a second argument, {p.name}"
            raise Unknown(
                f"it takes {what}: its output is not a norm of its input alone", "gated" if gated else "unknown"
            )
    if taken and taken[0].kind == taken[0].KEYWORD_ONLY:
        return taken[0].name
    return None


def _device(module: nn.Module) -> torch.device:
    held = [t for t in (*own_parameters(module).values(), *own_buffers(module).values()) if t is not None]
    return held[0].device if held and held[0].device.type != "meta" else torch.device("cpu")


def _dtype(module: nn.Module) -> torch.dtype:
    """float32 is what 16-bit norms compute in; a module in float64 is asked in float64."""
    held = (p for p in own_parameters(module).values() if p is not None)
    return torch.float64 if any(p.dtype == torch.float64 for p in held) else torch.float32


def _stand_in(module: nn.Module, draw: torch.Generator) -> tuple[nn.Module, dict[str, Tensor]]:
    """The same class and plain attributes; parameters and buffers of its own, and no hook."""
    dtype, device = _dtype(module), _device(module)
    parameters = {
        n: (torch.rand(p.shape, generator=draw, dtype=torch.float64) + 0.25).to(dtype).to(device)
        for n, p in own_parameters(module).items()
        if p is not None
    }
    try:
        probe = _bare(module, parameters, dtype)
    except Exception as error:
        raise Unknown(f"it cannot be copied ({type(error).__name__})") from error
    return probe, {n: p.double().cpu() for n, p in parameters.items()}


FRESH = frozenset(vars(nn.Module()))  # parameters, buffers, modules, hooks: what every module has


def _bare(module: nn.Module, parameters: dict[str, Tensor], dtype: torch.dtype) -> nn.Module:
    """A copy without hooks, in evaluation mode, with these parameters; modules inside, which have none, as well."""
    probe = nn.Module()
    probe.__class__ = type(module)
    for name, value in vars(module).items():
        if name not in FRESH:
            probe.__dict__[name] = value if isinstance(value, PLAIN) else copy.deepcopy(value)
    for name, value in own_parameters(module).items():
        probe.register_parameter(
            name, None if value is None else nn.Parameter(parameters[name].clone(), requires_grad=False)
        )
    for name, value in own_buffers(module).items():
        kept = value if value is None else value.detach().clone()
        probe.register_buffer(name, kept.to(dtype) if kept is not None and kept.is_floating_point() else kept)
    for name, child in module.named_children():
        probe.add_module(name, _bare(child, {}, dtype))
    probe.training = False
    return probe


class _undisturbed:
    """No gradient, no autocast, and every random state as it was."""

    def __init__(self, module: nn.Module) -> None:
        self.device = _device(module)

    def __enter__(self) -> None:
        devices = [self.device] if self.device.type == "cuda" else []
        self.parts: list[Any] = [
            torch.no_grad(), torch.random.fork_rng(devices), torch.autocast(self.device.type, enabled=False)
        ]  # fmt: skip
        self.python = random.getstate()
        for part in self.parts:
            part.__enter__()

    def __exit__(self, *error: Any) -> None:
        for part in reversed(self.parts):
            part.__exit__(*error)
        random.setstate(self.python)


def _answer(module: nn.Module, argument: str | None, x: Tensor) -> Tensor:
    given = x.clone()
    y = module.forward(given) if argument is None else module.forward(**{argument: given})
    if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
        raise Unknown("it does not map a tensor to one of the same shape")
    return y


# ---- what it is asked ------------------------------------------------------------------------------------------------


def _tails(parameters: dict[str, Tensor], module: nn.Module) -> list[tuple[int, ...]]:
    """The features of an input: as many as there are of a parameter, or of what the module says of itself."""
    held = parameters or {n: b for n, b in own_buffers(module).items() if b is not None and b.is_floating_point()}
    shapes = {tuple(p.shape) for p in held.values() if p.numel() > 1}
    return [max(shapes, key=len)] if shapes else [(n,) for n in _widths(module)]


def _by_rank(tail: tuple[int, ...]) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """(shape of an input, channel axis), of one number of axes at a time. Four tell channels first from last, and a token's statistic
    from a sample's; fewer are for what insists on them."""
    trimmed = tuple(n for n in tail if n > 1) or tail
    # no axis as long as another: what broadcasts by chance would be answered
    sizes = [n for n in (2, 3, 5, 7, 13, 17) if n not in trimmed]
    for lead in (sizes[:3], sizes[:2], [7]):
        kept = tuple(lead[: max(1, len(lead) + 1 - len(trimmed))])
        found = [(kept + trimmed, -1)]
        if len(trimmed) == 1 and len(lead) > 1:
            found.append(((kept[0], *trimmed, *kept[1:]), 1))
        yield found


def _widths(module: nn.Module) -> list[int]:
    """Of a module without parameters: what it says of itself, or any."""
    return [*_said(module), 11]


def _said(module: nn.Module) -> list[int]:
    said = []
    for value in vars(module).values():
        for n in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(n, float) and abs(n * n - round(n * n)) < 1e-6 * n * n:
                n = round(n * n)  # the root of a width, as a factor
            if isinstance(n, int) and not isinstance(n, bool) and 2 <= n <= 65536:
                said.append(n)
    return list(dict.fromkeys(said))


def _factors(module: nn.Module, told: bool) -> tuple[float, ...]:
    """Numbers that may stand between a gain and its parameter: none, and where no parameter tells the width, roots of what may be one."""
    return (1.0,) if told else (1.0, *(n**0.5 for n in _said(module)))


def _channels_last(t: Tensor, channel: int) -> Tensor:
    return t.detach().double().cpu().movedim(channel, -1)
