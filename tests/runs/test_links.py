"""What a run or a sweep writes lies in its own folder: through a link that somebody put into it nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import damage
import pytest

from normlab import runs
from normlab.lab import Experiment, Stopped, Sweep, plan, train
from normlab.lab.folders import LOCK
from normlab.runs import INFO, READINGS, TRIALS

TINY = Experiment(steps=4, batch_size=2, held_out=3, evaluations=1, watch="none", options={"length": 9},
                  model={"dim": 8, "num_layers": 1, "num_heads": 2, "ffn_dim": 8})  # fmt: skip
MINE = '{"step":1}\nmine, without an end'


def stop(step: int, loss: float) -> None:
    if step == 2:
        raise Stopped


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run that was stopped and can go on."""
    with pytest.raises(Stopped):
        train(TINY, tmp_path / "cut", on_step=stop)
    (tmp_path / "tiny.toml").write_text(TINY.to_toml())
    return tmp_path / "cut"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Planned, nothing trained."""
    plan(Sweep(base=TINY, axes={"norm": ["layer", "rms"], "seed": [0]}), tmp_path / "sweep", 1, estimate=False)
    return tmp_path / "sweep"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody else's, with files of the names that a run has."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in (READINGS, INFO, LOCK):
        (folder / name).write_text(MINE)
    return folder


def contents(folder: Path) -> dict[str, object]:
    return {str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.is_file() and p.read_bytes() for p in sorted(folder.rglob("*"))}  # fmt: skip


def link(at: Path, kind: str, outside: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    if kind == "hard":
        os.link(outside / READINGS, at)
    else:
        at.symlink_to(outside / (READINGS if kind == "symbolic" else "nothing yet"))


def assert_refused(words: list[str], at: Path, unchanged: tuple[Path, ...]) -> None:
    before = [contents(folder) for folder in unchanged]
    with damage.quick():
        code, _, err = damage.in_process(words)
    assert code == 2 and len(err.splitlines()) == 1 and str(at) in err and "Make room" not in err, (code, err)
    assert [contents(folder) for folder in unchanged] == before


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
@pytest.mark.parametrize("name", [READINGS, LOCK])
def test_train_writes_through_no_link(cut, outside, name, kind):
    link(cut / name, kind, outside)
    words = ["train", str(cut.parent / "tiny.toml"), "--out", str(cut)]
    held = {cut: contents(cut)}
    assert_refused(words, cut / name, (outside,))
    assert contents(cut).keys() == held[cut].keys() and (cut / INFO).read_bytes() == held[cut][INFO]


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
def test_a_writer_writes_through_no_link(tmp_path, outside, kind):
    runs.Writer(tmp_path / "a").close()
    link(tmp_path / "a" / READINGS, kind, outside)
    before = contents(tmp_path)
    with pytest.raises(runs.LinkedElsewhere, match=READINGS):
        runs.Writer(tmp_path / "a", again=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("name", [LOCK, f"{TRIALS}/layer-seed0/{LOCK}", f"{TRIALS}/rms-seed0/{READINGS}"])
def test_a_sweep_writes_through_no_link(sweep, outside, name, kind):
    name = name.replace("-seed0", f"-lr{TINY.lr:g}-seed0")
    link(sweep / name, kind, outside)
    assert_refused(["compare", "--resume", str(sweep), "--seeds", "+1"], sweep / name, (outside, sweep))


@pytest.mark.parametrize("name", [TRIALS, "trial"])
def test_a_folder_of_a_sweep_lies_in_the_sweep(sweep, outside, name):
    """run.json of the foreign folder was renamed, and the trial trained into it."""
    at = sweep / TRIALS
    if name == "trial":
        at = at / f"rms-lr{TINY.lr:g}-seed0"
        at.parent.mkdir()
    else:
        (outside / f"rms-lr{TINY.lr:g}-seed0").mkdir()
        (outside / f"rms-lr{TINY.lr:g}-seed0" / INFO).write_text(MINE)
    at.symlink_to(outside)
    assert_refused(["compare", "--resume", str(sweep)], at, (outside, sweep))


@pytest.mark.parametrize("name", [LOCK, TRIALS])
@pytest.mark.parametrize("kind", ["loop", "folder", "file"])
def test_what_stands_in_the_place_of_a_sweeps_own_is_said(sweep, name, kind):
    """It was called a disk without room."""
    at = sweep / name
    at.unlink(missing_ok=True)
    if kind == "loop":
        at.symlink_to(at.name)
    elif (kind == "folder") == (name == LOCK):
        at.mkdir() if kind == "folder" else at.write_text("")
    else:
        return  # as it should be
    assert_refused(["compare", "--resume", str(sweep)], at, (sweep,))


def test_the_users_own_folder_may_lie_behind_a_link(tmp_path, sweep):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk)
    train(TINY, tmp_path / "link" / "a")
    assert runs.Run(disk / "a").info["status"] == "finished"
    (disk / "b").mkdir()
    (tmp_path / "b").symlink_to(disk / "b")
    train(TINY, tmp_path / "b")
    assert runs.Run(disk / "b").info["status"] == "finished"
    sweep.rename(disk / "sweep")
    sweep.symlink_to(disk / "sweep")
    for folder in (sweep, tmp_path / "link" / "sweep"):
        with damage.quick():
            code, _, err = damage.in_process(["compare", "--resume", str(folder)])
        assert code == 1 and "2 trials have no result" in err, err  # the hunt's pool trains elsewhere


def test_a_finished_trial_may_lie_elsewhere(sweep, tmp_path):
    """It is only read: people move what is done to another disk."""
    (trial,) = (t for t in Sweep.read(sweep).trials() if t.cell == "rms")
    train(trial.experiment, tmp_path / "moved")
    (sweep / TRIALS).mkdir()
    (sweep / TRIALS / trial.name).symlink_to(tmp_path / "moved")
    with damage.quick():
        code, _, err = damage.in_process(["compare", "--resume", str(sweep)])
    assert code == 1 and "1 trials have no result" in err, err
