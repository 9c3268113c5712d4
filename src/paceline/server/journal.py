"""The journal: what happened, in a SQLite file that survives the process. Written by a thread of its own.

Nothing here may hold up or fail a request: what cannot be queued is counted as dropped, and what cannot be written is
tried again while `failure` says why.
"""

from __future__ import annotations

import json
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.config import JournalConfig
from paceline.core.types import Completion, Request
from paceline.errors import OptionError
from paceline.governor.base import StepReport
from paceline.server import journal_schema as schema
from paceline.server.answer import Ticket
from paceline.server.records import RequestRow

log = logging.getLogger(__name__)

QUEUE = 4096
"""Entries that may wait for the writer; those beyond are dropped, and counted."""
BATCH, BATCH_S = 64, 0.25
"""Entries of a commit at most, and seconds that the first of them waits for others."""
RETRY_S = 1.0
"""After a write that failed."""
PRUNE_S = 30.0
"""Between two looks for what is too old."""
DAY_S = 86_400.0
CLOSE_S = 5.0
"""For the last entries, when it is closed."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    write: Callable[[sqlite3.Connection], None]
    requests: int = 0


@dataclass(frozen=True, slots=True)
class JournalStats:
    file: str
    rows: int
    """Requests in it."""
    dropped: int
    """Entries that were lost since the start."""
    bytes: int
    """Of the file and its write-ahead log."""
    failure: str | None


class Journal:
    """A watcher that writes down each request; with `record_text`, also what was said.

    Args:
        db: None where it could not be opened; it is tried again.
    """

    def __init__(self, path: Path, config: JournalConfig, db: sqlite3.Connection | None, failure: str | None) -> None:
        self._path, self._config, self._db = path, config, db
        self.failure = failure
        """Why nothing is written at present; None while all is well."""
        self._decode: Decode | None = None
        self._queue: queue.Queue[_Entry | threading.Event] = queue.Queue(QUEUE)
        self._closing = threading.Event()
        self._rows = schema.count(db) if db is not None else 0
        self._dropped, self._lock = 0, threading.Lock()
        self._next_prune = 0.0
        self._thread = threading.Thread(target=self._run, name="paceline-journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, config: JournalConfig) -> Journal:
        """Open the journal that a configuration names. One that is damaged opens as well, with its `failure` set.

        Raises:
            OptionError: there is no such directory, or the file is not a journal of this version.
        """
        assert config.file is not None, "a configuration without a journal"
        path = Path(config.file).expanduser()
        if not path.parent.is_dir():
            raise OptionError(f"journal.file is {config.file!r} and its directory is not there; make it first")
        try:
            return cls(path, config, schema.connect(path), None)
        except sqlite3.Error as error:
            log.error("the journal %s cannot be opened: %s", path, error)
            return cls(path, config, None, _said(error))

    def spell_with(self, decode: Decode) -> None:
        """Take what turns tokens into text; needed where texts are recorded."""
        self._decode = decode

    def stepped(self, step: StepReport) -> None:
        """Steps are not written down one by one."""

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        row = RequestRow.of(ticket, completion, time.time())
        said = (request.prompt, completion.text) if self._config.record_text else None
        self._put(_Entry(partial(self._write_request, row=row, said=said), requests=1))

    def event(self, kind: str, text: str, detail: Mapping[str, Any] | None = None) -> None:
        """Write down something that the server did: a change of the ceiling, say."""
        values = (time.time(), kind, text, json.dumps(dict(detail or {}), default=str))
        self._put(_Entry(partial(schema.add, table="events", values=values)))

    def alarm(self, name: str, is_on: bool, text: str) -> None:
        values = (time.time(), name, is_on, text)
        self._put(_Entry(partial(schema.add, table="alarms", values=values)))

    def audit(self, request_id: str, verdict: str, position: int | None, gap: float | None) -> None:
        values = (time.time(), request_id, verdict, position, gap)
        self._put(_Entry(partial(schema.add, table="audits", values=values)))

    def recent(self, count: int) -> list[RequestRow]:
        """Return the newest requests that are written, the newest first; none where the file cannot be read."""
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as db:
                return schema.recent(db, count)
        except (sqlite3.Error, ValueError) as error:
            log.warning("the journal %s cannot be read: %s", self._path, error)
            return []

    @property
    def stats(self) -> JournalStats:
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        size = 0
        for file in files:
            with suppress(OSError):
                size += file.stat().st_size
        return JournalStats(str(self._path), self._rows, self._dropped, size, self.failure)

    def flush(self, timeout: float = CLOSE_S) -> bool:
        """Wait until all that was handed over is committed, and return whether it is."""
        done = threading.Event()
        try:
            self._queue.put(done, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(timeout)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._closing.set()
        with suppress(queue.Full):
            self._queue.put_nowait(threading.Event())  # wakes the writer
        self._thread.join(CLOSE_S)

    def _put(self, entry: _Entry) -> None:
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._drop()

    def _drop(self) -> None:
        with self._lock:
            self._dropped += 1

    def _write_request(
        self, db: sqlite3.Connection, row: RequestRow, said: tuple[tuple[int, ...], str] | None = None
    ) -> None:
        text = None
        if said is not None and self._decode is not None:
            text = self._decode(said[0]), said[1]
        schema.add_request(db, row, text)

    def _run(self) -> None:
        batch: list[_Entry | threading.Event] = []
        while not (self._closing.is_set() and self._queue.empty() and not batch):
            if not batch:
                batch = self._gather()
            try:
                self._commit(batch)
                batch = []
                self._prune()
            except sqlite3.Error as error:
                self._failed(error)
                if self._closing.wait(RETRY_S):
                    break
        lost = [entry for entry in batch if isinstance(entry, _Entry)]
        if lost:
            log.error("%d entries of the journal are lost", len(lost) + self._queue.qsize())
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()

    def _gather(self) -> list[_Entry | threading.Event]:
        """Return the entries of the next commit; none when nothing comes for a while."""
        try:
            batch = [self._queue.get(timeout=RETRY_S)]
        except queue.Empty:
            return []
        end = time.monotonic() + BATCH_S
        while len(batch) < BATCH and isinstance(batch[-1], _Entry) and not self._closing.is_set():
            try:
                batch.append(self._queue.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _commit(self, batch: Sequence[_Entry | threading.Event]) -> None:
        """Write a batch in one transaction.

        Raises:
            sqlite3.Error: nothing of it was written.
        """
        db = self._connected()
        if not batch:
            return
        db.execute("BEGIN IMMEDIATE")
        added = sum(self._write(db, entry) for entry in batch if isinstance(entry, _Entry))
        db.execute("COMMIT")
        self._rows += added
        self._mended()
        for entry in batch:
            if isinstance(entry, threading.Event):
                entry.set()

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._opened()
            self._rows = schema.count(self._db)
            self._mended()
        return self._db

    def _mended(self) -> None:
        if self.failure is not None:
            log.warning("the journal is written again")
            self.failure = None

    def _opened(self) -> sqlite3.Connection:
        try:
            return schema.connect(self._path)
        except OptionError as error:
            raise sqlite3.DatabaseError(str(error)) from None

    def _write(self, db: sqlite3.Connection, entry: _Entry) -> int:
        """Write one entry; one that cannot be written for its own sake is dropped, so that it does not block others."""
        try:
            entry.write(db)
            return entry.requests
        except Exception as error:
            if _is_of_the_file(error):
                raise
            log.exception("an entry of the journal cannot be written")
            self._drop()
            return 0

    def _prune(self) -> None:
        db, now = self._connected(), time.time()
        if now < self._next_prune and schema.size(db) <= self._config.max_bytes:
            return
        schema.prune(db, self._config.max_bytes, now - self._config.max_age_days * DAY_S)
        self._next_prune = now + PRUNE_S
        self._rows = schema.count(db)

    def _failed(self, error: sqlite3.Error) -> None:
        if self.failure is None:
            log.error("the journal %s cannot be written: %s; it is tried again", self._path, error)
        self.failure = _said(error)
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.rollback()


def _is_of_the_file(error: Exception) -> bool:
    """Whether an error is the disk's or the file's, not an entry's."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _said(error: sqlite3.Error) -> str:
    return f"{type(error).__name__}: {error}"
