"""Attach to a model, measure while it trains, change nothing.

Hooks are registered once. On idle steps each is one flag test (blocks also note their largest value, for the trace that
leads up to a non-finite one). On recorded steps probes reduce on the device; the scalars travel to the host in one copy.
Which steps are recorded follows from the cadence and from the budget: the time spent measuring is counted, and a step is
recorded only while its expected price is within an opening credit and, over 1000 steps, within ``max_overhead``.
"""

from __future__ import annotations

import platform
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import __version__, surgery
from .._torch import uncompiled
from ..errors import unknown
from ..runs import Writer
from . import causality
from .budget import LEAN, WHOLE, Budget
from .cadence import Cadence
from .coverage import covered, told
from .faults import Accumulated
from .folder import make_room
from .frames import OCCASIONS, PRICES, NormProbe, Probe, StepFrame
from .guard import Guard
from .hooks import Hooks
from .memory import remembered, remind
from .optimizers import description_of
from .quantities import presets
from .readings import Losses, Values, per_stack, to_host
from .suspension import suspended
from .together import Together, by_site
from .trace import Trace


class Watch:
    """See :func:`watch`."""

    def __init__(
        self, model: nn.Module, *, optimizer: torch.optim.Optimizer | None, out: str | Path | Writer, preset: str,
        probes: Sequence[Probe], every: int | str, max_overhead: float | None, config: Any, scaler: Any,
        trace: bool, also: Sequence[Any], after: int, overwrite: bool, leaks: Any, info: dict[str, Any],
    ) -> None:  # fmt: skip
        self.budget = Budget(max_overhead, opening=after == 0)
        self.cadence = Cadence(every)
        self.probes = [*presets(preset), *probes]
        for probe in self.probes:
            if probe.on not in OCCASIONS:
                raise ValueError(unknown("occasion of a probe", probe.on, OCCASIONS))
        self._lean = [probe for probe in self.probes if probe.price == PRICES[0]]
        self._asked: list[Probe] = self.probes  # on this step: all, or the lean ones
        inside = uncompiled(model)
        inner = model if inside is None else inside  # with DistributedDataParallel, which sums gradients
        self.model: nn.Module = inner.module if isinstance(inner, nn.parallel.DistributedDataParallel) else inner
        self.outer, self.inner = model, inner
        self.trace = Trace() if trace else None
        self.sinks = list(also)
        self.hooks = Hooks(
            self.model, wanted=lambda: {p.on for p in self._asked}, ask=self._ask, forget=self._forget,
            budget=self.budget, trace=self.trace, scaler=scaler, failed=self._hook_failed,
        )  # fmt: skip
        self.steps = self._after = after
        self.hooks.keeps_call = leaks is True
        if not isinstance(leaks, bool):
            info = {**info, "leaks": leaks}
        self._values: Values = {}
        self._together = Together()
        self._before: dict[nn.Parameter, Tensor] = {}
        self._own: dict[str, list[nn.Parameter]] = {}  # parameters by block, around the optimizer's step
        self._covered: dict[str, Any] | None = None
        self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self._world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.writer = self._open(out, preset, config, {**description_of(self.model, optimizer), **info}, overwrite)
        self._closes_writer = not isinstance(out, Writer)
        self._losses = Losses(self.writer)
        self._last_due = self.budget.clock()
        self._how: str | None = None
        self._said = False
        self._restore: Callable[[], None] = lambda: None
        if inside is not None:
            self._eager_on_recorded_steps()
        else:
            self.hooks.register()
        self._hook_optimizer(optimizer)
        self._decide()

    @property
    def recorded(self) -> int:
        return self.budget.recorded

    @property
    def norms(self) -> list[surgery.NormSite]:
        return self.hooks.norms

    @property
    def blocks(self) -> list[surgery.BlockSite]:
        return self.hooks.blocks

    def _open(
        self, out: str | Path | Writer, preset: str, config: Any, info: dict[str, Any], overwrite: bool
    ) -> Writer | None:
        if self._rank:
            return None
        about = {
            **info, "config": config, "seed": torch.initial_seed(), "preset": preset, "every": self.cadence.text,
            "max_overhead": self.budget.max_overhead, "probes": [p.name for p in self.probes], "processes": self._world,
            "versions": {"normlab": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
            "sites": {"norms": {s.name: s.kind for s in self.norms}, "blocks": [b.name for b in self.blocks]},
        }  # fmt: skip
        if not isinstance(out, Writer):
            if not self._after:
                make_room(Path(out), overwrite)
            return Writer(out, about, again=self._after > 0, after=self._after or None)
        out.update(**{k: v for k, v in about.items() if k not in out.info})
        return out

    def _eager_on_recorded_steps(self) -> None:
        """A compiled model runs compiled on idle steps; a recorded one goes through the eager module, with hooks."""
        outer, compiled_forward, eager = self.outer, self.outer.forward, self.inner

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.hooks.active:
                return compiled_forward(*args, **kwargs)
            self.hooks.register()
            try:
                return eager(*args, **kwargs)
            finally:
                self.hooks.unregister()

        outer.forward = forward  # type: ignore[method-assign]
        self._restore = lambda: setattr(outer, "forward", compiled_forward)

    # ---- asking

    def _ask(self, occasion: str, site: str, frame: Any) -> None:
        """Every probe of that occasion. ``site`` is empty where one answers for all of its sites at once."""
        asked = [p for p in self._asked if p.on == occasion]
        if occasion == "norm" and Together.fits(frame):
            if any(isinstance(p, NormProbe) for p in asked):
                self._together.keep(frame)
            asked = [p for p in asked if not isinstance(p, NormProbe)]
        for probe in asked:
            self._measure(probe, site, lambda probe=probe: probe.measure(frame))  # type: ignore[misc]

    def _measure(self, probe: Probe, site: str, how: Callable[[], Mapping[str, Any]]) -> None:
        try:
            with torch.no_grad():
                found = how()
            for quantity, value in found.items():
                kept = self._values.setdefault(quantity, {})
                if site:
                    kept[site] = value
                else:
                    kept.update(value)
        except Exception as error:  # a probe must never stop training
            for asked in (self.probes, self._lean):
                if probe in asked:
                    asked.remove(probe)
            message = f"probe {probe.name} failed and is switched off ({type(error).__name__}: {error})"
            warnings.warn(f"normlab.watch: {message}", stacklevel=2)
            if self.writer is not None:
                where = site or None
                self.writer.event(self.steps + 1, "probe failed", probe=probe.name, site=where, error=str(error))

    def _hook_failed(self, what: str, error: BaseException) -> None:
        message = f"the hook of {what} failed and is switched off ({type(error).__name__}: {error})"
        warnings.warn(f"normlab.watch: {message}", stacklevel=2)
        if self.writer is not None:
            self.writer.event(self.steps + 1, "hook failed", hook=what, error=str(error))

    def _forget(self) -> None:
        self._values = {}
        self._together.forget()

    # ---- the optimizer

    def _hook_optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._optimizer_handles: list[Any] = []
        self.optimizer = optimizer
        # Of several processes each one's hooks see its own gradients alone.
        self._gradients = Accumulated(self.model if optimizer is not None and self._world == 1 else None, self.budget)
        if optimizer is not None:
            me = weakref.proxy(self)
            guard = Guard(lambda what, error: me._hook_failed(what, error))
            self._look = guard("before step", lambda: me._before_step())
            after = guard("after step", lambda *_: me._after_step())
            self._optimizer_handles = [
                optimizer.register_step_pre_hook(lambda _, args, kwargs: me._about_to_step(args, kwargs)),
                optimizer.register_step_post_hook(after),
            ]

    def _about_to_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer that is given a closure has no gradients yet: they are read when the closure has run."""
        if not self.hooks.active:
            return None
        # torch hands the optimizer over as the first positional argument of the hook's args.
        place, closure = next(((i, a) for i, a in enumerate(args) if callable(a)), (None, kwargs.get("closure")))
        if closure is None:
            self._look()
            return None

        def then_look(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            self._look()
            return result

        if place is None:
            return args, {**kwargs, "closure": then_look}
        return (*args[:place], then_look, *args[place + 1 :]), kwargs

    def _frame(self) -> StepFrame:
        first = not self.recorded and not self._after
        return StepFrame(self.model, self.hooks.measured, self.blocks, self._before, first, self._own)

    def _before_step(self) -> None:
        if not self.hooks.active:
            return
        with self.budget:
            self._own = {block.name: list(block.module.parameters()) for block in self.blocks}
            self._ask("before step", "", self._frame())
            self._values.update(self._gradients.measure())
            if any(p.on == "after step" for p in self._asked):
                moving = [p for own in self._own.values() for p in own if p.requires_grad]
                self._before = {p: p.detach().clone() for p in moving}

    def _after_step(self) -> None:
        self._gradients.stepped()
        if not self.hooks.active:
            return
        with self.budget:
            self._ask("after step", "", self._frame())
            self._before, self._own = {}, {}

    # ---- steps

    def step(self, loss: Any = None, **values: float) -> None:
        """After each optimizer step: the loss, and any numbers of your own to record with it."""
        self.steps += 1
        with self.budget:
            if loss is not None:
                self._losses.add(self.steps, loss)
            for name, value in values.items():
                self._values.setdefault(name, {})["model"] = value
            if self.trace is not None:
                event = self.trace.step(self.steps, loss, self.hooks.active)
                if event is not None and self.writer is not None:
                    self._losses.flush()
                    self.writer.event(self.steps, "nonfinite", **event)
            if self.hooks.active:
                if self.optimizer is None:
                    self._ask("before step", "", self._frame())
                self._record()
        self.budget.step_ended(self._how)
        if self.hooks.first_call is not None:
            began, self.hooks.active = self.budget.clock(), False
            causality.answer(self.model, self.hooks.first_call, self.writer, self.steps)
            self.hooks.first_call = None
            self.pause(self.budget.clock() - began)  # it was asked for, and is no overhead
        self._decide()

    def _decide(self) -> None:
        """Is the next step recorded, and how? Cadence proposes, the budget disposes."""
        now = self.budget.clock()
        how = None
        if self.cadence.due(self.steps + 1, now - self._last_due):
            self._last_due = now
            how = self.budget.choose(lean=0 < len(self._lean) < len(self.probes))
        if self._world > 1:  # all processes record the same steps
            ways = (None, LEAN, WHOLE)
            flag = torch.tensor([float(ways.index(how))], device=self._device())
            dist.broadcast(flag, 0)
            how = ways[int(flag.item())]
        self._how = how
        self._asked = self._lean if how == LEAN else self.probes
        self._values, self._before = {}, {}
        self.hooks.begin(how is not None)
        with self.budget:
            self._gradients.begin(how is not None)

    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _record(self) -> None:
        for frames in self._together.groups():
            for probe in [p for p in self._asked if isinstance(p, NormProbe)]:
                self._measure(probe, "", lambda probe=probe, frames=frames: by_site(probe, frames))  # type: ignore[misc]
        values = {q: dict(s) for q, s in self._values.items() if s}
        per_stack(values, self.blocks)
        if self.optimizer is not None:
            values.setdefault("lr", {})["model"] = float(self.optimizer.param_groups[0]["lr"])
        keys = [(q, s) for q, sites in values.items() for s in sites]
        numbers = to_host([values[q][s] for q, s in keys], self._device(), self._world)
        self._covered = covered(self.hooks, self.outer)
        if self.writer is not None:
            loss = self._losses.flush()
            table: dict[str, dict[str, float]] = {}
            for (q, s), number in zip(keys, numbers, strict=True):
                table.setdefault(q, {})[s] = number
            self.writer.write(self.steps, table)
            self._send(table if loss is None else {"loss": {"model": loss}, **table})
            structure = self.hooks.placement.found
            if structure is not None and "structure" not in self.writer.info:
                self.writer.update(structure=structure.to_dict())
            if self._covered != self.writer.info.get("coverage"):
                sites = {**self.writer.info.get("sites", {}), "attention": self.hooks.attention_sites}
                self.writer.update(coverage=self._covered, sites=sites)

    def _send(self, table: dict[str, dict[str, float]]) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(self.steps, table)
            except Exception as error:  # as with probes: training goes on
                self.sinks.remove(sink)
                name = type(sink).__name__
                warnings.warn(f"normlab.watch: sink {name} failed and is switched off ({error})", stacklevel=2)

    # ---- the end

    def coverage(self) -> str:
        """ "118 of 120 norms fired; 2 skipped: ...", of the last recorded step."""
        return told(self._covered)

    def flush(self) -> None:
        """Write the losses that wait for the next recorded step: before a checkpoint, so that it holds no more than the run."""
        self._losses.flush()

    def state(self) -> dict[str, Tensor]:
        """What the probes remember across steps, for a checkpoint."""
        return remembered(self.probes)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Let the probes remember what :meth:`state` gave: gains at the start and running averages go on."""
        remind(self.probes, state)

    suspended = suspended

    def pause(self, seconds: float) -> None:
        """Time that was not training, an evaluation for example: it does not count when the overhead is held down."""
        self.budget.pause(seconds)

    def overhead(self) -> float:
        """The share of the time since the start that went into measuring."""
        return self.budget.overhead()

    def close(self, status: str = "finished") -> None:
        """Write what is outstanding and take the hooks off."""
        self.hooks.leave()
        self.hooks.unregister()
        self._restore()
        for handle in self._optimizer_handles:
            handle.remove()
        self._gradients.close()
        if self.writer is not None:
            self._losses.flush()
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
            account = {"overhead": round(self.overhead(), 5), "steps": self.steps, "recorded": self.recorded,
                       "recording": self.budget.account()}  # fmt: skip
            advice = self.budget.advice()
            if advice is not None and not self._said:
                print(f"normlab.watch: {advice}", file=sys.stderr)
            if self._closes_writer:
                self.writer.close(status, **account)
            else:
                self.writer.update(**account)
            self.writer = self._losses.writer = None

    def summary(self) -> str:
        """ "13 of 120 steps recorded (13 due), overhead 2.9%", and what to change where that is too little for a diagnosis."""
        found = self.budget.account()
        parts = [f"{found['due']} due"]
        parts += [f"{found[key]} {word}" for key, word in (("lean", "lean"), ("held_back", "held back")) if found[key]]
        text = f"{self.recorded} of {self.steps} steps recorded ({', '.join(parts)}), overhead {self.overhead():.1%}"
        limit = self.budget.max_overhead
        if limit is not None and self.overhead() > limit:
            text += f", within the credit for the opening; held to {limit:.0%} over 1000 steps"
        return text if found["advice"] is None else f"{text}. Note: {found['advice']}"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        status = "finished" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        if self.writer is not None:
            print(f"normlab.watch: {self.summary()}", file=sys.stderr)
            self._said = True
        self.close(status)


@torch.no_grad()
def watch(
    model: nn.Module, *, optimizer: torch.optim.Optimizer | None = None, out: str | Path | Writer, preset: str = "standard",
    probes: Sequence[Probe] = (), every: int | str = 10, max_overhead: float | None = 0.03, config: Any = None,
    scaler: Any = None, trace: bool = True, also: Sequence[Any] = (), after: int = 0, overwrite: bool = False,
    leaks: Any = False, **info: Any,
) -> Watch:  # fmt: skip
    """Measure while the model trains; the run goes to ``out``.

        with normlab.watch(model, optimizer=opt, out="runs/a") as watch:
            for batch in loader:
                loss = step(batch)          # as before
                watch.step(loss=loss)
        print(normlab.diagnose("runs/a"))

    preset        "lite", "standard" or "full"; ``probes`` adds your own
    every         steps (10), seconds ("5s") or "log" (1, 2, 5, 10, 20, 50, ...); the first step is always recorded
    max_overhead  the share of the time that measuring may take over 1000 steps; None: no limit. The first recordings have a
                  credit, at most a tenth of the time of the first 200 steps, so that a short run can be diagnosed
    scaler        a GradScaler, whose factor is taken out of the stream's gradients
    trace         note each block's largest value on every step, to show what led up to a non-finite loss
    also          sinks that get every recorded step as well, see :mod:`normlab.callbacks`
    leaks         True: this model must not see the future, check it with the first batch (a few forwards more, once)
    after         steps the model has behind it: the run in ``out`` goes on from there, later lines of it are dropped
    overwrite     a run that ``out`` holds already is removed; without it that is an error
    out           a folder, or a :class:`normlab.runs.Writer`, which stays open when the watch closes
    config, info  anything JSON can hold; written into run.json

    A padding mask among the model's arguments is found by its name and applied to every quantity. Weights come out
    bit for bit as without the watcher.
    """
    return Watch(model, optimizer=optimizer, out=out, preset=preset, probes=probes, every=every, max_overhead=max_overhead,
                 config=config, scaler=scaler, trace=trace, also=also, after=after, overwrite=overwrite,
                 leaks=leaks, info=info)  # fmt: skip
