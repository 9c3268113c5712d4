"""Rates over time: the account looked at once a second, and what lies between two looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from paceline.governor.base import StepReport
from paceline.server.stepper import Snapshot

POINTS = 300
"""Kept, one a second."""
LENGTHS = 120
"""Of these, those for which lengths are shown."""
NOW_S = 5.0
"""What "now" is an average over."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Sums since the start, at one time."""

    t: float
    """Seconds since 1970."""
    busy_s: float
    """In steps."""
    tokens: int
    steps: int
    drafted: int
    accepted: int
    saved_s: float
    wasted_s: float
    running: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Between two marks."""

    t: float
    """The end of it, in seconds since 1970."""
    seconds: float
    tokens_per_s: float
    plain_tokens_per_s: float
    """What plain decoding would have made of the same busy time, by the account."""
    saved_ms_per_s: float
    busy: float
    """Share of the time that went into steps."""
    useful: float
    """Of the same time, what did not go into rejected drafts."""
    wasted: float
    running: int
    drafted_per_step: float
    accepted_per_step: float

    @classmethod
    def between(cls, a: Mark, b: Mark) -> Rates:
        seconds, busy_s, steps = max(b.t - a.t, 1e-6), b.busy_s - a.busy_s, max(b.steps - a.steps, 1)
        saved_s, rate = b.saved_s - a.saved_s, (b.tokens - a.tokens) / seconds
        plainly_s = busy_s + saved_s
        busy = min(busy_s / seconds, 1.0)
        wasted = min((b.wasted_s - a.wasted_s) / seconds, busy)
        return cls(
            t=b.t,
            seconds=seconds,
            tokens_per_s=rate,
            plain_tokens_per_s=rate * busy_s / plainly_s if plainly_s > 0 else rate,
            saved_ms_per_s=saved_s / seconds * 1e3,
            busy=busy,
            useful=busy - wasted,
            wasted=wasted,
            running=b.running,
            drafted_per_step=(b.drafted - a.drafted) / steps,
            accepted_per_step=(b.accepted - a.accepted) / steps,
        )


class Series:
    """`add_step` is called by the engine thread; all else belongs to the event loop."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._marks: deque[Mark] = deque(maxlen=POINTS + 1)

    def add_step(self, step: StepReport) -> None:
        self.busy_s += step.seconds

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Take in how things stand."""
        self._marks.append(self.mark(snapshot, now))

    def mark(self, snapshot: Snapshot, now: float) -> Mark:
        sums = snapshot.report
        return Mark(
            t=now,
            busy_s=self.busy_s,
            tokens=sums.accepted + sums.steps,
            steps=sums.steps,
            drafted=sums.drafted,
            accepted=sums.accepted,
            saved_s=sums.saved_ms / 1e3,
            wasted_s=sums.wasted_ms / 1e3,
            running=snapshot.running,
        )

    def now(self) -> Rates | None:
        """Return the rates of the last seconds; None before there were two looks."""
        return self.over(NOW_S)

    def over(self, seconds: float, since: float = 0.0) -> Rates | None:
        """Return the rates of so many seconds, or of those after a time; None where that is not two looks."""
        marks = list(self._marks)
        if len(marks) < 2:
            return None
        found = [mark for mark in marks if mark.t >= max(marks[-1].t - seconds, since)]
        return Rates.between(found[0], found[-1]) if len(found) > 1 else None

    def points(self) -> list[dict[str, Any]]:
        """Return throughput and use, a second each, the oldest first."""
        names = ("t", "tokens_per_s", "plain_tokens_per_s", "busy", "wasted", "running")
        return list(_named(self._rates(POINTS), names))

    def lengths(self) -> list[dict[str, Any]]:
        """Return how many tokens steps drafted and accepted, a second each, the oldest first."""
        return list(_named(self._rates(LENGTHS), ("t", "drafted_per_step", "accepted_per_step")))

    def _rates(self, most: int) -> list[Rates]:
        return [Rates.between(a, b) for a, b in pairwise(list(self._marks)[-most - 1 :])]


def _named(rates: Sequence[Rates], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for rate in rates:
        values = asdict(rate)
        yield {name: values[name] for name in names}
