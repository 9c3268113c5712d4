"""What alarms go by: how often a drafter is right, whether a text repeats itself, and for how long something lasts."""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field

from paceline.core.tree import Draft
from paceline.core.types import ROOT

KNOWN = 64
"""Guesses after which a drafter's own level is known."""
LEAST_LEVEL = 0.2
"""Level below which there is nothing to fall from."""
MEMORY = 1000
"""Guesses that a level remembers."""
FALL, USUAL = 1 / 8, 1 / 2
"""Shares of the level: a drafter that has collapsed, and the worst that a hard text makes of a sound one."""
EVIDENCE = math.log(10_000)
"""Odds of the one against the other from which on it is believed (Page's cumulative sum, 1954)."""
NEW_FALL, NEW_USUAL, NEW_EVIDENCE = 0.02, 0.3, math.log(150)
"""The same for a drafter whose level is not known: asked once in its life, so at lower odds."""
NEW_MOST = 0.06
"""Share of its guesses that may have come true all the same."""
RECENT = 32
"""Latest guesses by which a drafter is said to have recovered."""
LATEST = 16
"""Latest guesses in one request that are remembered."""
GRAM, KEPT = 8, 512
"""Tokens that have to come back for a text to repeat itself, and tokens of it that are looked through."""
LOOP_TOKENS, LOOP_ROUNDS = 96, 3
"""Repeated tokens, and rounds after the first, that make a loop."""
LOOP_ACCEPTANCE = 0.9


@dataclass(slots=True)
class Latch:
    """Goes on after so many bad signs in a row, and off after so many good ones."""

    bad_signs: int
    good_signs: int
    on: bool = False
    _signs: int = 0

    def feed(self, bad: bool, good: bool) -> bool:
        self._signs = self._signs + 1 if (good if self.on else bad) else 0
        if self._signs >= (self.good_signs if self.on else self.bad_signs):
            self.on, self._signs = not self.on, 0
        return self.on


@dataclass(slots=True)
class Level:
    """How often guesses came true: a mean that forgets."""

    seen: float = 0.0
    right: float = 0.0

    def add(self, right: float, seen: float, memory: float = MEMORY) -> None:
        keep = min(1.0, memory / (self.seen + seen)) if seen else 1.0
        self.seen, self.right = keep * (self.seen + seen), keep * (self.right + right)

    @property
    def rate(self) -> float:
        return self.right / self.seen if self.seen else 0.0


@dataclass(slots=True)
class Form:
    """How a drafter does against its own level, and whether that has collapsed."""

    level: Level = field(default_factory=Level)
    """Before the guesses under suspicion."""
    suspect: Level = field(default_factory=Level)
    """Since the evidence of a collapse began to gather."""
    suspects: dict[int, Level] = field(default_factory=dict)
    """The same by request."""
    evidence: float = 0.0
    collapsed: bool = False
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def is_known(self) -> bool:
        return self.level.seen >= KNOWN

    def add(self, right: int, missed: int, expected: float | None, request: int = 0) -> None:
        """Take in one step's guesses: those that came true, then one that did not, or none."""
        self.recent.extend([True] * right + [False] * missed)
        if self.collapsed:
            least = RECENT * USUAL * (NEW_USUAL if expected is None else expected)
            self.collapsed = len(self.recent) < RECENT or sum(self.recent) < least
            if not self.collapsed:
                self._clear()
            return
        if right:
            self._weigh(right, 0, expected, request)
        if missed:
            self._weigh(0, missed, expected, request)

    def _weigh(self, right: int, missed: int, expected: float | None, request: int) -> None:
        if expected is not None and expected < LEAST_LEVEL:
            self.level.add(right, right + missed)
            return
        if expected is None:
            fall, usual, enough = NEW_FALL, NEW_USUAL, NEW_EVIDENCE
        else:
            fall, usual, enough = FALL * expected, USUAL * expected, EVIDENCE
        self.suspect.add(right, right + missed)
        self.suspects.setdefault(request, Level()).add(right, right + missed)
        self.evidence += right * math.log(fall / usual) + missed * math.log((1 - fall) / (1 - usual))
        self.collapsed = self.evidence >= enough and (expected is not None or self.suspect.rate <= NEW_MOST)
        is_poor = expected is None and self.suspect.seen >= KNOWN
        if not self.collapsed and (self.evidence <= 0 or is_poor):
            self.level.add(self.suspect.right, self.suspect.seen)
            self._clear()

    def _clear(self) -> None:
        self.evidence, self.suspect = 0.0, Level()
        self.suspects.clear()


@dataclass(slots=True)
class Said:
    """What a request has said of late, and how what was guessed of it came true."""

    step: int = 0
    """In which it was seen last."""
    luck: Level = field(default_factory=Level)
    """Of all drafters' guesses, the latest."""
    guesses: dict[str, deque[bool]] = field(default_factory=dict)
    """Whether each drafter's latest came true."""
    tail: bytearray = field(default_factory=bytearray)
    """The last tokens of its output, four bytes each."""
    period: int = 0
    """Tokens after which its end has come before; 0 where it has not."""
    run: int = 0
    """Tokens that it has gone on like that."""

    def guess(self, drafter: str, right: int, missed: int) -> None:
        """Take in a drafter's guesses of one step."""
        mine = self.guesses.get(drafter)
        if mine is None:
            mine = self.guesses[drafter] = deque(maxlen=LATEST)
        mine.extend([True] * right + [False] * missed)

    @property
    def loops(self) -> bool:
        long = self.run >= max(LOOP_TOKENS, LOOP_ROUNDS * self.period)
        return long and self.luck.seen >= GRAM and self.luck.rate >= LOOP_ACCEPTANCE

    def extend(self, tokens: tuple[int, ...]) -> None:
        """Take in new output, and see whether it says again what stood `period` tokens before."""
        tail = self.tail
        tail += array("I", tokens)
        end = bytes(tail[-4 * max(GRAM, len(tokens)) :])
        begin = len(tail) - len(end)
        back = begin - 4 * self.period
        if self.period and back >= 0 and tail[back : back + len(end)] == end:
            self.run += len(tokens)
        else:
            found = tail.rfind(end, 0, len(tail) - 1)
            while found > 0 and found % 4:  # between two tokens
                found = tail.rfind(end, 0, found + len(end) - 1)
            self.period, self.run = ((begin - found) // 4, len(tokens)) if found >= 0 else (0, 0)
        if len(tail) > 8 * KEPT:
            del tail[: len(tail) - 4 * KEPT]


def came_true(draft: Draft, tokens: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Return of each drafter's guesses how many came true and how many did not, as far as the text went as drafted.

    Of several guesses for one position it is enough that one is right.
    """
    if not draft.also and draft.is_chain and len(set(draft.source)) == 1:
        right = 0
        for guess, token in zip(draft.tokens, tokens, strict=False):
            if guess != token:
                return {draft.source[0]: (right, 1)}
            right += 1
        return {draft.source[0]: (right, 0)}
    return _along_branches(draft, tokens)


def _along_branches(draft: Draft, tokens: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    at = ROOT
    for token in tokens:
        hits: dict[str, bool] = {}
        followed = ROOT
        for node in below.get(at, ()):
            hit = draft.tokens[node] == token
            followed = node if hit else followed
            for name, _ in draft.guesses(node):
                hits[name] = hits.get(name, False) or hit
        for name, hit in hits.items():
            right, missed = found.get(name, (0, 0))
            found[name] = (right + hit, missed + (not hit))
        if followed == ROOT:
            break
        at = followed
    return found
