"""A folder has one writer, and the lock dies with it; a disk that fails is told from a program that fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from normlab.lab.folders import LOCK, FolderInUse, sole_writer, storage_failed

pytest.importorskip("fcntl")


def holder_of(folder):
    """A process of its own that holds the folder until it is killed."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with sole_writer(folder):
                os.write(tell, b"held")
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(told, 4) == b"held"
    os.close(told)
    return child


def test_a_second_writer_is_refused_by_name_until_the_first_is_gone(tmp_path):
    folder = tmp_path / "a" / "b"
    with sole_writer(folder):
        assert (folder / LOCK).read_text() == str(os.getpid())
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}"), sole_writer(folder):
            pass
    with sole_writer(folder):
        assert folder.is_dir()


def test_an_error_inside_frees_the_folder(tmp_path):
    with pytest.raises(KeyError), sole_writer(tmp_path):
        raise KeyError("inside")
    with sole_writer(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_a_killed_holder_leaves_the_folder_free(tmp_path):
    holder = holder_of(tmp_path)
    try:
        with pytest.raises(FolderInUse, match=f"{tmp_path}.*process {holder};"), sole_writer(tmp_path, wait=0.1):
            pass
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    with sole_writer(tmp_path):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())  # and no digit of the pid before


def test_waiting_takes_over_when_the_other_ends(tmp_path):
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with sole_writer(tmp_path):
            held.set()
            let_go.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    threading.Timer(0.1, let_go.set).start()
    with sole_writer(tmp_path, wait=60):
        assert let_go.is_set()
    other.join()


def test_the_lock_stays_with_its_holder_and_not_with_programs_it_starts(tmp_path):
    with sole_writer(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with sole_writer(tmp_path):
            assert child.poll() is None
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize("place", ["/proc/normlab-test/run", "file/run", "file"])
def test_a_place_that_cannot_be_written_is_a_storage_error_that_names_it(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    folder = Path(place) if place.startswith("/") else tmp_path / place
    if place.startswith("/") and not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    with pytest.raises(OSError) as caught, sole_writer(folder):
        pass
    assert storage_failed(caught.value, folder) and Path(caught.value.filename).name in ("run", "normlab-test", "file")


def test_whose_fault_an_error_is(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "a"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG):
        assert storage_failed(OSError(number, "disk"), folder)
    assert storage_failed(PermissionError(errno.EACCES, "no", str(folder / "run.json")), folder)
    assert storage_failed(PermissionError(errno.EACCES, "no", str(folder.parent)), folder)  # made on the way to it
    assert not storage_failed(FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "data.txt")), folder)
    assert not storage_failed(FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "runs" / "another")), folder)
    assert not storage_failed(OSError("words only"), folder)
    assert not storage_failed(ValueError("program"), folder)
    monkeypatch.chdir(tmp_path)
    assert storage_failed(PermissionError(errno.EACCES, "no", "runs/a/run.json"), folder)
    assert storage_failed(PermissionError(errno.EACCES, "no", str(folder / "run.json")), Path("runs/a"))
