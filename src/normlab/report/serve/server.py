"""Sockets: where the server listens, clients that are slow or dead, and its end.

A connection has seconds to send a whole request, and seconds to take what waits for it; then it is cut. Ctrl-C ends the process at
once: streams are told, threads are not waited for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import App
from .guard import HEAD, rules

CONNECTIONS = 400  # at once; further ones are told 503
PATIENCE = 10.0  # seconds for a whole request, or for taking what waits


@dataclass(frozen=True)
class Bound:
    """A socket that listens, and the address to give to a browser."""

    socket: socket.socket
    host: str
    token: str | None

    @property
    def address(self) -> str:
        port = self.socket.getsockname()[1]
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"{self.token}/" if self.token else "")


def bind(host: str, port: int) -> Bound:
    """OSError if the port is taken or the address is none of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(CONNECTIONS)
    except BaseException:
        found.close()
        raise
    here = ipaddress.ip_address(found.getsockname()[0]).is_loopback
    return Bound(found, host, None if here else secrets.token_urlsafe(24))


class _Impatient(H11Protocol):
    """A connection that does not wait for ever."""

    _until: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._until = self.loop.call_later(PATIENCE, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        asking = self.cycle is None or self.cycle.response_complete  # a request that is not complete yet
        if not asking and self._until is not None:
            self._until.cancel()
            self._until = None
        elif asking and self._until is None and not self.transport.is_closing():
            self._until = self.loop.call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        self._until = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._until, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """uvicorn, which tells the streams when it ends; it would wait for them."""

    def __init__(self, app: App) -> None:
        self.app = app
        super().__init__(uvicorn.Config(
            app.asgi, http=_Impatient, ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False,
            server_header=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=1, h11_max_incomplete_event_size=HEAD,
        ))  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.live.ended = True
        self.should_exit = self.force_exit = True


def run(
    folder: str | Path,
    bound: Bound,
    names: Iterable[str] = (),
    claims: Callable[[Path], Any] | None = None,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Serves until Ctrl-C. ``claims``, ``prepare``: see :class:`App`."""
    app = App(folder, rules(bound.host, names, bound.token), claims, prepare)
    Server(app).run(sockets=[bound.socket])
