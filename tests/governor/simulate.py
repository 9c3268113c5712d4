"""The governor without a model: texts whose guesses come true as written, passes that take what a curve says.

The engine's own desk asks the drafters, so that the governor is driven as `Engine.step` drives it: plan, drafts chosen
by value, trim, observe. All time is simulated. `Clock.now` is what the governor can measure, with its noise;
`Clock.ideal` is what the same steps take without, and all comparisons are made in it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.core.law import Law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import SpeculationParams
from paceline.engine.drafting import DraftDesk
from paceline.engine.tally import Tally
from paceline.governor.adaptive import Adaptive
from paceline.governor.base import Governor, Outcome, StepReport
from paceline.governor.costs import PROFILED_ROWS, Costs

Curve = Callable[[int], float]
RIGHT, WRONG = 1, 0
INFO: Any = SimpleNamespace(can_rewind=True, vocab_size=2, tree_context=None)


@dataclass(frozen=True)
class World:
    """What things take, in passes of one row."""

    curve: Curve = lambda rows: 1.0
    other: float = 0.03
    draft: float = 0.05
    """One pass of the model drafter, for one sequence."""
    draft_row: float = 0.05
    """Share that each further sequence adds to a drafter's pass."""
    catch_up: float = 0.03
    """Share of a drafter's pass that a token takes which it has not read yet."""
    noise: float = 0.0
    """Relative deviation of a measured time."""
    outliers: float = 0.0
    """Chance that a pass takes three times as long."""
    drift: Callable[[int], float] = lambda position: 1.0
    """Factor on all times by tokens of text."""

    def plain(self, sequences: int, position: int = 0) -> float:
        return (self.curve(sequences) + self.other) * self.drift(position)


@dataclass(frozen=True)
class Track:
    """What one drafter guesses along one text."""

    hits: Sequence[bool]
    """Whether the guess for this position is right, given all before it."""
    confidence: Sequence[float]
    has: Sequence[bool] | None = None
    """Whether there is a guess for a draft that begins here; None is always."""
    flat: bool = False
    """A draft has the confidence of its first node all along, as a lookup's has."""
    sampled: bool = False

    def draft(self, name: str, begin: int, limit: int, least: float = 0.0) -> Draft:
        if self.has is not None and not self.has[begin]:
            return EMPTY
        end = min(begin + limit, len(self.hits))
        sure = [self.confidence[begin if self.flat else at] for at in range(begin, end)]
        for count, survival in enumerate(itertools.accumulate(sure, lambda a, b: a * b), 1):
            if survival < least:
                sure = sure[:count]
                break
        tokens = [RIGHT if hit else WRONG for hit in self.hits[begin : begin + len(sure)]]
        law = Law.of(np.array([0.5, 0.5])) if self.sampled else None
        return Draft.chain(tokens, name, sure, [law] * len(tokens) if self.sampled else ())


@dataclass
class Clock:
    noise: float
    outliers: float
    rng: random.Random
    now: float = 0.0
    ideal: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.ideal += seconds
        measured = seconds * math.exp(self.rng.gauss(0.0, self.noise)) if self.noise else seconds
        self.now += 3 * measured if self.rng.random() < self.outliers else measured


@dataclass(frozen=True)
class Text:
    """One request: what each drafter makes of it, and how long it is."""

    length: int
    tracks: dict[str, Track]
    prompt: int = 100
    speculation: SpeculationParams = field(default_factory=SpeculationParams)


@dataclass(eq=False)
class Live:
    id: int
    text: Text
    done: int = 0
    tally: Tally = field(default_factory=Tally)
    failed_drafters: set[str] = field(default_factory=set)
    meets_context: bool = False

    @property
    def num_tokens(self) -> int:
        return self.text.prompt + self.done

    @property
    def speculation(self) -> SpeculationParams:
        return self.text.speculation

    @property
    def room(self) -> int:
        return self.text.length - self.done - 1


class Tracked:
    """A drafter that reads its guesses off the texts; one with a cost has a cache that must catch up."""

    def __init__(self, name: str, cost: float, world: World, clock: Clock, least: Callable[[], float]) -> None:
        self.name, self._cost, self._world, self._clock, self._least = name, cost, world, clock, least
        self._read: dict[int, int] = {}
        self.calls = 0

    def begin(self, seq: Any) -> None:
        self._read[seq.id] = 0

    def end(self, seq: Any) -> None:
        del self._read[seq.id]

    def observe(self, seq: Any, verdict: Any, hidden: Any) -> None:
        pass

    def propose(self, seqs: Sequence[Any], limits: Sequence[int]) -> list[Draft]:
        self.calls += 1
        least = self._least() if self._cost else 0.0
        drafts = [
            seq.text.tracks[self.name].draft(self.name, seq.done, limit, least)
            for seq, limit in zip(seqs, limits, strict=True)
        ]
        if self._cost:
            self._clock.spend(self._seconds(seqs, drafts))
        return drafts

    def _seconds(self, seqs: Sequence[Any], drafts: Sequence[Draft]) -> float:
        missing = 0
        for seq, draft in zip(seqs, drafts, strict=True):
            missing += max(0, seq.num_tokens - self._read[seq.id] - 1)
            self._read[seq.id] = seq.num_tokens + len(draft) - 1
        passes = sum(
            1 + self._world.draft_row * (sum(len(draft) > i for draft in drafts) - 1)
            for i in range(max(map(len, drafts)))
        )
        factor = self._cost * self._world.drift(seqs[0].done)
        return factor * (max(1.0, passes) + self._world.catch_up * missing)


