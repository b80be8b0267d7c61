"""A hook that fails must not stop training, nor be asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._torch import unseen

Failed = Callable[[str, BaseException], None]  # (what, why)


class Guard:
    """Wraps hooks: one that raises is reported once and answers None from then on."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.off: set[str] = set()

    def __call__(self, what: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if what in self.off:
                return None
            try:
                with unseen():  # a mode that looks for attention need not see what is computed here
                    return hook(*args, **kwargs)
            except Exception as error:  # whatever it is: the model's own computation goes on
                self.off.add(what)
                self.failed(what, error)
                return None

        if getattr(hook, "passive", False):
            guarded.passive = True  # type: ignore[attr-defined]
        return guarded
