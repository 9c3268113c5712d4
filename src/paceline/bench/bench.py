"""Prompts in several modes: plain decoding and others take turns, timed, counted and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.bench.arrivals import Arrivals
from paceline.bench.memory import Peak
from paceline.bench.modes import PLAIN, Mode, Modes
from paceline.bench.provenance import provenance
from paceline.bench.result import Difference, Point, Result, Texts
from paceline.bench.summary import Seen, Summary, noise, pace
from paceline.bench.synthetic import install
from paceline.bench.texts import parting
from paceline.bench.trials import Ask, Say, Turn, interleave, take
from paceline.core.types import SpeculationParams
from paceline.engine.llm import LLM
from paceline.errors import OptionError

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SHOWN = 20
"""Differences that are named, the first ones."""


class Bench:
    """Holds what was measured, so that whoever is interrupted keeps it.

    Args:
        workload: its name.
        asks: each with a seed, for texts are compared.
        used: the first one is the reference.
        arrivals: None keeps as many running as the batch says.
        acceptance: by depth, in the place of the drafters' own; see `synthetic`.

    Raises:
        OptionError: the modes cannot be compared.
    """

    def __init__(
        self,
        llm: LLM,
        workload: str,
        asks: Sequence[Ask],
        used: Sequence[Mode],
        arrivals: Arrivals | None = None,
        acceptance: Sequence[float] | None = None,
    ) -> None:
        if len({mode.name for mode in used}) < max(2, len(used)):
            raise OptionError(f"modes are {', '.join(m.name for m in used)}; name two or more, each once")
        self._llm, self._used, self._workload, self._arrivals = llm, tuple(used), workload, arrivals
        self.asks = tuple(asks)
        self.modes = Modes(llm, self.asks[0].sampling)
        self._acceptance = None if acceptance is None else tuple(acceptance)
        self.seen: list[Seen] = []
        self._said: dict[tuple[int, ...], Turn] = {}
        """The reference's first answers to each group."""
        self._early: list[Turn] = []
        """Turns that came before those."""
        self._texts = Texts(0, 0, 0, 0)
        self._differences: list[Difference] = []

    def run(self, batches: Sequence[int], repeat: int, say: Say) -> None:
        """Measure; each mode runs once before, so that what is made at a first step is made."""
        peak = Peak()
        if self._acceptance is not None:
            self._synthesise(self._acceptance, say)
        self.modes.warm_up(self._used)
        for batch in batches:
            self._said.clear()
            self._early.clear()
            turns = self._turns(batch, repeat, say)
            while True:
                peak.reset()
                if (turn := next(turns, None)) is None:
                    break
                self.seen.append(Seen(turn, peak.read()))
                self._read(turn)

    def result(self) -> Result:
        """Sum up what there is so far."""
        reference = self._used[0].name
        summary = Summary(self._workload, self.asks, reference, self._arrivals is not None)
        comparisons = summary.comparisons(self.seen)
        turns = [each.turn for each in self.seen]
        kinds = dict.fromkeys((turn.batch, turn.mode) for turn in turns)
        return Result(
            provenance=provenance() | self._about(),
            cells=summary.cells(self.seen),
            comparisons=comparisons,
            text_identical=self._texts,
            noise=noise(comparisons),
            differences=tuple(self._differences),
            cost_curve=self._curve(),
            paces=tuple(pace(*kind, [t for t in turns if (t.batch, t.mode) == kind]) for kind in kinds),
            synthetic=self._acceptance,
        )

    def _synthesise(self, rates: Sequence[float], say: Say) -> None:
        answers = {}
        for number, ask in enumerate(self.asks):
            say("what plain decoding says", number, len(self.asks))
            answers[ask.prompt] = take(self.modes, PLAIN, [ask], 1).done[0].token_ids
        install(self._llm, rates, answers)

    def _turns(self, batch: int, repeat: int, say: Say) -> Iterator[Turn]:
        if self._arrivals is None:
            yield from interleave(self.modes, self.asks, self._used, batch, repeat, say)
            return
        starts = self._arrivals.starts(len(self.asks))
        whole, done = 2 * repeat * len(self._used), 0
        for _ in range(repeat):
            for mode in (*self._used, *reversed(self._used)):
                say(f"requests that come by themselves: {mode.name}", done, whole)
                yield take(self.modes, mode, self.asks, batch, starts=starts)
                done += 1

    def _read(self, turn: Turn) -> None:
        """Compare a turn's texts with the reference's first ones to the same prompts, as soon as those are there."""
        if (first := self._said.get(turn.numbers)) is not None:
            self._compare(first, turn)
        elif turn.mode != self._used[0].name:
            self._early.append(turn)
        else:
            self._said[turn.numbers] = turn
            for early in self._early:
                self._compare(turn, early)
            self._early.clear()

    def _compare(self, first: Turn, turn: Turn) -> None:
        if not all(each.speculation.lossless for each in turn.done):
            return
        if any(each.speculation.rule != "coupled" for each in turn.done):
            return  # exact in law, and another text by right
        equal = ties = different = 0
        for number, plain, other in zip(turn.numbers, first.done, turn.done, strict=True):
            ask = self.asks[number]
            request = self._llm.request(ask.prompt, ask.sampling, SpeculationParams("off"))
            found = parting(self._llm, request, plain, other)
            equal += found is None
            ties += found is not None and found.is_near_tie()
            different += found is not None and not found.is_near_tie()
            if found is not None and len(self._differences) < SHOWN:
                where = (ask.category, turn.batch, turn.mode, number, found.position, found.gap)
                self._differences.append(Difference(*where))
        t = self._texts
        self._texts = Texts(t.equal + equal, t.prompts + len(turn.done), t.near_ties + ties, t.different + different)

    def _curve(self) -> tuple[Point, ...]:
        costs = self._llm.engine.governor.costs
        if not costs.known:
            return ()
        return tuple(Point(rows, costs.forward(rows) * 1e3) for rows in ROWS)

    def _about(self) -> dict[str, str | None]:
        chosen = self._llm.chosen
        info = self._llm.engine.target.info
        draft = None if chosen.draft is None or "model" not in chosen.drafters else chosen.draft.source.id
        about = {"model": chosen.target.source.id, "draft": draft, "runner": info.name, "weights": info.weights}
        return about | {"drafters": ",".join(chosen.drafters), "workload": self._workload}
