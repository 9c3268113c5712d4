"""Measures a model with its drafters at one length, and says what to do."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.bench.modes import PLAIN, Mode, Modes
from paceline.bench.provenance import provenance
from paceline.bench.stats import Ratio, compare
from paceline.bench.synthetic import COSTLY
from paceline.bench.trials import Ask, Say, Turn, interleave
from paceline.bench.tune.predict import WORTH, Drafting, Observed, Seconds, at_batch, over_all, predicted
from paceline.bench.workloads import Workload, fitting
from paceline.core.types import Completion, SamplingParams
from paceline.engine.llm import LLM
from paceline.governor.costs import Costs

DEEPEST = 8
"""The length of the run from which the others are predicted."""
LENGTHS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 2, 4, 8, 16, 32)
PARTS = ("draft", "verify", "other")
MOST_ROWS = 32 * (1 + 8)
"""Of a pass that is asked about."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter at a length, and what is expected of it."""

    drafter: str
    draft: str | None
    """The draft model, if it is one."""
    length: int
    ratio: float
    """Over all categories, as their geometric mean."""
    by_category: dict[str, Ratio]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What was seen of one drafter, and all that follows from it."""

    drafter: str
    draft: str | None
    memory_bytes: int | None
    """What it takes beside the target; None where it is not planned."""
    choices: tuple[Choice, ...]
    """By length."""
    by_batch: tuple[tuple[int, int, float], ...]
    """(batch, best length, ratio); length 0 where nothing pays."""

    @property
    def best(self) -> Choice:
        return max(self.choices, key=lambda choice: choice.ratio)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and why."""

    provenance: dict[str, Any]
    model: str
    candidates: tuple[Candidate, ...]
    checked: dict[str, Ratio]
    """What a short measured run of the choice found, by category; empty where nothing is to be done."""

    @property
    def best(self) -> Candidate:
        return max(self.candidates, key=lambda candidate: candidate.best.ratio)

    @property
    def pays(self) -> bool:
        return self.best.best.ratio >= WORTH

    @property
    def stops_at(self) -> int | None:
        """The batch size from which on it does not pay; None where it pays at all that were asked about."""
        return next((batch for batch, length, _ in self.best.by_batch if not length), None)

    def as_json(self) -> dict[str, Any]:
        return {"pays": self.pays, "stops_at": self.stops_at, **asdict(self)}


