"""What a step takes on this machine: measured, never assumed."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

PROFILED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PROFILE_SECONDS = 1.5
_REPEATS = 3

# Variances of the logarithm of a time, for the gains of the running estimates (a Kalman filter's, point by point).
_NOISE = 0.05**2
"""Of one measurement."""
_DRIFT = 0.015**2
"""Of what is known of all passes' common change."""
_PROFILED = 0.05**2
"""Of a point that was measured a few times, in a quiet hour."""
_BETWEEN = 0.1**2
"""Of a point that its neighbours speak for; a cliff between them is believed when it was met a few times."""
_AGEING = 0.002**2
"""What a point's grows with each pass that shows another point."""
_SURPRISE = 0.1**2
"""What a point's grows with an outlier: one is the machine's doing, several in a row are the truth."""
_OUTLIER = 3.0
"""Deviations from which on a measurement counts as one of so many."""


@dataclass(slots=True)
class _Point:
    seconds: float
    variance: float = _PROFILED
    seen: int = 0
    """Passes that had been seen when this point last was."""


class Costs:
    """Seconds of a target pass by its number of rows, and of what surrounds it.

    The curve is kept point by point: cliffs and stairs are not smoothed away. Between points it is a straight line,
    beyond the last one the line through the last two. `drift` follows what slows all passes alike: a longer context,
    a busier machine. A measurement moves whichever of the two was known less well.
    """

    def __init__(self) -> None:
        self._curve: dict[int, _Point] = {}
        self._rows: list[int] = []
        self._passes = 0
        self.drift = 1.0
        self.other_s = 0.0
        self.draft_s: dict[str, float] = {}
        """Of one pass of a drafter, as far as it is known without the size of the batch."""
        self._drafts: dict[tuple[str, int], float] = {}
        self._catch_up_s: dict[str, float] = {}

    @property
    def known(self) -> bool:
        return bool(self._curve)

    def forward(self, rows: int) -> float:
        """Return the seconds of a pass of so many rows, as things are now; 0 where nothing was measured."""
        return self._on_curve(rows) * self.drift

    def plain_seconds(self, sequences: int) -> float | None:
        """Return the seconds of a plain step of so many sequences, None where nothing was measured."""
        return self.forward(sequences) + self.other_s if self.known else None

    def draft(self, drafter: str, sequences: int) -> float:
        """Return the seconds of one more drafted token for each of so many sequences; 0 where nothing was measured."""
        return self._drafts.get((drafter, sequences), self.draft_s.get(drafter, 0.0))

    def catch_up(self, drafter: str, tokens: int) -> float:
        """Return the seconds that a drafter takes to read so many tokens which it has missed; 0 until it did once."""
        return tokens * self._catch_up_s.get(drafter, 0.0)

    def learn(self, rows: int, seconds: float) -> None:
        """Take in one measured pass."""
        self._passes += 1
        point = self._curve.get(rows)
        if point is None:
            between = bool(self._rows) and self._rows[0] < rows < self._rows[-1]
            if not between:
                self._add(rows, _Point(seconds / self.drift, seen=self._passes))
                return
            point = _Point(self._on_curve(rows), _BETWEEN, self._passes)
            self._add(rows, point)
        point.variance = min(point.variance + _AGEING * (self._passes - point.seen - 1), 1.0)
        point.seen = self._passes
        total = point.variance + _DRIFT + _NOISE
        news, bound = math.log(seconds / (point.seconds * self.drift)), _OUTLIER * math.sqrt(total)
        clamped = min(max(news, -bound), bound)
        self.drift *= math.exp(clamped * _DRIFT / total)
        point.seconds *= math.exp(clamped * point.variance / total)
        point.variance *= 1 - point.variance / total
        if clamped != news:
            point.variance += _SURPRISE

    def observe(self, rows: int, forward_s: float, other_s: float) -> None:
        """Learn from a step that read no prompt: prompt rows are costed, not counted as decoding."""
        self.learn(rows, forward_s)
        self.other_s = _follow(self.other_s, other_s)

    def observe_draft(self, drafter: str, seconds: float, depth: int, sequences: int = 1, missed: int = 0) -> None:
        """Learn what drafted tokens cost; a drafter's tokens come one pass after the other.

        Args:
            depth: of the deepest draft.
            missed: tokens that the drafter had to read first.
        """
        known = self.draft(drafter, sequences)
        if missed and known:
            each = max(0.0, seconds - depth * known) / missed
            self._catch_up_s[drafter] = _follow(self._catch_up_s.get(drafter, each), each, 0.5)
            return
        self._drafts[drafter, sequences] = each = _follow(known, seconds / max(depth, 1))
        if sequences == 1 or drafter not in self.draft_s:
            self.draft_s[drafter] = each

    def _add(self, rows: int, point: _Point) -> None:
        self._curve[rows] = point
        self._rows = sorted(self._curve)

    def _on_curve(self, rows: int) -> float:
        curve, points = self._curve, self._rows
        if rows in curve:
            return curve[rows].seconds
        if not points:
            return 0.0
        at = bisect_right(points, rows)
        if at == 0 or len(points) == 1:
            return curve[points[0]].seconds
        low, high = points[min(at, len(points) - 1) - 1], points[min(at, len(points) - 1)]
        slope = (curve[high].seconds - curve[low].seconds) / (high - low)
        if rows > high:
            return curve[high].seconds + max(0.0, slope) * (rows - high)
        return curve[low].seconds + slope * (rows - low)


def _follow(before: float, now: float, weight: float = 0.1) -> float:
    """Return a running mean that one outlier cannot carry far."""
    return before + weight * (min(now, _OUTLIER * before) - before) if before else now


def profile(run: Callable[[int], None], costs: Costs, most_rows: int, budget_s: float = PROFILE_SECONDS) -> None:
    """Measure the curve: `run(rows)` makes one pass. Stops when the time is up; the rest is learnt while serving."""
    start = time.perf_counter()
    run(1)
    for rows in (n for n in PROFILED_ROWS if n <= most_rows):
        times = []
        for _ in range(_REPEATS):
            before = time.perf_counter()
            run(rows)
            times.append(time.perf_counter() - before)
        costs.learn(rows, median(times))
        if time.perf_counter() - start > budget_s:
            return
