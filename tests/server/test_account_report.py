"""What is told from a journal: sums that are known, spells that are known, and files that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from paceline.config import JournalConfig
from paceline.core.types import Completion, Request, SamplingParams, SpeculationReport, Timings
from paceline.server import journal_schema as schema
from paceline.server.account_records import Account, Sums
from paceline.server.account_report import DAY_S, LISTED, read
from paceline.server.answer import Ticket
from paceline.server.journal import Journal
from paceline.server.records import RequestRow
from paceline.server.rollback import Cause

NOW = 20_000 * DAY_S + 43_200.0
"""Noon of a day in UTC."""
TODAY, YESTERDAY = "2024-10-04", "2024-10-03"
ROW = RequestRow(
    id="r",
    at=NOW - 60,
    key="ann",
    endpoint="completions",
    streaming=False,
    finish_reason="stop",
    prompt_tokens=10,
    completion_tokens=20,
    seed=7,
    mode="auto",
    rule="coupled",
    steps=8,
    plain_steps=2,
    drafted=18,
    verified=16,
    accepted=12,
    ttft_ms=100.0,
    prefill_ms=90.0,
    decode_ms=900.0,
    draft_ms=100.0,
    verify_ms=700.0,
    saved_ms=400.0,
    wasted_ms=50.0,
    reasons={"probing": 2},
)


class Writer:
    """Writes a journal's rows with times of the test's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = schema.connect(path)

    def request(self, **given) -> None:
        schema.add_request(self.db, replace(ROW, **given))

    def switch(self, at: float, mode: str, why: str, by: str = "server") -> None:
        schema.add(self.db, "events", (at, "speculation", why, json.dumps({"mode": mode, "by": by, "why": why})))

    def alarm(self, at: float, name: str, text: str | None) -> None:
        schema.add(self.db, "alarms", (at, name, text is not None, text or ""))

    def audit(self, verdict: str, at: float = NOW - 30, position: int | None = None, gap: float | None = None) -> None:
        schema.add(self.db, "audits", (at, "r", verdict, position, gap))

    def read(self, days: float = 7.0) -> Account:
        return read(self.path, days, NOW)

    def named(self) -> set[str]:
        """Return the names of what is worth looking at."""
        return {finding.name for finding in self.read().findings}


@pytest.fixture
def journal(tmp_path):
    writer = Writer(tmp_path / "journal.db")
    yield writer
    writer.db.close()


def test_a_journal_that_a_server_wrote(tmp_path) -> None:
    config = JournalConfig(file=str(tmp_path / "journal.db"), record_text=True)
    journal = Journal.open(config)
    journal.spell_with(lambda tokens: "a secret")
    report = SpeculationReport(
        steps=3,
        plain_steps=1,
        drafted=9,
        verified=8,
        accepted=4,
        draft_ms=10.0,
        verify_ms=30.0,
        saved_ms=-4.0,
        wasted_ms=2.0,
        reasons={"probing": 2},
    )
    done = Completion(1, "a secret", (5, 6, 7), "stop", 4, 2**64 - 1, report, Timings(10.0, 20.0, 12.0))
    for name in "abc":
        journal.finished(Ticket(name, "ann", "completions"), Request((1, 2), SamplingParams()), done)
    journal.audit("a", "near_tie", 2, 0.01)
    assert journal.flush()
    at = journal.recent(1)[0].at
    while_open = read(Path(config.file), 7, at + 1)
    journal.close()
    closed = read(Path(config.file), 7, at + 1)
    assert while_open == closed
    total = closed.total
    assert (total.requests, total.speculated, total.slower) == (3, 3, 3)
    assert (total.completion_tokens, total.steps, total.drafted, total.verified, total.accepted) == (9, 9, 27, 24, 12)
    assert (total.saved_ms, total.lost_ms, total.wasted_ms) == (-12.0, 12.0, 6.0)
    assert total.acceptance_rate == 0.5 and total.acceptance_length == pytest.approx(21 / 9)
    assert total.plain_ratio == pytest.approx(0.9)
    assert closed.reasons == {"probing": 6} and closed.audits.near_tie == 1
    assert "a secret" not in json.dumps(closed.as_json())


