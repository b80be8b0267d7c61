"""Reading files away from the event loop: few threads, each answer made once however many ask, and made again only if it is worth it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...runs import confined
from .found import Stamp

THREADS = 2
BYTES = 128 * 2**20  # of answers that are kept
SHARE = 0.1  # of a thread's time that making one answer again may take
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


@dataclass
class _Kept:
    stamp: Stamp
    answer: bytes
    made: float  # when
    cost: float  # seconds


class Answers:
    """Bytes by name, made in the workshop."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._making: dict[str, asyncio.Future[bytes]] = {}

    async def get(self, name: str, stamp: Callable[[], Stamp], make: Callable[[], bytes]) -> bytes:
        """The answer, as fresh as it is worth: one that took long to make is not made again at once."""
        if name in self._making:
            return await asyncio.shield(self._making[name])
        task = asyncio.ensure_future(self._fresh(name, stamp, make))
        self._making[name] = task
        task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(task)

    async def _fresh(self, name: str, stamp: Callable[[], Stamp], make: Callable[[], bytes]) -> bytes:
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            if time.monotonic() - kept.made < max(SOONEST, kept.cost / SHARE):
                return kept.answer
        now = await self._workshop.do(stamp)
        if kept is not None and kept.stamp == now:
            return kept.answer
        began = time.monotonic()
        answer = await self._workshop.do(make)
        self._kept[name] = _Kept(now, answer, time.monotonic(), time.monotonic() - began)
        while sum(len(k.answer) for k in self._kept.values()) > BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return answer
