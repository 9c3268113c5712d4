"""From a server's journal: what speculation saved, cost and got wrong. Nothing is written, and no text is read."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from paceline.errors import OptionError
from paceline.server import journal_schema as schema
from paceline.server.account_findings import findings
from paceline.server.account_records import Account, Audits, Difference, Loss, Spell, Spells, Sums
from paceline.server.audit import ENDPOINT
from paceline.server.rollback import Cause

DAY_S = 86_400.0
MAX_DAYS = 3660.0
LISTED = 50
"""Times without speculation, and differences, that are listed one by one."""
LOSSES = 5
WAIT_S = 5.0
"""For a lock that another program holds."""
SLACK_S = 1.0
"""A request that began so little after a change may have begun before it: clocks are read a little late."""

_TRAFFIC = f"at >= ? AND at <= ? AND endpoint != '{ENDPOINT}'"
_COUNTED = {
    "requests": "1",
    "failed": "finish_reason = 'error'",
    "broken_off": "finish_reason = 'abort'",
    "speculated": "verified > 0",
    "slower": "saved_ms < 0",
    "lost_ms": "max(-saved_ms, 0.0)",
}
"""What is summed up where it is no column."""
_SUMS = ", ".join(
    f"{'total' if field.name.endswith('_ms') else 'sum'}({_COUNTED.get(field.name, field.name)})"
    for field in fields(Sums)
)


def read(path: Path, days: float, now: float) -> Account:
    """Return the account of the last days; the journal's server may go on writing meanwhile.

    Args:
        days: of 24 hours each.
        now: where they end, in seconds since 1970.

    Raises:
        OptionError: there is no such file, it is damaged or not a journal of this version, or `days` is out of range.
    """
    if not 0 < days <= MAX_DAYS:
        raise OptionError(f"days is {days:g}; allowed: more than 0, at most {MAX_DAYS:g}")
    if not path.is_file():
        raise OptionError(
            f"journal {str(path)!r} is not there, or no file; name the one that `serve --journal` was given"
        )
    with _told(path):
        if _has_writer(path):
            return _read(path, "mode=ro", now - days * DAY_S, now)
        # Without its log a journal is whole, and SQLite must be told so, or it leaves files beside it.
        found = _read(path, "mode=ro&immutable=1", now - days * DAY_S, now)
        if _has_writer(path):  # since a moment ago: what was read may be of two minds
            return _read(path, "mode=ro", now - days * DAY_S, now)
        return found


def _has_writer(path: Path) -> bool:
    return path.with_name(path.name + "-wal").exists()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        name, kind = f"journal {str(path)!r}", getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise OptionError(f"{name} is locked by another program; try again when that has ended") from None
        if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_AUTH):
            raise OptionError(f"{name} cannot be read ({error}); see its rights, and its disk") from None
        raise OptionError(f"{name} is no SQLite file, or is damaged ({error}); name another, or mend a copy") from None


def _read(path: Path, how: str, since: float, until: float) -> Account:
    uri = f"{path.absolute().as_uri()}?{how}"
    with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)) as db:
        db.execute("BEGIN")  # all of it as it stood at one moment
        _check(db, path)
        found = _account(db, str(path), since, until)
    return replace(found, findings=findings(found))


def _check(db: sqlite3.Connection, path: Path) -> None:
    name = f"journal {str(path)!r}"
    if _value(db, "SELECT count(*) FROM sqlite_schema") == 0:
        raise OptionError(f"{name} is empty; name the one that `serve --journal` was given")
    if _value(db, "PRAGMA application_id") != schema.APPLICATION:
        raise OptionError(f"{name} is another program's database; name the one that `serve --journal` was given")
    version = _value(db, "PRAGMA user_version")
    if version != schema.VERSION:
        raise OptionError(
            f"{name} has schema {version} and this version reads {schema.VERSION}; use the version that made it"
        )


def _account(db: sqlite3.Connection, journal: str, since: float, until: float) -> Account:
    first, last = _reach(db, until)
    off = [spell for spell in _off(db, until) if _overlaps(spell, since)]
    alarms = [spell for spell in _alarms(db, until) if _overlaps(spell, since)]
    return Account(
        journal=journal,
        since=since,
        until=until,
        first=first,
        last=last,
        ahead=sum(_value(db, f"SELECT count(*) FROM {table} WHERE at > ?", until) for table in schema.TABLES),
        by_day=_by_day(db, since, until, first),
        by_mode=_grouped(db, "mode || ', ' || rule", since, until),
        reasons=_reasons(db, since, until),
        losses=_losses(db, since, until),
        audits=_audits(db, since, until),
        off=_gathered(off, since, until),
        off_spells=tuple(deque(off, LISTED))[::-1],
        alarms=_gathered(alarms, since, until),
    )


def _reach(db: sqlite3.Connection, until: float) -> tuple[float | None, float | None]:
    """Return when the oldest and the newest entry were written."""
    each = " UNION ALL ".join(
        f"SELECT min(at) AS low, max(at) AS high FROM {table} WHERE at <= ?" for table in schema.TABLES
    )
    [(low, high)] = db.execute(f"SELECT min(low), max(high) FROM ({each})", [until] * len(schema.TABLES))
    return low, high


def _grouped(db: sqlite3.Connection, by: str, since: float, until: float) -> dict[Any, Sums]:
    query = f"SELECT {by}, {_SUMS} FROM requests WHERE {_TRAFFIC} GROUP BY 1 ORDER BY 1"
    return {group: _sums(values) for group, *values in db.execute(query, (since, until))}


def _sums(values: Sequence[Any]) -> Sums:
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise sqlite3.DatabaseError("a number of a request is none")
    return Sums(*values)


def _by_day(db: sqlite3.Connection, since: float, until: float, first: float | None) -> dict[str, Sums]:
    """Return the sums of each day from the first entry on, those without requests as well."""
    if first is None:
        return {}
    found = _grouped(db, f"CAST(at / {DAY_S} AS INTEGER)", since, until)
    days = range(math.floor(max(since, first) / DAY_S), math.floor(until / DAY_S) + 1)
    return {date(day * DAY_S): found.get(day, Sums()) for day in days}


def date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _reasons(db: sqlite3.Connection, since: float, until: float) -> dict[str, int]:
    query = (
        "SELECT each.key, CAST(total(each.value) AS INTEGER) FROM requests, json_each(requests.reasons) AS each "
        f"WHERE {_TRAFFIC} GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    return dict(db.execute(query, (since, until)))


def _losses(db: sqlite3.Connection, since: float, until: float) -> tuple[Loss, ...]:
    columns = ", ".join(field.name for field in fields(Loss))
    query = f"SELECT {columns} FROM requests WHERE {_TRAFFIC} AND saved_ms < 0 ORDER BY saved_ms LIMIT {LOSSES}"
    return tuple(Loss(*values) for values in db.execute(query, (since, until)))


def _audits(db: sqlite3.Connection, since: float, until: float) -> Audits:
    window = "at >= ? AND at <= ?"
    counts = dict(db.execute(f"SELECT verdict, count(*) FROM audits WHERE {window} GROUP BY 1", (since, until)))
    took = f"SELECT total(prefill_ms + decode_ms) FROM requests WHERE {window} AND endpoint = '{ENDPOINT}'"
    listed = (
        f"SELECT id, at, position, gap FROM audits WHERE {window} AND verdict = 'different' "
        f"ORDER BY rowid DESC LIMIT {LISTED}"
    )
    return Audits(
        **{name: counts.get(name, 0) for name in ("equal", "near_tie", "different", "failed")},
        ms=db.execute(took, (since, until)).fetchone()[0],
        differences=tuple(Difference(*values) for values in db.execute(listed, (since, until))),
    )


def _off(db: sqlite3.Connection, until: float) -> Iterator[Spell]:
    """Yield the times without speculation, the oldest first.

    A server that starts anew begins with its configuration's ceiling and does not write that down; the first request
    that speculates again shows it.
    """
    current: Spell | None = None
    events = "SELECT at, detail FROM events WHERE kind = 'speculation' AND at <= ? ORDER BY rowid"
    for at, detail in db.execute(events, (until,)):
        change = _change(detail)
        if current is not None:
            yield replace(current, until=_resumed(db, current.since, at) or at)
        is_off = change["mode"] == "off"
        current = Spell(_cause(change), str(change["why"]), at, None) if is_off else None
    if current is not None:
        yield replace(current, until=_resumed(db, current.since, until))


def _change(detail: str) -> dict[str, Any]:
    try:
        change = json.loads(detail)
        return {name: change[name] for name in ("mode", "by", "why")}
    except (ValueError, KeyError, TypeError):
        raise sqlite3.DatabaseError("an event of it cannot be understood") from None


def _cause(change: dict[str, Any]) -> str:
    if change["by"] != "server":
        return "operator"
    cause = str(change["why"]).partition(":")[0]
    return cause if cause in get_args(Cause) else "server"


def _resumed(db: sqlite3.Connection, since: float, until: float) -> float | None:
    """Return when the first request ended that began between two times and speculated."""
    query = (
        f"SELECT at FROM requests WHERE {_TRAFFIC} AND verified > 0 "
        "AND at - (ttft_ms + decode_ms) / 1000 > ? ORDER BY at LIMIT 1"
    )
    found = db.execute(query, (since, until, since + SLACK_S)).fetchone()
    return found[0] if found else None


def _alarms(db: sqlite3.Connection, until: float) -> Iterator[Spell]:
    """Yield the times for which an alarm was on, in the order of their ends; those without one last."""
    on: dict[str, Spell] = {}
    for at, name, is_on, text in db.execute(
        "SELECT at, name, is_on, text FROM alarms WHERE at <= ? ORDER BY rowid", (until,)
    ):
        before = on.pop(name, None)
        if before is not None:  # on after on: the server ended in between, nobody knows when
            yield before if is_on else replace(before, until=at)
        if is_on:
            on[name] = Spell(name, text, at, None)
    yield from on.values()


def _overlaps(spell: Spell, since: float) -> bool:
    return spell.until is None or spell.until >= since


def _gathered(spells: Iterable[Spell], since: float, until: float) -> tuple[Spells, ...]:
    """Return the sums by name, the longest first."""
    by_name: dict[str, Spells] = {}
    for spell in spells:
        before = by_name.get(spell.name, Spells(spell.name, 0, 0.0, 0, spell))
        by_name[spell.name] = Spells(
            spell.name,
            before.times + 1,
            before.seconds + spell.seconds(since, until),
            before.unended + (spell.until is None),
            max(before.last, spell, key=lambda each: each.since),
        )
    return tuple(sorted(by_name.values(), key=lambda each: (-each.seconds, -each.times, each.name)))


def _value(db: sqlite3.Connection, query: str, *given: float) -> int:
    [value] = db.execute(query, given).fetchone()
    return int(value)
