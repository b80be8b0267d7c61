"""Where the watch looks: hooks on a model's norms, residual sums, blocks and attention. They change nothing.

On idle steps there are hooks on blocks alone, for the trace: each block's extremes. Of a recorded step the first forward in training
mode counts: later micro-batches, evaluations and recomputations pass by. A forward without gradients finds no hook inside the
model: torch's fast paths, which look for hooks, run as they would without a watch. A hook that fails is switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import surgery
from ..placements import Pending, Residual
from ..surgery.capture import may_take_more, tensors_in
from ..surgery.find import GIVEN_MORE
from .attention import SeeAttention, of_module
from .budget import Budget
from .calls import drops, first_given, recomputing, running_statistics
from .faults import OutputFrame, answers_of
from .features import Features
from .frames import AttentionFrame, BlockFrame, NormFrame
from .guard import Failed, Guard
from .masks import Masks
from .padding import inferred
from .placement import Placement
from .trace import Trace, carrier

Ask = Callable[[str, str, Any], None]  # (occasion, site, frame)


class Hooks:
    """Of one model. ``wanted``: the occasions that some probe asks for. ``ask`` gets every frame; ``forget``: what it got of
    this step was an evaluation."""

    def __init__(
        self, model: nn.Module, *, wanted: Callable[[], set[str]], ask: Ask, forget: Callable[[], None], budget: Budget,
        trace: Trace | None, scaler: Any, failed: Failed,
    ) -> None:  # fmt: skip
        self.model, self.wanted, self.ask, self.forget = model, wanted, ask, forget
        self.budget, self.trace, self.scaler = budget, trace, scaler
        survey = surgery.survey(model)
        self.norms, self.blocks = survey.norms, surgery.find_blocks(model)
        self.active = False  # is this step recorded?
        self.fired: set[str] = set()  # norms seen in it
        self.set_aside: dict[str, str] = {}  # norms that were called as what they are not, and how
        self._seen_as: dict[str, surgery.NormSite] = {}  # facts at the width that came by, where the module tells none
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # a counted forward's arguments, while it runs
        self.keeps_call = False
        self.first_call: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # for a check of causality
        self.attention_calls = 0
        self._masks = Masks(model)
        self.features = Features(self.blocks, self.norms)
        self._by_norm = {id(site.module): site for site in self.norms}
        self._residuals = surgery.find_residuals(model)
        self._tellers = [  # they tell how a mask lies, or compute attention out of sight
            (n, m) for n, m in model.named_modules() if isinstance(m, (nn.MultiheadAttention, nn.Embedding))
        ]
        self._running_before: dict[str, tuple[Tensor, Tensor]] = {}
        self._guard = Guard(failed)
        self.placement = Placement(model, survey, self._guard, budget)
        self._outer: list[Any] = []  # handles of hooks on the model itself
        self._inner: list[Any] = []  # on what is inside of it, in recorded steps
        self._at_blocks: list[Any] = []  # and on its blocks, in every step that has a trace
        self._registered = self._running = False
        self._mode: SeeAttention | None = None
        self.attention_sites: list[str] = []  # of all steps, in the order they were first seen
        self.missed: dict[str, str] = {}  # block: what may be attention in it and cannot be read
        self._seen_training = False
        self._forwards = 0
        self._forget()

    def begin(self, active: bool) -> None:
        """The next step, recorded or not."""
        self.active = active
        self.placement.forget()  # what the last step did not complete
        with self.budget:
            if not active:
                self._take_off(self._inner)
            if self._registered:
                self._attach()
        if active:
            self._forwards = 0
            self._forget()
            if self._registered:
                self.placement.expect()

    def _forget(self) -> None:
        self.fired = set()
        self.blocks_seen: set[str] = set()
        self.with_gradient: set[str] = set()  # blocks whose gradient came by
        self._norms_asked: set[str] = set()  # norms whose gradient will
        self._blocks_asked: set[str] = set()
        self._attention_names: set[str] = set()
        self.features.unknown = set()
        self._inside: list[str] = []  # blocks that are running, the innermost last
        self._open: dict[int, tuple[Tensor, surgery.BlockSite, Any]] = {}  # by branch: sums with dropout to come
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}  # by branch: how those came out

    # ---- on and off

    def register(self) -> None:
        model = self.model
        self._registered = True
        self._outer = [
            model.register_forward_pre_hook(self._guard("enter", self._enter), with_kwargs=True),
            model.register_forward_hook(self._leave_hook, always_call=True),
        ]
        self._attach()
        if self.active:
            self.placement.expect()

    def _attach(self) -> None:
        """What this step needs and is not there yet."""
        guard = self._guard
        if not self._at_blocks and (self.active or self.trace is not None):
            keep = self._at_blocks.append
            for block in self.blocks:
                what = f"block {block.name}"
                keep(block.module.register_forward_pre_hook(guard(what, self._block_pre_hook(block))))
                after = guard(what, self._block_hook(block))
                keep(block.module.register_forward_hook(after, with_kwargs=True, always_call=True))
        if self._inner or not self.active:
            return
        keep = self._inner.append
        for site in self.norms:
            hook = guard(f"norm {site.name}", self._norm_hook(site))
            keep(site.module.register_forward_hook(hook, with_kwargs=True))
            if running_statistics(site.module) is not None:
                keep(site.module.register_forward_pre_hook(guard(f"norm {site.name}", self._running_hook(site))))
        for name, residual in self._residuals:
            keep(residual.register_forward_hook(guard(f"sum {name}", self._residual_hook)))
        for name, module in self._tellers:
            if isinstance(module, nn.MultiheadAttention):
                hook = guard(f"attention {name}", self._multihead_hook)
                keep(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                keep(module.register_forward_hook(guard(f"embedding {name}", self._embedding_hook)))

    @staticmethod
    def _take_off(handles: list[Any]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()

    def _detach(self) -> None:
        self.placement.forget()
        self._take_off(self._inner)
        self._take_off(self._at_blocks)

    def unregister(self) -> None:
        self._detach()
        self._take_off(self._outer)
        self._registered = False

    # ---- the model as a whole

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() and not recomputing():
            self._detach()  # until the next forward that trains
            return
        self._attach()
        self._running = True
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
            self.given = (args, kwargs)
            if self.keeps_call:
                self.first_call, self.keeps_call = self.given, False
            self.attention_calls = 0
            # Without a probe of attention the first recorded step looks all the same: its sites have names in the run.
            if self._mode is None and ("attention" in self.wanted() or not self.attention_sites):
                self.missed = {}
                self._mode = SeeAttention(
                    self._guard("attention", self._see_attention), self._in_a_block, self._miss_attention
                )
                self._mode.__enter__()

    def _leave_hook(self, module: nn.Module, args: Any, output: Any) -> None:
        counted = self.given is not None and self.active
        failed = output is None and sys.exc_info()[0] is not None  # torch calls this hook while the error is on its way
        if counted and not failed:
            self._guard("output", self._see_output)(output)
        self.leave()
        if counted and failed:
            self._guard("enter", self._again)()

    def _again(self) -> None:
        """A forward that raised is none: the step's is the one that is tried in its place."""
        self._forwards = 0
        self._forget()
        self.forget()
        self.placement.again()

    def _see_output(self, output: Any) -> None:
        with self.budget:
            y = answers_of(output) if "output" in self.wanted() else None
            if y is not None:
                self.ask("output", "model", OutputFrame(y.detach(), self._masks.of_answers(y)))

    def leave(self) -> None:
        self.given = None
        self._masks.done()
        self._running = False
        self._open, self._sums = {}, {}
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _embedding_hook(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.active and self.given is not None and self._masks.asks and args:
            with self.budget:
                self._masks.embedded(args[0], output)

    @property
    def measured(self) -> list[surgery.NormSite]:
        """The norms whose facts are known as they are used."""
        sites = (self._seen_as.get(site.name, site) for site in self.norms if site.name not in self.set_aside)
        return [site for site in sites if site.square == "mean"]

    @property
    def masks_unused(self) -> dict[str, str]:
        return self._masks.unused

    # ---- norms

    def _norm_hook(self, site: surgery.NormSite) -> Callable[..., None]:
        open_ = may_take_more(site.module)

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self.active and isinstance(output, Tensor) and isinstance(x := first_given(args, kwargs), Tensor):
                if open_ and sum(t.is_floating_point() for t in tensors_in((args, kwargs))) > 1:
                    self.set_aside[site.name] = GIVEN_MORE
                elif site.name not in self.set_aside:
                    self._see_norm(site, x, output)

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
        """A norm fused with its sum is never called itself: what went through it passes here. So does a sum with dropout that a
        block left open."""
        if not self.active or len(args) < 2:
            return
        if id(args[1]) in self._open:
            self._see_sum(module, args, output)
        if len(args) < 3 or args[2] is None or not isinstance(output, tuple):
            return
        site = self._by_norm.get(id(args[2]))
        if site is not None and site.name not in self.fired:
            self._see_norm(site, output[0], output[1])

    def _see_norm(self, site: surgery.NormSite, x: Tensor, y: Tensor) -> None:
        with self.budget:
            again, first = recomputing(), site.name not in self.fired
            if not again:
                self.fired.add(site.name)
            if not first and not (again and site.name not in self._norms_asked):
                return
            if x.is_nested or not x.numel():
                return
            if site.square != "mean":
                site = self._seen_as[site.name] = site.at(x.shape[site.channel_dim])
            if not self.wanted() & {"norm", "norm gradient"}:
                return
            mask = self._masks.fitting(site.name, x, site.channel_dim)
            if mask is None and site.kind == "batch" and self.given is not None:
                padded = inferred((*self.given[0], *self.given[1].values()))
                mask = self._masks.like(site.name, padded, x, site.channel_dim)
            x, y_value = x.detach(), y.detach()
            training = site.module.training
            if first and not again:
                running = self._running_before.pop(site.name, None)
                self.ask("norm", site.name, NormFrame(site, x, y_value, mask, None, training, running))
            if y.requires_grad and "norm gradient" in self.wanted():
                self._norms_asked.add(site.name)

                def see(grad: Tensor) -> None:
                    if self.active:
                        with self.budget:
                            frame = NormFrame(site, x, y_value, mask, self._unscaled(grad), training)
                            self.ask("norm gradient", site.name, frame)

                y.register_hook(self._guard(f"gradient {site.name}", see))

    def _unscaled(self, grad: Tensor) -> Tensor:
        grad = grad.detach()
        return grad if self.scaler is None else grad / self.scaler.get_scale()

    # ---- blocks

    def _block_pre_hook(self, block: surgery.BlockSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if not self._running and not module.training and not torch.is_grad_enabled():
                self._detach()  # a part of the model is evaluated by itself
            elif self.active:
                self._inside.append(block.name)

        return hook

    def _block_hook(self, block: surgery.BlockSite) -> Callable[..., None]:
        trace, budget, name = self.trace, self.budget, block.name

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self.active:
                self._see_output_of(block, args, kwargs, output)
            elif trace is not None and not recomputing():  # of every step: as little as it takes
                began = budget.clock()
                trace.note(name, output)
                budget.spent += budget.clock() - began

        return hook

    def _see_output_of(self, block: surgery.BlockSite, args: Any, kwargs: Any, output: Any) -> None:
        if self._inside and self._inside[-1] == block.name:
            self._inside.pop()
        with self.budget:
            carries, again, seen = carrier(output), recomputing(), block.name in self.blocks_seen
            if again and carries is not None and seen:
                self._ask_gradient(block, carries)  # a checkpoint that re-enters: the first pass had no graph
            if again:
                return
            self.blocks_seen.add(block.name)
            if carries is None:
                return
            if self.trace is not None:
                self.trace.note(block.name, output)
            if seen:
                return
            if isinstance(output, Pending) and output.branch is not None and drops(output.residual):
                self._open[id(output.branch)] = (output.branch, block, first_given(args, kwargs))
            else:
                self._see_block(block, first_given(args, kwargs), output, carries)

    def _see_block(self, block: surgery.BlockSite, given: Any, output: Any, carries: Tensor | None) -> None:
        x, y = self._stream(given), surgery.stream_of(output)
        axis = -1 if y is None else self.features.axis(block.name, y)
        mask = None if y is None else self._masks.fitting(block.name, y, axis)
        x, y = (None if t is None else t.detach() for t in (x, y))
        frame = BlockFrame(block, x, y, mask, channel_dim=axis)
        self.ask("block", block.name, frame)
        if carries is not None:
            self._ask_gradient(block, carries)

    def _stream(self, given: Any) -> Tensor | None:
        """What entered; an open sum with dropout is what it came to, once it was carried out."""
        if isinstance(given, Pending) and given.branch is not None and id(given.branch) in self._sums:
            return self._sums[id(given.branch)][1]
        return surgery.stream_of(given)

    def _ask_gradient(self, block: surgery.BlockSite, carries: Tensor) -> None:
        if carries.requires_grad and block.name not in self._blocks_asked and "block gradient" in self.wanted():
            self._blocks_asked.add(block.name)

            def see(grad: Tensor) -> None:
                self._see_gradient(block, grad)

            carries.register_hook(self._guard(f"gradient {block.name}", see))

    def _see_gradient(self, block: surgery.BlockSite, grad: Tensor) -> None:
        if self.active:
            with self.budget:
                self.with_gradient.add(block.name)
                frame = BlockFrame(block, None, None, None, self._unscaled(grad))
                self.ask("block gradient", block.name, frame)

    def _see_sum(self, residual: Residual, args: Any, output: Any) -> None:
        """The sum that a block left open has been carried out, with its dropout. If a norm was fused with it, the gradient of the
        sum appears nowhere but in what the function hands back to x."""
        with self.budget:
            x, (branch, block, given) = args[0], self._open.pop(id(args[1]))
            stream = output[0] if isinstance(output, tuple) else output
            self._sums[id(branch)] = (branch, stream.detach())
            if not isinstance(output, tuple) or output[0].grad_fn is not output[1].grad_fn:
                self._see_block(block, given, stream, stream)
                return
            self._see_block(block, given, stream, None)
            node = stream.grad_fn
            if node is not None and "block gradient" in self.wanted():
                self._blocks_asked.add(block.name)

                def see(to_inputs: Any, _: Any) -> None:
                    if to_inputs and isinstance(to_inputs[0], Tensor) and to_inputs[0].shape == x.shape:
                        self._see_gradient(block, to_inputs[0] / residual.alpha)

                node.register_hook(self._guard(f"gradient {block.name}", see))

    # ---- attention

    def _in_a_block(self) -> bool:
        """The model's own computation in a block, not a probe's."""
        return bool(self._inside) and not self.budget.measuring

    def _see_attention(self, frame: AttentionFrame) -> None:
        if recomputing() or (frame.q is not None and not frame.q.numel()):
            return
        if frame.q is not None and frame.q.dim() != 4:
            self._miss_attention(f"queries of {frame.q.dim()} axes, not of 4")
            return
        with self.budget:
            self.attention_calls += 1
            site = f"{self._inside[-1] if self._inside else 'model'}.attention"
            if site in self._attention_names:  # a second one in this block: cross-attention
                site = f"{site}.{self.attention_calls}"
            self._attention_names.add(site)
            if site not in self.attention_sites:
                self.attention_sites.append(site)
            if "attention" in self.wanted():
                self.ask("attention", site, replace(frame, site=site))

    def _multihead_hook(self, module: nn.MultiheadAttention, args: Any, kwargs: Any = None) -> None:
        if not self.active or kwargs is None or recomputing() or self.given is None:
            return
        with self.budget:
            self._masks.attended(first_given(args, kwargs), module.batch_first)
            frame = None if self._mode is None else of_module(module, args, kwargs)
        if frame is not None:
            self._see_attention(frame)
        elif self._mode is not None:
            self._miss_attention("nn.MultiheadAttention with keys of another width, or without a batch")

    def _miss_attention(self, why: str) -> None:
        if not recomputing():
            self.missed.setdefault(self._inside[-1] if self._inside else "model", why)