class Tuner:
    """One loaded model and the drafters that it has.

    Args:
        draft: the draft model that it was loaded with, as the user named it.
    """

    def __init__(self, llm: LLM, draft: str | None, workload: Workload, sampling: SamplingParams) -> None:
        self._llm, self._draft = llm, draft
        self._asks: list[Ask] = fitting(llm, workload, sampling)
        self._modes = Modes(llm, sampling)

    def drafters(self) -> list[str]:
        """Return those that can be weighed one by one: what a caller must supply is not among them."""
        return [name for name in self._llm.engine.desk.drafters if name not in ("prediction", "grammar")]

    def weigh(self, drafter: str, say: Say) -> Candidate:
        """Run it once at the deepest length, beside plain decoding, and predict the rest."""
        mode = Mode.parse(f"{drafter}:{DEEPEST}")
        self._modes.warm_up([PLAIN, mode])
        turns = list(interleave(self._modes, self._asks, [PLAIN, mode], 1, 1, say))
        seen = self._observed(turns, mode.name)
        with self._modes.turn(mode):  # what this very run has learnt of costs
            costs = copy.deepcopy(self._llm.engine.governor.costs)
        curve, drafting = passes(costs), _drafting(costs, drafter, seen)
        choices = []
        for length in LENGTHS:
            found = predicted(seen, length, curve, drafting)
            choices.append(Choice(drafter, self._named(drafter), length, over_all(found), found))
        by_batch = [(batch, *_at(costs, seen, drafter, drafting, batch)) for batch in BATCHES]
        return Candidate(drafter, self._named(drafter), self._memory(drafter), tuple(choices), tuple(by_batch))

    def check(self, choice: Choice, say: Say) -> dict[str, Ratio]:
        """Measure a choice against plain decoding, by category."""
        mode = Mode.parse(f"{choice.drafter}:{choice.length}")
        turns = list(interleave(self._modes, self._asks, [PLAIN, mode], 1, 1, say))
        groups: dict[str, list[list[float]]] = {}
        for number, ask in enumerate(self._asks):
            plain, mine = (_of(turns, name, number) for name in (PLAIN.name, mode.name))
            ratios = [
                a.a_token_s / b.a_token_s for a, b in zip(plain, mine, strict=True) if a.a_token_s and b.a_token_s
            ]
            if ratios:
                groups.setdefault(ask.category, []).append(ratios)
        return {category: compare({category: ratios}) for category, ratios in groups.items()}

    def _observed(self, turns: Sequence[Turn], mode: str) -> list[Observed]:
        found = []
        for number, ask in enumerate(self._asks):
            plain, mine = _of(turns, PLAIN.name, number), _of(turns, mode, number)
            done: list[Completion] = [turn.done[0] for turn in mine]
            if not all(turn.decode_tokens for turn in (*plain, *mine)):
                continue
            plain_s = sum(turn.decode_s for turn in plain) / sum(turn.decode_tokens for turn in plain)
            # The first step belongs to the prompt: its pass read that, and what it took is not decoding.
            traces = [each.speculation.trace[1:] for each in done]
            parts = [sum(getattr(each.speculation, f"{p}_ms") for each in done) / 1e3 for p in PARTS]
            plainly = [turn.done[0].speculation for turn in plain]
            pass_s = sum(each.verify_ms for each in plainly) / 1e3 / sum(each.steps for each in plainly)
            whole = sum(turn.decode_s for turn in mine)
            scale = whole / max(sum(parts), 1e-9)
            trace = tuple((step.verified, step.accepted) for steps in traces for step in steps)
            if trace:
                found.append(Observed(ask.category, plain_s, pass_s, trace, *(part * scale for part in parts)))
        return found

    def _named(self, drafter: str) -> str | None:
        return self._draft if drafter == "model" else None

    def _memory(self, drafter: str) -> int | None:
        plan = self._llm.chosen.memory
        if plan is None:
            return None
        return plan.draft_weights + plan.draft_kv if drafter in COSTLY else plan.remembered


def passes(costs: Costs) -> Seconds:
    """Return what passes take, filled up as the engine fills them: more rows never less, where it seems so those with
    fewer met a bad moment."""
    costs.disturb()
    ran = [costs.steady(rows, plain=rows == 1) for rows in range(1, MOST_ROWS + 1)]
    seconds = np.array([costs.forward(rows) for rows in ran])
    seconds = np.minimum.accumulate(seconds[::-1])[::-1]
    return lambda rows: float(seconds[min(rows, MOST_ROWS) - 1])


def _drafting(costs: Costs, drafter: str, seen: Sequence[Observed]) -> Drafting:
    if drafter in COSTLY:
        return Drafting(costs.draft(drafter, 1), 0.0)
    return Drafting(0.0, sum(each.draft_s for each in seen) / max(1, sum(len(each.trace) for each in seen)))


def _at(costs: Costs, seen: Sequence[Observed], drafter: str, drafting: Drafting, batch: int) -> tuple[int, float]:
    """Return the best length at a batch size, 0 where none pays, and its ratio."""
    alone = costs.draft(drafter, 1) if drafter in COSTLY else 0.0
    growth = costs.draft(drafter, batch) / alone if alone else float(batch)
    curve = passes(costs)
    ratios = {n: at_batch(seen, n, batch, curve, drafting, growth) for n in LENGTHS}
    best = max(ratios, key=lambda n: ratios[n])
    return (best, ratios[best]) if ratios[best] >= WORTH else (0, ratios[best])


def advice(model: str, candidates: Sequence[Candidate], checked: dict[str, Ratio]) -> Advice:
    return Advice(provenance(), model, tuple(candidates), checked)


def _of(turns: Sequence[Turn], mode: str, number: int) -> list[Turn]:
    return [turn for turn in turns if turn.mode == mode and turn.numbers == (number,)]
