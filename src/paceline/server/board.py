"""The alarms that are on: the governor's and the server's own, since when, and what to read about them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.governor import alarms as governor
from paceline.governor.alarms import Alarm

log = logging.getLogger(__name__)

AUDIT, JOURNAL, ENGINE = "audit_difference", "journal_failed", "engine_failed"
LATENCY, SLOWER = "latency_target", "slower_than_plain"
MEMORY, BLOCKS, QUEUE = "memory_target", "kv_full", "queue_filling"
OWN = (AUDIT, JOURNAL, ENGINE, LATENCY, SLOWER, MEMORY, BLOCKS, QUEUE)
NAMES = (*governor.NAMES, *OWN)
RUNBOOKS = {
    **dict.fromkeys((*governor.NAMES, SLOWER), "collapse"),
    AUDIT: "audit-difference",
    MEMORY: "memory-pressure",
    BLOCKS: "memory-pressure",
    JOURNAL: "journal",
    LATENCY: "overload",
    QUEUE: "overload",
    ENGINE: "overload",
}
"""Name of the page in docs/runbooks, by alarm."""

Tell = Callable[[str, bool, str], None]
"""(name, whether it is on, text): told of every change."""


@dataclass(frozen=True, slots=True)
class Ringing:
    name: str
    text: str
    since: float
    """Seconds since 1970."""

    @property
    def runbook(self) -> str | None:
        return RUNBOOKS.get(self.name)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "since": self.since, "runbook": self.runbook}


class Board:
    """May be written from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on: dict[str, Ringing] = {}
        self._tell: list[Tell] = []

    def tell(self, listener: Tell) -> None:
        """Add one who is told of every change."""
        self._tell.append(listener)

    @property
    def active(self) -> tuple[Ringing, ...]:
        """The alarms that are on, the oldest first."""
        with self._lock:
            return tuple(self._on.values())

    def set(self, name: str, text: str | None) -> None:
        """Switch an alarm on with a text, or off with None; the text of one that is on is kept up to date."""
        with self._lock:
            before = self._on.get(name)
            if text is None:
                self._on.pop(name, None)
            else:
                self._on[name] = Ringing(name, text, before.since if before else time.time())
        if (before is None) == (text is None):
            return
        if name in OWN:  # the governor logs its own
            log.log(logging.INFO if text is None else logging.WARNING, "alarm %s: %s", name, text or "off")
        for listener in self._tell:
            listener(name, text is not None, text or "")

    def follow(self, alarms: Mapping[str, Alarm]) -> None:
        """Take over which of the governor's alarms are on."""
        gone = {ringing.name for ringing in self.active} - alarms.keys() - set(OWN)
        for name in gone:
            self.set(name, None)
        for name, alarm in alarms.items():
            self.set(name, alarm.text)
