"""Every exception normlab raises on its own account, and the words they share.

User mistakes are plain ``ValueError`` / ``TypeError`` with what was asked, what came and what to do; the classes below
exist where a caller may want to catch one case.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KernelUnavailable(RuntimeError):
    """A kernel was requested by name and cannot serve this call."""


class TransformUnsupported(RuntimeError):
    """A differentiation that this op does not define, such as a second derivative of PowerNorm's running form."""


class RunUnreadable(ValueError):
    """A folder that should hold a run and does not, or holds one of a schema this version does not know."""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not in a table, with the nearest one that is."""
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(options)}."
