"""An EAGLE-3 head as a drafter (2503.01840 §3.1): it reads the target's hidden states, then goes on from its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.eagle_draft import NAME, Chain, Sprout, Tree, rows_at
from paceline.drafters.features import Features, committed
from paceline.drafters.guesses import follows_target
from paceline.drafters.shaped import Head
from paceline.runners.heads import StepHead
from paceline.runners.kv import Pool, Slot

Floats = NDArray[np.float32]

CATCH_UP_ROWS = 512


@dataclass(slots=True, eq=False)
class _State:
    """What the head has of a sequence. Row i stands for the target's feature at position i and the token after it."""

    features: Features = field(default_factory=Features)
    """Of committed positions that no row stands for yet, and of the newest that one does."""
    slot: Slot | None = None
    skipped: int = 0
    """Positions without a row: their features were never seen, or were given up."""

    @property
    def done(self) -> int:
        """The first position that no row stands for, nor will, before it is read."""
        assert self.slot is not None
        return self.slot.length + self.skipped


@dataclass(slots=True, eq=False)
class _Asked:
    seq: SequenceView
    state: _State
    slot: Slot
    limit: int

    @property
    def last(self) -> int:
        """The position before the pending token: its row guesses what follows."""
        return len(self.seq.tokens) - 2


class EagleDrafter:
    """Drafts with a head that runs token by token.

    The target's features are kept until the head is asked, up to `features.MOST` a sequence; those of positions that
    the target took from its prefix cache were never seen. What is missing leaves a gap in what the head sees, which
    makes it weaker and nothing else: positions stay true. Rows of drafted tokens are never kept, for they were made
    from the head's own states.

    Args:
        runner: the head.
        pool: KV blocks of it; rows of the same text are shared.
        taps: layers of the target that it reads, in the order in which it wants them.
        head: which of the target's tokens its logits are of.
        tree_context: up to what length, drafted tokens included, trees can be verified; None is always, 0 never.
        least_survival: says below what chance of the target to confirm all so far a draft goes no further.
    """

    name = NAME

    def __init__(
        self,
        runner: StepHead,
        pool: Pool,
        taps: Sequence[int],
        head: Head,
        tree_context: int | None = None,
        least_survival: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._runner, self.pool, self._taps, self._head = runner, pool, tuple(taps), head
        self._tree_context, self._least = tree_context, least_survival
        self._states: dict[int, _State] = {}

    def begin(self, seq: SequenceView) -> None:
        self._states[seq.id] = _State()

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        self._states[seq.id].features.add(seen.begin, committed(seen, self._taps))

    def end(self, seq: SequenceView) -> None:
        state = self._states.pop(seq.id, None)
        if state is not None and state.slot is not None:
            self.pool.close(state.slot)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        try:
            return self._propose(seqs, limits)
        finally:
            # A row is committed only after the pass that made it, so that whatever was raised, what is left to take
            # back is room for rows that were not.
            for seq in seqs:
                state = self._states.get(seq.id)
                if state is not None and state.slot is not None:
                    self.pool.commit(state.slot, [])

    def _propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        asked = [self._start(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]
        answers = self._catch_up([a for a in asked if a is not None])
        sprouts: dict[int, Sprout] = {}
        for a in asked:
            if a is not None and a.seq.id in answers:
                sprout = self._sprout(a)
                if self.pool.reserve(a.slot, sprout.rows):
                    sprout.take(*answers[a.seq.id])
                    sprouts[a.seq.id] = sprout
        self._grow(list(sprouts.values()))
        return [sprouts[seq.id].draft() if seq.id in sprouts else EMPTY for seq in seqs]

    def _start(self, seq: SequenceView, limit: int) -> _Asked | None:
        """Settle where the head stands; None where nothing can be drafted."""
        state = self._states.get(seq.id)
        last = len(seq.tokens) - 2
        if limit <= 0 or state is None or last < 0 or not state.features.begin <= last < state.features.end:
            return None
        if state.slot is None:
            state.slot = self.pool.open(_codes(seq.tokens))
        back = state.done - last
        if back > 0 and not self.pool.rewind(state.slot, state.slot.length - back):
            return None
        if state.features.begin > state.done:
            state.slot.shared = state.slot.length  # what follows a gap is another's text to nobody
            state.skipped += state.features.begin - state.done
        return _Asked(seq, state, state.slot, limit)

    def _catch_up(self, asked: list[_Asked]) -> dict[int, tuple[Floats, Floats]]:
        """Run the rows of every committed position; return by id the answer and hidden state of the last of them.

        A sequence that the pool has no room for is left out.
        """
        answers: dict[int, tuple[Floats, Floats]] = {}
        missing = asked
        while missing := [a for a in missing if a.state.done <= a.last]:
            share = max(1, CATCH_UP_ROWS // len(missing))
            parts = {a.seq.id: range(a.state.done, min(a.state.done + share, a.last + 1)) for a in missing}
            missing = [a for a in missing if self.pool.reserve(a.slot, len(parts[a.seq.id]))]
            for a, answer in zip(missing, self._read([(a, parts[a.seq.id]) for a in missing]), strict=True):
                part = parts[a.seq.id]
                self.pool.commit(a.slot, _codes(a.seq.tokens[part.start : part.stop + 1]))
                a.state.features.drop(min(part.stop, a.last))
                answers[a.seq.id] = answer
        return {a.seq.id: answers[a.seq.id] for a in asked if a.state.done > a.last}

    def _read(self, parts: list[tuple[_Asked, range]]) -> list[tuple[Floats, Floats]]:
        """Run rows of the target's features; return the answer and hidden state of each part's last row."""
        if not parts:
            return []
        taps = [a.state.features.take(part.start, part.stop) for a, part in parts]
        spans = [
            rows_at(a.slot, list(a.seq.tokens[part.start + 1 : part.stop + 1]), a.slot.length, part.start)
            for a, part in parts
        ]
        found = self._runner.forward(spans, self._runner.fuse(np.concatenate(taps)))
        ends = np.cumsum([len(part) for _, part in parts])
        return [(found.logits[i : i + 1].copy(), found.hidden[end - 1 : end].copy()) for i, end in enumerate(ends)]

    def _sprout(self, asked: _Asked) -> Sprout:
        reach = self._tree_context
        fits = reach is None or len(asked.seq.tokens) + asked.limit <= reach
        kind = Tree if fits and follows_target(asked.seq.rule) else Chain
        return kind(self._head, asked.seq, asked.slot, asked.limit)

    def _grow(self, sprouts: list[Sprout]) -> None:
        """Run the drafts' own rows, those of all sequences at a time, until none wants more."""
        least = self._least()
        while True:
            wanted = [(sprout, rows) for sprout in sprouts if (rows := sprout.next(least)) is not None]
            if not wanted:
                return
            spans = [span for _, (span, _) in wanted]
            found = self._runner.forward(spans, np.concatenate([features for _, (_, features) in wanted]))
            logits = np.split(found.logits.copy(), np.cumsum([len(span.wanted) for span in spans])[:-1])
            hidden = np.split(found.hidden.copy(), np.cumsum([len(span.tokens) for span in spans])[:-1])
            sprouts = [sprout for sprout, _ in wanted]
            for sprout, answer, state in zip(sprouts, logits, hidden, strict=True):
                sprout.take(answer, state)


def _codes(tokens: Sequence[int]) -> list[int]:
    """Return what names each row for the pool: a row depends on all tokens up to the one after its position."""
    return [left << 32 | right for left, right in pairwise(tokens)]
