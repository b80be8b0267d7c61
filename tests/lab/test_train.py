"""Training is the same bits every time, on one process and on several; every end has its name and its reason."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_cases import (
    DAMAGED,
    HERE,
    PATIENCE,
    SIZES,
    assert_every_step_once,
    assert_same_run,
    child,
    ended,
    nan_loss,
    own,
    parallel,
    readings,
    short_data,
    small,
    strict,
    training,
)

import normlab
from normlab import cli
from normlab.lab import Experiment, batches, train
from normlab.lab import checkpoint as checkpoints
from normlab.lab import parts as made
from normlab.lab import tasks as lab_tasks
from normlab.runs import Run

# ---- the same bits ---------------------------------------------------------------------------------------------------

VARIED = {
    "text": small(model={"dropout": 0.2}),
    "docs-batch": small(task="docs", norm="batch", model={"dropout": 0.1}, options={"length": 24}),
    "dates-power": small(task="dates", norm="power", model={"num_layers": 1}, steps=8),
    "digits": small(task="digits", placement="post", model={"dropout": 0.1, "num_layers": 1}, steps=8),
    "text-power": small(norm="power", accumulate=2, model={"num_layers": 1}),
}


def skip_without_digits(experiment):
    if experiment.task == "digits":
        pytest.importorskip("sklearn")


@pytest.mark.parametrize("name", VARIED)
def test_an_experiment_repeats_itself_bit_for_bit(tmp_path, name):
    experiment = VARIED[name]
    skip_without_digits(experiment)
    train(experiment, tmp_path / "a", keep_weights=True)
    torch.manual_seed(99)
    torch.rand(17)  # numbers that were drawn before must not matter
    train(experiment, tmp_path / "b", keep_weights=True)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert_every_step_once(tmp_path / "a", experiment.steps)
    losses = [v for _, probe, _, v in readings(tmp_path / "a") if probe == "loss"]
    assert len(set(losses)) == len(losses) and all(map(math.isfinite, losses))
    other = experiment.changed(seed=1)
    assert train(other, tmp_path / "c").to_dict()["curve"] != Run(tmp_path / "a").info["result"]["curve"]


FRESH = """
import json, sys
from pathlib import Path
from normlab.lab import Experiment, train
for name, values in json.loads(sys.argv[1]).items():
    train(Experiment.from_dict(values), Path(sys.argv[2]) / name, keep_weights=True)
