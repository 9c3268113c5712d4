"""Continuous audit: some of what was answered is decoded again, plainly, and compared token by token."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from paceline.config import AuditConfig
from paceline.core.gap import CANDIDATES, gap
from paceline.core.types import Completion, Event, Request, SpeculationParams, TokenLogprob
from paceline.errors import PacelineError
from paceline.governor.base import StepReport
from paceline.server.answer import Ticket
from paceline.server.board import AUDIT

if TYPE_CHECKING:
    from paceline.server.hub import Hub

log = logging.getLogger(__name__)

Verdict = Literal["equal", "near_tie", "different", "skipped_rule", "skipped_busy", "failed"]
VERDICTS: tuple[Verdict, ...] = ("equal", "near_tie", "different", "skipped_rule", "skipped_busy", "failed")
PENDING = 32
"""Requests that may wait to be audited; those beyond are skipped."""
LOOK_S = 0.5
TRIES = 5
"""An audit gives way to any request; after so many times it is given up."""
ENDPOINT = "audit"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What was answered."""

    id: str
    key: str
    request: Request
    tokens: tuple[int, ...]
    seed: int
    tries: int = 0

    @property
    def plain(self) -> Request:
        """The same request without speculation, and with log-probabilities to measure a difference by."""
        sampling = replace(self.request.sampling, seed=self.seed, logprobs=CANDIDATES)
        return replace(self.request, sampling=sampling, speculation=SpeculationParams("off"), prediction=())


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that is another."""

    position: int
    """In the answer, from 0."""
    gap: float | None
    """By how much plain decoding preferred its own, in logits; None where that cannot be measured."""


class GaveWay(PacelineError):
    """Another request came."""


class Auditor:
    """A watcher that draws from finished requests, and a task that decodes them again while nothing waits.

    Args:
        draw: a number in [0, 1) for each request that speculated.
    """

    def __init__(self, config: AuditConfig, draw: Callable[[], float] = random.random) -> None:
        self._config, self._draw = config, draw
        self.counts: Counter[str] = Counter(dict.fromkeys(VERDICTS, 0))
        self._pending: deque[Case] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def share(self) -> float:
        return self._config.share

    @property
    def done(self) -> int:
        """Audits that came to a verdict."""
        return self.counts["equal"] + self.counts["near_tie"] + self.counts["different"]

    def stepped(self, step: StepReport) -> None:
        """Whole answers are audited."""

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        counts = completion.speculation
        if ticket.endpoint == ENDPOINT or completion.finish_reason not in ("stop", "length") or not counts.verified:
            return
        if self._draw() >= self._config.share:
            return
        if request.speculation.rule != "coupled":  # its text is one of many that plain decoding might give
            self.counts["skipped_rule"] += 1
        elif len(self._pending) >= PENDING:
            self.counts["skipped_busy"] += 1
        else:
            self._pending.append(Case(ticket.id, ticket.key, request, completion.token_ids, completion.seed))

    def start(self, hub: Hub) -> None:
        """Begin to audit, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(hub))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, hub: Hub) -> None:
        while True:
            if self._pending and _has_room(hub):
                await self._audit(hub, self._pending.popleft())
            else:
                await asyncio.sleep(LOOK_S)

    async def _audit(self, hub: Hub, case: Case) -> None:
        try:
            found = await self.compare(hub, case)
        except GaveWay:
            self._again(case)
        except Exception as error:
            log.warning("the audit of %s failed: %s: %s", case.id, type(error).__name__, error)
            self._settle(hub, case, "failed", None)
        else:
            await self._judge(hub, case, found)

    def _again(self, case: Case) -> None:
        if case.tries + 1 < TRIES:
            self._pending.append(replace(case, tries=case.tries + 1))
        else:
            self.counts["skipped_busy"] += 1

    async def compare(self, hub: Hub, case: Case) -> Difference | None:
        """Decode plainly and return the first difference, if there is one.

        Raises:
            GaveWay: a request came that goes first.
            PacelineError: it could not be decoded.
        """
        ticket = Ticket(f"audit-{case.id}", case.key, ENDPOINT, background=True)
        answer = await hub.worker.open(case.plain, ticket)
        done, seen = 0, False
        try:
            async for event in answer:
                if (at := _differs(case.tokens, done, event)) is not None:
                    return Difference(done + at, self._gap(hub, case, done + at, event.logprobs[at]))
                done += len(event.token_ids)
                seen = event.finish_reason in ("stop", "length")
        finally:
            answer.cancel("the audit has ended")
        if not seen:
            raise GaveWay("it gave way") if answer.completion.finish_reason == "abort" else PacelineError("it failed")
        return Difference(done, None) if done < len(case.tokens) else None

    def _gap(self, hub: Hub, case: Case, at: int, plain: TokenLogprob) -> float | None:
        if at >= len(case.tokens):
            return None
        ending = frozenset(case.request.sampling.stop_token_ids) | frozenset(hub.llm.chosen.target.eos_ids)
        return gap(case.plain, case.tokens[:at], plain, case.tokens[at], hub.llm.engine.target.info.vocab_size, ending)

    async def _judge(self, hub: Hub, case: Case, found: Difference | None) -> None:
        if found is None:
            self._settle(hub, case, "equal", None)
        elif found.gap is not None and found.gap <= self._config.tolerance:
            self._settle(hub, case, "near_tie", found)
        else:
            self._settle(hub, case, "different", found)
            text = self._text(case, found)
            hub.metrics.board.set(AUDIT, text)
            if self._config.on_difference == "plain":
                await hub.rollback.difference(text)

    def _text(self, case: Case, found: Difference) -> str:
        how = "by how much cannot be measured" if found.gap is None else f"by {found.gap:.3f} logits"
        return (
            f"token {found.position + 1} of {case.id} is not what plain decoding gives ({how}; "
            f"audit.tolerance is {self._config.tolerance:g}); likely a fault in paceline or a library under it; "
            "keep the journal and report it"
        )

    def _settle(self, hub: Hub, case: Case, verdict: Verdict, found: Difference | None) -> None:
        self.counts[verdict] += 1
        if hub.journal is not None:
            hub.journal.audit(case.id, verdict, found.position if found else None, found.gap if found else None)


def _has_room(hub: Hub) -> bool:
    """Whether nothing waits and at most half of the engine's places are taken."""
    snapshot = hub.worker.snapshot
    return not snapshot.waiting and snapshot.running <= hub.llm.chosen.options.sequences // 2 and not snapshot.failure


def _differs(tokens: tuple[int, ...], done: int, event: Event) -> int | None:
    """Return which token of an event is not the one that was given before."""
    for i, token in enumerate(event.token_ids):
        if tokens[done + i : done + i + 1] != (token,):
            return i
    return None
