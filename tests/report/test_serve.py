"""The server: what it shows, and what nobody gets out of it or does to it. Real sockets on the loopback."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import run_folders
from run_folders import SCRIPT

from normlab import cli, report, runs
from normlab.report.serve import App, bind, found, guard, live, server, work

SECRET = "the-secret-outside"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    folder: Path
    port: int
    running: server.Server

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None) -> Answer:  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def events(self, path: str) -> Any:
        """A stream of (name, data, id), read as long as the caller wants."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        return connection, connection.getresponse()


def start(folder: Path, rules: guard.Rules | None = None, *given: Any, **claims: Any) -> Iterator[Site]:
    bound = bind("127.0.0.1", 0)
    running = server.Server(App(folder, rules, *given, **claims))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound.socket]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield Site(folder, bound.socket.getsockname()[1], running)
    running.handle_exit(signal.SIGINT, None)
    thread.join(10)
    assert not thread.is_alive()


def make(folder: Path) -> Path:
    run_folders.full_run(folder / "full")
    run_folders.hostile_run(folder / SCRIPT)
    run_folders.damaged_run(folder / "damaged")
    run_folders.small_run(folder / "deeper" / "small")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start(make(tmp_path_factory.mktemp("serve") / "runs"))


def next_event(response: Any) -> tuple[str, Any, str | None]:
    """The next one that is no comment."""
    fields: dict[str, str] = {}
    begun = time.monotonic()
    while time.monotonic() < begun + 60:  # comments keep the connection alive for ever
        line = response.readline().decode()
        assert line, "the stream ended"
        if line == "\n":
            if "event" in fields:
                return fields["event"], json.loads(fields["data"]), fields.get("id")
            fields = {}
        else:
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
    raise TimeoutError("no event came")


def told(response: Any, name: str) -> Any:
    """By the next event of that name."""
    while (event := next_event(response))[0] != name:
        pass
    return event[1]


def told_other(response: Any, name: str, shown: str) -> str:
    """The mark of the first event of that name that tells of something else than what is shown."""
    while (mark := told(response, name)["mark"]) == shown:
        pass
    return str(mark)


# ---- what it shows ---------------------------------------------------------------------------------------------------


def test_the_list_holds_every_run(site):
    answer = site.ask("/data/list").json
    entries = {e["key"]: e for e in answer["entries"]}
    assert set(entries) == {"full", SCRIPT, "damaged", "deeper/small"} and answer["folder"] == "runs"
    assert entries["full"]["status"] == "finished" and entries["full"]["loss"] == 2.31


def test_a_run_is_its_view(site):
    answer = site.ask("/data/run?at=full").json
    place = answer.pop("place")
    assert answer.pop("mark")
    assert answer == json.loads(json.dumps(report.view(site.folder / "full")))
    assert runs.Place.parse(place).byte == (site.folder / "full" / runs.READINGS).stat().st_size


def test_trials_belong_to_their_sweep(tmp_path):
    (tmp_path / "grid").mkdir()
    grid = runs.Grid(axes={"norm": ["layer"], "lr": [0.1], "seed": [0, 1]}, base={"task": "text"})
    runs.write_grid(tmp_path / "grid", grid)
    run_folders.small_run(tmp_path / "grid" / "trials" / "one")
    run_folders.small_run(tmp_path / "trials" / "alone")
    seen = found.search(tmp_path)
    assert {key for key, *_ in seen.listed} == {"grid", "trials/alone"}
    assert set(seen.folders) == {"grid", "grid/trials/one", "trials/alone"}
    (entry,) = [e for e in found.Listing(tmp_path).entries(seen) if e.kind == "sweep"]
    assert (entry.trials, entry.planned) == (1, 2)
    runs.write_summary(tmp_path / "grid", runs.Summary(planned=1))  # it knows of rates that get no second seed
    (entry,) = [e for e in found.Listing(tmp_path).entries(seen) if e.kind == "sweep"]
    assert (entry.trials, entry.planned) == (1, 1)
    run_folders.small_run(tmp_path / "grid" / "trials" / "two")  # and now it is out of date
    (entry,) = [e for e in found.Listing(tmp_path).entries(found.search(tmp_path)) if e.kind == "sweep"]
    assert (entry.trials, entry.planned) == (2, 2)
    (tmp_path / "grid" / "summary.json").unlink()
    for one in start(tmp_path):
        assert one.ask("/data/sweep?at=grid").json["kind"] == "sweep"
        assert one.ask("/data/run?at=grid").status == 404 and one.ask("/data/sweep?at=trials/alone").status == 404


