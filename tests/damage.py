"""Real run folders, damaged at random, and every verb that reads them, the server's data among them. What must never happen is a finding.

    python tests/damage.py --calls 5000 --seed 1        prints calls, seconds and findings

A finding is a traceback, a call that does not return in time, an exit without a word, invalid JSON on standard output, a character
that a terminal obeys, or an answer of the server that says no more than that it could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import safe_open

from normlab import claims, cli
from normlab.lab import Experiment, Message, Stopped, Sweep, checkpoint, plan, sweep, train
from normlab.lab.pool import Pool
from normlab.lab.train import attempt
from normlab.runs import TRIALS, Writer

SECONDS = 20.0  # a call that takes longer hangs: the slowest takes about one
TINY = Experiment(steps=60, batch_size=8, held_out=9, evaluations=3, watch="lite", options={"length": 17},
                  model={"dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 32})  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000
# As they stand in the file: some are no JSON, some JSON that Python cannot hold.
RAW = ("NaN", "-Infinity", "1e999", "9" * 5000, "1" + "0" * 400, DEEP, '{"a":' * 990 + "1" + "}" * 990, "[" * 80 + "]" * 80, "tru",
       '"' + "x" * 100_000 + '"')  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**70, -(2**63), 0.0, -0.5, 1e-320, 1e308, -1e308, 1e150, 12345678901234567890, "", "x", "nan", "inf",
    "[/x]", "[v2]", "\x1b[31m\x1b]0;title\x07", "\ud800", "\u202e\x9b2J", "a\nb", "../../x", "/etc/passwd", "\x00", "<script>alert(1)</script>",
    "trained", "layer/pre", [], {}, [[]], [None], [1, "a"], {"a": {"b": []}}, {"": None}, ["nan", 1e308], [[1, 2], [3]], [[1, None]], "os:system",
    "text", "own",
)  # fmt: skip


UNREAD = ("report.html", "lock", "trials.csv", "cells.csv", "model.safetensors")
BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "2026-11-16.json"


def make_folder(root: Path) -> Path:
    """A sweep with finished, broken, failed and interrupted trials, its answer and its page; and single runs beside it."""
    folder = root / "sweep"
    axes = {"norm": ["layer", "rms"], "placement": ["pre"], "lr": [3e-2, 1e30], "seed": [0, 1, 2]}
    planned = plan(Sweep(base=TINY, axes=axes), folder, 1, estimate=False)
    for trial in planned.missing:
        attempt(trial.experiment, folder / TRIALS / trial.name)
    cli.main(["compare", "--resume", str(folder)])
    failed = Writer(
        root / "failed", {"experiment": TINY.to_dict(), "leaks": [{"moved": [1, 2], "change": 0.5, "cut": 3}]}
    )
    failed.event(3, "leak", site="a", moved=4, change="nan")
    failed.event(4, "probe failed", probe="p", site="b", error="no")
    failed.close("failed", result={"outcome": "failed", "error": "no"})
    with contextlib.suppress(Stopped):
        train(TINY.changed(seed=7, steps=20), root / "cut", on_step=_stop_at_9)
    (root / "experiment.toml").write_text(TINY.changed(seed=7, steps=20).to_toml())
    shutil.copytree(Path(claims.__file__).parent / "shipped" / "default", root / "claims")
    (root / "bench").mkdir()
    shutil.copy(BENCHMARK, root / "bench" / "bench.json")
    return root


def _stop_at_9(step: int, loss: float) -> None:
    if step == 9:
        raise Stopped


# ---- damage ----------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything inside."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def _changed_json(text: str, draw: random.Random) -> str:
    data = json.loads(text)
    # The first levels more often: there are thousands of numbers in a curve, and they are all alike.
    found = [p for p in places(data) if p]
    if not found:
        return draw.choice(RAW)
    short = [p for p in found if len(p) <= 2]
    path = draw.choice(short if draw.random() < 0.4 else found)
    at = data
    for key in path[:-1]:
        at = at[key]
    way = draw.random()
    if way < 0.12:
        del at[path[-1]]
    elif way < 0.2 and isinstance(at, dict):
        at[draw.choice(("../../x", "\x1b[2J", "make_model", "lr", "[/x]", "\ud800"))] = at.pop(path[-1])
    elif way < 0.28 and isinstance(at, list):
        at *= draw.choice((2, 3000))
    elif way < 0.4:
        at[path[-1]] = "here it goes"
        return json.dumps(data).replace('"here it goes"', draw.choice(RAW))
    else:
        at[path[-1]] = draw.choice(VALUES)
    return json.dumps(data)


def change_json(path: Path, draw: random.Random) -> None:
    try:
        text = path.read_text()
        if path.suffix == ".jsonl":
            lines = text.splitlines()
            number = draw.randrange(len(lines))
            lines[number] = _changed_json(lines[number], draw)
            text = "\n".join(lines) + "\n"
        else:
            text = _changed_json(text, draw)
    except (ValueError, RecursionError):  # damaged already
        text = draw.choice(RAW)
    path.write_text(text)


def change_bytes(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at, upto = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    how = draw.randrange(7)
    if how == 0:
        del data[at:]
    elif how == 1:
        del data[at:upto]
    elif how == 2:
        data[at:at] = draw.randbytes(draw.choice((1, 5, 3000)))
    elif how == 3 and data:
        data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
    elif how == 4:
        data[at:at] = data[at:upto]
    elif how == 5:
        data[at:at] = draw.choice(RAW).encode()
    else:
        data = bytearray(draw.choice((b"", b"\0" * 4096, b"\xff\xfe", b"{}", b"[]", b"null\n", b'"x"\n' * 9)))
    path.write_bytes(data)


def change_kind(path: Path, draw: random.Random) -> None:
    """Another kind of file under its name."""
    path.unlink()
    how = draw.randrange(8)
    if how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.mkdir()
    elif how in (2, 3, 4, 5):
        path.symlink_to(("/dev/zero", "/dev/null", path.name, "nowhere")[how - 2])
    elif how == 6:
        with open(path, "wb") as file:
            file.truncate(draw.choice((2**31, 2**40)))  # takes no room
    # else: it is gone


def change_state(path: Path, draw: random.Random) -> None:
    """A checkpoint whose sum is right and whose contents are not what the model and its optimizer hold."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except Exception:  # damaged already
        return change_bytes(path, draw)
    name = draw.choice(sorted(tensors))
    old = tensors.pop(name)
    how = draw.randrange(6)
    if how == 0:
        tensors[name] = torch.zeros(1)
    elif how == 1:
        tensors[name] = old.double()
    elif how == 2:
        tensors[name] = old.to(torch.int64)
    elif how == 3:
        tensors[name] = old[None].clone()
    elif how == 4:
        tensors[name] = torch.full_like(old, draw.choice((0, 1, 255)))
    # else: it is gone
    path.unlink()
    checkpoint._write(path, tensors, progress)


