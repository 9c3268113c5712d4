"""What the governor remembers from the plan of a step to its end, and from one try of a drafter to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.core.types import ROOT
from paceline.governor.base import Outcome, Reason

PROBE_SHARE = 0.005
"""Share of time that may go into trying a drafter that does not pay."""
FIRST_PROBE = 4
"""Least steps between two tries; tries in vain make it rarer, up to so many times."""
RAREST = 4


@dataclass(slots=True)
class Pace:
    """How much faster than plain decoding it went of late; sums of time, so that long steps weigh as what they are."""

    plain_s: float = 0.0
    took_s: float = 0.0

    def add(self, plain_s: float, took_s: float, weight: float) -> None:
        self.plain_s += weight * (plain_s - self.plain_s)
        self.took_s += weight * (took_s - self.took_s)

    @property
    def speedup(self) -> float:
        return max(1.0, self.plain_s / self.took_s) if self.took_s else 1.0


@dataclass(slots=True)
class Try:
    """When a drafter that does not pay is tried again."""

    quiet: float = 0.0
    """Steps since the last try."""
    patience: int = 1

    def due(self, steps: float) -> bool:
        """Whether it is time to spend so many plain steps."""
        return self.quiet >= self.patience * max(FIRST_PROBE, steps / PROBE_SHARE)

    def result(self, good: bool) -> None:
        self.quiet, self.patience = 0, 1 if good else min(2 * self.patience, RAREST)


@dataclass(slots=True)
class Turn:
    """What one step is about, from its plan to its end."""

    sequences: int = 1
    rows: int = 1
    """Of a pass without drafts, prompts included."""
    price: float = math.inf
    """Seconds that a token is worth."""
    row: float = 0.0
    """Tokens that the time of one more row is worth, at the number of rows where that is least."""
    closed: Reason | None = None
    """Why nothing is verified, but for requests that always speculate."""
    advanced: bool = False
    """Whether a drafter is to read much: one sequence a step, so that no more is at stake than one advance."""
    times: dict[int, float] = field(default_factory=dict)
    """Seconds of a pass by its rows, as far as they were asked for."""
    probing: set[str] = field(default_factory=set)
    depth: dict[str, int] = field(default_factory=dict)
    """Of each drafter's deepest draft."""
    missed: dict[str, int] = field(default_factory=dict)
    """Tokens that each drafter had to read first."""


def all_right(name: str, outcome: Outcome) -> bool:
    """Whether the text went as a drafter guessed, as far as either went."""
    draft, parent = outcome.drafted, ROOT
    for token in outcome.tokens:
        guessed = [n for n, p in enumerate(draft.parents) if p == parent and name in dict(draft.guesses(n))]
        if not guessed:
            return True
        parent = next((n for n in guessed if draft.tokens[n] == token), ROOT)
        if parent == ROOT:
            return False
    return True
