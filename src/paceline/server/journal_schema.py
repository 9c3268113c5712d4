"""The journal's file: its tables, which files are one, and what is let go of when it grows old or large."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paceline.errors import OptionError
from paceline.server.records import RequestRow

VERSION = 1
APPLICATION = 0x7061636C
"""SQLite's application_id of a journal: the bytes "pacl"."""
TABLES = ("requests", "events", "alarms", "audits")
"""Those that are bounded by age and size, each with a column `at` in seconds since 1970."""
CUT = 0.1
"""Share of the rows that goes when the file is too large."""

_SCHEMA = """
CREATE TABLE requests (
    id TEXT NOT NULL, at REAL NOT NULL, key TEXT NOT NULL, endpoint TEXT NOT NULL, streaming INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    seed TEXT NOT NULL, mode TEXT NOT NULL, rule TEXT NOT NULL, steps INTEGER NOT NULL, plain_steps INTEGER NOT NULL,
    drafted INTEGER NOT NULL, verified INTEGER NOT NULL, accepted INTEGER NOT NULL, ttft_ms REAL NOT NULL,
    prefill_ms REAL NOT NULL, decode_ms REAL NOT NULL, draft_ms REAL NOT NULL, verify_ms REAL NOT NULL,
    saved_ms REAL NOT NULL, wasted_ms REAL NOT NULL, reasons TEXT NOT NULL
);
CREATE TABLE events (at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE alarms (at REAL NOT NULL, name TEXT NOT NULL, is_on INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE audits (at REAL NOT NULL, id TEXT NOT NULL, verdict TEXT NOT NULL, position INTEGER, gap REAL);
CREATE TABLE texts (request INTEGER PRIMARY KEY, prompt TEXT NOT NULL, completion TEXT NOT NULL);
CREATE INDEX requests_at ON requests (at);
CREATE TRIGGER texts_go AFTER DELETE ON requests BEGIN DELETE FROM texts WHERE request = old.rowid; END;
"""
_COLUMNS = tuple(f.name for f in fields(RequestRow))


def connect(path: Path) -> sqlite3.Connection:
    """Open a journal, making it where there is none; for one thread at a time.

    Raises:
        OptionError: the file is another program's, or of a later version; it was not touched.
        sqlite3.Error: it cannot be read or written.
    """
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        _check(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a killed process loses nothing that was committed
        db.execute("PRAGMA journal_size_limit = 1048576")
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    tables = _one(db, "SELECT count(*) FROM sqlite_schema")
    if tables == 0:
        _create(db)
        return
    if _one(db, "PRAGMA application_id") != APPLICATION:
        raise OptionError(f"journal {str(path)!r} is another program's database; name a file that is not there yet")
    version = _one(db, "PRAGMA user_version")
    if version != VERSION:
        raise OptionError(
            f"journal {str(path)!r} has schema {version} and this version writes {VERSION}; "
            "name another file, or use the version that made it"
        )


def _create(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # works before the first table alone
    marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
    db.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT;")


def add_request(db: sqlite3.Connection, row: RequestRow, text: tuple[str, str] | None = None) -> None:
    """Write a request, and what was said where that is wanted."""
    values = asdict(row) | {"reasons": json.dumps(dict(row.reasons)), "seed": str(row.seed)}  # 64 bits, unsigned
    cursor = db.execute(
        f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
        [values[name] for name in _COLUMNS],
    )
    if text is not None:
        db.execute("INSERT INTO texts VALUES (?, ?, ?)", (cursor.lastrowid, *text))


def add(db: sqlite3.Connection, table: str, values: Sequence[Any]) -> None:
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def recent(db: sqlite3.Connection, count: int) -> list[RequestRow]:
    """Return the newest requests, the newest first."""
    found = db.execute(f"SELECT {', '.join(_COLUMNS)} FROM requests ORDER BY rowid DESC LIMIT ?", (count,))
    return [_row(dict(zip(_COLUMNS, values, strict=True))) for values in found]


def _row(values: dict[str, Any]) -> RequestRow:
    values["reasons"], values["seed"] = json.loads(values["reasons"]), int(values["seed"])
    values["streaming"] = bool(values["streaming"])
    return RequestRow(**values)


def count(db: sqlite3.Connection, table: str = "requests") -> int:
    return _one(db, f"SELECT count(*) FROM {table}")


def size(db: sqlite3.Connection) -> int:
    """Return the bytes of the pages that hold something; the write-ahead log has a bound of its own."""
    pages = _one(db, "PRAGMA page_count") - _one(db, "PRAGMA freelist_count")
    return pages * _one(db, "PRAGMA page_size")


def prune(db: sqlite3.Connection, max_bytes: int, before: float) -> None:
    """Let go of what is older than `before`, then of the oldest until the rest fits, and make the file smaller."""
    for table in TABLES:
        db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))
    while size(db) > max_bytes:
        table = max(TABLES, key=lambda name: count(db, name))
        rows = count(db, table)
        if not rows:
            break
        oldest = f"SELECT rowid FROM {table} ORDER BY rowid LIMIT ?"
        db.execute(f"DELETE FROM {table} WHERE rowid IN ({oldest})", (max(1, int(CUT * rows)),))
    db.executescript("PRAGMA incremental_vacuum")  # `execute` would take one step, which frees one page
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _one(db: sqlite3.Connection, query: str) -> int:
    [value] = db.execute(query).fetchone()
    return int(value)
