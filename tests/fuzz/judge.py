"""One case, run three ways: as drawn on the kernels, on dense copies on the kernels, and in float64 by the reference.

As drawn and dense: the same bits, where the table says so. Against float64: a result may be off by its own rounding and by what
the reference itself moves when every input moves by a few steps of the precision that computes. That bound follows the
conditioning of each case, whatever the norm; tests/contract.py holds the sharper bounds for ordinary inputs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from contract import SMALLEST, STEP
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import normlab
from normlab.kernels import cpu

from . import memory
from .cases import (
    ANY,
    CLOSE,
    EITHER,
    ERRORS,
    MASK,
    PARAMETER,
    REFUSED,
    SAME,
    Plan,
    draw,
    expected,
)
from .dressing import COUNTER, dense_copies, dress, other_size, values

# ---- the call --------------------------------------------------------------------------------------------------------


def prepare(plan: Plan, t: dict[str, Any], double: bool) -> Any:
    """A function without arguments that runs the norm; parameters and inputs are made leaves here."""
    for role in plan.needs:
        leaf = t[role]
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            if plan.form == "layer" and plan.roles[role][0] == PARAMETER and type(leaf) is Tensor and plan.seed % 3:
                t[role] = nn.Parameter(leaf)
            else:
                leaf.requires_grad_()
    o = dict(plan.options)
    if o.get("eps", 0) is None:
        o["eps"] = torch.finfo(torch.float64 if plan.dtype == torch.float64 else torch.float32).eps
    real = {"lengths": t["lengths"]} if plan.lengths else {"mask": t["mask"]} if "mask" in t else {}
    if plan.lengths and isinstance(t["lengths"], Tensor) and plan.seed % 2:
        real = {"lengths": t["lengths"].tolist()}
    if plan.form == "function":
        return _function(plan, t, o, real)
    layer = _layer(plan, t, o)
    inputs = [t["x"], t["branch"]] if plan.op == "residual" else [t["x"]]
    return lambda: layer(*inputs, **real)


def _layer(plan: Plan, t: dict[str, Any], o: dict[str, Any]) -> nn.Module:
    op = plan.op
    width = plan.shape[plan.channel] if plan.shape else 4
    if plan.family == "column":
        o["channel_dim"] = plan.channel
    if op == "instance":
        o["affine"] = True
    gain = o.pop("gain", "direct")
    if op == "residual":
        layer: nn.Module = normlab.ResidualNorm(width, gain=gain, **o)
    elif op == "group":
        layer = normlab.GroupNorm(o.pop("num_groups"), width, gain=gain, **o)
    elif op in ("layer", "rms"):
        layer = normlab.NORMS[op].layer(plan.shape[-plan.axes :] or 4, gain=gain, **o)
    else:
        if op in ("batch", "instance"):
            o["gain"] = gain
        layer = normlab.NORMS[op].layer(width, **o)
    for name in ("weight", "bias", "alpha", "shift"):
        if name in layer._parameters:
            layer._parameters[name] = t.get(name)
    for name in layer._buffers:
        layer._buffers[name] = t.get(name)
    return layer.train(plan.training)


def _function(plan: Plan, t: dict[str, Any], o: dict[str, Any], real: dict[str, Any]) -> Any:
    op, x, weight, bias = plan.op, t["x"], t.get("weight"), t.get("bias")
    shape = plan.shape[-plan.axes :]
    if plan.family == "column":
        o["channel_dim"] = plan.channel
    if op == "layer":
        return lambda: normlab.functional.layer_norm(x, shape, weight, bias, **o, **real)
    if op == "rms":
        return lambda: normlab.functional.rms_norm(x, shape, weight, bias=bias, **o, **real)
    if op == "scale":
        return lambda: normlab.functional.scale_norm(x, weight, **o, **real)
    if op == "residual":
        return lambda: normlab.functional.residual_norm(
            x, t["branch"], weight, bias, training=plan.training, **o, **real
        )
    if op == "batch":
        running = t.get("running_mean"), t.get("running_var")
        return lambda: normlab.functional.batch_norm(x, *running, weight, bias, plan.training, **o, **real)
    if op == "instance":
        return lambda: normlab.functional.instance_norm(x, weight, bias, **o, **real)
    if op == "group":
        return lambda: normlab.functional.group_norm(x, o.pop("num_groups"), weight, bias, **o, **real)
    if op == "power":
        state = t["running_psi2"], t["running_nu"], t[COUNTER]
        return lambda: normlab.functional.power_norm(x, *state, weight, bias, plan.training, **o, **real)
    if op == "dyt":
        return lambda: normlab.functional.dyt(x, t["alpha"], weight, bias, **real)
    return lambda: normlab.functional.derf(x, t["alpha"], t["shift"], weight, bias, **real)


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


class NotPossible(Exception):
    """torch itself refused to set the case up."""


@dataclass
class Outcome:
    results: dict[str, Tensor]  # y, stream, d<role>, dd<role>, running statistics after the call
    error: Exception | None = None
    changed: str = ""  # state that moved in the stage that raised


def perform(plan: Plan, t: dict[str, Any], kernel: str, twisted: bool = False, double: bool = False) -> Outcome:
    results: dict[str, Tensor] = {}
    before = _state(t)
    try:
        outputs = _forward(plan, t, kernel, twisted, double)
        names = ["y", "stream"][: len(outputs)]
        for name, y in zip(names, outputs, strict=True):
            results[name] = memory.plain(y)
        before = _state(t)
        _backward(plan, t, kernel, twisted, dict(zip(names, outputs, strict=True)), results)
    except NotPossible:
        raise
    except Exception as error:
        now = _state(t)
        moved = [name for name, old in before.items() if not _same_bits(now[name], old)]
        return Outcome(results, error, ", ".join(moved))
    results.update(_state(t))
    return Outcome(results)


def _state(t: dict[str, Any]) -> dict[str, Tensor]:
    """Running statistics and the counter, where there is something to read."""
    found = {}
    for role in ("running_mean", "running_var", "running_psi2", "running_nu", COUNTER):
        v = t.get(role)
        if v is not None and v._is_zerotensor():
            found[role] = v.clone()
            continue
        if v is None or v.is_meta or _empty_storage(v):
            continue
        found[role] = memory.plain(v)
    return found


def _empty_storage(t: Tensor) -> bool:
    """Values, but no memory for them."""
    if t.layout != torch.strided or isinstance(t, memory.Wrapped) or t.numel() == 0:
        return False
    return t._is_zerotensor() or t.untyped_storage().nbytes() == 0


def _forward(plan: Plan, t: dict[str, Any], kernel: str, twisted: bool, double: bool) -> tuple[Tensor, ...]:
    try:
        call = prepare(plan, t, double)
    except RuntimeError as error:
        raise NotPossible from error
    hook = next((n for n, _ in plan.twists if n.startswith("saved: ")), None)
    torch.default_generator.manual_seed(plan.seed & 0x7FFFFFFF)  # torch.manual_seed also asks for every other device
    with ExitStack() as stack:
        stack.enter_context(normlab.use_kernel(kernel))
        # what decides whether there are gradients holds for every run; the rest for the case as drawn alone
        if plan.has("without gradients") or (plan.has("inference mode") and not twisted):
            stack.enter_context(torch.no_grad())
        if twisted:
            if plan.has("inference mode"):
                stack.enter_context(torch.inference_mode())
            if plan.has("default device meta"):
                stack.enter_context(torch.device("meta"))
            if plan.has("default dtype float64"):
                torch.set_default_dtype(torch.float64)
                stack.callback(torch.set_default_dtype, torch.float32)
            if plan.has("under a dispatch mode"):
                stack.enter_context(PassThrough())
            if hook == "saved: save_on_cpu":
                stack.enter_context(torch.autograd.graph.save_on_cpu())
            elif hook:
                stack.enter_context(_hooks(plan, hook))
        outputs = call()
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _hooks(plan: Plan, hook: str) -> Any:
    chosen, seen = plan.random.choice((0, 1, 2, None)), [0]

    def pack(t: Tensor) -> tuple[int, Tensor]:
        seen[0] += 1
        return seen[0] - 1, t

    def unpack(packed: tuple[int, Tensor]) -> Any:
        number, t = packed
        return t if chosen is not None and number != chosen else _handed_back(plan, hook, t)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _handed_back(plan: Plan, hook: str, saved: Tensor) -> Any:
    t = saved.detach()
    wall = "wall behind"
    if hook == "saved: None":
        return None
    if hook == "saved: meta":
        return t.to("meta")
    if hook == "saved: sparse":
        return t.to_sparse()
    if _empty_storage(t):  # nothing to hand back; torch's own ops would read it all the same
        return t
    t = memory.plain(t)
    if hook == "saved: storage resized to nothing":
        return memory.without_storage(t) if t.numel() else t
    if hook == "saved: storage a byte too short":
        return memory.short_storage(t) if t.numel() else t
    if hook == "saved: mask of another shape":
        return t.flatten() if t.dtype == torch.bool else t
    if hook == "saved: one value less":
        return memory.Placed(t.flatten()[:-1], place=wall).tensor
    if hook == "saved: first value alone":
        return memory.Placed(t.flatten()[:1], place=wall).tensor
    if hook == "saved: twice as long":
        return torch.cat([t.flatten(), t.flatten()])
    if hook == "saved: other dtype":
        if not t.is_floating_point():
            return t.to(torch.float32)
        narrow = torch.float32 if t.dtype == torch.float64 else torch.float64
        return memory.Placed(t.to(plan.random.choice((narrow, torch.bfloat16, torch.float16))), place=wall).tensor
    if hook == "saved: negative bit":
        return torch._neg_view(-t) if t.is_floating_point() else t
    if hook == "saved: wrapper subclass":
        return memory.Wrapped(t)
    layout = {"saved: gaps": "gaps", "saved: permuted": "permuted"}.get(hook, "dense")
    return memory.Placed(t, memory.draw_strides(layout, tuple(t.shape), plan.random), wall).tensor


def _backward(
    plan: Plan, t: dict[str, Any], kernel: str, twisted: bool, outputs: dict[str, Tensor], results: dict[str, Tensor]
) -> None:
    given = {"y": t.get("grad"), "stream": t.get("grad_stream")}
    pairs = [(y, given[name]) for name, y in outputs.items() if y.requires_grad and given[name] is not None]
    leaves = [role for role in plan.needs if isinstance(t[role], Tensor) and t[role].requires_grad]
    if not pairs or not leaves:
        return
    if twisted:
        for name, role in plan.twists:
            if name.startswith("later: "):
                _meanwhile(plan, name, role, t)
    inputs = [t[role] for role in leaves]
    ys, grads = [y for y, _ in pairs], [g for _, g in pairs]
    second = plan.has("second derivative")
    with normlab.use_kernel(kernel):
        twice = twisted and plan.has("backward twice")
        first = torch.autograd.grad(
            ys, inputs, grads, allow_unused=True, create_graph=second, retain_graph=twice or second
        )
        if twice and plan.op != "power":  # whose backward moves a running quantity
            again = torch.autograd.grad(ys, inputs, grads, allow_unused=True)
            for role, a, b in zip(leaves, first, again, strict=True):
                if (a is None) != (b is None) or (a is not None and not _same_bits(memory.plain(a), memory.plain(b))):
                    raise AssertionError(f"a second backward pass gave another gradient of {role}")
        for role, g in zip(leaves, first, strict=True):
            if g is not None:
                results[f"d{role}"] = memory.plain(g)
        if second:
            g = torch.Generator().manual_seed(plan.seed & 0xFFFF)
            used = []
            for role, d in zip(leaves, first, strict=True):
                if d is not None:
                    along = torch.randn(d.shape, generator=g, dtype=torch.float64).to(plan.dtypes.get(role, plan.dtype))
                    used += [(d, along.to(d.dtype))] if d.requires_grad else []
            if used:
                found = torch.autograd.grad([d for d, _ in used], inputs, [a for _, a in used], allow_unused=True)
                for role, d in zip(leaves, found, strict=True):
                    if d is not None:
                        results[f"dd{role}"] = memory.plain(d)


def _meanwhile(plan: Plan, name: str, role: str, t: dict[str, Any]) -> None:
    """What happens between forward and backward."""
    if name == "later: freed":
        for other in [
            x for x in t if x not in plan.needs and plan.roles.get(x, ("",))[0] in ("input", PARAMETER, MASK)
        ]:
            del t[other]
        return
    own = t[role]
    try:
        with torch.no_grad():
            if name == "later: changed in place":
                own.logical_not_() if role == "mask" else own.add_(1)
            elif name == "later: storage resized to nothing":
                own.untyped_storage().resize_(0)
            elif name == "later: storage a byte too short":
                own.untyped_storage().resize_(own.untyped_storage().nbytes() - 1)
            else:
                now = memory.plain(own)
                if name == "later: data of another size":
                    now = memory.Placed(other_size(now, plan.random), place="wall behind").tensor
                elif name == "later: data of another dtype":
                    other = plan.random.choice([d for d in STEP if d != now.dtype])
                    now = memory.Placed(now.to(other), place="wall behind").tensor
                elif name == "later: data with gaps":
                    now = memory.Placed(
                        now, memory.draw_strides("gaps", tuple(now.shape), plan.random), "wall behind"
                    ).tensor
                else:
                    now = torch.randn_like(now)
                own.data = now
    except RuntimeError as error:
        raise NotPossible from error


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = torch.zeros(a.numel(), dtype=torch.bool)
    if a.is_floating_point():  # any NaN is as good as another
        nan = (a != a).reshape(-1)
        if not torch.equal(nan, (b != b).reshape(-1)):
            return False
    # By bytes: an old torch can do little else with eight-bit floating types.
    same = (_bytes(a) == _bytes(b)).all(1)
    return bool((same | nan).all())


def _bytes(t: Tensor) -> Tensor:
    """(values, bytes of each)."""
    return t.contiguous().reshape(-1).view(torch.uint8).reshape(t.numel(), t.element_size())


def _compute_step(plan: Plan) -> float:
    if "group_scaling" in plan.options and plan.dtype != torch.float64:
        return STEP[plan.dtype]  # two norms in a row, the first one's result and gradient rounded
    return 32 * STEP[torch.float64] if plan.dtype == torch.float64 else STEP[torch.float32]


def straight(plan: Plan, truth: dict[str, Tensor]) -> Tensor:
    """The largest |gain * grad / deviation|: what dx is made from, before the shares of mean and variance are taken off."""
    t = {role: v.double() for role, v in truth.items() if v.is_floating_point()}
    if "branch" not in t:
        return _straight(plan, truth, t, t["x"])
    x, drop = plan.options["alpha"] * t["x"], plan.options["dropout"]
    found = _straight(plan, truth, t, x + t["branch"] / (1 - drop))
    return (
        torch.maximum(found, _straight(plan, truth, t, x)) if drop and plan.training else found
    )  # where it was dropped


def _straight(plan: Plan, truth: dict[str, Tensor], t: dict[str, Tensor], x: Tensor) -> Tensor:
    real = torch.ones(plan.shape, dtype=torch.bool)
    if "mask" in truth and plan.shape:
        cell = truth["mask"].unsqueeze(plan.channel) if plan.axes == 1 else truth["mask"][..., None, None]
        real = cell.expand(plan.shape)
    if not real.any():
        return torch.zeros(())
    largest = [t[g][real].abs().max() for g in ("grad", "grad_stream") if g in t]
    size = max(largest) if largest else torch.zeros(())
    gain = 1 + t["weight"].abs().max() if "weight" in t else 1.0
    if plan.family == "pointwise":
        return size * gain * t["alpha"].abs().max()
    eps, (labels, centered) = plan.options["eps"], _sets(plan)
    labels, x = labels[real], x[real]
    sums = lambda v: torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, v)  # noqa: E731
    count = sums(torch.ones_like(x)).clamp(min=1)
    mean = sums(x) / count if centered else torch.zeros_like(count)
    square = sums((x - mean[labels]) ** 2) / count
    deviation = (square * count).sqrt().clamp(min=eps) if plan.op == "scale" else (square + eps).sqrt()
    found = size * gain / deviation[labels].min()
    for role in ("running_var", "running_psi2"):
        if role in t:
            found = torch.maximum(found, size * gain / (t[role] + eps).sqrt().min())
    factor = max(1.0, abs(plan.options.get("alpha", 1.0)) / (1 - plan.options.get("dropout", 0.0)))
    return (
        found * factor * (deviation[labels].min().reciprocal().clamp(min=1) if "group_scaling" in plan.options else 1)
    )


def _sets(plan: Plan) -> tuple[Tensor, bool]:
    """Which cells share a statistic, and whether a mean is taken off."""
    shape, o = plan.shape, plan.options
    if plan.family == "row":
        partial = o.get("partial")
        labels = normlab.functional.statistic_labels("layer", shape, normalized_dims=plan.axes)
        if (
            partial is not None
        ):  # only the first values count: the others get a set of their own, which may be smaller still
            width = int(torch.tensor(shape[-plan.axes :]).prod())
            first = max(1, int(partial * width)) if plan.form == "layer" else partial
            inside = (torch.arange(width) < first).view(shape[-plan.axes :])
            labels = labels * 2 + inside.to(labels.dtype)
        return labels, plan.op == "layer" or o.get("norm") == "layer"
    if o.get("causal") == "position":
        groups = o.get("num_groups", shape[plan.channel])
        last = torch.Size(shape).numel() // shape[plan.channel]
        moved = list(shape)
        channels = moved.pop(plan.channel)
        if plan.op == "group":
            token, group = torch.arange(last).view(*moved, 1), torch.arange(channels) // (channels // groups)
            return (token * groups + group).movedim(-1, plan.channel), True
        return normlab.functional.statistic_labels("instance", (shape[1], shape[0], shape[2])).transpose(0, 1) if len(
            shape
        ) == 3 else normlab.functional.statistic_labels("batch", shape), True
    name = "batch" if plan.op == "power" else plan.op
    labels = normlab.functional.statistic_labels(
        name, shape, channel_dim=plan.channel, num_groups=o.get("num_groups", 1)
    )
    if "ghost_size" in o:
        part = torch.arange(shape[0]) // o["ghost_size"]
        labels = labels + part.view(-1, *[1] * (len(shape) - 1)) * shape[plan.channel]
    return labels, plan.op != "power"


def _moves(plan: Plan) -> dict[str, float]:
    """How far each input moves for the bound: a few steps of the precision that computes."""
    step = 4 * _compute_step(plan)
    # parameters of several dtypes are read in one of them, running statistics are kept in their own
    own = {r: STEP.get(d, 0.0) for r, d in plan.dtypes.items()}
    parameters = {own[r] for r in own if plan.roles[r][0] == PARAMETER}
    coarse = max(parameters) if len(parameters) > 1 else 0.0
    found = {r: max(step, coarse if plan.roles[r][0] == PARAMETER else 0.0) for r in plan.roles if r != "mask"}
    if plan.op == "residual":  # the sum is rounded to x's dtype before it is normalized
        found["x"] = max(step, STEP[plan.dtype])
        found["branch"] = -found["x"]  # against each other: alike they would cancel just where the sum does
    return found


def _off(plan: Plan, name: str, got: Tensor, want: Tensor, moved: Tensor, terms: float) -> str:
    """Empty, or by how much ``got`` is off. ``terms``: the size of what it was made from, where that is no input."""
    if got.shape != want.shape:
        return f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if not want.is_floating_point():
        return (
            ""
            if torch.equal(got, want)
            else f"{name} is {got.flatten()[:8].tolist()}, not {want.flatten()[:8].tolist()}"
        )
    if got.dtype not in STEP:
        got = got.double()
    rounding = max(STEP[got.dtype], STEP[plan.dtype] if plan.options.get("round_before_gain") else 0.0)
    parameter_steps = [STEP.get(d, 0.0) for r, d in plan.dtypes.items()]
    if name.lstrip("d") in plan.dtypes and parameter_steps:
        rounding = max(rounding, *parameter_steps)
    spread = (moved - want).abs().max() if want.numel() else torch.zeros(())
    size = want.abs().max() if want.numel() else torch.zeros(())
    exact = name in ("y", "stream", "dx", "dbranch") and not plan.options.get("round_before_gain")
    allowed = 8 * spread + 16 * _compute_step(plan) * (size + terms) + 2 * SMALLEST[got.dtype]
    allowed = allowed + (1.02 * rounding * want.abs() if exact and plan.op != "residual" else 4 * rounding * size)
    judged = want.abs() + allowed < torch.finfo(got.dtype).max
    wrong = judged & ~((got.double() - want).abs() <= allowed)
    if not wrong.any():
        return ""
    worst = torch.where(wrong, (got.double() - want).abs(), -1.0)
    worst = torch.where(wrong & ~got.isfinite(), float("inf"), worst).flatten().argmax()
    limit = allowed.expand(want.shape).flatten()[worst]
    return (
        f"{name} is {got.flatten()[worst].item():.6g} in cell {int(worst)}, not {want.flatten()[worst].item():.6g} "
        f"(allowed: {limit.item():.2g}; {int(wrong.sum())} of {want.numel()} cells wrong)"
    )


def _as_summed(plan: Plan, truth: dict[str, Tensor]) -> dict[str, Tensor]:
    """For the oracle: x moved so that its sum with the branch is what the op makes of it, rounded to x's dtype. A sum whose values differ
    by less than that is a constant there, and its gradient hundreds of times that of the exact sum.
    """
    o = plan.options
    if plan.op != "residual" or not o["alpha"] or (o["dropout"] and plan.training):
        return truth
    x, branch = truth["x"].double(), truth["branch"].double()
    rounded = (o["alpha"] * x + branch).to(plan.dtype).double()
    moved = (rounded - branch) / o["alpha"]
    return {**truth, "x": torch.where(moved.isfinite(), moved, x)}


def judge(plan: Plan) -> list[str]:
    """What is wrong with this case: nothing, or a sentence for each fault."""
    if cpu.native is not None:
        isas = [name for name, has in cpu.native.isas() if has]
        cpu.native.use_isa(isas[plan.isa % len(isas)])
    truth = values(plan)
    expect = expected(plan)
    torch.set_num_threads(plan.threads)
    made, kept = dress(plan, truth)
    try:
        drawn = perform(plan, made, "auto", twisted=True)
    except NotPossible:
        return []
    found = []
    later = any(n.startswith("later: ") for n, _ in plan.twists)
    for role, placed in kept.items():
        if not later and not placed.untouched(role in plan.written):
            found.append(f"memory of {role} was written to")
    if drawn.error is not None and not isinstance(drawn.error, ERRORS):
        found.append(f"{type(drawn.error).__name__}: {drawn.error}")
    if drawn.error is not None and drawn.changed:
        found.append(f"{drawn.changed} changed although {type(drawn.error).__name__} was raised: {drawn.error}")
    if found or expect == ANY:
        return found
    if expect == REFUSED:
        return [] if drawn.error is not None else ["was not refused"]
    if drawn.error is not None and expect == EITHER:
        return []
    torch.set_num_threads(1)
    summed = _as_summed(plan, truth)
    exact = perform(plan, dense_copies(summed, double=True), "reference", double=True)
    if exact.error is not None:
        if not isinstance(exact.error, ERRORS):
            return [f"reference: {type(exact.error).__name__}: {exact.error}"]
        if drawn.error is None and expect in (SAME, CLOSE):
            return [f"was not refused, the reference says {type(exact.error).__name__}: {exact.error}"]
        return []
    if drawn.error is not None:
        return [f"valid, but refused with {type(drawn.error).__name__}: {drawn.error}"]
    for name, role in plan.twists:
        if name == "later: data of another dtype":  # torch takes it for another leaf
            exact.results = {n: v for n, v in exact.results.items() if n in drawn.results or n != f"d{role}"}
            if set(plan.needs) == {role}:  # no gradient reaches the op, so nu stays
                exact.results.pop("running_nu", None)
                drawn.results.pop("running_nu", None)
    for name in set(drawn.results) - set(exact.results):  # no gradient and a gradient of zeros say the same
        if name.startswith("d") and not drawn.results[name].any():
            del drawn.results[name]
    if set(drawn.results) != set(exact.results):
        return [f"gives {sorted(drawn.results)}, the reference {sorted(exact.results)}"]
    if expect == SAME:
        dense = perform(plan, dense_copies(truth), "auto")
        if dense.error is not None:
            return [f"dense copies refused with {type(dense.error).__name__}: {dense.error}"]
        for name, got in drawn.results.items():
            if not _same_bits(got, dense.results[name]):
                found.append(f"{name} has other bits than with dense copies")
    moved = perform(plan, dense_copies(summed, double=True, move=_moves(plan)), "reference", double=True)
    through = float(straight(plan, truth))
    grad = max(
        (
            float(truth[r].double().nan_to_num(0, 0, 0).abs().max())
            for r in ("grad", "grad_stream")
            if r in truth and truth[r].numel()
        ),
        default=0.0,
    )
    y = float(exact.results["y"].abs().max()) if exact.results["y"].numel() else 0.0
    rows = exact.results["y"].numel() ** 0.5
    for name, want in exact.results.items():
        # a deviation far below the values loses what separates them, where the exact gradient may cancel to nothing
        large = float(truth["x"].double().nan_to_num(0, 0, 0).abs().max()) if truth["x"].numel() else 0.0
        through_all = through * max(1.0, through * large / max(grad, 1e-30))
        terms = (
            through_all if name in ("dx", "dbranch") else (y + 1) * (grad + 1) * rows if name.startswith("d") else 0.0
        )
        if name in plan.dtypes:  # a running statistic moves from its old value
            size = truth[name].double().abs().max() if truth[name].numel() else 0.0
            terms = max(1.0, STEP.get(truth[name].dtype, 1.0) / _compute_step(plan)) * float(size)
        if name.startswith("dd"):
            terms = (terms + through) * max(1.0, through)
        # Where all values of a set are one value the answer is 0, and the oracle's own rounding is all it has.
        if plan.dtype == torch.float64 and name in ("y", "dweight") and ("expanded", "x") in plan.twists:
            terms = max(terms, through * large * (1.0 if name == "y" else (grad + 1) * rows))
        if name == "dweight" and plan.options.get("round_before_gain"):  # what it multiplies was rounded to the dtype
            terms = max(terms, grad * rows * STEP[plan.dtype] / _compute_step(plan))
        fault = (
            None if moved.error is not None else _off(plan, name, drawn.results[name], want, moved.results[name], terms)
        )
        for seed in range(8):  # a sum that cancels: how far it moves depends on which values go up
            if fault:
                other = perform(plan, dense_copies(summed, True, _moves(plan), seed), "reference", double=True)
                fault = fault and _off(plan, name, drawn.results[name], want, other.results[name], terms)
        if fault:
            found.append(fault)
    return found


def judge_seed(seed: int) -> list[str]:
    return judge(draw(seed))
