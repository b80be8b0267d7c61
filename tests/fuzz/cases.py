"""A case from an integer: which norm, which options, which shapes and dtypes, and what is strange about it.

Everything here is a decision, no tensor is made: a crash can be described without repeating it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

# ---- what is valid and what is wrong: the one table ------------------------------------------------------------------

SAME = "same bits"  # as the same call on dense copies; and close to float64
CLOSE = "close"  # to the float64 reference, within the derived tolerance (another kernel or another order of sums)
EITHER = "right or refused"  # close to the reference, or an error of ERRORS that changed no state
REFUSED = "refused"  # an error of ERRORS, and no state changed
ANY = "no crash"

ERRORS = (TypeError, ValueError, RuntimeError)  # with their subclasses; anything else is a finding

INPUT, PARAMETER, MASK, RUNNING, GRAD = "input", "parameter", "mask", "running", "grad"
READ = (INPUT, PARAMETER, MASK, RUNNING, GRAD)
SAVED = (INPUT, PARAMETER, MASK)


@dataclass(frozen=True)
class Twist:
    expect: str
    kinds: tuple[str, ...] = ()  # of tensors it may happen to; none: it happens to the whole call
    group: str = "layout"  # at most one of a group per tensor (of "call", "saved" and "later": per case)


TWISTS = {
    # how a tensor lies in memory
    "rows apart": Twist(SAME, READ),
    "gaps": Twist(SAME, READ),
    "permuted": Twist(SAME, READ),  # x of a column norm: CLOSE, its kernels sum in the order of memory
    "expanded": Twist(SAME, READ),  # running statistics that are to be written: REFUSED
    "overlapping": Twist(SAME, (INPUT, PARAMETER, MASK, GRAD)),
    "negative bit": Twist(SAME, (INPUT, PARAMETER, RUNNING, GRAD), "bits"),
    "imaginary part of a conjugate": Twist(SAME, (INPUT, PARAMETER, RUNNING, GRAD), "bits"),
    "bytes other than 0 and 1": Twist(SAME, (MASK,), "bits"),
    # what kind of tensor it is
    "subclass": Twist(CLOSE, READ, "class"),
    "wrapper subclass": Twist(CLOSE, (INPUT, PARAMETER, MASK, RUNNING), "class"),
    "upstream gradient a wrapper subclass": Twist(EITHER, (GRAD,), "class"),
    "tensor of no memory, all zero": Twist(EITHER, (INPUT, PARAMETER, RUNNING, GRAD), "class"),
    "made in inference mode": Twist(EITHER, (INPUT, PARAMETER, MASK, RUNNING), "class"),
    "sparse": Twist(EITHER, (INPUT, PARAMETER, MASK), "class"),
    "storage resized to nothing": Twist(REFUSED, (INPUT, PARAMETER, MASK, RUNNING), "class"),
    "storage a byte too short": Twist(REFUSED, (INPUT, PARAMETER, MASK, RUNNING), "class"),
    "upstream gradient without storage": Twist(EITHER, (GRAD,), "class"),
    "on the meta device": Twist(REFUSED, (INPUT, PARAMETER, MASK, RUNNING), "class"),
    "no floating dtype": Twist(EITHER, (PARAMETER, RUNNING), "class"),
    "wrong dtype": Twist(REFUSED, (INPUT, MASK), "class"),
    "wrong size": Twist(REFUSED, (PARAMETER, MASK, RUNNING), "class"),
    "no tensor": Twist(REFUSED, (INPUT, MASK), "class"),
    # what a hook on saved tensors hands back in place of one of them, or of all
    "saved: copied to contiguous memory": Twist(SAME, group="saved"),
    "saved: save_on_cpu": Twist(SAME, group="saved"),
    "saved: gaps": Twist(SAME, group="saved"),
    "saved: permuted": Twist(CLOSE, group="saved"),
    "saved: negative bit": Twist(CLOSE, group="saved"),
    "saved: wrapper subclass": Twist(EITHER, group="saved"),
    "saved: one value less": Twist(EITHER, group="saved"),
    "saved: first value alone": Twist(EITHER, group="saved"),
    "saved: twice as long": Twist(EITHER, group="saved"),
    "saved: other dtype": Twist(EITHER, group="saved"),
    "saved: meta": Twist(EITHER, group="saved"),
    "saved: storage resized to nothing": Twist(EITHER, group="saved"),
    "saved: storage a byte too short": Twist(EITHER, group="saved"),
    "saved: mask of another shape": Twist(EITHER, group="saved"),
    "saved: sparse": Twist(EITHER, group="saved"),
    "saved: None": Twist(EITHER, group="saved"),
    # what happens to a tensor between forward and backward
    "later: data of another size": Twist(EITHER, (INPUT, PARAMETER), "later"),
    "later: data of another dtype": Twist(EITHER, (INPUT, PARAMETER), "later"),
    "later: data with gaps": Twist(EITHER, (INPUT, PARAMETER), "later"),
    "later: other values in data": Twist(ANY, (INPUT, PARAMETER), "later"),
    "later: storage resized to nothing": Twist(EITHER, SAVED, "later"),
    "later: storage a byte too short": Twist(EITHER, SAVED, "later"),
    "later: changed in place": Twist(EITHER, SAVED, "later"),
    "later: freed": Twist(SAME, group="later"),  # whatever needs no gradient
    # around the call
    "default device meta": Twist(CLOSE, group="call"),
    "default dtype float64": Twist(CLOSE, group="call"),
    "under a dispatch mode": Twist(CLOSE, group="call"),
    "without gradients": Twist(SAME, group="call"),
    "inference mode": Twist(SAME, group="call"),
    "second derivative": Twist(CLOSE, group="call"),
    "backward twice": Twist(SAME, group="call"),
}

_ORDER = (SAME, CLOSE, EITHER, REFUSED, ANY)  # of two twists the later one decides


def expected(plan: Plan) -> str:
    found = [SAME]
    for name, role in plan.twists:
        expect = TWISTS[name].expect
        if name == "permuted" and role in ("x", "grad") and plan.family == "column":
            expect = CLOSE
        if name == "expanded" and role in plan.written and prod(plan.roles[role][1]) > 1:
            moved = prod(plan.shape) and plan.options.get("running", True)  # else nothing is written
            expect = REFUSED if moved else EITHER
        if expect == SAME and role in plan.written:
            expect = CLOSE  # kernels move dense statistics themselves, torch's operators the others: a rounding apart
        if expect == SAME and TWISTS[name].group == "saved" and "group_scaling" in plan.options:
            expect = CLOSE  # torch's operators, which scale there, sum in another order in another layout
        if expect == REFUSED and role == "running_nu" and (not plan.needs or plan.has("without gradients")):
            expect = EITHER  # nothing moves it then
        found.append(expect)
    return max(found, key=_ORDER.index)


# ---- the draw --------------------------------------------------------------------------------------------------------

FAMILY = {
    "layer": "row", "rms": "row", "scale": "row", "residual": "row", "batch": "column", "instance": "column",
    "group": "column", "power": "column", "dyt": "pointwise", "derf": "pointwise",
}  # fmt: skip
WIDTHS = (1, 1, 2, 3, 4, 7, 8, 12, 15, 16, 17, 31, 32, 33, 64, 65, 130, 257)
COUNTS = (1, 2, 2, 3, 4, 5, 7, 9)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NOT_FLOATS = (torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn)


@dataclass
class Plan:
    seed: int
    op: str
    form: str  # "layer" or "function"
    shape: tuple[int, ...]
    dtype: torch.dtype
    training: bool
    channel: int = -1  # of a column norm
    axes: int = 1  # normalized by a row norm
    options: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # role -> kind, shape
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    written: tuple[str, ...] = ()  # running statistics this call moves
    needs: tuple[str, ...] = ()  # roles that require a gradient
    lengths: bool = False  # the mask as lengths
    padding: str = "values"  # what stands in padded cells
    scale: tuple[float, float] = (1.0, 0.0)
    twists: list[tuple[str, str]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    isa: int = 0

    @property
    def family(self) -> str:
        return FAMILY[self.op]

    @property
    def random(self) -> random.Random:
        """For the details of a case, the same every time."""
        return random.Random(self.seed * 2 + 1)

    def has(self, name: str) -> bool:
        return any(n == name for n, _ in self.twists)

    def __str__(self) -> str:
        short = lambda d: str(d).replace("torch.", "")  # noqa: E731
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        dtypes = ", ".join(f"{r} {short(d)}" for r, d in self.dtypes.items() if d != self.dtype)
        twists = "; ".join(f"{role} {name}" if role else name for name, role in self.twists)
        walls = ", ".join(f"{r}: {p}" for r, p in self.places.items() if p != "heap")
        masked = ("lengths" if self.lengths else "mask") if "mask" in self.roles else "no mask"
        return (
            f"{self.op} {self.form}({options}) {'training' if self.training else 'eval'}, x {self.shape} {short(self.dtype)} "
            f"channel {self.channel}, {masked}, padding {self.padding}, gradients of {'/'.join(self.needs) or 'nothing'}, "
            f"[{dtypes}], threads {self.threads}, isa {self.isa} | {walls or 'no wall'} | {twists or 'no twist'} | "
            f"{expected(self)}"
        )


def draw(seed: int) -> Plan:
    r = random.Random(seed)
    op = r.choice(tuple(FAMILY))
    dtype = r.choices(FLOATS, (45, 20, 20, 15))[0]
    plan = Plan(seed, op, r.choice(("layer", "function")), (), dtype, r.random() < 0.7)
    _draw_shape(plan, r)
    _draw_options(plan, r)
    _draw_roles(plan, r)
    plan.scale = r.choice(((1.0, 0.0), (1.0, 0.0), (1.0, 3.0), (1e-3, 0.0), (30.0, -5.0)))
    plan.padding = r.choice(("values", "NaN", "Inf"))
    plan.threads, plan.isa = r.choice((1, 1, 2, 4)), r.randrange(8)
    differentiable = [x for x, (kind, _) in plan.roles.items() if kind in (INPUT, PARAMETER)]
    plan.needs = tuple(x for x in differentiable if r.random() < 0.8)
    _draw_twists(plan, r)
    constant = [
        role for name, role in plan.twists if name in ("made in inference mode", "no floating dtype", "wrong dtype")
    ]
    plan.needs = tuple(role for role in plan.needs if role not in constant)
    for role in plan.roles:
        plan.places[role] = r.choices(("heap", "wall behind", "wall before"), (50, 42, 8))[0]
    return plan


def _draw_shape(plan: Plan, r: random.Random) -> None:
    width = r.choice(WIDTHS) if r.random() < 0.97 else r.choice((1024, 2048, 4099))
    dims = r.choice((1, 2, 2, 3, 3, 4)) if plan.family != "column" else r.choice((2, 3, 3, 4, 4, 5))
    if r.random() < 0.01:
        plan.shape = ()
        return
    others = [r.choice(COUNTS) for _ in range(dims - 1)]
    if r.random() < 0.15 and others:  # enough rows for several threads
        others[0] = r.choice((33, 70))
    if r.random() < 0.04 and others:
        others[r.randrange(len(others))] = 0
    while others and prod(others) * width > 12000 and max(others) > 1:
        others[others.index(max(others))] = 1
    if plan.family == "column":
        channel = r.choice((dims - 1, 1, 1, r.randrange(1, dims)))
        plan.shape = (*others[:channel], width, *others[channel:])
        plan.channel = r.choice((channel, channel - dims))
    else:
        plan.shape = (*others, width)
        if plan.op in ("layer", "rms") and len(plan.shape) > 1 and r.random() < 0.15:
            plan.axes = 2


def _draw_options(plan: Plan, r: random.Random) -> None:
    o = plan.options
    layer, op = plan.form == "layer", plan.op
    width = plan.shape[plan.channel] if plan.shape else 4
    if plan.family != "pointwise":
        o["eps"] = r.choice((1e-5, 1e-5, 1e-5, 1e-5, 1e-12, 1e-2, 1.0, 1e-30, 1e30))
        if op == "scale" and o["eps"] == 1.0:
            o["eps"] = 0.97  # 16-bit values of exactly 1 would stand on the bend of max(|x|, eps)
    if op in ("layer", "rms", "residual", "batch", "instance", "group"):
        o["gain"] = r.choice(("direct", "direct", "offset"))
    if op in ("layer", "rms", "residual"):
        o["round_before_gain"] = r.random() < 0.3
    if op == "rms" and plan.shape and r.random() < 0.3:
        size = prod(plan.shape[-plan.axes :])
        o["partial"] = r.choice((0.3, 0.5, 1.0)) if layer else r.randint(1, max(size, 1))
    if op == "residual":
        o.update(norm=r.choice(("layer", "rms")), alpha=r.choice((1.0, 1.0, 0.7, 2.5)), dropout=r.choice((0.0, 0.0, 0.3)),
                 return_stream=r.random() < 0.5)  # fmt: skip
    if op == "group":
        o["num_groups"] = r.choice([g for g in (1, 2, 3, 4, 8, width) if width % g == 0] or [1])
        if layer and r.random() < 0.2:
            o["causal"] = "position"
    if op == "batch" and layer:
        o["momentum"] = r.choice((0.1, 0.1, 0.5, 1.0, None))
        variant = r.choice((None, None, None, "ghost_size", "renorm", "position", "running", "frozen"))
        if variant == "ghost_size":
            o["ghost_size"] = r.choice((1, 2, 3))
        elif variant == "renorm":
            o["renorm"] = (3.0, 5.0)
        elif variant == "frozen":
            o["frozen"] = True
        elif variant:
            o["causal"] = variant
        if variant is None and r.random() < 0.15:
            o["track_running_stats"] = False
    if op == "batch" and not layer:
        o["momentum"] = r.choice((0.1, 0.5, 1.0))
    if op == "instance" and layer:
        o["track_running_stats"] = r.random() < 0.5
        o["momentum"] = r.choice((0.1, 0.5, None))
    if op == "power":
        o["running"] = r.random() < 0.7
        o["warmup_steps"] = r.choice((0, 3))
        o["alpha_forward"], o["alpha_backward"] = r.choice((0.9, 0.5)), r.choice((0.9, 0.5))
        if layer and r.random() < 0.2:
            o["group_scaling"] = r.choice([g for g in (1, 2, 3, 4) if width % g == 0])
        if layer and not o["running"]:
            o["track_running_stats"] = r.random() < 0.5


def _draw_roles(plan: Plan, r: random.Random) -> None:
    shape, op, o = plan.shape, plan.op, plan.options
    roles = plan.roles
    roles["x"] = (INPUT, shape)
    if op == "residual":
        roles["branch"] = (INPUT, shape)
    width = () if not shape else (shape[plan.channel],)
    if plan.axes > 1:
        width = shape[-plan.axes :]
    if op in ("dyt", "derf"):
        roles["alpha"] = (PARAMETER, (1,))
        if op == "derf":
            roles["shift"] = (PARAMETER, (1,))
    affine = r.random() < 0.9
    weight, bias = affine, affine and r.random() < 0.75 and op != "scale"
    if plan.form == "function" and op != "scale" and r.random() < 0.1:
        weight, bias = False, True  # torch has no such layer, the functions take it
    if weight:
        roles["weight"] = (PARAMETER, (1,) if op == "scale" else width)
    if bias:
        roles["bias"] = (PARAMETER, width)
    tracked = op == "batch" or (op == "instance" and plan.form == "layer")
    if tracked and (r.random() < 0.85 if plan.form == "function" else o.get("track_running_stats", True)):
        roles["running_mean"] = roles["running_var"] = (RUNNING, width)
    if op == "power" and o.get("track_running_stats", True):
        roles["running_psi2"] = roles["running_nu"] = (RUNNING, width)
    positions = shape[: -plan.axes]
    if plan.family == "column" and shape:
        positions = tuple(n for a, n in enumerate(shape) if a != plan.channel % len(shape))
    if shape and r.random() < 0.4:
        roles["mask"] = (MASK, positions)
        plan.lengths = len(positions) == 2 and r.random() < 0.25
    roles["grad"] = (GRAD, shape)
    if o.get("return_stream"):
        roles["grad_stream"] = (GRAD, shape)
        lost = r.choice(("grad", "grad_stream", "", ""))  # an output nobody uses
        roles.pop(lost, None)
    if plan.training and not o.get("frozen"):
        plan.written = tuple(x for x, (kind, _) in roles.items() if kind == RUNNING)
    own = r.choice((plan.dtype, plan.dtype, torch.float32))
    mixed = r.random() < 0.12
    for role, (kind, _) in roles.items():
        if kind in (PARAMETER, RUNNING):
            plan.dtypes[role] = r.choice(FLOATS) if mixed else own
    if "renorm" in o:  # its gain is computed in the dtype of the running statistics
        plan.dtypes = {role: torch.float64 if plan.dtype == torch.float64 else torch.float32 for role in plan.dtypes}


def _draw_twists(plan: Plan, r: random.Random) -> None:
    taken: set[tuple[str, str]] = set()
    for _ in range(r.choices((0, 1, 2, 3), (10, 50, 25, 15))[0]):
        name = r.choice(tuple(TWISTS))
        twist = TWISTS[name]
        role = ""
        if twist.kinds:
            # kinds first, so that masks and statistics come as often as parameters
            present = {kind for kind, _ in plan.roles.values()} & set(twist.kinds)
            if not present:
                continue
            kind = r.choice(sorted(present))
            role = r.choice([x for x, (k, _) in plan.roles.items() if k == kind])
        if not _possible(plan, name, twist, role):
            continue
        where = (twist.group, role if twist.group in ("layout", "bits", "class") else "")
        wrong = twist.expect in (EITHER, REFUSED, ANY)
        if where in taken or (wrong and any(TWISTS[n].expect in (EITHER, REFUSED, ANY) for n, _ in plan.twists)):
            continue
        taken.add(where)
        plan.twists.append((name, role))


SOME_VALUES = (  # twists of a tensor that has any
    "expanded", "overlapping", "storage resized to nothing", "later: storage resized to nothing",
    "storage a byte too short", "later: storage a byte too short", "upstream gradient without storage", "wrong size",
)  # fmt: skip


def _possible(plan: Plan, name: str, twist: Twist, role: str) -> bool:
    shape = plan.roles[role][1] if role else plan.shape
    together = {name, *(n for n, _ in plan.twists)}
    own = {name, *(n for n, owner in plan.twists if owner == role)}
    groups = {TWISTS[n].group for n in together}
    if role == "mask" and plan.lengths:
        return name == "wrong size" and plan.shape[0] > 0
    if name in SOME_VALUES and not (role == "mask" and name == "wrong size") and not (shape and prod(shape)):
        return False
    if name == "imaginary part of a conjugate" and plan.dtypes.get(role, plan.dtype) not in FLOATS[:2]:
        return False
    if any(TWISTS[n].group == "bits" for n in own) and own & {"no floating dtype", "wrong size"}:
        return False
    # below a wrapper's dispatch torch overlooks the negative bit of what is inside, in its own layer_norm as well
    if own & {"negative bit", "imaginary part of a conjugate"} and any("wrapper subclass" in n for n in own):
        return False
    if name == "on the meta device" and not set(plan.roles) - {role, "grad", "grad_stream"}:
        return False  # nothing is on the CPU then: a case for the route of other devices, not a refusal
    if "inference mode" in together and any("wrapper subclass" in n for n in together):
        return False  # torch cannot give a wrapper's result there a version of its own
    if "imaginary part of a conjugate" in own and role in plan.written:
        return False  # torch's copy_ into one fails on an assertion of its own
    negative = any(n == "negative bit" and owner in plan.written for n, owner in [*plan.twists, (name, role)])
    if negative and together & {"under a dispatch mode", "subclass"}:
        return False  # the same assertion, wherever a registered op writes to it
    if name in ("without gradients", "inference mode"):
        return not groups & {"saved", "later"}
    if twist.group in ("saved", "later") or name in ("second derivative", "backward twice"):
        if not plan.needs or plan.has("without gradients") or plan.has("inference mode"):
            return False
        # torch's own ops, between ours in these variants, take what a hook hands back without a check
        if twist.expect == EITHER and ("renorm" in plan.options or "group_scaling" in plan.options):
            return False
    if "data" in name and twist.group == "later" and (role not in plan.needs or not prod(shape)):
        return False
    return not (
        (name == "made in inference mode" and role in plan.written)  # torch writes first and raises then
        or (
            "subclass" in together and any("wrapper subclass" in n for n in together)
        )  # one cannot be made of the other
        or ({"saved", "later"} <= groups and "later: freed" not in together)  # with hooks nobody notices changes
        or (name in ("no tensor", "wrong dtype") and role == "branch")
        # ops of torch's own, which do not look for storage either
        or (name == "upstream gradient without storage" and role == "grad_stream")
        or {"upstream gradient without storage", "second derivative"} <= together
        or {"later: data of another dtype", "second derivative"} <= together
        # registered ops, which serve these, have no second derivative
        or ("second derivative" in together and together & {"wrapper subclass", "under a dispatch mode", "subclass"})
    )
