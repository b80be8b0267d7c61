"""What a small module computes, found by asking it.

A stand-in of the module, with its class and its plain attributes but with seeded random parameters and without hooks, gets seeded
vectors. If its answers are ``gain * x_hat + bias`` per feature for one kind of ``x_hat``, gain and bias are solved for and looked up
among the parameters: neither their names nor their order matter, and a gain that still stands at one cannot hide. eps is solved
for from answers to small inputs, rounded to the shortest number that gives them, and all answers are compared again.
The result is exact, or the reason why it is unknown.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._torch import own_buffers, own_parameters
from ..kernels import reference

SCALES = (1e3, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-14)
TOLERANCE = 3e-5  # relative; modules compute in float32
PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)


class Unknown(Exception):
    """The reason why a module is not a norm that we know; ``nature``: what can be said of it all the same (sites.NATURES)."""

    def __init__(self, reason: str, nature: str = "unknown") -> None:
        super().__init__(reason)
        self.nature = nature


@dataclass(frozen=True)
class Facts:
    """What was found, without the module it was found of."""

    kind: str
    gain: str
    eps: float
    eps_form: str
    channel_dim: int
    gain_name: str | None
    bias_name: str | None
    gain_scale: float = 1.0


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
    failures = []
    with _undisturbed(module):
        for shape, channel in _layouts(parameters, module):
            x = 3 * torch.randn(shape, generator=draw, dtype=torch.float64) + 1
            x = x.to(_dtype(module)).to(_device(module))
            try:
                answers = [_answer(stand_in, argument, scale * x) for scale in SCALES]
            except Unknown as error:
                failures.append(str(error))
                continue
            except Exception as error:  # another layout may be the right one; the reason is kept
                failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
                continue
            rows = [_channels_last(scale * x, channel) for scale in SCALES]
            replies = [_channels_last(answer, channel) for answer in answers]
            try:
                return _fit(rows, replies, parameters, channel)
            except Unknown as error:
                if error.nature != "unknown":
                    raise
                failures.append(str(error))
    # A layout that was refused says less than one that was answered.
    answered = [f for f in failures if "Error" not in f]
    raise Unknown((answered or failures or ["no input of a shape it could take"])[0])


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


def _layouts(parameters: dict[str, Tensor], module: nn.Module) -> Iterator[tuple[tuple[int, ...], int]]:
    """(shape of an input, channel axis). Four axes tell channels first from last; fewer for what insists on them."""
    held = parameters or {n: b for n, b in own_buffers(module).items() if b is not None and b.is_floating_point()}
    shapes = {tuple(p.shape) for p in held.values() if p.numel() > 1}
    tails = [max(shapes, key=len)] if shapes else [(n,) for n in _widths(module)]
    for tail in tails:
        trimmed = tuple(n for n in tail if n > 1) or tail
        for lead in ((2, 3, 5), (2, 3), (7,)):
            yield lead[: max(1, len(lead) + 1 - len(trimmed))] + trimmed, -1
            if len(trimmed) == 1 and len(lead) > 1:
                yield (lead[0], *trimmed, *lead[1:]), 1


def _widths(module: nn.Module) -> list[int]:
    """Of a module without parameters: what it says of itself, or any."""
    said = []
    for value in vars(module).values():
        for n in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(n, float) and abs(n * n - round(n * n)) < 1e-6 * n * n:
                n = round(n * n)  # the root of a width, as a factor
            if isinstance(n, int) and not isinstance(n, bool) and 2 <= n <= 65536:
                said.append(n)
    return [*dict.fromkeys(said), 11]


def _channels_last(t: Tensor, channel: int) -> Tensor:
    return t.detach().double().cpu().movedim(channel, -1)


# ---- what its answers mean -------------------------------------------------------------------------------------------


def _fit(xs: list[Tensor], ys: list[Tensor], parameters: dict[str, Tensor], channel: int) -> Facts:
    if not all(torch.isfinite(y).all() for y in ys):
        raise Unknown("its answers to small inputs are not finite")
    reasons = []
    cell = max([1, *(p.squeeze().dim() for p in parameters.values())])
    for kind in ("layer", "rms"):
        gain, bias, misfit = _gain_and_bias(_unit(xs[0], kind, 0.0), ys[0], cell)
        if misfit > 1e-3 or not gain.any():  # eps may be large: it is solved for below, and compared then
            continue
        try:
            found_bias = _name_of(bias, parameters, "bias", scales=(1.0,))
            used = {n: p for n, p in parameters.items() if n != found_bias[0]}
            # eps bends the gain by half of eps: names are looked up loosely here and compared exactly below
            found_gain = _name_of(gain, used, "gain", scales=_scales(xs[0].shape[-1]), loose=1e-3)
            unused = set(parameters) - {found_bias[0], found_gain[0]}
            if unused:
                raise Unknown(f"its parameter {min(unused)} is neither gain nor bias")
            shift = torch.zeros(()) if found_bias[0] is None else parameters[found_bias[0]].squeeze()
            eps, form = _eps(kind, xs, ys, _values(found_gain, parameters), shift)
        except Unknown as error:
            reasons.append(str(error))
            continue
        name, gain_kind, scale = found_gain
        one = name is None or parameters[name].numel() == 1
        spherical = one and kind == "rms" and (name is not None or scale != 1)
        return Facts("scale" if spherical else kind, gain_kind, eps, form, channel, name, found_bias[0], scale)
    many = xs[0].flatten(0, -1 - cell).shape[0] > 4  # through two points goes any line
    if reasons:
        raise Unknown(reasons[0], "norm" if many else "unknown")
    if many and _gain_and_bias(xs[1], ys[1], cell)[2] < TOLERANCE:
        raise Unknown("it scales and shifts its input, and normalizes nothing", "linear")
    raise Unknown("its answers fit neither LayerNorm nor RMSNorm")


def _unit(x: Tensor, kind: str, eps: float, form: str = "root") -> Tensor:
    """x_hat over the last axis, float64."""
    if form == "root":
        return reference.normalize(x, (x.dim() - 1,), eps, centered=kind == "layer")[0]
    mean, square, _ = reference.moments(x, (x.dim() - 1,), centered=kind == "layer")
    root, length = square.sqrt(), x.shape[-1] ** 0.5
    return (x - mean) / (root + eps if form == "outside" else (root * length).clamp(min=eps) / length)


def _gain_and_bias(unit: Tensor, y: Tensor, cell: int) -> tuple[Tensor, Tensor, float]:
    """Least squares of y = gain * unit + bias over all but the last ``cell`` axes (2: a gain per head), and how far off."""
    u, v = unit.flatten(0, -1 - cell), y.flatten(0, -1 - cell)
    mean_u, mean_v = u.mean(0), v.mean(0)
    spread = ((u - mean_u) ** 2).mean(0).clamp(min=1e-30)
    gain = ((u - mean_u) * (v - mean_v)).mean(0) / spread
    bias = mean_v - gain * mean_u
    misfit = (gain * u + bias - v).abs().max() / v.abs().max().clamp(min=1e-30)
    return gain, bias, float(misfit)


def _scales(width: int) -> tuple[float, ...]:
    """Factors that stand between a gain and its parameter: none, that of |x|, and torch's unbiased deviation."""
    return (1.0, width**-0.5, math.sqrt((width - 1) / width)) if width > 1 else (1.0,)


