"""Prompts decoded in several modes that take turns, and every step of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.bench.modes import Mode, Modes
from paceline.core.types import Completion, SamplingParams
from paceline.governor.base import StepReport

Say = Callable[[str, int, int], None]
"""(what is done, how much of it, of how much): progress."""
clock = time.perf_counter
LEAST_GROUPS = 2
"""Of a category, so that there is something to draw an interval from."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt in tokens, and how its answer is sampled."""

    category: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    """When it ended, in seconds since the turn began."""
    seconds: float
    """Since the end of the one before, so that nothing is left out; without the time in which nothing ran."""
    sequences: int
    """That decoded."""
    prefill_rows: int
    rows: int
    """Of the target's pass, those of prompts apart."""
    tokens: int
    """What it added to the texts."""

    @property
    def decodes(self) -> bool:
        """Whether it did nothing but decode."""
        return self.sequences > 0 and not self.prefill_rows


@dataclass(frozen=True, slots=True)
class Turn:
    """What one mode made of a group of prompts that ran together."""

    mode: str
    batch: int
    """Most that ran at a time."""
    numbers: tuple[int, ...]
    """Of the prompts; one may be there more than once."""
    done: tuple[Completion, ...]
    waited_s: tuple[float, ...]
    """How long each was kept in line before the engine had it."""
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Time in steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def tokens(self) -> int:
        return sum(len(done.token_ids) for done in self.done)

    @property
    def decode_s(self) -> float:
        """Time in steps that did nothing but decode: those that read prompts have no plain counterpart."""
        return sum(step.seconds for step in self.steps if step.decodes)

    @property
    def decode_tokens(self) -> int:
        return sum(step.tokens for step in self.steps if step.decodes)

    @property
    def a_token_s(self) -> float:
        """Seconds of a token, all sequences together."""
        return self.decode_s / max(1, self.decode_tokens)


def take(
    modes: Modes,
    mode: Mode,
    asks: Sequence[Ask],
    batch: int,
    numbers: Sequence[int] | None = None,
    starts: Sequence[float] | None = None,
    watch: Callable[[StepReport], None] | None = None,
) -> Turn:
    """Let a mode answer prompts, at most `batch` at a time; the engine must be idle.

    Args:
        numbers: what the turn calls the prompts; None counts them.
        starts: when each is asked, in seconds since the turn began, rising; None asks all at once.
        watch: is shown every step.
    """
    with modes.turn(mode):
        run = _Run(modes, mode, asks, batch, starts, watch)
        try:
            run.to_its_end()
        except BaseException:
            run.abort()
            raise
    order = sorted(run.done)
    return Turn(
        mode.name,
        batch,
        tuple(range(len(asks)) if numbers is None else numbers),
        tuple(run.done[i] for i in order),
        tuple(run.waited[i] for i in order),
        tuple(run.steps),
    )


def interleave(
    modes: Modes, asks: Sequence[Ask], used: Sequence[Mode], batch: int, repeat: int, say: Say
) -> Iterator[Turn]:
    """Let the modes answer every group of prompts in turn, and again in the other order: A B C C B A.

    So a machine that slows down slows all alike. Who begins changes from group to group.
    """
    groups = grouped([ask.category for ask in asks], batch)
    whole, done = len(groups) * repeat * 2 * len(used), 0
    for again in range(repeat):
        for place, numbers in enumerate(groups):
            first = (place + again) % len(used)
            order = [*used[first:], *used[:first]]
            for mode in (*order, *reversed(order)):
                say(f"{asks[numbers[0]].category}, {batch} at a time: {mode.name}", done, whole)
                yield take(modes, mode, [asks[i] for i in numbers], batch, numbers)
                done += 1


def grouped(categories: Sequence[str], batch: int) -> list[tuple[int, ...]]:
    """Return groups of `batch` prompts of the same category; where there are too few, they come again."""
    by_category: dict[str, list[int]] = {}
    for number, category in enumerate(categories):
        by_category.setdefault(category, []).append(number)
    groups = []
    for numbers in by_category.values():
        wanted = len(numbers) if batch == 1 else max(LEAST_GROUPS, -(-len(numbers) // batch))
        for place in range(wanted):
            groups.append(tuple(numbers[(place * batch + i) % len(numbers)] for i in range(batch)))
    return groups


class _Run:
    """Steps the engine until a group of prompts is answered."""

    def __init__(
        self,
        modes: Modes,
        mode: Mode,
        asks: Sequence[Ask],
        batch: int,
        starts: Sequence[float] | None,
        watch: Callable[[StepReport], None] | None,
    ) -> None:
        self._engine = modes.llm.engine
        self._watch = watch
        self._starts = [0.0] * len(asks) if starts is None else starts
        self._requests = [modes.request(mode, ask.prompt, ask.sampling, ask.prediction) for ask in asks]
        self._line, self._batch = deque(range(len(asks))), batch
        self._running: dict[int, int] = {}
        """Request of the engine -> number of the prompt."""
        self.done: dict[int, Completion] = {}
        self.waited: dict[int, float] = {}
        self.steps: list[Step] = []
        self._begin = self._last = clock()

    def to_its_end(self) -> None:
        before, self._engine.watch = self._engine.watch, self._stepped
        try:
            while self._line or self._running:
                self._let_in()
                self._step()
        finally:
            self._engine.watch = before

    def abort(self) -> None:
        for request in self._running:
            self._engine.abort(request)
        while not self._engine.idle:
            self._engine.step()
        self._engine.forget(list(self._running))

    def _let_in(self) -> None:
        if not self._running and (early := self._starts[self._line[0]] - self._now()) > 0:
            time.sleep(early)
            self._last = clock()
        while self._line and len(self._running) < self._batch and self._starts[self._line[0]] <= self._now():
            number = self._line.popleft()
            self._running[self._engine.add(self._requests[number])] = number
            self.waited[number] = max(0.0, self._now() - self._starts[number])

    def _step(self) -> None:
        for event in self._engine.step():
            if event.finish_reason and event.request_id in self._running:
                number = self._running.pop(event.request_id)
                self.done[number] = self._engine.completion(event.request_id)
                self._engine.forget([event.request_id])

    def _stepped(self, step: StepReport) -> None:
        now = clock()
        took, self._last = now - self._last, now
        self.steps.append(Step(now - self._begin, took, len(step.outcomes), step.prefill_rows, step.rows, step.tokens))
        if self._watch is not None:
            self._watch(step)

    def _now(self) -> float:
        return clock() - self._begin
