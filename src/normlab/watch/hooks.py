"""Where the watch looks: hooks on a model's norms, residual sums, blocks and attention. They change nothing.

Registered once; on idle steps each is one flag test (and each block's largest value, for the trace). Of a recorded step the
first forward in training mode counts: later micro-batches, evaluations and recomputations pass by.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import surgery
from .._torch import graph_task_id
from ..placements import Residual
from .budget import Budget
from .frames import AttentionFrame, BlockFrame, NormFrame
from .masks import Masks
from .trace import Trace, carrier

Ask = Callable[[str, str, Any], None]  # (occasion, site, frame)


class Hooks:
    """Of one model. ``wanted``: the occasions that some probe asks for. ``ask`` gets every frame; ``forget``: what it got of
    this step was an evaluation."""

    def __init__(
        self, model: nn.Module, *, wanted: Callable[[], set[str]], ask: Ask, forget: Callable[[], None], budget: Budget,
        trace: Trace | None, scaler: Any,
    ) -> None:  # fmt: skip
        self.model, self.wanted, self.ask, self.forget = model, wanted, ask, forget
        self.budget, self.trace, self.scaler = budget, trace, scaler
        self.norms, self.blocks = surgery.find_norms(model), surgery.find_blocks(model)
        self.active = False  # is this step recorded?
        self.fired: set[str] = set()  # norms seen in it
        self.attention_calls = 0
        self._masks = Masks(model)
        self._by_norm = {id(site.module): site for site in self.norms}
        self._running_before: dict[str, tuple[Tensor, Tensor]] = {}
        self._handles: list[Any] = []
        self._mode: _SeeAttention | None = None
        self._seen_training = False
        self._forwards = 0
        self._forget()

    def begin(self, active: bool) -> None:
        """The next step, recorded or not."""
        self.active = active
        if active:
            self._forwards = 0
            self._forget()

    def _forget(self) -> None:
        self.fired = set()
        self._with_gradient: set[str] = set()
        self._blocks_seen: set[str] = set()
        self._attention_sites: set[str] = set()
        self._inside: list[str] = []  # blocks that are running, the innermost last

    # ---- on and off

    def register(self) -> None:
        model, wanted = self.model, self.wanted()
        keep = self._handles.append
        keep(model.register_forward_pre_hook(self._enter, with_kwargs=True))
        keep(model.register_forward_hook(self.leave, always_call=True))
        if wanted & {"norm", "norm gradient"}:
            for site in self.norms:
                keep(site.module.register_forward_hook(self._norm_hook(site)))
                if running_statistics(site.module) is not None:
                    keep(site.module.register_forward_pre_hook(self._running_hook(site)))
            for _, residual in surgery.find_residuals(model):
                keep(residual.register_forward_hook(self._residual_hook))
        if "attention" in wanted:
            for module in model.modules():
                if isinstance(module, nn.MultiheadAttention):
                    keep(module.register_forward_pre_hook(self._multihead_hook, with_kwargs=True))
        for block in self.blocks:
            keep(block.module.register_forward_pre_hook(self._block_pre_hook(block)))
            keep(block.module.register_forward_hook(self._block_hook(block), always_call=True))

    def unregister(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # ---- the model as a whole

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.trace is not None:
            self.trace.begin()
        if not self.active or (self._forwards and (self._seen_training or not module.training)):
            return  # idle, or a later micro-batch of the step
        with self.budget:
            if self._forwards:  # what was seen so far was an evaluation; this is the step
                self._forget()
                self.forget()
            self._forwards += 1
            self._seen_training = module.training
            self._masks.find(module, args, kwargs)
            self.attention_calls = 0
            if self._mode is None and "attention" in self.wanted():
                self._mode = _SeeAttention(self._see_attention)
                self._mode.__enter__()

    def leave(self, *_: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    # ---- norms

    def _norm_hook(self, site: surgery.NormSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.active and args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self._see_norm(site, args[0], output)

        hook.passive = True  # type: ignore[attr-defined]  # fused sums stay fused: _residual_hook sees their norms
        return hook

    def _running_hook(self, site: surgery.NormSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if self.active and site.name not in self.fired:
                with self.budget:
                    running = running_statistics(module)
                    if running is not None:
                        self._running_before[site.name] = (running[0].detach().clone(), running[1].detach().clone())

        return hook

    def _residual_hook(self, module: Residual, args: Any, output: Any) -> None:
        """A norm fused with its sum is never called itself: what went through it passes here."""
        if not self.active or len(args) < 3 or args[2] is None or not isinstance(output, tuple):
            return
        site = self._by_norm.get(id(args[2]))
        if site is not None and site.name not in self.fired:
            self._see_norm(site, output[0], output[1])

    def _see_norm(self, site: surgery.NormSite, x: Tensor, y: Tensor) -> None:
        with self.budget:
            again, first = recomputing(), site.name not in self.fired
            if not again:
                self.fired.add(site.name)
            if not first and not (again and site.name not in self._with_gradient):
                return
            mask = self._masks.fitting(site.name, x, site.channel_dim)
            x, y_value = x.detach(), y.detach()
            training = site.module.training
            if first and not again:
                running = self._running_before.pop(site.name, None)
                self.ask("norm", site.name, NormFrame(site, x, y_value, mask, None, training, running))
            if y.requires_grad and "norm gradient" in self.wanted():
                self._with_gradient.add(site.name)

                def see(grad: Tensor) -> None:
                    if self.active:
                        with self.budget:
                            frame = NormFrame(site, x, y_value, mask, self._unscaled(grad), training)
                            self.ask("norm gradient", site.name, frame)

                y.register_hook(see)

    def _unscaled(self, grad: Tensor) -> Tensor:
        grad = grad.detach()
        return grad if self.scaler is None else grad / self.scaler.get_scale()

    # ---- blocks

    def _block_pre_hook(self, block: surgery.BlockSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if self.active:
                self._inside.append(block.name)

        return hook

    def _block_hook(self, block: surgery.BlockSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self._inside and self._inside[-1] == block.name:
                self._inside.pop()
            if recomputing() or not (self.active or self.trace is not None):
                return
            with self.budget:
                carries = carrier(output)
                if carries is None:
                    return
                if self.trace is not None:
                    self.trace.note(block.name, output)
                if self.active and block.name not in self._blocks_seen:
                    self._blocks_seen.add(block.name)
                    self._see_block(block, args[0] if args else None, output, carries)

        return hook

    def _see_block(self, block: surgery.BlockSite, given: Any, output: Any, carries: Tensor) -> None:
        x, y = surgery.stream_of(given), surgery.stream_of(output)
        mask = None if y is None else self._masks.fitting(block.name, y)
        frame = BlockFrame(block, None if x is None else x.detach(), None if y is None else y.detach(), mask)
        self.ask("block", block.name, frame)
        if carries.requires_grad and "block gradient" in self.wanted():

            def see(grad: Tensor) -> None:
                if self.active:
                    with self.budget:
                        frame = BlockFrame(block, None, None, mask, self._unscaled(grad))
                        self.ask("block gradient", block.name, frame)

            carries.register_hook(see)

    # ---- attention

    def _see_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        if recomputing() or query.dim() != 4:
            return
        with self.budget:
            self.attention_calls += 1
            site = f"{self._inside[-1] if self._inside else 'model'}.attention"
            if site in self._attention_sites:  # a second one in this block: cross-attention
                site = f"{site}.{self.attention_calls}"
            self._attention_sites.add(site)
            factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
            self.ask("attention", site, AttentionFrame(site, query, key, attn_mask, is_causal, factor))

    def _multihead_hook(self, module: nn.MultiheadAttention, args: Any, kwargs: Any) -> None:
        """torch's own attention shows nothing of its inside: queries and keys are computed here once more."""
        if not self.active or recomputing() or self._forwards > 1:
            return
        with self.budget:
            seen = _queries_and_keys(module, inspect.signature(module.forward).bind(*args, **kwargs).arguments)
        if seen is not None:
            q, k, allowed = seen
            self._see_attention(q, k, k, allowed)