def _name_of(
    value: Tensor, parameters: dict[str, Tensor], what: str, scales: tuple[float, ...], loose: float = 1e-3
) -> tuple[str | None, str, float]:
    """(parameter or None, direct or offset or none, factor)."""
    size = value.abs().max().clamp(min=1.0)
    for scale in scales:
        for name, p in parameters.items():
            for kind, offset in (("direct", 0.0), ("offset", 1.0)) if what == "gain" else (("direct", 0.0),):
                if _same(value, scale * (p + offset), loose * size):
                    return name, kind, scale
        neutral = torch.tensor(scale if what == "gain" else 0.0, dtype=torch.float64)
        if _same(value, neutral, loose * size):
            return None, "none", scale
    raise Unknown(f"its {what} is none of its parameters")


def _same(value: Tensor, parameter: Tensor, bound: Tensor) -> bool:
    p = parameter.squeeze()
    fits = p.dim() <= value.dim() and p.shape == value.shape[value.dim() - p.dim() :]
    return fits and bool(((value - p).abs() <= bound).all())


def _values(found: tuple[str | None, str, float], parameters: dict[str, Tensor]) -> Tensor:
    name, kind, scale = found
    one = torch.ones((), dtype=torch.float64)
    return scale * (one if name is None else parameters[name].squeeze() + (kind == "offset"))


def _eps(kind: str, xs: list[Tensor], ys: list[Tensor], gain: Tensor, bias: Tensor) -> tuple[float, str]:
    """(eps, its form), from the smallest inputs that still tell; all answers are compared with it."""
    estimates: dict[str, list[tuple[float, float]]] = {"root": [], "outside": [], "clamp": []}
    length = xs[0].shape[-1] ** 0.5
    for x, y in zip(xs, ys, strict=True):
        mean, square, _ = reference.moments(x, (x.dim() - 1,), centered=kind == "layer")
        raw = gain * (x - mean)
        shrunk = ((y - bias) * raw).sum() / (raw * raw).sum()  # 1 / (deviation with eps), rows weighed by their size
        level = float(square.mean())
        if float((y - bias).abs().max()) < 1e-6 or shrunk <= 0:
            continue  # the bias has swallowed the answer, or eps has
        # per row, exactly; then the median
        row = ((y - bias) * raw).sum(-1) / (raw * raw).sum(-1)
        root = (1 / row**2 - square.squeeze(-1)).median()
        outside = (1 / row - square.squeeze(-1).sqrt()).median()
        estimates["root"].append((float(root), level))
        estimates["outside"].append((float(outside), level**0.5))
        estimates["clamp"].append((float((length / row).median()), length * level**0.5))
    candidates: list[tuple[float, str]] = [(0.0, "root")]
    for form, found in estimates.items():
        # where eps is far above the level, its estimate is exact; take those
        trusted = [e for e, level in found if e > 3 * level]
        near = [e for e, level in found if 0.05 * level < e <= 3 * level]
        for e in (trusted[:2] + trusted[-1:]) or near:
            candidates += [(c, form) for c in _round_numbers(e)]
    for eps, form in dict.fromkeys(candidates):
        if all(_agrees(gain * _unit(x, kind, eps, form) + bias, y) for x, y in zip(xs, ys, strict=True)):
            return eps, form
    raise Unknown("its eps acts in no form that we know")


def _agrees(expected: Tensor, y: Tensor) -> bool:
    return bool(torch.allclose(y, expected, rtol=TOLERANCE, atol=TOLERANCE * max(float(expected.abs().max()), 1e-3)))


def _round_numbers(estimate: float) -> Iterator[float]:
    """Machine epsilons, then the shortest decimals near an estimate."""
    for known in (torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps):
        if abs(known - estimate) <= 3e-6 * estimate:
            yield known
    for digits in range(6):
        number = float(f"{estimate:.{digits}e}")
        if abs(number - estimate) <= 3e-5 * estimate:
            yield number
