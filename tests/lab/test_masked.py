"""The task masked: its lines, its hidden bytes and its blind loss by other means; norms over tokens in their usual form."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from pydoc_data.topics import topics

import pytest
import torch
from task_cases import seen_in_training

import normlab
from normlab.lab import Experiment, train
from normlab.lab.parts import make_model, task_of
from normlab.lab.tasks import UNASKED, find_task

HIDDEN = 256


def lines(length=64):
    """Another way to the same lines: by a regular expression over each page."""
    found = set()
    for page in topics.values():
        for line in re.findall(r"[^\n]+", page):
            cut = line.encode().strip(b" \t\r\f\v")[:length].rstrip()
            found |= {cut} if len(cut) >= 8 else set()
    return found


def held_out(line: bytes) -> bool:
    return int(hashlib.sha256(line).hexdigest()[:16], 16) % 10 == 0


def whole(batch):
    """The lines as they were before bytes were hidden."""
    tokens, mask = batch.arguments["tokens"], batch.arguments["mask"]
    rows = torch.where(batch.targets == UNASKED, tokens, batch.targets)
    return [bytes(row[: int(real.sum())].tolist()) for row, real in zip(rows, mask, strict=True)]


def test_a_batch_is_lines_with_a_share_hidden_and_padding_that_is_neither_asked_nor_seen():
    task, known = find_task("masked"), lines()
    lengths = set()
    for step in range(1, 8):
        batch = task.batch(3, step, 53)
        tokens, mask = batch.arguments["tokens"], batch.arguments["mask"]
        assert tokens.shape == mask.shape == batch.targets.shape == (53, 64) and mask.dtype == torch.bool
        assert (tokens[~mask] == 0).all() and (batch.targets[~mask] == UNASKED).all()
        assert not (mask[:, 1:] & ~mask[:, :-1]).any()  # real ones first
        assert torch.equal(tokens == HIDDEN, batch.targets != UNASKED)
        sizes = mask.sum(1)
        assert (tokens == HIDDEN).sum(1).tolist() == [max(1, round(0.15 * n)) for n in sizes.tolist()]
        assert set(whole(batch)) <= known
        lengths |= set(sizes.tolist())
    assert min(lengths) < 16 and max(lengths) == 64


def test_every_place_of_a_line_is_hidden_equally_often():
    task, counts, lines_long = find_task("masked"), torch.zeros(64), 0
    for step in range(1, 101):
        batch = task.batch(0, step, 101)
        full = batch.arguments["mask"].all(1)
        counts += (batch.targets[full] != UNASKED).sum(0)
        lines_long += int(full.sum())
    share = counts / lines_long
    spread = math.sqrt(0.156 * 0.844 / lines_long)
    assert ((share - 10 / 64).abs() < 5 * spread).all()


def test_no_line_is_both_trained_on_and_held_out():
    task, known = find_task("masked"), lines()
    kept = [line for batch in task.held_out(64) for line in whole(batch)]
    assert sorted(kept) == sorted(line for line in known if held_out(line))
    assert task.num_training + task.num_held_out == len(known) and len(set(kept)) == task.num_held_out
    trained = seen_in_training(task, whole)
    assert trained <= known - set(kept) and len(trained) > 0.6 * task.num_training


def test_the_blind_loss_is_that_of_frequencies():
    task = find_task("masked")
    seen = Counter(byte for line in lines() if not held_out(line) for byte in line)
    total = sum(seen.values()) + 256
    asked = [int(t) for batch in task.held_out(64) for t in batch.targets.flatten().tolist() if t != UNASKED]
    want = sum(-math.log((seen[byte] + 1) / total) for byte in asked) / len(asked)
    assert task.blind == pytest.approx(want, rel=1e-9) and 2.8 < want < 3.6


def test_its_own_length_cuts_and_pads():
    task = find_task("masked", options={"length": 17})
    batch = task.batch(0, 1, 31)
    assert batch.targets.shape == (31, 17) and task.settings["max_length"] == 17
    assert set(whole(batch)) <= lines(17)


@pytest.mark.parametrize("norm", ["batch", "group", "instance", "power"])
def test_norms_over_tokens_stand_in_their_usual_form(norm):
    experiment = Experiment(task="masked", norm=norm, model={"dim": 16, "num_layers": 1})
    model, choices = make_model(experiment, task_of(experiment))
    assert not choices
    norms = [m for m in model.modules() if getattr(m, "over_tokens", False)]
    assert norms and all(getattr(m, "causal", None) is None for m in norms)


@pytest.mark.parametrize(("norm", "matters"), [("batch", True), ("instance", True), ("layer", False)])
@pytest.mark.parametrize("embedding_norm", [False, True])
def test_padding_moves_statistics_only_where_their_mask_is_off(norm, matters, embedding_norm):
    """What stands in the padding is changed; training mode, so that statistics are those of the batch."""
    batch = find_task("masked").batch(0, 1, 7)
    tokens, mask = batch.arguments["tokens"], batch.arguments["mask"]
    other = torch.where(mask, tokens, torch.randint(1, 250, tokens.shape))
    for on in (True, False):
        torch.manual_seed(1)
        model = normlab.build(**find_task("masked").settings | {"dim": 16, "num_layers": 2, "norm": norm,
                              "embedding_norm": embedding_norm, "mask_statistics": on}).train()  # fmt: skip
        same = torch.equal(model(tokens, mask)[mask], model(other, mask)[mask])
        assert same is (on or not matters)


def test_mask_statistics_is_a_setting_of_the_experiment_and_of_its_run(tmp_path):
    values = {"task": "masked", "norm": "batch", "steps": 4, "batch_size": 6, "held_out": 12, "evaluations": 2,
              "model": {"dim": 16, "num_layers": 1, "num_heads": 2}}  # fmt: skip
    losses = {}
    for on in (True, False):
        experiment = Experiment(**values).changed(mask_statistics=on)
        losses[on] = train(experiment, tmp_path / str(on)).loss
        assert normlab.runs.Run(tmp_path / str(on)).info["model"]["mask_statistics"] is on
    assert losses[True] != losses[False]


def test_mask_statistics_reaches_both_stacks_of_an_encoder_decoder():
    task = find_task("dates")
    batch = task.batch(0, 1, 9)
    source, mask = batch.arguments["source"], batch.arguments["source_mask"]
    other = torch.where(mask, source, 7)
    for on in (True, False):
        torch.manual_seed(1)
        model = normlab.build(**task.settings | {"dim": 16, "norm": "batch", "causal_statistics": "position",
                              "mask_statistics": on}).train()  # fmt: skip
        target = batch.arguments["target"]
        assert torch.equal(model(source, target, mask), model(other, target, mask)) is on