def test_claims_and_benchmarks_have_pages(tmp_path):
    """By their files, in the folder alone; claims by the function that the server is given."""
    bench = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-16-second.json"
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "bench-a.json").write_bytes(bench.read_bytes())
    (tmp_path / "bench-bad.json").write_text('{"rows": "<b>"}')
    (tmp_path / "other.json").write_bytes(bench.read_bytes())
    (tmp_path / "bench-out.json").symlink_to(bench)
    results = [
        runs.ClaimResult(id=name, verdict=verdict, budget="quick")
        for name, verdict in (("C1", "holds"), ("C2", "undecided"))
    ]
    runs.write_claims(tmp_path / "claims", runs.ClaimsRun(budget="quick", results=tuple(results)))

    def view(folder: Path) -> dict[str, Any]:
        return {"kind": "claims", "rows": [r.id for r in runs.read_claims(folder).results]}

    for one in start(tmp_path, claims=view):
        entries = {e["key"]: e for e in one.ask("/data/list").json["entries"]}
        assert {key: e["kind"] for key, e in entries.items()} == {
            "deeper/bench-a.json": "kernels", "bench-bad.json": "kernels", "claims": "claims",
        }  # fmt: skip
        assert (entries["claims"]["trials"], entries["claims"]["planned"]) == (1, 2)
        shown = one.ask("/data/kernels?at=deeper/bench-a.json").json
        assert shown.pop("mark")
        assert shown == json.loads(json.dumps(report.view(bench))) | {"title": "bench-a"}
        assert one.ask("/data/claims?at=claims").json["rows"] == ["C1", "C2"]
        bad = one.ask("/data/kernels?at=bench-bad.json")
        assert bad.status == 422 and "no rows" in bad.json["error"] and str(tmp_path) not in bad.json["error"]
        for at in ("other.json", "bench-out.json", "claims", "deeper"):
            assert one.ask(f"/data/kernels?at={at}").status == 404, at
        shown = one.ask("/data/claims?at=claims").json["mark"]
        connection, response = one.events("/events/claims?at=claims")
        runs.write_claims(tmp_path / "claims", runs.ClaimsRun(budget="quick", results=tuple(results[:1])))
        mark = told_other(response, "changed", shown)
        connection.close()
        begun = time.monotonic()
        while (answer := one.ask("/data/claims?at=claims").json)["mark"] != mark:
            assert time.monotonic() < begun + 60
            time.sleep(0.1)  # kept for a second
        assert answer["rows"] == ["C1"]
    for one in start(tmp_path):
        assert one.ask("/data/claims?at=claims").status == 422


def test_new_lines_are_told_once_and_torn_ones_when_they_are_whole(tmp_path):
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=7)
    for one in start(tmp_path):
        place = one.ask("/data/run?at=a").json["place"]
        connection, response = one.events(f"/events/run?at=a&from={place}")
        assert next_event(response)[0] == "info"
        assert response.getheader("content-type").startswith("text/event-stream")
        writer.write(8, {"loss": {"model": 1.25}, "length": {"n": float("nan")}})
        name, lines, place = next_event(response)
        assert name == "lines" and lines == [{"step": 8, "values": {"loss": {"model": 1.25}, "length": {"n": None}}}]
        with open(tmp_path / "a" / runs.READINGS, "ab", buffering=0) as file:
            file.write(b'{"step": 9, "values": {"lo')
            time.sleep(3 * live.LOOK)
            file.write(b'ss": {"model": 1.0}}}\n{"step": 10')
        name, lines, place = next_event(response)
        assert (name, [line["step"] for line in lines]) == ("lines", [9])
        connection.close()
        with open(tmp_path / "a" / runs.READINGS, "ab", buffering=0) as file:
            file.write(b', "values": {}}\n')
        connection, response = one.events(f"/events/run?at=a&from={place}")  # where it was
        assert [line["step"] for line in next_event(response)[1]] == [10]
        about = next_event(response)
        writer.update(status="finished")
        assert about[0] == "info" and told_other(response, "info", about[1]["mark"])
        os.truncate(tmp_path / "a" / runs.READINGS, 0)
        for remove in (False, True):
            if remove:
                (tmp_path / "a" / runs.READINGS).unlink()
            name, _, place = next_event(response)
            assert name == "anew" and place == str(runs.end_of(tmp_path / "a")), "so that a page knows when it has all"
        connection.close()