def damage(root: Path, draw: random.Random) -> tuple[list[str], Path]:
    """One to three damages of files in one folder: which, and the folder."""
    trials = sorted((root / "sweep" / TRIALS).iterdir())
    victim = draw.choice(
        [
            root / "sweep", root / "sweep", draw.choice(trials), draw.choice(trials), root / "failed", root / "cut",
            root / "claims", root / "bench",
        ]
    )  # fmt: skip
    found = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        files = sorted(
            p
            for p in (*victim.iterdir(), *(victim / "measured").glob("*"))
            if p.is_file() and not p.is_symlink() and p.name not in UNREAD and p.stat().st_size < 10**8
        )
        if not files:
            break
        path = draw.choice([*(p for p in files if p.suffix == ".json"), *files])
        ways: list[Callable[[Path, random.Random], None]] = [change_bytes, change_kind]
        if path.suffix in (".json", ".jsonl"):
            ways += [change_json] * 6
        elif path.suffix == ".safetensors":
            ways += [change_state] * 6
        way = draw.choice(ways)
        way(path, draw)
        found.append(f"{way.__name__} of {path.relative_to(root)}")
    if draw.random() < 0.05:
        change_bytes(root / "experiment.toml", draw)
        found.append("change_bytes of experiment.toml")
    return found, victim


# ---- calls -----------------------------------------------------------------------------------------------------------


def verbs(root: Path, victim: Path, draw: random.Random) -> list[list[str]]:
    """One call of every verb that reads the damaged files."""
    maybe_json: list[str] = draw.choice(([], ["--json"]))
    sweep, at = str(root / "sweep"), str(victim)
    found = [["runs", "list", str(root), *maybe_json], [GET, "/data/list"]]
    if victim.name == "bench":
        at = str(victim / "bench.json")
        return [*found, ["report", at, *maybe_json], [GET, "/data/kernels?at=bench/bench.json"]]
    if victim.name == "claims":
        shipped = str(Path(claims.__file__).parent / "shipped" / "default")
        return [*found, ["report", at, *maybe_json], ["claims", "compare", at, shipped, *maybe_json], ["claims", "compare", shipped, at],
                [GET, "/data/claims?at=claims"]]  # fmt: skip
    if victim.name == "sweep":
        found.append([GET, "/data/sweep?at=sweep"])
    else:
        found.append([GET, f"/data/run?at={quote(str(victim.relative_to(root)))}"])
    if TRIALS in victim.parts or victim.name == "sweep":
        found += [["compare", "--resume", sweep, "--dry-run"], ["report", sweep, *maybe_json],
                  ["answer", sweep, *maybe_json, *draw.choice(([], ["--lang", "zh"], ["--metric", "accuracy"]))],
                  ["compare", "--resume", sweep, *draw.choice(([], ["--json"], ["--no-report"]))]]  # fmt: skip
    if victim.name != "sweep":
        found += [["runs", "show", at, *maybe_json], ["diagnose", at, *maybe_json], ["report", at, *maybe_json],
                  ["runs", "export", at, str(root / draw.choice(("out.csv", "out.parquet")))]]  # fmt: skip
    if victim.name == "cut":
        found.append(["train", str(root / "experiment.toml"), "--out", at])
    return found


