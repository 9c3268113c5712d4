"""What one step is about: its sequences, what things take for them, and what is settled before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.governor.base import Reason
from paceline.governor.costs import Costs

TEMPER = 0.5
"""Power of the speed-up by which a token is worth less than a plain one's time."""


@dataclass(slots=True)
class Turn:
    """What one step is about, from its plan to its end."""

    sequences: int = 1
    rows: int = 1
    """Of a pass without drafts, prompts included."""
    context: float = 0.0
    """Tokens that a row attends to, on average."""
    speedup: float = 1.0
    """Of late, against plain decoding."""
    price: float = math.inf
    """Seconds that a token is worth."""
    most: int = 1
    """Drafted tokens of a sequence; where it is 0, no draft is weighed."""
    row: float = 0.0
    """Tokens that the time of one more row is worth, at the number of rows where that is least."""
    closed: Reason | None = None
    """Why nothing is verified, but for requests that always speculate."""
    barred: set[int] = field(default_factory=set)
    """Requests of which nothing is verified, for they have lost what they may."""
    advanced: bool = False
    """Whether a drafter is to read much: one sequence a step, so that no more is at stake than one advance."""
    plain_s: float = 0.0
    """Seconds of a plain step of these sequences."""
    draft_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each drafter's pass for them."""
    passes: list[float] = field(default_factory=lambda: [0.0])
    """Seconds of the target's pass with so many rows more than `rows`."""
    tokens: list[float] = field(default_factory=lambda: [0.0])
    """The tokens that the time of so many rows more is worth."""
    probing: set[str] = field(default_factory=set)
    depth: dict[str, int] = field(default_factory=dict)
    """Of each drafter's deepest draft."""
    missed: dict[str, int] = field(default_factory=dict)
    """Tokens that each drafter had to read first."""
    reading_s: dict[int, float] = field(default_factory=dict)
    """Seconds that this takes, by request."""

    def measure(self, costs: Costs, drafters: Sequence[str]) -> None:
        """Look up what plain decoding, drafts and passes of this step's sequences take, and what a token is worth.

        The engine's own time a token of late is too strict a price: a draft ends behind the token that was hard to
        guess, a plain step in front of it. The mean of that and of plain decoding's does best in simulation. Where the
        curve has a stair, the first rows pay only together with those that follow at no cost. One row more may cost
        nothing and says little of those after it.
        """
        n = self.sequences
        self.plain_s = costs.plain_seconds(n, self.context) or 0.0
        self.price = self.plain_s / n / self.speedup**TEMPER
        if self.most:
            self._weigh(costs, drafters)

    def _weigh(self, costs: Costs, drafters: Sequence[str]) -> None:
        n, most = self.sequences, self.most
        self.draft_s = {name: costs.draft(name, n, self.context) for name in drafters}
        last = self.rows + most * n
        if self.rows > n:  # prompts' rows, most of them, have less to look back at
            rows = np.arange(self.rows, last + 1)
            passes = costs.target.many(rows, self.context * (rows - (self.rows - n)) / rows)
        else:
            passes = np.array(costs.next_passes(self.rows, last, self.rows == n, self.context))
        # More rows never take less: where it seems so, those with fewer have not been measured of late.
        passes = np.minimum.accumulate(passes[::-1])[::-1]
        self.passes, tokens = passes.tolist(), (passes - passes[0]) / self.price
        self.tokens = tokens.tolist()
        counts = np.array([*range(2, most), most, most * n])
        self.row = float((tokens[counts] / counts).min())

    @property
    def measured(self) -> bool:
        return self.plain_s > 0

    @property
    def is_steep(self) -> bool:
        """Whether it is the batch that makes rows dear: twice the rows take over 1.6 times as long."""
        return 1 < self.rows < len(self.passes) and self.passes[self.rows] > 1.6 * self.passes[0]

    def draft(self, name: str) -> float:
        """Return the seconds of a drafter's pass."""
        return self.draft_s.get(name, 0.0)

    def row_tokens(self, more: int) -> float:
        """Return how many tokens are worth the time of so many more rows."""
        last = len(self.tokens) - 1
        if more <= last:
            return self.tokens[more]
        # A request asks for more than the engine's most.
        return self.tokens[last] + (more - last) * (self.tokens[last] - self.tokens[last - 1])

    def worth(self, survivals: Sequence[float], taken: int = 0) -> tuple[int, float]:
        """Return how many nodes to verify, in this order, for the most tokens less time at its price, and how much.

        The curve has stairs, so the best number is looked for among all, not at the first loss.

        Args:
            survivals: each node's chance to become text.
            taken: rows of drafts that are verified in any case.
        """
        if not self.measured:
            return len(survivals), sum(survivals)
        best, best_gain, tokens, row_tokens = 0, 0.0, self.row_tokens(taken), self.row_tokens
        for count, survival in enumerate(survivals, taken + 1):
            tokens += survival
            if (gain := tokens - row_tokens(count)) > best_gain:
                best, best_gain = count - taken, gain
        return best, best_gain
