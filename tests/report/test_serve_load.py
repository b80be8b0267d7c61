"""The server with many pages open, and over folders with much in them: what is looked at, read and made again, and what is not."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import run_folders
from test_serve import start, told, told_other

from normlab import cli, runs
from normlab.report.serve import app, found, live, work

PAGES = 8
BENCH = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-16-second.json"


class Clock:
    """In place of ``time``: goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(work, "time", stopped)
    return stopped


def counted(monkeypatch: pytest.MonkeyPatch, name: str, *modules: ModuleType) -> list[Any]:
    """The calls of a function that modules imported, as they are made."""
    calls: list[Any] = []

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (calls.append(given), function(*given))[1]

    for module in modules:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, wrapped(getattr(module, name)))
    return calls


def make_sweep(folder: Path, seeds: int) -> None:
    folder.mkdir()
    runs.write_grid(folder, runs.Grid(axes={"lr": [0.1], "seed": [*range(seeds)]}, base={"task": "text"}))


# ---- looks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "look"), [("list", "search"), ("sweep?at=grid", "stamp_of"), ("claims?at=said", "stamp_of")]
)
def test_all_pages_that_follow_a_thing_share_its_looks(tmp_path, monkeypatch, at, look):
    make_sweep(tmp_path / "grid", 2)
    runs.write_claims(tmp_path / "said", runs.ClaimsRun(budget="quick"))
    looks = counted(monkeypatch, look, app, live)
    monkeypatch.setattr(live, "SELDOM", 1e6)
    for one in start(tmp_path):
        open_ = [one.events(f"/events/{at}") for _ in range(PAGES)]
        mark = told(open_[0][1], "changed")["mark"]
        time.sleep(3 * live.LOOK)  # the others ask too
        assert len(looks) == 1
        monkeypatch.setattr(live, "SELDOM", 0.3)
        assert {told(response, "changed")["mark"] for _, response in open_[1:]} == {mark}, "by a look after they began"
        run_folders.small_run(tmp_path / "grid" / "trials" / "one")
        runs.write_claims(tmp_path / "said", runs.ClaimsRun(budget="default"))
        for _, response in open_:
            told_other(response, "changed", mark)
        for connection, _ in open_:
            connection.close()


def test_a_list_is_made_from_the_look_that_its_pages_share(tmp_path, monkeypatch):
    looks = counted(monkeypatch, "search", app)
    monkeypatch.setattr(live, "SELDOM", 1e6)
    monkeypatch.setattr(work, "SOONEST", 1e6)
    for one in start(tmp_path):
        connection, response = one.events("/events/list")
        mark = told(response, "changed")["mark"]
        assert one.ask("/data/list").json["mark"] == mark and len(looks) == 1
        connection.close()


def test_a_look_is_made_again_when_it_is_worth_it(tmp_path, clock):
    made: list[float] = []

    def look(cost: float) -> found.Stamp:
        made.append(cost)
        clock.now += cost
        return (len(made),)

    async def ask() -> None:
        looks = work.Looks(work.Workshop(tmp_path))
        for cost, wait in ((0.01, 1.0), (2.0, 2.0 / work.SHARE)):  # cheap, dear
            made.clear()
            for share, times in ((0.0, 1), (0.8, 1), (0.3, 2)):
                clock.now += share * wait
                asked = (looks.get(str(cost), lambda cost=cost: look(cost), 1.0) for _ in range(PAGES))
                assert len(set(await asyncio.gather(*asked))) == 1 and made == [cost] * times

    asyncio.run(ask())


def test_names_that_are_not_known_share_a_look_that_begins_after_they_were_asked_for(tmp_path, clock):
    made: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def look() -> found.Stamp:
        made.append(1)
        entered.set()
        leave.wait(60)
        return (len(made),)

    async def ask() -> None:
        looks = work.Looks(work.Workshop(tmp_path))
        first = asyncio.ensure_future(looks.anew("a", look))
        await asyncio.to_thread(entered.wait, 60)
        clock.now += 1
        later = [asyncio.ensure_future(looks.anew("a", look)) for _ in range(PAGES)]
        await asyncio.sleep(0)
        leave.set()
        assert (await first).stamp == (1,) and {(await one).stamp for one in later} == {(2,)}

    asyncio.run(ask())


