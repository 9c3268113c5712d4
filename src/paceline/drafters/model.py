"""A small model that guesses what comes next: a chain, or a tree where the target can verify one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.sampling import Logits
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.beam import WIDTH, Beam, Level
from paceline.drafters.guesses import follows_target
from paceline.drafters.reading import AsItIs, Reader, Reading, ahead
from paceline.drafters.retelling import Retelling
from paceline.drafters.shaped import Head
from paceline.drafters.wording import Wording
from paceline.models.bridge import Bridge
from paceline.runners.base import Runner, RunnerInfo
from paceline.runners.kv import Pool


class Grower(Protocol):
    """One sequence's draft in the making; see `Beam`."""

    def grow(self, node: int, logits: Logits) -> None: ...

    def next_level(self, least: float) -> Level | None: ...

    def draft(self, source: str) -> Draft: ...


@dataclass(slots=True, eq=False)
class _Work:
    reading: Reading
    grower: Grower
    level: Level | None = None


class ModelDrafter:
    """Drafts with a model of its own.

    Under the coupled rule it draws with the target's noise; under ratio and block with noise of its own, and keeps
    the laws that it drew from. A draft ends early when the target is unlikely to get that far: under the rules that
    sample the decision uses only the law, never the token drawn from it, so that it biases no rule.

    Args:
        runner: the drafter; its logits may be of `vocabulary` alone.
        pool: KV blocks of that runner.
        vocabulary: token ids of the runner's logits, ascending; None when they are all.
        least_survival: says below what chance of the target to get to any of its nodes a pass does not pay.
        target: of the model that verifies; None is one with the drafter's own tokens, which verifies chains.
        bridge: to the target's tokens; None where they are the drafter's.
    """

    name = "model"

    def __init__(
        self,
        runner: Runner,
        pool: Pool,
        vocabulary: NDArray[np.int64] | None = None,
        least_survival: Callable[[], float] = lambda: 0.0,
        target: RunnerInfo | None = None,
        bridge: Bridge | None = None,
    ) -> None:
        size = runner.info.vocab_size
        self._columns = np.arange(size, dtype=np.int64) if vocabulary is None else vocabulary
        self._bridge = None if bridge is None or bridge.way == "native" else bridge
        self._own: Mapping[int, int] | None = None
        self._reader = Reader(runner, pool, AsItIs if self._bridge is None else partial(Retelling, self._bridge))
        names = self._columns
        if self._bridge is not None:
            names = self._bridge.names_of(self._columns)
            self._own = dict(zip(names.tolist(), self._columns.tolist(), strict=True))
        self._head = Head(target.vocab_size if target else size, names)
        self._least = least_survival
        self._reaches = (target.tree_context if target else 0, runner.info.tree_context)

    @property
    def pool(self) -> Pool:
        """The KV blocks of its own model."""
        return self._reader.pool

    def begin(self, seq: SequenceView) -> None:
        pass  # the prompt is read when the first draft is asked for

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        try:
            return self._propose(seqs, limits)
        except BaseException:
            # The caches stand where they were left; whoever asks again, for one of these alone, starts anew.
            for seq in seqs:
                self.end(seq)
            raise

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # the next draft compares what is cached with what was committed

    def end(self, seq: SequenceView) -> None:
        self._reader.end(seq.id)

    def _propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        all_work = [self._start(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]
        able = [work for work in all_work if work is not None]
        answers = self._reader.catch_up([work.reading for work in able])
        for i, logits in answers.items():
            able[i].grower.grow(ROOT, logits)
        active, least = [able[i] for i in sorted(answers)], self._least()
        while active := [work for work in active if self._goes_on(work, least)]:
            self._pass(active)
        return [EMPTY if work is None else work.grower.draft(self.name) for work in all_work]

    def _start(self, seq: SequenceView, limit: int) -> _Work | None:
        """Settle which cached rows still hold; None where nothing can be drafted."""
        reading = self._reader.settle(seq.id, seq.tokens) if limit > 0 else None
        if reading is None:
            return None
        room = self._reader.info.context - len(reading.telling.tokens)
        return _Work(reading, self._grower(seq, limit, room)) if room > 0 else None

    def _grower(self, seq: SequenceView, limit: int, room: int) -> Grower:
        if self._bridge is not None and self._bridge.way == "retokenised":
            return Wording(self._bridge, self._columns, seq.shaping.params.temperature, limit, room)
        limit = min(limit, room)
        branches = follows_target(seq.rule) and self._reaches_to(len(seq.tokens) + limit)
        return Beam(seq, self._head, limit, WIDTH if branches else 1, self._own)

    def _reaches_to(self, length: int) -> bool:
        """Whether both models run trees in texts so long as they run chains."""
        return all(reach is None or length <= reach for reach in self._reaches)

    def _goes_on(self, work: _Work, least: float) -> bool:
        """Make room for the draft's next pass; False where there is none."""
        level = work.level = work.grower.next_level(least)
        if level is None:
            return False
        self._reader.keep(work.reading, level.kept)
        return self._reader.go_on(work.reading, level.tokens, level.parents)

    def _pass(self, active: Sequence[_Work]) -> None:
        levels = [work.level for work in active if work.level is not None]
        found = self._reader.run(
            [ahead(work.reading, level.wanted) for work, level in zip(active, levels, strict=True)]
        )
        for work, level, rows in zip(active, levels, found, strict=True):
            for node, logits in zip(level.nodes, rows, strict=True):
                work.grower.grow(node, logits)
