"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.bench.memory import Peak
from paceline.bench.modes import AUTO, PLAIN, Mode, Modes, listed
from paceline.bench.prove import law, limits, traffic
from paceline.bench.prove.checks import Check, Report
from paceline.bench.prove.equality import Equality, samplings
from paceline.bench.prove.speed import Speed
from paceline.bench.provenance import provenance
from paceline.bench.trials import Ask, Say, Turn, take
from paceline.bench.workloads import fitting, load
from paceline.config import Config
from paceline.core.types import Rule, SamplingParams, SpeculationParams
from paceline.engine import identity
from paceline.engine.llm import LLM

SAMPLED: tuple[Rule, ...] = ("ratio", "block")
USED = "always,fixed:8,auto"
"""Modes whose texts are compared with plain decoding's."""
SAMPLERS = ("model", "heads")
"""Drafters that may draw from a law of their own."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is asked."""

    prompts: int = 3
    """Of each category, for texts."""
    max_tokens: int = 32
    draws: int = 12_000
    """Tokens under each rule that samples."""
    timed: int = 1
    """Prompts of each category, for speed."""
    timed_tokens: int = 48
    bad: int = 3
    """Prompts of each kind of hard traffic."""


QUICK = Effort(prompts=1, draws=3000, timed_tokens=32, bad=2)


class Prove:
    """Holds what was found, so that whoever is interrupted keeps it.

    Args:
        again: the command that does all this again.
    """

    def __init__(self, llm: LLM, config: Config, effort: Effort, again: str) -> None:
        self._llm, self._config, self._effort, self._again = llm, config, effort, again
        self._modes = Modes(llm, SamplingParams(effort.max_tokens, seed=1))
        self._checks: list[Check] = []
        self._turns: list[Turn] = []
        self._peak = Peak()
        self._is_complete = False

    def run(self, say: Say) -> None:
        self._peak.reset()
        self._modes.warm_up([PLAIN, AUTO])
        self._equality(say)
        self._law(say)
        self._speed(say)
        self._bad_traffic(say)
        self._checks += limits.latencies(self._config.targets, self._turns, self._bench(self._batches()[-1]))
        plan = self._llm.chosen.memory
        planned = None if plan is None else plan.total
        self._checks += limits.memory(self._config.targets, self._peak.read(), planned, self._again)
        self._is_complete = True

    def report(self) -> Report:
        """Return what was found so far."""
        chosen = self._llm.chosen
        info = self._llm.engine.target.info
        about = {
            "model": chosen.target.source.id,
            "content": identity.content(chosen.target, info.weights),
            "draft": None if chosen.draft is None else chosen.draft.source.id,
            "draft_content": None if chosen.draft is None else identity.content(chosen.draft, chosen.draft_weights),
            "drafters": ",".join(self._llm.engine.desk.drafters),
            "weights": info.weights,
            "sequences": chosen.options.sequences,
        }
        return Report(provenance() | about, tuple(self._checks), self._is_complete)

    def _equality(self, say: Say) -> None:
        effort = self._effort
        found = Equality(self._modes, self._config.audit.tolerance)
        used: tuple[Mode, ...] = listed(USED)
        asked: list[Ask] = []
        for sampling in samplings(effort.max_tokens):
            asked += fitting(self._llm, load("ours", effort.prompts), sampling)
        found.run(asked, used, self._llm.chosen.options.sequences, say)
        self._checks.append(found.check(self._again))

    def _law(self, say: Say) -> None:
        if not set(SAMPLERS) & set(self._llm.engine.desk.drafters):
            self._checks.append(law.not_asked(SAMPLED))
            return
        for rule in SAMPLED:
            draws, laws, seed = law.Draws(), law.Laws(), 0
            batch = self._llm.chosen.options.sequences
            mode = Mode(rule, SpeculationParams("always", max_draft=4, rule=rule))
            items = fitting(self._llm, load("short", 1), SamplingParams(4 * self._effort.max_tokens))
            while draws.count < self._effort.draws:
                say(f"same law: {rule}", draws.count, self._effort.draws)
                sampling = replace(items[0].sampling, temperature=1.0, logprobs=law.KNOWN, ignore_eos=True)
                group = []
                for _ in range(batch):
                    group.append(replace(items[seed % len(items)], sampling=replace(sampling, seed=seed)))
                    seed += 1
                for done in take(self._modes, mode, group, batch, watch=laws.stepped).done:
                    draws.add(done, laws.of(done.request_id))
            self._checks.append(law.check(rule, draws, self._again))

    def _speed(self, say: Say) -> None:
        sampling = SamplingParams(self._effort.timed_tokens, seed=1)
        asked = fitting(self._llm, load("short", self._effort.timed), sampling)
        for batch in self._batches():
            mixed = [replace(ask, category="all") for ask in asked]
            self._measure("our prompts", mixed, batch, say)

    def _bad_traffic(self, say: Say) -> None:
        sampling = SamplingParams(self._effort.timed_tokens, seed=1)
        for name, asked in traffic.kinds(self._llm, sampling, self._effort.bad).items():
            self._measure(name, asked, 1, say)

    def _measure(self, name: str, asked: Sequence[Ask], batch: int, say: Say) -> None:
        found = Speed(self._modes, name, batch, self._config.targets.slowdown)
        found.run(asked, say)
        self._turns += found.turns
        self._checks.append(found.check(self._bench(batch)))

    def _batches(self) -> tuple[int, ...]:
        """Return 1, 2, 4 and so on, up to as many as may run."""
        most, found = self._llm.chosen.options.sequences, [1]
        while 2 * found[-1] <= most:
            found.append(2 * found[-1])
        return tuple(dict.fromkeys((*found, most)))

    def _bench(self, batch: int) -> str:
        chosen = self._llm.chosen
        draft = "" if chosen.draft is None else f" --draft {chosen.draft.source.id}"
        return f"paceline bench --model {chosen.target.source.id}{draft} --batch {batch}"
