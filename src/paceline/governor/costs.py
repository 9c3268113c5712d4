"""What a step takes on this machine: measured, never assumed."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from statistics import median

PROFILED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PROFILE_SECONDS = 1.5
_REPEATS = 3
_KEEP = 0.9
"""Weight of the past in a running estimate."""
_STEP = 2.0
"""Largest change that one draft's time is believed."""
_OUTLIER = 3.0
"""A measurement this many times what was expected is the machine's doing, and counts as that many times."""


class Costs:
    """Seconds of a target pass by its number of rows, and of what surrounds it.

    The curve is kept point by point: cliffs and stairs are not smoothed away. Between points it is a straight line,
    beyond the last one the line through the last two. `drift` follows what slows all passes alike: a longer context,
    a busier machine.
    """

    def __init__(self) -> None:
        self._curve: dict[int, float] = {}
        self.drift = 1.0
        self.other_s = 0.0
        self.draft_s: dict[str, float] = {}

    @property
    def known(self) -> bool:
        return bool(self._curve)

    def forward(self, rows: int) -> float:
        """Return the seconds of a pass of so many rows, as things are now; 0 where nothing was measured."""
        return self._on_curve(rows) * self.drift

    def plain_seconds(self, sequences: int) -> float | None:
        """Return the seconds of a plain step of so many sequences, None where nothing was measured."""
        return self.forward(sequences) + self.other_s if self.known else None

    def learn(self, rows: int, seconds: float) -> None:
        """Take in one measured pass."""
        if rows not in self._curve:
            self._curve[rows] = seconds / self.drift
            return
        ratio = min(max(seconds / self.forward(rows), 1 / _OUTLIER), _OUTLIER)
        # A change of all passes shows in every measurement, one of a single point only in its own.
        self.drift *= ratio**0.08
        self._curve[rows] *= ratio**0.04

    def observe(self, rows: int, forward_s: float, other_s: float) -> None:
        """Learn from a step that read no prompt: prompt rows are costed, not counted as decoding."""
        self.learn(rows, forward_s)
        usual = min(other_s, _OUTLIER * self.other_s) if self.other_s else other_s
        self.other_s = _KEEP * self.other_s + (1 - _KEEP) * usual if self.other_s else usual

    def observe_draft(self, drafter: str, seconds: float, depth: int) -> None:
        """Learn what one more drafted token costs; a drafter's tokens come one pass after the other.

        A draft that had to catch up first took longer than its tokens cost: the account is charged for that, the
        estimate follows only slowly.
        """
        each = seconds / max(depth, 1)
        before = self.draft_s.get(drafter, each)
        self.draft_s[drafter] = before * min(max(each / before, 1 / _STEP), _STEP) ** 0.1 if before else each

    def _on_curve(self, rows: int) -> float:
        points = sorted(self._curve)
        if not points:
            return 0.0
        if rows in self._curve:
            return self._curve[rows]
        at = bisect_right(points, rows)
        if at == 0 or len(points) == 1:
            return self._curve[points[0]]
        low, high = (points[at - 2], points[at - 1]) if at == len(points) else (points[at - 1], points[at])
        slope = max(0.0, (self._curve[high] - self._curve[low]) / (high - low))
        return self._curve[low] + slope * (rows - low)


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