"""


def test_a_fresh_process_gives_the_same_bits(tmp_path):
    chosen = {name: VARIED[name] for name in ("text", "docs-batch", "dates-power")}
    values = json.dumps({name: experiment.to_dict() for name, experiment in chosen.items()})
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", FRESH, values, str(tmp_path / "fresh")], check=True, env=environment)
    for name, experiment in chosen.items():
        train(experiment, tmp_path / "here" / name, keep_weights=True)
        assert_same_run(tmp_path / "here" / name, tmp_path / "fresh" / name)


def test_the_watch_changes_no_bit_of_the_training(tmp_path):
    curves = [train(small(watch=w, model={"dropout": 0.2}), tmp_path / w).curve for w in ("none", "lite", "full")]
    assert curves[0] == curves[1] == curves[2]


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watch", ["lite", "none"])
def test_a_huge_rate_diverges_and_a_block_is_named(tmp_path, watch):
    experiment = small(lr=1e30, clip=0.0, warmup=0.0, evaluations=1, watch=watch)
    result = train(experiment, tmp_path / "a", keep_weights=True)
    assert result.outcome == "diverged" and 2 <= result.diverged_at <= 12
    assert result.loss is result.accuracy is result.train_loss is result.loss_half_width is None
    assert f"at step {result.diverged_at}" in result.cause and math.isfinite(result.first_loss)
    assert result.steps == result.diverged_at
    if watch == "lite":
        blocks = strict(tmp_path / "a")["sites"]["blocks"]
        assert any(f"first seen after {block}" in result.cause for block in blocks)
    info = strict(tmp_path / "a")
    assert info["status"] == "finished" and info["result"] == result.to_dict()
    assert not (tmp_path / "a" / checkpoints.WEIGHTS).exists()
    assert train(experiment, tmp_path / "a") == result


def test_a_held_out_loss_that_is_no_number_is_divergence_too(tmp_path):
    result = train(small(lr=1e30, clip=0.0, warmup=0.0, evaluations=12), tmp_path / "a")
    assert result.outcome == "diverged" and result.diverged_at == 1 and "held-out loss is" in result.cause
    assert result.curve == () and strict(tmp_path / "a")["result"]["loss"] is None


def test_a_loss_that_turns_nan_is_dated(tmp_path):
    nan_loss.calls = 0
    result = train(own(loss="nan_loss", evaluations=2), tmp_path / "a")
    assert (result.outcome, result.diverged_at, result.steps) == ("diverged", 7, 7)
    assert "training loss is nan at step 7" in result.cause and [s for s, _ in result.curve] == [6]
    losses = [v for _, probe, _, v in readings(tmp_path / "a") if probe == "loss"]
    assert len(losses) == 7 and math.isnan(losses[-1]) and all(map(math.isfinite, losses[:-1]))
    assert strict(tmp_path / "a")["status"] == "finished"


def test_trained_untrained_and_collapsed_are_told_apart(tmp_path):
    still = train(small(lr=1e-9), tmp_path / "still")
    assert still.outcome == "collapsed" and "never sees the input" in still.cause
    falling = train(small(lr=1e-2, warmup=0.1), tmp_path / "falling")
    assert falling.outcome == "untrained" and "still falling" in falling.cause
    blind = strict(tmp_path / "still")["task"]["blind"]
    assert still.loss >= blind and falling.loss >= blind and falling.loss < still.loss
    learning = small(lr=3e-2, steps=60, batch_size=16, options={"length": 16}, watch="none", model={"num_layers": 1})
    fine = train(learning, tmp_path / "fine")
    assert fine.outcome == "trained" and fine.cause is None
    assert fine.loss < strict(tmp_path / "fine")["task"]["blind"]
    unlearnt = train(own(lr=1e-12), tmp_path / "own")
    assert unlearnt.outcome in ("collapsed", "trained") and unlearnt.tokens_per_second is None


@pytest.mark.parametrize(
    ("experiment", "kind", "words"),
    [
        (own(model="raising_model"), ZeroDivisionError, "from the user's factory"),
        (own(model="no_model"), TypeError, "must return a torch.nn.Module, got str"),
        (own(model="absent"), ValueError, f"cannot load {HERE}:absent"),
        (own(data="empty_data"), ValueError, "yielded no batch"),
        (own(data="used_up_data"), ValueError, "used up"),
        (own(data="numbers"), TypeError, "something to iterate over, got int"),
        (own(loss="list_loss"), TypeError, "tensor with one value, got list"),
        (own().changed(depth=3), ValueError, "no argument depth; it takes norm, width"),
        (own().changed(make_model="no.such.module:make"), ValueError, "cannot load no.such.module:make"),
        (own().changed(make_model="without_colon"), ValueError, "expected MODULE:NAME"),
        (small(files=("no such file.txt",)), FileNotFoundError, "no such file.txt"),
        (small(norm="lair"), ValueError, "Did you mean 'layer'"),
        (small(task="tekst"), ValueError, "Did you mean 'text'"),
        (small(batch_size=None, accumulate=3), ValueError, "a batch of 16 cannot be cut into 3 micro-batches"),
        (small(model={"dimm": 3}), (ValueError, TypeError), "Did you mean 'dim'"),
    ],
)
def test_a_program_that_breaks_is_a_failed_run_with_its_traceback(tmp_path, experiment, kind, words):
    global USED_UP
    USED_UP = iter([(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))])
    with pytest.raises(kind, match=words):
        train(experiment, tmp_path / "a")
    info = strict(tmp_path / "a")
    assert info["status"] == "failed" and "Traceback" in info["traceback"] and words.split(";")[0] in info["traceback"]
    assert info["result"]["outcome"] == "failed" and words in info["result"]["error"]
    USED_UP = iter([(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))])
    result = training.attempt(experiment, tmp_path / "b")
    assert result.outcome == "failed" and words in result.error
    assert strict(tmp_path / "b")["result"] == result.to_dict()


def test_a_failed_run_can_be_run_again_and_forgets_the_failure(tmp_path):
    def on_step(step, loss):
        if step == 4:
            raise RuntimeError("once")

    with pytest.raises(RuntimeError, match="once"):
        train(DAMAGED, tmp_path / "a", on_step=on_step)
    assert strict(tmp_path / "a")["status"] == "failed"
    result = train(DAMAGED, tmp_path / "a")
    info = strict(tmp_path / "a")
    assert info["status"] == "finished" and info["traceback"] is None and info["result"] == result.to_dict()
    assert_every_step_once(tmp_path / "a", 12)


def test_a_loader_that_ends_early_starts_again(tmp_path):
    losses = {}
    for step in (3, 8):  # five batches a pass
        task = made.task_of(own(data="short_data"))
        losses[step] = task.batch(0, step, 1)[0]
    assert torch.equal(losses[3], losses[8])
    assert train(own(data="short_data", steps=11), tmp_path / "a").steps == 11


def test_own_batches_are_micro_batches_of_a_step(tmp_path):
    """Two batches a step give the mean of both losses, here of a model without dropout in its second life."""
    experiment = own(data="short_data", accumulate=2, steps=1, clip=0.0)
    result = train(experiment, tmp_path / "a")
    model, _ = made.make_model(experiment, made.task_of(experiment))
    first, second = short_data(0, "train")[:2]
    want = sum(F.cross_entropy(model(x), y).item() for x, y in (first, second)) / 2
    assert result.first_loss == pytest.approx(want, rel=1e-6)


# ---- what a step computes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_loop_written_by_hand_gives_the_same_losses(tmp_path, clip, placement):
    """The model by normlab.build, torch's loss; AdamW, clipping and the rate from their formulas in float64."""
    experiment = small(task="docs", placement=placement, clip=clip, weight_decay=0.3, schedule="linear", seed=3,
                       options={"length": 24}, betas=(0.8, 0.95), steps=10)  # fmt: skip
    train(experiment, tmp_path / "a", keep_weights=True)
    task = lab_tasks.find_task("docs", options={"length": 24})
    torch.manual_seed(3)
    model = normlab.build(**{**task.settings, **SIZES, "norm": "layer", "placement": placement})
    moments = {
        p: (torch.zeros_like(p, dtype=torch.float64), torch.zeros_like(p, dtype=torch.float64))
        for p in model.parameters()
    }
    losses = []
    clipped = 0
    for step in range(1, 11):
        tokens, mask, targets = (*task.batch(3, step, 6).arguments.values(), task.batch(3, step, 6).targets)
        model.zero_grad()
        loss = F.cross_entropy(model(tokens=tokens, mask=mask), targets)
        loss.backward()
        losses.append(loss.item())
        size = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        shrink = 1.0 if clip == 0 or size <= clip else clip / size
        clipped += shrink < 1
        rate = 1e-2 * (step / 3 if step <= 3 else 1 - 0.9 * (step - 3) / 7)
        with torch.no_grad():
            for p, (m, v) in moments.items():
                g = p.grad.double() * shrink
                m.mul_(0.8).add_(0.2 * g)
                v.mul_(0.95).add_(0.05 * g.square())
                decay = 1 - rate * 0.3 if p.dim() > 1 else 1.0
                change = rate * (m / (1 - 0.8**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
                p.copy_(p.double() * decay - change)
    assert clipped == (0 if clip == 0 else 10)
    found = [v for _, probe, _, v in readings(tmp_path / "a") if probe == "loss"]
    assert found == pytest.approx(losses, rel=2e-5)
    result = Run(tmp_path / "a").info["result"]
    assert result["first_loss"] == found[0] and result["train_loss"] == found[-1]
    rates = {step: v for step, probe, _, v in readings(tmp_path / "a") if probe == "lr"}
    assert rates == {step: pytest.approx(experiment.learning_rate(step)) for step in rates} and len(rates) >= 4


def test_torchs_own_optimizer_gives_the_same_bits(tmp_path):
    experiment = small(seed=5, weight_decay=0.1, model={"dropout": 0.1})
    train(experiment, tmp_path / "a")
    task = lab_tasks.find_task("text")
    torch.manual_seed(5)
    model = normlab.build(**{**task.settings, **experiment.model, "norm": "layer", "placement": "pre"}).train()
    several = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": several, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  betas=(0.9, 0.98), fused=True)  # fmt: skip
    losses = []
    for step in range(1, 13):
        batch = task.batch(5, step, 6)
        for group in optimizer.param_groups:
            group["lr"] = experiment.learning_rate(step)
        loss = F.cross_entropy(model(batch.arguments["tokens"]).flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert [v for _, probe, _, v in readings(tmp_path / "a") if probe == "loss"] == losses


def test_weight_decay_is_for_matrices_only():
    experiment = small(weight_decay=0.25)
    model, _ = made.make_model(experiment, made.task_of(experiment))
    optimizer = made.make_optimizer(experiment, model)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decay[id(p)] == (0.25 if p.dim() >= 2 else 0.0), name
    assert set(decay.values()) == {0.0, 0.25} and len(decay) == len(list(model.parameters()))
    model.requires_grad_(False)
    model.get_parameter(next(n for n, _ in model.named_parameters())).requires_grad_()
    assert sum(len(g["params"]) for g in made.make_optimizer(experiment, model).param_groups) == 1


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_accumulation_is_one_batch_to_rounding(tmp_path, placement):
    for parts in (1, 2, 3, 6):
        train(
            small(task="docs", placement=placement, accumulate=parts, options={"length": 24}, watch="none"),
            tmp_path / str(parts),
        )
    whole = [v for *_, v in readings(tmp_path / "1")]
    for parts in (2, 3, 6):
        assert [v for *_, v in readings(tmp_path / str(parts))] == pytest.approx(whole, rel=1e-4)
    one, six = (strict(tmp_path / n)["result"] for n in ("1", "6"))
    assert one["first_loss"] == pytest.approx(six["first_loss"], rel=1e-6)


class Uneven(lab_tasks.Task):
    """Sequences of which few places are asked, by example as different as can be."""

    name, unit, batch_size, blind = "uneven", "nats", 6, 1.0
    settings, sources, num_training, num_held_out = {}, {}, 99, 23

    def examples(self, numbers):
        draw = torch.Generator().manual_seed(int(numbers.sum()))
        x = torch.randn(len(numbers), 7, 5, generator=draw)
        targets = torch.randint(0, 3, (len(numbers), 7), generator=draw)
        targets[torch.arange(7) >= 1 + numbers[:, None] % 7] = lab_tasks.UNASKED
        mask = torch.arange(7) < 1 + numbers[:, None] % 7
        return lab_tasks.Batch({"x": x, "ids": targets, "mask": mask}, targets)

    def batch(self, seed, step, size):
        return self.examples(torch.arange(step, step + size))

    def held_out(self, size, limit=None):
        return [self.examples(part) for part in torch.arange(limit or 23).split(size)]


class Answers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(5, 3), nn.Dropout(0.5)

    def forward(self, x, ids, mask):
        torch.rand(3)  # some models draw in evaluation too
        return self.dropout(self.linear(x))


@pytest.mark.parametrize(("parts", "processes"), [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (1, 6)])
def test_shares_sum_to_the_mean_over_all_targets(parts, processes):
    task, model = Uneven(), Answers().eval().double()
    for step in (1, 4):
        whole = task.batch(0, step, 6)
        model.zero_grad()
        x = {**whole.arguments, "x": whole.arguments["x"].double()}
        want = F.cross_entropy(model(**x).flatten(0, 1), whole.targets.flatten(), ignore_index=lab_tasks.UNASKED)
        gradient = torch.autograd.grad(want, model.linear.weight)[0]
        losses, tokens = [], 0
        for rank in range(processes):
            pieces = list(batches.shares(task, small(accumulate=parts), step, 6, rank, processes))
            assert len(pieces) == parts
            for batch, weight, count in pieces:
                tokens += count
                batch.arguments["x"] = batch.arguments["x"].double()
                losses.append(weight * task.loss(model, batch).double() / processes)
        total = sum(losses)
        assert total.item() == pytest.approx(want.item(), rel=1e-6)
        found = torch.autograd.grad(total, model.linear.weight)[0]
        assert torch.allclose(found, gradient, rtol=1e-5, atol=1e-7)
        assert tokens == int(whole.arguments["mask"].sum())


def test_tokens_per_second_counts_real_tokens(tmp_path):
    result = train(small(task="docs", options={"length": 24}, accumulate=2, steps=5), tmp_path / "a")
    task = lab_tasks.find_task("docs", options={"length": 24})
    real = sum(int(task.batch(0, step, 6).arguments["mask"].sum()) for step in range(1, 6))
    assert result.tokens_per_second * result.training_seconds == pytest.approx(real, rel=0.01)
    images = lab_tasks.Batch({"images": torch.zeros(5, 1, 8, 8)}, torch.zeros(5, dtype=torch.long))
    assert batches.tokens_of(images) == 5


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_is_a_ratio_with_its_interval_and_leaves_no_trace(mode):
    scipy_stats = pytest.importorskip("scipy.stats")
    task, model = Uneven(), Answers()
    model.train(mode)
    model.linear.eval()
    state = torch.get_rng_state()
    found = batches.evaluate(model, task, small(held_out=19))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training == mode and model.dropout.training == mode
    assert all(p.grad is None for p in model.parameters())
    sums, counts, right = [], [], 0
    for batch in task.held_out(64, 19):
        scores = model.linear(batch.arguments["x"]).detach().double()
        for row, targets in zip(scores, batch.targets, strict=True):
            asked = [(s, t) for s, t in zip(row, targets.tolist(), strict=True) if t != lab_tasks.UNASKED]
            sums.append(sum((s.exp().sum().log() - s[t]).item() for s, t in asked))
            counts.append(len(asked))
            right += sum(int(s.argmax()) == t for s, t in asked)
    n, mean = len(sums), sum(sums) / sum(counts)
    spread = sum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True)) / (n - 1)
    half = scipy_stats.t.ppf(0.975, n - 1) * math.sqrt(spread / n) / (sum(counts) / n)
    assert n == 19 and len(set(counts)) == 7
    assert found["loss"] == pytest.approx(mean, rel=1e-6)
    assert found["half_width"] == pytest.approx(half, rel=1e-6)
    assert found["accuracy"] == right / sum(counts)


def test_a_loader_in_the_evaluation_moves_no_random_number():
    experiment = own()
    task = made.task_of(experiment)
    model, _ = made.make_model(experiment, task)
    state = torch.get_rng_state()
    first = batches.evaluate(model, task, experiment)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert batches.evaluate(model, made.task_of(experiment), experiment) == first  # drawn again: the same batches
    assert first["loss"] > 0 and first["half_width"] > 0 and first["accuracy"] is None


def test_every_held_out_example_is_used_if_asked(tmp_path):
    task = lab_tasks.find_task("docs", options={"length": 24})
    experiment = small(task="docs", options={"length": 24}, held_out=0)
    model, _ = made.make_model(experiment, task)
    scores = [lab_tasks.score(model.eval(), batch) for batch in task.held_out(97)]
    assert sum(len(s.losses) for s in scores) == task.num_held_out > 20
    want = torch.cat([s.losses for s in scores]).mean().item()
    assert batches.evaluate(model, task, experiment)["loss"] == pytest.approx(want, rel=1e-6)


# ---- several processes -----------------------------------------------------------------------------------------------


def test_two_processes_are_one_to_rounding(tmp_path):
    """Also with synced statistics, with micro-batches, stopped and resumed; a batch that cannot be shared is refused."""
    docs = small(task="docs", options={"length": 24}, evaluations=2, steps=6)
    jobs = {
        "text": (small(steps=6), None),
        "docs": (docs, None),
        "batch": (docs.changed(norm="batch", batch_size=8), None),
        "batch-slow": (docs.changed(norm="batch", batch_size=8, lr=1e-5), None),
        "post-accumulate": (docs.changed(placement="post", accumulate=2, batch_size=8, watch="none"), None),
        "stopped": (docs.changed(norm="batch", batch_size=8), 4),
        "own": (own(data="short_data", loss=None, steps=4).changed(make_model=f"{HERE}:plain_model"), None),
        "indivisible": (docs.changed(batch_size=7), None),
    }
    folders = {name: tmp_path / "two" / name for name in jobs}
    todo = [(experiment.to_dict(), folders[name], stop) for name, (experiment, stop) in jobs.items()]
    experiment, _ = jobs["stopped"]
    todo.append((experiment.to_dict(), folders["stopped"], None))
    workers = [child(parallel, rank, tmp_path / "store", todo) for rank in range(2)]
    assert [ended(worker) for worker in workers] == [0, 0]
    for name, (experiment, _) in jobs.items():
        found = [json.loads(folders[name].with_suffix(f".{rank}.json").read_text()) for rank in range(2)]
        if name == "indivisible":
            words = "ValueError: a batch of 7 cannot be cut into 1 micro-batches on each of 2 processes"
            assert [f["error"] for f in found] == [words, words]
            continue
        alone = experiment.changed(accumulate=2) if name == "own" else experiment
        one = train(alone, tmp_path / "one" / name, keep_weights=True)
        assert found[0]["curve"] == found[1]["curve"], name
        close = {"rel": 1e-4, "abs": 1e-6}
        # Batch norm undoes the biases before it: their gradients are rounding alone, Adam makes steps of them, and the
        # running mean follows late. So held-out losses are compared at a low rate, training losses at both.
        lagging = name in ("batch", "stopped")
        if not lagging:
            assert [v for _, v in found[0]["curve"]] == pytest.approx([v for _, v in one.curve], **close), name
        pair = [[v for _, p, _, v in readings(f / name) if p == "loss"] for f in (tmp_path / "one", tmp_path / "two")]
        assert pair[1] == pytest.approx(pair[0], **close) and len(pair[0]) == experiment.steps, name
        assert_every_step_once(folders[name], experiment.steps)
        states = [
            checkpoints._library().load_file(f / name / checkpoints.WEIGHTS)
            for f in (tmp_path / "one", tmp_path / "two")
        ]
        for key, value in states[0].items():
            if lagging or key.endswith("bias"):  # an attention's key bias has no gradient either
                continue
            assert torch.allclose(value.float(), states[1][key].float(), rtol=1e-2, atol=2e-4), (name, key)
    assert any("over all 2 processes" in chosen["text"] for chosen in strict(folders["batch"])["choices"])
    assert readings(folders["stopped"]) == readings(folders["batch"])


def test_torchrun_trains_one_run(tmp_path):
    path = tmp_path / "experiment.toml"
    experiment = small(steps=5, evaluations=1)
    path.write_text(experiment.to_toml())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "normlab", "train",
               str(path), "--out", str(tmp_path / "two"), "--json"]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=5 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["loss"] == pytest.approx(train(experiment, tmp_path / "one").loss, rel=1e-5)
    assert strict(tmp_path / "two")["processes"] == 2


