"""What is trained on: recomputed by other means, split without overlap, the same everywhere; refusals in words."""

from __future__ import annotations

import ast
import datetime
import gc
import importlib.util
import math
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
import torch
from task_cases import Table, by_hand, digest, rows, seen_in_training
from torch import nn

import normlab
from normlab.lab import tasks
from normlab.lab.tasks import TASKS, Batch, builtin, find_task, table

needs_sklearn = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
NAMES = [pytest.param(name, marks=needs_sklearn) if name == "digits" else name for name in TASKS]
every_task = pytest.mark.parametrize("name", NAMES)


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_loss_and_scores_are_those_of_a_loop_and_skip_what_is_not_asked():
    model, tokens = Table(), torch.randint(7, (11, 13))
    targets = torch.where(torch.rand(11, 13) < 0.4, -100, torch.randint(5, (11, 13)))
    targets[4] = -100
    want = by_hand(model, tokens, targets)
    everything = [loss for row in want for loss, _ in row]
    batch = Batch({"tokens": tokens}, targets)
    assert tasks.loss(model, batch).item() == pytest.approx(sum(everything) / len(everything), rel=1e-6)
    scores = tasks.score(model, batch)
    assert scores.losses.dtype == torch.float64 and not scores.losses.requires_grad
    assert scores.counts.tolist() == [len(row) for row in want] and scores.counts[4] == 0
    assert scores.correct.tolist() == [sum(hit for _, hit in row) for row in want]
    means = [sum(loss for loss, _ in row) / len(row) if row else 0.0 for row in want]
    torch.testing.assert_close(scores.losses, torch.tensor(means, dtype=torch.float64), rtol=1e-6, atol=1e-7)
    weighted = (scores.losses * scores.counts).sum() / scores.counts.sum()
    assert weighted.item() == pytest.approx(tasks.loss(model, batch).item(), rel=1e-6)


def test_classes_are_scored_one_per_example():
    model, tokens, targets = Table(), torch.randint(7, (17,)), torch.randint(5, (17,))
    want = [row[0] for row in by_hand(model, tokens[:, None], targets[:, None])]
    scores = tasks.score(model, Batch({"tokens": tokens}, targets))
    torch.testing.assert_close(scores.losses.tolist(), [loss for loss, _ in want], rtol=1e-6, atol=1e-7)
    assert scores.correct.tolist() == [hit for _, hit in want] and scores.counts.tolist() == [1] * 17
    assert tasks.loss(model, (tokens, targets)).item() == pytest.approx(scores.losses.mean().item(), rel=1e-6)


def test_losses_of_16_bit_scores_are_taken_in_float32():
    scores = torch.randn(9, 301).bfloat16()
    targets = torch.randint(301, (9,))
    want = torch.nn.functional.cross_entropy(scores.double(), targets)
    got = tasks.loss(nn.Identity(), (scores, targets))
    assert got.dtype == torch.float32 and got.item() == pytest.approx(want.item(), rel=1e-6)


