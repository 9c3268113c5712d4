"""How long requests took of late: the time to the first token, and from each token to the next."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.types import Completion
from paceline.server.answer import Ticket

KEPT = 4096
"""Requests, the newest."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request that ended well."""

    began: float
    """In seconds of the clock."""
    ended: float
    ttft_ms: float
    tpot_ms: float | None
    """From one token to the next, on average; None where there was one token."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    requests: int
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None


class Latencies:
    """Written by the engine thread, read by others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, ticket: Ticket, completion: Completion) -> None:
        """Take in a request; those that failed, were cancelled or ran in the background say nothing of latency."""
        tokens = len(completion.token_ids)
        if ticket.background or not tokens or completion.finish_reason not in ("stop", "length"):
            return
        now, times = self._clock(), completion.timings
        took = (times.time_to_first_token_ms + times.decode_ms) / 1e3
        tpot = times.decode_ms / (tokens - 1) if tokens > 1 else None
        self._samples.append(Sample(now - took, now, times.time_to_first_token_ms, tpot))

    def within(self, seconds: float, begun_after: float = -math.inf) -> Quantiles:
        """Return the quantiles of requests that ended in the last seconds and began after a point in time."""
        since = self._clock() - seconds
        found = [s for s in self._samples.copy() if s.ended >= since and s.began >= begun_after]
        first = sorted(s.ttft_ms for s in found)
        each = sorted(s.tpot_ms for s in found if s.tpot_ms is not None)
        return Quantiles(
            len(found), quantile(first, 0.5), quantile(first, 0.95), quantile(each, 0.5), quantile(each, 0.95)
        )


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the lowest value that this share of all are not above; None where there is none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
