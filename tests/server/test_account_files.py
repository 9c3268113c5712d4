"""A journal as a file: read beside its server, left as it is, refused when it is none."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import OptionError
from paceline.server import account_report
from paceline.server import journal_schema as schema
from paceline.server.account_records import Account, Sums
from paceline.server.account_report import read

from .test_account_report import NOW, ROW, Writer


@pytest.fixture
def journal(tmp_path):
    writer = Writer(tmp_path / "journal.db")
    yield writer
    writer.db.close()


def test_it_is_read_while_it_is_written(journal) -> None:
    """Each reading sees whole transactions: here, two requests at a time."""
    stop = threading.Event()

    def write() -> None:
        with closing(schema.connect(journal.path)) as db:
            while not stop.is_set():
                db.execute("BEGIN IMMEDIATE")
                for mode in ("auto", "always"):
                    schema.add_request(db, replace(ROW, mode=mode))
                db.execute("COMMIT")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = [journal.read()]
        while len({account.total.requests for account in seen}) < 8 and thread.is_alive():
            seen.append(journal.read())
    finally:
        stop.set()
        thread.join()
    for account in seen:
        assert account.total == sum(account.by_mode.values(), Sums())
        assert account.total.requests % 2 == 0
    assert journal.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_nothing_is_left_beside_a_journal_nor_changed_in_it(journal) -> None:
    journal.request()
    journal.db.close()
    before = journal.path.read_bytes()
    assert journal.read().total.requests == 1
    assert journal.path.read_bytes() == before
    assert [file.name for file in journal.path.parent.iterdir()] == ["journal.db"]


def test_a_server_that_starts_meanwhile_is_noticed(journal, monkeypatch) -> None:
    journal.request()
    journal.db.close()
    read_as, plain = [], account_report._read

    def reading(path: Path, how: str, since: float, until: float) -> Account:
        read_as.append(how)
        found = plain(path, how, since, until)
        if len(read_as) == 1:
            journal.db = schema.connect(path)
            journal.request()
        return found

    monkeypatch.setattr(account_report, "_read", reading)
    assert journal.read().total.requests == 2
    assert read_as == ["mode=ro&immutable=1", "mode=ro"]


def test_what_a_killed_server_left_in_its_log_is_read(journal, tmp_path) -> None:
    journal.request()
    (tmp_path / "left").mkdir()
    for file in journal.path.parent.glob("journal.db*"):
        shutil.copy(file, tmp_path / "left")
    alone = tmp_path / "left" / "journal.db"
    assert alone.with_name("journal.db-wal").stat().st_size
    assert read(alone, 7, NOW).total.requests == 1


def test_names_that_mean_something_in_a_uri(tmp_path) -> None:
    writer = Writer(tmp_path / "a?mode=rw#%41 ü.db")
    writer.request()
    assert writer.read().total.requests == 1
    writer.db.close()
    assert writer.read().total.requests == 1


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_days_that_are_none(journal, days: float) -> None:
    with pytest.raises(OptionError, match="days is"):
        journal.read(days)


def test_no_such_file(tmp_path) -> None:
    for path in (tmp_path / "none.db", tmp_path):
        with pytest.raises(OptionError, match="is not there, or no file"):
            read(path, 7, NOW)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_refused(tmp_path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(OptionError, match="is empty"):
        read(path, 7, NOW)
    assert path.stat().st_size == 0


def test_the_database_of_another_program(tmp_path) -> None:
    path = tmp_path / "recipes.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE requests (name TEXT)")
    with pytest.raises(OptionError, match="another program's"):
        read(path, 7, NOW)


def test_a_later_schema(journal) -> None:
    journal.db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(OptionError, match="has schema 2 and this version reads 1"):
        journal.read()


def test_a_file_that_is_no_database(tmp_path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database at all " * 500)
    with pytest.raises(OptionError, match="is no SQLite file, or is damaged"):
        read(path, 7, NOW)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_file_of_which_a_part_is_lost(journal, part: float) -> None:
    """Cut off, or overwritten in its middle: an error of one line, never sums of what is left."""
    for i in range(2000):
        journal.request(id=f"r{i}")
    whole = journal.read()
    journal.db.close()
    data = journal.path.read_bytes()
    at = int(part * len(data)) // 4096 * 4096
    for damaged in (data[:at], data[:at] + 8192 * b"\xa5" + data[at + 8192 :]):
        journal.path.write_bytes(damaged)
        with pytest.raises(OptionError, match=r"damaged|cannot be read"):
            journal.read()
    journal.path.write_bytes(data)
    assert journal.read() == whole


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE audits",
        "ALTER TABLE requests DROP COLUMN saved_ms",
        "UPDATE events SET detail = '[1, 2'",
        "UPDATE events SET detail = '[1, 2]'",
        "UPDATE events SET detail = '{}'",
        "UPDATE requests SET reasons = 'none'",
        "UPDATE requests SET saved_ms = 9e999",
        "UPDATE requests SET steps = 9223372036854775807",
        "UPDATE alarms SET text = CAST(x'ff' AS TEXT)",
    ],
)
def test_rows_that_no_server_wrote(journal, harm: str) -> None:
    journal.request()
    journal.request()
    journal.switch(NOW - 50, "off", "set by ann", by="operator")
    journal.alarm(NOW - 50, "kv_full", "full")
    assert journal.read().total.requests == 2
    journal.db.execute(harm)
    with pytest.raises(OptionError, match="damaged") as caught:
        journal.read()
    assert "\n" not in str(caught.value)


def test_a_file_that_another_program_keeps_locked(journal, monkeypatch) -> None:
    monkeypatch.setattr("paceline.server.account_report.WAIT_S", 0.05)
    journal.db.execute("PRAGMA journal_mode = DELETE")
    journal.request()
    journal.db.execute("BEGIN EXCLUSIVE")
    journal.path.with_name("journal.db-wal").touch()  # as if its server ran
    with pytest.raises(OptionError, match="locked by another program"):
        journal.read()
    journal.db.execute("ROLLBACK")
    assert journal.read().total.requests == 1
