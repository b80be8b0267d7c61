"""A run that was killed, stopped, damaged or out of disk goes on to the same bits; a folder has one run and one writer."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from training_cases import (
    DAMAGED,
    PATIENCE,
    assert_every_step_once,
    assert_same_run,
    child,
    ended,
    events,
    own,
    readings,
    small,
    strict,
    train_in_child,
    training,
)

import normlab
from normlab.lab import FolderInUse, Stopped, train
from normlab.lab import checkpoint as checkpoints
from normlab.runs import INFO, READINGS, Run

# ---- killed and resumed ----------------------------------------------------------------------------------------------

KILLED = {
    "dropout-unwatched": small(model={"dropout": 0.2, "attention_dropout": 0.1}, watch="none"),
    "batch-accumulate": small(task="docs", norm="batch", accumulate=2, options={"length": 24}, model={"dropout": 0.1}),
    "power": small(norm="power", model={"dropout": 0.1}),
    "bfloat16": small(precision="bfloat16", model={"dropout": 0.1}),
    "tied": small(model={"tie_embeddings": True}, norm="rms", placement="deepnorm", steps=25),
    "own": own(),
    "sgd": small(optimizer="sgd", momentum=0.8, lr=0.1, model={"dropout": 0.1}),
    "masked": small(task="masked", norm="batch", options={"length": 24}, model={"dropout": 0.1}),
}


@pytest.mark.parametrize("name", KILLED)
def test_killed_twice_and_resumed_is_undisturbed(tmp_path, name, monkeypatch):
    monkeypatch.setattr(training, "_prepare_16_bit_once", dict)  # conftest.py has
    experiment = KILLED[name]
    train(experiment, tmp_path / "whole", keep_weights=True)
    folder = tmp_path / "cut"
    assert ended(child(train_in_child, experiment.to_dict(), folder, 3, None, None, True)) == -signal.SIGKILL
    assert Run(folder).info["status"] == "running"
    # Its checkpoint will be that of step 6, as if none had been due since: what was written after it is taken back.
    assert ended(child(train_in_child, experiment.to_dict(), folder, 9, 6, None, True)) == -signal.SIGKILL
    os.replace(folder / "kept", folder / checkpoints.FILE)
    assert max(step for step, *_ in readings(folder)) >= 8
    train(experiment, folder, checkpoint_seconds=0.0, keep_weights=True)
    assert_same_run(tmp_path / "whole", folder)
    assert_every_step_once(folder, experiment.steps)
    assert [event["note"] for event in events(folder, "resumed")] == ["from step 3", "from step 6"]
    assert not (folder / checkpoints.FILE).exists()


def test_killed_at_any_moment_and_resumed_is_undisturbed(tmp_path):
    experiment = small(model={"dropout": 0.1}, norm="batch", steps=40, evaluations=8)
    train(experiment, tmp_path / "whole", keep_weights=True)
    folder, draw, kills = tmp_path / "cut", random.Random(20261115), 0
    for _ in range(5):
        process = child(train_in_child, experiment.to_dict(), folder)
        until = time.monotonic() + PATIENCE
        while not (folder / INFO).exists() and time.monotonic() < until:
            time.sleep(0.005)
        process.join(draw.uniform(0.1, 0.4))
        process.kill()
        kills += ended(process) == -signal.SIGKILL
        assert Run(folder).info["status"] in ("running", "finished") and readings(folder) is not None
    train(experiment, folder, keep_weights=True, wait=5)
    assert kills >= 2
    assert_same_run(tmp_path / "whole", folder)
    assert_every_step_once(folder, experiment.steps)


def stopped_at(experiment, folder, step, **how):
    def on_step(at, loss):
        if at == step:
            raise Stopped

    with pytest.raises(Stopped):
        train(experiment, folder, on_step=on_step, **how)


@pytest.mark.parametrize("step", [1, 5, 12])
def test_stopped_and_resumed_is_undisturbed(tmp_path, step):
    experiment = small(task="docs", norm="batch", model={"dropout": 0.2}, options={"length": 24})
    train(experiment, tmp_path / "whole", keep_weights=True)
    stopped_at(experiment, tmp_path / "cut", step)
    assert Run(tmp_path / "cut").info["status"] == "interrupted"
    train(experiment, tmp_path / "cut", keep_weights=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert_every_step_once(tmp_path / "cut", 12)


@pytest.mark.parametrize("data", ["own_data", "seeded_data"])
def test_a_loader_that_draws_from_the_global_numbers_is_resumed_exactly(tmp_path, data):
    experiment = own(data=data, steps=13)  # own_data has 6 batches a pass
    train(experiment, tmp_path / "whole", keep_weights=True)
    for step in (2, 7, 11):
        stopped_at(experiment, tmp_path / "cut", step)
    train(experiment, tmp_path / "cut", keep_weights=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_the_keyboard_interrupts_and_the_last_checkpoint_is_resumed(tmp_path):
    def on_step(step, loss):
        if step == 5:
            raise KeyboardInterrupt

    experiment = small(model={"dropout": 0.1})
    train(experiment, tmp_path / "whole", keep_weights=True)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "cut", on_step=on_step, checkpoint_seconds=0.0)
    assert Run(tmp_path / "cut").info["status"] == "interrupted"
    train(experiment, tmp_path / "cut", keep_weights=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undamaged") / "whole"
    train(DAMAGED, folder, keep_weights=True)
    return folder


def tear(folder):
    with open(folder / READINGS, "ab") as file:
        file.write(b'{"step": 6, "time": 0.1, "val')


def behind_the_readings(folder):
    path = folder / READINGS
    path.write_bytes(path.read_bytes()[:-9])


def without_readings(folder):
    (folder / READINGS).unlink()


def broken_readings(folder):
    path = folder / READINGS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0" * 40 + b"\n", *lines[1:]]))


def short_checkpoint(folder):
    path = folder / checkpoints.FILE
    path.write_bytes(path.read_bytes()[:-700])


def garbage_checkpoint(folder):
    (folder / checkpoints.FILE).write_bytes(random.Random(3).randbytes(9000))


def bit_flipped(folder):
    path = folder / checkpoints.FILE
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)


def of_another(changes):
    def damage(folder):
        stopped_at(DAMAGED.changed(**changes), folder.parent / "other", 7)
        shutil.copy(folder.parent / "other" / checkpoints.FILE, folder / checkpoints.FILE)

    return damage


def leftovers(folder):
    for name in (INFO, READINGS, checkpoints.FILE, checkpoints.WEIGHTS):
        (folder / (name + ".partial")).write_bytes(b"half of som")


@pytest.mark.parametrize(
    ("damage", "note"),
    [
        (tear, "from step 5"),
        (leftovers, "from step 5"),
        (behind_the_readings, f"from the start: .*{READINGS} has lost what was before it"),
        (without_readings, f"from the start: .*{READINGS} has lost what was before it"),
        (broken_readings, "from the start: .*line 2 is not valid JSON"),
        (short_checkpoint, "from the start: .*cannot be read"),
        (garbage_checkpoint, "from the start: .*cannot be read"),
        (bit_flipped, "from the start: .*damaged"),
        (of_another({"ffn_dim": 32}), "from the start: .*another experiment"),
        (of_another({"lr": 0.1}), "from the start: .*another experiment"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_damage_costs_time_and_never_a_number(tmp_path, undamaged, damage, note):
    folder = tmp_path / "cut"
    stopped_at(DAMAGED, folder, 5)
    damage(folder)
    train(DAMAGED, folder, keep_weights=True)
    (event,) = events(folder, "resumed")
    assert re.match(note, event["note"]), event
    assert_same_run(undamaged, folder)
    assert_every_step_once(folder, 12)


def test_an_unreadable_run_is_refused_and_left_alone(tmp_path):
    (tmp_path / INFO).write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        train(small(), tmp_path)
    assert (tmp_path / INFO).read_text() == "{"


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_finished_folder_is_not_trained_again(tmp_path):
    result = train(DAMAGED, tmp_path / "a")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir() if p.name != "lock"}
    again = train(DAMAGED, tmp_path / "a", on_step=lambda *_: pytest.fail("trained again"))
    assert again == result
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir() if p.name != "lock"} == before


def test_another_experiment_in_the_folder_is_refused_with_the_differences(tmp_path):
    train(DAMAGED, tmp_path / "a")
    with pytest.raises(ValueError, match=r"holds another experiment: lr, seed, model differ"):
        train(DAMAGED.changed(lr=0.5, seed=2, dim=32), tmp_path / "a")
    normlab.runs.Writer(tmp_path / "b").close()
    with pytest.raises(ValueError, match="a run that no experiment made"):
        train(DAMAGED, tmp_path / "b")


def test_a_second_process_is_refused_and_a_killed_one_leaves_the_folder_free(tmp_path):
    experiment = small(steps=100_000, evaluations=1)
    process = child(train_in_child, experiment.to_dict(), tmp_path / "a")
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "a" / checkpoints.FILE).exists() and time.monotonic() < until:
        time.sleep(0.01)
    try:
        with pytest.raises(FolderInUse, match=f"process {process.pid};"):
            train(experiment, tmp_path / "a")
        with pytest.raises(FolderInUse):
            train(experiment, tmp_path / "a", wait=0.1)
    finally:
        process.kill()
        ended(process)
    stopped_at(experiment, tmp_path / "a", max(step for step, *_ in readings(tmp_path / "a")) + 3)
    assert Run(tmp_path / "a").info["status"] == "interrupted"


# ---- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of its own, for the superuser of a machine that allows it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.name == "posix" and os.getuid() == 0 and shutil.which("mount")
    if (
        not mounted
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("at", [1, 6])
def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(tmp_path, tiny_disk, undamaged, at):
    folder, filler = tiny_disk / "run", tiny_disk / "filler"

    def fill(step, loss):
        if step == at:
            with open(filler, "wb", buffering=0) as file, pytest.raises(OSError):
                while True:
                    file.write(b"\0" * 4096)

    for attempt in (train, training.attempt):
        with pytest.raises(OSError, match="No space left on device") as caught:
            attempt(DAMAGED, folder, on_step=fill, checkpoint_seconds=0.0)
        assert caught.value.errno == errno.ENOSPC and str(folder) in str(caught.value)
        info = strict(folder)
        assert info["status"] == "running" and info["result"] is None
        assert [s for s, probe, *_ in readings(folder) if probe == "loss"] in (
            list(range(1, at + 1)),
            list(range(1, at + 2)),
        )
        assert not list(folder.glob("*.partial"))
    filler.unlink()
    train(DAMAGED, folder, keep_weights=True)
    assert_same_run(undamaged, folder)
    assert_every_step_once(folder, 12)


def test_a_file_that_may_not_grow_stops_the_run_in_words(tmp_path, undamaged):
    folder = tmp_path / "run"
    assert ended(child(train_in_child, DAMAGED.to_dict(), folder, None, None, 20_000)) == 0
    said = folder.with_suffix(".said").read_text()
    assert "File too large" in said and str(folder) in said
    assert strict(folder)["status"] == "running" and {s for s, *_ in readings(folder)} == {1}
    assert not list(folder.glob("*.partial"))
    train(DAMAGED, folder, keep_weights=True)
    assert_same_run(undamaged, folder)


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_place_that_cannot_be_written_raises(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    for attempt in (train, training.attempt):
        with pytest.raises(OSError, match="file"):
            attempt(DAMAGED, tmp_path / place)
    if Path("/proc/self").exists():
        with pytest.raises(OSError, match="/proc/normlab"):
            training.attempt(DAMAGED, Path("/proc/normlab/run"))
