"""A drafter from outside of paceline: what followed two tokens before follows them again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.resources import files

from paceline.core.tree import Draft
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.drafters.registry import Surroundings

ORDER = 2
"""Tokens that a guess looks back on."""


class Table:
    """What has followed each pair of tokens, and how often."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def learn(self, tokens: Sequence[int], begin: int = 0) -> None:
        """Count the tokens of a text from `begin` on."""
        for end in range(max(ORDER, begin), len(tokens)):
            self._after[tuple(tokens[end - ORDER : end])][tokens[end]] += 1

    def guess(self, pair: tuple[int, ...]) -> tuple[int, float] | None:
        """Return what followed most often, and its share; one more that was never seen is counted as well."""
        found = self._after.get(pair)
        if not found:
            return None
        token, count = found.most_common(1)[0]
        return token, count / (found.total() + 1)


class Trigram:
    """Guesses from the sequence's own text, and where that says nothing from phrases that come with the package.

    No sequence learns from another, so nothing that one caller wrote is drafted for the next.
    """

    name = "trigram"

    def __init__(self, phrases: Sequence[Sequence[int]] = ()) -> None:
        self._phrases = Table()
        self._own: dict[int, Table] = {}
        self._read: dict[int, int] = {}
        for phrase in phrases:
            self._phrases.learn(phrase)

    def begin(self, seq: SequenceView) -> None:
        self._own[seq.id], self._read[seq.id] = Table(), 0

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._follow(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # the text itself is read when the next draft is asked for

    def end(self, seq: SequenceView) -> None:
        del self._own[seq.id], self._read[seq.id]

    def _follow(self, seq: SequenceView, limit: int) -> Draft:
        own = self._own[seq.id]
        own.learn(seq.tokens, self._read[seq.id])
        self._read[seq.id] = len(seq.tokens)
        pair = tuple(seq.tokens[-ORDER:])
        tokens: list[int] = []
        confidence: list[float] = []
        while len(tokens) < limit and (found := own.guess(pair) or self._phrases.guess(pair)):
            tokens.append(found[0])
            confidence.append(found[1])
            pair = (*pair[1:], found[0])
        return Draft.chain(tokens, self.name, confidence)


def make(given: Surroundings) -> Drafter:
    """Make the drafter; this is what the entry point names."""
    text = (files(__name__) / "phrases.txt").read_text(encoding="utf-8")
    encode = given.tokenizer.encode if given.tokenizer else None
    return Trigram([encode(line) for line in text.splitlines()] if encode else [])
