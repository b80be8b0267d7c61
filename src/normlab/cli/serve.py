"""normlab serve."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from .options import Verb
from .show import complain, note, say

PORT = 8765


def add(verb: Verb) -> None:
    serve = verb(
        "serve",
        "Show the runs, sweeps, claims and benchmarks below a folder in a browser, live.",
        "normlab serve runs --open",
    )
    serve.add_argument("folder", type=Path, help="where runs and sweeps lie, at any depth")
    serve.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen at (default: this machine alone); any other gets a random token in the address",
    )
    serve.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a host name that browsers may use for this machine, in addition to its own; may be repeated",
    )
    serve.add_argument("--open", action="store_true", help="open a browser")


def run(args: argparse.Namespace) -> int:
    import errno
    import socket

    from ..errors import require

    if not args.folder.is_dir():
        complain("serve", f"{args.folder} is not a folder")
        return 2
    if not 0 <= args.port <= 65535:
        complain("serve", f"--port must be 0 to 65535, got {args.port}")
        return 2
    try:
        require("a server", "ui", "starlette", "uvicorn")
        from ..report import serve

        bound = serve.bind(args.host, args.port)
    except ImportError as error:
        complain("serve", error)
        return 2
    except (OSError, UnicodeError) as error:  # UnicodeError: what can be no name of a host
        why = getattr(error, "strerror", None) or error
        not_here = (
            not isinstance(error, OSError) or isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        )
        complain("serve",
                 f"--host {args.host}: {why}; it takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all" if not_here
                 else f"{args.host}:{args.port}: {why}; choose another with --port, or --port 0 for a free one")  # fmt: skip
        return 2
    say(bound.address)
    note("normlab serve: press Ctrl-C to end")
    if args.open and not webbrowser.open(bound.address):
        note("normlab serve: no browser was found here; open the address above")
    names = [socket.gethostname(), *args.name] if bound.token else args.name
    serve.run(args.folder, bound, names, _claims, _prepare_claims)
    return 0


def _prepare_claims() -> None:
    """When the first page of claims is asked for: their room needs torch, which takes seconds, once."""
    from ..claims import html  # noqa: F401


def _claims(folder: Path) -> dict[str, Any]:
    from ..claims.html import view
    from ..runs import read_claims

    return view(read_claims(folder), folder.name)
