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
TELLING = 64
"""Missed tokens from which on the time of a draft says what reading costs."""
_REPEATS, _CHANGES = 3, 5
LEAST_CHANGE = 0.02
"""Share of a pass below which a change of its number of rows is for free."""
STEADY_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of rows that drafts are filled up to, where a new number costs time."""

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

    Args:
        least_rows: rows that a pass has at least; fewer take as long.
    """

    def __init__(self, least_rows: int = 1) -> None:
        self._least = least_rows
        self._curve: dict[int, _Point] = {}
        self._rows: list[int] = []
        self._passes = 0
        self.switch_s = 0.0
        """What a pass takes longer when its number of rows is not that of the pass before."""
        self._ran: int | None = None
        """Rows of the pass before; None where that read a prompt."""
        self._idle = 0.0
        """Seconds lost to rows that filled passes up, since the last pass that needed them."""
        self.drift = 1.0
        self.other_s = 0.0
        self.draft_s: dict[str, float] = {}
        """Of one pass of a drafter, as far as it is known without the size of the batch."""
        self._drafts: dict[tuple[str, int], float] = {}
        self.catch_up_s: dict[str, float] = {}
        """Of one token that a drafter has missed and has to read."""

    @property
    def known(self) -> bool:
        return bool(self._curve)

    def forward(self, rows: int) -> float:
        """Return the seconds of a pass of so many rows, as things are now; 0 where nothing was measured."""
        return self._on_curve(max(rows, self._least)) * self.drift

    def plain_seconds(self, sequences: int) -> float | None:
        """Return the seconds of a plain step of so many sequences, None where nothing was measured."""
        return self.forward(sequences) + self.other_s if self.known else None

    def draft(self, drafter: str, sequences: int) -> float:
        """Return the seconds of one more drafted token for each of so many sequences; 0 where nothing was measured."""
        return self._drafts.get((drafter, sequences), self.draft_s.get(drafter, 0.0))

    def catch_up(self, drafter: str, tokens: int) -> float:
        """Return the seconds that a drafter takes to read so many tokens which it has missed; 0 until it did once."""
        return tokens * self.catch_up_s.get(drafter, 0.0)

    def learn(self, rows: int, seconds: float) -> None:
        """Take in one measured pass."""
        rows = max(rows, self._least)
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

    def steady(self, rows: int, plain: bool = False) -> int:
        """Return how many rows the next pass had best run, if it needs so many.

        More than needed while that loses less than a change would (as one rents skis until that has cost a pair:
        never more than twice what hindsight would have paid).

        Args:
            plain: whether nothing is drafted; then a change is to the very number, for it may last.
        """
        rows = max(rows, self._least)
        if not self.switch_s:
            return rows
        if self._ran is not None and rows <= self._ran:
            lost = self.forward(self._ran) - self.forward(rows)
            if self._idle + lost < self.switch_s:
                return self._ran
        return rows if plain else next((n for n in STEADY_ROWS if n >= rows), rows)

    def next_pass(self, rows: int, plain: bool = False) -> float:
        """Return the seconds of the next pass if it needs so many rows, a change of their number included."""
        ran = self.steady(rows, plain)
        return self.forward(ran) + (self.switch_s if ran != self._ran else 0.0)

    def observe(self, rows: int, forward_s: float, other_s: float, ran: int = 0) -> bool:
        """Learn from a step that read no prompt: prompt rows are costed, not counted as decoding.

        Args:
            rows: that were needed.
            ran: that did run; 0 is as many.

        Returns:
            Whether the pass was an ordinary one of so many rows: not filled up, and no change that costs time.
        """
        rows = max(rows, self._least)
        ran = max(ran, rows)
        changed = bool(self.switch_s) and ran != self._ran
        lost = self.forward(ran) - self.forward(rows)
        if not changed:
            self.learn(ran, forward_s)
            self._idle = self._idle + max(0.0, lost) if ran > rows else 0.0
        else:
            self.switch_s = _follow(self.switch_s, max(forward_s - self.forward(ran), 0.1 * self.switch_s))
            self._idle = 0.0
        self._ran = ran
        self.other_s = _follow(self.other_s, other_s)
        return ran == rows and not changed

    def disturb(self) -> None:
        """Note that a pass of another kind has run, with a prompt in it."""
        self._ran, self._idle = None, 0.0

    def observe_draft(self, drafter: str, seconds: float, depth: int, sequences: int = 1, missed: int = 0) -> None:
        """Learn what drafted tokens cost; a drafter's tokens come one pass after the other.

        Args:
            depth: of the deepest draft.
            missed: tokens that the drafter had to read first.
        """
        known = self.draft(drafter, sequences)
        if missed and known:
            before = self.catch_up_s.get(drafter)
            if before is None or missed >= TELLING:
                each = max(0.0, seconds - depth * known) / missed
                self.catch_up_s[drafter] = each if before is None else _follow(before, each, 0.5)
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
    sizes = [n for n in PROFILED_ROWS if n <= most_rows]
    for i, rows in enumerate(sizes):
        run(rows)  # the first of its size prepares more than a change does
        costs.learn(rows, median(_timed(run, rows) for _ in range(_REPEATS)))
        if time.perf_counter() - start > budget_s:
            sizes = sizes[: i + 1]
            break
    changes = [_timed(run, rows) - costs.forward(rows) for rows in sizes[:_CHANGES]]
    change = median(changes) if len(sizes) > 1 else 0.0
    costs.switch_s = change if change > LEAST_CHANGE * costs.forward(1) else 0.0


def _timed(run: Callable[[int], None], rows: int) -> float:
    start = time.perf_counter()
    run(rows)
    return time.perf_counter() - start
