"""The addresses: the page, its data as JSON, and what follows. Everything relative, so that it works behind the token.

/               the page
/data/list      what there is                 /events/list      when that changes
/data/run?at=   a run, as views shows it      /events/run?at=   its lines as they are written, &from= a place
/data/sweep?at= a sweep                       /events/sweep?at= when it changes
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ...errors import RunUnreadable
from ...runs import Place, end_of
from .. import pages, views
from .found import Found, Listing, Stamp, said, search, stamp, stamp_of
from .guard import Guard, Rules
from .live import Live
from .work import Answers, Workshop


class App:
    """The application of one folder, for any ASGI server."""

    def __init__(self, folder: str | Path, rules: Rules | None = None) -> None:
        self.root = Path(folder).absolute()
        if not self.root.is_dir():
            raise RunUnreadable(f"{folder} is not a folder")
        self.page, policy = pages.served()
        self._workshop = Workshop(self.root)
        self._answers = Answers(self._workshop)
        self._listing = Listing(self.root)
        self.live = Live(self._workshop, self.root)
        self._found: Found | None = None
        routes = [
            Route("/", self._page),
            Route("/favicon.ico", self._none),
            Route("/data/list", self._list),
            Route("/data/{kind}", self._view),
            Route("/events/list", self._list_events),
            Route("/events/{kind}", self._events),
        ]
        inner = Starlette(routes=routes, exception_handlers={404: _absent, 500: _broken})
        inner.router.redirect_slashes = False  # an address is right or it is none
        self.asgi = Guard(inner, rules or Rules(), policy)

    async def _page(self, request: Request) -> Response:
        return Response(self.page, media_type="text/html")

    async def _none(self, request: Request) -> Response:
        return Response(status_code=204)

    # ---- the list

    def _look(self) -> Stamp:
        """At the folder again. Files of runs that are being written are no change of the list, but their status is."""
        self._found = search(self.root)
        each = (stamp(f / "run.json", f / "sweep.json", f / "summary.json") for _, _, f, _ in self._found.listed)
        return tuple(
            hash((key, kind, trials, mark))
            for (key, kind, _, trials), mark in zip(self._found.listed, each, strict=True)
        )

    def _list_bytes(self) -> bytes:
        found = self._found or search(self.root)
        entries = [asdict(entry) for entry in self._listing.entries(found)]
        return _json({"folder": self.root.name, "entries": entries, "more": found.more, "unnamed": found.unnamed})

    async def _list(self, request: Request) -> Response:
        return _of_json(await self._answers.get("list", self._look, self._list_bytes))

    async def _list_events(self, request: Request) -> Response:
        return _stream(self.live.of_all(self._look))

    # ---- a run or a sweep

    async def _asked(self, request: Request) -> tuple[str, str, Path] | None:
        """(key, kind, folder) of what is asked for: a name out of the list, or nothing."""
        key, kind = request.query_params.get("at", ""), request.path_params["kind"]
        if self._found is None or key not in self._found.folders:
            await self._workshop.do(self._look)  # it may be new
        entry = self._found.folders.get(key) if self._found else None
        return None if entry is None or entry[0] != kind else (key, *entry)

    async def _view(self, request: Request) -> Response:
        asked = await self._asked(request)
        if asked is None:
            return _error(404, "nothing of that name is in the folder")
        key, kind, folder = asked
        try:
            found = await self._answers.get(
                f"{kind} {key}", lambda: stamp_of(kind, folder), lambda: self._view_bytes(folder)
            )
        except (RunUnreadable, OSError, ValueError) as error:
            return _error(422, said(error, self.root))
        return _of_json(found)

    def _view_bytes(self, folder: Path) -> bytes:
        place = end_of(folder)  # before reading: what comes meanwhile is told twice and not lost
        return _json({**views.view(folder), "place": str(place)})

    async def _events(self, request: Request) -> Response:
        asked = await self._asked(request)
        if asked is None:
            return _error(404, "nothing of that name is in the folder")
        _, kind, folder = asked
        if kind == "sweep":
            return _stream(self.live.of_sweep(folder))
        told = request.headers.get("last-event-id") or request.query_params.get("from") or ""
        place = Place.parse(told)
        if told and place is None:
            return _error(400, "from is no place in a file")
        return _stream(self.live.of_run(folder, place or Place()))


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _of_json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _stream(pieces: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(pieces, media_type="text/event-stream")


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)


async def _absent(request: Request, error: Exception) -> Response:
    return _error(404, "there is nothing at this address")


async def _broken(request: Request, error: Exception) -> Response:
    return _error(500, "the server could not make this answer")
