"""A draft written as text: the drafter's own tokens, put into the target's (SLEM, Timor et al. 2502.05202 §3)."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from paceline.core.sampling import Logits
from paceline.core.tree import Draft
from paceline.core.types import ROOT
from paceline.drafters.beam import Level
from paceline.drafters.guesses import APART
from paceline.models.bridge import Bridge, whole

LAST = 0.6
"""The last token of a text may yet grow; how often it does not, at a guess."""
_LONGEST = 4
"""Own tokens that are written for one of the target's, at most."""


class Wording:
    """Writes one sequence's draft, each time the drafter's likeliest token: a deterministic chain under every rule.

    Args:
        columns: [columns], the drafter's token of each column of its logits.
        limit: most tokens of the target.
        room: most own tokens.
    """

    def __init__(self, bridge: Bridge, columns: NDArray[np.int64], temperature: float, limit: int, room: int) -> None:
        self._bridge, self._columns, self._limit = bridge, columns, limit
        self._room = min(room, _LONGEST * limit)
        self._scale = max(temperature, APART)
        self._pieces: list[bytes] = []
        self._sure: list[float] = []
        self._tokens: list[int] = []
        self._draft: list[int] = []
        self._end: tuple[int, float] | None = None
        """A special token of the target after the text, and its chance."""
        self._survival = 1.0
        self._is_over = False

    def grow(self, node: int, logits: Logits) -> None:
        """Write the next token."""
        column = int(np.argmax(logits))
        sure = float(1 / np.exp((logits - logits[column]) / self._scale).sum(dtype=np.float64))
        token, tokenizer = int(self._columns[column]), self._bridge.drafter.tokenizer
        piece = b"" if tokenizer.is_special(token) else tokenizer.token_bytes(token)
        self._survival *= sure
        self._is_over = not piece
        if piece:
            self._tokens.append(token)
            self._pieces.append(piece)
            self._sure.append(sure)
            self._draft = self._bridge.target.spell(whole(b"".join(self._pieces)))
        elif tokenizer.is_special(token) and self._bridge.names[token] >= 0:
            self._end = int(self._bridge.names[token]), sure

    def next_level(self, least: float) -> Level | None:
        done = self._is_over or len(self._draft) >= self._limit or len(self._tokens) >= self._room
        if done or self._survival < least:
            return None
        node = len(self._tokens) - 1
        return Level([node], [0] if node else [], [self._tokens[-1]], [ROOT], [0])

    def draft(self, source: str) -> Draft:
        tokens, sure = list(self._draft), self._chances()
        if self._end is not None:
            tokens, sure = [*tokens, self._end[0]], [*sure, self._end[1]]
        elif sure:
            sure[-1] *= LAST
        return Draft.chain(tokens[: self._limit], source, sure[: self._limit])

    def _chances(self) -> list[float]:
        """Return for each token of the draft the chance of the own tokens that begin in it."""
        begins = [0, *accumulate(map(len, self._pieces))]
        ends = accumulate(len(self._bridge.target.tokenizer.token_bytes(token)) for token in self._draft)
        found, i = [], 0
        for end in ends:
            chance = 1.0
            while i < len(self._sure) and begins[i] < end:
                chance *= self._sure[i]
                i += 1
            found.append(chance)
        return found
