"""When speculation is switched off without anyone asking, and when it comes back.

Four causes: a latency target is missed, speculation takes longer than plain decoding, the account stays overdrawn, an
audit found a difference. The first three come back by themselves after a pause that doubles; a difference is for the
operator to judge. What the operator sets is never overruled by what was seen before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from paceline.config import Targets
from paceline.core.types import Completion, Request, SpeculationParams
from paceline.errors import PacelineError
from paceline.governor import alarms as governor
from paceline.governor.base import StepReport
from paceline.server.answer import Ticket
from paceline.server.board import AUDIT, LATENCY, SLOWER
from paceline.server.latency import Quantiles
from paceline.server.pressure import Pressure
from paceline.server.switch import Record, Switch, effective

if TYPE_CHECKING:
    from paceline.server.hub import Hub

log = logging.getLogger(__name__)

Cause = Literal["latency", "slowdown", "account", "audit"]
LOOK_S = 1.0
LEAST = 20
"""Requests before a percentile says anything."""
LEAST_BUSY_S = 10.0
"""Seconds in steps before a slow-down does."""
OVERDRAWN_S = 5.0
"""Seconds in steps that the account stays overdrawn."""
PAUSE_S, LONGEST_S = 60.0, 3600.0
"""How long speculation stays off at first, and at most; twice as long each time that the cause soon comes back."""
SOON = 4.0
"""Pauses after which it is no longer soon."""
BETTER = 0.95
"""Share of a latency below which being off has made it better."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A latency target that was not met."""

    what: str
    """Name of the quantile."""
    value_ms: float
    target_ms: float

    @property
    def name(self) -> str:
        return self.what.removesuffix("_ms").replace("_", " ")

    def __str__(self) -> str:
        return f"{self.name} is {self.value_ms:.0f} ms, target {self.target_ms:g} ms"


@dataclass(frozen=True, slots=True)
class Off:
    """Why the server has switched speculation off, and until when."""

    cause: Cause
    until: float | None
    """In seconds of the clock; None is until the operator says so."""
    miss: Miss | None = None
    """What was measured with speculation."""


