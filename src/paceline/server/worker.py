"""The way from the event loop to the engine thread, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from paceline.core.types import Request, SpeculationParams
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.server.admission import Busy, Draining, EngineFailed
from paceline.server.answer import Answer, Ticket
from paceline.server.stepper import STOP_S, Job, News, Snapshot, Stepper, Watcher

__all__ = ["Answer", "Busy", "Draining", "EngineFailed", "Snapshot", "Ticket", "Watcher", "Worker"]

T = TypeVar("T")

SWEEP_S = 1.0
"""Between two looks for answers that take too long, at most."""
RETRY_S = 5.0
"""After which another server may have taken the place of one that shuts down."""
SHUTTING_DOWN = "the server is shutting down"


class Worker:
    """Owns the engine from `start` to `stop`: all that touches it runs on one thread. Belongs to the event loop.

    Args:
        queue: requests that may wait; those that run are not counted.
        request_timeout_s: after which a request is cancelled.
        idle_timeout_s: after which one is cancelled of which nothing is read.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        queue: int = 256,
        watchers: Sequence[Watcher] = (),
        request_timeout_s: float = 600.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        self._engine = llm.engine
        self._timeouts = (request_timeout_s, idle_timeout_s)
        self._stepper = Stepper(llm, queue, watchers, self._deliver)
        self._answers: set[Answer] = set()
        """Those that have not ended."""
        self._settled = asyncio.Event()
        self._settled.set()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._stepper.snapshot

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._answers

    def start(self) -> None:
        """Start the thread; the running event loop is the one that hears of everything."""
        self._loop = asyncio.get_running_loop()
        self._stepper.start()
        self._sweep()

    def stop(self) -> None:
        """End the thread, after the step that it is in."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._draining = True
        self._stepper.stop()

    async def open(self, request: Request, ticket: Ticket) -> Answer:
        """Line a request up.

        Raises:
            RequestError: the engine would not take it.
            Busy: as many requests wait as may.
            Draining, EngineFailed: none is taken any more.
        """
        if self._draining:
            raise Draining(RETRY_S)
        self._engine.check(request)
        answer = Answer(ticket, lambda why: self._cancel(job, why))
        job = Job(ticket, request, answer)
        self._stepper.submit(job)
        self._answers.add(answer)
        self._settled.clear()
        return answer

    async def limit(self, ceiling: SpeculationParams) -> None:
        """Set what speculation may be at most; when this returns no step goes by what was before.

        Raises:
            OptionError: see `Engine.limit`.
        """
        await self.call(lambda engine: engine.limit(ceiling))

    async def call(self, f: Callable[[Engine], T]) -> T:
        """Run something on the engine thread, between two steps.

        Raises:
            EngineFailed: the thread has ended.
        """
        return await asyncio.wrap_future(self._stepper.order(f))

    async def drain(self, seconds: float) -> int:
        """Take nothing more and wait for what there is; cancel what is left, and return how many that were.

        Background requests are cancelled at once, and not counted.
        """
        self._draining = True
        for answer in [answer for answer in self._answers if answer.ticket.background]:
            answer.cancel(SHUTTING_DOWN)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), seconds)
        left = [answer for answer in self._answers if not answer.ticket.background]
        for answer in left:
            answer.cancel(SHUTTING_DOWN)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), STOP_S)
        return len(left)

    def _cancel(self, job: Job, why: str) -> None:
        with contextlib.suppress(EngineFailed):  # then it has ended, and the news is on its way
            self._stepper.order(lambda _: self._stepper.end(job, why))

    def _deliver(self, news: list[News]) -> None:
        """Hand news over to the event loop; on the engine thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # a closed loop has no readers
            self._loop.call_soon_threadsafe(self._hand_out, news)

    def _hand_out(self, news: list[News]) -> None:
        for answer, event, completion in news:
            answer.give(event, completion)
            if completion is not None:
                self._answers.discard(answer)
        if not self._answers:
            self._settled.set()

    def _sweep(self) -> None:
        """Cancel what takes too long, now and from time to time."""
        for answer in list(self._answers):
            if why := answer.overdue(*self._timeouts):
                answer.cancel(why)
        assert self._loop is not None
        self._sweeper = self._loop.call_later(min(SWEEP_S, min(self._timeouts) / 4), self._sweep)