# ---- the command line ------------------------------------------------------------------------------------------------

SETTINGS = ["--steps", "6", "--lr", "0.01", *(part for s in ("batch_size=6", "held_out=20", "evaluations=2", "dim=16",
            "num_layers=1", "num_heads=2", "ffn_dim=24", "dropout=0.1") for part in ("--set", s))]  # fmt: skip


def test_the_command_shows_an_experiment_that_reads_back(tmp_path, capsys):
    options = ["--norm", "rms", "--placement", "post", "--seed", "4", *SETTINGS, "--set", 'norm_options={"eps": 0.001}']
    assert cli.main(["train", *options, "--show"]) == 0
    path = tmp_path / "experiment.toml"
    path.write_text(capsys.readouterr().out)
    experiment = Experiment.read(path)
    assert (experiment.norm, experiment.placement, experiment.seed, experiment.lr, experiment.steps) == (
        "rms",
        "post",
        4,
        0.01,
        6,
    )
    assert (
        experiment.batch_size == 6
        and experiment.model["norm_options"] == {"eps": 0.001}
        and experiment.model["dim"] == 16
    )
    assert cli.main(["train", str(path), "--seed", "5", "--show"]) == 0
    (tmp_path / "other.toml").write_text(capsys.readouterr().out)
    assert Experiment.read(tmp_path / "other.toml") == experiment.changed(seed=5)


