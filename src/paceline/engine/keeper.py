"""Writes down what an engine has learnt, for the next start."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.engine.engine import Engine
from paceline.governor import saved
from paceline.governor.adaptive import Adaptive
from paceline.governor.saved import Identity, Saved

log = logging.getLogger(__name__)

PERIOD_S = 30.0
"""Between two writings, at least, while an engine lives."""


@dataclass(slots=True)
class _File:
    """Where something is kept, what it is in words, what there is to say of it now, and what was said last."""

    path: Path
    what: str
    content: Callable[[], str]
    written: str = ""


class Keeper:
    """Keeps the costs and the acceptance of one engine's governor, and the counts of tokens if it has any.

    Args:
        identity: what costs and acceptance depend on; None keeps none.
        clock: seconds, from any moment on.
    """

    def __init__(self, identity: Identity | None, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock = engine, clock
        self._files: list[_File] = []
        self._due = clock() + PERIOD_S
        if identity is not None and isinstance(engine.governor, Adaptive):
            self._files.append(_costs(identity, engine, engine.governor))
        if (spoken := engine.spoken) is not None:
            self._files.append(_File(spoken.path, "counts of tokens", spoken.text, spoken.text()))

    def rest(self) -> None:
        """Use a moment in which nothing runs; called often, it does something at most every `PERIOD_S`."""
        if self._files and self._clock() >= self._due and self._engine.idle:
            self._due = self._clock() + PERIOD_S
            self._write()

    def close(self) -> None:
        """Write for the last time."""
        self._write()
        self._files = []

    def _write(self) -> None:
        """Write what is new; where that cannot be, say so once, and never try again."""
        for file in list(self._files):
            content = file.content()
            if content == file.written:
                continue
            try:
                saved.write(file.path, content)
                file.written = content
            except OSError as error:
                log.warning("%s cannot be kept in %s (%s)", file.what, file.path.parent, error.strerror or error)
                self._files.remove(file)


def keep(identity: Identity | None, engine: Engine, owner: object) -> Keeper:
    """Return an engine's keeper, which is closed at the latest when its owner is gone, or the process ends.

    Args:
        owner: nothing that the engine refers to.
    """
    keeper = Keeper(identity, engine)
    weakref.finalize(owner, keeper.close)
    return keeper


def _costs(identity: Identity, engine: Engine, governor: Adaptive) -> _File:
    path = saved.place(identity)
    before = saved.read(path, identity)
    steps = before.steps if isinstance(before, Saved) else 0

    def content() -> str:
        rates = {name: governor.acceptance.rate(name) for name in engine.desk.drafters}
        history = {name: rate for name, rate in rates.items() if rate is not None}
        known = Saved(governor.costs, governor.acceptance, history, steps + engine.report().steps)
        return saved.text(identity, known)

    return _File(path, "costs", content)
