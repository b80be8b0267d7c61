"""Every private name of torch that normlab uses, and what stands in for each where torch has it no longer.

A private name may go with any release; nothing but this module would notice. Names are bound once, when this module is
imported, and read without a detour, because some of them stand in calls of a microsecond. What a stand-in costs is said at
each. Not here: methods of ``nn.Module`` that a layer overrides for torch to call (``_load_from_state_dict``, ``_version``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd import Function, forward_ad

# ---- what surrounds a call -------------------------------------------------------------------------------------------


class _Untransformed(Function):
    """Has no ``setup_context``: torch refuses to apply it under a functional transform."""

    @staticmethod
    def forward(ctx: Any) -> None:  # type: ignore[override]
        return None


def _transforms_by_refusal() -> bool:
    try:
        _Untransformed.apply()
    except RuntimeError:
        return True
    return False


# Is a functional transform (vmap, grad, jvp) active? Without it: found by what torch refuses, microseconds per call.
are_transforms_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", _transforms_by_refusal
)

# The number of dispatch modes (fake tensors, tracing, counters of operations). Without it every call counts as being under
# one and goes to the registered ops: right everywhere, slower, and without second derivatives.
dispatch_depth: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def _level_by_refusal() -> int:
    """torch allows one level: whether another is refused says whether there is one."""
    try:
        level = forward_ad.enter_dual_level()
    except RuntimeError:
        return 0
    forward_ad.exit_dual_level(level=level)
    return level - 1


class _AskedEachTime(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return _level_by_refusal()


# ``forward_mode[LEVEL] >= 0`` inside forward-mode differentiation: the variable itself in torch's module, because a function
# around it costs three times as much as reading it. Without it: found by what torch refuses, microseconds per call.
LEVEL = "_current_level"
forward_mode: Mapping[str, int] = vars(forward_ad) if hasattr(forward_ad, LEVEL) else _AskedEachTime()

if hasattr(forward_ad, LEVEL):

    def _forward_level() -> int:
        return forward_ad._current_level
else:
    _forward_level = _level_by_refusal


def in_transform() -> bool:
    """Inside a functional transform or forward-mode differentiation? Unlike ``forward_mode``, this can be traced."""
    return are_transforms_active() or _forward_level() >= 0


def _task_by_stack() -> int:
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.utils.checkpoint.__file__ and code.co_name in ("backward", "recompute_fn"):
            return 0
        frame = frame.f_back  # type: ignore[assignment]
    return -1


# The number of the backward pass this call is part of, -1 outside: a forward inside one is activation checkpointing.
# Without it: torch's checkpointing is looked for on the stack, microseconds per call; that of other libraries is missed.
graph_task_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _task_by_stack)


# ---- calls without their wrappers ------------------------------------------------------------------------------------


def direct_apply(function: type[Function]) -> Callable[..., Any]:
    """``function.apply`` without its Python wrapper, a third of the cost of a small forward: what the wrapper does
    (functional transforms, default arguments) has been ruled out by the route that leads here. Backward is likewise
    called directly; torch's wrapper only finds out whether it is named ``backward`` or ``vjp``.

    Where torch has changed this: the wrappers, a microsecond or two per call."""
    inner, back = getattr(super(Function, function), "apply", None), vars(function).get("_backward_cls")
    if inner is None or back is None:
        return function.apply
    back.apply = function.backward
    return inner


# The C table through which the extension looks into tensors. Without it, as in older versions of torch: addresses and sizes
# go across one by one, microseconds per call.
exchange_table: Any = getattr(Tensor, "__dlpack_c_exchange_api__", None)


# Zeros without memory, which torch makes for gradients that are none. Without it: nothing is one, and a tensor without memory
# is refused.
is_zero_tensor: Callable[[Tensor], bool] = getattr(Tensor, "_is_zerotensor", lambda t: False)


# Many small tensors at once. Without them: one by one, slower recorded steps.
def _norms(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.linalg.vector_norm(t) for t in tensors]


def _differences(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    return [a - b for a, b in zip(left, right, strict=True)]


foreach_norm: Callable[[list[Tensor]], Any] = getattr(torch, "_foreach_norm", _norms)
foreach_sub: Callable[[list[Tensor], list[Tensor]], Any] = getattr(torch, "_foreach_sub", _differences)


# ---- inside a module -------------------------------------------------------------------------------------------------


class _NoneWhereAbsent(dict[str, Any]):
    """Named buffers leave out those that are None."""

    def __missing__(self, name: str) -> None:
        return None


# A module's own parameters and buffers by name, without the half microsecond of a module's attribute lookup. Without them:
# torch's iterators, microseconds per call.


def own_parameters(module: nn.Module) -> dict[str, Any]:
    try:
        return module._parameters
    except AttributeError:
        return dict(module.named_parameters(recurse=False))


def own_buffers(module: nn.Module) -> dict[str, Any]:
    try:
        return module._buffers
    except AttributeError:
        return _NoneWhereAbsent(module.named_buffers(recurse=False))


def own_parameter(module: nn.Module, name: str) -> Any:
    """A parameter by name; a parametrized one has moved and is computed."""
    try:
        own = module._parameters
    except AttributeError:
        return getattr(module, name)
    return own[name] if name in own else getattr(module, name)


def has_hooks(module: nn.Module, aside: str) -> bool:
    """Must it be called, so that its hooks fire? Forward hooks with a true attribute ``aside`` do not count.

    Where torch does not say: yes, and sum and norm are two kernels."""
    try:
        if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return True
        return any(not getattr(hook, aside, False) for hook in module._forward_hooks.values())
    except AttributeError:
        return True


def uncompiled(model: nn.Module) -> nn.Module | None:
    """What ``torch.compile`` made this from, or None. Without the attribute: the only child of torch's wrapper."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ == "OptimizedModule":
        (inner,) = model.children()
    return inner


# ---- the graph that autograd makes -----------------------------------------------------------------------------------

# Nodes of a graph are numbered as they are made, in each thread; these read a node's number and the next one. Without them:
# no number, and the graph of a training step tells nothing of which call made which node.
nodes_made: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)

# Around what must not be seen by modes that see every function: a watch's own computations under its own mode. Without it: seen,
# microseconds per operator.
unseen: Callable[[], Any] = getattr(torch._C, "DisableTorchFunction", contextlib.nullcontext)

# The base of modes that see every operator; it lies in a private module of torch, and nothing public stands in for it.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # noqa: E402


def version_of(t: Tensor) -> int:
    """How often a tensor was written to. Where torch does not say: never the same."""
    return getattr(t, "_version", -1)


def node_number(node: Any) -> int:
    """The number of a node of autograd's graph; of what accumulates gradients, very large."""
    try:
        return node._sequence_nr()
    except AttributeError:
        return 0


def node_shapes(node: Any) -> list[tuple[int, ...]]:
    """The shapes of what a node of autograd's graph stands for, one per output. Where torch does not say: none."""
    try:
        return [tuple(facts.shape) for facts in node._input_metadata]
    except (AttributeError, RuntimeError):
        return []
