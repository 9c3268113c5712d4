"""An engine whose steps are counted, and taken when a test says so."""

from __future__ import annotations

import threading
import time

from paceline.core.types import Event
from paceline.engine.engine import Engine


class Held:
    """Holds the engine thread before each step until it is let go; works as long as the engine lives, or `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._whole, self.steps = engine, engine.step, 0
        self._may = threading.Semaphore(0)
        self._open = False
        engine.step = self._step  # type: ignore[method-assign]

    def _step(self) -> list[Event]:
        if not self._open:
            assert self._may.acquire(timeout=60)
        events = self._whole()
        self.steps += 1
        return events

    def let(self, steps: int = 1) -> None:
        self._may.release(steps)

    def go(self, steps: int) -> None:
        """Let so many steps be taken, and wait for their end."""
        at = self.steps + steps
        self.let(steps)
        while self.steps < at:
            time.sleep(0.005)

    def open(self) -> None:
        self._open = True
        self._may.release(1000)

    def close(self) -> None:
        self.open()
        self._engine.step = self._whole  # type: ignore[method-assign]
