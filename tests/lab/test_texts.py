"""Text to train on, of Python and of the user: windows, blind loss, every kind of file; refusals in words."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter

import pytest
import torch
from task_cases import digest, rows

from normlab.lab import texts
from normlab.lab.tasks import find_task

# ---- text ------------------------------------------------------------------------------------------------------------


def windows_in(batch):
    """(first, one after the last) place of every window, its targets included, in a file that tells places."""
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
    if made == "file":
        path.write_bytes(b"")
    else:
        path.mkdir()
        (path / "state.json").write_bytes(b"{}")
    for name in [n for n in sys.modules if n.split(".")[0] == blocked]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(ImportError, match=rf"needs {blocked}: pip install 'normlab\[{extra}\]'") as raised:
        find_task("text", files=[str(path)])
    assert isinstance(raised.value.__cause__, ImportError)


def test_a_folder_is_its_text_files_in_the_order_of_their_names(tmp_path):
    tree = {"b.py": "x = 1\n", "a/z.txt": "prose\n" * 400, "a/B.RS": "fn main() {}", "a/rows.jsonl": '{"text": "row"}\n',
            "picture.png": "no", ".git/c.py": "hidden", ".secret.txt": "hidden", "a/.d/e.py": "hidden"}  # fmt: skip
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    want = "\n".join(["fn main() {}", "row", "prose\n" * 400, "x = 1\n"])
    text, digest_ = texts.read(tmp_path)
    assert text == want.encode() and digest_ == hashlib.sha256(text).hexdigest()
    task = find_task("text", files=[str(tmp_path)], options={"length": 17})
    assert all(row in want.encode() for row in rows(task.batch(0, 1, 50).arguments["tokens"]))
    assert texts.read(tmp_path / "b.py")[0] == b"x = 1\n"
    (tmp_path / "b.py").write_text("x = 2\n")
    assert find_task("text", files=[str(tmp_path)], options={"length": 17}).sources != task.sources
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="empty holds no text"):
        texts.read(empty)


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
