"""What a request says while it runs, on the side of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

from paceline.core.types import Completion, Event
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who asks, and how; nothing of what is said."""

    id: str
    key: str = ""
    """Name of the API key, empty without one: the tenant of drafts, and the unit of fairness."""
    endpoint: str = ""
    """"chat", "completions" or "audit"."""
    streaming: bool = False
    background: bool = False
    """Runs only while nothing else waits, gives way when something does, and is in no bound."""


class Answer:
    """Yields events until one has a finish reason.

    Events that were not taken yet become one, so that a slow reader holds back nobody and no more than its own text is
    kept for it. Belongs to the event loop; `cancel` may be called from there only, too.
    """

    def __init__(
        self, ticket: Ticket, cancel: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ticket = ticket
        self._cancel, self._clock = cancel, clock
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._completion: Completion | None = None
        self._over = False
        self._opened = clock()
        self._untaken: float | None = None
        """Since when there is something that nobody has taken."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        event, self._events, self._untaken = merged(self._events), [], None
        self._over = event.finish_reason is not None
        return event

    @property
    def completion(self) -> Completion:
        """Raises PacelineError while the request still runs."""
        if self._completion is None:
            raise PacelineError("the answer has not ended; iterate over it first")
        return self._completion

    @property
    def ended(self) -> bool:
        return self._completion is not None

    def cancel(self, why: str) -> None:
        """End it where it stands, before the next step; its last event has finish reason "abort" and says why."""
        if self._completion is None:
            self._cancel(why)

    def give(self, event: Event, completion: Completion | None) -> None:
        """Take in what a step has added; there is a completion when it is the last."""
        self._events.append(event)
        self._completion = completion
        if self._untaken is None:
            self._untaken = self._clock()
        self._news.set()

    def overdue(self, most_s: float, idle_s: float) -> str | None:
        """Return why it should be cancelled: it runs for too long, or nobody reads it."""
        now = self._clock()
        if now - self._opened > most_s:
            return f"the request took longer than {most_s:g} s"
        if self._untaken is not None and now - self._untaken > idle_s:
            return f"nothing was read for {idle_s:g} s"
        return None


def merged(events: Sequence[Event]) -> Event:
    """Return events of one request, in order, as one."""
    if len(events) == 1:
        return events[0]

    def joined(name: str) -> tuple[object, ...]:
        return tuple(chain.from_iterable(getattr(event, name) for event in events))

    lists = {name: joined(name) for name in ("token_ids", "sources", "logprobs", "rejected")}
    return replace(events[-1], text="".join(event.text for event in events), **lists)  # type: ignore[arg-type]
