"""When speculation is switched off by itself, and when it comes back: on a clock of the test's own, and live."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from paceline.config import Config
from paceline.core.types import Completion, SpeculationParams, SpeculationReport, Timings
from paceline.engine.llm import LLM
from paceline.server import rollback as rollbacks
from paceline.server.answer import Ticket
from paceline.server.latency import Latencies
from paceline.server.metrics import Metrics
from paceline.server.rollback import LEAST, LONGEST_S, OVERDRAWN_S, PAUSE_S, Rollback
from paceline.server.series import Mark

from .asking import ask, wait_for
from .live import live


class World:
    """A rollback, and all that it looks at."""

    def __init__(self, chosen: SpeculationParams = SpeculationParams("always"), **targets) -> None:
        self.now = 1000.0
        config = Config.of({"targets": targets})
        self.limits: list[SpeculationParams] = []
        self.events: list[tuple] = []
        self.metrics = Metrics("toy")
        self.metrics.latencies = Latencies(self.clock)
        self.rollback = Rollback(config.targets, self.clock)
        config = SimpleNamespace(speculation=chosen, targets=config.targets)
        journal = SimpleNamespace(
            event=lambda *given: self.events.append(given),
            alarm=lambda *given: self.events.append(given),
            spell_with=lambda decode: None,
            recent=lambda count: [],
        )
        llm = SimpleNamespace(tokenizer=SimpleNamespace(decode=None))
        self.rollback.attach(
            SimpleNamespace(worker=self, config=config, metrics=self.metrics, journal=journal, llm=llm)
        )
        self.busy_s = 0.0

    def clock(self) -> float:
        return self.now

    async def limit(self, ceiling: SpeculationParams) -> None:
        self.limits.append(ceiling)

    @property
    def mode(self) -> str:
        return self.rollback.switch.last.mode

    @property
    def why(self) -> str:
        return self.rollback.switch.last.why

    @property
    def alarms(self) -> dict[str, str]:
        return {alarm.name: alarm.text for alarm in self.metrics.board.active}

    def requests(self, ttft_ms: float = 50.0, tpot_ms: float = 10.0, count: int = LEAST) -> None:
        """Let time pass in which so many requests begin and end."""
        self.pass_time(1 + ttft_ms / 1e3 + tpot_ms / 1e3)
        done = Completion(0, "", (1, 2), "stop", 1, 0, SpeculationReport(), Timings(1.0, tpot_ms, ttft_ms))
        for _ in range(count):
            self.metrics.latencies.add(Ticket("a"), done)
        self.look()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def look(self, busy_s: float = 0.0) -> None:
        self.busy_s += busy_s
        asyncio.run(self.rollback.look(self.busy_s))

    def operate(self, mode: str) -> None:
        asyncio.run(self.rollback.operate(SpeculationParams(mode), "the operator"))


def test_within_the_targets_nothing_happens() -> None:
    world = World(ttft_p95_ms=100, tpot_p95_ms=20)
    for _ in range(5):
        world.requests()
    assert world.limits == [] and world.mode == "auto" and world.alarms == {}


@pytest.mark.parametrize(("slow", "says"), [({"ttft_ms": 150}, "ttft p95"), ({"tpot_ms": 30}, "tpot p95")])
def test_a_missed_target_switches_speculation_off_with_the_reason(slow, says) -> None:
    world = World(ttft_p95_ms=100, tpot_p95_ms=20)
    world.requests(**slow)
    assert [ceiling.mode for ceiling in world.limits] == ["off"]
    assert world.mode == "off" and says in world.why and world.why.startswith("latency: ")
    assert says in world.alarms["latency_target"]
    assert world.rollback.counts == {"latency": 1, "slowdown": 0, "account": 0, "audit": 0}
    assert world.rollback.switch.last.by == "server"
    assert [event[0] for event in world.events] == ["latency_target", "speculation"]


def test_few_requests_say_nothing() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=500, count=LEAST - 1)
    assert world.mode == "auto"
    world.requests(ttft_ms=500, count=1)
    assert world.mode == "off"


def test_it_comes_back_after_a_pause_that_doubles() -> None:
    world = World(ttft_p95_ms=100)
    for pause in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        world.requests(ttft_ms=150)
        assert world.mode == "off"
        world.requests(ttft_ms=60)  # plainly it is well
        world.pass_time(pause - 5)
        world.look()
        assert world.mode == "off"
        world.pass_time(10)
        world.look()
        assert world.mode == "auto", "it is back"
    assert world.rollback.counts["latency"] == 3


def test_the_pause_has_a_bound_and_is_short_again_after_a_good_time() -> None:
    world = World(ttft_p95_ms=100)
    for _ in range(12):
        world.requests(ttft_ms=150)
        world.requests(ttft_ms=60)
        world.pass_time(LONGEST_S)
        world.look()
        assert world.mode == "auto"
    assert world.rollback._pauses["latency"] == LONGEST_S
    world.pass_time(rollbacks.SOON * LONGEST_S)
    world.requests(ttft_ms=150)
    assert world.rollback.off.until - world.now == PAUSE_S


def test_a_latency_that_is_as_bad_without_is_not_blamed_on_speculation() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=150)
    assert world.mode == "off"
    world.requests(ttft_ms=149)
    assert world.mode == "auto", "it is back at once"
    assert "as bad with speculation off (149 ms; 150 ms with it): not speculation's doing" in world.why
    assert "not speculation's doing" in world.alarms["latency_target"]
    world.requests(ttft_ms=150)
    assert world.mode == "auto", "and is not switched off for the same again"
    assert "not speculation's doing" in world.alarms["latency_target"], "which goes on being said"
    world.requests(ttft_ms=60, count=400)
    world.pass_time(200)
    world.requests(ttft_ms=60)
    assert "latency_target" not in world.alarms


def test_a_latency_that_is_better_without_stays_without_for_the_pause() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=200)
    world.requests(ttft_ms=120)  # missed still, but speculation had its part in it
    assert world.mode == "off"


def test_requests_from_before_a_change_are_not_held_against_it() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=150)
    world.pass_time(PAUSE_S + 1)
    world.look()
    assert world.mode == "auto"
    began_before = Completion(0, "", (1, 2), "stop", 1, 0, SpeculationReport(), Timings(1.0, 1.0, 90_000.0))
    for _ in range(LEAST):
        world.metrics.latencies.add(Ticket("a"), began_before)
    world.look()
    assert world.mode == "auto"


def test_an_account_that_stays_overdrawn_switches_off_and_back() -> None:
    world = World()
    world.metrics.board.set("account_overdrawn", "lost 9 steps")
    world.look(OVERDRAWN_S - 0.1)
    assert world.mode == "auto"
    world.look(0.0)
    assert world.mode == "auto", "while nothing runs nothing is lost"
    world.look(0.2)
    assert world.mode == "off" and world.why.startswith("account: ")
    world.pass_time(PAUSE_S)
    world.look()
    assert world.mode == "auto"


def test_an_account_that_recovers_is_left_alone() -> None:
    world = World()
    for _ in range(5):
        world.metrics.board.set("account_overdrawn", "lost 9 steps")
        world.look(OVERDRAWN_S - 1)
        world.metrics.board.set("account_overdrawn", None)
        world.look(OVERDRAWN_S)
    assert world.mode == "auto"


@pytest.mark.parametrize(("saved_s", "mode"), [(-0.2, "auto"), (-1.5, "off"), (3.0, "auto")])
def test_steps_that_take_longer_than_plainly_switch_off(monkeypatch, saved_s, mode) -> None:
    world = World(slowdown=1.02)
    monkeypatch.setattr(rollbacks.time, "time", lambda: world.now)
    world.pass_time(30)
    for t, busy_s, saved in ((world.now - 20, 0.0, 0.0), (world.now, 19.0, saved_s)):
        world.metrics.series._marks.append(Mark(t, busy_s, int(busy_s * 10), 1, 1, 1, saved, 0.0, 1))
    world.look()
    assert world.mode == mode
    if mode == "off":
        assert world.why.startswith("slowdown: steps take 1.086 ×") and "slower_than_plain" in world.alarms


def test_a_difference_stays_off_until_the_operator_says_so() -> None:
    world = World()
    world.metrics.board.set("audit_difference", "token 3 of cmpl-1")
    asyncio.run(world.rollback.difference("token 3 of cmpl-1"))
    assert world.mode == "off" and world.why.startswith("audit: token 3 of cmpl-1")
    world.pass_time(100 * LONGEST_S)
    world.look()
    assert world.mode == "off"
    world.operate("auto")
    assert world.mode == "auto" and world.alarms == {}
    assert world.rollback.switch.last.by == "operator"


def test_a_difference_weighs_more_than_a_pause() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=150)
    asyncio.run(world.rollback.difference("token 3 of cmpl-1"))
    world.pass_time(10 * PAUSE_S)
    world.look()
    assert world.mode == "off" and world.why.startswith("audit: ")


def test_off_by_the_operator_is_left_alone() -> None:
    world = World(ttft_p95_ms=100)
    world.operate("off")
    world.requests(ttft_ms=150)
    assert "speculation is off; see what else is slow" in world.alarms["latency_target"]
    world.metrics.board.set("account_overdrawn", "lost 9 steps")
    world.look(OVERDRAWN_S + 1)
    asyncio.run(world.rollback.difference("token 3 of cmpl-1"))
    world.pass_time(100 * LONGEST_S)
    world.look()
    assert world.mode == "off" and world.why == "set by the operator" and len(world.limits) == 1


def test_on_by_the_operator_ends_a_pause_and_only_what_is_new_counts() -> None:
    world = World(ttft_p95_ms=100)
    world.requests(ttft_ms=150)
    world.operate("auto")
    world.look()
    assert world.mode == "auto" and world.rollback.off is None
    world.requests(ttft_ms=150)
    assert world.mode == "off", "but what is seen from then on does count"
    assert world.rollback.off.until - world.now == PAUSE_S, "as if it were the first time"


def test_it_goes_back_to_what_was_chosen() -> None:
    chosen = SpeculationParams("auto", max_draft=3, drafters=("suffix",))
    world = World(chosen, ttft_p95_ms=100)
    world.requests(ttft_ms=150)
    world.pass_time(PAUSE_S + 1)
    world.look()
    assert world.limits == [SpeculationParams("off", 3, ("suffix",)), chosen]


def test_a_live_server_rolls_back_and_says_why_everywhere(kept, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rollbacks, "LEAST", 3)
    tables = {
        "targets": {"tpot_p95_ms": 0.0001, "window_s": 60},
        "journal": {"file": str(tmp_path / "journal.db")},
        "audit": {"share": 0},
    }
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), tables) as server, server.client() as client:
        for _ in range(3):
            assert ask(server).speculation.verified > 0
        wait_for(lambda: client.get("/api/state").json()["speculation"]["mode"] == "off")
        state = client.get("/api/state").json()
        assert state["speculation"]["why"].startswith("latency: tpot p95 is")
        assert "latency_target" in {alarm["name"] for alarm in state["alarms"]}
        assert client.get("/admin/speculation").json()["why"] == state["speculation"]["why"]
        assert 'paceline_rollbacks_total{cause="latency"} 1.0' in client.get("/metrics").text
        assert server.hub.journal.flush()
        assert ask(server).speculation.verified == 0
        client.post("/admin/speculation", json={"mode": "always"}).raise_for_status()
        assert ask(server).speculation.verified > 0
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tables["journal"]["file"])) as db:
        events = [text for (text,) in db.execute("SELECT text FROM events WHERE kind = 'speculation'")]
    assert events[0].startswith("off: latency: tpot p95") and "auto: set by the operator" in events
