"""What the benchmark of training steps compares computes the same, on both sides; 16-bit products are probed safely."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import normlab
from normlab import cli, machine
from normlab.bench import steps

SIZES = {"dim": 24, "num_layers": 2, "num_heads": 3, "max_length": 11, "vocab_size": 256}


def randomize(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))


def test_the_nn_transformer_encoder_model_gets_our_weights_and_gives_our_gradients():
    ours = normlab.build(architecture="decoder", **SIZES)
    randomize(ours)
    theirs = steps.TorchDecoder(ours.config)
    steps.copy_into_torch(ours, theirs)
    tokens = torch.randint(0, 256, (3, 12))
    losses = [steps._loss(model, tokens) for model in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    for loss in losses:
        loss.backward()
    mine, other = ours.stack.layers[0], theirs.stack.layers[0]
    for a, b in (
        (mine.attention.qkv.weight, other.self_attn.in_proj_weight),
        (mine.feedforward.down.bias, other.linear2.bias),
        (mine.attention_place.norm.weight, other.norm1.weight),
        (ours.embedding.token.weight, theirs.embedding.token.weight),
    ):
        assert b.grad.abs().max() > 0
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-4, atol=1e-5)


def test_models_that_disagree_are_not_timed(monkeypatch):
    monkeypatch.setattr(steps, "copy_into_torch", lambda ours, theirs: None)
    monkeypatch.setattr(steps, "QUICK_SIZES", SIZES)
    rows = steps.training_steps("float32", 0.01, False, quick=True)
    assert next(rows).ratios.keys() == {"nn.RMSNorm"}
    with pytest.raises(RuntimeError, match="disagree"):
        next(rows)


def test_a_training_step_row_names_both_shares(monkeypatch):
    monkeypatch.setattr(steps, "QUICK_SIZES", SIZES)
    rows = list(steps.training_steps("float32", 0.01, False, quick=True))
    assert [set(r.share_of_step) for r in rows] == [{"ours", "nn.RMSNorm"}, {"ours", "nn.TransformerEncoder"}]
    for row, goal, rival in zip(rows, steps.goals(rows), ("nn.RMSNorm", "nn.TransformerEncoder"), strict=True):
        assert goal.measured == row.ratios[rival]
        assert all(share > 0 for share in row.share_of_step.values())


def test_sixteen_bit_products_work_or_a_setting_is_named(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    works, environment, note = machine.sixteen_bit()
    assert "bfloat16" in note
    if not works and environment:
        done = subprocess.run([sys.executable, "-c", machine.PRODUCT], env={**os.environ, **environment},
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.stdout.strip() == "64.0", done.stderr


def test_a_machine_without_sixteen_bit_products_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "_product_works", lambda environment: False)
    with pytest.raises(RuntimeError, match="use float32"):
        machine.prepare_16_bit()


def test_a_machine_that_traps_gets_the_setting(monkeypatch):
    monkeypatch.setattr(machine, "_product_works", lambda environment: environment == machine.WITHOUT_AMX)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "something else")
    assert machine.prepare_16_bit() == machine.WITHOUT_AMX
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


def test_list_prints_norms_and_placements(capsys):
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed["norms"]] == list(normlab.NORMS)
    assert [row["name"] for row in listed["placements"]] == list(normlab.PLACEMENTS)
    assert all(row["formula"] and row["advice"] and row["year"] for part in listed.values() for row in part)
    assert cli.main(["list"]) == 0
    assert "placements" in capsys.readouterr().out
