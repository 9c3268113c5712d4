"""Where in a text the tokens that were just said may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 8
"""Most tokens that are compared."""
MOST = 512
"""Most places that are compared, those nearest to where the text is expected to go on."""
BEHIND = 3.0
"""Bits that a place before the expected one must make up for: answers seldom go back."""
LEAST_BITS, MOST_BITS = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Match:
    """A place, which is the index of the token that comes next there."""

    place: int
    length: int
    """How many tokens before it are those that were said."""
    bits: float
    """How much speaks for it: what the matched tokens tell, less the distance."""


class Places:
    """An index over a text of tokens.

    A matched token tells log2(1 / its share of the text) bits, as in a code that is made for this text; being `n`
    tokens away costs log2(1 + n) bits, as in a code for distances. So a rare word is found again wherever it stands,
    and a bracket only close by.
    """

    def __init__(self, text: Sequence[int]) -> None:
        ids = np.array(text, np.int64)
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        begins = np.flatnonzero(np.diff(self._sorted, prepend=-1))
        counts = np.diff(begins, append=len(ids))
        told = np.empty(len(ids))
        told[self._order] = np.repeat(np.clip(np.log2(len(ids) / counts), LEAST_BITS, MOST_BITS), counts)
        self.text: tuple[int, ...] = tuple(ids.tolist())
        self.bits: list[float] = told.tolist()
        """What each token of the text tells."""
        self._total = np.concatenate(([0.0], np.cumsum(told)))
        self._padded = np.concatenate((np.full(LONGEST, -1, np.int64), ids))

    def of(self, token: int) -> NDArray[np.int64]:
        """Return where a token stands, ascending."""
        low, high = np.searchsorted(self._sorted, token), np.searchsorted(self._sorted, token, "right")
        return self._order[low:high].astype(np.int64, copy=False)

    def best(self, said: Sequence[int], expected: int) -> Match | None:
        """Return the place that most speaks for, of equal ones the first; None where the last token never stands.

        Args:
            said: what was said last, at least one token.
            expected: the place where the text was last known to go on.
        """
        places = self._nearest(self.of(said[-1]) + 1, expected)
        if not len(places):
            return None
        lengths = self._lengths(places, said[-LONGEST:])
        away = np.where(places >= expected, np.maximum(places - lengths - expected, 0), expected - places)
        bits = self._total[places] - self._total[places - lengths] - np.log2(1 + away) - BEHIND * (places < expected)
        best = int(np.argmax(bits))
        return Match(int(places[best]), int(lengths[best]), float(bits[best]))

    def _nearest(self, places: NDArray[np.int64], expected: int) -> NDArray[np.int64]:
        if len(places) <= MOST:
            return places
        begin = int(np.searchsorted(places, expected)) - MOST // 4
        begin = min(max(begin, 0), len(places) - MOST)
        return places[begin : begin + MOST]

    def _lengths(self, places: NDArray[np.int64], said: Sequence[int]) -> NDArray[np.int64]:
        """Return for each place how many tokens before it are the last ones of `said`."""
        back = np.arange(len(said))
        before = self._padded[places[:, None] + (LONGEST - 1) - back]
        same = before == np.array(said[::-1], np.int64)
        found: NDArray[np.int64] = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        return found