def test_the_command_trains_and_its_weights_give_the_reported_loss(tmp_path, capsys):
    assert cli.main(["train", *SETTINGS, "--out", str(tmp_path / "a"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == strict(tmp_path / "a")["result"] and [s for s, _ in result["curve"]] == [3, 6]
    experiment = Experiment.from_dict(strict(tmp_path / "a")["experiment"])
    task = made.task_of(experiment)
    model, _ = made.make_model(experiment.changed(seed=77), task)
    model.load_state_dict(checkpoints._library().load_file(tmp_path / "a" / checkpoints.WEIGHTS), strict=False)
    found = batches.evaluate(model, task, experiment)
    assert found["loss"] == pytest.approx(result["loss"], rel=1e-6)
    assert found["half_width"] == pytest.approx(result["loss_half_width"], rel=1e-6)
    assert cli.main(["train", *SETTINGS, "--out", str(tmp_path / "a")]) == 0
    assert str(tmp_path / "a") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--set", "dimm=3"], 2, "Did you mean 'dim'"),
        (["--set", "dim"], 2, "NAME=VALUE"),
        (["--set", "steps=0"], 2, "steps"),
        (["--norm", "lair"], 2, "Did you mean 'layer'"),
        (["--task", "docz"], 2, "Did you mean 'docs'"),
        (["--model", "nowhere:make", "--data", "nowhere:data"], 2, "nowhere"),
        (["absent.toml"], 1, "absent.toml"),
        (["--text", "absent.txt"], 1, "absent.txt"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch, options, code, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *options, "--out", "a"]) == code
    assert words in capsys.readouterr().err


def test_the_command_refuses_places_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["train", *SETTINGS, "--out", str(tmp_path / "file" / "a")]) == 1
    assert "file" in capsys.readouterr().err
