"""A user's own text: the bytes of files of several kinds, and what they were, as a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import need

# Files whose bytes are the text: prose and sources of programs.
PLAIN = frozenset(
    [
        ".txt",
        ".md",
        ".rst",
        ".tex",
        ".org",
        ".adoc",
        ".py",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".cu",
        ".rs",
        ".go",
        ".java",
        ".kt",
        ".scala",
        ".swift",
        ".js",
        ".ts",
        ".jsx",
        ".tsx",
        ".rb",
        ".pl",
        ".php",
        ".lua",
        ".r",
        ".jl",
        ".hs",
        ".ml",
        ".lisp",
        ".el",
        ".sh",
        ".sql",
        ".html",
        ".css",
        ".xml",
        ".json",
        ".toml",
        ".yaml",
        ".yml",
        ".ini",
        ".cfg",
    ]
)
SAVED = ("state.json", "dataset_dict.json")  # what Hugging Face datasets leave in a folder they saved


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(path: Path) -> tuple[bytes, str]:
    """The text of a file, and the sha256 of the file (of a folder: of the text)."""
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    if path.is_dir():
        text = _joined(_dataset_rows(path)) if any((path / name).exists() for name in SAVED) else _of_folder(path)
        return text, sha256(text)
    kind = path.suffix.lower()
    if kind not in PLAIN and kind not in ROWS:
        raise ValueError(
            f"{path}: text is read from .txt, .md, .jsonl and .parquet files, from sources of programs (.py, .c, .rs, ...), and from folders "
            f"of these or saved by Hugging Face datasets, not from {kind or 'files without a suffix'}"
        )
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")  # a pipe would be waited for, a device has no end
    text = _joined(ROWS[kind](path)) if kind in ROWS else path.read_bytes()
    return text, sha256(path.read_bytes())


def _of_folder(path: Path) -> bytes:
    """All text files below it in the order of their names, hidden ones and those below hidden folders left out."""
    below = [p for p in sorted(path.rglob("*")) if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    found = [p for p in below if p.suffix.lower() in (*PLAIN, *ROWS) and p.is_file()]
    if not found:
        raise ValueError(
            f"{path} holds no text: no file in it ends in .txt, .md, .py or another ending that text is read from"
        )
    return b"\n".join(read(p)[0] for p in found)


def _joined(rows: Iterable[tuple[str, Any]]) -> bytes:
    """Texts with a line break between; each comes with the words for where it stood."""
    texts = []
    for place, text in rows:
        if not isinstance(text, str):
            raise ValueError(f"{place}: 'text' must hold a string, got {type(text).__name__}")
        texts.append(text)
    return "\n".join(texts).encode(errors="surrogatepass")  # JSON may hold half a surrogate pair


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict) or "text" not in row:
            found = f"the fields {', '.join(row)}" if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{path}, line {number}: needs an object with a field 'text', got {found}")
        yield f"{path}, line {number}", row["text"]


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    file = need("a Parquet file", "parquet", "pyarrow.parquet").ParquetFile(path)
    _check_column(path, file.schema_arrow.names)
    texts = (text for rows in file.iter_batches(columns=["text"]) for text in rows.column(0).to_pylist())
    return ((f"{path}, row {number}", text) for number, text in enumerate(texts, 1))


def _dataset_rows(path: Path) -> Iterator[tuple[str, Any]]:
    datasets = need("a saved dataset", "datasets", "datasets")
    found = datasets.load_from_disk(str(path))
    if isinstance(found, datasets.DatasetDict):
        raise ValueError(f"{path} holds several splits; give one of them: {', '.join(str(path / s) for s in found)}")
    _check_column(path, found.column_names)
    return ((f"{path}, row {number}", text) for number, text in enumerate(found["text"], 1))


def _check_column(path: Path, columns: Sequence[str]) -> None:
    if "text" not in columns:
        raise ValueError(f"{path}: needs a column 'text', has {', '.join(columns)}")


ROWS = {".jsonl": _json_rows, ".parquet": _parquet_rows}