def test_a_file_that_is_written_anew_is_read_anew(tmp_path):
    """Under the same number, as a file system gives it to the next one: nobody gets lines of the one before."""
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=7)
    readings = tmp_path / "a" / runs.READINGS
    place = runs.end_of(tmp_path / "a")
    for one in start(tmp_path):
        for step in (8, 10):  # of two sizes: a clock of files may not tell two writes apart
            os.truncate(readings, place.byte)
            with open(readings, "ab", buffering=0) as file:
                file.write(b'{"step": %d, "values": {}}\n' % step)
            connection, response = one.events(f"/events/run?at=a&from={place}")
            assert [line["step"] for line in told(response, "lines")] == [step]
            connection.close()
        for _ in range(3):  # pages stay open while a file goes and comes back
            connection, response = one.events(f"/events/run?at=a&from={place}")
            told(response, "lines")
            content = readings.read_bytes()
            readings.unlink()
            told(response, "anew")
            assert one.ask("/data/list").status == 200
            readings.write_bytes(content)
            assert told(response, "lines")[0]["step"] == 1
            connection.close()
    writer.close("finished")


def test_a_damaged_line_is_a_message_and_later_ones_follow(tmp_path):
    run_folders.small_run(tmp_path / "a")
    for one in start(tmp_path):
        connection, response = one.events(f"/events/run?at=a&from={runs.end_of(tmp_path / 'a')}")
        with open(tmp_path / "a" / runs.READINGS, "ab", buffering=0) as file:
            file.write(b"\xff\xfe[[[\n")
            said = told(response, "problem")
            assert "the line at byte" in said["error"] and str(tmp_path) not in said["error"]
            file.write(b'{"step": 6, "values": {}}\n')
        # The mark of run.json stands before or after the message: the first look may come before the damaged line or after it.
        assert told(response, "lines") == [{"step": 6, "event": None}]
        connection.close()


def test_a_new_run_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "SELDOM", 0.3)
    for one in start(tmp_path):
        listed = one.ask("/data/list").json
        assert listed["entries"] == []
        connection, response = one.events("/events/list")
        time.sleep(0.6)
        run_folders.small_run(tmp_path / "new")
        told_other(response, "changed", listed["mark"])
        connection.close()


def test_what_changed_before_the_stream_began_is_told(tmp_path):
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=7)
    runs.write_claims(tmp_path / "c", runs.ClaimsRun(budget="quick"))
    for one in start(tmp_path, claims=lambda folder: {"kind": "claims"}):
        shown = {at: one.ask(f"/data/{at}").json for at in ("list", "run?at=a", "claims?at=c")}
        for at, name in (("list", "changed"), ("run?at=a", "info"), ("claims?at=c", "changed")):
            connection, response = one.events(f"/events/{at}")
            assert told(response, name)["mark"] == shown[at]["mark"], "nothing changed"
            connection.close()
        writer.update(status="finished")
        runs.write_claims(tmp_path / "c", runs.ClaimsRun(budget="default"))
        run_folders.small_run(tmp_path / "new")
        for at, name in (("list", "changed"), ("run?at=a", "info"), ("claims?at=c", "changed")):
            connection, response = one.events(f"/events/{at}")
            assert told(response, name)["mark"] != shown[at]["mark"]
            connection.close()


