"""A measured curve: seconds of a pass by its number of rows and by how much each row has to look back at."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Contexts = NDArray[np.float64]

# Variances of the logarithm of a time, for the gains of the running estimates (a Kalman filter's, point by point).
_NOISE = 0.05**2
"""Of one measurement."""
_DRIFT = 0.015**2
"""Of what is known of all passes' common change."""
_PROFILED = 0.05**2
"""Of a point that was measured a few times, in a quiet hour."""
_BETWEEN = 0.1**2
"""Of a point that its neighbours speak for; a cliff between them is believed when it was met a few times."""
_SLOPE = 0.15**2
"""Of what a row takes for each token that it attends to, measured as the difference of two times."""
_AGEING = 0.002**2
"""What a point's grows with each pass that shows another point."""
_SURPRISE = 0.1**2
"""What a point's grows with an outlier: one is the machine's doing, several in a row are the truth."""
_OUTLIER = 3.0
"""Deviations from which on a measurement counts as one of so many."""
TELLING_CONTEXT = 256
"""Difference of two contexts from which on two times tell what context costs."""
LONGEST = 1e6
"""Most points, rows, seconds or tokens that a saved curve may name."""


@dataclass(slots=True)
class _Point:
    base: float
    """Seconds with nothing to look back at."""
    slope: float
    """Seconds for each token that a row attends to, on average over the rows."""
    variance: float = _PROFILED
    slope_variance: float = math.inf
    """Infinite while only one context was measured."""
    context: float = 0.0
    """At which it was measured first."""
    seen: int = 0
    """Passes that had been seen when this point last was."""

    def at(self, context: float) -> float:
        return self.base + self.slope * context


