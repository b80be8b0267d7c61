"""Callbacks and sinks, each against the real library on a tiny model; a library that is not installed is skipped."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from torch import nn

import normlab
from normlab import callbacks


def tiny():
    return normlab.build(architecture="decoder", dim=8, num_layers=2, num_heads=2, vocab_size=11, max_length=8)


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    for name, value in (("HF_HUB_OFFLINE", "1"), ("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true"),
                        ("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri()), ("MLFLOW_ALLOW_FILE_STORE", "true")):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_hugging_faces_trainer(tmp_path, accumulation):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8)  # fmt: skip
    data = [{"input_ids": (t := torch.randint(0, 11, (8,))), "labels": t} for _ in range(24)]
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "hf"), max_steps=5, per_device_train_batch_size=2, report_to=[],
                                               gradient_accumulation_steps=accumulation, use_cpu=True, save_strategy="no",
                                               disable_tqdm=True)  # fmt: skip
    callback = callbacks.huggingface(tmp_path / "run", every=2, max_overhead=None)
    model = transformers.LlamaForCausalLM(config)
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    run = normlab.Run(tmp_path / "run")
    assert run.info["status"] == "finished" and run.info["coverage"]["fired"] == run.info["coverage"]["norms"] == 5
    assert run.series("loss")["model"].steps == [1, 2, 3, 4, 5]
    assert run.series("grad_norm")["model"].steps == [1, 2, 4]
    assert all(s.steps == [1, 2, 4] for s in run.series("update_ratio").values()) and run.series("update_ratio")
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning(tmp_path, accumulation):
    pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny()

        def training_step(self, batch, index):
            (tokens,) = batch
            return nn.functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randint(0, 11, (24, 8))), batch_size=2)
    trainer = pl.Trainer(max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
                         enable_model_summary=False, accumulate_grad_batches=accumulation, default_root_dir=tmp_path,
                         callbacks=[callbacks.lightning(tmp_path / "run", every=1, max_overhead=None)])  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about workers of the loader
        trainer.fit(Module(), loader)
    run = normlab.Run(tmp_path / "run")
    assert run.info["coverage"]["fired"] == 5 and run.info["status"] == "finished"
    assert run.series("loss")["model"].steps == [1, 2, 3, 4] == run.series("grad_norm")["model"].steps
    assert len(run.series("max_logit")) == 2


def three_steps(tmp_path, sink):
    torch.manual_seed(0)
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with normlab.watch(
        model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None, also=[sink]
    ) as watch:
        for _ in range(3):
            tokens = torch.randint(0, 11, (2, 8))
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    return normlab.Run(tmp_path / "run").series("grad_norm")["model"]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    series = three_steps(tmp_path, callbacks.TensorBoard(tmp_path / "tb"))
    events = accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    found = events.Scalars("grad_norm/model")
    assert [e.step for e in found] == series.steps
    assert [e.value for e in found] == pytest.approx(series.values, rel=1e-6)
    assert [e.step for e in events.Scalars("loss/model")] == series.steps


def test_weights_and_biases_offline(tmp_path):
    wandb = pytest.importorskip("wandb")
    with pytest.raises(ValueError, match=r"wandb\.init"):
        callbacks.WandB()
    run = wandb.init(project="normlab", mode="offline", dir=str(tmp_path))
    series = three_steps(tmp_path, callbacks.WandB())
    run.log({}, step=99)  # a row is complete when the next one begins
    assert run.summary["grad_norm/model"] == pytest.approx(series.values[-1])
    run.finish()
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    with pytest.raises(ValueError, match="start_run"):
        callbacks.MLflow()
    with mlflow.start_run() as active:
        series = three_steps(tmp_path, callbacks.MLflow())
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "grad_norm/model")
    assert [m.step for m in history] == series.steps
    assert [m.value for m in history] == pytest.approx(series.values)


def test_a_failing_sink_is_switched_off(tmp_path):
    class Full:
        def write(self, step, table):
            raise OSError("disk full")

        def close(self):
            raise AssertionError("it was switched off")

    with pytest.warns(UserWarning, match="Full failed and is switched off"):
        series = three_steps(tmp_path, Full())
    assert series.steps == [1, 2, 3]


def test_a_missing_library_names_its_extra(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"normlab\[tensorboard\]"):
        callbacks.TensorBoard("x")
