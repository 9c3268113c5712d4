"""The ceiling of speculation: what it is, since when, who set it and why."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from paceline.core.types import SpeculationParams

By = Literal["start", "operator", "server"]
Record = Callable[[str, str, dict[str, Any]], None]
"""(kind, text, detail): writes an event down."""
HISTORY = 64
"""Changes that are kept, the newest."""


class Limited(Protocol):
    """What a ceiling is set on."""

    async def limit(self, ceiling: SpeculationParams) -> None: ...


@dataclass(frozen=True, slots=True)
class Change:
    at: float
    """Seconds since 1970."""
    by: By
    why: str
    mode: str
    """The mode of a request without wishes, from now on."""
    ceiling: str
    max_draft: int | None
    drafters: tuple[str, ...] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Switch:
    """Belongs to the event loop.

    Args:
        chosen: what the configuration, or the operator, allows; the server itself only goes below and back.
    """

    def __init__(self, worker: Limited, chosen: SpeculationParams, record: Record) -> None:
        self.chosen = self.ceiling = chosen
        self._worker, self._record = worker, record
        self.history: deque[Change] = deque([_change(chosen, "start", "the configuration")], maxlen=HISTORY)
        """The newest last."""

    @property
    def last(self) -> Change:
        return self.history[-1]

    async def choose(self, ceiling: SpeculationParams, why: str) -> None:
        """Set what the operator wants; in force when this returns.

        Raises:
            OptionError: see `Engine.limit`; nothing is changed.
        """
        await self._set(ceiling, "operator", why)
        self.chosen = ceiling

    async def off(self, why: str) -> None:
        await self._set(replace(self.chosen, mode="off"), "server", why)

    async def back(self, why: str) -> None:
        """Return to what was chosen."""
        await self._set(self.chosen, "server", why)

    async def _set(self, ceiling: SpeculationParams, by: By, why: str) -> None:
        await self._worker.limit(ceiling)
        self.ceiling = ceiling
        change = _change(ceiling, by, why)
        self.history.append(change)
        self._record("speculation", f"{change.mode}: {why}", change.as_json())


def effective(ceiling: SpeculationParams) -> str:
    """Return the mode of a request without wishes."""
    return SpeculationParams().under(ceiling).mode


def _change(ceiling: SpeculationParams, by: By, why: str) -> Change:
    mode = effective(ceiling)
    return Change(time.time(), by, why, mode, ceiling.mode, ceiling.max_draft, ceiling.drafters)
