"""Attach to a model, measure while it trains, change nothing.

Hooks are registered once. On idle steps each is one flag test (blocks also note their largest value, for the trace that
leads up to a non-finite one). On recorded steps probes reduce on the device; the scalars travel to the host in one copy.
Which steps are recorded follows from the cadence and from ``max_overhead``: the time spent measuring is counted, and a
step is recorded only while its expected price keeps the total under that share.
"""

from __future__ import annotations

import inspect
import json
import math
import platform
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import __version__, sites
from .._torch import graph_task_id, uncompiled
from ..errors import unknown
from ..placements import Pending, Residual
from ..runs import Writer, encode
from .probe import PLACES, PRICES, AttentionFrame, BlockFrame, NormFrame, Probe, StepFrame
from .quantities import PROBES

MASK_NAMES = ("mask", "attention_mask", "padding_mask", "src_key_padding_mask", "source_mask", "target_mask",
              "tgt_key_padding_mask", "decoder_attention_mask")  # fmt: skip
INVERTED = ("src_key_padding_mask", "tgt_key_padding_mask")  # True = padding
OF_THE_DECODER = ("target_mask", "tgt_key_padding_mask", "decoder_attention_mask")
FRAMES = 16  # steps the trace before a non-finite value goes back

Values = dict[str, dict[str, Any]]


def presets(name: str) -> list[Probe]:
    """The probes of a preset: each price includes the cheaper ones."""
    if name not in PRICES:
        raise ValueError(unknown("preset", name, PRICES))
    return [probe() for probe in PROBES if PRICES.index(probe.price) <= PRICES.index(name)]


class Cadence:
    """Which steps are due: "every 10 steps", "every 5 seconds" or "log" (1, 2, 5, 10, 20, 50, ...)."""

    def __init__(self, every: int | str) -> None:
        self.text = every
        self.steps: int | None = None
        self.seconds: float | None = None
        if isinstance(every, int) and every >= 1:
            self.steps = every
        elif isinstance(every, str) and every.endswith("s") and _is_number(every[:-1]) and float(every[:-1]) > 0:
            self.seconds = float(every[:-1])
        elif every != "log":
            raise ValueError(f'every must be a number of steps, seconds as "5s", or "log", got {every!r}')

    def due(self, step: int, since_last: float) -> bool:
        if self.steps is not None:
            return step % self.steps == 0 or step == 1
        if self.seconds is not None:
            return step == 1 or since_last >= self.seconds
        return step in (lead * 10 ** int(math.log10(step)) for lead in (1, 2, 5))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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


