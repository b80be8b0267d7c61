"""A watch where training already happens: Hugging Face's Trainer, Lightning; and readings where people already look.

Callbacks attach :func:`normlab.watch` to a loop that belongs to a library. Sinks receive every recorded step besides the
run on disk; give them to ``watch(..., also=[...])``. Each needs its library, which is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .errors import need
from .watch import Watch, watch

Table = Mapping[str, Mapping[str, float]]


# ---- loops -----------------------------------------------------------------------------------------------------------


def huggingface(out: str | Path, **options: Any) -> Any:
    """A callback for transformers.Trainer: ``Trainer(..., callbacks=[normlab.callbacks.huggingface("runs/a")])``.

    The loss is the one the model returns, of the last micro-batch of a step.
    """
    transformers = need("a callback for its Trainer", "huggingface", "transformers")

    class NormlabCallback(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        watch: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model, optimizer = given["model"], given.get("optimizer")
            self.loss: Any = None
            self.handle = model.register_forward_hook(self.see)
            optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
            self.watch = watch(model, optimizer=optimizer, out=out, **options)

        def see(self, model: nn.Module, inputs: Any, output: Any) -> None:
            loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
            if loss is not None:
                self.loss = loss.detach()

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.watch is not None:
                self.watch.step(loss=self.loss)

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.watch is not None:
                self.handle.remove()
                self.watch.close()

    return NormlabCallback()


def lightning(out: str | Path, *, model: Callable[[Any], nn.Module] | None = None, **options: Any) -> Any:
    """A callback for Lightning: ``Trainer(..., callbacks=[normlab.callbacks.lightning("runs/a")])``.

    Watched is what ``model(module)`` returns; by default the module's only child, if it has just one, else the module.
    """
    pl = need("a callback for its Trainer", "lightning", "lightning.pytorch")

    def inside(module: Any) -> nn.Module:
        children = list(module.children())
        return children[0] if len(children) == 1 else module

    class NormlabCallback(pl.Callback):  # type: ignore[name-defined, misc]
        watch: Watch | None = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.done = trainer.global_step
            self.watch = watch((model or inside)(module), optimizer=trainer.optimizers[0], out=out, **options)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if self.watch is not None and trainer.global_step > self.done:  # not within an accumulation
                self.done = trainer.global_step
                self.watch.step(loss=outputs["loss"] if isinstance(outputs, dict) else outputs)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            if self.watch is not None:
                self.watch.close()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            if self.watch is not None:
                self.watch.close("interrupted" if isinstance(exception, KeyboardInterrupt) else "failed")

    return NormlabCallback()


# ---- sinks -----------------------------------------------------------------------------------------------------------


def _flat(table: Table) -> dict[str, float]:
    """{"probe/site": value}."""
    return {f"{probe}/{site}": value for probe, sites in table.items() for site, value in sites.items()}


class TensorBoard:
    """Scalars "probe/site" into an event file in ``folder``."""

    def __init__(self, folder: str | Path) -> None:
        self.writer = need("an event file", "tensorboard", "torch.utils.tensorboard").SummaryWriter(str(folder))

    def write(self, step: int, table: Table) -> None:
        for name, value in _flat(table).items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Into a Weights & Biases run: the one given, or the current one."""

    def __init__(self, run: Any = None) -> None:
        wandb = need("a Weights & Biases run", "wandb", "wandb")
        self.run = wandb.run if run is None else run
        if self.run is None:
            raise ValueError("there is no Weights & Biases run: call wandb.init() first, or give one")

    def write(self, step: int, table: Table) -> None:
        self.run.log(_flat(table), step=step)

    def close(self) -> None:
        pass  # the run is the caller's


class MLflow:
    """Into the active MLflow run, or into the one whose id is given."""

    def __init__(self, run_id: str | None = None) -> None:
        mlflow = need("an MLflow run", "mlflow", "mlflow")
        active = mlflow.active_run()
        if run_id is None and active is None:
            raise ValueError("there is no active MLflow run: call mlflow.start_run() first, or give a run_id")
        self.run_id = run_id or active.info.run_id
        self.log = mlflow.log_metrics

    def write(self, step: int, table: Table) -> None:
        self.log(_flat(table), step=step, run_id=self.run_id)

    def close(self) -> None:
        pass  # the run is the caller's
