"""The folder of a run that is about to begin."""

from __future__ import annotations

from pathlib import Path

from ..runs import INFO, READINGS


def make_room(folder: Path, overwrite: bool) -> None:
    """A run that is there already is an error that names the ways out, or is removed: its two files, nothing else."""
    if not (folder / INFO).exists():
        return
    if not overwrite:
        number = 2
        while (folder.parent / f"{folder.name}-{number}").exists():
            number += 1
        free = folder.parent / f"{folder.name}-{number}"
        raise FileExistsError(
            f"{folder} already holds a run: overwrite=True replaces it, out={str(free)!r} is free, "
            f"after=STEPS goes on with it"
        )
    for name in (INFO, READINGS):
        (folder / name).unlink(missing_ok=True)
