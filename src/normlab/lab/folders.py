"""One writer per folder: a lock that the operating system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks on Windows: nothing is refused there
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


def storage_failed(error: BaseException, folder: Path) -> bool:
    """Is it the disk or the folder that failed, rather than the program? A file the user's code did not find is the latter."""
    if not isinstance(error, OSError):
        return False
    folder = Path(folder).absolute()
    if error.errno in STORAGE_ERRORS:
        return True
    if not isinstance(error.filename, (str, os.PathLike)):
        return False
    place = Path(error.filename).absolute()
    return place == folder or folder in place.parents or place in folder.parents


class FolderInUse(RuntimeError):
    """Another process writes to this folder."""


@contextmanager
def sole_writer(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the folder, made if need be; after ``wait`` seconds give up with :class:`FolderInUse`, naming who has it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)  # not inherited by child processes
    try:
        until = time.monotonic() + wait
        while fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    holder = os.pread(handle, 64, 0).decode(errors="replace").strip() or "unknown"
                    raise FolderInUse(f"{folder} is being written by process {holder}; wait for it or end it") from None
                time.sleep(0.02)
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)