def test_an_answer_is_made_once_for_all_who_ask(tmp_path, monkeypatch):
    run_folders.small_run(tmp_path / "a")
    made: list[int] = []
    view = App._view_bytes
    monkeypatch.setattr(
        App, "_view_bytes", lambda self, kind, folder: (made.append(1), time.sleep(0.3), view(self, kind, folder))[2]
    )
    for one in start(tmp_path):
        threads = [threading.Thread(target=one.ask, args=("/data/run?at=a",)) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(made) == 1
        (tmp_path / "a" / "run.json").touch()
        assert one.ask("/data/run?at=a").status == 200 and len(made) == 1, "too soon to be worth it"
        time.sleep(max(work.SOONEST, 0.35 / work.SHARE))
        assert one.ask("/data/run?at=a").status == 200 and len(made) == 2


# ---- nothing leaves the folder ---------------------------------------------------------------------------------------

ROUTES = ("..", "../..", "../outside", "..%2foutside", "%2e%2e/outside", "%252e%252e%252foutside", "..\\outside", "..%5Coutside", "/etc", "%2fetc%2fpasswd",
          "C:\\Windows", "C%3A%5CWindows", "\\\\host\\share", "full/../../outside", "full/./../../outside", "full%00", "full/", "./full", "link", "link/run", "loop",
          "full/readings.jsonl", "~", "file:///etc", "deeper//small", "")  # fmt: skip


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A folder with links that lead out of it, and a run beside it."""
    base = tmp_path_factory.mktemp("linked")
    folder = make(base / "runs")
    outside = run_folders.small_run(base / "outside" / "run")
    runs.Writer(outside, {"config": SECRET}, again=True).close()
    (base / "outside" / "lines").write_text(json.dumps({"step": 1, "values": {SECRET: {"model": 1.0}}}) + "\n")
    (folder / "link").symlink_to(base / "outside")
    (folder / "loop").symlink_to(folder)
    for name, target in (("info", outside / "run.json"), ("lines", base / "outside" / "lines")):
        run_folders.small_run(folder / name)
        file = folder / name / ("run.json" if name == "info" else runs.READINGS)
        file.unlink()
        file.symlink_to(target)
    yield from start(folder)


@pytest.mark.parametrize("route", ROUTES)
def test_no_path_leaves_the_folder(linked, route):
    for address in (
        f"/data/run?at={route}",
        f"/events/run?at={route}",
        f"/data/sweep?at={route}",
        f"/data/{route}",
        f"/{route}",
        f"/events/{route}",
    ):
        if any(ord(c) < 33 for c in address):
            continue
        answer = linked.ask(address)
        assert answer.status in (400, 404) or address == "/", address
        assert SECRET.encode() not in answer.body and b"root:x" not in answer.body


def test_links_out_of_the_folder_are_not_read(linked):
    listed = linked.ask("/data/list")
    entries = {e["key"]: e for e in listed.json["entries"]}
    assert (
        not [key for key in entries if key.startswith(("link", "loop"))] and "leads out" in entries["info"]["problem"]
    )
    for key in ("info", "lines"):
        answer = linked.ask(f"/data/run?at={key}")
        assert answer.status == 422 and "leads out" in answer.json["error"] and SECRET.encode() not in answer.body
    connection, response = linked.events("/events/run?at=lines&from=0-0")
    name, said, _ = next_event(response)
    assert name == "problem" and "leads out" in said["error"]
    connection.close()
    assert SECRET.encode() not in listed.body and str(linked.folder.parent).encode() not in listed.body


def test_confined_reading_notices_a_link_that_is_changed_meanwhile(tmp_path, monkeypatch):
    inside, outside = run_folders.small_run(tmp_path / "in" / "a"), run_folders.small_run(tmp_path / "out")
    with runs.confined(tmp_path / "in"):
        assert runs.Run(inside).info["status"] == "finished"
        with pytest.raises(runs.RunUnreadable if hasattr(runs, "RunUnreadable") else ValueError, match="leads out"):
            runs.Run(outside)
        monkeypatch.setattr(os.path, "realpath", lambda p: str(inside / "run.json"))  # as it was a moment ago
        with pytest.raises(ValueError, match="leads out"):
            runs.Run(outside)
    monkeypatch.undo()
    assert runs.Run(outside).info["status"] == "finished", "only inside of it"


# ---- who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.1.2.3",
        "",
        "a b",
        "[::2]",
        "localhost:80:80",
        "0x7f000001",
    ],
)
def test_other_hosts_are_refused(site, host):
    assert site.ask("/", headers={"Host": host}).status in (400, 403)
    assert site.ask("/data/list", headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80", "127.9.9.9"])
def test_this_machine_is_answered_under_any_port(site, host):
    assert site.ask("/data/list", headers={"Host": host}).status == 200


def test_two_hosts_are_none(site):
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" not in s.recv(200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed(site, method):
    before = sorted((p, p.stat().st_mtime_ns) for p in site.folder.rglob("*"))
    assert site.ask("/data/list", method=method, body=b"x" * 1000).status == 405
    assert site.ask("/nowhere", method=method).status == 405, "whatever the address"
    assert sorted((p, p.stat().st_mtime_ns) for p in site.folder.rglob("*")) == before


def test_pages_of_other_sites_are_refused(site):
    for value in ("cross-site", "same-site"):
        assert site.ask("/data/list", headers={"Sec-Fetch-Site": value, "Sec-Fetch-Mode": "no-cors"}).status == 403
        assert site.ask("/", headers={"Sec-Fetch-Site": value, "Sec-Fetch-Mode": "navigate"}).status == 200, "a link"
    assert site.ask("/data/list", headers={"Sec-Fetch-Site": "same-origin"}).status == 200


def test_a_token_is_asked_for_where_others_can_reach_it(tmp_path):
    bound, here = bind("0.0.0.0", 0), bind("127.0.0.1", 0)
    assert bound.token and len(bound.token) >= 32 and bound.address.endswith(f"/{bound.token}/")
    assert here.token is None and here.address.count("/") == 3
    bound.socket.close()
    here.socket.close()
    run_folders.small_run(tmp_path / "a")
    rules = guard.rules("0.0.0.0", ["Lab.Example"], bound.token)
    for one in start(tmp_path, rules):
        for path in (
            "/",
            "/data/list",
            "/data/run?at=a",
            f"/{bound.token}",
            f"/{bound.token[:-1]}/",
            f"/x{bound.token}/",
            "/%00/",
        ):
            assert one.ask(path).status == 403, path
        assert one.ask(f"/{bound.token}/").status == 200 and one.ask(f"/{bound.token}/data/list").json["entries"]
        assert one.ask(f"/{bound.token}/", headers={"Host": "10.1.2.3:80"}).status == 200
        assert one.ask(f"/{bound.token}/", headers={"Host": "lab.example"}).status == 200
        assert one.ask(f"/{bound.token}/", headers={"Host": "evil.example"}).status == 403
        assert bound.token not in str(rules)


def test_every_answer_has_its_headers(site):
    policy = ""
    for path in ("/", "/data/list", "/nowhere", "/data/run?at=nothing", "/data/run?at=damaged", "/favicon.ico"):
        headers = site.ask(path).headers
        policy = headers["content-security-policy"]
        rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert (
            rules["default-src"] == "'none'"
            and rules["connect-src"] == "'self'"
            and rules["frame-ancestors"] == "'none'"
        )
        assert "unsafe" not in policy and "*" not in policy and "server" not in headers
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert (
        "access-control-allow-origin" not in site.ask("/data/list", headers={"Origin": "http://evil.example"}).headers
    )
    assert policy.split("'")[3] in site.ask("/").body.decode(), "the page says the same"


# ---- what is damaged, large or slow ----------------------------------------------------------------------------------


def test_names_and_texts_of_runs_are_data(site):
    page = site.ask("/").body
    assert b"alert(1)" not in page and page.count(b"</script>") == 2
    answer = site.ask(f"/data/run?at={quote(SCRIPT)}")
    assert answer.headers["content-type"] == "application/json" and answer.json["title"] == SCRIPT


def test_damage_is_a_line(site):
    answer = site.ask("/data/run?at=damaged")
    assert (
        answer.status == 422
        and "line 6 is not valid JSON" in answer.json["error"]
        and str(site.folder) not in answer.json["error"]
    )


@pytest.mark.parametrize("line", [
    b"\x00" * 5000 + b"\n", b"[" * 100_000 + b"\n", b'{"step": 1e999}\n', b'{"step": -1, "values": {}}\n', b'{"step": 3, "values": {"loss": {"model": "x"}}}\n',
    b'{"step": 3, "values": 7}\n', b'{"step": 3, "event": "token similarity", "site": "a"}\n', b"null\n", b'{"step": 3, "values": {"\\ud800": {"\\ud800": NaN}}}\n',
])  # fmt: skip
def test_malformed_lines_crash_nothing(tmp_path, line):
    run_folders.small_run(tmp_path / "a")
    with open(tmp_path / "a" / runs.READINGS, "ab") as file:
        file.write(line + b'{"step": 9, "values": {}}\n')
    for one in start(tmp_path):
        answer = one.ask("/data/run?at=a")
        assert answer.status in (200, 422) and "Traceback" not in answer.body.decode()
        connection, response = one.events("/events/run?at=a&from=0-0")
        assert next_event(response)[0] in ("lines", "problem")
        connection.close()
        assert one.ask("/data/list").status == 200


def test_sizes_are_bounded(site, tmp_path):
    assert site.ask("/data/run?at=" + "a" * 5000).status == 414
    assert site.ask("/", headers={"X": "a" * 40_000}).status == 431
    writer = runs.Writer(tmp_path / "wide", {"sites": {"blocks": []}})
    for step in range(1, 1001):
        writer.write(step, {"length": {f"norm{i}": 1.0 for i in range(300)}})
    writer.close()
    (length,) = report.view(tmp_path / "wide")["quantities"]
    assert (len(length["sites"]), len(length["steps"]), length["left_out"], length["recorded"]) == (200, 200, 100, 1000)
    assert (length["steps"][0], length["steps"][-1]) == (1, 1000)


def test_searching_is_bounded(tmp_path, monkeypatch):
    for i in range(6):
        run_folders.small_run(tmp_path / f"run{i}", steps=1)
    deep = tmp_path.joinpath(*["d"] * 15)
    run_folders.small_run(deep, steps=1)
    assert len(found.search(tmp_path).folders) == 6, "too deep"
    monkeypatch.setattr(found, "LISTED", 4)
    assert (len(found.search(tmp_path).listed), found.search(tmp_path).more) == (4, 2)
    monkeypatch.setattr(found, "ENTRIES", 3)
    assert len(found.search(tmp_path).folders) <= 3
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    monkeypatch.undo()
    assert found.search(tmp_path).unnamed == 1


def test_slow_and_dead_clients_are_cut_and_block_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.7)
    writer = run_folders.full_run(tmp_path / "a", close=False, steps=1)
    for one in start(tmp_path):
        idle, dribbling, deaf = (socket.create_connection(("127.0.0.1", one.port), timeout=10) for _ in range(3))
        dribbling.sendall(b"GET / HTTP/1.1\r\nHost: local")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /events/run?at=a&from=0-0 HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and never reads
        draw = random.Random(0)
        for step in range(2, 60):
            writer.write(step, {"length": {f"norm{i}": draw.random() for i in range(3000)}})
        until = time.monotonic() + 15
        while len(one.running.server_state.connections) > 0 and time.monotonic() < until:
            assert one.ask("/data/list").status == 200, "others are answered meanwhile"
            time.sleep(0.2)
        assert not one.running.server_state.connections
        assert idle.recv(1) == b""
        for s in (idle, dribbling, deaf):
            s.close()


# ---- the command -----------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_it_at_once_even_with_a_page_open(tmp_path):
    run_folders.small_run(tmp_path / "a")
    command = [sys.executable, "-m", "normlab", "serve", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    port = int(address.rsplit(":", 1)[1].rstrip("/"))
    open_ = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(3)]
    for connection in open_:
        connection.request("GET", "/events/run?at=a")
        connection.getresponse()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (0, 130) and "Traceback" not in process.stderr.read()
    for connection in open_:
        connection.close()


def test_a_port_that_is_taken_is_one_line(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", str(tmp_path), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"127.0.0.1:{port}" in said and "--port 0" in said


@pytest.mark.parametrize(("arguments", "text"), [(["nowhere"], "is not a folder"), ([".", "--port", "70000"], "0 to 65535"), ([".", "--host", "203.0.113.7"], "203.0.113.7")])  # fmt: skip
def test_bad_arguments_are_one_line(arguments, text, capsys):
    assert cli.main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and text in said


def test_without_the_extra_it_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None)
    assert cli.main(["serve", str(tmp_path)]) == 2
    assert "normlab[ui]" in capsys.readouterr().err


def test_serving_needs_no_torch():
    code = "import sys; from normlab.report import serve; serve.App('.'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
