"""Reading files away from the event loop: few threads, each look and each answer made once however many ask, and made again only if it is worth it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...runs import confined
from .found import Stamp

THREADS = 2
BYTES = 128 * 2**20  # of answers that are kept
KEPT = 1000  # looks; more than there are connections that could follow something
SHARE = 0.1  # of a thread's time that making one answer or looking at one thing again may take
SOONEST = 1.0  # seconds

T = TypeVar("T")


class Workshop:
    """Threads that end with the process, whatever they are doing: nobody waits for a long reading when the server ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]] = (
            queue.SimpleQueue()
        )
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    async def do(self, job: Callable[[], T]) -> T:
        """On one of the threads, confined to the folder."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, future, loop))
        return await future

    def _work(self) -> None:
        while True:
            job, future, loop = self._jobs.get()
            try:
                with confined(self.root):
                    found, error = job(), None
            except Exception as raised:
                found, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, future, found, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


def _settle(future: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(found)


def _timed(job: Callable[[], T]) -> tuple[T, float, float]:
    """(what it gives, when it began, the seconds it took), on the thread: waiting for one is no cost of the job."""
    began = time.monotonic()
    return job(), began, time.monotonic() - began


class _Together(Generic[T]):
    """Those who ask for something that is being made wait for that one."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Future[T]] = {}

    async def get(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if name not in self._making:
            task = asyncio.ensure_future(make())
            self._making[name] = task
            task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(self._making[name])


@dataclass(frozen=True)
class Seen:
    """By one look."""

    stamp: Stamp
    began: float  # when
    cost: float  # seconds

    def young(self, soonest: float) -> bool:
        return time.monotonic() - self.began < max(soonest, self.cost / SHARE)


class Looks:
    """Stamps by name, taken in the workshop: one look at a thing for all pages that follow it and all answers made from it."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._kept: OrderedDict[str, Seen] = OrderedDict()
        self._together = _Together[Seen]()

    async def get(self, name: str, look: Callable[[], Stamp], soonest: float) -> Seen:
        """The latest one, unless it is worth looking again: not before ``soonest`` seconds."""
        seen = self._kept.get(name)
        return seen if seen is not None and seen.young(soonest) else await self._next(name, look)

    async def anew(self, name: str, look: Callable[[], Stamp]) -> Seen:
        """One that begins from now on."""
        asked = time.monotonic()
        while (seen := await self._next(name, look)).began < asked:
            pass  # it was under way
        return seen

    async def _next(self, name: str, look: Callable[[], Stamp]) -> Seen:
        return await self._together.get(name, lambda: self._look(name, look))

    async def _look(self, name: str, look: Callable[[], Stamp]) -> Seen:
        seen = Seen(*await self._workshop.do(lambda: _timed(look)))
        self._kept[name] = seen
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return seen


@dataclass
class _Kept:
    stamp: Stamp
    answer: bytes
    made: float  # when
    cost: float  # seconds


class Answers:
    """Bytes by name, made in the workshop."""

    def __init__(self, workshop: Workshop, looks: Looks) -> None:
        self._workshop, self._looks = workshop, looks
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._together = _Together[bytes]()

    async def get(
        self,
        name: str,
        stamp: Callable[[], Stamp],
        make: Callable[[], bytes],
        prepare: Callable[[], None] | None = None,
    ) -> bytes:
        """The answer, as fresh as it is worth: one that took long to make is not made again at once. ``prepare`` comes before
        making and is not counted: what takes long the first time alone, as an import.
        """
        return await self._together.get(name, lambda: self._fresh(name, stamp, make, prepare))

    async def _fresh(
        self, name: str, stamp: Callable[[], Stamp], make: Callable[[], bytes], prepare: Callable[[], None] | None
    ) -> bytes:
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            if time.monotonic() - kept.made < max(SOONEST, kept.cost / SHARE):
                return kept.answer
        now = (await self._looks.get(name, stamp, SOONEST)).stamp
        if kept is not None and kept.stamp == now:
            return kept.answer
        if prepare is not None:
            await self._workshop.do(prepare)
        answer, _, cost = await self._workshop.do(lambda: _timed(make))
        self._kept[name] = _Kept(now, answer, time.monotonic(), cost)
        while sum(len(k.answer) for k in self._kept.values()) > BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return answer
