"""What the engine thread does: takes orders, admits requests, steps, and says what came of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from paceline.core.types import Completion, Event, FinishReason, Request, SpeculationReport, Timings
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.errors import PacelineError
from paceline.governor.alarms import Alarm
from paceline.governor.base import StepReport
from paceline.server.admission import Busy, EngineFailed, Line
from paceline.server.answer import Answer, Ticket

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 0.2
"""Least time between two snapshots while steps run."""
IDLE_S = 1.0
"""Between two looks around while nothing runs."""
STOP_S = 10.0
"""How long a step may keep the thread from ending; the process then ends without it."""
FAILED = "the engine failed in a step; send the request again"
GAVE_WAY = "a background request gave way"
STOPPED = "it was stopped"


class Watcher(Protocol):
    """Called on the engine thread; what it raises is logged and changes nothing."""

    def stepped(self, step: StepReport) -> None: ...

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the engine last looked like."""

    at: float
    """Seconds since 1970."""
    running: int
    waiting: int
    report: SpeculationReport
    alarms: Mapping[str, Alarm]
    blocks: int
    """Of the KV pool."""
    blocks_used: int
    plain_s: float | None
    """Measured seconds of a plain step of as many sequences as run, of one where none does."""
    failure: str | None = None
    """Why the engine thread has stopped, if it has."""


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine."""

    ticket: Ticket
    request: Request
    answer: Answer
    id: int | None = None
    """The engine's, once it is there."""
    since: float = 0.0
    """When it got there."""
    made: float = field(default_factory=time.monotonic)
    """When it was lined up."""
    ending: tuple[FinishReason, str] | None = None
    """How it ends, whatever the engine says."""

    @property
    def cost(self) -> int:
        """Tokens that it asks for."""
        return len(self.request.prompt) + self.request.sampling.max_tokens


News = tuple[Answer, Event, Completion | None]