class _SeeAttention(TorchFunctionMode):
    """Lets scaled_dot_product_attention through and shows its queries and keys."""

    def __init__(self, see: Callable[..., None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.see(*args, **kwargs)
        return func(*args, **kwargs)


def recomputing() -> bool:
    """Inside a backward pass a forward is a recomputation (activation checkpointing)."""
    return graph_task_id() != -1


def running_statistics(module: Any) -> tuple[Tensor, Tensor] | None:
    """Running mean and variance; of a PowerNorm, zero and its mean square."""
    if getattr(module, "running_psi2", None) is not None:
        return torch.zeros_like(module.running_psi2), module.running_psi2
    if getattr(module, "running_mean", None) is not None:
        return module.running_mean, module.running_var
    return None


@torch.no_grad()
def _queries_and_keys(module: nn.MultiheadAttention, given: Any) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """(B, H, L, width) each, and what may be looked at; None where queries and keys have matrices of other forms."""
    query, key, width = given["query"], given["key"], module.embed_dim
    if module.in_proj_weight is None or query.dim() != 3:
        return None
    bias = module.in_proj_bias
    parts = []
    for x, at in ((query, 0), (key, width)):
        y = nn.functional.linear(
            x.detach(), module.in_proj_weight[at : at + width], None if bias is None else bias[at : at + width]
        )
        y = y if module.batch_first else y.transpose(0, 1)
        parts.append(y.unflatten(-1, (module.num_heads, -1)).transpose(1, 2))
    allowed = None
    for mask, shape in ((given.get("attn_mask"), None), (given.get("key_padding_mask"), (len(parts[0]), 1, 1, -1))):
        if mask is not None:
            may = ~mask if mask.dtype == torch.bool else mask > -1e4
            if shape is not None:
                may = may.view(shape)
            elif may.dim() == 3:
                may = may.view(-1, module.num_heads, *may.shape[1:])
            allowed = may if allowed is None else allowed & may
    return parts[0], parts[1], allowed
