"""A tree that grows where it is likeliest to be reached: the largest expected acceptance for its number of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.core.tree import Draft
from paceline.core.types import ROOT

Known = TypeVar("Known")
"""What a drafter knows at a node, for its children to be found."""


@dataclass(slots=True, eq=False)
class Guess:
    """A draft in the making."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    score: float = 0.0
    """How many of the nodes the target is expected to take."""

    def draft(self, source: str) -> Draft:
        sources = (source,) * len(self.tokens)
        return Draft(tuple(self.tokens), tuple(self.parents), tuple(self.confidence), sources)


def best_first(
    known: Known, ways: Callable[[Known], Iterable[tuple[int, float, Known]]], most: int, least: float
) -> Guess:
    """Return the `most` nodes that are likeliest to be reached, in that order; of equals the one named first.

    Args:
        known: what is known at the pending token.
        ways: names the children of a node: their tokens, all different, their confidences and what is known there.
        most: 1 or more.
        least: nodes that are reached with a smaller chance are left out.
    """
    guess = Guess()
    named, parent, reached = 0, ROOT, 1.0
    front: list[tuple[float, int, int, int, float, Known]] = []
    while True:
        for token, sure, there in ways(known):
            if reached * sure >= least:
                named += 1  # settles ties, so that what is known is never compared
                heapq.heappush(front, (-reached * sure, named, parent, token, sure, there))
        if not front:
            return guess
        lost, _, above, token, sure, known = heapq.heappop(front)
        guess.tokens.append(token)
        guess.parents.append(above)
        guess.confidence.append(sure)
        guess.score -= lost
        parent, reached = len(guess.tokens) - 1, -lost
        if len(guess.tokens) == most:
            return guess
