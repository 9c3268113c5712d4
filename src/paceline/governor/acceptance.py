"""How likely the target takes a drafted node, given that it took the parent: estimated, calibrated, forgetting.

Counts are kept by source, depth, the drafter's own confidence, and how many of its guesses came true in a row just
before: what is right tends to stay so for a while. A node is seen when the text reached its parent, be it verified or
not: what was committed tells whether the guess was right, so guesses that were not worth verifying teach as well, at
no cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from paceline.core import tree
from paceline.core.tree import Draft, Guess
from paceline.core.types import ROOT

CERTAIN = 0.99
"""No chance is held higher."""
LEAST = 0.01
"""Nor lower."""
FIRST = 0.8
"""Chance of a first guess while nothing is known."""
BUCKETS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Upper bounds of the confidence buckets; the last bucket has none."""
RUNS = (1, 4)
"""Lower bounds of the classes of runs, after the first, which is none."""
ANY, WIDE = -1, -1
"""Stand for whatever confidence, and whatever run."""
DEEPEST = 6
"""Depths from this on share a count."""
LEARNT = 8
"""Depths of a draft that are counted; deeper ones only tell whether it went on being right."""
PRIOR = 6.0
"""Observations that the prior is worth."""
MEMORY = 200.0
"""Observations that a count remembers."""
KEPT = 30.0
"""Observations of a saved count that still count."""
SAVED = 20_000
"""Most rows of a saved state."""
REQUEST_PRIOR = 4.0
REQUEST_KEEP = 0.97
COMPANY_KEEP, COMPANY_PRIOR = 0.995, 20.0
SAID_KEEP, SAID_PRIOR = 0.99, 3.0
"""Of the logarithms of confidences and chances, and what nothing being known of them is worth."""
FADE = 0.85
"""What a step without a guess leaves of what is known of a request's latest ones."""
FORGOTTEN = 1.0
REQUESTS = 1024
"""Pairs of request and source whose own record is kept, the newest."""


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

    def mean(self, prior: float) -> float:
        return (self.taken + PRIOR * prior) / (self.seen + PRIOR)


@dataclass(slots=True)
class Calibration:
    """What was expected and what came, for the expected calibration error."""

    expected: float = 0.0
    taken: float = 0.0
    seen: int = 0

    def add(self, expected: float, taken: bool) -> None:
        self.expected += expected
        self.taken += taken
        self.seen += 1


@dataclass(slots=True)
class _Trend:
    """What came of late against what was expected."""

    expected: float = 0.0
    taken: float = 0.0
    keep: float = REQUEST_KEEP
    prior: float = REQUEST_PRIOR
    """Observations that nothing having been special is worth."""

    def add(self, expected: float, taken: bool) -> None:
        self.expected = self.keep * self.expected + expected
        self.taken = self.keep * self.taken + taken

    @property
    def ratio(self) -> float:
        return (self.taken + self.prior) / (self.expected + self.prior)


@dataclass(slots=True)
class _Own:
    """How a request differs, of one source."""

    sure: _Trend = field(default_factory=_Trend)
    """From what the confidences let expect."""
    blind: _Trend = field(default_factory=_Trend)
    """From what is expected before they are known: a harder text shows in confidences, not in how true they are."""
    run: int | None = 0
    """Guesses that came true in a row, up to now; None when that is too long ago to say anything."""

    def trend(self, kind: int) -> _Trend:
        return self.blind if kind == ANY else self.sure


