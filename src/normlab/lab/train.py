"""One experiment, one run directory: train, evaluate, watch, save, go on after a kill; the same bits every time.

The ends are told apart. *trained*, *untrained*, *collapsed* and *diverged* are results. Collapsed is finite but not 2 % better than a
predictor that never sees its input; untrained is the same while the loss still falls; diverged is a loss that is no number, with its
step and the first block that showed it. *failed* means the program broke; its traceback is kept in the run. Data order depends on the seed and the step alone, so that all
cells of a sweep see the same batches and a resumed run goes on with the right one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import __version__, machine
from ..diagnosis import diagnose
from ..errors import RunUnreadable, require
from ..runs import INFO, READINGS, Result, Run, TrialFinding, Writer
from ..watch import watch
from . import asked, checkpoint, tasks
from .batches import evaluate, shares
from .experiment import Experiment
from .folders import sole_writer, storage_failed
from .parts import make_model, make_optimizer, task_of
from .work import Work

CHECKPOINT_SECONDS = 30.0
_prepare_16_bit_once = functools.cache(machine.prepare_16_bit)  # it starts a process that imports torch
# A model that has collapsed to the frequencies of its targets can end a hair below them: better means by this share.
MARGIN = 0.02
STILL_FALLING = (
    0.01  # share by which the held-out loss fell over the second half: what sets untrained apart from collapsed
)
RECORDED = 12  # steps of a run that the watch records, at least: what a diagnosis needs


class Stopped(Exception):
    """Raised by ``on_step`` to end a run between two steps; it is saved and can be resumed."""


def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    on_step: Callable[[int, float], None] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    keep_weights: bool = False,
    work: Work | None = None,
    wait: float = 0.0,
) -> Result:
    """Train to the end, from where the folder's last checkpoint left off if there is one; returns the result.

    A folder whose run is finished is not trained again. ``on_step(step, loss)`` is called after every step and may raise
    :class:`Stopped`. ``work``, if it was measured, gives the share of the machine's rate. ``wait`` is how long to
    wait for another process that still writes to the folder. Under torchrun every process calls this alike.
    """
    require("training", "lab", *checkpoint.NEEDS)
    folder = Path(folder).absolute()  # a factory that changes the working folder does not move the run
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    with contextlib.ExitStack() as held:
        if rank == 0:
            held.enter_context(sole_writer(folder, wait=wait))
        if (folder / INFO).exists():
            run = Run(folder)
            if changed := Experiment.of_run(run).differences(experiment):
                raise ValueError(
                    f"{folder} holds another experiment: {', '.join(changed)} differ; choose another folder"
                )
            if run.info["status"] == "finished" and isinstance(result := run.info.get("result"), dict):
                return Result.from_dict(result)
        return _Training(experiment, folder, on_step, checkpoint_seconds, keep_weights, work).run()


def attempt(experiment: Experiment, folder: Path, **how: Any) -> Result:
    """:func:`train`, with a program that breaks as a result of its own. A disk that cannot be written still raises."""
    try:
        return train(experiment, folder, **how)
    except Stopped:
        raise
    except (Exception, SystemExit) as error:
        if storage_failed(error, folder):
            raise
        return failed(error)


def failed(error: BaseException | str) -> Result:
    return Result(outcome="failed", error=error if isinstance(error, str) else f"{type(error).__name__}: {error}")


class _Training:
    """The state of one run while it trains."""

    def __init__(
        self, experiment: Experiment, folder: Path, on_step: Callable[[int, float], None] | None,
        checkpoint_seconds: float, keep_weights: bool, work: Work | None,
    ) -> None:  # fmt: skip
        self.experiment, self.folder, self.on_step = experiment, folder, on_step
        self.checkpoint_seconds, self.keep_weights, self.work = checkpoint_seconds, keep_weights, work
        self.processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.rank = dist.get_rank() if self.processes > 1 else 0
        self.step = 0
        self.first_loss = math.nan
        self.recent: list[float] = []  # training losses of the last tenth of the steps
        self.curve: list[tuple[int, float]] = []
        self.last_evaluation: dict[str, float | None] = {}
        self.tokens = self.size = 0  # seen; of a step, where it is known
        self.stepping = self.evaluating = self.earlier = 0.0  # seconds; earlier: of the runs before a resume
        self.gradient_norm = math.nan
        self.probes: dict[str, Tensor] = {}  # what they remembered at the checkpoint

    def run(self) -> Result:
        started = time.perf_counter()
        threads = torch.get_num_threads()
        writer: Writer | None = None
        info: dict[str, Any] = {
            "experiment": self.experiment.to_dict(), "seed": self.experiment.seed, "result": None, "traceback": None,
            "machine": {**machine.description(), "threads": self.experiment.threads},
            "versions": {"normlab": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip
        try:
            if self.experiment.precision == "bfloat16":
                _prepare_16_bit_once()
            torch.set_num_threads(self.experiment.threads)
            torch.set_flush_denormal(True)  # a collapsed Post-LN model drifts into subnormal numbers, 10 times slower
            task = task_of(self.experiment)
            memory = machine.PeakMemory()  # from here: the data stays in the process for later trials
            model, choices = make_model(self.experiment, task, self.processes)
            optimizer = make_optimizer(self.experiment, model)
            note = self._restore(model, optimizer)
            if self.rank == 0:
                built = self.experiment.make_model is None
                known = {"task": {"name": task.name, "unit": task.unit, "blind": task.blind, "sources": task.sources},
                         "model": model.config.resolved() if built else None,  # type: ignore[union-attr, operator]
                         "choices": [c.to_dict() for c in choices],
                         "batch_size": None if isinstance(task, tasks.OwnTask) else self.experiment.batch_size or task.batch_size,
                         "parameters": sum(p.numel() for p in model.parameters())}  # fmt: skip
                writer = Writer(self.folder, {**info, **known}, again=True, after=self.step)
                if note:
                    writer.event(self.step, "resumed", note=note)
            result = self._train(task, model, optimizer, writer)
            if writer is None:
                return result
            if result.outcome not in ("trained", None):
                result = replace(result, findings=self._own_diagnosis(writer))
            spent = self.earlier + time.perf_counter() - started
            result = replace(
                result, seconds=round(spent, 3), overhead_seconds=round(max(0.0, spent - self.stepping - self.evaluating), 3),
                peak_memory=memory.read(), parameters=writer.info["parameters"],
            )  # fmt: skip
            if self.keep_weights and result.outcome != "diverged":
                checkpoint.save_weights(
                    self.folder, model, {"experiment": self.experiment.to_dict(), "step": self.step}
                )
            writer.close("finished", result=result.to_dict())
            for name in (checkpoint.FILE, checkpoint.FILE + ".partial"):  # a kill while saving leaves the second
                (self.folder / name).unlink(missing_ok=True)
            return result
        except (Stopped, KeyboardInterrupt):
            if writer is not None:
                writer.close("interrupted")
            raise
        except (Exception, SystemExit) as error:
            # Not if the disk failed: what it holds is whole, and the run can be resumed.
            if storage_failed(error, self.folder):
                if isinstance(error, OSError) and error.filename is None:  # a write does not name its file
                    raise OSError(error.errno, error.strerror, str(self.folder)) from error
            elif self.rank == 0:
                writer = writer or Writer(self.folder, info, again=True)
                writer.close("failed", result=failed(error).to_dict(), traceback=traceback.format_exc())
            raise
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(False)

    def _restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
        """From the checkpoint, if there is a usable one; says in words what happened."""
        if not (self.folder / checkpoint.FILE).exists():
            return None
        try:
            held = self._bytes_of_readings()

            def refusal(progress: dict[str, Any]) -> str | None:
                if fault := _misshapen(progress, self.experiment.steps):
                    return fault
                if progress["experiment"] != self.experiment.to_dict():
                    return "it belongs to another experiment"
                return f"{READINGS} has lost what was before it" if progress["readings"] > held else None

            progress, self.probes = checkpoint.load(self.folder, model, optimizer, refusal)
        except (checkpoint.CheckpointUnreadable, RunUnreadable) as error:
            return f"from the start: {error}"
        for name in PROGRESS:
            setattr(self, name, progress[name])
        self.curve = [tuple(point) for point in progress["curve"]]
        return f"from step {self.step}"

    def _bytes_of_readings(self) -> int:
        """On disk; raises if a line is broken."""
        path = self.folder / READINGS
        if not (self.folder / INFO).exists() or not path.exists():
            return 0
        for _ in Run(self.folder).lines():
            pass
        return path.stat().st_size

    def _save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, more: dict[str, Any], probes: dict[str, Tensor]
    ) -> None:
        progress = {"experiment": self.experiment.to_dict(), "step": self.step, "first_loss": self.first_loss,
                 "recent": self.recent, "curve": self.curve, "tokens": self.tokens, "gradient_norm": self.gradient_norm,
                 "stepping": self.stepping, "evaluating": self.evaluating, "last_evaluation": self.last_evaluation,
                 **more}  # fmt: skip
        checkpoint.save(self.folder, model, optimizer, progress, probes)

    def _train(
        self, task: tasks.Task, model: nn.Module, optimizer: torch.optim.Optimizer, writer: Writer | None
    ) -> Result:
        experiment = self.experiment
        size = experiment.batch_size or task.batch_size
        self.size = 0 if isinstance(task, tasks.OwnTask) else size
        if not isinstance(task, tasks.OwnTask) and size % (experiment.accumulate * self.processes):
            raise ValueError(
                f"a batch of {size} cannot be cut into {experiment.accumulate} micro-batches on each of {self.processes} processes"
            )
        if experiment.assays and self.processes > 1:
            raise ValueError(f"assays run in one process, and this run has {self.processes}: leave them out")
        started = saved = time.perf_counter()
        runs_on: nn.Module = model if self.processes == 1 else DistributedDataParallel(model)
        model.train()
        watching = None
        if experiment.watch != "none":
            watching = watch(runs_on, optimizer=optimizer, out=writer or self.folder, preset=experiment.watch,
                             every=experiment.watch_every or max(1, experiment.steps // RECORDED),
                             max_overhead=None, after=self.step)  # fmt: skip

            watching.load_state(self.probes)

        def save() -> None:
            if watching is not None:
                watching.flush()  # a checkpoint holds no more than the run
            if writer is not None:
                progress = {"readings": writer.sync(), "earlier": self.earlier + time.perf_counter() - started}
                self._save(model, optimizer, progress, {} if watching is None else watching.state())

        try:
            while self.step < experiment.steps:
                began = time.perf_counter()
                loss = self._one_step(task, runs_on, optimizer, size)
                self.step += 1
                if watching is not None:
                    watching.step(loss=loss)
                elif writer is not None:
                    writer.write(self.step, {"loss": {"model": loss}})
                if self.step == 1:
                    self.first_loss = loss
                self.recent = [*self.recent, loss][-max(1, experiment.steps // 10) :]
                self.stepping += time.perf_counter() - began
                if not math.isfinite(loss):
                    return self._diverged(("training", "训练"), loss, writer)
                if experiment.evaluates(self.step):
                    if watching is not None:
                        watching.flush()  # losses wait for a recorded step: they belong before what follows
                    self._evaluate(task, model, writer)
                    if not math.isfinite(self.curve[-1][1]):
                        return self._diverged(("held-out", "留出"), self.curve[-1][1], writer)
                    if experiment.assays and writer is not None:
                        began = time.perf_counter()
                        subject = asked.Subject(experiment, task, model, optimizer, self.step, writer)
                        asked.ask(subject, None if watching is None else watching.suspended)
                        self.evaluating += time.perf_counter() - began
                if self.step < experiment.steps and time.perf_counter() - saved >= self.checkpoint_seconds:
                    save()
                    saved = time.perf_counter()
                if self.on_step is not None:
                    self.on_step(self.step, loss)
        except Stopped:
            save()
            raise
        finally:
            if watching is not None:
                watching.close("finished" if self.step else "failed")
        return self._result(task)

    def _one_step(self, task: tasks.Task, model: nn.Module, optimizer: torch.optim.Optimizer, size: int) -> float:
        experiment = self.experiment
        step = self.step + 1
        rate = experiment.learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        total: Tensor | None = None
        pieces = list(shares(task, experiment, step, size, self.rank, self.processes))
        for number, (batch, weight, tokens) in enumerate(pieces, start=1):
            last = number == len(pieces)
            quiet = contextlib.nullcontext() if last or self.processes == 1 else model.no_sync()  # type: ignore[operator]
            with quiet:
                with torch.autocast("cpu", torch.bfloat16, enabled=experiment.precision == "bfloat16"):
                    loss = task.loss(model, batch)
                loss = loss if weight == 1.0 else loss * weight
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            self.tokens += tokens * self.processes
        assert total is not None
        if self.processes > 1:
            dist.all_reduce(total)
            total = total / self.processes
        value = float(total)
        if math.isfinite(value):
            if experiment.clip > 0:
                self.gradient_norm = float(nn.utils.clip_grad_norm_(model.parameters(), experiment.clip))
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    def _evaluate(self, task: tasks.Task, model: nn.Module, writer: Writer | None) -> None:
        began = time.perf_counter()
        found = self.last_evaluation = evaluate(model, task, self.experiment)
        assert found["loss"] is not None
        self.curve.append((self.step, found["loss"]))
        if writer is not None:
            named = {
                "held_out_loss": found["loss"],
                "held_out_half_width": found["half_width"],
                "accuracy": found["accuracy"],
            }
            writer.write(self.step, {name: {"model": v} for name, v in named.items() if v is not None})
        self.evaluating += time.perf_counter() - began

    def _own_diagnosis(self, writer: Writer) -> tuple[TrialFinding, ...]:
        """What its readings say is wrong. A trial that trained is diagnosed when somebody asks."""
        writer.sync()
        with contextlib.suppress(RunUnreadable):
            both = [diagnose(self.folder, language=language).findings for language in ("en", "zh")]
            return tuple(
                TrialFinding(rule=en.rule, severity=en.severity, site=en.site, en=en.verdict, zh=zh.verdict)
                for en, zh in zip(*both, strict=True)
            )
        return ()

    def _diverged(self, whose: tuple[str, str], value: float, writer: Writer | None) -> Result:
        cause = f"the {whose[0]} loss is {value} at step {self.step}"
        chinese = f"第 {self.step} 步的{whose[1]}损失为 {value}"
        if writer is not None:
            seen = [e for e in Run(self.folder).events() if e["event"] == "nonfinite" and e.get("site")]
            if seen:
                cause += f", first seen after {seen[-1]['site']}"
                chinese += f"，最先出现在 {seen[-1]['site']} 之后"
        if math.isfinite(self.gradient_norm):
            cause += f"; gradient norm a step earlier {self.gradient_norm:.3g}"
            chinese += f"；前一步的梯度范数 {self.gradient_norm:.3g}"
        return replace(
            self._result(None), outcome="diverged", diverged_at=self.step, cause=cause, cause_zh=chinese, loss=None, loss_half_width=None,
            accuracy=None, train_loss=None,
        )  # fmt: skip

    def _result(self, task: tasks.Task | None) -> Result:
        rate = self.tokens / self.stepping if self.stepping and self.tokens else None  # of one's own data: unknown
        share = None
        if self.work is not None and self.work.matmul_rate and self.stepping:
            share = self.work.flops_per_step * self.step / self.stepping / self.work.matmul_rate
        loss = self.curve[-1][1] if self.curve else None
        result = Result(
            outcome="trained", steps=self.step, samples=self.step * self.size if self.size else None,
            tokens=self.tokens or None, loss=loss, loss_half_width=self.last_evaluation.get("half_width"),
            accuracy=self.last_evaluation.get("accuracy"), train_loss=statistics.fmean(self.recent) if self.recent else None,
            first_loss=self.first_loss if math.isfinite(self.first_loss) else None,
            curve=tuple((s, v) for s, v in self.curve if math.isfinite(v)), training_seconds=round(self.stepping, 4),
            evaluation_seconds=round(self.evaluating, 4), tokens_per_second=rate, matmul_share=share,
        )  # fmt: skip
        if task is not None and loss is not None:
            blind = self.first_loss if task.blind is None else task.blind
            limit = (1 - MARGIN) * blind
            if loss >= limit:
                whom, zh_whom = (("its first training loss", "它的第一个训练损失") if task.blind is None
                                 else ("a predictor that never sees the input", "盲预测器的损失"))  # fmt: skip
                middle = next(value for step, value in self.curve if 2 * step >= self.step)
                falling = loss < (1 - STILL_FALLING) * middle
                how = f"only {1 - loss / blind:.1%} below" if loss < blind else "not below"
                cause = f"held-out loss {loss:.4g}, {how} the {blind:.4g} of {whom} ({MARGIN:.0%} counts as trained)"
                below = f"只低 {1 - loss / blind:.1%}" if loss < blind else "没有更低"
                chinese = f"留出损失 {loss:.4g}，比{zh_whom} {blind:.4g} {below}（低 {MARGIN:.0%} 才算训练成功）"
                if falling:
                    cause += f", but still falling ({middle:.4g} half-way): more steps or a higher rate"
                    chinese += f"，但还在降（中途为 {middle:.4g}）：请增加步数或提高学习率"
                outcome = "untrained" if falling else "collapsed"
                return replace(result, outcome=outcome, cause=cause, cause_zh=chinese)
        return result


PROGRESS = {"step": int, "first_loss": float, "recent": list, "tokens": int, "gradient_norm": float, "stepping": float,
         "evaluating": float, "earlier": float, "last_evaluation": dict}  # fmt: skip


def _misshapen(progress: Any, steps: int) -> str | None:
    """Why this is not the progress of a checkpoint: its sum tells damage, not what somebody wrote."""

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    if not isinstance(progress, dict):
        return "its progress is no object"
    for name, kind in {**PROGRESS, "experiment": dict, "readings": int, "curve": list}.items():
        value = progress.get(name)
        if not (number(value) if kind is float else isinstance(value, kind)):
            return f"its {name} is {type(value).__name__}, not {kind.__name__}"
    if not 0 <= progress["step"] < steps or progress["readings"] < 0:
        return f"its step is {progress['step']}, of {steps}"
    points = [p for p in progress["curve"] if isinstance(p, list) and len(p) == 2 and all(map(number, p))]
    if len(points) != len(progress["curve"]) or not all(map(number, progress["recent"])):
        return "its curve or its recent losses are not numbers"
    if not all(v is None or number(v) for v in progress["last_evaluation"].values()):
        return "its last evaluation is not of numbers"
    return None


def under_torchrun() -> bool:
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


@contextlib.contextmanager
def process_group() -> Iterator[int]:
    """Join the processes torchrun started, if it did; gives this process's rank."""
    if not under_torchrun():
        yield 0
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
