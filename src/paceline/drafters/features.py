"""What the target's hidden states said of each position, kept until a head reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.base import Seen

Floats = NDArray[np.float32]

MOST = 2048
"""Positions kept of a sequence whose head is not asked; older ones are lost to it."""


def committed(seen: Seen, taps: Sequence[int]) -> Floats:
    """Return [positions, taps * width], the tapped states of the committed positions from `seen.begin` on: what was
    read, then the accepted nodes."""
    read = len(seen.tokens) - len(seen.draft)
    path = seen.verdict.path if seen.verdict is not None else ()
    rows = [*range(read), *(read + node for node in path)]
    return np.concatenate([seen.hidden[tap][rows] for tap in taps], axis=1)


class Features:
    """Rows of consecutive positions: the newest `most` of them, and at most one part of what a pass gave beyond."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._parts: deque[tuple[int, Floats]] = deque()
        """With the position of the first row of each."""
        self.end = 0
        """The position after the last row."""

    @property
    def begin(self) -> int:
        """The position of the first row."""
        return self._parts[0][0] if self._parts else self.end

    def add(self, begin: int, rows: Floats) -> None:
        """Append rows. Positions that are known already are left as they are; rows before a gap are dropped."""
        if begin > self.end:
            self._parts.clear()
            self.end = begin
        fresh = rows[self.end - begin :]
        if len(fresh):
            self._parts.append((self.end, fresh))
            self.end += len(fresh)
        self.drop(self.end - self._most)

    def take(self, begin: int, end: int) -> Floats:
        """Return the rows of these positions."""
        return np.concatenate([rows[max(begin - at, 0) : max(end - at, 0)] for at, rows in self._parts])

    def drop(self, before: int) -> None:
        """Forget the parts that end before this position."""
        while self._parts and self._parts[0][0] + len(self._parts[0][1]) <= before:
            self._parts.popleft()
