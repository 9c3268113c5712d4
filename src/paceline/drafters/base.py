"""The Drafter protocol: begin, propose, observe, end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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


class Drafter(Protocol):
    """Guesses what comes next.

    A drafter with a cache of its own catches up at the next `propose`, so being off costs nothing. It is not
    trusted: whatever it returns or raises, the text is right; what cannot be used is dropped and counted.
    """

    def begin(self, seq: SequenceView) -> None:
        """A sequence has been added; called once, before any other verb for it."""

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        """Return one draft a sequence, of at most as many nodes as its limit; empty where nothing is worth a row."""

    def observe(self, seq: SequenceView, verdict: Verdict, hidden: Mapping[int, NDArray[np.float32]]) -> None:
        """The last step's verdict on whatever was drafted, by whom ever; `hidden` has the rows of the step."""

    def end(self, seq: SequenceView) -> None:
        """The sequence is finished; forget it."""
