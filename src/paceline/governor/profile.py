"""The measurement at start: what passes take here, before the first request.

All models are measured in turns and every point at several moments, so that a busy one makes neither one model nor one
number of rows look slow.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Protocol

PROFILE_SECONDS = 2.9
PROFILED_ROWS = (1, 8, 2, 4, 16, 3, 6, 12, 24, 32, 48, 64)
"""The most telling first: on a busy machine there is time for few, and of 1 and 2 alone a runner may make one pass."""
SPOT_ROWS = (1, 8)
BOUND = 1.25
"""Times by which a pass may differ from what was saved of it."""
LEAST_CHANGE = 0.02
"""Share of a pass below which a change of its number of rows is for free."""
_SAMPLES = 3
"""Of a point, at most."""
_SPOTS = 2
"""Timed passes of a point that is only looked at."""

Point = tuple[int, int]
"""(rows, context): rows of a pass, and tokens that are cached before them."""
Clock = Callable[[], float]


class Book(Protocol):
    """Where a model's times are entered and looked up; contexts are what a row attends to, on average."""

    def learn(self, rows: int, seconds: float, context: float) -> None: ...

    def seconds(self, rows: int, context: float = 0.0) -> float: ...

    def scale(self, factor: float) -> None:
        """Take all times to so many times what they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model whose passes are measured."""

    run: Callable[[int, int], None]
    """Makes one pass at a point."""
    book: Book
    first: tuple[Point, ...]
    """Measured twice before all others; of a number of rows the shortest context comes first."""
    then: tuple[Point, ...] = ()
    at_least: int = 1
    """Points that are measured whatever the time."""
    least_rows: int = 1
    """Rows that a pass has at least; those that only fill it up have nothing to look back at."""

    def looks(self, point: Point) -> float:
        """Return the tokens that a row attends to, on average."""
        rows, context = point
        return (context + 1) * min(rows / self.least_rows, 1.0)


@dataclass(slots=True, eq=False)
class _Record:
    """What was measured of one subject."""

    samples: dict[Point, list[float]] = field(default_factory=lambda: defaultdict(list))
    changes: list[float] = field(default_factory=list)
    """What the first pass of a number of rows took longer than the next, where such passes had been prepared."""
    prepared: set[int] = field(default_factory=set)
    rows: int = 0
    """Of the pass before."""


def profile(subjects: Sequence[Subject], budget_s: float = PROFILE_SECONDS, clock: Clock | None = None) -> list[float]:
    """Measure all models; stops before the time is up, the rest is learnt while serving.

    Args:
        subjects: their times are entered in this order.
        budget_s: seconds for all of them together; see `Subject.at_least`.

    Returns:
        For each subject the seconds that a pass takes longer when its number of rows is not that of the pass before; 0
        where that is next to nothing.
    """
    clock = clock or time.perf_counter
    records, start, longest = [_Record() for _ in subjects], clock(), 0.0
    for subject, record, point in _in_turns(subjects, records):
        if clock() - start + longest > budget_s:
            if all(len(r.samples) >= s.at_least for s, r in zip(subjects, records, strict=True)):
                break
            if len(record.samples) >= subject.at_least:
                continue
        _measure(subject, record, point, clock)
        longest = max(longest, 2 * record.samples[point][-1])
    for subject, record in zip(subjects, records, strict=True):
        _learn(subject, record)
    return [_change(subject.book, record) for subject, record in zip(subjects, records, strict=True)]


