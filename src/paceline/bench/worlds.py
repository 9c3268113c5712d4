"""What things take in a simulation, and a clock that measures it as badly as one likes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from paceline.governor.costs import Costs
from paceline.governor.profile import PROFILED_ROWS

SHORT, LONG = 64, 2048
"""Tokens of context that a profile at start measures at."""
MODELS = ("model", "heads")
"""Drafters that are measured at start; they stop where the target is unlikely to get."""
FAR_ROWS = (1, 2, 4, 8, 16)
"""Rows that it measures at the longer one as well."""

Curve = Callable[[int], float]
"""Rows of a pass -> its seconds; a pass of one row takes about 1, unless the curve was measured."""


@dataclass(frozen=True, slots=True)
class World:
    """Seconds, of passes of the target and of all around them. Whatever is given, the governor has to find out."""

    curve: Curve = lambda rows: 1.0
    other: float = 0.03
    """What surrounds a pass, and what each token of text adds to it."""
    token: float = 0.0
    drafts: Mapping[str, float] = field(default_factory=dict)
    """One more drafted token of a drafter, for one sequence; drafters that are not here cost nothing."""
    draft_row: float = 0.05
    """Share that each further sequence adds to a drafter's pass."""
    reading: Mapping[str, float] = field(default_factory=dict)
    """One token that a drafter has not read yet."""
    attention: float = 0.0
    """What each row of a pass takes besides by thousand tokens that it looks back at."""
    switch: float = 0.0
    """What a pass takes longer when its number of rows is not that of the pass before."""
    least_rows: int = 1
    """Rows that a pass has at least."""
    noise: float = 0.0
    """Relative deviation of a measured time."""
    outliers: float = 0.0
    """Chance that a measured time is three times as long."""
    drift: Callable[[int], float] = lambda position: 1.0
    """Factor on all times by tokens of text that came before."""
    believed: tuple[float, float] = (1.0, 1.0)
    """What the profile at start shows of the target's times and of the drafters', as a factor."""

    def forward(self, rows: int, context: float = 0.0) -> float:
        """Return what a pass takes; its rows look back at so many tokens on average."""
        return self.curve(max(rows, self.least_rows)) + self.attention * rows * context / 1000

    def plain(self, sequences: int, context: float = 0.0) -> float:
        """Return what a plain step takes."""
        return self.forward(sequences, context) + self.other + self.token * sequences

    @property
    def quiet(self) -> World:
        """The same, measured exactly and known from the start."""
        return replace(self, noise=0.0, outliers=0.0, believed=(1.0, 1.0))


@dataclass(slots=True)
class Clock:
    """`now` is what can be measured, `ideal` what the same takes without noise; comparisons are made in the latter."""

    noise: float
    outliers: float
    rng: random.Random
    now: float = 0.0
    ideal: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.ideal += seconds
        if self.noise:
            seconds *= math.exp(self.rng.gauss(0.0, self.noise))
        if self.outliers and self.rng.random() < self.outliers:
            seconds *= 3
        self.now += seconds


def profiled(world: World, names: tuple[str, ...]) -> Costs:
    """Return costs as the profile at start leaves them."""
    costs = Costs(world.least_rows)
    target, drafter = world.believed
    for rows in sorted(PROFILED_ROWS):
        for context in (SHORT, LONG) if rows in FAR_ROWS else (SHORT,):
            seen = context * min(rows / world.least_rows, 1.0)
            costs.learn(rows, target * world.forward(max(rows, world.least_rows), seen), seen)
    costs.switch_s = target * world.switch
    for name in names:
        if name in MODELS and world.drafts.get(name):
            costs.learn_draft(name, 1, drafter * world.drafts[name])
            costs.profiled_draft[name] = costs.drafts[name].seconds(1)
            costs.catch_up_s[name] = drafter * world.reading.get(name, 0.0)
    return costs