class Stepper:
    """Runs the engine on a thread of its own. `submit` and `order` may be called from any other.

    Args:
        queue: jobs that may wait.
        deliver: is handed the news of each step, on the engine thread.
    """

    def __init__(
        self, llm: LLM, queue: int, watchers: Sequence[Watcher], deliver: Callable[[list[News]], None]
    ) -> None:
        self._llm, self._engine, self._watchers, self._deliver = llm, llm.engine, tuple(watchers), deliver
        self._most = llm.chosen.options.sequences
        self._lock = threading.Lock()
        """Of the lines, of the orders, and of the end of both."""
        self._line: Line[Job] = Line(queue)
        self._background: deque[Job] = deque()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[int, Job] = {}
        """Those in the engine, by its ids."""
        self._usual_s = 1.0
        """Seconds that a request took in the engine of late."""
        self._stopping = False
        self._closed: str | None = None
        """Why nothing is taken any more."""
        self._looked = 0.0
        self.snapshot = self._look()
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    def start(self) -> None:
        self._engine.watch = self._stepped
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step that it is in; what still runs or waits ends with an error."""
        self._stopping = True
        self._orders.put(_nothing)
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def submit(self, job: Job) -> None:
        """Line a job up.

        Raises:
            Busy: as many wait as may.
            EngineFailed: the thread has ended.
        """
        with self._lock:
            if self._closed is not None:
                raise EngineFailed(self._closed)
            if job.ticket.background:
                self._background.append(job)
            elif self._line.is_full:
                raise Busy(len(self._line), self._wait_s())
            else:
                self._line.put(job.ticket.key, min(job.cost, self._engine.context), job)
            self._orders.put(_nothing)

    def order(self, what: Callable[[Engine], T]) -> Future[T]:
        """Have something done between two steps.

        Raises:
            EngineFailed: the thread has ended.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed is not None:
                raise EngineFailed(self._closed)
            self._orders.put(lambda: self._obey(what, future))
        return future

    def end(self, job: Job, why: str) -> None:
        """Cancel a job; on the engine thread."""
        if job.id is not None:
            if job.id in self._jobs and job.ending is None:
                job.ending = ("abort", why)
                self._engine.abort(job.id)
        elif self._unlined(job):
            self._deliver([self._unstarted(job, "abort", why)])

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self._close(STOPPED)
        except BaseException as error:
            log.critical("the engine thread ends", exc_info=True)
            self._close(f"{type(error).__name__} in a step that could not be contained")

    def _turn(self) -> None:
        self._take_orders()
        self._admit()
        if self._engine.idle:
            self._rest()
            return
        try:
            events = self._engine.step()
        except Exception:
            log.exception("a step failed; what runs ends with an error")
            events = self._contained()
        self._tell(events)
        if time.monotonic() - self._looked >= LOOK_S or self._engine.idle:
            self.snapshot = self._look()

    def _rest(self) -> None:
        self.snapshot = self._look()
        self._llm.rest()
        try:
            self._orders.get(timeout=IDLE_S)()
        except Empty:
            return

    def _take_orders(self) -> None:
        while True:
            try:
                order = self._orders.get_nowait()
            except Empty:
                return
            order()

    def _obey(self, what: Callable[[Engine], T], future: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if self._closed is not None:
            future.set_exception(EngineFailed(self._closed))
            return
        try:
            future.set_result(what(self._engine))
        except Exception as error:
            future.set_exception(error)

    def _admit(self) -> None:
        """Let in as many as may run; background ones one at a time, while nobody waits."""
        while job := self._next():
            try:
                job.id, job.since = self._engine.add(job.request), time.monotonic()
                self._jobs[job.id] = job
            except Exception as error:
                if not isinstance(error, PacelineError):
                    log.exception("a request could not be added")
                why = str(error) if isinstance(error, PacelineError) else FAILED
                self._deliver([self._unstarted(job, "error", why)])

    def _next(self) -> Job | None:
        going = [job for job in self._jobs.values() if job.ending is None]
        quiet = [job for job in going if job.ticket.background]
        with self._lock:
            waits = len(self._line) > 0
            if len(going) < self._most:
                if waits:
                    return self._line.take()
                return self._background.popleft() if self._background and not quiet else None
        if waits and quiet:
            self.end(quiet[0], GAVE_WAY)
            return self._next()
        return None

    def _tell(self, events: Sequence[Event]) -> None:
        """Say what a step has added, and to whom."""
        news: list[News] = []
        for event in events:
            job = self._jobs.get(event.request_id)
            if job is None:
                continue
            completion = None
            if event.finish_reason:
                event, completion = self._finished(job, event)
            news.append((job.answer, event, completion))
        if news:
            self._deliver(news)

    def _finished(self, job: Job, event: Event) -> tuple[Event, Completion]:
        completion = self._engine.completion(event.request_id)
        del self._jobs[event.request_id]
        if job.ending is not None:
            reason, why = job.ending
            event = replace(event, finish_reason=reason, error=why)
            completion = replace(completion, finish_reason=reason, error=why)
        self._usual_s += 0.1 * (time.monotonic() - job.since - self._usual_s)
        completion = replace(completion, timings=_in_line(completion.timings, job.since - job.made))
        self._watched(job, completion)
        return event, completion

    def _contained(self) -> list[Event]:
        """End all that runs with an error.

        Raises:
            Exception: the engine is not whole afterwards.
        """
        for request_id, job in self._jobs.items():
            job.ending = job.ending or ("error", FAILED)
            self._engine.abort(request_id)
        events = self._engine.step()
        pool = self._engine.pool
        pool.check()
        assert pool.available == pool.num_blocks, "blocks were lost"
        return events

    def _close(self, why: str) -> None:
        """Take nothing more, and end all that is there."""
        with self._lock:
            self._closed = why
            waiting = [*self._line, *self._background, *self._jobs.values()]
            self._line, self._background, self._jobs = Line(0), deque(), {}
        self.snapshot = replace(self.snapshot, at=time.time(), running=0, waiting=0, failure=why)
        self._deliver([self._unstarted(job, "error", f"the engine does not run: {why}") for job in waiting])
        self._take_orders()

    def _unlined(self, job: Job) -> bool:
        with self._lock:
            if job in self._background:
                self._background.remove(job)
                return True
            return self._line.remove(job)

    def _unstarted(self, job: Job, reason: FinishReason, why: str) -> News:
        """Return the end of a job of which the engine says nothing."""
        request, asked = job.request, job.request.speculation
        completion = Completion(
            request_id=-1 if job.id is None else job.id,
            text="",
            token_ids=(),
            finish_reason=reason,
            prompt_tokens=len(request.prompt),
            seed=request.sampling.seed or 0,
            speculation=SpeculationReport(asked.mode, asked.rule, asked.lossless),
            timings=Timings(0.0, 0.0, 0.0),
            error=why,
        )
        self._watched(job, completion)
        return job.answer, Event(completion.request_id, (), "", (), (), reason, why), completion

    def _stepped(self, step: StepReport) -> None:
        for watcher in self._watchers:
            _guarded(lambda watcher=watcher: watcher.stepped(step))  # type: ignore[misc]

    def _watched(self, job: Job, completion: Completion) -> None:
        for watcher in self._watchers:
            _guarded(lambda watcher=watcher: watcher.finished(job.ticket, job.request, completion))  # type: ignore[misc]

    def _wait_s(self) -> float:
        """Return the seconds after which half of what waits will have had its turn."""
        return min(max(len(self._line) / 2 * self._usual_s / self._most, 1.0), 60.0)

    def _look(self) -> Snapshot:
        engine = self._engine
        running = len(engine.scheduler.running)
        pool = engine.pool
        self._looked = time.monotonic()
        return Snapshot(
            at=time.time(),
            running=running,
            waiting=len(self._line) + len(engine.scheduler.waiting),
            report=engine.report(),
            alarms=dict(engine.alarms),
            blocks=pool.num_blocks,
            blocks_used=pool.num_blocks - pool.available,
            plain_s=engine.governor.costs.plain_seconds(max(1, running)),
        )


def _in_line(timings: Timings, waited_s: float) -> Timings:
    """Return the times as the client knows them: the engine's clock begins behind the line."""
    return replace(timings, time_to_first_token_ms=timings.time_to_first_token_ms + waited_s * 1e3)


def _nothing() -> None:
    """Wakes the thread."""


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a watcher failed")
