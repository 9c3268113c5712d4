"""Alarms of the machine and the queue: looked at once a second, on and off by bounds that lie apart."""

from __future__ import annotations

import psutil

from paceline.config import Config
from paceline.engine.memory import trim
from paceline.governor.signs import Latch
from paceline.server.board import BLOCKS, ENGINE, JOURNAL, MEMORY, QUEUE, Board
from paceline.server.journal import Journal
from paceline.server.stepper import Snapshot

FULL, ROOMY = 0.95, 0.8
"""Shares of the KV blocks above and below which the alarm goes on and off, while requests wait."""
LONG, SHORT = 0.5, 0.25
"""Shares of the queue."""
LOOKS = 5
"""In a row, before one of these goes on or off."""
GIVE_BACK = 60
"""Looks from one time that freed memory is given back to the next."""


class Pressure:
    def __init__(self, config: Config) -> None:
        self._most_bytes, self._queue = config.targets.memory_bytes, config.server.queue
        self._memory, self._blocks, self._line = Latch(1, LOOKS), Latch(LOOKS, LOOKS), Latch(LOOKS, LOOKS)
        self._looks = 0

    def look(self, board: Board, snapshot: Snapshot, journal: Journal | None) -> None:
        self._looks += 1
        if self._looks % GIVE_BACK == 0:
            trim()  # glibc keeps what passes, texts and connections free, megabytes a minute under load
        board.set(MEMORY, self._memory_text(process_bytes()))
        board.set(BLOCKS, self._blocks_text(snapshot))
        board.set(QUEUE, self._queue_text(snapshot))
        board.set(ENGINE, f"the engine has stopped ({snapshot.failure}); start anew" if snapshot.failure else None)
        failure = journal.failure if journal is not None else None
        lost = (
            f"the journal cannot be written ({failure}); requests are served all the same; free some space on its disk"
        )
        board.set(JOURNAL, lost if failure else None)

    def _memory_text(self, used: int) -> str | None:
        most = self._most_bytes
        if most is None or not self._memory.feed(used > most, used < 0.95 * most):
            return None
        return (
            f"the process has {used / 2**20:,.0f} MiB and targets.memory_bytes is {most / 2**20:,.0f} MiB; "
            "lower the context or the sequences, go without a draft model, or raise the target"
        )

    def _blocks_text(self, snapshot: Snapshot) -> str | None:
        share = snapshot.blocks_used / max(snapshot.blocks, 1)
        if not self._blocks.feed(share >= FULL and snapshot.waiting > 0, share <= ROOMY):
            return None
        return (
            f"{snapshot.blocks_used} of {snapshot.blocks} KV blocks are in use and {snapshot.waiting} requests wait; "
            "sequences give way to each other and drafts are cut; lower max_tokens or the number of sequences, or give "
            "the context more memory"
        )

    def _queue_text(self, snapshot: Snapshot) -> str | None:
        share = snapshot.waiting / self._queue
        if not self._line.feed(share >= LONG, share <= SHORT):
            return None
        return (
            f"{snapshot.waiting} requests wait and {self._queue} may; beyond, they are refused (429); "
            "send less, limit keys, or serve from more than one machine"
        )


def process_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)