# ---- the list --------------------------------------------------------------------------------------------------------


def test_a_summary_is_read_once_and_a_large_one_never(tmp_path, monkeypatch):
    reads = counted(monkeypatch, "read_summary", found)
    make_sweep(tmp_path / "grid", 4)
    runs.write_summary(tmp_path / "grid", runs.Summary(planned=2))
    listing = found.Listing(tmp_path)

    def line() -> tuple[int | None, int | None]:
        (entry,) = listing.entries(found.search(tmp_path))
        return entry.trials, entry.planned

    assert line() == (0, 2) and len(reads) == 1
    for trials, planned in ((1, 2), (2, 2), (3, 4)):  # with three trials the answer is out of date
        run_folders.small_run(tmp_path / "grid" / "trials" / str(trials))
        assert line() == (trials, planned) and len(reads) == 1
    runs.write_summary(tmp_path / "grid", runs.Summary(planned=3))
    assert line() == (3, 3) and len(reads) == 2
    summary = tmp_path / "grid" / "summary.json"
    monkeypatch.setattr(found, "SUMMARY_READ", summary.stat().st_size)
    summary.write_text(summary.read_text() + "\n")
    assert line() == (3, 4) and len(reads) == 2, "counted from the grid"


def test_benchmarks_that_do_not_fit_into_the_list_are_counted_and_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(found, "LISTED", 2)
    for name in "abcd":
        (tmp_path / f"bench-{name}.json").write_bytes(BENCH.read_bytes())
    run_folders.small_run(tmp_path / "run")
    for one in start(tmp_path):
        listed = one.ask("/data/list").json
        assert [entry["key"] for entry in listed["entries"]] == ["bench-a.json", "bench-b.json"] and listed["more"] == 3
        for address in ("/data/kernels?at=bench-d.json", "/data/run?at=run"):
            assert one.ask(address).status == 200, address


# ---- answers ---------------------------------------------------------------------------------------------------------


class SlowImport:
    """A finder of one module, whose import takes long."""

    def __init__(self, name: str, contents: dict[str, Any], slow: Callable[[], None]) -> None:
        self.name, self.contents, self.slow = name, contents, slow

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self.name else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.slow()
        vars(module).update(self.contents)


def test_importing_what_claims_need_is_no_cost_of_their_answer(tmp_path, monkeypatch, clock):
    """As the command serves them, with a room of claims that takes a minute to import."""
    imported: list[int] = []

    def slow() -> None:
        imported.append(1)
        clock.now += 60

    html, room = "normlab.claims.html", ModuleType("normlab.claims")
    room.__path__ = []
    monkeypatch.setitem(sys.modules, "normlab.claims", room)
    monkeypatch.setitem(sys.modules, html, room)  # so that it is as before afterwards
    del sys.modules[html]
    finder = SlowImport(html, {"view": lambda run, title: {"budget": run.budget}}, slow)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    given: list[Any] = []

    def not_served(folder: Path, bound: Any, names: Any, *claims: Any) -> None:
        bound.socket.close()
        given.extend(claims)

    monkeypatch.setattr("normlab.report.serve.run", not_served)
    assert cli.main(["serve", str(tmp_path), "--port", "0"]) == 0 and not imported
    runs.write_claims(tmp_path / "said", runs.ClaimsRun(budget="quick"))
    for one in start(tmp_path, None, *given):
        assert one.ask("/data/claims?at=said").json["budget"] == "quick" and len(imported) == 1
        runs.write_claims(tmp_path / "said", runs.ClaimsRun(budget="default"))
        clock.now += 2 * work.SOONEST
        assert one.ask("/data/claims?at=said").json["budget"] == "default" and len(imported) == 1
