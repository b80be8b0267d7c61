"""What a module's answers mean: the formula, gain, bias and eps that give them all; Unknown if none does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernels import reference
from .sites import SQUARES, mean_per_square

TOLERANCE = 3e-5  # relative; modules compute in float32
Asked = tuple[list[Tensor], list[Tensor]]  # inputs of one shape and many scales, and the answers, features last


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
    square: str = "mean"
    groups: int | None = None
    width: int | None = None  # the one it insists on; None: any


@dataclass(frozen=True)
class _Form:
    """One formula for x_hat, of features last."""

    centered: bool
    square: str = "mean"  # one of SQUARES
    sample: bool = False  # all axes but the first share a statistic, not the last one alone

    def over(self, x: Tensor) -> tuple[int, ...]:
        return tuple(range(1, x.dim())) if self.sample else (x.dim() - 1,)

    def count(self, x: Tensor) -> int:
        return math.prod(x.shape[a] for a in self.over(x))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, square, _ = reference.moments(x, self.over(x), centered=self.centered)
        return mean, square / mean_per_square(self.square, self.count(x)) ** 2

    def length(self, x: Tensor) -> float:
        """|x| over the root of the square."""
        return self.count(x) ** 0.5 * mean_per_square(self.square, self.count(x))

    def unit(self, x: Tensor, eps: float, form: str = "root") -> Tensor:
        """x_hat, float64."""
        mean, square = self.statistics(x)
        if form == "root":
            return reference.normalize(x, self.over(x), eps, statistics=(mean, square))[0]
        root, length = square.sqrt(), self.length(x)
        return (x - mean) / (root + eps if form == "outside" else (root * length).clamp(min=eps) / length)


def _forms(x: Tensor, one_gain: bool) -> Iterator[_Form]:
    for centered in (True, False):
        for square in SQUARES:
            if square != "unbiased" or x.shape[-1] > 1:
                yield _Form(centered, square)
    if one_gain and x.dim() > 2:
        yield _Form(True, sample=True)
        yield _Form(False, sample=True)


def fit(
    xs: list[Tensor], ys: list[Tensor], parameters: dict[str, Tensor], channel: int,
    elsewhere: Callable[[], list[Asked]], factors: tuple[float, ...],
) -> Facts:  # fmt: skip
    """What a module computes that answered ``xs`` with ``ys``; ``elsewhere``: the same at other widths, if it takes any."""
    if not all(torch.isfinite(y).all() for y in ys):
        raise Unknown("its answers to small inputs are not finite")
    reasons = []
    cell = max([1, *(p.squeeze().dim() for p in parameters.values())])
    width = xs[0].shape[-1]
    others: list[Asked] | None = None
    for form in _forms(xs[0], cell == 1):
        gain, bias, misfit = _gain_and_bias(form.unit(xs[0], 0.0), ys[0], cell)
        if misfit > 1e-3 or not gain.any():  # eps may be large: it is solved for below, and compared then
            continue
        try:
            found_bias = _name_of(bias, parameters, "bias", scales=(1.0,))
            used = {n: p for n, p in parameters.items() if n != found_bias[0]}
            # eps bends the gain by half of eps: names are looked up loosely here and compared exactly below
            found_gain = _name_of(gain, used, "gain", scales=factors, loose=1e-3)
            unused = set(parameters) - {found_bias[0], found_gain[0]}
            if unused:
                raise Unknown(f"its parameter {min(unused)} is neither gain nor bias")
            shift = torch.zeros(()) if found_bias[0] is None else parameters[found_bias[0]].squeeze()
            factor = _values(found_gain, parameters)
            eps, eps_form = _eps(form, xs, ys, factor, shift)
            others = elsewhere() if others is None else others
            if not all(_agree(form, eps, eps_form, factor, shift, *asked) for asked in others):
                raise Unknown("its answers change with the width in no way that we know")
        except Unknown as error:
            reasons.append(str(error))
            continue
        name, gain_kind, scale = found_gain
        facts = Facts("layer" if form.centered else "rms", gain_kind, eps, eps_form, channel, name, found_bias[0], scale,
                      form.square, width=None if others else width)  # fmt: skip
        if form.sample:
            return _of_samples(facts)
        one = name is None or parameters[name].numel() == 1
        unit = math.isclose(scale * mean_per_square(form.square, width), 1)
        spherical = one and not form.centered and (name is not None or not unit)
        return replace(facts, kind="scale") if spherical else facts
    many = xs[0].flatten(0, -1 - cell).shape[0] > 4  # through two points goes any line
    if reasons:
        raise Unknown(reasons[0], "norm" if many else "unknown")
    if many and _gain_and_bias(xs[1], ys[1], cell)[2] < TOLERANCE:
        raise Unknown("it scales and shifts its input, and normalizes nothing", "linear")
    raise Unknown("its answers fit neither LayerNorm nor RMSNorm")


def _of_samples(facts: Facts) -> Facts:
    """With a mean it is GroupNorm with one group. A bound on the length depends on how many tokens there are."""
    if facts.kind != "layer" or facts.eps_form == "clamp":
        raise Unknown("its statistics are those of all axes but the first, in no form that we know", "norm")
    return replace(facts, kind="group", groups=1)


def _gain_and_bias(unit: Tensor, y: Tensor, cell: int) -> tuple[Tensor, Tensor, float]:
    """Least squares of y = gain * unit + bias over all but the last ``cell`` axes (2: a gain per head), and how far off."""
    u, v = unit.flatten(0, -1 - cell), y.flatten(0, -1 - cell)
    mean_u, mean_v = u.mean(0), v.mean(0)
    spread = ((u - mean_u) ** 2).mean(0).clamp(min=1e-30)
    gain = ((u - mean_u) * (v - mean_v)).mean(0) / spread
    bias = mean_v - gain * mean_u
    misfit = (gain * u + bias - v).abs().max() / v.abs().max().clamp(min=1e-30)
    return gain, bias, float(misfit)


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


def _eps(form: _Form, xs: list[Tensor], ys: list[Tensor], gain: Tensor, bias: Tensor) -> tuple[float, str]:
    """(eps, its form), from the smallest inputs that still tell; all answers are compared with it."""
    estimates: dict[str, list[tuple[float, float]]] = {"root": [], "outside": [], "clamp": []}
    over, length = form.over(xs[0]), form.length(xs[0])
    for x, y in zip(xs, ys, strict=True):
        mean, square = form.statistics(x)
        raw = gain * (x - mean)
        shrunk = ((y - bias) * raw).sum() / (raw * raw).sum()  # 1 / (deviation with eps), rows weighed by their size
        level = float(square.mean())
        if float((y - bias).abs().max()) < 1e-6 or shrunk <= 0:
            continue  # the bias has swallowed the answer, or eps has
        # per row, exactly; then the median
        row = ((y - bias) * raw).sum(over, keepdim=True) / (raw * raw).sum(over, keepdim=True)
        estimates["root"].append((float((1 / row**2 - square).median()), level))
        estimates["outside"].append((float((1 / row - square.sqrt()).median()), level**0.5))
        estimates["clamp"].append((float((length / row).median()), length * level**0.5))
    candidates: list[tuple[float, str]] = [(0.0, "root")]
    for name, found in estimates.items():
        # where eps is far above the level, its estimate is exact; take those
        trusted = [e for e, level in found if e > 3 * level]
        near = [e for e, level in found if 0.05 * level < e <= 3 * level]
        for e in (trusted[:2] + trusted[-1:]) or near:
            candidates += [(c, name) for c in _round_numbers(e)]
    for eps, name in dict.fromkeys(candidates):
        if _agree(form, eps, name, gain, bias, xs, ys):
            return eps, name
    raise Unknown("its eps acts in no form that we know")


def _agree(
    form: _Form, eps: float, eps_form: str, gain: Tensor, bias: Tensor, xs: list[Tensor], ys: list[Tensor]
) -> bool:
    return all(_agrees(gain * form.unit(x, eps, eps_form) + bias, y) for x, y in zip(xs, ys, strict=True))


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