def test_losses_refuse_what_they_cannot_judge():
    with pytest.raises(TypeError, match="got list of Tensor, Tensor, Tensor; give a loss of your own"):
        tasks.loss(nn.Identity(), [torch.zeros(2)] * 3)
    with pytest.raises(TypeError, match=r"\(inputs, targets\), got Tensor"):
        tasks.loss(nn.Identity(), torch.zeros(2, 2))
    with pytest.raises(TypeError, match="a tensor from the model, got tuple of Tensor"):
        tasks.loss(lambda x: (x,), (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(ValueError, match=r"scores of shape \(2, 3\) do not answer targets of shape \(2, 3\)"):
        tasks.loss(nn.Identity(), (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)))


# ---- what holds for every task ---------------------------------------------------------------------------------------


@every_task
def test_batches_depend_on_seed_and_step_alone(name):
    task = find_task(name)
    forward = [digest([task.batch(5, step, 13)]) for step in (1, 2, 3, 400)]
    backward = [digest([task.batch(5, step, 13)]) for step in (400, 3, 2, 1)]
    assert forward == backward[::-1] and len(set(forward)) == 4
    assert digest([task.batch(6, 1, 13)]) != forward[0]


PRINTS_DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_tasks import digest
from normlab.lab.tasks import find_task
for name in sys.argv[2:]:
    task = find_task(name)
    print(name, digest(task.batch(7, step, 11) for step in (1, 2, 3, 150, 97)), digest(task.held_out(37)))
"""


def test_another_process_with_another_hash_seed_sees_the_same_bits():
    names = [n for n in TASKS if n != "digits" or importlib.util.find_spec("sklearn")]
    want = [
        f"{n} {digest(find_task(n).batch(7, s, 11) for s in (1, 2, 3, 150, 97))} {digest(find_task(n).held_out(37))}"
        for n in names
    ]
    for hash_seed in ("1", "4099"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PRINTS_DIGESTS, str(Path(__file__).parent), *names]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.stdout.split("\n")[:-1] == want, ran.stderr


@every_task
def test_the_random_state_of_the_user_is_left_alone(name):
    before = torch.get_rng_state()
    find_task(name).batch(0, 1, 3)
    table._load.__wrapped__(name, (), (), ())
    assert torch.equal(torch.get_rng_state(), before) and gc.isenabled()


@every_task
def test_held_out_batches_hold_every_example_once_or_an_even_choice(name):
    task = find_task(name)
    whole, small = task.held_out(10**6), task.held_out(37)
    assert len(whole) == 1 and len(whole[0].targets) == task.num_held_out
    assert [len(b.targets) for b in small[:-1]] == [37] * (task.num_held_out // 37)
    for key, values in whole[0].arguments.items():
        assert torch.equal(values, torch.cat([b.arguments[key] for b in small]))
    chosen = [math.floor(i * task.num_held_out / 29) for i in range(29)]
    some = task.held_out(8, 29)
    assert torch.equal(torch.cat([b.targets for b in some]), whole[0].targets[chosen])
    assert sum(len(b.targets) for b in task.held_out(8, 10**9)) == task.num_held_out


@every_task
def test_a_model_of_the_proposed_shape_learns_more_than_a_blind_predictor(name):
    task = find_task(name)
    torch.manual_seed(1)
    model = normlab.build(**{**task.settings, "dim": 32, "num_layers": 1, "ffn_dim": 64})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    held_out = task.held_out(64, 128)

    def held_out_loss():
        return torch.cat([task.score(model, batch).losses for batch in held_out]).mean().item()

    assert held_out_loss() > 0.98 * task.blind  # nothing is given away
    for step in range(1, 81):
        optimizer.zero_grad()
        task.loss(model, task.batch(0, step, task.batch_size)).backward()
        optimizer.step()
    assert held_out_loss() < 0.95 * task.blind


@every_task
def test_the_proposed_model_takes_the_batches_as_they_are(name):
    task = find_task(name)
    assert TASKS[name].title and TASKS[name].about and TASKS[name].data
    model = normlab.build(**task.settings)
    assert torch.isfinite(task.loss(model, task.batch(0, 1, 3)))
    assert all(re.fullmatch("[0-9a-f]{64}", found) for found in task.sources.values()) and task.sources
    assert re.fullmatch("nats per (byte|document|image|character)", task.unit)


def test_tasks_are_read_once_per_process():
    assert find_task("dates") is find_task("dates", files=[], options={})
    assert find_task("text", options={"length": 31}) is find_task("text", options={"length": 31})
    assert find_task("text", options={"length": 31}) is not find_task("text")


def test_what_is_asked_wrongly_is_refused_in_words():
    with pytest.raises(ValueError, match=r"unknown task 'digit'\. Did you mean 'digits'"):
        find_task("digit")
    with pytest.raises(ValueError, match=r"unknown option of task 'text' 'lenght'\. Did you mean 'length'"):
        find_task("text", options={"lenght": 3})
    with pytest.raises(ValueError, match="unknown option of task 'dates' 'files'"):
        find_task("dates", options={"files": 3})
    for wrong in (0, True, 2.5, [3]):
        with pytest.raises(
            ValueError, match="length must be a whole number of at least 1, got " + re.escape(repr(wrong))
        ):
            find_task("docs", options={"length": wrong})
    with pytest.raises(ValueError, match="task 'dates' has its own data; files belong to task 'text'"):
        find_task("dates", files=["a.txt"])
    with pytest.raises(TypeError, match=r"list of paths, got the string 'a\.txt'"):
        find_task("text", files="a.txt")
    task = find_task("dates")
    with pytest.raises(ValueError, match="step must be a whole number of at least 1, got 0"):
        task.batch(0, 0, 4)
    with pytest.raises(ValueError, match="size must be a whole number"):
        task.batch(0, 1, 0)
    with pytest.raises(ValueError, match="limit must be a whole number"):
        task.held_out(4, 0)


# ---- docs and digits -------------------------------------------------------------------------------------------------


def test_docs_are_docstrings_of_their_package_and_the_mask_is_true_where_they_are():
    home = Path(sysconfig.get_paths()["stdlib"])
    task = find_task("docs")
    of = {}
    for package in builtin.PACKAGES:
        for path in (home / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = (ast.get_docstring(node) or "").encode()[:96]
                    of.setdefault(text, set()).add(package)
    names = [found.removeprefix("docstrings of ") for found in task.sources]
    assert set(names) <= set(builtin.PACKAGES) and task.settings["num_classes"] == len(names) >= 6
    batches = task.held_out(64) + [task.batch(0, step, 97) for step in range(1, 6)]
    for batch in batches:
        tokens, mask = batch.arguments["tokens"], batch.arguments["mask"]
        assert tokens.shape == mask.shape and mask.dtype == torch.bool and tokens.shape[1] == 96
        assert (tokens[~mask] == 0).all() and (tokens[mask] != 0).all()
        assert not (mask[:, 1:] & ~mask[:, :-1]).any()  # real ones first
        lengths = mask.sum(1).tolist()
        for row, length, label in zip(tokens.tolist(), lengths, batch.targets.tolist(), strict=True):
            assert of[bytes(row[:length])] == {names[label]}


@pytest.mark.parametrize("name", ["docs", pytest.param("digits", marks=needs_sklearn)])
def test_no_example_is_both_trained_on_and_held_out(name):
    task = find_task(name)
    first = "tokens" if name == "docs" else "images"

    def keys(batch):
        return [row.numpy().tobytes() for row in batch.arguments[first].flatten(1)]

    held_out = {k for batch in task.held_out(64) for k in keys(batch)}
    trained = seen_in_training(task, keys)
    assert not held_out & trained
    assert 0.15 < task.num_held_out / (task.num_held_out + task.num_training) < 0.25
    if name == "docs":  # no text twice
        assert len(held_out) == task.num_held_out and len(trained) == task.num_training
        counts = Counter(torch.cat([b.targets for b in task.held_out(64)]).tolist())
        assert len(counts) == task.settings["num_classes"] and max(counts.values()) <= 60


@pytest.mark.parametrize("name", ["docs", pytest.param("digits", marks=needs_sklearn)])
def test_a_pass_holds_every_example_once_and_the_next_one_in_another_order(name):
    task = find_task(name)
    first = "tokens" if name == "docs" else "images"
    size, count = 53, task.num_training
    steps = range(1, 2 * count // size + 2)
    drawn = [row.numpy().tobytes() for s in steps for row in task.batch(9, s, size).arguments[first].flatten(1)]
    one, two = drawn[:count], drawn[count : 2 * count]
    assert Counter(one) == Counter(two) and one != two
    whole = task.batch(9, 1, 2 * count + 3).arguments[first].flatten(1)  # a batch may span passes
    assert [row.numpy().tobytes() for row in whole][: 2 * count] == one + two


@pytest.mark.parametrize("name", ["docs", pytest.param("digits", marks=needs_sklearn)])
def test_the_blind_loss_of_classes_is_that_of_their_frequencies(name):
    task = find_task(name)
    seen = Counter(task.batch(0, 1, task.num_training).targets.tolist())
    classes = task.settings["num_classes"]
    asked = [label for batch in task.held_out(7) for label in batch.targets.tolist()]
    want = sum(-math.log((seen[label] + 1) / (task.num_training + classes)) for label in asked) / len(asked)
    assert task.blind == pytest.approx(want, rel=1e-12)


def test_no_package_is_imported_to_read_its_docstrings():
    code = """
import sys
from normlab.lab.tasks import find_task
for name in [n for n in sys.modules if n.split(".")[0] == "xml"]:
    del sys.modules[name]
find_task("docs")
print(any(n.split(".")[0] == "xml" for n in sys.modules), "sklearn" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "False"], ran.stderr


def test_a_python_without_sources_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ValueError, match=r"holds no sources of email, http, .* installed without them"):
        builtin.docs_task()
    assert gc.isenabled()


