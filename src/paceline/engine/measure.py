"""What passes take here, before the first request: measured, or taken from the last time and looked at."""

from __future__ import annotations

import logging
import time

import numpy as np
from numpy.typing import NDArray

from paceline.governor.costs import Costs
from paceline.governor.curve import TELLING_CONTEXT
from paceline.governor.profile import (
    BOUND,
    PROFILE_SECONDS,
    PROFILED_ROWS,
    Book,
    Clock,
    Point,
    Subject,
    profile,
    still_true,
)
from paceline.models import cache
from paceline.models.cache import Progress
from paceline.runners.base import Output, Runner, Span

log = logging.getLogger(__name__)

MODEL = "model"
"""Whose passes the draft model's are, in the costs."""
SHORT, LONG = 64, 2048
"""Tokens before the rows of a pass: keys and values of that many do not fit the processor's caches, which is what
slows long contexts down."""
TELLING = 5
"""The first so many of `PROFILED_ROWS` are measured twice before the others, two of them in the long context too."""
MOST_SEQUENCES = 64
"""Of which a drafter's passes are measured."""


class TargetBook:
    """A target's times, in the costs."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def learn(self, rows: int, seconds: float, context: float) -> None:
        self._costs.learn(rows, seconds, context)

    def seconds(self, rows: int, context: float = 0.0) -> float:
        return self._costs.forward(rows, context)

    def scale(self, factor: float) -> None:
        self._costs.target.drift *= factor


class DraftBook:
    """A draft model's times, in the costs: they go by the target's, which have to be known."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def learn(self, rows: int, seconds: float, context: float) -> None:
        self._costs.learn_draft(MODEL, rows, seconds, context)

    def seconds(self, rows: int, context: float = 0.0) -> float:
        return self._costs.draft(MODEL, rows, context)

    def scale(self, factor: float) -> None:
        self._costs.drafts[MODEL].drift *= factor