class Acceptance:
    """Estimates over all requests, and how each request differs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int, int], _Count] = defaultdict(_Count)
        self._requests: dict[tuple[int, str], _Own] = {}
        self._company: dict[tuple[str, ...], _Trend] = {}
        """Of nodes that just these drafters guessed, what came against what any of them let expect alone: agreement is
        worth more, and a drafter alone among several less."""
        self._said: dict[str, tuple[float, float]] = {}
        """Sums of each drafter's own confidences and of what was to expect, as logarithms."""
        self.calibration: list[Calibration] = [Calibration() for _ in range(10)]

    def ahead(self, request: int, source: str, most: int, prior: float = FIRST) -> list[float]:
        """Return for each depth the chance of a node, given its parent, whose confidence is not known yet."""
        own = self._requests.get((request, source), _NEW)
        found: list[float] = []
        for depth in range(1, min(most, DEEPEST) + 1):
            prior = self._chance(own, own.run, source, depth, ANY, prior)
            found.append(prior)
        return found + [prior] * (most - DEEPEST)

    def survivals(self, request: int, draft: Draft) -> list[float]:
        """Return for each node the chance that it and all before it are taken."""
        known: dict[tuple[tuple[Guess, ...], int], float] = {}
        found: list[float] = []
        for node, depth in enumerate(tree.depths(draft.parents)):
            key = draft.guesses(node), min(depth, DEEPEST)
            if key not in known:
                known[key] = self._node_chance(request, *key)
            parent = draft.parents[node]
            found.append(known[key] * (1.0 if parent == ROOT else found[parent]))
        return found

    def fade(self, request: int, source: str) -> None:
        """Note that a source was not asked: its luck may have turned."""
        own = self._requests.get((request, source))
        if own is not None:
            own.blind.expected, own.blind.taken = FADE * own.blind.expected, FADE * own.blind.taken
            if own.blind.expected < FORGOTTEN:
                own.run = None

    def observe(self, request: int, draft: Draft, tokens: tuple[int, ...]) -> None:
        """Compare a draft with what became of the text."""
        below: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(draft.parents):
            below[parent].append(node)
        at, runs = ROOT, {name: self._own(request, name).run for name in draft.drafters}
        for depth, token in enumerate(tokens, 1):
            if not below[at]:
                return
            right: dict[str, bool] = {}
            followed = None
            for node in below[at]:
                taken = draft.tokens[node] == token
                followed = node if taken else followed
                guesses = draft.guesses(node)
                if depth <= LEARNT:
                    self._learn(request, guesses, runs, min(depth, DEEPEST), taken)
                for name, _ in guesses:
                    right[name] = right.get(name, False) or taken
            for name, hit in right.items():
                if depth <= LEARNT:
                    self._settle(request, name, runs[name], min(depth, DEEPEST), hit)
                elif not hit:
                    self._own(request, name).run = 0
            if followed is None:
                return
            at = followed

    def seen(self, source: str) -> float:
        """Return how many first guesses of a source have been held against the text."""
        return self._counts[source, 1, ANY, WIDE].seen

    def rate(self, source: str) -> float | None:
        """Return how often a source's guesses came true, over all depths; None where there are too few."""
        counts = [
            c for (name, _, kind, run), c in self._counts.items() if name == source and (kind, run) == (ANY, WIDE)
        ]
        seen = sum(c.seen for c in counts)
        return sum(c.taken for c in counts) / seen if seen >= PRIOR else None

    def state(self) -> dict[str, Any]:
        """Return what holds for all requests, for JSON."""
        return {
            "counts": [[*key, count.seen, count.taken] for key, count in self._counts.items() if count.seen],
            "company": [[list(names), t.expected, t.taken] for names, t in self._company.items()],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], keep: float = KEPT) -> Self:
        """Return estimates as `state` left them.

        Args:
            keep: most observations that a count brings along: what was seen then is a prior, no more.

        Raises:
            ValueError: it is no such state.
        """
        found = cls()
        for source, at, kind, run, seen, taken in _rows(state, "counts", 6):
            if not isinstance(source, str) or not all(type(n) is int and -1 <= n <= 64 for n in (at, kind, run)):
                raise ValueError(f"{source!r}, {at!r}, {kind!r}, {run!r} is no class of nodes")
            _pair(seen, taken, MEMORY)
            share = min(1.0, keep / max(seen, 1.0))
            found._counts[source, at, kind, run] = _Count(share * seen, share * taken)
        for names, expected, taken in _rows(state, "company", 3):
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{names!r} are no drafters' names")
            _pair(expected, taken, math.inf)
            found._company[tuple(names)] = _Trend(expected, taken, COMPANY_KEEP, COMPANY_PRIOR)
        return found

    @property
    def calibration_error(self) -> float:
        """Expected calibration error over ten equal bins (Guo et al. 1706.04599 §2), 0 before anything was seen."""
        seen = sum(c.seen for c in self.calibration)
        return sum(abs(c.expected - c.taken) for c in self.calibration) / seen if seen else 0.0

    def _own(self, request: int, source: str) -> _Own:
        own = self._requests.get((request, source))
        if own is None:
            if len(self._requests) >= REQUESTS:
                del self._requests[next(iter(self._requests))]
            own = self._requests[request, source] = _Own()
        return own

    def _node_chance(self, request: int, guesses: tuple[Guess, ...], at: int) -> float:
        """Return the chance of a node, given who guessed it and who did not."""
        return self._in_company(guesses, self._best_alone(request, guesses, at))

    def _in_company(self, guesses: tuple[Guess, ...], alone: float) -> float:
        company = self._company.get(tuple(name for name, _ in guesses))
        return alone if company is None else min(max(alone * company.ratio, LEAST), CERTAIN)

    def _best_alone(self, request: int, guesses: tuple[Guess, ...], at: int) -> float:
        """Return the best chance that any of these drafters lets expect, whatever others say."""
        singly = []
        for name, sure in guesses:
            own = self._requests.get((request, name), _NEW)
            singly.append(self._chance(own, own.run, name, at, bucket(sure), sure))
        return max(singly)

    def _learn(
        self, request: int, guesses: tuple[Guess, ...], runs: Mapping[str, int | None], at: int, taken: bool
    ) -> None:
        """Count a node for every drafter that guessed it, and for just these having done so."""
        alone = LEAST
        for name, sure in guesses:
            own, kind = self._own(request, name), bucket(sure)
            chance = self._chance(own, runs[name], name, at, kind, sure)
            alone = max(alone, chance)
            own.sure.add(chance, taken)
            self._count(name, runs[name], at, kind, taken)
            self._compare(name, chance, sure)
        names = tuple(name for name, _ in guesses)
        company = self._company.get(names)
        if company is None:
            company = self._company[names] = _Trend(keep=COMPANY_KEEP, prior=COMPANY_PRIOR)
        expected = min(max(alone * company.ratio, LEAST), CERTAIN)
        self.calibration[min(int(expected * 10), 9)].add(expected, taken)
        company.add(alone, taken)

    def _compare(self, name: str, chance: float, sure: float) -> None:
        """Take note of how what a drafter says goes with what to expect."""
        said, expected = self._said.get(name, (0.0, 0.0))
        self._said[name] = (
            SAID_KEEP * said - math.log(max(sure, LEAST)),
            SAID_KEEP * expected - math.log(chance),
        )

    def sharpness(self, source: str) -> float:
        """Return the power of a drafter's own confidence that comes closest to the chance to expect.

        Below 1 it is too modest, above 1 too sure of itself; in [0.25, 4].
        """
        said, expected = self._said.get(source, (0.0, 0.0))
        return min(max((expected + SAID_PRIOR) / (said + SAID_PRIOR), 0.25), 4.0)

    def _settle(self, request: int, name: str, run: int | None, at: int, hit: bool) -> None:
        """Count whether any of a drafter's guesses for a position was right."""
        own = self._own(request, name)
        own.blind.add(self._chance(own, run, name, at, ANY, FIRST), hit)
        own.run = (own.run or 0) + 1 if hit else 0
        self._count(name, run, at, ANY, hit)

    def _count(self, source: str, run: int | None, at: int, kind: int, taken: bool) -> None:
        self._counts[source, at, kind, WIDE].add(taken)
        if run is not None:
            self._counts[source, at, kind, bisect_right(RUNS, run)].add(taken)

    def _chance(self, own: _Own, run: int | None, source: str, at: int, kind: int, prior: float) -> float:
        """Return the mean of the narrower class, for which that of the wider one is the prior."""
        chance = self._counts[source, at, kind, WIDE].mean(prior)
        if run is not None:
            chance = self._counts[source, at, kind, bisect_right(RUNS, run)].mean(chance)
        return min(max(chance * own.trend(kind).ratio, LEAST), CERTAIN)


_NEW = _Own()


def _rows(state: Mapping[str, Any], name: str, width: int) -> list[list[Any]]:
    rows = state.get(name)
    if not isinstance(rows, list) or len(rows) > SAVED:
        raise ValueError(f"{name} is missing or too long")
    if not all(isinstance(row, list) and len(row) == width for row in rows):
        raise ValueError(f"a row of {name} has not {width} values")
    return rows


def _pair(seen: Any, taken: Any, most: float) -> None:
    numbers = all(isinstance(n, (int, float)) and math.isfinite(n) and n >= 0 for n in (seen, taken))
    if not numbers or seen > most or (taken > seen and most < math.inf):
        raise ValueError(f"{taken!r} of {seen!r} is no count")


def bucket(confidence: float) -> int:
    return bisect_left(BUCKETS, confidence)
