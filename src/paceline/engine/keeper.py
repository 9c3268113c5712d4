"""Writes down what an engine has learnt, for the next start."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from paceline.engine.engine import Engine
from paceline.governor import saved
from paceline.governor.adaptive import Adaptive
from paceline.governor.saved import Identity, Saved

log = logging.getLogger(__name__)

PERIOD_S = 30.0
"""Between two writings, at least, while an engine lives."""


class Keeper:
    """Keeps the costs and the acceptance of one engine's governor.

    Args:
        identity: what they depend on; None keeps nothing.
        clock: seconds, from any moment on.
    """

    def __init__(self, identity: Identity | None, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity, self._engine, self._clock = identity, engine, clock
        self._path: Path | None = None
        self._steps, self._written = 0, ""
        self._due = clock() + PERIOD_S
        if identity is not None and isinstance(engine.governor, Adaptive):
            self._path = saved.place(identity)
            before = saved.read(self._path, identity)
            self._steps = before.steps if isinstance(before, Saved) else 0

    def rest(self) -> None:
        """Use a moment in which nothing runs; called often, it does something at most every `PERIOD_S`."""
        if self._path is not None and self._clock() >= self._due and self._engine.idle:
            self._due = self._clock() + PERIOD_S
            self._write(self._path)

    def close(self) -> None:
        """Write for the last time."""
        if self._path is not None:
            self._write(self._path)
            self._path = None

    def _write(self, path: Path) -> None:
        """Write what is new; where that cannot be, say so once, and never try again."""
        content = self._content()
        if content == self._written:
            return
        try:
            saved.write(path, content)
            self._written = content
        except OSError as error:
            log.warning("costs cannot be kept in %s (%s)", path.parent, error.strerror or error)
            self._path = None

    def _content(self) -> str:
        governor = self._engine.governor
        assert self._identity is not None and isinstance(governor, Adaptive)
        rates = {name: governor.acceptance.rate(name) for name in self._engine.desk.drafters}
        history = {name: rate for name, rate in rates.items() if rate is not None}
        steps = self._steps + self._engine.report().steps
        return saved.text(self._identity, Saved(governor.costs, governor.acceptance, history, steps))


def keep(identity: Identity | None, engine: Engine, owner: object) -> Keeper:
    """Return an engine's keeper, which is closed at the latest when its owner is gone, or the process ends.

    Args:
        owner: nothing that the engine refers to.
    """
    keeper = Keeper(identity, engine)
    weakref.finalize(owner, keeper.close)
    return keeper
