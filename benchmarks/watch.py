"""What every step of an engine did: its rows, its time, and each sequence's drafted, verified and committed tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from paceline.engine.engine import Engine
from paceline.governor.base import StepReport


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's part of a step."""

    request: int
    position: int
    """Tokens of the answer that were there before."""
    drafted: int
    verified: int
    committed: int


@dataclass(frozen=True, slots=True)
class Step:
    seconds: float
    """Since the end of the one before, so that nothing is left out; its own where there was none."""
    draft_s: float
    prefill_rows: int
    parts: tuple[Part, ...]

    @property
    def sequences(self) -> int:
        return len(self.parts)

    @property
    def committed(self) -> int:
        return sum(part.committed for part in self.parts)

    @property
    def verified(self) -> int:
        return sum(part.verified for part in self.parts)

    @property
    def decodes(self) -> bool:
        """Whether it did nothing but decode."""
        return bool(self.parts) and not self.prefill_rows


class Watch:
    """Sits before an engine's governor and writes down what passes; everything else is the governor's own."""

    def __init__(self, engine: Engine) -> None:
        self._inner = engine.governor
        self._last: float | None = None
        self.steps: list[Step] = []
        engine.governor = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def observe(self, step: StepReport) -> Any:
        parts = tuple(
            Part(
                o.seq.id,
                o.seq.num_tokens - o.seq.prompt_len - len(o.tokens),  # type: ignore[attr-defined]
                len(o.drafted),
                len(o.verified),
                len(o.tokens),
            )
            for o in step.outcomes
        )
        now = time.perf_counter()
        took = step.seconds if self._last is None else now - self._last
        self._last = now
        self.steps.append(Step(took, step.draft_s, step.prefill_rows, parts))
        return self._inner.observe(step)

    def take(self) -> list[Step]:
        """Return the steps since the last time; what passes before the next one is nobody's."""
        self._last = None
        taken, self.steps = self.steps, []
        return taken