class Curve:
    """Seconds by rows and context, kept point by point: cliffs and stairs are not smoothed away.

    Between points it is a straight line, beyond the last one the line through the last two. `drift` follows what slows
    all passes alike, a busier machine say. A measurement moves whichever was known less well: its point, what context
    costs there, or the drift.

    Args:
        least_rows: rows that a pass has at least; fewer take as long.
    """

    def __init__(self, least_rows: int = 1) -> None:
        self._least = least_rows
        self._points: dict[int, _Point] = {}
        self._rows: list[int] = []
        self._passes = 0
        self.drift = 1.0
        self.surprised = False
        """Whether the last measurement lay so far from what was known that only a part of it was believed."""

    @property
    def known(self) -> bool:
        return bool(self._points)

    @property
    def measured_rows(self) -> list[int]:
        return list(self._rows)

    def seconds(self, rows: int, context: float = 0.0) -> float:
        """Return the seconds of a pass of so many rows, as things are now; 0 where nothing was measured.

        Args:
            context: tokens that a row attends to, on average.
        """
        point = self._points.get(max(rows, self._least))
        if point is None:
            if not self._rows:
                return 0.0
            base, slope = self._between(max(rows, self._least))
            return (base + slope * context) * self.drift
        return point.at(context) * self.drift

    def many(self, rows: Rows, context: Contexts) -> Contexts:
        """Return `seconds` of many numbers of rows at once; 0 where nothing was measured.

        Args:
            rows: ascending.
            context: for each of them.
        """
        if not self._rows:
            return np.zeros(len(rows))
        rows, last = np.maximum(rows, self._least), self._rows[-1]
        values = [(point.base, point.slope) for point in map(self._points.__getitem__, self._rows)]
        known, (bases, slopes) = self._rows, zip(*values, strict=True)
        if rows[-1] > last:
            base, slope = self._between(int(rows[-1]))
            known, bases, slopes = [*known, int(rows[-1])], (*bases, base), (*slopes, slope)
        seconds: Contexts = np.interp(rows, known, bases) + np.interp(rows, known, slopes) * context
        return seconds * self.drift

    def learn(self, rows: int, seconds: float, context: float = 0.0) -> None:
        """Take in one measured pass."""
        if seconds <= 0:
            return
        rows = max(rows, self._least)
        self._passes += 1
        self.surprised = False
        point = self._points.get(rows)
        if point is None:
            within = bool(self._rows) and self._rows[0] < rows < self._rows[-1]
            point = self._new(rows, seconds, context, within)
            if not within:
                return
        elif math.isinf(point.slope_variance) and context - point.context >= TELLING_CONTEXT:
            self._tell_slope(point, seconds, context)
            return
        self._follow(point, seconds, context)

    def state(self) -> dict[str, Any]:
        """Return what was measured, for JSON."""
        points = {
            str(rows): [p.base, p.slope, None if math.isinf(p.slope_variance) else p.slope_variance, p.context]
            for rows, p in self._points.items()
        }
        return {"least_rows": self._least, "drift": self.drift, "points": points}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Return a curve as `state` left it; how well its points are known counts as in a fresh profile.

        Raises:
            ValueError: it is no such state.
        """
        curve = cls(int(number(state, "least_rows", 1)))
        curve.drift = number(state, "drift", 1e-3)
        points = state.get("points")
        if not isinstance(points, dict) or len(points) > 4096:
            raise ValueError("the points of a curve are missing")
        for rows, values in points.items():
            if not str(rows).isdecimal() or not isinstance(values, list) or len(values) != 4:
                raise ValueError(f"{rows!r} is no point of a curve")
            named = dict(zip(("base", "slope", "variance", "context"), values, strict=True))
            variance = math.inf if named["variance"] is None else number(named, "variance", 0)
            point = _Point(number(named, "base", 0), number(named, "slope", 0), _PROFILED, variance)
            point.context = number(named, "context", 0)
            curve._add(int(number({"rows": int(rows)}, "rows", 1)), point)
        return curve

    def _new(self, rows: int, seconds: float, context: float, within: bool) -> _Point:
        base, slope = self._between(rows) if self._rows else (0.0, 0.0)
        if not within:
            slope = min(slope, seconds / self.drift / max(context, 1.0))
            base = seconds / self.drift - slope * context
        variance = _BETWEEN if within else _PROFILED
        point = _Point(base, slope, variance, _SLOPE if within and slope else math.inf, context, self._passes)
        self._add(rows, point)
        return point

    def _tell_slope(self, point: _Point, seconds: float, context: float) -> None:
        """Settle what context costs, from this time and what was known at a shorter one."""
        before = point.at(point.context)
        point.slope = max(0.0, seconds / self.drift - before) / (context - point.context)
        point.base = max(before - point.slope * point.context, 0.1 * before)
        point.slope_variance, point.seen = _SLOPE, self._passes

    def _follow(self, point: _Point, seconds: float, context: float) -> None:
        unseen = self._passes - point.seen - 1
        point.variance = min(point.variance + _AGEING * unseen, 1.0)
        point.slope_variance = min(point.slope_variance + _AGEING * unseen, 1.0) if point.slope else math.inf
        point.seen = self._passes
        of_base = point.base / point.at(context)
        of_slope = 1 - of_base
        slope_variance = 0.0 if math.isinf(point.slope_variance) else point.slope_variance
        total = of_base**2 * point.variance + of_slope**2 * slope_variance + _DRIFT + _NOISE
        news, bound = math.log(seconds / (point.at(context) * self.drift)), _OUTLIER * math.sqrt(total)
        clamped = min(max(news, -bound), bound)
        base_gain, slope_gain = of_base * point.variance / total, of_slope * slope_variance / total
        self.drift *= math.exp(clamped * _DRIFT / total)
        point.base *= math.exp(clamped * base_gain)
        point.slope *= math.exp(clamped * slope_gain)
        point.variance *= 1 - of_base * base_gain
        point.slope_variance *= 1 - of_slope * slope_gain
        self.surprised = clamped != news
        if self.surprised:
            point.variance += _SURPRISE

    def _add(self, rows: int, point: _Point) -> None:
        self._points[rows] = point
        self._rows = sorted(self._points)

    def _between(self, rows: int) -> tuple[float, float]:
        """Return base and slope where nothing was measured, from the points around."""
        points = self._rows
        at = bisect_right(points, rows)
        if at == 0 or len(points) == 1:
            first = self._points[points[0]]
            return first.base, first.slope
        low, high = points[min(at, len(points) - 1) - 1], points[min(at, len(points) - 1)]
        below, above = self._points[low], self._points[high]
        share = (rows - low) / (high - low)
        if rows > high:
            rise, steeper = max(0.0, above.base - below.base), max(0.0, above.slope - below.slope)
            return above.base + (share - 1) * rise, above.slope + (share - 1) * steeper
        return below.base + share * (above.base - below.base), below.slope + share * (above.slope - below.slope)


def number(state: Mapping[str, Any], name: str, least: float) -> float:
    """Return a finite number of a saved state.

    Raises:
        ValueError: it is missing, none, or out of bounds.
    """
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= LONGEST:
        raise ValueError(f"{name} is {value!r}; allowed: {least:g} to {LONGEST:g}")
    return float(value)
