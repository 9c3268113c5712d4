"""The Drafter protocol: begin, propose, observe, end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.rows import Row
from paceline.core.sampling import Shaping
from paceline.core.tree import Draft
from paceline.core.types import Rule, Verdict
from paceline.core.verify import Randomness


class SequenceView(Protocol):
    """What a drafter may read of a sequence; it changes nothing."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output so far; the last one is pending."""

    @property
    def prompt_len(self) -> int: ...
    @property
    def shaping(self) -> Shaping: ...
    @property
    def noise(self) -> Randomness: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def prediction(self) -> Sequence[int]:
        """Tokens that the caller expects of the answer; empty when it said nothing."""

    @property
    def tenant(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one pass of the target showed of one sequence. Its arrays are valid during `observe` only."""

    begin: int
    """Position in the sequence of the first row."""
    tokens: Sequence[int]
    """[rows]: what was read, the last of it the pending token, then the nodes of `draft`."""
    draft: Draft
    """What was verified, whoever guessed it."""
    verdict: Verdict | None
    """None for a part of a prompt: nothing was decided. Tokens after a stop are in it, but end the sequence."""
    rows: Sequence[Row]
    """[1 + nodes], the target's answers after the pending token and after each node; empty without a verdict."""
    hidden: Mapping[int, NDArray[np.float32]]
    """layer -> [rows, width], of the layers that the engine taps."""


class Drafter(Protocol):
    """Guesses what comes next.

    A drafter with a cache of its own catches up at the next `propose`, so being off costs nothing. It is not
    trusted: whatever it returns or raises, the text is right; what cannot be used is dropped and counted.
    """

    def begin(self, seq: SequenceView) -> None:
        """A sequence has been added; called once, before any other verb for it."""

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        """Return one draft a sequence, of at most as many nodes as its limit; empty where nothing is worth a row."""

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        """A pass of the target has run over rows of the sequence, which has what was confirmed by now."""

    def end(self, seq: SequenceView) -> None:
        """The sequence is finished; forget it."""