class Rollback:
    """Looks once a second; belongs to the event loop."""

    def __init__(self, targets: Targets, clock: Callable[[], float] = time.monotonic) -> None:
        self._targets, self._clock = targets, clock
        self.counts: Counter[str] = Counter(dict.fromkeys(get_args(Cause), 0))
        self.off: Off | None = None
        self._pauses: dict[Cause, float] = {}
        self._returned: dict[Cause, float] = {}
        """When speculation last came back after it was off for a cause."""
        self._innocent_until = 0.0
        """Until when a missed latency is not held against speculation: it was as bad without."""
        self._changed = clock()
        """When the ceiling last changed: what began before says nothing of it."""
        self._overdrawn_s = self._busy_s = 0.0
        self._hub: Hub | None = None
        self._switch: Switch | None = None
        self._task: asyncio.Task[None] | None = None

    def stepped(self, step: StepReport) -> None:
        """Latencies and the account say what there is to know."""

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        """Latencies are kept with the metrics."""

    @property
    def switch(self) -> Switch:
        assert self._switch is not None, "before the start"
        return self._switch

    def start(self, hub: Hub) -> None:
        """Begin to look, on the running event loop."""
        self.attach(hub)
        self._task = asyncio.get_running_loop().create_task(self._run(Pressure(hub.config)))

    def attach(self, hub: Hub) -> None:
        """Take the parts that it reads and switches; the journal is told of changes, and tells of earlier requests."""
        self._hub = hub
        record: Record = _unrecorded
        if hub.journal is not None:
            hub.journal.spell_with(hub.llm.tokenizer.decode)
            hub.metrics.board.tell(hub.journal.alarm)
            hub.metrics.recent.extend(reversed(hub.journal.recent(hub.metrics.recent.maxlen or 0)))
            record = hub.journal.event
        self._switch = Switch(hub.worker, hub.config.speculation, record)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def operate(self, ceiling: SpeculationParams, who: str) -> None:
        """Set what the operator wants; in force when this returns.

        Raises:
            OptionError: it names a drafter that there is not.
        """
        await self.switch.choose(ceiling, f"set by {who}")
        self._forget()
        self._pauses, self._returned, self._innocent_until = {}, {}, 0.0
        if effective(ceiling) != "off":
            self._board.set(AUDIT, None)

    async def difference(self, text: str) -> None:
        """Switch off for an answer that plain decoding did not give; only the operator switches on again."""
        if self.off is not None and self.off.cause == "audit":
            return
        if effective(self.switch.chosen) != "off":
            await self._off(Off("audit", None), text)

    async def look(self, busy_s: float) -> None:
        """Judge how things stand.

        Args:
            busy_s: seconds in steps since the start.
        """
        new_s, self._busy_s = busy_s - self._busy_s, busy_s
        miss = self._missed()
        is_on = effective(self.switch.ceiling) != "off"
        if self.off is not None:
            await self._consider_return(self.off, miss)
        elif is_on:
            await self._consider_off(miss, new_s)
        elif miss is not None:
            self._board.set(LATENCY, f"{miss}, and speculation is off; see what else is slow")

    async def _run(self, pressure: Pressure) -> None:
        hub = self._hub
        assert hub is not None
        while True:
            try:
                snapshot = hub.worker.snapshot
                hub.metrics.look(snapshot, time.time())
                hub.metrics.board.follow(snapshot.alarms)
                pressure.look(hub.metrics.board, snapshot, hub.journal)
                await self.look(hub.metrics.series.busy_s)
            except PacelineError as error:  # the engine has stopped: there is nothing to switch
                log.warning("speculation was not switched: %s", error)
            except Exception:
                log.exception("a look at the server failed")
            await asyncio.sleep(LOOK_S)

    @property
    def _board(self) -> Any:
        assert self._hub is not None
        return self._hub.metrics.board

    def _quantiles(self) -> Quantiles:
        assert self._hub is not None
        return self._hub.metrics.latencies.within(self._targets.window_s, begun_after=self._changed)

    def _missed(self) -> Miss | None:
        """Return the target that is missed by most, of those that enough requests say something about."""
        found = self._quantiles()
        if found.requests < LEAST:
            return None
        missed = []
        for what in ("ttft_p95_ms", "tpot_p95_ms"):
            value, target = getattr(found, what), getattr(self._targets, what)
            if value is not None and target is not None and value > target:
                missed.append(Miss(what, value, target))
        if not missed:
            self._board.set(LATENCY, None)
            return None
        return max(missed, key=lambda miss: miss.value_ms / max(miss.target_ms, 1e-9))

    async def _consider_off(self, miss: Miss | None, busy_s: float) -> None:
        if miss is not None and self._clock() >= self._innocent_until:
            self._board.set(LATENCY, f"{miss}")
            await self._off(Off("latency", self._until("latency"), miss), f"{miss}")
            return
        if (slowdown := self._slowdown()) > self._targets.slowdown:
            text = (
                f"steps take {slowdown:.3f} × what plain decoding would, targets.slowdown is {self._targets.slowdown:g}"
            )
            self._board.set(SLOWER, text)
            await self._off(Off("slowdown", self._until("slowdown")), text)
            return
        self._board.set(SLOWER, None)
        overdrawn = next((alarm for alarm in self._board.active if alarm.name == governor.OVERDRAWN), None)
        self._overdrawn_s = self._overdrawn_s + busy_s if overdrawn else 0.0
        if overdrawn and self._overdrawn_s >= OVERDRAWN_S:
            await self._off(Off("account", self._until("account")), "the account stays overdrawn")

    async def _consider_return(self, off: Off, miss: Miss | None) -> None:
        if off.until is None:
            return
        if off.miss is not None and miss is not None:
            value = getattr(self._quantiles(), off.miss.what)
            if value is not None and value >= BETTER * off.miss.value_ms:
                text = (
                    f"{off.miss.name} is as bad with speculation off ({value:.0f} ms; "
                    f"{off.miss.value_ms:.0f} ms with it): not speculation's doing; see the load and the machine"
                )
                self._innocent_until = self._clock() + self._pause("latency")
                await self._back(off, text)
                self._board.set(LATENCY, text)
                return
        if self._clock() >= off.until:
            await self._back(off, f"the pause after it was off ({off.cause}) is over")

    def _slowdown(self) -> float:
        """Return how many times longer steps took than plain decoding would have, over the window; 0 if unknown."""
        assert self._hub is not None
        since = time.time() - (self._clock() - self._changed)
        rates = self._hub.metrics.series.over(self._targets.window_s, since)
        if rates is None or not rates.tokens_per_s or rates.busy * rates.seconds < LEAST_BUSY_S:
            return 0.0
        return rates.plain_tokens_per_s / rates.tokens_per_s

    async def _off(self, off: Off, why: str) -> None:
        until = "until the operator switches it on" if off.until is None else f"for {off.until - self._clock():.0f} s"
        await self.switch.off(f"{off.cause}: {why}; off {until}")
        log.warning("speculation is off: %s", self.switch.last.why)
        self._forget()
        self.off = off
        self.counts[off.cause] += 1

    async def _back(self, off: Off, why: str) -> None:
        await self.switch.back(why)
        log.warning("speculation is back: %s", why)
        self._forget()
        self._returned[off.cause] = self._changed

    def _forget(self) -> None:
        """Judge anew from here."""
        self.off, self._changed, self._overdrawn_s = None, self._clock(), 0.0

    def _until(self, cause: Cause) -> float:
        return self._clock() + self._pause(cause)

    def _pause(self, cause: Cause) -> float:
        """Return how long to stay off, twice as long as before if the cause is soon back."""
        before = self._pauses.get(cause)
        soon = before is not None and self._clock() - self._returned.get(cause, self._clock()) < SOON * before
        self._pauses[cause] = min(2 * before, LONGEST_S) if before is not None and soon else PAUSE_S
        return self._pauses[cause]


def _unrecorded(kind: str, text: str, detail: dict[str, Any]) -> None:
    """There is no journal."""
