"""One writer per folder: a lock that the operating system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..runs import check_file

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
    path = Path(error.filename).absolute()
    return path == folder or folder in path.parents or path in folder.parents


class FolderInUse(RuntimeError):
    """Another process writes to this folder."""


@contextmanager
def sole_writer(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the folder, made if need be; after ``wait`` seconds give up with :class:`FolderInUse`, naming who has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    check_file(path)
    lock = FileLock(path, timeout=wait, poll_interval=0.02)
    try:
        lock.acquire()
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = path.read_text(errors="replace")[:64].strip()
        raise FolderInUse(
            f"{folder} is being written by process {holder or 'unknown'}; wait for it or end it"
        ) from None
    try:
        with suppress(PermissionError):  # Windows lets nobody write to a locked file
            path.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
