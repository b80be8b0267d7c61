"""Signals that come before a verb can heed them, and progress that nobody can be told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normlab import cli, lab, runs  # noqa: F401 (lab: its modules are patched)

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
TINY = [w for s in ("dim=8", "num_layers=1", "num_heads=2", "ffn_dim=8", "batch_size=2", "held_out=3", "watch=none", "evaluations=1",
                    "options={\"length\":9}") for w in ("--set", s)]  # fmt: skip
# A library that takes long to load, and loses what is raised in it: as torch does in its callbacks from C++.
SLOW = """
import time
print("loading", flush=True)
for _ in range(3000):
    try:
        time.sleep(0.01)
    except BaseException:
        pass
"""


def started(words: list[str], **environment: str) -> subprocess.Popen[str]:
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("start", ["script", "module"])
@pytest.mark.parametrize(("module", "verb"), [("torch", "train"), ("argparse", "list")])
def test_a_signal_while_something_is_imported_ends_it_with_one_line(tmp_path, start, number, code, module, verb):
    (tmp_path / f"{module}.py").write_text(SLOW)
    program = (
        [sys.executable, "-m", "normlab"] if start == "module" else [str(Path(sys.executable).with_name("normlab"))]
    )
    process = started([*program, verb], PYTHONPATH=str(tmp_path))
    assert process.stdout.readline() == "loading\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=25)
    assert (process.returncode, out, err) == (code, "", "normlab: stopped\n")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_in_a_verb_without_ways_of_its_own_ends_it_with_one_line(tmp_path, number, code):
    """Between imports it is raised, so that half-written files go."""
    (tmp_path / "slow.py").write_text("import time\ndef model():\n    print('begun', flush=True)\n    time.sleep(30)\n")
    process = started([sys.executable, "-m", "normlab", "inspect", "slow:model"], PYTHONPATH=str(tmp_path))
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=25)
    assert (process.returncode, out, err) == (code, "", "normlab: stopped\n")


def test_a_signal_that_is_ignored_stays_so():
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import runpy, sys; sys.argv[1:] = ['completion', 'bash']\n"
        "try: runpy.run_module('normlab', run_name='__main__', alter_sys=True)\n"
        "except SystemExit: print(signal.getsignal(signal.SIGINT).name, file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stderr == "SIG_IGN\n"


def test_a_library_leaves_signals_alone():
    code = (
        "import signal; before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]\n"
        "import normlab, normlab.cli; normlab.cli.main(['completion', 'bash'])\n"
        "assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_progress_that_cannot_be_written_does_not_end_a_training(tmp_path):
    words = [sys.executable, "-m", "normlab", "train", "--steps", "4", *TINY, "--out", str(tmp_path / "a")]
    with open("/dev/full", "w") as full:
        shown = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True, timeout=120)
    assert shown.returncode == 0 and "run:" in shown.stdout
    assert runs.Run(tmp_path / "a").info["status"] == "finished" and (tmp_path / "a" / "model.safetensors").is_file()


@pytest.mark.parametrize("saved", [False, True])
def test_stopped_before_the_first_checkpoint_it_begins_anew_and_says_so(tmp_path, monkeypatch, capsys, saved):
    def interrupted(experiment, folder, **how):
        folder.mkdir()
        if saved:
            (folder / "checkpoint.safetensors").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["normlab.lab.train"], "train", interrupted)
    assert cli.main(["train", *TINY, "--out", str(tmp_path / "a")]) == 130
    said = capsys.readouterr().err
    assert ("begins anew" in said) is not saved and ("goes on from there" in said) is saved
