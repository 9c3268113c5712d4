"""What the dashboard and operators read and set: /api/state, /api/requests, /admin."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from paceline.config import Config
from paceline.core.types import SpeculationParams
from paceline.engine.llm import LLM
from paceline.engine.memory import trim
from paceline.governor.alarms import Alarm
from paceline.runners.toy import ToyRunner
from paceline.server import pressure as pressures
from paceline.server.board import NAMES, RUNBOOKS, Board
from paceline.server.pressure import GIVE_BACK, LOOKS, Pressure, process_bytes

from .asking import answered, ask, wait_for
from .live import live

STATE = {
    "version": None,
    "model": {"id", "runner", "weights", "context"},
    "draft_model": {"id", "weights"},
    "uptime_s": None,
    "now": None,
    "speculation": {"mode", "why", "since", "drafters", "max_draft"},
    "rate": {"tokens_per_s", "plain_tokens_per_s", "saved_ms_per_s"},
    "busy": {"share", "useful_share", "wasted_share"},
    "batch": {"running", "waiting", "limit"},
    "acceptance": {"length", "rate", "by_depth", "by_drafter"},
    "lengths": None,
    "series": None,
    "memory": {"weights_bytes", "kv_bytes", "kv_used_bytes", "draft_bytes", "process_bytes"},
    "reasons": None,
    "alarms": None,
    "latency": {"ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms"},
    "audit": {"share", "done", "equal", "near_ties", "different"},
    "journal": {"file", "rows", "dropped", "bytes"},
}
ROW = {
    *("id", "at", "key", "endpoint", "prompt_tokens", "completion_tokens", "finish_reason", "ttft_ms", "tokens_per_s"),
    *("drafted", "verified", "accepted", "saved_ms", "wasted_ms", "mode", "reasons"),
}


@pytest.fixture(scope="module")
def server(kept, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal") / "journal.db"
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), {"journal": {"file": str(journal)}}) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as found:
        yield found
        found.post("/admin/speculation", json={"mode": "always"}).raise_for_status()


def test_the_state_has_the_shape_that_is_promised(server, client) -> None:
    ask(server)
    wait_for(lambda: client.get("/api/state").json()["series"])
    state = client.get("/api/state").json()
    assert state.keys() == STATE.keys()
    for name, keys in STATE.items():
        assert keys is None or keys <= state[name].keys(), name
    assert state["series"][0].keys() == {"t", "tokens_per_s", "plain_tokens_per_s", "busy", "wasted", "running"}
    assert state["lengths"][0].keys() == {"t", "drafted_per_step", "accepted_per_step"}
    assert state["acceptance"]["by_drafter"]["model"].keys() == {"drafted", "verified", "accepted", "draft_ms"}


def test_the_state_is_what_happened(server, client) -> None:
    done = ask(server, tokens=40)
    server.settle()
    report = server.call(lambda engine: engine.report())
    state = client.get("/api/state").json()
    assert done.speculation.verified > 0
    assert state["acceptance"]["by_depth"] == list(report.accepted_at)
    assert state["acceptance"]["rate"] == pytest.approx(report.accepted / report.verified)
    assert state["batch"] == {"running": 0, "waiting": 0, "limit": 8}
    assert state["latency"]["requests"] >= 1 and state["latency"]["ttft_p95_ms"] > 0
    assert state["memory"]["process_bytes"] > 10 << 20


def test_shares_of_time_are_shares(server, client) -> None:
    async def busily() -> dict:
        tasks = [asyncio.ensure_future(answered(server, tokens=400)) for _ in range(6)]
        await asyncio.sleep(2.2)
        state = (await asyncio.to_thread(client.get, "/api/state")).json()
        await asyncio.gather(*tasks)
        return state

    state = server.wait(busily())
    busy = state["busy"]
    assert 0 < busy["share"] <= 1 and state["rate"]["tokens_per_s"] > 0
    assert busy["useful_share"] + busy["wasted_share"] == pytest.approx(busy["share"])


def test_requests_come_newest_first_and_without_text(server, client) -> None:
    ask(server, "who said this first", tokens=5)
    last = ask(server, "who said this last", tokens=7)
    found = client.get("/api/requests", params={"limit": 2}).json()
    assert [row["completion_tokens"] for row in found] == [7, 5]
    assert found[0].keys() == ROW
    assert found[0]["accepted"] == last.speculation.accepted
    assert "who said" not in json.dumps(found)


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_limit_is_within_bounds(client, limit) -> None:
    assert client.get("/api/requests", params={"limit": limit}).status_code in (400, 422)


def test_the_newest_requests_are_there_after_a_restart(kept, tmp_path) -> None:
    tables, llm = {"journal": {"file": str(tmp_path / "journal.db")}}, LLM("toy:ngram")
    with live(llm, tables) as first, first.client() as client:
        ask(first, tokens=3)
        ask(first, tokens=4)
        before = client.get("/api/requests").json()
    with live(LLM("toy:ngram"), tables) as second, second.client() as client:
        after = client.get("/api/requests").json()
        assert [row | {"at": 0} for row in after] == [row | {"at": 0} for row in before]
        assert client.get("/api/state").json()["journal"]["rows"] == 2


def test_speculation_is_switched_off_for_requests_that_run_and_back(server, client, monkeypatch) -> None:
    forward = ToyRunner.forward

    def slowly(self: ToyRunner, *given: Any) -> Any:
        time.sleep(0.002)  # so that there is something left to run
        return forward(self, *given)

    monkeypatch.setattr(ToyRunner, "forward", slowly)

    async def switched() -> tuple:
        task = asyncio.ensure_future(answered(server, tokens=450))
        while server.hub.worker.snapshot.report.verified == verified:
            await asyncio.sleep(0.01)
        off = await asyncio.to_thread(client.post, "/admin/speculation", json={"mode": "off"})
        at = await server.hub.worker.call(lambda engine: engine.report())
        return off, at, await task

    server.settle()
    verified = server.hub.worker.snapshot.report.verified
    off, at, done = server.wait(switched())
    assert off.status_code == 200 and off.json()["mode"] == "off" and off.json()["by"] == "operator"
    after = server.call(lambda engine: engine.report())
    assert after.steps > at.steps, "it went on"
    assert after.verified == at.verified, "and no step of it speculated"
    assert done.speculation.verified > 0
    plain = ask(server, tokens=450)
    assert plain.speculation.verified == 0
    assert plain.token_ids == done.token_ids, "the text is the same"
    back = client.post("/admin/speculation", json={"mode": "always"}).json()
    assert back["mode"] == "auto"
    assert ask(server).speculation.verified > 0


def test_why_it_is_off_is_shown_everywhere(server, client) -> None:
    client.post("/admin/speculation", json={"mode": "off"}).raise_for_status()
    state = client.get("/api/state").json()["speculation"]
    assert (state["mode"], state["why"]) == ("off", "set by the operator")
    look = client.get("/admin/speculation").json()
    assert look["history"][0]["mode"] == "off" and look["history"][0]["why"] == "set by the operator"
    assert server.hub.journal.flush()
    wait_for(lambda: client.get("/api/state").json()["speculation"]["since"] == look["since"])


def test_a_ceiling_below_off_is_kept(server, client) -> None:
    found = client.post("/admin/speculation", json={"mode": "always", "max_draft_tokens": 2, "drafters": ["model"]})
    assert (found.json()["max_draft"], found.json()["drafters"]) == (2, ["model"])
    drafters = ask(server, tokens=30).speculation.by_drafter
    assert drafters["model"].verified > 0
    assert sum(counts.verified for name, counts in drafters.items() if name != "model") == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"mode": "auto", "drafters": ["nobody"]}, "nobody"),
        ({"mode": "sometimes"}, "mode"),
        ({"mode": "off", "max_draft_tokens": 65}, "max_draft_tokens"),
        ({"mode": "off", "why": "because"}, "why"),
        ({}, "mode"),
    ],
)
def test_what_is_not_allowed_changes_nothing(client, body, says) -> None:
    before = client.get("/admin/speculation").json()
    refused = client.post("/admin/speculation", json=body)
    assert refused.status_code == 400 and says in refused.json()["error"]["message"]
    assert client.get("/admin/speculation").json() == before


def test_the_engine_can_be_checked(server, client) -> None:
    server.settle()
    assert client.get("/admin/check").json()["ok"] is True
    pool = server.llm.engine.pool
    lost = server.call(lambda engine: engine.pool._free.pop())
    try:
        found = client.get("/admin/check").json()
        assert found["ok"] is False and found["error"]
    finally:
        server.call(lambda engine: pool._free.append(lost))
    assert client.get("/admin/check").json()["ok"] is True


def test_every_alarm_has_a_runbook() -> None:
    assert set(NAMES) == set(RUNBOOKS)


def test_the_board_follows_the_governor_and_tells_each_change_once() -> None:
    told: list[tuple] = []
    board = Board()
    board.tell(lambda *change: told.append(change))
    for text in ("1 of 9", "2 of 19"):
        board.follow({"acceptance_collapse": Alarm("acceptance_collapse", 7, text)})
    [ringing] = board.active
    assert ringing.text == "2 of 19" and ringing.runbook == "collapse"
    board.set("journal_failed", "full")
    board.follow({})
    assert [each.name for each in board.active] == ["journal_failed"], "its own stay"
    assert told == [
        ("acceptance_collapse", True, "1 of 9"),
        ("journal_failed", True, "full"),
        ("acceptance_collapse", False, ""),
    ]


def test_pressure_is_told_when_it_lasts(server) -> None:
    board, usual = Board(), server.hub.worker.snapshot
    config = Config.of({"targets": {"memory_bytes": 1}, "server": {"queue": 10}})
    pressure = Pressure(config)
    crowded = replace(usual, waiting=8, blocks=100, blocks_used=97, failure="OSError in a step")
    for _ in range(LOOKS - 1):
        pressure.look(board, crowded, None)
    assert {each.name for each in board.active} == {"memory_target", "engine_failed"}
    pressure.look(board, crowded, None)
    assert {each.name for each in board.active} == {"memory_target", "engine_failed", "kv_full", "queue_filling"}
    for _ in range(LOOKS):
        pressure.look(board, replace(usual, waiting=0, blocks=100, blocks_used=10), None)
    assert {each.name for each in board.active} == {"memory_target"}


def test_freed_memory_is_given_back_now_and_then(server, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(pressures, "trim", lambda: given.append(True))
    pressure = Pressure(Config())
    for _ in range(2 * GIVE_BACK):
        pressure.look(Board(), server.hub.worker.snapshot, None)
    assert len(given) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps what is freed")
def test_what_the_c_library_keeps_goes_back() -> None:
    blocks = [bytes(60_000) for _ in range(3000)]
    last = blocks[-1]  # holds the top of the heap
    del blocks
    before = process_bytes()
    trim()
    assert process_bytes() < before - 50e6 and len(last) == 60_000


def test_a_server_without_drafters_says_so(kept) -> None:
    with live(LLM("toy:ngram", speculate=False)) as plain, plain.client() as client:
        found = client.get("/admin/speculation").json()
        assert found["mode"] == "off" and "without drafters" in found["why"]
        assert ask(plain, speculation=SpeculationParams()).speculation.verified == 0