@dataclass(frozen=True)
class Step:
    """What one step did."""

    sequences: int
    drafted: int
    verified: int
    tokens: int
    ideal: float
    plain: float
    """What plain decoding takes for as many tokens, at this number of sequences."""
    each: float
    """What one plain step takes."""
    position: int
    asked: tuple[str, ...]


@dataclass
class Result:
    tokens: int
    ideal: float
    plain: float
    steps: list[Step]
    governor: Any
    tallies: list[Tally]

    @property
    def speedup(self) -> float:
        return self.plain / self.ideal

    def worst_loss(self) -> float:
        """Largest loss over any stretch of steps, in plain steps, less 1 % of that stretch's time."""
        worst = run = 0.0
        for step in self.steps:
            run = max(0.0, run + (0.99 * step.ideal - step.plain) / step.each)
            worst = max(worst, run)
        return worst


class Simulation:
    """Runs texts through a governor, so many at a time."""

    def __init__(self, world: World, texts: Sequence[Text], governor: Governor, batch: int = 1, seed: int = 0) -> None:
        self.world, self.governor, self._batch = world, governor, batch
        self.clock = Clock(world.noise, world.outliers, random.Random(seed))
        self._waiting = [Live(i, text) for i, text in enumerate(texts)]
        self.live: list[Live] = []
        least = getattr(governor, "least_survival", lambda: 0.0)
        names = texts[0].tracks
        self.drafters = {
            name: Tracked(name, world.draft if name == "model" else 0.0, world, self.clock, least) for name in names
        }
        self.desk = DraftDesk(self.drafters, INFO, self.clock)
        self.steps: list[Step] = []
        self.tallies: list[Tally] = []

    def run(self, most_steps: int = 10**9) -> Result:
        for _ in range(most_steps):
            if not self._waiting and not self.live:
                break
            self.step()
        steps = self.steps
        total = [sum(getattr(s, name) for s in steps) for name in ("tokens", "ideal", "plain")]
        return Result(*total, steps, self.governor, self.tallies)

    def step(self) -> StepReport:
        decoding, prompt = list(self.live), None
        if self._waiting and len(self.live) < self._batch:
            prompt = self._waiting.pop(0)
            self.desk.begin(prompt)
        rows = prompt.text.prompt if prompt else 0
        position = decoding[0].done if decoding else 0
        begin = self.clock.ideal
        limits = self.governor.plan(decoding, rows)
        start = self.clock.now
        drafts = self.desk.propose(decoding, limits, self.governor.value)
        draft_s = self.clock.now - start
        verified = self.governor.trim(decoding, drafts)
        base = len(decoding) + rows
        factor = self.world.drift(position)
        start = self.clock.now
        self.clock.spend(self.world.curve(base + sum(map(len, verified))) * factor)
        forward_s = self.clock.now - start
        start = self.clock.now
        self.clock.spend(self.world.other * factor)
        other_s = self.clock.now - start
        outcomes = [self._commit(s, d, v) for s, d, v in zip(decoding, drafts, verified, strict=True)]
        tokens = sum(len(o.tokens) for o in outcomes)
        # A prompt is plain decoding's to read as well; what counts is what the drafts of that step added.
        plain = self.world.plain(base, position)
        if decoding:
            plain += (tokens / len(decoding) - 1) * self.world.plain(len(decoding), position)
        if prompt:
            outcomes.append(self._commit(prompt, EMPTY, EMPTY))
            self.live.append(prompt)
        report = StepReport(outcomes, rows, draft_s, forward_s, other_s, dict(self.desk.spent))
        self.governor.observe(report)
        self.steps.append(
            Step(
                len(decoding),
                sum(map(len, drafts)),
                sum(map(len, verified)),
                tokens,
                self.clock.ideal - begin,
                plain,
                self.world.plain(max(1, len(decoding)), position),
                position,
                tuple(self.desk.spent),
            )
        )
        for seq in [s for s in self.live if s.done >= s.text.length]:
            self.live.remove(seq)
            self.desk.end(seq)
            self.tallies.append(seq.tally)
        return report

    @staticmethod
    def _commit(seq: Live, drafted: Draft, verified: Draft) -> Outcome:
        right = sum(1 for _ in itertools.takewhile(lambda token: token == RIGHT, verified.tokens))
        count = min(right + 1, seq.text.length - seq.done)
        seq.done += count
        return Outcome(seq, drafted, verified, (RIGHT,) * count)


def profiled(world: World) -> Costs:
    """Return costs as a profile at start leaves them, without the noise."""
    costs = Costs()
    for rows in PROFILED_ROWS:
        costs.learn(rows, world.curve(rows))
    costs.draft_s["model"] = world.draft
    return costs


def adaptive(world: World, names: Sequence[str], most: int = 16) -> Adaptive:
    return Adaptive(most, profiled(world), tuple(names))


def simulate(world: World, texts: Sequence[Text], batch: int = 1, most: int = 16, seed: int = 0) -> Result:
    return Simulation(world, texts, adaptive(world, tuple(texts[0].tracks), most), batch, seed).run()