def test_days_modes_and_the_window(journal) -> None:
    journal.request(at=NOW - 8 * DAY_S, saved_ms=1e9)
    journal.request(at=NOW - DAY_S, saved_ms=-100.0, finish_reason="error")
    journal.request(mode="off", rule="coupled", verified=0, drafted=0, accepted=0, saved_ms=0.0, finish_reason="abort")
    journal.request()
    found = journal.read()
    assert list(found.by_day) == [f"2024-09-{day}" for day in (27, 28, 29, 30)] + [
        "2024-10-01",
        "2024-10-02",
        YESTERDAY,
        TODAY,
    ]
    assert found.by_day["2024-09-28"] == Sums() and found.by_day[YESTERDAY].requests == 1
    assert found.by_day[TODAY].requests == 2 and found.by_day[TODAY].saved_ms == 400.0
    assert found.total == sum(found.by_mode.values(), Sums())
    assert set(found.by_mode) == {"auto, coupled", "off, coupled"}
    assert (found.total.failed, found.total.broken_off, found.total.speculated) == (1, 1, 2)
    assert (found.total.saved_ms, found.total.lost_ms, found.total.slower) == (300.0, 100.0, 1)
    assert journal.read(0.5).total.requests == 2 and journal.read(30).total.requests == 4
    assert next(iter(journal.read(30).by_day)) == "2024-09-26", "from the journal's first entry on"


def test_audits_are_no_traffic(journal) -> None:
    journal.request()
    journal.request(endpoint="audit", prefill_ms=5.0, decode_ms=45.0, mode="off")
    for verdict, count in {"equal": 3, "near_tie": 2, "different": 1, "failed": 4}.items():
        for _ in range(count):
            journal.audit(verdict, position=6, gap=0.7)
    journal.audit("different", at=NOW - 8 * DAY_S)
    found = journal.read()
    assert found.total.requests == 1 and set(found.by_mode) == {"auto, coupled"}
    audits = found.audits
    assert (audits.equal, audits.near_tie, audits.different, audits.failed, audits.ms) == (3, 2, 1, 4, 50.0)
    assert [(each.id, each.position, each.gap) for each in audits.differences] == [("r", 6, 0.7)]
    assert {"different_text", "audits_failed"} <= journal.named()


def test_how_long_speculation_was_off_and_why(journal) -> None:
    begin = NOW - 1000
    journal.switch(begin, "off", "latency: ttft p95 is 900 ms, target 500 ms; off for 60 s")
    journal.switch(begin + 60, "auto", "the pause after it was off (latency) is over")
    journal.switch(begin + 100, "off", "latency: again; off for 120 s")
    journal.switch(begin + 150, "off", "set by ann", by="operator")
    journal.switch(begin + 200, "auto", "set by ann", by="operator")
    journal.switch(begin + 300, "off", "audit: token 3 of r; off until the operator switches it on")
    found = journal.read()
    assert [(each.name, each.times, each.seconds, each.unended) for each in found.off] == [
        ("latency", 2, 110.0, 0),
        ("operator", 1, 50.0, 0),
        ("audit", 1, 0.0, 1),
    ]
    assert [each.name for each in found.off_spells] == ["audit", "operator", "latency", "latency"]
    assert found.off_spells[0].until is None and found.off[0].last.text.startswith("latency: again")
    assert {"off_latency", "off_audit", "off_now"} <= journal.named()
    assert "off_operator" not in journal.named(), "what was wanted is not amiss"


def test_the_causes_are_those_that_the_server_writes(journal) -> None:
    for i, cause in enumerate(get_args(Cause)):
        journal.switch(NOW - 100 + 2 * i, "off", f"{cause}: because; off for 60 s")
        journal.switch(NOW - 99 + 2 * i, "auto", "back")
    journal.switch(NOW - 10, "off", "for another reason")
    assert {each.name for each in journal.read().off} == {"latency", "slowdown", "account", "audit", "server"}


def test_a_spell_counts_as_far_as_it_is_within(journal) -> None:
    journal.switch(NOW - DAY_S - 500, "off", "account: overdrawn; off for 3600 s")
    journal.switch(NOW - DAY_S + 100, "auto", "back")
    journal.alarm(NOW - DAY_S - 500, "kv_full", "full")
    journal.alarm(NOW - DAY_S + 30, "kv_full", None)
    [off], [alarm] = journal.read(1).off, journal.read(1).alarms
    assert (off.seconds, alarm.seconds) == (100.0, 30.0)
    assert journal.read(7).off[0].seconds == 600.0
    assert journal.read(0.5).off == () and journal.read(0.5).alarms == ()


def test_a_server_that_started_anew_speculates_again(journal) -> None:
    journal.switch(NOW - 500, "off", "audit: token 3; off until the operator switches it on")
    journal.request(at=NOW - 498.5)  # of one second: it may have begun before, if its end was noted late
    journal.request(at=NOW - 480, verified=0, drafted=0, accepted=0)
    assert journal.read().off_spells[0].until is None
    journal.request(at=NOW - 450)
    journal.request(at=NOW - 440)
    assert journal.read().off_spells[0].until == NOW - 450
    assert "off_now" not in journal.named()


