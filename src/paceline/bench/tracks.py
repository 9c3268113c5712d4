"""Texts without tokens: what each drafter guesses at every position, and how much of it comes true."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.law import Law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import SpeculationParams

WRONG, OTHER, WORD = 0, 1, 1 << 28
"""Tokens that no text has: WRONG, and those from OTHER on; a text's own are from WORD on, none of them twice."""
REACH = 16
"""Guesses that are made up at a position; a drafter that is asked for more gives as many."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What a drafter guesses at one position, if it is asked for all that it can."""

    right: int
    """How many of its first guesses come true."""
    confidence: tuple[float, ...]
    """Of each guess."""
    wrong: int = WRONG
    """The token that it guesses first of those that do not come true."""


@dataclass(frozen=True, slots=True)
class Track:
    """What one drafter guesses along one text."""

    chains: Sequence[Chain | None]
    """[length of the text]: what it guesses when so many tokens of it are there; None is no guess."""
    sampled: bool = False
    """Whether it draws at random, so that its drafts must not be trimmed."""

    def draft(self, name: str, begin: int, limit: int, least: float = 0.0) -> Draft:
        """Return the first `limit` guesses.

        Args:
            least: a guess is the last one if the chance of all up to it, by the drafter's own confidence, is below.
        """
        chain = self.chains[begin]
        if chain is None or limit <= 0:
            return EMPTY
        sure = chain.confidence[:limit]
        if least > 0:
            sure = sure[: _worth(sure, least)]
        right = min(chain.right, len(sure))
        tokens = [*range(WORD + begin, WORD + begin + right), *(chain.wrong,) * (len(sure) - right)]
        return Draft.chain(tokens, name, sure, list(map(Law.point, tokens)) if self.sampled else ())


def _worth(sure: Sequence[float], least: float) -> int:
    survival = 1.0
    for count, chance in enumerate(sure, 1):
        survival *= chance
        if survival < least:
            return count
    return len(sure)


@dataclass(frozen=True, slots=True)
class Text:
    """One request: what each drafter makes of it, and how long it is."""

    length: int
    tracks: Mapping[str, Track]
    """In the order in which drafters are asked."""
    prompt: int = 100
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    after: int = 0
    """Comes when all others have so many tokens together."""
    category: str = ""


def track(
    hits: Sequence[bool],
    confidence: Sequence[float],
    has: Sequence[bool] | None = None,
    *,
    flat: bool = False,
    sampled: bool = False,
    wrong: int = WRONG,
) -> Track:
    """Return a track of guesses that are right or wrong by position, however much was guessed before them.

    Args:
        confidence: by position, too.
        has: whether there is a guess for a draft that begins at a position; None is always.
        flat: a draft has the confidence of its first guess all along, as a lookup's has.
    """
    runs = _runs(hits)
    length = len(hits)

    def chain(at: int) -> Chain | None:
        if has is not None and not has[at]:
            return None
        count = min(REACH, length - at)
        sure = (confidence[at],) * count if flat else tuple(confidence[at : at + count])
        return Chain(min(runs[at], count), sure, wrong)

    return Track([chain(at) for at in range(length)], sampled)


def _runs(hits: Sequence[bool]) -> list[int]:
    """Return for each position how many guesses from there on are right, one after the other."""
    backwards = itertools.accumulate(reversed(hits), lambda run, hit: run + 1 if hit else 0, initial=0)
    return list(backwards)[:0:-1]
