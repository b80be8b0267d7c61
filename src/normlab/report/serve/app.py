"""The addresses: the page, its data as JSON, and what follows. Everything relative, so that it works behind the token.

/               the page
/data/list      what there is                 /events/list      when that changes
/data/run?at=   a run, as views shows it      /events/run?at=   its lines as they are written, &from= a place
/data/sweep?at= a sweep                       /events/sweep?at= when it changes
/data/claims?at=, /data/kernels?at=           a run of claims, a benchmark; events as of a sweep

Data hold the mark of the files they were made from, events that of the files as they are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ...errors import RunUnreadable
from ...runs import INFO, Place, end_of
from .. import pages, views
from .found import Found, Listing, Stamp, files_of, mark, said, search, stamp, stamp_of
from .guard import Guard, Rules
from .live import Live
from .work import Answers, Looks, Workshop

LIST = "list"  # its name among looks and answers; names of others have two words


class App:
    """The application of one folder, for any ASGI server. ``claims`` makes the view of a run of claims, whose room lies above this one;
    ``prepare`` brings what that needs and is called before.
    """

    def __init__(
        self,
        folder: str | Path,
        rules: Rules | None = None,
        claims: Callable[[Path], Any] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.root = Path(folder).absolute()
        if not self.root.is_dir():
            raise RunUnreadable(f"{folder} is not a folder")
        self.page, policy = pages.served()
        self._workshop = Workshop(self.root)
        self._looks = Looks(self._workshop)
        self._answers = Answers(self._workshop, self._looks)
        self._listing = Listing(self.root)
        self.live = Live(self._workshop, self._looks, self.root)
        self._seen = Found({}, [], 0, 0), ""  # at the latest look, and its mark: one value, for threads read it
        self._claims, self._prepare = claims, prepare
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
        found = search(self.root)
        each = (stamp(*files_of(kind, at)) for _, kind, at, _ in found.listed)
        listed = tuple(
            hash((key, kind, trials, files)) for (key, kind, _, trials), files in zip(found.listed, each, strict=True)
        )
        self._seen = found, mark(listed)
        return listed

    def _list_bytes(self) -> bytes:
        found, listed = self._seen
        entries = [asdict(entry) for entry in self._listing.entries(found)]
        return _json(
            {"folder": self.root.name, "entries": entries, "more": found.more, "unnamed": found.unnamed, "mark": listed}
        )

    async def _list(self, request: Request) -> Response:
        return _of_json(await self._answers.get(LIST, self._look, self._list_bytes))

    async def _list_events(self, request: Request) -> Response:
        return _stream(self.live.of_whole(LIST, self._look))

    # ---- a run or a sweep

    async def _asked(self, request: Request) -> tuple[str, str, Path] | None:
        """(name, kind, folder) of what is asked for: out of the list, or nothing."""
        key, kind = request.query_params.get("at", ""), request.path_params["kind"]
        if key not in self._seen[0].folders:
            await self._looks.anew(LIST, self._look)  # it may be new
        entry = self._seen[0].folders.get(key)
        return None if entry is None or entry[0] != kind else (f"{kind} {key}", *entry)

    async def _view(self, request: Request) -> Response:
        asked = await self._asked(request)
        if asked is None:
            return _error(404, "nothing of that name is in the folder")
        name, kind, folder = asked
        try:
            found = await self._answers.get(
                name,
                lambda: stamp_of(kind, folder),
                lambda: self._view_bytes(kind, folder),
                self._prepare if kind == "claims" else None,
            )
        except (RunUnreadable, OSError, ValueError) as error:
            return _error(422, said(error, self.root))
        return _of_json(found)

    def _view_bytes(self, kind: str, folder: Path) -> bytes:
        # Mark and place before reading: what comes meanwhile is told twice and not lost.
        known = {"mark": mark(stamp(folder / INFO) if kind == "run" else stamp_of(kind, folder))}
        if kind == "claims":
            if self._claims is None:
                raise RunUnreadable("this server shows no claims")
            return _json({**self._claims(folder), **known})
        if kind == "run":
            known["place"] = str(end_of(folder))
        return _json({**views.view(folder), **known})

    async def _events(self, request: Request) -> Response:
        asked = await self._asked(request)
        if asked is None:
            return _error(404, "nothing of that name is in the folder")
        name, kind, folder = asked
        if kind != "run":
            return _stream(self.live.of_whole(name, lambda: stamp_of(kind, folder)))
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
