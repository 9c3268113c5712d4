"""What goes wrong in one place stays there: each promise of docs/reliability.md, with the fault that tests it."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.core.tree import Draft
from paceline.core.types import SamplingParams
from paceline.engine.llm import LLM
from paceline.server import journal_schema

from .held import Held
from .live import Live, live
from .process import process
from .test_limits import address, answers_well

ASKED = {"prompt": "abcabcabc", "max_tokens": 40, "seed": 3, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture
def server(kept) -> Iterator[Live]:
    with live(LLM("toy:ngram", sequences=4)) as found:
        yield found


def complete(server: Live, **more: Any) -> dict[str, Any]:
    with server.client() as client:
        response = client.post("/v1/completions", json={"model": "toy:ngram", **ASKED, **more})
        return {"status": response.status_code, **response.json()}


def text(answer: dict[str, Any]) -> str:
    found: str = answer["choices"][0]["text"]
    return found


@pytest.fixture(scope="session")
def expected(plain_toy) -> str:
    [done] = plain_toy.generate(
        ASKED["prompt"], SamplingParams(max_tokens=40, seed=3, ignore_eos=True, temperature=1.0)
    )
    return done.text


class Poor:
    """A drafter that does what it is told instead of its work."""

    def __init__(self, propose: Callable[[Sequence[Any], Sequence[int]], Any]) -> None:
        self._propose, self.calls = propose, 0

    def begin(self, seq: Any) -> None: ...
    def observe(self, seq: Any, seen: Any) -> None: ...
    def end(self, seq: Any) -> None: ...

    def propose(self, seqs: Sequence[Any], limits: Sequence[int]) -> Any:
        self.calls += 1
        return self._propose(seqs, limits)


def fails(seqs: Sequence[Any], limits: Sequence[int]) -> Any:
    raise RuntimeError("a drafter's trouble")


def babbles(seqs: Sequence[Any], limits: Sequence[int]) -> Any:
    bad = [
        Draft((10**9, -5), (-1, 0), (0.5, 0.5), ("poor", "poor")),
        Draft((1, 2), (5, 7), (float("nan"), 2.0), ("poor", "poor")),
        Draft((1,), (-1,), (), ("poor",)),
        None,
        "garbage",
        Draft((1.5,), (-1,), (1.0,), ("poor",)),  # type: ignore[arg-type]
    ]
    return [bad[(seq.num_tokens + i) % len(bad)] for i, seq in enumerate(seqs)]


def lies(seqs: Sequence[Any], limits: Sequence[int]) -> Any:
    return [Draft.chain([seq.num_tokens % 250] * limit, "poor") for seq, limit in zip(seqs, limits, strict=True)]


@contextmanager
def drafting(server: Live, drafter: Poor) -> Iterator[None]:
    before = server.llm.engine.desk.drafters
    server.call(lambda engine: setattr(engine.desk, "drafters", {"poor": drafter}))
    yield
    server.settle()
    server.call(lambda engine: setattr(engine.desk, "drafters", before))


class TestDrafters:
    @pytest.mark.parametrize("propose", [fails, babbles, lies])
    def test_that_fail_babble_or_lie_change_no_text(self, server, expected, propose):
        with drafting(server, drafter := Poor(propose)):
            answer = complete(server, speculation={"mode": "always"})
            assert text(answer) == expected
            assert drafter.calls
        reasons = answer["usage"]["speculation"]["reasons"]
        shown = {fails: "drafter_failed", babbles: "draft_invalid"}.get(propose)
        assert shown is None or reasons[shown] > 0

    def test_that_hang_delay_a_step_and_nothing_else(self, server, expected):
        """Two seconds in which the engine thread stands still; the server answers, and the text is the same."""
        hanging = threading.Event()

        def hangs(seqs: Sequence[Any], limits: Sequence[int]) -> Any:
            if not hanging.is_set():
                hanging.set()
                time.sleep(2)
            return [Draft() for _ in seqs]

        with drafting(server, Poor(hangs)), ThreadPoolExecutor(2) as pool, server.client() as client:
            first = pool.submit(complete, server, speculation={"mode": "always"})
            assert hanging.wait(30)
            answered = 0
            while not first.done():
                assert client.get("/health").status_code == 200
                assert client.get("/api/state").status_code == 200
                answered += 1
            assert answered > 1
            assert text(first.result()) == expected


class TestTheEngine:
    def test_a_step_that_raises_is_a_500_without_the_inside_and_serving_goes_on(self, server, plain_toy):
        forward, calls = server.llm.engine.target.forward, iter(range(10**9))

        def failing(*given: Any) -> Any:
            if next(calls) == 4:
                raise RuntimeError("device lost at 0xdeadbeef")
            return forward(*given)

        server.llm.engine.target.forward = failing  # type: ignore[method-assign]
        answer = complete(server)
        assert (answer["status"], answer["error"]["type"]) == (500, "server_error")
        assert "deadbeef" not in json.dumps(answer)
        with server.client() as client:
            assert client.get("/health").status_code == 200
        server.settle()
        answers_well(server, plain_toy)

    def test_one_that_cannot_be_contained_is_said_on_health(self, server):
        observe = server.llm.engine.governor.observe

        def failing(step: Any) -> Any:
            server.llm.engine.pool._users[-1] += 1  # a block of which nobody knows who has it
            return observe(step) and 1 / 0

        server.llm.engine.governor.observe = failing  # type: ignore[method-assign]
        assert complete(server)["status"] == 500
        with server.client() as client:
            for path, status in (("/health", "failed"), ("/ready", "failed")):
                found = client.get(path)
                assert (found.status_code, found.json()["status"]) == (503, status)
            assert client.get("/api/state").status_code == 200
            assert client.get("/metrics").status_code == 200
        again = complete(server)
        assert (again["status"], again["error"]["code"]) == (503, "engine_failed")


def request(**more: Any) -> bytes:
    body = json.dumps({"model": "toy:ngram", **ASKED, **more}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class TestClients:
    @pytest.mark.parametrize("streaming", [True, False])
    def test_that_leave_free_their_slot_within_one_step(self, server, streaming):
        hold, engine = Held(server.llm.engine), server.llm.engine
        noticed = threading.Event()
        cancel = server.hub.worker._cancel
        server.hub.worker._cancel = lambda job, why: cancel(job, why) or noticed.set()  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            stays = pool.submit(complete, server, max_tokens=200)
            with socket.create_connection(address(server), timeout=30) as leaves:
                leaves.sendall(request(max_tokens=300, seed=99, stream=streaming))
                while len(engine.scheduler.running) < 2:
                    hold.go(1)
                hold.go(3)
            assert noticed.wait(30), "the end of a connection is noticed"
            assert any(seq.seed == 99 for seq in engine.scheduler.running), "the engine stands still"
            hold.go(1)  # the step before which it stood
            while any(seq.seed == 99 for seq in engine.scheduler.running):
                assert hold.steps, "no further step is needed"
                time.sleep(0.005)
            steps = hold.steps
            hold.open()
            assert stays.result()["status"] == 200
            assert hold.steps > steps
        server.settle()
        hold.close()

    def test_that_read_slowly_stall_nobody(self, server, expected):
        """Their socket is full, what they have not taken is kept as one event, and others run as if alone."""
        with socket.create_connection(address(server), timeout=30) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(request(max_tokens=400, stream=True, logprobs=5, n=3, speculation={"show_draft": True}))
            slow.recv(100)
            for _ in range(5):
                assert text(complete(server)) == expected
            server.settle()  # the slow one's too, though it has read nothing
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # now it is in a hurry
            data = b""
            while b"[DONE]" not in data:
                data += slow.recv(65536)
            assert data.count(b'"finish_reason":"length"') == 3

    def test_that_read_nothing_for_long_are_let_go(self, kept):
        with live(LLM("toy:ngram", sequences=2), {"server": {"idle_timeout_s": 0.3}}) as server:
            hold = Held(server.llm.engine)
            small = (socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # else the kernel would take all there is
            server.server.servers[0].sockets[0]._sock.setsockopt(*small)  # type: ignore[attr-defined]
            with socket.create_connection(address(server), timeout=30) as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.sendall(request(max_tokens=480, stream=True, logprobs=5, n=2))
                while not server.server.server_state.connections:
                    time.sleep(0.01)
                hold.open()
                while server.server.server_state.connections:  # until the server has hung up
                    time.sleep(0.01)
            server.settle()
            hold.close()
            assert complete(server)["status"] == 200


class TestTheJournal:
    def test_a_full_disk_stops_writing_and_not_serving(self, kept, tmp_path, expected, monkeypatch):
        def full(*_: Any, **__: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        path = tmp_path / "journal.db"
        with live(LLM("toy:ngram"), {"journal": {"file": str(path)}}) as server:
            assert text(complete(server)) == expected
            assert server.hub.journal.flush()
            with monkeypatch.context() as patch:
                patch.setattr(journal_schema, "add_request", full)
                for _ in range(3):
                    assert text(complete(server)) == expected
                with server.client() as client:
                    while "journal_failed" not in alarms(client):
                        time.sleep(0.05)
                    assert client.get("/api/requests").status_code == 200
                    assert client.get("/ready").status_code == 200
            assert text(complete(server)) == expected

    def test_a_disk_that_is_really_full_and_then_is_not(self, kept, tmp_path):
        """The server sees a file system of 4 MB, of its own, at the directory of the journal."""
        small = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"', str(tmp_path))
        if subprocess.run([*small, "true"], capture_output=True).returncode:
            pytest.skip("this system lets nobody mount a small disk")
        path = tmp_path / "journal.db"
        with process("--model", "toy:ngram", "--journal", str(path), inside=small) as running:
            disk = Path(f"/proc/{running.popen.pid}/root{tmp_path}")
            with running.client() as client:

                def ask() -> str:
                    asked = {"model": "toy:ngram", "prompt": "ab", "max_tokens": 20, "seed": 1}
                    return client.post("/v1/completions", json=asked).raise_for_status().json()["choices"][0]["text"]

                first, asked = ask(), 1
                fill(disk / "filler")
                while "journal_failed" not in alarms(client):
                    assert ask() == first
                    asked += 1
                assert client.get("/ready").status_code == 200
                (disk / "filler").unlink()
                while "journal_failed" in alarms(client):
                    time.sleep(0.05)
                assert ask() == first
                while client.get("/api/state").json()["journal"]["rows"] < asked + 1:
                    time.sleep(0.05)
                for name in (path.name, f"{path.name}-wal"):  # SQLite would look for them in this process's own disk
                    shutil.copy(disk / name, tmp_path / name)
                assert rows(path) == asked + 1, "what waited for room was written, once"

    def test_kill_in_mid_write_loses_nothing_that_was_committed(self, kept, tmp_path):
        path = tmp_path / "journal.db"
        with process("--model", "toy:ngram", "--journal", str(path)) as running:
            with ThreadPoolExecutor(8) as pool:
                asked = {"model": "toy:ngram", "prompt": "ab", "max_tokens": 3}

                def storm(_: int) -> None:
                    with httpx.Client(base_url=running.url, timeout=30) as client:
                        try:
                            while client.post("/v1/completions", json=asked).status_code == 200:
                                pass
                        except httpx.TransportError:
                            return

                storms = [pool.submit(storm, i) for i in range(8)]
                committed = 0
                while committed < 50:
                    time.sleep(0.05)
                    committed = rows(path)
                running.signal(signal.SIGKILL)
                for future in storms:
                    future.result()
            assert running.ended() == -signal.SIGKILL
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        assert rows(path) >= committed
        with process("--model", "toy:ngram", "--journal", str(path)) as again, again.client() as client:
            known = client.get("/api/requests?limit=1000").json()
            assert len(known) >= min(committed, 100)
            again.signal(signal.SIGTERM)
            assert again.ended() == 0


def alarms(client: httpx.Client) -> list[str]:
    return [alarm["name"] for alarm in client.get("/api/state").json()["alarms"]]


def fill(path: Path) -> None:
    """Write a file until there is no room for more."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def rows(path: Any) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=10)) as db:
        try:
            count: int = db.execute("select count(*) from requests").fetchone()[0]
        except sqlite3.OperationalError:  # no table yet
            return 0
        return count
