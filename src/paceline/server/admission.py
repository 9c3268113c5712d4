"""Who is next: a bounded line in front of the engine, fair between keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paceline.server.refusals import Refusal

T = TypeVar("T")


class Busy(Refusal):
    """As many requests wait as may."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(
            429, f"{waiting} requests wait already; try again later", code="queue_full", retry_after=retry_after_s
        )


class Draining(Refusal):
    """The server finishes what it has, and takes nothing new."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(503, "the server is shutting down; try again", code="shutting_down", retry_after=retry_after_s)


class EngineFailed(Refusal):
    """The engine thread does not run."""

    def __init__(self, why: str) -> None:
        super().__init__(503, f"the engine does not run: {why}", kind="server_error", code="engine_failed")


@dataclass(slots=True)
class _Lane(Generic[T]):
    """What one key waits for."""

    due: float = 0.0
    """The moment of virtual time at which its first item is next."""
    items: deque[tuple[float, T]] = field(default_factory=deque)
    """(cost, item), in order of arrival."""


class Line(Generic[T]):
    """Start-time fair queueing (Goyal et al. 1996): the key whose work so far has cost least is next.

    A key that comes anew starts at the present virtual time: it neither waits for what others have lined up, nor has it
    saved up a claim by staying away. Not safe to share between threads without a lock.

    Args:
        most: items that may wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0.0
        self._lanes: dict[str, _Lane[T]] = {}

    def __len__(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[T]:
        return (item for lane in self._lanes.values() for _, item in lane.items)

    @property
    def is_full(self) -> bool:
        return len(self) >= self._most

    def put(self, key: str, cost: float, item: T) -> None:
        """Let an item wait; the caller has looked whether there is room.

        Args:
            cost: in any unit; a key's share is what it has taken of it.
        """
        lane = self._lanes.setdefault(key, _Lane())
        if not lane.items:
            lane.due = max(lane.due, self._now)
        lane.items.append((cost, item))

    def take(self) -> T | None:
        """Return the item that is next, None where nothing waits."""
        waiting = [lane for lane in self._lanes.values() if lane.items]
        if not waiting:
            return None
        lane = min(waiting, key=lambda lane: lane.due)
        self._now = lane.due
        lane.due += lane.items[0][0]
        return lane.items.popleft()[1]

    def remove(self, item: T) -> bool:
        """Take an item out of the line; False where it is not, or no longer, in it."""
        for lane in self._lanes.values():
            for entry in lane.items:
                if entry[1] is item:
                    lane.items.remove(entry)
                    return True
        return False
