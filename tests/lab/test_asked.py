"""Assays in a run: what is asked is written, and training does not notice."""

from __future__ import annotations

import pytest
import torch

import normlab
from normlab import lab
from normlab.lab import asked
from normlab.lab.experiment import ASSAYS
from normlab.runs import Run

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2}


def experiment(**values):
    return normlab.Experiment(**{"task": "text", "steps": 6, "batch_size": 4, "options": {"length": 16}, "held_out": 8,
                                 "evaluations": 3, "lr": 3e-3, "model": SMALL, **values})  # fmt: skip


def test_names_are_those_of_the_table():
    assert tuple(asked.ASSAYS) == ASSAYS
    with pytest.raises(ValueError, match="Did you mean 'block_drop'"):
        experiment(assays=("block_dorp",))
    with pytest.raises(ValueError, match=r'such as \["block_drop"\], got .block_drop.'):
        experiment(assays="block_drop")
    with pytest.raises(ValueError, match="assays_at"):
        experiment(assays_at="never")
    with pytest.raises(ValueError, match="watch_every"):
        experiment(watch_every=0)
    same = experiment(assays=("position",))
    assert normlab.Experiment.from_dict(same.to_dict()) == same


def test_training_goes_on_bit_for_bit(tmp_path):
    """Every assay at every evaluation, with a watch that records every step, dropout and noise."""
    how = {"watch": "full", "watch_every": 1, "norm": "batch", "model": {**SMALL, "dropout": 0.1, "norm_noise": {}}}
    plain = lab.train(experiment(**how), tmp_path / "plain", keep_weights=True)
    full = lab.train(experiment(**how, assays=ASSAYS, assays_at="evaluations"), tmp_path / "asked", keep_weights=True)
    assert full.curve == plain.curve and full.train_loss == plain.train_loss
    from safetensors.torch import load_file

    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "asked")]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    quiet, found = Run(tmp_path / "plain").table(), Run(tmp_path / "asked").table()
    for quantity, sites in quiet.items():
        for site, series in sites.items():
            assert found[quantity][site] == series, (quantity, site)
    assert set(found) - set(quiet) == {
        "covariate_shift", "covariate_shift_relative", "covariate_cosine", "loss_range", "gradient_change", "beta_smoothness",
        "block_drop", "parallel_blocks", "running_statistics_loss", "batch_statistics_loss", "neighbours_kept_plain",
        "neighbours_kept", "position_before", "position_after",
    }  # fmt: skip
    assert found["block_drop"]["stack.layers.1"].steps == [2, 4, 6]
    assert set(found["parallel_blocks"]) == {"stack.layers.0+stack.layers.1"}
    held_out = found["held_out_loss"]["model"].values
    assert found["running_statistics_loss"]["model"].values == pytest.approx(held_out, rel=1e-6)
    events = [e for e in Run(tmp_path / "asked").events() if e["event"] == "token similarity"]
    assert len(events) == 3 * 3 and {e["step"] for e in events} == {2, 4, 6}
    assert all(len(e["tokens"]) <= 64 and max(e["tokens"]) < 256 for e in events)


def test_at_the_end_alone_and_what_cannot_be_asked_is_an_event(tmp_path):
    lab.train(experiment(assays=("statistics_gap", "smoothness"), watch="none"), tmp_path / "a")
    run = Run(tmp_path / "a")
    assert run.series("loss_range")["model"].steps == [6]
    (event,) = run.events()
    assert event["event"] == "assay skipped" and event["assay"] == "statistics_gap" and "running" in event["reason"]


def test_the_loss_without_a_block_is_that_of_the_trained_model(tmp_path):
    """Against a model made from the saved weights, evaluated by hand with its first block taken out."""
    from safetensors.torch import load_file

    from normlab.lab import batches, parts

    how = experiment(assays=("block_drop",))
    result = lab.train(how, tmp_path / "a", keep_weights=True)
    task = parts.task_of(how)
    model, _ = parts.make_model(how, task)
    model.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    del model.stack.layers[0]
    without = batches.evaluate(model, task, how)["loss"]
    found = Run(tmp_path / "a").series("block_drop")["stack.layers.0"].last()
    assert found == pytest.approx(without - result.loss, abs=1e-6)


def test_a_run_that_was_stopped_goes_on_to_the_same_readings(tmp_path):
    how = experiment(
        assays=("covariate_shift", "block_drop"), assays_at="evaluations", model={**SMALL, "norm_noise": {}}
    )
    lab.train(how, tmp_path / "whole")

    def stop(step, loss):
        if step == 3:
            raise lab.Stopped

    with pytest.raises(lab.Stopped):
        lab.train(how, tmp_path / "parts", on_step=stop)
    lab.train(how, tmp_path / "parts")
    whole, parts = (Run(tmp_path / name).table() for name in ("whole", "parts"))
    assert whole == parts


def test_the_cadence_of_the_watch_can_be_chosen(tmp_path):
    lab.train(experiment(watch_every=2, watch="full"), tmp_path / "a")
    assert Run(tmp_path / "a").series("var_grad_norm")["stack.ends.norm"].steps == [1, 2, 4, 6]


@pytest.mark.parametrize("settings", [
    {"model": {"architecture": "recurrent", "dim": 16, "num_layers": 2}, "norm": "batch"},
    {"task": "digits", "options": {}, "model": {"architecture": "plain-convolution", "dim": 8, "num_layers": 2}, "norm": "batch"},
])  # fmt: skip
def test_networks_without_a_stream_train_in_the_lab(tmp_path, settings):
    result = lab.train(experiment(**settings, assays=("statistics_gap",)), tmp_path / "a")
    assert result.outcome in ("trained", "untrained", "collapsed") and result.steps == 6
    run = Run(tmp_path / "a")
    assert run.info["model"]["architecture"] == settings["model"]["architecture"]
    assert run.series("running_statistics_loss")["model"].last() == pytest.approx(result.loss, rel=1e-6)
