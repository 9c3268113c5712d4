"""A drafter's model at work: what it has cached of each text, caught up with lazily, and a draft's rows beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.core import tree
from paceline.core.sampling import Logits
from paceline.core.types import ROOT
from paceline.runners.base import Runner, Span, Want
from paceline.runners.kv import Pool, Slot

CATCH_UP_ROWS = 512
_END = 32
"""Tokens at its end by which a text is known again."""
FEW = 8
"""Rows up to which a pass of a small model costs about what one row does."""
IDLE = 16
"""Rows that may answer nothing before a change of a pass's size is cheaper: a change takes 4 ms where one row of half a
billion weights takes 0.3."""


class Steady:
    """How many rows a drafter's passes run, where a change of that number costs time (see `Want.rows`).

    A text is caught up with by one row or two, and drafted on by one: passes of up to `FEW` rows have two a text. A
    wider one is what the next are filled up to until the idle rows have cost a change (ski rental).
    """

    def __init__(self) -> None:
        self._ran, self._idle = 0, 0

    def rows(self, needed: int, texts: int) -> int:
        """Return the rows to run where so many are needed."""
        least = max(needed, 2 * texts) if 2 * texts <= FEW else needed
        idle = self._idle + self._ran - least
        stays = least < self._ran <= FEW and idle <= IDLE
        self._ran, self._idle = (self._ran, idle) if stays else (least, 0)
        return self._ran


class Telling(Protocol):
    """A sequence's text in the tokens that the drafter reads."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def extend(self, tokens: Sequence[int]) -> int:
        """Take in what the sequence has now, in the target's tokens.

        Returns:
            How many of `tokens` are still what they were before.
        """


class Taken:
    """How much of a sequence has been taken in. Its list grows in place, and after an error its end is taken back."""

    def __init__(self) -> None:
        self._count, self._end = 0, list[int]()

    def more(self, tokens: Sequence[int]) -> int:
        """Return how many tokens were there the last time, or 0 where these are not the same any more."""
        count = self._count
        same = count <= len(tokens) and list(tokens[max(0, count - _END) : count]) == self._end
        self._count, self._end = len(tokens), list(tokens[-_END:])
        return count if same else 0


class AsItIs:
    """The drafter reads the target's own tokens."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()
        self._taken = Taken()

    def extend(self, tokens: Sequence[int]) -> int:
        self.tokens = tokens
        return self._taken.more(tokens)


@dataclass(slots=True, eq=False)
class Reading:
    """One text: what is cached of it, and the rows that the last pass of its draft ran beyond that."""

    slot: Slot
    telling: Telling
    ahead: list[int] = field(default_factory=list)
    """[rows], tokens whose keys and values stand after the slot's own, not committed."""
    parents: list[int] = field(default_factory=list)
    """[rows], the row that each one follows, or ROOT."""

    @property
    def is_read(self) -> bool:
        return self.slot.length == len(self.telling.tokens)

    @property
    def missing(self) -> Sequence[int]:
        return self.telling.tokens[self.slot.length :]