class Watch:
    """See :func:`watch`."""

    def __init__(
        self, model: nn.Module, *, optimizer: torch.optim.Optimizer | None, out: str | Path | Writer, preset: str,
        probes: Sequence[Probe], every: int | str, max_overhead: float | None, config: Any, scaler: Any,
        trace: bool, also: Sequence[Any], after: int, info: dict[str, Any],
    ) -> None:  # fmt: skip
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise ValueError(
                f"max_overhead is a share of the time and must lie in (0, 1], or be None, got {max_overhead!r}"
            )
        self.cadence = Cadence(every)
        self.max_overhead = max_overhead
        self.probes = [*presets(preset), *probes]
        for probe in self.probes:
            if probe.on not in PLACES:
                raise ValueError(unknown("place of a probe", probe.on, PLACES))
        self.outer = model
        behind = uncompiled(model)
        self.compiled = behind is not None
        self.inner = inner = model if behind is None else behind  # with DistributedDataParallel, which sums gradients
        self.model: nn.Module = inner.module if isinstance(inner, nn.parallel.DistributedDataParallel) else inner
        self.scaler = scaler
        self.trace = trace
        self.sinks = list(also)
        self.norms, self.blocks = sites.find_norms(self.model), sites.find_blocks(self.model)
        self.masks: dict[str, Tensor] = {}
        parts = {part for name, _ in self.model.named_modules() for part in name.split(".")}
        self._two_stacks = bool(parts & {"decoder", "target"}) and bool(parts & {"encoder", "source"})
        self._running_before: dict[str, tuple[Tensor, Tensor]] = {}
        self.steps = self._after = after
        self.recorded = 0
        self.spent = 0.0
        self._price = 0.0  # seconds, of a recorded step, recent average
        self._spent_before = 0.0
        self._fired: dict[str, int] = {}
        self._gradient_sites: set[str] = set()
        self._values: Values = {}
        self._before: dict[nn.Parameter, Tensor] = {}
        self._losses: list[tuple[int, Any]] = []
        self._pulse: dict[str, Tensor] = {}
        self._ring: deque[dict[str, Any]] = deque(maxlen=FRAMES)
        self._nonfinite = False
        self._attention_calls = 0
        self._forwards = 0
        self._seen_training = False
        self._covered: dict[str, Any] | None = None
        self._running: list[str] = []
        self._mode: _SeeAttention | None = None
        self._handles: list[Any] = []
        self._by_norm = {id(site.module): site for site in self.norms}
        self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self._world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.writer: Writer | None = None
        self._closes_writer = not isinstance(out, Writer)
        if self._rank == 0:
            facts = {
                **info, "config": config, "seed": torch.initial_seed(), "preset": preset, "every": self.cadence.text,
                "max_overhead": max_overhead, "probes": [p.name for p in self.probes], "processes": self._world,
                "versions": {"normlab": __version__, "torch": torch.__version__, "python": platform.python_version()},
                "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
                "sites": {"norms": {s.name: s.kind for s in self.norms}, "blocks": [b.name for b in self.blocks]},
            }  # fmt: skip
            if isinstance(out, Writer):
                self.writer = out
                self.writer.update(**{k: v for k, v in facts.items() if k not in out.info})
            else:
                self.writer = Writer(out, facts, again=after > 0, after=after or None)
        self._started = self._last = self._last_record = time.perf_counter()
        self.active = self.cadence.due(after + 1, 0.0)
        self._restore: Callable[[], None] = lambda: None
        if self.compiled:
            self._eager_on_recorded_steps()
        else:
            self._register()
        self._hook_optimizer(optimizer)

    # ---- hooks

    def _register(self) -> None:
        model = self.model
        wanted = {probe.on for probe in self.probes}
        self._handles.append(model.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._leave, always_call=True))
        if wanted & {"norm", "norm gradient"}:
            for site in self.norms:
                self._handles.append(site.module.register_forward_hook(self._norm_hook(site)))
                if _running_statistics(site.module) is not None:
                    self._handles.append(site.module.register_forward_pre_hook(self._running_hook(site)))
            for _, residual in sites.find_residuals(model):
                self._handles.append(residual.register_forward_hook(self._residual_hook))
        if "attention" in wanted:
            for module in model.modules():
                if isinstance(module, nn.MultiheadAttention):
                    self._handles.append(module.register_forward_pre_hook(self._multihead_hook, with_kwargs=True))
        for block in self.blocks:
            self._handles.append(block.module.register_forward_pre_hook(self._block_pre_hook(block)))
            self._handles.append(block.module.register_forward_hook(self._block_hook(block), always_call=True))

    def _eager_on_recorded_steps(self) -> None:
        """A compiled model runs compiled on idle steps; a recorded one goes through the eager module, with hooks."""
        outer, compiled_forward, eager = self.outer, self.outer.forward, self.inner

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return compiled_forward(*args, **kwargs)
            self._register()
            try:
                return eager(*args, **kwargs)
            finally:
                self._unregister()

        outer.forward = forward  # type: ignore[method-assign]
        self._restore = lambda: setattr(outer, "forward", compiled_forward)

    def _unregister(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook_optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._optimizer_handles: list[Any] = []
        self.optimizer = optimizer
        if optimizer is not None:
            me = weakref.proxy(self)
            self._optimizer_handles = [
                optimizer.register_step_pre_hook(lambda _, args, kwargs: me._about_to_step(args, kwargs)),
                optimizer.register_step_post_hook(lambda *_: me._after_step()),
            ]

    def _recomputing(self) -> bool:
        return graph_task_id() != -1

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pulse = {}
        if not self.active or (self._forwards and (self._seen_training or not module.training)):
            return  # idle, or a later micro-batch of the step
        start = time.perf_counter()
        if self._forwards:  # what was seen so far was an evaluation; this is the step
            self._fired, self._gradient_sites, self._values = {}, set(), {}
        self._forwards += 1
        self._seen_training = module.training
        self.masks = self._find_masks(module, args, kwargs)
        self._attention_calls = 0
        if self._mode is None and any(p.on == "attention" for p in self.probes):
            self._mode = _SeeAttention(self._see_attention)
            self._mode.__enter__()
        self.spent += time.perf_counter() - start

    def _leave(self, *_: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _find_masks(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        """The padding masks among the model's arguments by name, True = real."""
        try:
            named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        except TypeError:
            named = kwargs
        rest = named.get("kwargs")
        named = {**(rest if isinstance(rest, dict) else {}), **named}
        found = {}
        for name in MASK_NAMES:
            mask = named.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
                found[name] = ~mask.bool() if name in INVERTED else mask.bool()
        return found

    def _mask_for(self, site: str, x: Tensor, channel_dim: int = -1) -> Tensor | None:
        """The mask of x's shape; where both stacks have one of that shape, the site's name decides."""
        places = tuple(n for a, n in enumerate(x.shape) if a != channel_dim % x.dim())
        fitting = {name: mask for name, mask in self.masks.items() if tuple(mask.shape) == places}
        if self._two_stacks:  # a model with a decoder alone may call its mask what it likes
            above = any(part in ("decoder", "target") for part in site.split("."))
            fitting = {n: m for n, m in fitting.items() if (n in OF_THE_DECODER) == above}
        return next(iter(fitting.values()), None)

    def _norm_hook(self, site: sites.NormSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.active and args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self._see_norm(site, args[0], output)

        hook.passive = True  # type: ignore[attr-defined]  # fused sums stay fused: _residual_hook sees their norms
        return hook

    def _running_hook(self, site: sites.NormSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if self.active and site.name not in self._fired:
                start = time.perf_counter()
                running = _running_statistics(module)
                if running is not None:
                    self._running_before[site.name] = (running[0].detach().clone(), running[1].detach().clone())
                self.spent += time.perf_counter() - start

        return hook

    def _residual_hook(self, module: Residual, args: Any, output: Any) -> None:
        """A norm fused with its sum is never called itself: what went through it passes here."""
        if not self.active or len(args) < 3 or args[2] is None or not isinstance(output, tuple):
            return
        site = self._by_norm.get(id(args[2]))
        if site is not None and site.name not in self._fired:
            self._see_norm(site, output[0], output[1])

    def _see_norm(self, site: sites.NormSite, x: Tensor, y: Tensor) -> None:
        start = time.perf_counter()
        again = self._recomputing()
        count = self._fired.get(site.name, 0)
        self._fired[site.name] = count + (not again)
        if count == 0 or (again and site.name not in self._gradient_sites):
            mask = self._mask_for(site.name, x, site.channel_dim)
            x, y_value = x.detach(), y.detach()
            training = site.module.training
            if count == 0 and not again:
                running = self._running_before.pop(site.name, None)
                self._ask("norm", site.name, NormFrame(site, x, y_value, mask, None, training, running))
            if y.requires_grad and any(p.on == "norm gradient" for p in self.probes):
                self._gradient_sites.add(site.name)

                def see(grad: Tensor) -> None:
                    if self.active:
                        began = time.perf_counter()
                        frame = NormFrame(site, x, y_value, mask, self._unscaled(grad), training)
                        self._ask("norm gradient", site.name, frame)
                        self.spent += time.perf_counter() - began

                y.register_hook(see)
        self.spent += time.perf_counter() - start

    def _unscaled(self, grad: Tensor) -> Tensor:
        grad = grad.detach()
        return grad if self.scaler is None else grad / self.scaler.get_scale()

    def _block_pre_hook(self, block: sites.BlockSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if self.active:
                self._running.append(block.name)

        return hook

    def _block_hook(self, block: sites.BlockSite) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self._running and self._running[-1] == block.name:
                self._running.pop()
            if self._recomputing() or not (self.active or self.trace):
                return
            start = time.perf_counter()
            carrier = _carrier(output)
            if carrier is not None and self.trace:
                self._pulse[block.name] = _largest(output)
            if self.active and carrier is not None and self._fired.get("block " + block.name, 0) == 0:
                self._fired["block " + block.name] = 1
                x, y = sites.stream_of(args[0] if args else None), sites.stream_of(output)
                mask = None if y is None else self._mask_for(block.name, y)
                frame = BlockFrame(block, None if x is None else x.detach(), None if y is None else y.detach(), mask)
                self._ask("block", block.name, frame)
                if carrier.requires_grad and any(p.on == "block gradient" for p in self.probes):

                    def see(grad: Tensor) -> None:
                        if self.active:
                            began = time.perf_counter()
                            self._ask(
                                "block gradient", block.name, BlockFrame(block, None, None, mask, self._unscaled(grad))
                            )
                            self.spent += time.perf_counter() - began

                    carrier.register_hook(see)
            self.spent += time.perf_counter() - start

        return hook

    def _see_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        if self._recomputing() or query.dim() != 4:
            return
        start = time.perf_counter()
        self._attention_calls += 1
        inside = self._running[-1] if self._running else "model"
        site = f"{inside}.attention"
        if site in self._values.get("max_logit", {}):  # a second one in this block: cross-attention
            site = f"{inside}.attention.{self._attention_calls}"
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        self._ask("attention", site, AttentionFrame(site, query, key, attn_mask, is_causal, factor))
        self.spent += time.perf_counter() - start

    def _multihead_hook(self, module: nn.MultiheadAttention, args: Any, kwargs: Any) -> None:
        """torch's own attention shows nothing of its inside: queries and keys are computed here once more."""
        if not self.active or self._recomputing() or self._forwards > 1:
            return
        start = time.perf_counter()
        seen = _queries_and_keys(module, inspect.signature(module.forward).bind(*args, **kwargs).arguments)
        self.spent += time.perf_counter() - start
        if seen is not None:
            q, k, allowed = seen
            self._see_attention(q, k, k, allowed)

    # ---- asking

    def _ask(self, place: str, site: str | None, frame: Any) -> None:
        for probe in list(self.probes):
            if probe.on != place:
                continue
            try:
                with torch.no_grad():
                    found = probe.measure(frame)
                for quantity, value in found.items():
                    kept = self._values.setdefault(quantity, {})
                    if site is None:
                        kept.update(value)
                    else:
                        kept[site] = value
            except Exception as error:  # a probe must never stop training
                self.probes.remove(probe)
                message = f"probe {probe.name} failed and is switched off ({type(error).__name__}: {error})"
                warnings.warn(f"normlab.watch: {message}", stacklevel=2)
                if self.writer is not None:
                    self.writer.event(self.steps + 1, "probe failed", probe=probe.name, site=site, error=str(error))

    def _about_to_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer that is given a closure has no gradients yet: they are read when the closure has run."""
        if not self.active:
            return None
        # torch hands the optimizer over as the first positional argument of the hook's args.
        place, closure = next(((i, a) for i, a in enumerate(args) if callable(a)), (None, kwargs.get("closure")))
        if closure is None:
            self._before_step()
            return None

        def then_look(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            self._before_step()
            return result

        if place is None:
            return args, {**kwargs, "closure": then_look}
        return (*args[:place], then_look, *args[place + 1 :]), kwargs

    def _before_step(self) -> None:
        if not self.active:
            return
        start = time.perf_counter()
        self._ask("before step", None, StepFrame(self.model, self.norms, self.blocks))
        if any(p.on == "after step" for p in self.probes):
            self._before = {
                p: p.detach().clone() for b in self.blocks for p in b.module.parameters() if p.requires_grad
            }
        self.spent += time.perf_counter() - start

    def _after_step(self) -> None:
        if not self.active:
            return
        start = time.perf_counter()
        self._ask("after step", None, StepFrame(self.model, self.norms, self.blocks, self._before))
        self._before = {}
        self.spent += time.perf_counter() - start

    # ---- steps

    def step(self, loss: Any = None, **values: float) -> None:
        """After each optimizer step: the loss, and any numbers of your own to record with it."""
        self.steps += 1
        start = time.perf_counter()
        if loss is not None:
            self._losses.append((self.steps, loss.detach() if isinstance(loss, Tensor) else float(loss)))
        for name, value in values.items():
            self._values.setdefault(name, {})["model"] = value
        if self.trace:
            self._look_for_nonfinite(loss)
        if self.active:
            if self.optimizer is None:
                self._ask("before step", None, StepFrame(self.model, self.norms, self.blocks))
            self._record()
        elif len(self._losses) >= 1000:
            self._flush_losses()
        self.spent += time.perf_counter() - start
        if self.active:
            spent_now = self.spent - self._spent_before
            self._price = spent_now if self.recorded <= 2 else 0.7 * self._price + 0.3 * spent_now
        self._decide()
        self._spent_before = self.spent
        self._last = time.perf_counter()

    def _decide(self) -> None:
        """Is the next step recorded? Cadence proposes, the overhead so far disposes."""
        now = time.perf_counter()
        due = self.cadence.due(self.steps + 1, now - self._last_record)
        if due and self.max_overhead is not None and self.recorded:
            elapsed = now - self._started
            due = self.spent + self._price <= self.max_overhead * (elapsed + elapsed / (self.steps - self._after))
        if self._world > 1:  # all processes record the same steps
            flag = torch.tensor([float(due)], device=self._device())
            dist.broadcast(flag, 0)
            due = bool(flag.item())
        self.active = due
        self._values, self._before = {}, {}
        if due:
            self._fired, self._gradient_sites, self._running, self._forwards = {}, set(), [], 0

    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _record(self) -> None:
        values = {q: dict(s) for q, s in self._values.items() if s}
        for stack in dict.fromkeys(block.stack for block in self.blocks):
            names = [block.name for block in self.blocks if block.stack == stack]
            site = "model" if len(names) == len(self.blocks) else stack
            angles = [values["angle"][n] for n in names if n in values.get("angle", {})]
            if len(angles) > 1:
                turns = torch.stack(angles).float()
                values.setdefault("effective_depth", {})[site] = turns.sum() ** 2 / (turns.square().sum() + 1e-30)
            sizes = [values["stream_rms"][n] for n in names if n in values.get("stream_rms", {})]
            if len(sizes) > 1:
                values.setdefault("stream_growth", {})[site] = sizes[-1] / (sizes[0] + 1e-30)
        if self.optimizer is not None:
            values.setdefault("lr", {})["model"] = float(self.optimizer.param_groups[0]["lr"])
        keys = [(q, s) for q, sites_ in values.items() for s in sites_]
        numbers = self._to_host([values[q][s] for q, s in keys])
        self._covered = self._coverage()
        if self.writer is not None:
            loss = self._flush_losses()
            table: dict[str, dict[str, float]] = {}
            for (q, s), number in zip(keys, numbers, strict=True):
                table.setdefault(q, {})[s] = number
            self.writer.write(self.steps, table)
            self._send(table if loss is None else {"loss": {"model": loss}, **table})
            if self._covered != self.writer.info.get("coverage"):
                self.writer.update(coverage=self._covered)
        self.recorded += 1
        self._last_record = time.perf_counter()

    def _send(self, table: dict[str, dict[str, float]]) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(self.steps, table)
            except Exception as error:  # as with probes: training goes on
                self.sinks.remove(sink)
                name = type(sink).__name__
                warnings.warn(f"normlab.watch: sink {name} failed and is switched off ({error})", stacklevel=2)

    def _to_host(self, values: list[Any]) -> list[float]:
        """All scalars in one copy; over several processes, their mean."""
        if not values:
            return []
        device = self._device()
        stacked = torch.stack([torch.as_tensor(v, device=device).detach().double().reshape(()) for v in values])
        if self._world > 1:
            count = torch.tensor([len(values)], device=device)
            counts = [torch.zeros_like(count) for _ in range(self._world)]
            dist.all_gather(counts, count)
            if all(int(c) == len(values) for c in counts):
                dist.all_reduce(stacked)
                stacked /= self._world
        return stacked.tolist()

    def _flush_losses(self) -> float | None:
        """Losses wait on the device until a recorded step; one line each. Returns the last."""
        losses, self._losses = self._losses, []
        if not losses or self.writer is None:
            return None
        on_device = [v for _, v in losses if isinstance(v, Tensor)]
        numbers = iter(torch.stack([v.double().reshape(()) for v in on_device]).tolist() if on_device else [])
        number = math.nan
        for step, value in losses:
            number = next(numbers) if isinstance(value, Tensor) else value
            self.writer.write(step, {"loss": {"model": number}})
        return number

    def _look_for_nonfinite(self, loss: Any) -> None:
        if loss is None or self._nonfinite:
            return
        value = loss.detach() if isinstance(loss, Tensor) else float(loss)
        self._ring.append({"step": self.steps, "loss": value, "blocks": self._pulse})
        self._pulse = {}  # a compiled model has no hooks on idle steps to renew it
        if isinstance(value, Tensor) and value.is_cuda and not self.active:
            return  # no copy to the host on idle steps
        if math.isfinite(float(value)):
            return
        self._nonfinite = True
        frames = [
            {"step": f["step"], "loss": encode(float(f["loss"])),
             "largest": {name: encode(float(v)) for name, v in f["blocks"].items()}}
            for f in self._ring
        ]  # fmt: skip
        first = next((name for name, v in frames[-1]["largest"].items() if isinstance(v, str)), None)
        if self.writer is not None:
            self._flush_losses()
            self.writer.event(self.steps, "nonfinite", site=first, frames=frames)

    # ---- the end

    def _coverage(self) -> dict[str, Any]:
        """``fired`` is None where no probe looks at norms (the preset lite): then nothing was to fire."""
        if not {p.on for p in self.probes} & {"norm", "norm gradient"}:
            return {"norms": len(self.norms), "fired": None, "skipped": {}, "blocks": len(self.blocks),
                    "attention": self._attention_calls}  # fmt: skip
        fired = {site.name for site in self.norms if site.name in self._fired}
        skipped = {s.name: self._why_silent(s) for s in self.norms if s.name not in fired}
        return {"norms": len(self.norms), "fired": len(fired), "skipped": skipped,
                "blocks": len(self.blocks), "attention": self._attention_calls}  # fmt: skip

    def _why_silent(self, site: sites.NormSite) -> str:
        for name, module in self.model.named_modules():
            if (
                isinstance(module, nn.TransformerEncoderLayer)
                and site.name.startswith(name + ".")
                and not module.training
            ):
                return "nn.TransformerEncoderLayer ran its fused path, which calls no norm; train mode or a hook turns it off"
        if isinstance(self.outer, torch.jit.ScriptModule):
            return "a scripted model runs no Python hooks"
        return "its forward was not called in the recorded step"

    def coverage(self) -> str:
        """ "118 of 120 norms fired; 2 skipped: ...", of the last recorded step."""
        found = self._covered
        if found is None:
            return "nothing has been recorded yet"
        if found["fired"] is None:
            return f"{found['norms']} norms, which no probe of this run looks at"
        text = f"{found['fired']} of {found['norms']} norms fired"
        if found["skipped"]:
            text += f"; {len(found['skipped'])} skipped: " + "; ".join(
                f"{n} ({why})" for n, why in found["skipped"].items()
            )
        return text

    def flush(self) -> None:
        """Write the losses that wait for the next recorded step: before a checkpoint, so that it holds no more than the run."""
        self._flush_losses()

    def state(self) -> dict[str, Tensor]:
        """What the probes remember across steps, for a checkpoint: the tensors in their dictionaries."""
        found = {}
        for probe in self.probes:
            for attribute, table in vars(probe).items():
                for key, value in table.items() if isinstance(table, dict) else ():
                    for place, part in enumerate(value) if isinstance(value, tuple) else ((None, value),):
                        if isinstance(part, Tensor):
                            found[json.dumps([probe.name, attribute, key, place])] = part
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Let the probes remember what :meth:`state` gave: gains at the start and running averages go on."""
        probes = {probe.name: probe for probe in self.probes}
        for text, tensor in state.items():
            name, attribute, key, place = json.loads(text)
            if name in probes:
                table = vars(probes[name])[attribute]
                key = tuple(key) if isinstance(key, list) else key
                table[key] = tensor.clone() if place is None else (*table.get(key, ()), tensor.clone())

    def pause(self, seconds: float) -> None:
        """Time that was not training, an evaluation for example: it does not count when the overhead is held down."""
        self._started += seconds

    def overhead(self) -> float:
        """The share of the time since the start that went into measuring."""
        return self.spent / max(time.perf_counter() - self._started, 1e-9)

    def close(self, status: str = "finished") -> None:
        """Write what is outstanding and take the hooks off."""
        self._leave()
        self._unregister()
        self._restore()
        for handle in self._optimizer_handles:
            handle.remove()
        if self.writer is not None:
            self._flush_losses()
            if (
                self.recorded == 0 and self._after == 0 and status == "finished"
            ):  # a resumed run's last steps may be idle
                warnings.warn(
                    "normlab.watch: nothing was recorded; call watch.step(loss=...) after each step", stacklevel=2
                )
            for sink in self.sinks:
                try:
                    sink.close()
                except Exception as error:
                    warnings.warn(f"normlab.watch: sink {type(sink).__name__} did not close ({error})", stacklevel=2)
            facts = {"overhead": round(self.overhead(), 5), "steps": self.steps, "recorded": self.recorded}
            if self._closes_writer:
                self.writer.close(status, **facts)
            else:
                self.writer.update(**facts)
            self.writer = None

    def summary(self) -> str:
        return f"{self.recorded} of {self.steps} steps recorded, overhead {self.overhead():.1%}"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        status = "finished" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        if self.writer is not None:
            print(f"normlab.watch: {self.summary()}", file=sys.stderr)
        self.close(status)


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


def _running_statistics(module: Any) -> tuple[Tensor, Tensor] | None:
    """Running mean and variance; of a PowerNorm, zero and its mean square."""
    if getattr(module, "running_psi2", None) is not None:
        return torch.zeros_like(module.running_psi2), module.running_psi2
    if getattr(module, "running_mean", None) is not None:
        return module.running_mean, module.running_var
    return None


def _carrier(value: Any) -> Tensor | None:
    """The tensor whose gradient is the gradient of the stream."""
    if isinstance(value, Pending):  # x also feeds the branch, so its gradient is not that of the sum
        return value.x if value.branch is None else value.branch
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    return _carrier(value[0]) if isinstance(value, (tuple, list)) and value else None


def _largest(value: Any) -> Tensor:
    """Largest absolute value; NaN if there is one. (The maximum norm of linalg takes ten times as long on a CPU.)"""
    if isinstance(value, Pending) and value.branch is not None:
        return torch.maximum(_largest(value.x), _largest(value.branch))
    carrier = _carrier(value)
    assert carrier is not None
    low, high = torch.aminmax(carrier.detach())
    return torch.maximum(high, -low)


def watch(
    model: nn.Module, *, optimizer: torch.optim.Optimizer | None = None, out: str | Path | Writer, preset: str = "standard",
    probes: Sequence[Probe] = (), every: int | str = 10, max_overhead: float | None = 0.03, config: Any = None,
    scaler: Any = None, trace: bool = True, also: Sequence[Any] = (), after: int = 0, **info: Any,
) -> Watch:  # fmt: skip
    """Measure while the model trains; the run goes to ``out``.

        with normlab.watch(model, optimizer=opt, out="runs/a") as watch:
            for batch in loader:
                loss = step(batch)          # as before
                watch.step(loss=loss)
        print(normlab.diagnose("runs/a"))

    preset        "lite", "standard" or "full"; ``probes`` adds your own
    every         steps (10), seconds ("5s") or "log" (1, 2, 5, 10, 20, 50, ...); the first step is always recorded
    max_overhead  the share of the time that measuring may take; None: no limit
    scaler        a GradScaler, whose factor is taken out of the stream's gradients
    trace         note each block's largest value on every step, to show what led up to a non-finite loss
    also          sinks that get every recorded step as well, see :mod:`normlab.callbacks`
    after         steps the model has behind it: the run in ``out`` goes on from there, later lines of it are dropped
    out           a folder, or a :class:`normlab.runs.Writer`, which stays open when the watch closes
    config, info  anything JSON can hold; written into run.json

    A padding mask among the model's arguments is found by its name and applied to every quantity. Weights come out
    bit for bit as without the watcher.
    """
    return Watch(model, optimizer=optimizer, out=out, preset=preset, probes=probes, every=every, max_overhead=max_overhead,
                 config=config, scaler=scaler, trace=trace, also=also, after=after, info=info)  # fmt: skip
