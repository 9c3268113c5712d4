"""How likely the target takes a drafted node, given that it took the parent: estimated, calibrated, forgetting.

Counts are kept by source, depth and the drafter's own confidence. A node is seen when the text reached its parent, be
it verified or not: what was committed tells whether the guess was right, so guesses that were not worth verifying teach
as well, at no cost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from paceline.core.tree import Draft
from paceline.core.types import ROOT

BUCKETS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Upper bounds of the confidence buckets; the last bucket has none."""
DEEPEST = 6
"""Depths from this on share a count."""
PRIOR = 6.0
"""Observations that the prior is worth."""
MEMORY = 200.0
"""Observations that a count remembers."""
REQUEST_PRIOR = 8.0
REQUESTS = 1024
"""Requests whose own record is kept, the newest."""


@dataclass(slots=True)
class _Count:
    seen: float = 0.0
    taken: float = 0.0

    def add(self, taken: bool) -> None:
        if self.seen >= MEMORY:
            keep = 1 - 1 / MEMORY
            self.seen, self.taken = self.seen * keep, self.taken * keep
        self.seen += 1
        self.taken += taken

    def mean(self, prior: float, weight: float) -> float:
        return (self.taken + weight * prior) / (self.seen + weight)


@dataclass(slots=True)
class Calibration:
    """What was expected and what came, for the expected calibration error."""

    expected: float = 0.0
    taken: float = 0.0
    seen: int = 0


class Acceptance:
    """Estimates over all requests, and how each request differs."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int, int], _Count] = defaultdict(_Count)
        self._sources: dict[tuple[str, int], _Count] = defaultdict(_Count)
        self._requests: dict[tuple[int, str], Calibration] = {}
        self.calibration: list[Calibration] = [Calibration() for _ in range(10)]

    def node(self, request: int, source: str, depth: int, confidence: float) -> float:
        """Return the chance that a node is taken, given its parent."""
        cell = self._cells[source, min(depth, DEEPEST), bucket(confidence)]
        return self._clip(cell.mean(confidence, PRIOR) * self._ratio(request, source))

    def at_depth(self, request: int, source: str, depth: int, prior: float = 0.6) -> float:
        """Return the chance of a node whose confidence is not known yet."""
        count = self._sources[source, min(depth, DEEPEST)]
        return self._clip(count.mean(prior, PRIOR) * self._ratio(request, source))

    def survivals(self, request: int, draft: Draft) -> list[float]:
        """Return for each node the chance that it and all before it are taken."""
        found: list[float] = []
        depths: list[int] = []
        for node, parent in enumerate(draft.parents):
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            chance = self.node(request, draft.source[node], depths[-1], draft.confidence[node])
            found.append(chance * (1.0 if parent == ROOT else found[parent]))
        return found

    def observe(self, request: int, draft: Draft, tokens: tuple[int, ...]) -> None:
        """Compare a draft with what became of the text."""
        parent = ROOT
        for depth, token in enumerate(tokens, 1):
            followed = None
            for node in (n for n, p in enumerate(draft.parents) if p == parent):
                taken = draft.tokens[node] == token
                self._count(request, draft.source[node], depth, draft.confidence[node], taken)
                followed = node if taken else followed
            if followed is None:
                return
            parent = followed

    @property
    def calibration_error(self) -> float:
        """Expected calibration error over ten equal bins (Guo et al. 1706.04599 §2), 0 before anything was seen."""
        seen = sum(c.seen for c in self.calibration)
        return sum(abs(c.expected - c.taken) for c in self.calibration) / seen if seen else 0.0

    def _count(self, request: int, source: str, depth: int, confidence: float, taken: bool) -> None:
        expected = self.node(request, source, depth, confidence)
        own = self._requests.setdefault((request, source), Calibration())
        if len(self._requests) > REQUESTS:
            del self._requests[next(iter(self._requests))]
        for record in (own, self.calibration[min(int(expected * 10), 9)]):
            record.expected, record.taken, record.seen = (
                record.expected + expected,
                record.taken + taken,
                record.seen + 1,
            )
        own.expected, own.taken = own.expected * 0.97, own.taken * 0.97
        self._cells[source, min(depth, DEEPEST), bucket(confidence)].add(taken)
        self._sources[source, min(depth, DEEPEST)].add(taken)

    def _ratio(self, request: int, source: str) -> float:
        own = self._requests.get((request, source))
        return (own.taken + REQUEST_PRIOR) / (own.expected + REQUEST_PRIOR) if own else 1.0

    @staticmethod
    def _clip(chance: float) -> float:
        return min(max(chance, 0.01), 0.99)


def bucket(confidence: float) -> int:
    return sum(confidence > bound for bound in BUCKETS)
