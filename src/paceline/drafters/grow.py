"""A tree that grows level by level, widest where the drafter is surest (EAGLE-2, 2406.16858 §4)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.core.types import ROOT


class Growth:
    """The nodes so far, in causal order, each with the chance that the target gets there."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidence: list[float] = []
        self.survival: list[float] = []
        self._fresh: list[int] = []

    def add(self, parent: int, tokens: Sequence[int], confidence: Sequence[float]) -> None:
        """Hang children under a node, or under ROOT."""
        reached = 1.0 if parent == ROOT else self.survival[parent]
        for token, sure in zip(tokens, confidence, strict=True):
            self._fresh.append(len(self.tokens))
            self.tokens.append(token)
            self.parents.append(parent)
            self.confidence.append(sure)
            self.survival.append(reached * sure)

    def next_level(self, width: int, least: float = 0.0) -> list[int]:
        """Return the nodes added since the last call that are worth children: the `width` likeliest to be reached."""
        fresh, self._fresh = self._fresh, []
        likely = [node for node in fresh if self.survival[node] >= least]
        return sorted(sorted(likely, key=lambda node: -self.survival[node])[:width])

    def bar(self, limit: int) -> float:
        """Return the chance of the `limit`-th likeliest node so far, -1 where there are fewer.

        A node that is no likelier has no children in the draft of the `limit` likeliest.
        """
        return heapq.nlargest(limit, self.survival)[-1] if len(self.survival) >= limit else -1.0

    def draft(self, limit: int, source: str, always: Collection[int] = ()) -> Draft:
        """Return the `limit` nodes that are likeliest to be reached; parents come before their children.

        Args:
            always: nodes that are in whatever their chance, with all their parents; no more than `limit`.
        """
        n = len(self.tokens)
        whole = Draft(tuple(self.tokens), tuple(self.parents), tuple(self.confidence), (source,) * n)
        best = sorted(range(n), key=lambda node: (node not in always, -self.survival[node], node))
        return tree.select(whole, best[:limit])