def still_true(subjects: Sequence[Subject], clock: Clock | None = None) -> float:
    """Look at a few passes, and take the books to what these show if that is near.

    Returns:
        The greatest factor between what a pass took and what its book says, whichever is more; above `BOUND`, or not a
        number, the books were left as they are.
    """
    clock = clock or time.perf_counter
    taken: list[dict[Point, float]] = [{} for _ in subjects]
    for rows in SPOT_ROWS:
        for subject, times in zip(subjects, taken, strict=True):
            point = next((point for point in subject.first if point[0] == rows), None)
            if point is not None:
                times[point] = _spot(subject, point, clock)
    ratios = [ratio for subject, times in zip(subjects, taken, strict=True) for ratio in _ratios(subject, times)]
    worst = max(map(_distance, ratios), default=math.nan)
    if worst <= BOUND:
        for subject, times in zip(subjects, taken, strict=True):  # the books of later ones may go by those before
            subject.book.scale(math.prod(_ratios(subject, times)) ** (1 / max(len(times), 1)))
    return worst


def seconds_of(run: Callable[[], None], clock: Clock | None = None) -> float:
    """Return what one thing takes that is always the same, once it is prepared."""
    clock = clock or time.perf_counter
    run()
    return median_low(_timed(run, clock) for _ in range(_SAMPLES))


def _in_turns(subjects: Sequence[Subject], records: Sequence[_Record]) -> Iterator[tuple[Subject, _Record, Point]]:
    """Yield what to measure next: the telling points twice, the others once, then all again."""
    first, then = [subject.first for subject in subjects], [subject.then for subject in subjects]
    for points in (first, first, then, first, then, then):
        for place in range(max(map(len, points), default=0)):
            for subject, record, own in zip(subjects, records, points, strict=True):
                if place < len(own) and len(record.samples.get(own[place], ())) < _SAMPLES:
                    yield subject, record, own[place]


def _measure(subject: Subject, record: _Record, point: Point, clock: Clock) -> None:
    """Time the second of two passes; what the first takes longer is what a change costs."""
    rows = point[0]
    changing = _timed(lambda: subject.run(*point), clock)
    steady = _timed(lambda: subject.run(*point), clock)
    if rows in record.prepared and rows != record.rows:
        record.changes.append(changing - steady)
    record.prepared.add(rows)
    record.rows = rows
    record.samples[point].append(steady)


def _learn(subject: Subject, record: _Record) -> None:
    """Enter one time for each point, in ascending order: then none is held to what its neighbours say."""
    times = {point: median_low(samples) for point, samples in record.samples.items()}
    for point, seconds in sorted({**_far(times), **times}.items()):
        subject.book.learn(point[0], seconds, subject.looks(point))


def _far(times: Mapping[Point, float]) -> dict[Point, float]:
    """Return what all numbers of rows take in the longest context, from those that were measured in the shortest too.

    What it adds to the others is theirs, in between, and grows with the rows beyond them.
    """
    near, far = (pick((context for _, context in times), default=0) for pick in (min, max))
    rows = sorted(n for n, context in times if context == near)
    more = {n: times[n, far] - times[n, near] for n in rows if (n, far) in times}
    found: dict[Point, float] = {}
    for n in rows if near < far else []:
        low, high = max((k for k in more if k <= n), default=0), min((k for k in more if k >= n), default=0)
        if low and high > low:
            added = more[low] + (more[high] - more[low]) * (n - low) / (high - low)
        elif nearest := low or high:
            added = more[nearest] * n / nearest
        else:
            continue
        found[n, far] = times[n, near] + added
    return found


def _change(book: Book, record: _Record) -> float:
    change = median(record.changes) if record.changes else 0.0
    return change if change > LEAST_CHANGE * book.seconds(1) else 0.0


def _spot(subject: Subject, point: Point, clock: Clock) -> float:
    subject.run(*point)
    return min(_timed(lambda: subject.run(*point), clock) for _ in range(_SPOTS))


def _ratios(subject: Subject, times: Mapping[Point, float]) -> list[float]:
    """Return what passes take over what the book says; 0 where that says nothing."""
    expected = {point: subject.book.seconds(point[0], subject.looks(point)) for point in times}
    return [took / expected[point] if expected[point] > 0 else 0.0 for point, took in times.items()]


def _distance(ratio: float) -> float:
    return max(ratio, 1 / ratio) if ratio > 0 else math.inf


def _timed(run: Callable[[], None], clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start
