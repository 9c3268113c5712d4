"""The journal: what it holds, how it is bounded, and what it survives."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.config import JournalConfig
from paceline.core.types import Completion, Request, SamplingParams, SpeculationReport, Timings
from paceline.errors import OptionError
from paceline.server import journal as journals
from paceline.server import journal_schema as schema
from paceline.server.answer import Ticket
from paceline.server.journal import Journal
from paceline.server.records import RequestRow

PROMPT, ANSWER = "a secret question of mine", "a secret answer to it"


def completion(text: str = ANSWER, **given) -> Completion:
    report = SpeculationReport(
        steps=3, plain_steps=1, drafted=9, verified=8, accepted=4, saved_ms=-1.5, reasons={"probing": 2, "memory": 0}
    )
    whole = Completion(1, text, (5, 6, 7), "stop", 4, 2**64 - 1, report, Timings(10.0, 20.0, 12.0))
    return replace(whole, **given)


def say(journal: Journal, name: str = "cmpl-1", text: str = ANSWER) -> None:
    request = Request(tuple(PROMPT.encode()), SamplingParams())
    journal.finished(Ticket(name, "ann", "completions"), request, completion(text))


@pytest.fixture
def config(tmp_path) -> JournalConfig:
    return JournalConfig(file=str(tmp_path / "journal.db"))


@pytest.fixture
def journal(config):
    opened = Journal.open(config)
    yield opened
    opened.close()


def rows(config: JournalConfig, query: str) -> list[tuple]:
    with closing(sqlite3.connect(config.file)) as db:
        return db.execute(query).fetchall()


def whole_file(config: JournalConfig) -> bytes:
    found = Path(config.file)
    return b"".join(part.read_bytes() for part in found.parent.glob(found.name + "*"))


def test_a_request_comes_back_as_it_was(config, journal) -> None:
    say(journal)
    assert journal.flush()
    [row] = journal.recent(10)
    assert row.id == "cmpl-1" and row.key == "ann" and row.seed == 2**64 - 1
    assert (row.drafted, row.verified, row.accepted, row.saved_ms) == (9, 8, 4, -1.5)
    assert row.reasons == {"probing": 2}
    assert row.tokens_per_s == pytest.approx(2 / 0.020)
    assert row == RequestRow.of(Ticket("cmpl-1", "ann", "completions"), completion(), row.at)


def test_the_newest_come_first(journal) -> None:
    for i in range(5):
        say(journal, f"r{i}")
    assert journal.flush()
    assert [row.id for row in journal.recent(3)] == ["r4", "r3", "r2"]
    assert journal.stats.rows == 5


def test_events_alarms_and_audits_are_kept(config, journal) -> None:
    journal.event("speculation", "off: set by ann", {"mode": "off"})
    journal.alarm("audit_difference", True, "token 3 of cmpl-1")
    journal.audit("cmpl-1", "near_tie", 2, 0.01)
    assert journal.flush()
    assert rows(config, "SELECT kind, text, detail FROM events") == [
        ("speculation", "off: set by ann", '{"mode": "off"}')
    ]
    assert rows(config, "SELECT name, is_on FROM alarms") == [("audit_difference", 1)]
    assert rows(config, "SELECT id, verdict, position, gap FROM audits") == [("cmpl-1", "near_tie", 2, 0.01)]


def test_no_text_is_in_the_file_unless_asked_for(config, journal) -> None:
    journal.spell_with(lambda tokens: bytes(tokens).decode())
    say(journal)
    assert journal.flush()
    journal.close()
    assert PROMPT.encode() not in whole_file(config) and ANSWER.encode() not in whole_file(config)
    assert rows(config, "SELECT count(*) FROM texts") == [(0,)]


def test_texts_are_recorded_where_that_is_wanted(config) -> None:
    recording = Journal.open(replace(config, record_text=True))
    recording.spell_with(lambda tokens: bytes(tokens).decode())
    say(recording)
    assert recording.flush()
    recording.close()
    assert ANSWER.encode() in whole_file(config)
    assert rows(config, "SELECT r.id, t.prompt, t.completion FROM requests r JOIN texts t ON t.request = r.rowid") == [
        ("cmpl-1", PROMPT, ANSWER)
    ]


def test_it_goes_on_after_a_restart(config, journal) -> None:
    say(journal, "before")
    journal.close()
    again = Journal.open(config)
    say(again, "after")
    assert again.flush()
    assert [row.id for row in again.recent(9)] == ["after", "before"] and again.stats.rows == 2
    again.close()


def test_old_entries_go(config) -> None:
    db = schema.connect(Path(config.file))
    for age in (40, 20):
        schema.add_request(db, RequestRow.of(Ticket(f"{age} days"), completion(), time.time() - age * 86_400))
    schema.prune(db, 1 << 30, time.time() - 30 * 86_400)
    assert [row.id for row in schema.recent(db, 9)] == ["20 days"]
    db.close()


def test_its_size_is_bounded_and_the_oldest_go_first(config) -> None:
    bound = 1 << 20
    bounded = Journal.open(replace(config, max_bytes=bound, record_text=True))
    bounded.spell_with(lambda tokens: "p" * 4000)
    sent = 600
    for i in range(sent):
        say(bounded, f"r{i}", "c" * 4000)
    assert bounded.flush(30)
    kept = bounded.stats.rows
    assert bounded.flush(30)  # after the look at its size that the last commit had
    bounded.close()
    assert 20 < kept < sent
    assert Path(config.file).stat().st_size <= bound * 1.1
    assert rows(config, "SELECT id FROM requests ORDER BY rowid DESC LIMIT 1") == [(f"r{sent - 1}",)]
    assert rows(config, "SELECT count(*) FROM texts") == rows(config, "SELECT count(*) FROM requests")
    assert rows(config, "SELECT count(*) FROM requests WHERE id = 'r0'") == [(0,)]


def test_a_later_schema_is_refused_and_left_as_it_is(config) -> None:
    schema.connect(Path(config.file)).close()
    with closing(sqlite3.connect(config.file)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(OptionError, match=r"schema 2 and this version writes 1"):
        Journal.open(config)
    assert rows(config, "PRAGMA user_version") == [(schema.VERSION + 1,)]


def test_the_database_of_another_program_is_refused(config) -> None:
    with closing(sqlite3.connect(config.file)) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(OptionError, match="another program's"):
        Journal.open(config)
    assert rows(config, "SELECT name FROM sqlite_schema") == [("recipes",)]


def test_a_missing_directory_is_refused(tmp_path) -> None:
    with pytest.raises(OptionError, match="make it first"):
        Journal.open(JournalConfig(file=str(tmp_path / "none" / "journal.db")))


def test_a_damaged_file_opens_with_an_alarm(config) -> None:
    Path(config.file).write_bytes(b"not a database at all " * 500)
    broken = Journal.open(config)
    say(broken)
    assert broken.failure is not None and "DatabaseError" in broken.failure
    assert broken.recent(5) == []
    assert not broken.flush(0.2)
    broken.close()


def test_a_full_disk_is_told_and_what_waits_is_written_when_there_is_room(config, journal, monkeypatch) -> None:
    monkeypatch.setattr(journals, "RETRY_S", 0.05)
    say(journal, "before")
    assert journal.flush()
    limit = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {limit}").fetchone()  # SQLite says SQLITE_FULL from here on
    for i in range(200):
        say(journal, f"r{i}")
    wait_for(lambda: journal.failure is not None)
    assert "full" in journal.failure
    journal._db.execute("PRAGMA max_page_count = 1000000").fetchone()
    assert journal.flush(10)
    assert journal.failure is None
    assert {row.id for row in journal.recent(500)} == {"before", *(f"r{i}" for i in range(200))}
    assert len(journal.recent(500)) == 201, "written once"


def test_what_does_not_fit_the_queue_is_counted(config, journal) -> None:
    with closing(sqlite3.connect(config.file)) as other:
        other.execute("BEGIN EXCLUSIVE")  # the writer waits for it
        say(journal)
        wait_for(lambda: journal._queue.empty())
        for i in range(journals.QUEUE + 2 * journals.BATCH):
            say(journal, f"r{i}")
        dropped = journal.stats.dropped
        other.rollback()
    assert journals.BATCH <= dropped <= 2 * journals.BATCH, "all but what the queue and the writer hold"
    assert journal.flush(30)
    assert journal.stats.rows == 1 + journals.QUEUE + 2 * journals.BATCH - dropped


def test_an_entry_that_cannot_be_written_blocks_no_other(config) -> None:
    recording = Journal.open(replace(config, record_text=True))
    recording.spell_with(lambda tokens: "\ud800")  # half a character, which UTF-8 cannot say
    say(recording, "bad")
    recording.event("after", "it")
    assert recording.flush()
    assert recording.failure is None and recording.stats.dropped == 1
    recording.close()
    assert rows(config, "SELECT kind FROM events") == [("after",)]


WRITER = """
import sys
sys.path.insert(0, {root!r})
from tests.server.test_journal import say
from paceline.config import JournalConfig
from paceline.server.journal import Journal
journal = Journal.open(JournalConfig(file={file!r}))
i = 0
while True:
    for _ in range(20):
        say(journal, f"r{{i}}")
        i += 1
    if journal.flush():
        print(i, flush=True)
"""


def test_kill_9_in_mid_write_loses_nothing_that_was_committed(config) -> None:
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER.format(root=root, file=config.file)], stdout=subprocess.PIPE, text=True
    )
    acknowledged = [int(process.stdout.readline()) for _ in range(10)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().split() if line]
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    assert rows(config, "PRAGMA integrity_check") == [("ok",)]
    again = Journal.open(config)
    kept = {row.id for row in again.recent(10**6)}
    again.close()
    assert {f"r{i}" for i in range(acknowledged[-1])} <= kept


def wait_for(found, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)
