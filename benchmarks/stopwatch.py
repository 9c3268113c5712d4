"""Whose time it is: calls wrapped so that each part's own time is told apart from that of the parts it calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Clock = Callable[[], float]


class Stopwatch:
    """Seconds and calls of each part, its inner parts' not included."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock, self._stack, self._since = clock, list[str](), 0.0
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._stack.append(name)
        self.calls[name] += 1
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def watch(self, thing: Any, method: str, name: str) -> None:
        """Let a method of a thing count as a part; of a class, for all of its kind."""
        inner = getattr(thing, method)

        @wraps(inner)
        def timed(*given: Any, **named: Any) -> Any:
            with self.part(name):
                return inner(*given, **named)

        setattr(thing, method, timed)

    def reset(self) -> None:
        self.seconds.clear()
        self.calls.clear()

    def _turn(self) -> None:
        """Charge the time since the last turn to whoever had it."""
        now = self._clock()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now
