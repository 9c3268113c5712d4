"""Prompt lookup: what followed the last time these tokens stood in this sequence (Saxena 2023; LLMA, 2304.04487)."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Seen, SequenceView

LONGEST, SHORTEST = 8, 2


class Lookup:
    """Follows the longest match of up to `longest` tokens; of equally long ones the most recent."""

    name = "lookup"

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._longest, self._shortest = longest, shortest
        self._indexes: dict[int, _Index] = {}

    def begin(self, seq: SequenceView) -> None:
        self._indexes[seq.id] = _Index(self._shortest, self._longest)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._follow(seq, limit) if limit else EMPTY for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # the sequence itself is all there is to learn from

    def end(self, seq: SequenceView) -> None:
        del self._indexes[seq.id]

    def _follow(self, seq: SequenceView, limit: int) -> Draft:
        index = self._indexes[seq.id]
        index.extend(seq.tokens)
        place, length = index.longest_match(seq.tokens)
        if not length:
            return EMPTY
        tokens = seq.tokens[place : place + limit]
        return Draft.chain(tokens, self.name, [confidence(length)] * len(tokens))


def confidence(match_length: int) -> float:
    """A prior for how often a followed match goes on; the governor learns better."""
    return 1 - float(0.6 ** (match_length - 0.5))


class _Index:
    """Where each n-gram last stood, built as the sequence grows."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._sizes = range(shortest, longest + 1)
        self._done = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that now have a token after them."""
        for end in range(max(self._done, 1), len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._after[tuple(tokens[end - n : end])] = end
        self._done = len(tokens)

    def longest_match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return where the text went on after the last tokens stood before, and how many of them matched (0: never)."""
        for n in reversed(self._sizes):
            place = self._after.get(tuple(tokens[-n:])) if n <= len(tokens) else None
            if place is not None:
                return place, n
        return 0, 0