def test_packages_that_are_missing_are_left_out_and_shared_texts_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    for package in ("xml", "http"):
        (tmp_path / package / "tests").mkdir(parents=True)
        source = '"""Shared."""\n' + "".join(f'def f{n}():\n    """{package} {n}."""\n' for n in range(300))
        (tmp_path / package / "__init__.py").write_text(source)
        left_out = "".join(f'def f{n}():\n    """test {n}{package}"""\n' for n in range(100))
        (tmp_path / package / "tests" / "a.py").write_text(left_out)
    task = builtin.docs_task(length=11)
    assert list(task.sources) == ["docstrings of http", "docstrings of xml"] and task.settings["num_classes"] == 2
    assert task.num_training + task.num_held_out == 2 * 200  # capped
    texts = rows(task.batch(0, 1, task.num_training).arguments["tokens"]) + rows(
        task.held_out(999)[0].arguments["tokens"]
    )
    assert all(text.split()[0] in (b"http", b"xml") for text in texts)


@needs_sklearn
def test_digits_are_those_of_scikit_learn_standardised():
    from sklearn.datasets import load_digits

    data = load_digits()
    task = find_task("digits")
    parts = [*task.held_out(64), task.batch(0, 1, task.num_training)]
    images = torch.cat([b.arguments["images"] for b in parts])
    labels = torch.cat([b.targets for b in parts])
    assert images.shape == (1797, 1, 8, 8) and images.dtype == torch.float32
    training = parts[-1].arguments["images"]
    assert abs(training.mean()) < 1e-5 and abs(training.std() - 1) < 1e-5
    low, high = images.min(), images.max()  # pixels of 0 and of 16
    pixels = ((images - low) / (high - low) * 16).round().to(torch.uint8).flatten(1)
    got = Counter((bytes(row), label) for row, label in zip(pixels.numpy(), labels.tolist(), strict=True))
    want = Counter((bytes(row.astype("uint8")), int(label)) for row, label in zip(data.data, data.target, strict=True))
    assert got == want


