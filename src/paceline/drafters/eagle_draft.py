"""Drafts in the making of a head that goes on from its own hidden states: a chain, or a tree.

Both are given the head's answer, say which rows it should run next, and so on until they want no more. The row of a
drafted token holds the hidden state of the row that guessed it, and stands one position before the token.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core import tree
from paceline.core.law import Law
from paceline.core.tree import Draft
from paceline.core.types import ROOT
from paceline.drafters.base import SequenceView
from paceline.drafters.grow import Growth
from paceline.drafters.guesses import best, draw
from paceline.drafters.shaped import Head
from paceline.runners.base import Span
from paceline.runners.kv import Slot

Floats = NDArray[np.float32]

NAME = "heads"
WIDTH, DEPTH = 4, 8
"""Nodes of a tree that are given children at each level, children of each, and levels."""


class Sprout(Protocol):
    """A draft that grows."""

    rows: int
    """Most rows of its own that stand in the cache at a time."""

    def take(self, logits: Floats, hidden: Floats) -> None:
        """Go on with the head's answers [wanted, draft vocabulary] and hidden states [rows, width]."""

    def next(self, least: float) -> tuple[Span, Floats] | None:
        """Return the rows to run and their features; None when less than `least` of a chance is left to go on with."""

    def draft(self) -> Draft: ...


class Chain:
    """One token after another, drawn as the sequence's rule wants it."""

    def __init__(self, head: Head, seq: SequenceView, slot: Slot, limit: int) -> None:
        self._head, self._seq, self._slot = head, seq, slot
        self.rows = limit
        self._tokens: list[int] = []
        self._confidence: list[float] = []
        self._laws: list[Law | None] = []
        self._survival = 1.0
        self._hidden = np.zeros((0, 0), np.float32)

    def take(self, logits: Floats, hidden: Floats) -> None:
        drawn = draw(self._head, logits[-1], self._seq, self._tokens)
        self._tokens.append(drawn.token)
        self._confidence.append(drawn.confidence)
        self._laws.append(drawn.law)
        self._survival *= drawn.confidence
        self._hidden = hidden[-1:]

    def next(self, least: float) -> tuple[Span, Floats] | None:
        done = len(self._tokens)
        if done == self.rows or self._survival < least:
            return None
        cached = self._slot.length + done - 1
        return rows_at(self._slot, [self._tokens[-1]], cached, len(self._seq.tokens) - 2 + done), self._hidden

    def draft(self) -> Draft:
        return Draft.chain(self._tokens, NAME, self._confidence, self._laws)


class Tree:
    """The likeliest nodes get children, level by level (EAGLE-2, 2406.16858 §4.1), and the likeliest of all are kept.

    Every pass runs the rows of all levels so far: what stands in the cache is seen by all rows of a pass, which is
    wrong for what branches, so nothing that was drafted stands there.
    """

    def __init__(self, head: Head, seq: SequenceView, slot: Slot, limit: int) -> None:
        self._head, self._seq, self._slot, self._limit = head, seq, slot, limit
        self._width, self._levels = min(WIDTH, limit), min(DEPTH, limit)
        self.rows = self._width * (self._levels - 1)
        self._growth = Growth()
        self._level = [ROOT]
        self._depth = 0
        self._run: list[int] = []
        """Nodes whose rows run, in causal order."""
        self._hidden: dict[int, Floats] = {}
        """Of each node that was run, and of the pending token's row, as ROOT."""

    def take(self, logits: Floats, hidden: Floats) -> None:
        for node, row, state in zip(self._level, logits, hidden[-len(self._level) :], strict=True):
            self._hidden[node] = state
            drafted = drafted_to(self._growth, node)
            self._growth.add(node, *best(self._head, row, self._seq, drafted, self._width))
        self._depth += 1

    def next(self, least: float) -> tuple[Span, Floats] | None:
        if self._depth == self._levels:
            return None
        growth, bar = self._growth, self._growth.bar(self._limit)
        self._level = [node for node in growth.next_level(self._width, least) if growth.survival[node] > bar]
        if not self._level:
            return None
        self._run += self._level
        features = np.stack([self._hidden[growth.parents[node]] for node in self._run])
        return self._span(), features

    def draft(self) -> Draft:
        return self._growth.draft(self._limit, NAME)

    def _span(self) -> Span:
        place = {node: i for i, node in enumerate(self._run)} | {ROOT: ROOT}
        parents = [place[self._growth.parents[node]] for node in self._run]
        first = len(self._run) - len(self._level)
        return Span(
            tokens=np.array([self._growth.tokens[node] for node in self._run], np.int64),
            cached=self._slot.length,
            blocks=self._slot.table,
            wanted=np.arange(first, len(self._run), dtype=np.int32),
            positions=len(self._seq.tokens) - 2 + np.array(tree.depths(parents), np.int64),
            mask=tree.ancestor_mask(parents)[1:, 1:],
        )


def drafted_to(growth: Growth, node: int) -> list[int]:
    """Return the drafted tokens from the root to a node; empty for ROOT."""
    return [growth.tokens[n] for n in tree.path_to(growth.parents, node)]


def rows_at(slot: Slot, tokens: list[int], cached: int, position: int) -> Span:
    """Return consecutive rows from a position on, of which the last one is answered."""
    positions = None if position == cached else np.arange(position, position + len(tokens), dtype=np.int64)
    last = np.array([len(tokens) - 1], np.int32)
    return Span(np.array(tokens, np.int64), cached, slot.table, last, positions)
