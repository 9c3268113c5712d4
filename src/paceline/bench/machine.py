"""The target's passes in a simulation, beside those that plain decoding would have made."""

from __future__ import annotations

import random
from collections.abc import Sequence

from paceline.bench.worlds import Clock, World


class Machine:
    """Spends the time that a world takes, and knows what plain decoding would have spent.

    Rows are given with the tokens that they look back at, one number a row.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.clock = Clock(world.noise, world.outliers, random.Random(seed))
        self._ran: int | None = None
        """Rows of the pass before; None where that read a prompt."""
        self._plain_ran: int | None = None
        """Those of plain decoding's."""

    def forward(self, back: Sequence[int], ran: int, position: int) -> float:
        """Make a pass over decoding sequences and drafts, filled up to so many rows; return its measured seconds."""
        took = self.world.forward(ran, sum(back) / ran)
        if ran != self._ran:
            took += self.world.switch
        self._ran = ran
        return self.spend(took, position)

    def forward_with_prompt(self, back: Sequence[int], prompt: int, position: int) -> float:
        """Make a pass that reads a prompt as well; return its measured seconds."""
        self._ran = None
        return self.spend(self._with_prompt(back, prompt), position)

    def prompt(self, pending: Sequence[int], prompt: int, position: int) -> float:
        """Return the ideal seconds that reading a prompt adds to a plain pass of these sequences."""
        n = len(pending)
        beside = self.world.forward(n, sum(pending) / n) if n else 0.0
        return (self._with_prompt(pending, prompt) - beside + self.world.token) * self.world.drift(position)

    def rest(self, tokens: int, position: int) -> float:
        """Do what surrounds a pass; return its measured seconds."""
        return self.spend(self.world.other + self.world.token * tokens, position)

    def plain(self, pending: Sequence[int], tokens: int, position: int, with_prompt: bool) -> tuple[float, float]:
        """Return the ideal seconds of plain decoding for so many tokens of these sequences, and for one step."""
        n, factor = len(pending), self.world.drift(position)
        each = self.world.plain(n, sum(pending) / n) if n else self.world.plain(1)
        took = each * tokens / n if n else 0.0
        ran = None if with_prompt else max(n, self.world.least_rows)
        if ran is not None and ran != self._plain_ran:
            took += self.world.switch
        self._plain_ran = ran
        return took * factor, each * factor

    def spend(self, seconds: float, position: int) -> float:
        start = self.clock.now
        self.clock.spend(seconds * self.world.drift(position))
        return self.clock.now - start

    def _with_prompt(self, back: Sequence[int], prompt: int) -> float:
        rows = len(back) + prompt
        return self.world.forward(rows, (sum(back) + prompt**2 / 2) / rows)