@needs_sklearn
def test_digits_train_a_convolution_too():
    task = find_task("digits")
    model = normlab.build(**{**task.settings, "architecture": "convolution", "dim": 16, "num_layers": 1})
    assert task.score(model, task.batch(0, 1, 5)).losses.shape == (5,)


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"the task digits needs sklearn: pip install 'normlab\[digits\]'"):
        builtin.digits_task()


# ---- dates -----------------------------------------------------------------------------------------------------------


# Another way to read a date: strip the decoration and let strptime have it (English names in the C locale).
def read_date(text):
    plain = re.sub(r"^(?:[A-Z][a-z]+day),? ", "", text)
    plain = re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", plain).removeprefix("the ").replace(" of ", " ").replace(",", "")
    for form in ("%d %B %Y", "%B %d %Y", "%b %d %Y", "%d-%b-%Y", "%Y %b %d"):
        try:
            return datetime.datetime.strptime(plain, form).date()
        except ValueError:
            continue
    raise AssertionError(f"cannot read {text!r}")


def dates_in(batch):
    source, mask = batch.arguments["source"], batch.arguments["source_mask"]
    lengths = mask.sum(1).tolist()
    return [bytes(row[:length]).decode() for row, length in zip(source.tolist(), lengths, strict=True)]


def test_dates_mean_what_their_targets_say():
    task = find_task("dates")
    for batch in [*task.held_out(512, 1024), *(task.batch(1, step, 211) for step in range(1, 6))]:
        source, target, mask = (batch.arguments[n] for n in ("source", "target", "source_mask"))
        assert mask.dtype == torch.bool and (source[~mask] == 0).all() and (source[mask] != 0).all()
        assert not (mask[:, 1:] & ~mask[:, :-1]).any()
        assert (target[:, 0] == builtin.BEGIN).all() and torch.equal(target[:, 1:], batch.targets[:, :-1])
        for text, want in zip(dates_in(batch), rows(batch.targets), strict=True):
            day = read_date(text)
            assert day.isoformat().encode() == want
            named = re.match("[A-Z][a-z]+day", text)
            assert named is None or named.group() == day.strftime("%A")


