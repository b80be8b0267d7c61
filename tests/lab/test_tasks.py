"""What is trained on: recomputed by other means, split without overlap, the same everywhere; refusals in words."""

from __future__ import annotations

import ast
import builtins
import datetime
import gc
import hashlib
import importlib.util
import json
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
from torch import nn

import normlab
from normlab.lab import tasks
from normlab.lab.tasks import TASKS, Batch, OwnTask, builtin, find_task, own, table

needs_sklearn = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
NAMES = [pytest.param(name, marks=needs_sklearn) if name == "digits" else name for name in TASKS]
every_task = pytest.mark.parametrize("name", NAMES)


class Table(nn.Module):
    """Scores looked up by the last argument's ids: a model whose every output is known."""

    def __init__(self, vocabulary=7, classes=5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, classes))

    def forward(self, tokens):
        return self.weight[tokens]


def digest(batches):
    found = hashlib.sha256()
    for batch in batches:
        for name, values in sorted(batch.arguments.items()):
            found.update(name.encode() + str((values.dtype, tuple(values.shape))).encode() + values.numpy().tobytes())
        found.update(batch.targets.numpy().tobytes())
    return found.hexdigest()


def seen_in_training(task, key, passes=1, seed=3):
    """Keys of everything that is drawn in about ``passes`` passes."""
    size = 211
    steps = range(1, 2 + passes * task.num_training // size)
    return {found for step in steps for found in key(task.batch(seed, step, size))}


def rows(values):
    return [bytes(row) for row in values.flatten(1).to(torch.uint8).numpy()]


# ---- losses ----------------------------------------------------------------------------------------------------------


def by_hand(model, tokens, targets):
    """Loss and hits of every target that is asked, one after the other, in Python floats."""
    found = []
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        pairs = [(t, w) for t, w in zip(row, wanted, strict=True) if w != -100]
        of_row = []
        for token, want in pairs:
            scores = model.weight[token].tolist()
            of_row.append((math.log(sum(map(math.exp, scores))) - scores[want], scores.index(max(scores)) == want))
        found.append(of_row)
    return found


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


# ---- text ------------------------------------------------------------------------------------------------------------


def windows_in(batch):
    """(first, behind the last) place of every window, its targets included, in a file that tells places."""
    found = []
    for window in torch.cat((batch.arguments["tokens"][:, :1], batch.targets), 1).tolist():
        mark = window.index(0x80)
        start = 4 * (window[mark + 1] * 127 + window[mark + 2]) - mark
        found.append((start, start + len(window)))
    return found


def test_no_window_of_training_touches_a_held_out_byte_and_each_place_is_used(tmp_path):
    length, total = 7, 4 * 1523
    path = tmp_path / "places.txt"
    path.write_bytes(b"".join(bytes((0x80, n // 127, n % 127, 1)) for n in range(total // 4)))  # 0x80 is the mark
    task = find_task("text", files=[str(path)], options={"length": length})

    held_out = [window for batch in task.held_out(23) for window in windows_in(batch)]
    targets = Counter(i for first, end in held_out for i in range(first + 1, end))
    blocks = [total * (i + 1) // 60 - total * i // 60 for i in (5, 15, 25, 35, 45, 55)]
    assert set(targets.values()) == {1} and len(held_out) == sum((block - 1) // length for block in blocks)
    assert sorted({(first + 1) * 60 // total for first, _ in held_out}) == [5, 15, 25, 35, 45, 55]

    trained = {window for step in range(1, 400) for window in windows_in(task.batch(2, step, 97))}
    assert len(trained) > 0.99 * task.num_training and {end - first for first, end in trained} == {length + 1}
    held_out_bytes, trained_bytes = ({i for w in part for i in range(*w)} for part in (held_out, trained))
    assert not held_out_bytes & trained_bytes
    # Only the end of a held-out block, less than a window, is used for neither.
    assert total - len(held_out_bytes | trained_bytes) <= 6 * length
    assert min(trained_bytes) == 0 and max(trained_bytes) == total - 1
    sixths = Counter(first * 6 // total for step in range(1, 80) for first, _ in windows_in(task.batch(3, step, 97)))
    assert all(abs(count / (79 * 97) - 1 / 6) < 0.02 for count in sixths.values())  # no place is preferred


def test_targets_are_the_next_bytes_of_the_help_pages():
    from pydoc_data.topics import topics

    content = "\n".join(topics[name] for name in sorted(topics)).encode()
    task = find_task("text")
    assert task.sources == {"pydoc_data.topics": hashlib.sha256(content).hexdigest()}
    batch = task.batch(11, 4, 19)
    tokens, targets = batch.arguments["tokens"], batch.targets
    assert tokens.shape == targets.shape == (19, 64) and tokens.dtype == targets.dtype == torch.long
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for row, last in zip(tokens.tolist(), targets[:, -1].tolist(), strict=True):
        assert bytes([*row, last]) in content


def test_the_blind_loss_of_text_is_that_of_byte_frequencies():
    from pydoc_data.topics import topics

    content = "\n".join(topics[name] for name in sorted(topics)).encode()
    task = find_task("text")
    inside = [False] * len(content)
    for block in range(5, 60, 10):
        for i in range(len(content) * block // 60, len(content) * (block + 1) // 60):
            inside[i] = True
    seen = Counter(byte for byte, held in zip(content, inside, strict=True) if not held)
    total = sum(seen.values()) + 256
    asked = [byte for batch in task.held_out(64) for byte in batch.targets.flatten().tolist()]
    want = sum(-math.log((seen[byte] + 1) / total) for byte in asked) / len(asked)
    assert task.blind == pytest.approx(want, rel=1e-12)


SENTENCES = [f"Zeile {n}: Grüße, {n * n % 977} Äpfel." for n in range(300)]


def test_text_of_files_is_read_as_it_stands(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_bytes("\n".join(SENTENCES).encode("latin-1"))  # not UTF-8: the bytes count
    other = tmp_path / "b.MD"
    other.write_text("# Ende\n" * 200, encoding="utf-8")
    task = find_task("text", files=[str(plain), str(other)], options={"length": 17})
    assert task.sources == {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in (plain, other)}
    whole = plain.read_bytes() + b"\n" + other.read_bytes()
    assert all(row in whole for row in rows(task.batch(0, 1, 300).arguments["tokens"]))
    assert task.settings["max_length"] == 17
    before = digest(task.held_out(8))
    plain.write_bytes("\n".join(reversed(SENTENCES)).encode("latin-1"))
    changed = find_task("text", files=[str(plain), str(other)], options={"length": 17})
    assert digest(changed.held_out(8)) != before


def same_as_plain_text(tmp_path, path):
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(SENTENCES), encoding="utf-8")
    want, got = (find_task("text", files=[str(p)], options={"length": 19}) for p in (plain, path))
    if path.is_file():
        assert got.sources == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    return digest(got.held_out(8)) == digest(want.held_out(8)) and got.blind == want.blind


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": 1, "text": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(SENTENCES)]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    assert same_as_plain_text(tmp_path, path)
    path.write_text('{"text": "a"}\n\n{"body": "b", "id": 2}\n')
    with pytest.raises(
        ValueError, match=r"a\.jsonl, line 3: needs an object with a field 'text', got the fields body, id"
    ):
        find_task("text", files=[str(path)])
    path.write_text('{"text": "a"}\n["text"]\n')
    with pytest.raises(ValueError, match=r"line 2: needs an object with a field 'text', got list"):
        find_task("text", files=[str(path)])
    path.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not JSON"):
        find_task("text", files=[str(path)])
    path.write_text('{"text": "a"}\n{"text": null}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: 'text' must hold a string, got NoneType"):
        find_task("text", files=[str(path)])


def test_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(300)), "text": SENTENCES}), path, row_group_size=37)
    assert same_as_plain_text(tmp_path, path)
    pq.write_table(pa.table({"id": [1], "body": ["b"]}), path)
    with pytest.raises(ValueError, match=r"a\.parquet: needs a column 'text', has id, body"):
        find_task("text", files=[str(path)])
    pq.write_table(pa.table({"text": ["b", None]}), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: 'text' must hold a string, got NoneType"):
        find_task("text", files=[str(path)])


def test_a_folder_of_hugging_face_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"id": list(range(300)), "text": SENTENCES})
    data.save_to_disk(str(tmp_path / "one"))
    assert same_as_plain_text(tmp_path, tmp_path / "one")
    text = "\n".join(SENTENCES).encode()
    found = find_task("text", files=[str(tmp_path / "one")])
    assert found.sources == {str(tmp_path / "one"): hashlib.sha256(text).hexdigest()}
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(ValueError, match=r"holds several splits; give one of them: .*two/train, .*two/test"):
        find_task("text", files=[str(tmp_path / "two")])
    assert same_as_plain_text(tmp_path, tmp_path / "two" / "train")
    data.remove_columns("text").save_to_disk(str(tmp_path / "three"))
    with pytest.raises(ValueError, match="three: needs a column 'text', has id"):
        find_task("text", files=[str(tmp_path / "three")])


@pytest.mark.parametrize(("made", "blocked", "extra"), [
    ("file", "pyarrow", "parquet"),
    ("folder", "datasets", "datasets"),
])  # fmt: skip
def test_a_missing_package_is_named_with_its_extra_and_its_cause(tmp_path, monkeypatch, made, blocked, extra):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"") if made == "file" else path.mkdir()
    for name in [n for n in sys.modules if n.split(".")[0] == blocked]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(ImportError, match=rf"needs {blocked}: pip install 'normlab\[{extra}\]'") as raised:
        find_task("text", files=[str(path)])
    assert isinstance(raised.value.__cause__, ImportError)


def test_files_that_cannot_serve_are_refused_in_words(tmp_path):
    short = tmp_path / "short.txt"
    short.write_bytes(b"x" * (60 * 65 - 1))
    with pytest.raises(ValueError, match=r"short\.txt: 3899 bytes are too few.*length \+ 1 = 65 .*at least 3900 bytes"):
        find_task("text", files=[str(short)])
    short.write_bytes(b"x" * (60 * 65))
    assert find_task("text", files=[str(short)]).num_held_out == 6
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: nowhere\.txt"):
        find_task("text", files=["nowhere.txt"])
    (tmp_path / "a.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.gz: text is read from \.txt, .* not from \.gz"):
        find_task("text", files=[str(tmp_path / "a.gz")])
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(ValueError, match="not from files without a suffix"):
        find_task("text", files=[str(tmp_path / "plain")])


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


# ---- the user's own --------------------------------------------------------------------------------------------------


def endless(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(7, (5, 3), generator=generator), torch.randint(5, (5, 3), generator=generator)


def three(seed, split):
    return [f"{split} {seed} {n}" for n in range(3)]


def test_own_batches_go_on_are_repeated_and_are_passed_over():
    calls = []

    def data(seed):
        calls.append(seed)
        return endless(seed)

    task = OwnTask(data)
    straight = [task.batch(0, step, 5) for step in range(1, 8)]
    assert calls == [0]
    assert all(torch.equal(a, b) for a, b in zip(task.batch(0, 7, 5), straight[6], strict=True)) and calls == [0]
    assert torch.equal(task.batch(1, 1, 5)[0], next(endless(1))[0])
    assert torch.equal(task.batch(0, 3, 5)[0], straight[2][0])  # backwards: from the start again
    assert torch.equal(task.batch(0, 6, 5)[0], straight[5][0]) and calls == [0, 1, 0]
    assert torch.equal(OwnTask(endless).batch(0, 5, 5)[0], straight[4][0])  # resumed elsewhere


def test_own_data_that_ends_starts_again_and_knows_its_split():
    task = OwnTask(three)
    assert [task.batch(4, step, 1) for step in range(1, 8)] == [f"train 4 {n}" for n in (0, 1, 2, 0, 1, 2, 0)]
    assert task.held_out(1) == [f"held-out {own.HELD_OUT_SEED} {n}" for n in range(3)]
    assert task.held_out(1, 2) == task.held_out(1)[:2]


def test_own_data_without_a_split_is_held_out_by_its_seed_and_stays_fixed():
    task = OwnTask(endless)
    assert len(task.held_out(5)) == own.MOST_HELD_OUT and len(task.held_out(5, 4)) == 4
    assert torch.equal(task.held_out(5, 4)[0][0], next(endless(own.HELD_OUT_SEED))[0])
    careless = OwnTask(lambda seed: ((torch.rand(2), None) for _ in range(2)))
    assert torch.equal(careless.held_out(1)[0][0], careless.held_out(1)[0][0])
    with pytest.raises(ValueError, match="seed 2147483647 is kept for held-out data"):
        task.batch(own.HELD_OUT_SEED, 1, 5)


def test_own_losses():
    model, task = Table(), OwnTask(endless)
    tokens, targets = batch = task.batch(0, 1, 5)
    want = [loss for row in by_hand(model, tokens, targets) for loss, _ in row]
    assert task.loss(model, batch).item() == pytest.approx(sum(want) / len(want), rel=1e-6)
    assert task.blind is None and task.settings == {} and task.name == "own"

    def square(model, batch):
        return model(batch[0]).square().mean().reshape(1, 1)

    task = OwnTask(endless, square)
    value = task.loss(model, batch)
    assert value.shape == () and value.requires_grad
    scores = task.score(model, batch)
    assert scores.losses.tolist() == [value.item()] and scores.losses.dtype == torch.float64
    assert scores.counts.tolist() == [1] and scores.correct is None and not scores.losses.requires_grad
    assert set(task.sources) == {f"{__name__}:endless", f"{__name__}:test_own_losses.<locals>.square"}


def test_own_functions_that_cannot_serve_are_refused_in_words():
    used_up = iter([1, 2])
    task = OwnTask(lambda seed: used_up)
    assert [task.batch(0, 1, 1), task.batch(0, 2, 1)] == [1, 2]
    for _ in range(2):  # and again when asked again
        with pytest.raises(
            ValueError, match=r"pass [12] of make_data\(0\) yielded no batch; each call must return fresh"
        ):
            task.batch(0, 3, 1)
    with pytest.raises(ValueError, match="yielded no held-out batch"):
        task.held_out(1)
    with pytest.raises(ValueError, match=r"pass 1 of make_data\(6\)"):
        OwnTask(lambda seed: []).batch(6, 1, 1)
    with pytest.raises(TypeError, match="something to iterate over, got int"):
        OwnTask(lambda seed: 3).batch(0, 1, 1)
    with pytest.raises(TypeError, match="must be functions, got str"):
        OwnTask("my.module:data")
    with pytest.raises(TypeError, match="must be functions, got int"):
        OwnTask(endless, 3)
    with pytest.raises(TypeError, match="make_loss must return a tensor with one value, got float"):
        OwnTask(endless, lambda model, batch: 0.5).loss(Table(), None)
    with pytest.raises(TypeError, match="make_loss must return a tensor with one value, got Tensor"):
        OwnTask(endless, lambda model, batch: torch.zeros(2)).loss(Table(), None)
    with pytest.raises(ValueError, match="step must be a whole number"):
        OwnTask(endless).batch(0, 0, 1)


def test_a_function_without_source_is_no_obstacle():
    scope = {}
    builtins.exec("def typed(seed):\n    return [seed]\n", scope)
    task = OwnTask(scope["typed"])
    assert task.sources == {} and task.batch(3, 2, 1) == 3


def test_a_shuffling_loader_has_random_numbers_of_its_own():
    """A DataLoader draws its order from torch's global random numbers; training draws dropout from them too."""
    data = torch.utils.data.TensorDataset(torch.arange(23.0)[:, None], torch.arange(23))

    def make_data(seed):
        return torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)

    def orders(disturb, first=1):
        task = OwnTask(make_data)
        torch.manual_seed(99 if disturb else 1)
        found = []
        for step in range(first, 12):
            found.append(task.batch(3, step, 1)[1].tolist())
            if disturb:
                torch.rand(7)
        return found

    undisturbed = orders(False)
    assert undisturbed == orders(True)
    assert orders(True, first=8) == undisturbed[7:], "a resumed run finds its place"
    assert undisturbed[:5] != undisturbed[5:10], "the second pass has another order"
    state = torch.get_rng_state()
    OwnTask(make_data).batch(3, 2, 1)
    OwnTask(make_data).held_out(1, 2)
    assert torch.equal(state, torch.get_rng_state())
