"""Is it slower than plain decoding anywhere? Measured until that is clear, or long enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.modes import AUTO, PLAIN, Modes
from paceline.bench.prove.checks import Check
from paceline.bench.stats import Ratio, compare
from paceline.bench.trials import Ask, Say, Turn, grouped, take

LEAST_ROUNDS, MOST_ROUNDS = 1, 4


@dataclass(slots=True)
class Speed:
    """Plain and governed decoding in turns on one kind of traffic, at one batch size.

    Args:
        slowdown: time that it may take against plain decoding.
    """

    modes: Modes
    name: str
    batch: int
    slowdown: float
    turns: list[Turn] = field(default_factory=list)
    rounds: int = 0

    @property
    def bound(self) -> float:
        return 1 / self.slowdown

    def run(self, asks: Sequence[Ask], say: Say) -> None:
        """Measure round after round, each there and back, until the interval lies on one side of the bound."""
        groups = grouped([ask.category for ask in asks], self.batch)
        while self.rounds < MOST_ROUNDS and not (self.rounds >= LEAST_ROUNDS and self._is_clear()):
            say(f"speed, {self.name}, {self.batch} at a time", self.rounds, MOST_ROUNDS)
            for place, numbers in enumerate(groups):
                pair = (PLAIN, AUTO) if (place + self.rounds) % 2 == 0 else (AUTO, PLAIN)
                for mode in (*pair, *reversed(pair)):
                    self.turns.append(take(self.modes, mode, [asks[i] for i in numbers], self.batch, numbers))
            self.rounds += 1

    def ratio(self) -> Ratio:
        """Of these very prompts: each is a stratum, and the interval is that of its turns, not of other prompts."""
        strata: dict[str, list[list[float]]] = {}
        for numbers in dict.fromkeys(turn.numbers for turn in self.turns):
            mine = [turn for turn in self.turns if turn.numbers == numbers]
            plain, auto = ([t.a_token_s for t in mine if t.mode == mode.name] for mode in (PLAIN, AUTO))
            ratios = [p / a for p, a in zip(plain, auto, strict=False) if p and a]
            if ratios:
                strata[str(numbers)] = [ratios]
        return compare(strata)

    def check(self, again: str) -> Check:
        r = self.ratio()
        fails = r.high < self.bound or (not self._is_clear() and r.ratio < self.bound)
        clear = "" if self._is_clear() else f"; not certain after {self.rounds} rounds, the estimate decides"
        return Check(
            f"never slower: {self.name}, {self.batch} at a time",
            f"at least {self.bound:.3f} × plain decoding (targets.slowdown {self.slowdown:g})",
            f"{r.ratio:.3f} ({r.low:.3f}–{r.high:.3f}) × plain{clear}",
            "fails" if fails else "holds",
            again,
        )

    def _is_clear(self) -> bool:
        r = self.ratio()
        return r.low >= self.bound or r.high < self.bound