@pytest.mark.parametrize(("day", "ordinal"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"),
                                              (13, "13th"), (21, "21st"), (22, "22nd"), (23, "23rd"), (31, "31st")])  # fmt: skip
def test_ordinals(day, ordinal):
    assert builtin.written(datetime.date(2021, 3, day), "{mon} {nth}, {year}").decode() == f"Mar {ordinal}, 2021"


def test_every_form_is_drawn_equally_often_and_fits():
    written = [builtin.written(datetime.date(2020, 9, 23), form) for form in builtin.FORMATS]
    assert max(map(len, written)) == builtin.LONGEST == len("Wednesday, September 23rd, 2020")
    batch = find_task("dates").batch(0, 1, 4000)
    by_form = Counter()
    for text, iso in zip(dates_in(batch), rows(batch.targets), strict=True):
        day = datetime.date.fromisoformat(iso.decode())
        by_form.update(n for n, form in enumerate(builtin.FORMATS) if builtin.written(day, form).decode() == text)
    assert set(by_form) == set(range(len(builtin.FORMATS)))
    assert all(350 < count < 800 for count in by_form.values())  # in May two forms look alike


def test_no_day_is_both_trained_on_and_held_out():
    task = find_task("dates")
    held_out = {row for batch in task.held_out(512) for row in rows(batch.targets)}
    assert len(held_out) == task.num_held_out
    trained = {row for step in range(1, 26) for row in rows(task.batch(4, step, 4000).targets)}
    assert not held_out & trained
    days = (datetime.date(2069, 12, 31) - datetime.date(1970, 1, 1)).days + 1
    assert len(trained) > 0.9 * (days - len(held_out)) and 0.09 < len(held_out) / days < 0.11
    assert task.num_training == (days - len(held_out)) * len(builtin.FORMATS)


def test_the_blind_loss_of_dates_is_that_of_a_decoder_that_knows_the_calendar():
    first, last = datetime.date(1970, 1, 1).toordinal(), datetime.date(2069, 12, 31).toordinal()
    every = [datetime.date.fromordinal(n).isoformat() for n in range(first, last + 1)]
    begun = Counter(day[:k] for day in every for k in range(11))
    one = "2031-08-17"
    chain = [-math.log(begun[one[: k + 1]] / begun[one[:k]]) for k in range(10)]
    assert find_task("dates").blind == pytest.approx(sum(chain) / 10, rel=1e-12)
