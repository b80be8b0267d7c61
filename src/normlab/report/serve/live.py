"""What comes while a page is open, as server-sent events.

Nothing is queued for anyone: each client has a place in the file and asks from there, clients that keep up ask for the same
piece, which is read once, and a slow one asks later for a longer piece. An event's id is the place after it, so a browser that
lost its connection goes on where it was. What is not followed line by line has a mark, of a look that all who follow it share:
told by the first look that begins after the stream did, and whenever it changes. A page that shows another one asks again, so
that nothing is missed between its data and its stream.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ...errors import RunUnreadable
from ...runs import INFO, READINGS, Grown, Place, grown
from .found import Stamp, mark, said, stamp
from .work import Looks, Workshop

LOOK = 0.25  # seconds between looks at a file, or at what others saw
SELDOM = 1.0  # between looks at a whole sweep or the whole folder; more if they take long
ALIVE = 15.0  # a comment, so that a dead connection is noticed
PIECES = 64  # that are kept for others
LARGEST = 2**22  # bytes of an event; a page reads the whole view instead


def event(name: str, data: Any, id: str | None = None) -> bytes:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    place = "" if id is None else f"id: {id}\n"
    return f"{place}event: {name}\ndata: {text}\n\n".encode()


def _finite(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the page takes them: readings that are not finite are null, events by their names alone."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        values = {
            probe: {site: v if type(v) in (int, float) and math.isfinite(v) else None for site, v in sites.items()}
            for probe, sites in line.get("values", {}).items()
        }
        kept.append(
            {"step": line["step"], "values": values} if values else {"step": line["step"], "event": line.get("event")}
        )
    return kept


class Live:
    def __init__(self, workshop: Workshop, looks: Looks, root: Path) -> None:
        self._workshop, self._looks, self._root = workshop, looks, root
        self._pieces: OrderedDict[tuple[Path, Place, Stamp], asyncio.Future[tuple[bytes, Place]]] = OrderedDict()
        self.ended = False  # set when the server ends

    async def of_run(self, folder: Path, since: Place) -> AsyncIterator[bytes]:
        """``lines`` with what was written, ``info`` with the mark of run.json, ``anew`` when all has to be read again."""
        yield b"retry: 1000\n\n"
        about: Stamp | None = None
        place, spoken = since, time.monotonic()
        while not self.ended:
            piece, before = b"", place
            end = stamp(folder / READINGS)
            if (end[0], end[2]) != (place.file, place.byte):
                piece, place = await self._piece(folder, place, end)
            if (now := stamp(folder / INFO)) != about:
                about = now
                piece += event("info", {"mark": mark(now)})
            if not piece and time.monotonic() - spoken > ALIVE:
                piece = b": still here\n\n"
            if piece:
                spoken = time.monotonic()
                yield piece
            # A closed connection takes all it is given at once: without a pause nobody would learn that it is closed.
            await asyncio.sleep(LOOK if place == before or not piece else 0)

    async def _piece(self, folder: Path, since: Place, end: Stamp) -> tuple[bytes, Place]:
        """What stands after a place in a file as it is now: read once for all who ask from there. Files come back under the
        number of one that was removed, so what was read from another state of the file is no answer.
        """
        key = (folder, since, end)
        future = self._pieces.get(key)
        if future is None:
            future = asyncio.ensure_future(self._workshop.do(lambda: self._written(folder, since)))
            self._pieces[key] = future
            future.add_done_callback(lambda f: self._forget(key, f))
            while len(self._pieces) > PIECES:
                self._pieces.popitem(last=False)
        return await asyncio.shield(future)

    def _forget(self, key: tuple[Path, Place, Stamp], future: asyncio.Future[tuple[bytes, Place]]) -> None:
        """A piece that holds nothing new must be asked for again."""
        if future.cancelled() or future.exception() is not None or future.result()[1] == key[1]:
            self._pieces.pop(key, None)

    def _written(self, folder: Path, since: Place) -> tuple[bytes, Place]:
        try:
            found: Grown = grown(folder, since)
        except (RunUnreadable, OSError) as error:
            # The page shows it; it does not go away by asking again, unless the file changes.
            end = stamp(folder / READINGS)
            return event("problem", {"error": said(error, self._root)}), Place(end[0], end[2])
        if found.anew:
            return event("anew", {}, str(found.end)), found.end
        if not found.lines:
            return b"", since
        piece = event("lines", _finite(found.lines), str(found.end))
        return (event("anew", {}, str(found.end)) if len(piece) > LARGEST else piece), found.end

    async def of_whole(self, name: str, look: Callable[[], Stamp]) -> AsyncIterator[bytes]:
        """``changed`` with the mark of what its page is made from: of a sweep, another one when a trial began, ended or was answered."""
        yield b"retry: 1000\n\n"
        known: Stamp | None = None
        begun = spoken = time.monotonic()
        while not self.ended:
            seen = await self._looks.get(name, look, SELDOM)
            if seen.began >= begun and seen.stamp != known:  # one from before may be older than what the page shows
                known, spoken = seen.stamp, time.monotonic()
                yield event("changed", {"mark": mark(known)})
            elif time.monotonic() - spoken > ALIVE:
                spoken = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(LOOK)
