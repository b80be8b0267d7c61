"""SERVER: the pages over runs, live, of all that lies below one folder. Reads; writes nothing and runs nothing.

guard       who may ask for what: hosts, token, methods, headers of every answer
found       which runs and sweeps there are below the folder; only what is listed here can be asked for
work        reading off the event loop, each thing once however many ask, and no more often than it is worth
live        what comes to a run or a sweep while it is shown, as server-sent events
app         the addresses              server    sockets, slow clients, the end
"""

from .app import App
from .server import Bound, Server, bind, run

__all__ = ["App", "Bound", "Server", "bind", "run"]
