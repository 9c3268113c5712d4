"""The governor without a model: texts whose guesses come true as written, passes that take what a world says.

The engine's own desk asks the drafters, so that the governor is driven as `Engine.step` drives it: plan, drafts chosen
by value, trim, rows of the pass, observe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from paceline.bench.machine import Machine
from paceline.bench.tracks import WORD, Text
from paceline.bench.worlds import MODELS, Clock, World, profiled
from paceline.core.sampling import Shaping
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, SamplingParams, SpeculationParams
from paceline.engine.drafting import DraftDesk
from paceline.engine.tally import Tally
from paceline.governor.account import EPSILON
from paceline.governor.adaptive import Adaptive
from paceline.governor.base import Governor, Outcome, StepReport

INFO: Any = SimpleNamespace(can_rewind=True, vocab_size=2 * WORD, tree_context=None)
MOST = 16


PLAINLY = Shaping(SamplingParams())


@dataclass(slots=True, eq=False)
class Live:
    """A text while it runs, as the governor and the desk see a sequence."""

    id: int
    text: Text
    tree_room: int = 0
    done: int = 0
    tally: Tally = field(default_factory=Tally)
    failed_drafters: set[str] = field(default_factory=set)
    meets_context: bool = False
    shaping: Shaping = PLAINLY

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
    """A drafter that reads its guesses off the texts; one that reads has a cache that must catch up."""

    def __init__(self, name: str, world: World, clock: Clock, least: Callable[[], float]) -> None:
        self.name, self._world, self._clock = name, world, clock
        self._cost, self._reading = world.drafts.get(name, 0.0), world.reading.get(name, 0.0)
        self._least = least if name in MODELS else lambda: 0.0
        self._read: dict[int, int] = {}

    def begin(self, seq: Any) -> None:
        self._read[seq.id] = 0

    def end(self, seq: Any) -> None:
        del self._read[seq.id]

    def observe(self, seq: Any, seen: Any) -> None:
        pass

    def propose(self, seqs: Sequence[Any], limits: Sequence[int]) -> list[Draft]:
        least = self._least()
        drafts = [
            seq.text.tracks[self.name].draft(self.name, seq.done, limit, least)
            for seq, limit in zip(seqs, limits, strict=True)
        ]
        if self._cost:
            self._clock.spend(self._seconds(seqs, drafts))
        return drafts

    def _seconds(self, seqs: Sequence[Live], drafts: Sequence[Draft]) -> float:
        missed = 0
        for seq, draft in zip(seqs, drafts, strict=True):
            missed += max(0, seq.num_tokens - self._read[seq.id] - 1)
            self._read[seq.id] = seq.num_tokens + len(draft) - 1
        lengths = [len(draft) for draft in drafts]
        longest = max(lengths)
        passes = longest + self._world.draft_row * (sum(lengths) - longest)
        return self._world.drift(seqs[0].done) * (self._cost * max(1.0, passes) + self._reading * missed)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did in which something was decoded; what a prompt added to it is left out."""

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
    """Tokens of the oldest text, before it."""
    asked: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A simulation that has run to its end."""

    steps: Sequence[Step]
    governor: Governor
    tallies: Sequence[Tally]
    """In the order in which the texts ended."""

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)

    @property
    def ideal(self) -> float:
        return sum(step.ideal for step in self.steps)

    @property
    def plain(self) -> float:
        return sum(step.plain for step in self.steps)

    @property
    def speedup(self) -> float:
        return self.plain / self.ideal

    @property
    def longest(self) -> float:
        """The longest step that decoded, in plain steps."""
        return max((step.ideal / step.each for step in self.steps), default=0.0)

    def worst_loss(self, epsilon: float = EPSILON) -> float:
        """Return the largest loss over any stretch of steps, in plain steps, less epsilon of that stretch's time."""
        worst = run = 0.0
        for step in self.steps:
            run = max(0.0, run + ((1 - epsilon) * step.ideal - step.plain) / step.each)
            worst = max(worst, run)
        return worst