class Reader:
    """Keeps a drafter's readings.

    Args:
        runner: the drafter's model.
        pool: KV blocks of that runner.
        tell: makes what turns a sequence's tokens into the drafter's.
    """

    def __init__(self, runner: Runner, pool: Pool, tell: Callable[[], Telling] = AsItIs) -> None:
        self.info = runner.info
        self._runner, self.pool, self._tell = runner, pool, tell
        self._readings: dict[int, Reading] = {}
        self._steady = Steady()

    def settle(self, seq_id: int, tokens: Sequence[int]) -> Reading | None:
        """Return a sequence's reading with what of its cache still holds; None where the drafter cannot read it."""
        reading = self._readings.get(seq_id)
        if reading is None:
            telling = self._tell()
            telling.extend(tokens)
            reading = self._readings[seq_id] = Reading(self.pool.open(telling.tokens), telling)
        else:
            self._rewind(reading, reading.telling.extend(tokens))
        missing = reading.missing
        return reading if missing and max(missing) < self.info.vocab_size else None

    def catch_up(self, readings: Sequence[Reading]) -> dict[int, Logits]:
        """Run what each text has gained since; return by place in `readings` the logits after its last token.

        A text that the pool has no room for is left out.
        """
        answers: dict[int, Logits] = {}
        behind = list(enumerate(readings))
        while behind := [(i, reading) for i, reading in behind if not reading.is_read]:
            share = max(1, CATCH_UP_ROWS // len(behind))
            parts = {i: reading.missing[:share] for i, reading in behind}
            behind = [(i, reading) for i, reading in behind if self.pool.reserve(reading.slot, len(parts[i]))]
            spans = [_last_answered(reading.slot, parts[i]) for i, reading in behind]
            for (i, reading), [logits] in zip(behind, self.run(spans), strict=True):
                answers[i] = logits
                self.pool.commit(reading.slot, parts[i])
        return {i: logits for i, logits in answers.items() if readings[i].is_read}

    def keep(self, reading: Reading, rows: Sequence[int]) -> None:
        """Commit some of the rows ahead, each the child of the one before, and drop the others."""
        self.pool.commit(reading.slot, [reading.ahead[row] for row in rows], rows)
        reading.ahead, reading.parents = [], []

    def go_on(self, reading: Reading, tokens: Sequence[int], parents: Sequence[int]) -> bool:
        """Put these rows ahead, in causal order, for the next `run`; False where the pool has no room."""
        if not self.pool.reserve(reading.slot, len(tokens)):
            return False
        reading.ahead, reading.parents = list(tokens), list(parents)
        return True

    def run(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """Return for each span the logits of its wanted rows."""
        if not spans:
            return []
        needed = sum(len(span.tokens) for span in spans)
        want = Want(rows=self._steady.rows(needed, len(spans)))
        rows = iter(self._runner.forward(spans, want).logits.copy())
        return [[next(rows) for _ in span.wanted] for span in spans]

    def end(self, seq_id: int) -> None:
        reading = self._readings.pop(seq_id, None)
        if reading is not None:
            self.pool.close(reading.slot)

    def _rewind(self, reading: Reading, same: int) -> None:
        """Drop what is cached of another text: of one since told in other tokens, or of a draft that was not taken.

        The last token's row must run again for its answer, so it is never kept.
        """
        slot, tokens = reading.slot, reading.telling.tokens
        same = min(same, slot.length)
        same += common(slot.tokens[same:], tokens[same:])
        taken = [] if same < slot.length else _follow(reading, tokens[same:])
        self.keep(reading, taken)
        if not self.pool.rewind(slot, max(0, min(same + len(taken), len(tokens) - 1))):
            self.pool.close(slot)
            reading.slot = self.pool.open(tokens)


def ahead(reading: Reading, wanted: Sequence[int]) -> Span:
    """Return the rows ahead as a span; each sees what is cached and the rows on its own path."""
    slot, rows = reading.slot, len(reading.ahead)
    span = Span.causal(reading.ahead, slot.length, slot.table, wanted)
    if reading.parents == list(range(-1, rows - 1)):
        return span
    mask = tree.ancestor_mask(reading.parents)[1:, 1:]
    return Span(span.tokens, span.cached, span.blocks, span.wanted, slot.length + mask.sum(1) - 1, mask)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def _follow(reading: Reading, tokens: Sequence[int]) -> list[int]:
    """Return the rows ahead that these tokens take, as far as they do."""
    below = {key: row for row, key in enumerate(zip(reading.parents, reading.ahead, strict=True))}
    path: list[int] = []
    for token in tokens:
        row = below.get((path[-1] if path else ROOT, token))
        if row is None:
            break
        path.append(row)
    return path


def _last_answered(slot: Slot, tokens: Sequence[int]) -> Span:
    return Span.causal(tokens, slot.length, slot.table, [len(tokens) - 1])
