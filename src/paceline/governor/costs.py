"""What a step takes on this machine: measured, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from paceline.governor.curve import Curve, Rows, number

TELLING = 64
"""Missed tokens from which on the time of a draft says what reading costs."""
_OUTLIER = 3.0
"""Times the mean from which on a measurement counts as so many."""
STEADY_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of rows that drafts are filled up to, where a new number costs time."""
_BESIDE = (0, 2, 4, 6)
"""Rows more than a plain pass has that say what it takes at most."""
_STEADY = np.array(STEADY_ROWS)


class Costs:
    """Seconds of a target pass, of a drafter's pass, and of what surrounds them.

    Args:
        least_rows: rows that a target pass has at least; fewer take as long.
    """

    def __init__(self, least_rows: int = 1) -> None:
        self._least = least_rows
        self.target = Curve(least_rows)
        self.drafts: dict[str, Curve] = {}
        """Of a drafter's pass, which drafts one token for each of so many sequences, in target passes of one row: a
        machine that slows down slows both, also the one that does not run at present."""
        self.others = Curve()
        """Of all else in a step, by the tokens that it adds to the text: each is drawn, committed and told."""
        self.profiled_draft: dict[str, float] = {}
        """What a drafter's pass for one sequence took when it was profiled, in target passes of one row."""
        self.catch_up_s: dict[str, float] = {}
        """Of one token that a drafter has missed and has to read."""
        self.switch_s = 0.0
        """What a pass takes longer when its number of rows is not that of the pass before."""
        self.exact = False
        """Whether the next pass is to run just the rows that it needs, for it is to be measured."""
        self._ran: int | None = None
        """Rows of the pass before; None where that read a prompt."""
        self._idle = 0.0
        """Seconds lost to rows that filled passes up, since the last pass that needed them."""

    @property
    def known(self) -> bool:
        return self.target.known

    @property
    def drift(self) -> float:
        """How much slower target passes are than when the curve was measured."""
        return self.target.drift

    def forward(self, rows: int, context: float = 0.0) -> float:
        """Return the seconds of a pass of so many rows, as things are now; 0 where nothing was measured.

        Args:
            context: tokens that a row attends to, on average; rows that a pass has anyway attend to nothing.
        """
        return self.target.seconds(rows, context * min(rows / self._least, 1.0))

    def plain_seconds(self, sequences: int, context: float = 0.0) -> float | None:
        """Return the seconds of a plain step of so many sequences, None where nothing was measured.

        Never more than a pass takes that is filled up with a few rows: of late it may be these that ran.
        """
        if not self.known:
            return None
        filled = [max(sequences, self._least) + more for more in _BESIDE]
        passes = min(self.target.seconds(rows, context * sequences / rows) for rows in filled)
        return passes + self.others.seconds(sequences)

    def draft(self, drafter: str, sequences: int, context: float = 0.0) -> float:
        """Return the seconds of one more drafted token for each of so many sequences; 0 where nothing was measured."""
        curve = self.drafts.get(drafter)
        return curve.seconds(sequences, context) * self.target.seconds(1) if curve else 0.0

    def slowdown(self, drafter: str) -> float:
        """Return how many times slower a drafter's pass is, beside a target pass, than when it was profiled."""
        profiled, curve = self.profiled_draft.get(drafter), self.drafts.get(drafter)
        return curve.seconds(1) / profiled if profiled and curve else 1.0

    def catch_up(self, drafter: str, tokens: int) -> float:
        """Return the seconds that a drafter takes to read so many tokens which it has missed; 0 until it did once."""
        return tokens * self.catch_up_s.get(drafter, 0.0)

    def learn(self, rows: int, seconds: float, context: float = 0.0) -> None:
        """Take in one measured target pass."""
        self.target.learn(rows, seconds, context)

    def learn_draft(self, drafter: str, sequences: int, seconds: float, context: float = 0.0) -> None:
        """Take in one measured pass of a drafter; nothing before a target pass was measured."""
        if self.known:
            self.drafts.setdefault(drafter, Curve()).learn(sequences, seconds / self.target.seconds(1), context)

    def steady(self, rows: int, plain: bool = False) -> int:
        """Return how many rows the next pass had best run, if it needs so many.

        More than needed while that loses less than a change would (as one rents skis until that has cost a pair:
        never more than twice what hindsight would have paid).

        Args:
            plain: whether nothing is drafted; then a change is to the very number, for it may last.
        """
        rows = max(rows, self._least)
        if not self.switch_s or self.exact:
            return rows
        if self._ran is not None and rows <= self._ran:
            lost = self.forward(self._ran) - self.forward(rows)
            if self._idle + lost < self.switch_s:
                return self._ran
        return rows if plain else next((n for n in STEADY_ROWS if n >= rows), rows)

    def next_pass(self, rows: int, plain: bool = False, context: float = 0.0) -> float:
        """Return the seconds of the next pass if it needs so many rows, a change of their number included.

        Rows that fill it up have nothing to look back at.
        """
        ran = self.steady(rows, plain)
        return self.forward(ran, context * min(rows / ran, 1.0)) + (self.switch_s if ran != self._ran else 0.0)

    def next_passes(self, first: int, last: int, plain: bool = False, context: float = 0.0) -> list[float]:
        """Return `next_pass` of every number of rows from first to last.

        Args:
            plain: whether nothing is drafted in the first.
        """
        rows = np.arange(first, last + 1)
        ran = self._steady_all(np.maximum(rows, self._least), plain)
        found = self.target.many(ran, context * np.minimum(rows / ran, 1.0))
        if self.switch_s:
            found = found + self.switch_s * (ran != self._ran)
        seconds: list[float] = found.tolist()
        return seconds

    def _steady_all(self, rows: Rows, plain: bool) -> Rows:
        if not self.switch_s:
            return rows
        ran = np.where(rows <= _STEADY[-1], _STEADY[np.searchsorted(_STEADY, np.minimum(rows, _STEADY[-1]))], rows)
        if plain:
            ran[0] = rows[0]
        if self._ran is not None:
            lost = self.forward(self._ran) - self.target.many(rows, np.zeros(len(rows)))
            ran = np.where((rows <= self._ran) & (self._idle + lost < self.switch_s), self._ran, ran)
        return ran

    def observe(self, rows: int, forward_s: float, ran: int = 0, context: float = 0.0) -> bool:
        """Learn from a target pass that read no prompt: prompt rows are costed, not counted as decoding.

        Args:
            rows: that were needed.
            ran: that did run; 0 is as many.
            context: tokens that a needed row attended to, on average.

        Returns:
            Whether the pass was an ordinary one of so many rows: not filled up, and no change that costs time.
        """
        needed, rows = rows, max(rows, self._least)
        ran = max(ran, rows)
        changed = bool(self.switch_s) and ran != self._ran
        context *= min(needed / ran, 1.0)
        if not changed:
            lost = self.forward(ran) - self.forward(rows)
            self.target.learn(ran, forward_s, context)
            self._idle = self._idle + max(0.0, lost) if ran > rows else 0.0
        else:
            self.switch_s = _follow(self.switch_s, max(forward_s - self.forward(ran, context), 0.1 * self.switch_s))
            self._idle = 0.0
        self._ran = ran
        return ran == rows and not changed

    def observe_rest(self, tokens: int, other_s: float) -> None:
        """Learn what surrounds the passes of a step that added so many tokens."""
        self.others.learn(max(tokens, 1), other_s)

    def disturb(self) -> None:
        """Note that a pass of another kind has run, with a prompt in it."""
        self._ran, self._idle = None, 0.0

    def observe_draft(
        self, drafter: str, seconds: float, depth: int, sequences: int = 1, missed: int = 0, context: float = 0.0
    ) -> None:
        """Learn what drafted tokens cost; a drafter's tokens come one pass after the other.

        Args:
            depth: of the deepest draft.
            missed: tokens that the drafter had to read first.
        """
        known = self.draft(drafter, sequences, context)
        if missed and known:
            before = self.catch_up_s.get(drafter)
            if before is None or missed >= TELLING:
                each = max(0.0, seconds - depth * known) / missed
                self.catch_up_s[drafter] = each if before is None else _follow(before, each, 0.5)
            return
        self.learn_draft(drafter, sequences, seconds / max(depth, 1), context)

    def state(self) -> dict[str, Any]:
        """Return what was measured, for JSON."""
        return {
            "target": self.target.state(),
            "others": self.others.state(),
            "drafts": {name: curve.state() for name, curve in self.drafts.items()},
            "profiled_draft": dict(self.profiled_draft),
            "catch_up_s": dict(self.catch_up_s),
            "switch_s": self.switch_s,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Return costs as `state` left them.

        Raises:
            ValueError: it is no such state.
        """
        costs = cls()
        costs.target = Curve.restore(_mapping(state, "target"))
        costs._least = int(number(_mapping(state, "target"), "least_rows", 1))
        costs.others = Curve.restore(_mapping(state, "others"))
        drafts = _mapping(state, "drafts")
        costs.drafts = {name: Curve.restore(_mapping(drafts, name)) for name in drafts}
        for name in ("profiled_draft", "catch_up_s"):
            given = _mapping(state, name)
            getattr(costs, name).update({key: number(given, key, 0) for key in given})
        costs.switch_s = number(state, "switch_s", 0)
        return costs


def _mapping(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = state.get(name)
    if not isinstance(value, dict) or len(value) > 4096:
        raise ValueError(f"{name} is missing")
    return value


def _follow(before: float, now: float, weight: float = 0.1) -> float:
    """Return a running mean that one outlier cannot carry far."""
    return before + weight * (min(now, _OUTLIER * before) - before) if before else now