def test_alarms_on_and_off_and_without_an_end(journal) -> None:
    journal.alarm(NOW - 900, "kv_full", "first")
    journal.alarm(NOW - 890, "queue_filling", "long")
    journal.alarm(NOW - 880, "kv_full", None)
    journal.alarm(NOW - 500, "kv_full", "second")  # and then the server ended
    journal.alarm(NOW - 300, "kv_full", "third")
    journal.alarm(NOW - 295, "kv_full", None)
    journal.alarm(NOW - 200, "repetition", None)  # of an alarm that nobody saw begin
    found = {each.name: each for each in journal.read().alarms}
    assert set(found) == {"kv_full", "queue_filling"}
    assert (found["kv_full"].times, found["kv_full"].seconds, found["kv_full"].unended) == (3, 25.0, 1)
    assert found["kv_full"].last.text == "third"
    assert (found["queue_filling"].seconds, found["queue_filling"].unended) == (0.0, 1)
    runbooks = {finding.name: finding.runbook for finding in journal.read().findings}
    assert runbooks["alarm_kv_full"] == "memory-pressure"


def test_a_good_week_has_nothing_to_look_at(journal) -> None:
    journal.request()
    journal.audit("equal")
    assert journal.named() == set()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("slower_than_plain", {"saved_ms": -100.0}),
        ("waste", {"wasted_ms": 500.0}),
        ("failed_requests", {"finish_reason": "error"}),
        ("lossy", {"rule": "typical"}),
        ("draft_invalid", {"reasons": {"draft_invalid": 1}}),
        ("drafter_failed", {"reasons": {"drafter_failed": 1}}),
        ("never_speculated", {"verified": 0, "accepted": 0}),
        ("clock", {"at": NOW + 5}),
    ],
)
def test_what_is_amiss_is_found(journal, name: str, given: dict) -> None:
    journal.audit("equal")
    journal.request(**given)
    assert journal.named() == {name}


def test_a_day_that_lost_is_found_in_a_week_that_won(journal) -> None:
    journal.audit("equal")
    journal.request(saved_ms=5000.0)
    journal.request(at=NOW - DAY_S, saved_ms=-300.0)
    [finding] = journal.read().findings
    assert finding.name == "losing_days" and f"1 of 2 days speculation lost time, most on {YESTERDAY}" in finding.text


def test_a_loss_within_what_is_tolerated_is_none(journal) -> None:
    journal.audit("equal")
    journal.request(saved_ms=-10.0)  # of 800
    assert journal.named() == set()
    journal.request(saved_ms=-30.0)
    assert journal.named() == {"slower_than_plain"}


def test_speculation_without_an_audit_is_told(journal) -> None:
    journal.request()
    assert journal.named() == {"not_audited"}


def test_the_requests_that_lost_most(journal) -> None:
    for i in range(9):
        journal.request(id=f"r{i}", saved_ms=10.0 - 10 * i)
    found = journal.read().losses
    assert [(loss.id, loss.saved_ms) for loss in found] == [(f"r{i}", 10.0 - 10 * i) for i in (8, 7, 6, 5, 4)]


def test_lists_are_bounded_and_counts_are_not(journal) -> None:
    for i in range(3 * LISTED):
        journal.switch(NOW - 1000 + 2 * i, "off", "latency: slow")
        journal.switch(NOW - 999 + 2 * i, "auto", "back")
        journal.audit("different")
    found = journal.read()
    assert (len(found.off_spells), len(found.audits.differences)) == (LISTED, LISTED)
    assert (found.off[0].times, found.off[0].seconds, found.audits.different) == (3 * LISTED, 3.0 * LISTED, 3 * LISTED)
    assert found.off_spells[0].since == NOW - 1000 + 2 * (3 * LISTED - 1)


def test_an_empty_journal_and_an_empty_week(journal) -> None:
    found = journal.read()
    assert (found.first, found.last, found.total, found.by_day, found.findings) == (None, None, Sums(), {}, ())
    journal.request(at=NOW - 9 * DAY_S)
    found = journal.read()
    assert found.total == Sums() and found.first == found.last == NOW - 9 * DAY_S and found.findings == ()


def test_json_has_every_sum_and_no_number_that_json_lacks(journal) -> None:
    journal.request()
    said = json.loads(json.dumps(journal.read().as_json(), allow_nan=False))
    assert said["total"]["accepted"] == said["by_day"][TODAY]["accepted"] == 12
    assert said["total"]["plain_ratio"] == said["by_mode"]["auto, coupled"]["plain_ratio"] == 1.5
    assert {"journal", "since", "until", "findings", "alarms", "off", "audits", "reasons"} <= set(said)
