"""Who may ask for what, and what every answer says to the browser.

- The Host header must name this machine: a page of elsewhere whose name was pointed at 127.0.0.1 (DNS rebinding) sends its own name.
- Where others can reach the server a random token stands first in the path; every address in the page is relative to it.
- Requests are GET or HEAD, with short addresses; what another site's page embeds or fetches is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LONGEST = 4096  # bytes of path and query
HEAD = 32 * 1024  # of all headers
LOOPBACK = frozenset({"localhost"})

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the token stands in the address
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Rules:
    """What is asked of a request. ``names``: hosts it may be addressed to; ``anywhere``: also any address in numbers."""

    names: frozenset[str] = LOOPBACK
    anywhere: bool = False
    token: str | None = field(default=None, repr=False)

    def host_allowed(self, host: str) -> bool:
        name = host_name(host)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.anywhere  # no name was resolved, so none was pointed elsewhere


def host_name(host: str) -> str:
    """Without the port and brackets, in lower case; empty for what is no host.

    >>> host_name("[::1]:80"), host_name("LocalHost.:8000"), host_name("a:b:c")
    ('::1', 'localhost', '')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.partition(":")
    return "" if colon and not port.isdigit() else name.removesuffix(".")


def rules(host: str, names: Iterable[str], token: str | None) -> Rules:
    """For a server bound to this address."""
    allowed = LOOPBACK | {host_name(n) for n in names}
    try:
        outside = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        outside = host_name(host) != "localhost"
        allowed |= {host_name(host)}
    return Rules(frozenset(allowed - {""}), outside, token)


class Guard:
    """The application behind it sees only requests that may be answered, without the token in their path."""

    def __init__(self, app: Any, rules: Rules, policy: str) -> None:
        self.app, self.rules = app, rules
        self.headers = {**HEADERS, "content-security-policy": policy}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is spoken here")

        async def answered(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", ()) if k.decode("latin-1") not in self.headers]
                own = [(k.encode(), v.encode()) for k, v in self.headers.items()]
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await _say(answered, *refused)
            return
        if self.rules.token is not None:
            scope = {**scope, "path": scope["path"][len(self.rules.token) + 1 :]}
        await self.app(scope, receive, answered)

    def _refusal(self, scope: dict[str, Any]) -> tuple[int, str] | None:
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        hosts = [v for k, v in headers if k == "host"]
        if len(hosts) != 1 or not self.rules.host_allowed(hosts[0]):
            return 403, "this server does not answer to that host name"
        if sum(len(k) + len(v) for k, v in scope["headers"]) > HEAD:
            return 431, "the headers are too long"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this server only shows: GET and HEAD"
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > LONGEST:
            return 414, "the address is too long"
        fetch = dict(headers)
        if fetch.get("sec-fetch-site") in ("cross-site", "same-site") and fetch.get("sec-fetch-mode") != "navigate":
            return 403, "not for pages of other sites"
        if self.rules.token is not None:
            first, slash, _ = scope["path"].removeprefix("/").partition("/")
            if not slash or not hmac.compare_digest(first.encode(), self.rules.token.encode()):
                return 403, "the address lacks the token that was printed when the server started"
        return None


async def _say(send: Any, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
