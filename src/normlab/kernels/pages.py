"""Huge pages under large outputs: are they asked for? A pure function from the request and the system's setting to (answer, reason).

A huge page saves 511 page faults. But where none is free the system first moves other memory out of the way, and with most
settings of ``defrag`` the call that asked waits for that, for hundreds of milliseconds at times. NORMLAB_HUGE_PAGES decides:
0 never asks, 1 always does, auto (the default) asks where nobody has to wait.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import BadSetting, unknown

VARIABLE = "NORMLAB_HUGE_PAGES"
REQUESTS = ("0", "1", "auto")
SYSTEM = Path("/sys/kernel/mm/transparent_hugepage")
PATIENT = ("defer", "never")  # settings of defrag under which a fault takes a huge page only if one is free


def setting(name: str) -> str | None:
    """The chosen word of ``enabled`` or ``defrag``, or None where the system has no such thing."""
    try:
        words = (SYSTEM / name).read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def choose(request: str, enabled: str | None, defrag: str | None) -> tuple[bool, str]:
    """(ask for huge pages?, reason).

    >>> choose("auto", "madvise", "madvise")
    (False, "defrag is 'madvise': a call may wait while memory is moved")
    >>> choose("auto", "madvise", "defer")
    (True, "defrag is 'defer': huge pages are taken where they are free, and nobody waits")
    >>> choose("1", "madvise", "madvise")
    (True, 'requested')
    """
    if request not in REQUESTS:
        raise BadSetting(f"{VARIABLE}: {unknown('setting', request, REQUESTS)}")
    if request != "auto":
        return request == "1", "requested"
    if enabled is None:
        return False, "this system has no transparent huge pages"
    if enabled == "never":
        return False, "the system has switched them off"
    if defrag in PATIENT:
        return True, f"defrag is {defrag!r}: huge pages are taken where they are free, and nobody waits"
    return False, f"defrag is {defrag!r}: a call may wait while memory is moved"