def measure(
    target: Runner,
    draft: Runner | None,
    kv_tokens: int,
    sequences: int = 1,
    saved: Costs | None = None,
    progress: Progress = cache.silent,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Return the costs of a target, and of a draft model beside it, in passes of the kind that they will be asked for.

    Args:
        kv_tokens: that the pool of each holds; it is written over.
        sequences: most that run at a time.
        saved: of an earlier start; they are returned, brought up to date, if a few passes agree with them.
    """
    if not _has_room(target, kv_tokens):
        return Costs(target.info.least_rows)
    progress("measuring the cost curve", 0, 1)
    draft = draft if draft is not None and _has_room(draft, kv_tokens) else None
    for runner in filter(None, (target, draft)):
        _wake(runner)
    start = clock()
    costs = saved if saved is not None and _agrees(saved, target, draft, kv_tokens, sequences, clock) else None
    if costs is None:
        costs = _anew(target, draft, kv_tokens, sequences, start, clock)
    if not target.info.fills_up:
        costs.switch_s = 0.0
    progress("measuring the cost curve", 1, 1)
    return costs


def target_passes(runner: Runner, book: Book, kv_tokens: int, sequences: int) -> Subject:
    """Return passes of one sequence with a draft of each length: what many sequences take is no different."""
    room = min(runner.info.context, kv_tokens)
    blocks, long = _blocks(runner, room), _long(room)

    def run(rows: int, context: int) -> None:
        _touch(runner.forward([Span.causal([0] * rows, context, blocks, range(rows), stepwise=True)]))

    short = [(rows, SHORT) for rows in _rows(2 * sequences) if rows <= room - SHORT]
    far = [(rows, long) for rows, _ in short[:TELLING]] if long else []
    first, then = (*short[:TELLING], *far[:2]), (*short[TELLING:9], *far[2:], *short[9:])
    return Subject(run, book, first, then, at_least=2, least_rows=runner.info.least_rows)


def draft_passes(runner: Runner, book: Book, kv_tokens: int, sequences: int) -> Subject:
    """Return passes of a draft model, one row for each of several sequences."""
    room = min(runner.info.context, kv_tokens)
    blocks, long = _blocks(runner, room), _long(room)

    def run(count: int, context: int) -> None:
        _touch(runner.forward([Span.causal([0], context, blocks, [0])] * count))

    first: list[Point] = [(1, SHORT), *([(1, long)] if long else [])]
    most = min(sequences, MOST_SEQUENCES)
    then = sorted({*(1 << power for power in range(1, most.bit_length())), most} - {1})
    return Subject(run, book, tuple(first), tuple((count, SHORT) for count in then))


def _agrees(saved: Costs, target: Runner, draft: Runner | None, kv_tokens: int, sequences: int, clock: Clock) -> bool:
    """Look at a few passes; where they agree, the saved curves have become what these show."""
    worst = still_true(_subjects(saved, target, draft, kv_tokens, sequences), clock)
    if worst <= BOUND:
        return True
    log.info("saved costs are not used: a pass is off by a factor of %.2f; all are measured anew", worst)
    return False


def _anew(target: Runner, draft: Runner | None, kv_tokens: int, sequences: int, start: float, clock: Clock) -> Costs:
    costs = Costs(target.info.least_rows)
    _fill(target, kv_tokens)
    if draft is not None:
        _fill(draft, kv_tokens)
        costs.catch_up_s[MODEL] = _reading(draft, clock)
    subjects = _subjects(costs, target, draft, kv_tokens, sequences)
    costs.switch_s = profile(subjects, PROFILE_SECONDS - (clock() - start), clock)[0]
    if MODEL in costs.drafts:
        costs.profiled_draft[MODEL] = costs.drafts[MODEL].seconds(1)
    return costs


def _subjects(costs: Costs, target: Runner, draft: Runner | None, kv_tokens: int, sequences: int) -> list[Subject]:
    found = [target_passes(target, TargetBook(costs), kv_tokens, sequences)]
    if draft is not None:
        found.append(draft_passes(draft, DraftBook(costs), kv_tokens, sequences))
    return found


def _has_room(runner: Runner, kv_tokens: int) -> bool:
    """Whether passes can be tried: a text of twice the short context fits, and rows can be taken back."""
    return runner.info.can_rewind and min(runner.info.context, kv_tokens) >= 2 * SHORT


def _rows(most: int) -> list[int]:
    """Return the numbers of rows to measure, those of large batches last."""
    more, rows = [], 2 * max(PROFILED_ROWS)
    while rows <= most:
        more.append(rows)
        rows *= 2
    return [*PROFILED_ROWS, *more]


def _long(room: int) -> int:
    """Return the long context, 0 where there is no room for one that tells anything."""
    long = min(LONG, room - SHORT)
    return long if long - SHORT >= 2 * TELLING_CONTEXT else 0


def _blocks(runner: Runner, room: int) -> NDArray[np.int32]:
    return np.arange(-(-room // runner.info.block_size), dtype=np.int32)


def _wake(runner: Runner) -> None:
    """Make the first passes, in which a runner may lay out its weights: seconds that are loading, not measuring.

    What the first caches is enough to look back at for rows from `SHORT` on.
    """
    blocks = _blocks(runner, 2 * SHORT)
    runner.forward([Span.causal([0] * SHORT, 0, blocks, [])])
    _touch(runner.forward([Span.causal([0], SHORT, blocks, [0], stepwise=True)]))


def _fill(runner: Runner, kv_tokens: int) -> None:
    """Write all that passes will look back at: what is there does not matter, that it is somewhere does."""
    slots = np.arange(_long(min(runner.info.context, kv_tokens)), dtype=np.int64)
    runner.move(slots % SHORT, slots)


def _reading(runner: Runner, clock: Clock) -> float:
    """Measure the seconds that a runner takes to read a token of a prompt."""
    span, start = Span.causal([0] * SHORT, 0, _blocks(runner, SHORT), []), clock()
    runner.forward([span])  # not the first of its size
    return (clock() - start) / SHORT


def _touch(output: Output) -> None:
    """Read the answer, as a step would."""
    output.logits.argmax(-1)