class Simulation:
    """Runs texts through a governor, so many at a time.

    Args:
        tree_room: most nodes of a draft that branches; 0 verifies chains alone, as invariant numerics do.
    """

    def __init__(
        self,
        world: World,
        texts: Sequence[Text],
        governor: Governor,
        batch: int = 1,
        seed: int = 0,
        tree_room: int = 0,
    ) -> None:
        self.governor, self._batch = governor, batch
        self._machine = Machine(world, seed)
        self._waiting = [Live(i, text, tree_room) for i, text in enumerate(texts)]
        self.live: list[Live] = []
        least, clock = getattr(governor, "least_survival", lambda: 0.0), self._machine.clock
        self._desk = DraftDesk({name: Tracked(name, world, clock, least) for name in texts[0].tracks}, INFO, clock)
        self.steps: list[Step] = []
        self.tallies: list[Tally] = []
        self._tokens = 0

    def run(self) -> Result:
        """Go on until all texts have ended."""
        while self._waiting or self.live:
            self.step()
        return Result(self.steps, self.governor, self.tallies)

    def step(self) -> StepReport:
        """Do what the engine does in a step, and note what it took."""
        machine, decoding, prompt = self._machine, list(self.live), self._next()
        rows = prompt.text.prompt if prompt else 0
        position, begin = decoding[0].done if decoding else 0, machine.clock.ideal
        pending = [seq.num_tokens for seq in decoding]
        limits, start = self.governor.plan(decoding, rows), machine.clock.now
        drafts = self._desk.propose(decoding, limits, self.governor.value)  # type: ignore[arg-type]
        drafted = machine.clock.now
        verified = self.governor.trim(decoding, drafts)
        ran, forward_s = self._forward(pending, rows, verified, position)
        outcomes = [_commit(s, d, v) for s, d, v in zip(decoding, drafts, verified, strict=True)]
        tokens = sum(len(outcome.tokens) for outcome in outcomes)
        other_s = machine.rest(tokens + bool(prompt), position)
        spent = dict(self._desk.spent)
        took = machine.clock.ideal - begin - (machine.prompt(pending, rows, position) if prompt else 0.0)
        plain, each = machine.plain(pending, tokens, position, bool(prompt))
        if decoding:
            counts = len(decoding), sum(map(len, drafts)), sum(map(len, verified)), tokens
            self.steps.append(Step(*counts, took, plain, each, position, tuple(spent)))
        if prompt:
            outcomes.append(_commit(prompt, EMPTY, EMPTY))
            self.live.append(prompt)
        report = StepReport(outcomes, rows, drafted - start, forward_s, other_s, spent, ran)
        self.governor.observe(report)
        self._tokens += report.tokens
        self._release()
        return report

    def _next(self) -> Live | None:
        """Return the text whose prompt is read in this step."""
        if not self._waiting or len(self.live) >= self._batch:
            return None
        if self.live and self._waiting[0].text.after > self._tokens:
            return None
        prompt = self._waiting.pop(0)
        self._desk.begin(prompt)  # type: ignore[arg-type]
        return prompt

    def _forward(
        self, pending: Sequence[int], prompt: int, drafts: Sequence[Draft], position: int
    ) -> tuple[int, float]:
        """Return how many rows the governor lets run, and the measured seconds of the pass."""
        back = [tokens for tokens, draft in zip(pending, drafts, strict=True) for _ in range(1 + len(draft))]
        if prompt:
            return 0, self._machine.forward_with_prompt(back, prompt, position)
        ran = self.governor.costs.steady(len(back), plain=len(back) == len(pending))
        return ran, self._machine.forward(back, ran, position)

    def _release(self) -> None:
        for seq in [s for s in self.live if s.done >= s.text.length]:
            self.live.remove(seq)
            self._desk.end(seq)  # type: ignore[arg-type]
            self.tallies.append(seq.tally)


def _commit(seq: Live, drafted: Draft, verified: Draft) -> Outcome:
    begin, right, at = WORD + seq.done, 0, ROOT
    below = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(verified.parents, verified.tokens, strict=True))
    }
    while (child := below.get((at, begin + right))) is not None:
        at, right = child, right + 1
    count, tally = min(right + 1, seq.text.length - seq.done), seq.tally
    seq.done += count
    tally.steps += 1
    tally.plain_steps += not verified
    tally.drafted += len(drafted)
    tally.verified += len(verified)
    tally.accepted += count - 1
    return Outcome(seq, drafted, verified, tuple(range(begin, begin + count)))


def adaptive(world: World, names: Sequence[str], most: int = MOST) -> Adaptive:
    """Return a governor that has profiled a world."""
    return Adaptive(most, profiled(world, tuple(names)), tuple(names))


def simulate(world: World, texts: Sequence[Text], batch: int = 1, most: int = MOST, seed: int = 0) -> Result:
    """Run texts through the governor."""
    return Simulation(world, texts, adaptive(world, tuple(texts[0].tracks), most), batch, seed).run()