GET = "GET"  # an address of the server in the place of a verb


def ask(root: Path, address: str) -> tuple[int, str, str]:
    """An answer of the server as a verb's: (code, standard output, standard error). No socket: what is read and made is tried here."""
    from normlab.claims.html import view
    from normlab.report.serve import App, work
    from normlab.runs import read_claims

    path, _, query = address.partition("?")
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": GET, "scheme": "http", "path": path,
             "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [(b"host", b"127.0.0.1")],
             "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    app = App(root, claims=lambda folder: view(read_claims(folder), folder.name))
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(app.asgi(scope, receive, send))  # type: ignore[arg-type]
    finally:
        loop.close()
        for _ in range(work.THREADS):  # they end with the loop that asked, at its next job
            app._workshop._jobs.put((lambda: None, None, loop))  # type: ignore[arg-type]
    status = sent[0]["status"]
    body = b"".join(m.get("body", b"") for m in sent[1:]).decode()
    if status not in (200, 404, 422):
        raise AssertionError(f"the server answers {status}: {body[:500]}")
    json.loads(body, parse_constant=_no_constant)
    return (0, "", "") if status == 200 else (1, "", json.loads(body)["error"])


class Hangs(BaseException):
    pass


def _hangs(*_: object) -> None:
    raise Hangs


def in_process(words: list[str]) -> tuple[int | str | None, str, str]:
    """(exit code, or the traceback, or "hangs"; standard output; standard error)."""
    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    code: int | str | None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if words[0] == GET:
                code, _, text = ask(Path(words[2]), words[1])
                err.write(text)
            else:
                code = cli.main(words)
    except SystemExit as exit:
        code = exit.code
    except Hangs:
        code = "hangs"
    except BaseException:
        code = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return code, out.getvalue(), err.getvalue()


def in_child(words: list[str]) -> tuple[int | str | None, str, str]:
    try:
        done = subprocess.run([sys.executable, "-m", "normlab", *words], capture_output=True, timeout=6 * SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs", "", ""
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _no_constant(name: str) -> None:
    raise ValueError(name)


def fault(words: list[str], code: int | str | None, out: str, err: str) -> str | None:
    """What must never happen, if it did."""
    if code not in (0, 1, 2):
        return str(code)
    if "Traceback" in err:
        return err
    if code != 0 and not err.strip():
        return f"exit code {code} without a word"
    if wrong := [c for c in out + err if not c.isprintable() and c not in "\n\t"]:
        return f"a terminal would obey {wrong[0]!r}"
    if "--json" in words and code == 0:
        try:
            json.loads(out, parse_constant=_no_constant)
        except ValueError as error:
            return f"invalid JSON: {error}"
    return None


class Inline(Pool):
    """Trains in this process: a worker would take seconds to start."""

    def run(self, folder: Path, trials: Any, notify: Any) -> None:
        for trial in trials:
            result = attempt(trial.experiment.changed(steps=2), folder.parent / "elsewhere" / trial.name)
            notify("ended", trial, Message(result=result))


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Without workers and measurements, which no file leads to."""
    import normlab.lab.pool as pool

    before = pool.Pool, sweep.measure
    pool.Pool, sweep.measure = (
        Inline,
        lambda trials, seconds=0: {t.cell: {"seconds": 1.0, "evaluation_seconds": 1.0} for t in trials},
    )  # type: ignore
    try:
        yield
    finally:
        pool.Pool, sweep.measure = before  # type: ignore[misc]


def hunt(original: Path, scratch: Path, seed: int, calls: int, children: int = 0) -> tuple[int, list[str]]:
    """(calls made, findings); the last ``children`` calls in processes of their own."""
    draw, made, findings = random.Random(seed), 0, []
    while made < calls + children:
        root = scratch / f"{seed}-{made}"
        shutil.copytree(original, root)
        what, victim = damage(root, draw)
        todo = verbs(root, victim, draw)
        draw.shuffle(todo)
        for words in todo[: calls + children - made]:
            with quick():
                if words[0] == GET:
                    found = in_process([*words, str(root)])
                else:
                    found = (in_process if made < calls else in_child)(words)
            made += 1
            if (wrong := fault(words, *found)) is not None:
                shown = " ".join(words).replace(str(root), "ROOT")
                findings.append(f"{what}: normlab {shown}\n{wrong}\nstderr: {found[2][-300:]}")
        shutil.rmtree(root)
    return made, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--children", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        original = make_folder(Path(place) / "original")
        began = time.perf_counter()
        made, findings = hunt(original, Path(place), args.seed, args.calls, args.children)
        print(f"{made} calls in {time.perf_counter() - began:.0f} s, {len(findings)} findings (seed {args.seed})")
    for finding in findings:
        print("-" * 40 + "\n" + finding[-1500:])
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
